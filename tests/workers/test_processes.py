"""Real processes: one works, another pauses it; one is killed, and what it held is taken back."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.http.door import url_with_tables
from tests.http.test_access_processes import homing
from tests.outbox import Bench, bench
from tests.workers.running import only_worker

from homing.testing.smtp_sink import SmtpSink, stall


async def until_seen(lane: Bench, state: str) -> str:
    async with asyncio.timeout(60):
        while True:
            workers = await lane.homing.fleet.workers()
            if workers and workers[0].state == state:
                return workers[0].name
            await asyncio.sleep(0.02)


async def test_a_worker_that_another_process_pauses_hears_of_it_within_five_seconds(tmp_path: Path) -> None:
    url = url_with_tables(tmp_path)
    async with bench(url) as lane, homing(url, "work", "mail_outbox") as process:
        name = await until_seen(lane, "running")
        assert name.endswith(f":{process.pid}")
        await lane.homing.fleet.pause("worker", name, by="cli:eve")
        await until_seen(lane, "paused")
        # By the database's clock, so that it does not matter when we look.
        worker = await only_worker(lane.homing)
        assert worker.pause is not None
        assert (worker.seen_at - worker.pause.asked_at).total_seconds() < 5
        await lane.insert()
        await lane.homing.fleet.resume("worker", name)
        async with asyncio.timeout(60):
            while (await lane.outbox.counts())["sent"] < 1:
                await asyncio.sleep(0.02)
        process.terminate()
        await until_seen(lane, "stopped")


async def test_what_a_killed_worker_held_is_taken_back_before_its_leases_end(tmp_path: Path) -> None:
    url = url_with_tables(tmp_path)
    silent = SmtpSink(script=lambda stage, _: stall() if stage == "mail" else None)
    async with silent as sink, bench(url) as lane:
        ids = await lane.insert(2)
        relay = f"smtp://127.0.0.1:{sink.port}"
        async with homing(url, "work", "mail_outbox", HOMING_MAIL_URL=relay) as process:
            name = await until_seen(lane, "running")
            async with asyncio.timeout(60):
                while (await lane.outbox.counts())["dispatching"] < 2:
                    await asyncio.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        # Nobody waits half a minute in a test.
        await lane.sql("UPDATE homing_worker SET seen_at = '2020-01-01T00:00:00.000Z' RETURNING name")
        assert (await only_worker(lane.homing)).state == "lost"
        assert await lane.homing.operations.leases.release(name) == {"mail_outbox": 2}
        assert [(await lane.row(id))["status"] for id in ids] == ["queued", "queued"]
