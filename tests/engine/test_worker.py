"""The polling worker on real databases: wake-ups, polls, and outages that it lives through."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic

import asyncpg
import pytest
from tests.engine.waiting import until
from tests.outbox import Bench, bench

from homing.engine.worker import Worker
from homing.errors import Conflict, Unreachable
from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.outbox import CHANNEL, new_token
from homing.testing.components.postgres import PostgresServer


@asynccontextmanager
async def working(opened: Bench) -> AsyncIterator[Worker]:
    worker = opened.homing.mail.worker()
    assert isinstance(worker, Worker)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(running, 60)


#: Longer than any test: who looks again has been told to.
NEVER = 600.0


@asynccontextmanager
async def asleep(opened: Bench, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    """A worker that looks once, and then only when it is woken."""
    monkeypatch.setattr("homing.engine.worker._SHORTEST_PAUSE", NEVER)
    opened.homing.mail._longest_pause = NEVER
    async with working(opened) as worker:
        if opened.homing.database.dialect == "postgres":
            await until(lambda: is_listening(opened))
        yield worker


async def is_listening(opened: Bench) -> bool:
    return bool(await listeners(opened))


async def listeners(opened: Bench) -> list[int]:
    # While it is not idle again it may not have taken effect yet.
    rows = await opened.sql(
        "SELECT pid FROM pg_stat_activity "
        "WHERE datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'"
    )
    return [row["pid"] for row in rows]


async def idle() -> None:
    """Wait until the worker has looked in vain so often that it sleeps for a second at a time."""
    ends = monotonic() + 1.3
    await until(lambda: monotonic() >= ends)


def mail(number: int = 0) -> NewMail:
    return NewMail(token=new_token(), to_address=f"ann{number}@example.org", subject="Hi", text_body="Hello.")


async def count(opened: Bench, status: str) -> int:
    return (await opened.outbox.counts())[status]


@pytest.mark.slow
async def test_an_order_in_the_same_process_is_delivered_without_a_poll(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(database_url) as opened, asleep(opened, monkeypatch):
        await opened.outbox.enqueue([mail()])
        await until(lambda: bool(opened.sender.delivered))


@pytest.mark.slow
async def test_an_order_by_another_process_wakes_the_worker(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(postgres_url) as opened, asleep(opened, monkeypatch):
        script = (
            "import asyncio, sys\n"
            "from homing.db import connect\n"
            "from homing.lanes.mail_outbox.lane import transition\n"
            "from homing.lanes.mail_outbox.mail import NewMail\n"
            "from homing.lanes.mail_outbox.outbox import MailOutbox, new_token\n"
            "async def main():\n"
            "    database = connect(sys.argv[1])\n"
            "    outbox = MailOutbox(database, transition, owner='o', lease_seconds=9.0, max_attempts=5)\n"
            "    await outbox.counts()\n"
            "    print('ready', flush=True)\n"
            "    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)\n"
            "    mail = NewMail(token=new_token(), to_address='a@example.org', text_body='x')\n"
            "    await outbox.enqueue([mail])\n"
            "    await asyncio.sleep(0.2)\n"
            "    await database.close()\n"
            "asyncio.run(main())\n"
        )
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, postgres_url, stdin=pipe, stdout=pipe
        )
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdout.readline()
        process.stdin.write(b"go\n")
        await until(lambda: bool(opened.sender.delivered))
        assert await process.wait() == 0


@pytest.mark.slow
async def test_a_plain_notify_wakes_the_worker(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any program may insert a row and announce it; ours is not needed for that."""
    async with bench(postgres_url) as opened, asleep(opened, monkeypatch):
        foreign = await asyncpg.connect(postgres_url)
        try:
            await foreign.execute(
                "INSERT INTO mail_outbox (to_address, text_body) VALUES ('a@example.org', 'x')"
            )
            await foreign.execute(f"NOTIFY {CHANNEL}")
            await until(lambda: bool(opened.sender.delivered))
        finally:
            await foreign.close()


@pytest.mark.slow
async def test_a_row_that_nobody_announced_is_found_by_polling(database_url: str) -> None:
    async with bench(database_url) as opened, working(opened):
        await idle()
        await opened.insert()
        await until(lambda: bool(opened.sender.delivered))


async def test_notifications_are_few_and_the_last_order_is_always_announced(postgres_url: str) -> None:
    async with bench(postgres_url) as opened:
        heard: list[float] = []
        listener = await asyncpg.connect(postgres_url)
        try:
            await listener.add_listener(CHANNEL, lambda *_: heard.append(monotonic()))
            began = monotonic()
            await opened.outbox.enqueue([mail()])
            await until(lambda: bool(heard))
            for number in range(1, 200):
                await opened.outbox.enqueue([mail(number)])
            last = monotonic()
            await until(lambda: bool(heard) and heard[-1] >= last)
        finally:
            await listener.close()
        # The last comes behind all orders, and timers may be early by a millisecond.
        assert len(heard) <= (last - began) / 0.05 * 1.1 + 3


@pytest.mark.slow
async def test_a_lost_listen_connection_is_made_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(postgres_url) as opened, asleep(opened, monkeypatch):
        (before,) = await listeners(opened)
        await opened.sql("SELECT pg_terminate_backend(:pid::integer)", pid=before)

        async def again() -> bool:
            return bool(set(await listeners(opened)) - {before})

        await until(again)
        foreign = await asyncpg.connect(postgres_url)
        try:
            await foreign.execute(
                "INSERT INTO mail_outbox (to_address, text_body) VALUES ('a@example.org', 'x')"
            )
            await foreign.execute(f"NOTIFY {CHANNEL}")
            await until(lambda: bool(opened.sender.delivered))
        finally:
            await foreign.close()


@pytest.mark.slow
async def test_a_worker_lives_through_a_restart_of_its_database(private_postgres: PostgresServer) -> None:
    url = private_postgres.create_database()
    async with bench(url) as opened, working(opened):
        await opened.insert(5)

        async def all_sent(expected: int) -> bool:
            try:
                return await count(opened, "sent") == expected
            except Unreachable:
                return False

        await until(lambda: all_sent(5))
        for round_number in (2, 3):
            await asyncio.to_thread(private_postgres.restart, immediate=True)
            await until(lambda: _inserted(opened))
            await until(partial(all_sent, round_number * 5))
        assert len(opened.sender.delivered) == 15


async def _inserted(opened: Bench) -> bool:
    try:
        await opened.sql(
            "INSERT INTO mail_outbox (to_address, text_body) SELECT 'a@example.org', 'x' "
            "FROM generate_series(1, 5) RETURNING id"
        )
    except Unreachable:
        return False
    return True


async def test_a_failed_claim_is_logged_and_tried_again(sqlite_url: str) -> None:
    async with bench(sqlite_url) as opened:
        claim, failures = opened.outbox.claim, iter([Conflict("locked"), Conflict("locked")])

        async def fail_twice(limit: int) -> object:
            if (failure := next(failures, None)) is not None:
                raise failure
            return await claim(limit)

        opened.outbox.claim = fail_twice  # type: ignore[assignment, method-assign]
        await opened.insert()
        async with working(opened):
            await until(lambda: bool(opened.sender.delivered))
        assert len(opened.log.all("claim.failed")) == 2


@pytest.mark.slow
async def test_nothing_is_claimed_while_there_is_no_way_out(sqlite_url: str) -> None:
    async with bench(sqlite_url) as opened:
        opened.sender.is_available = False
        (waiting,) = await opened.insert()
        async with working(opened) as worker:
            await idle()
            row = await opened.row(waiting)
            assert (row["status"], row["claim_seq"]) == ("queued", 0)
            opened.sender.is_available = True
            worker.wake()
            await until(lambda: bool(opened.sender.delivered))


async def test_more_than_fits_is_claimed_as_slots_come_free(sqlite_url: str) -> None:
    async with bench(sqlite_url, mail_batch=5) as opened:
        await opened.insert(23)
        async with working(opened):
            await until(lambda: len(opened.sender.delivered) == 23)
        assert len({message.message_id for _, message in opened.sender.delivered}) == 23


async def test_draining_delivers_everything_that_is_due_and_ends(sqlite_url: str) -> None:
    async with bench(sqlite_url, mail_batch=5) as opened:
        await opened.insert(12)
        (later,) = await opened.insert()
        await opened.age(later, -3600)
        worker = opened.homing.mail.worker()
        assert await asyncio.wait_for(worker.drain(), 60) == 12
        assert await count(opened, "sent") == 12
        assert (await opened.row(later))["status"] == "queued"


async def test_a_stopped_worker_claims_nothing_more(sqlite_url: str) -> None:
    async with bench(sqlite_url) as opened:
        async with working(opened):
            await until(lambda: True)
        (after,) = await opened.insert()
        assert (await opened.row(after))["claim_seq"] == 0
        assert opened.sender.delivered == []
