"""Started, stopped and upgraded the way an operator does it: nothing double, nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from homing.app import opened
from homing.proof.chaos.processes import SinkProcess, WorkerProcess, worker_environment
from homing.proof.chaos.table import MailTable
from homing.proof.chaos.waiting import until
from homing.settings import load_settings

pytestmark = pytest.mark.slow

PATIENCE = 100.0
#: What a process may need beside the grace time on a busy machine: closing pools, ending the interpreter. Far
#: less than the minute that a stuck relay takes.
SLACK = 25.0


class Site:
    """A database with mails in it, a sink that takes its time, and the processes an operator starts."""

    def __init__(self, table: MailTable, sink: SinkProcess, start: Callable[..., WorkerProcess]) -> None:
        self.table, self.sink, self.start = table, sink, start

    async def until_taken(self, count: int) -> None:
        """Wait until the sink has taken so many mails."""

        async def taken() -> bool:
            return len(self.sink.addresses()) >= count

        assert await until(taken, PATIENCE), f"the sink has {len(self.sink.addresses())} of {count}"

    async def until_said(self, process: WorkerProcess, event: str) -> None:
        async def said() -> bool:
            return any(line["event"] == event for line in process.events())

        assert await until(said, PATIENCE), process.log.read_text()

    async def until_all_ended(self) -> None:
        async def ended() -> bool:
            return await self.table.open_rows() == 0

        assert await until(ended, PATIENCE), f"{await self.table.open_rows()} have not ended"

    async def states(self) -> Counter[tuple[str, int]]:
        """How many rows there are by status and charged attempts."""
        return Counter((end.status, end.retry_count) for end in await self.table.ends())

    def copies(self) -> Counter[str]:
        return Counter(address for delivery in self.sink.deliveries() for address in delivery.to)


@asynccontextmanager
async def site(
    url: str, folder: Path, *, mails: int, delay: float, **settings: object
) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        async with opened(load_settings({"database_url": url}, environ={}), makes_file=True) as homing:
            await homing.migrate()
        table = MailTable(url)
        stack.push_async_callback(table.close)
        await table.fill(mails)
        sink = SinkProcess(folder, delay=delay)
        stack.callback(sink.close)
        environment = worker_environment(url, sink.url, homing_port=0, **settings)
        numbers = iter(range(1000))

        def start(*arguments: str) -> WorkerProcess:
            process = WorkerProcess(folder, f"process-{next(numbers)}", environment, arguments)
            stack.callback(process.kill)
            return process

        yield Site(table, sink, start)


async def stop(process: WorkerProcess, number: signal.Signals, within: float) -> int | None:
    """Its exit code; that it ends in time is asserted."""
    asked = time.monotonic()
    code = await process.end(number, patience=within + 30)
    assert time.monotonic() - asked < within, process.log.read_text()
    return code


@pytest.mark.parametrize(
    ("command", "number"),
    [("work", signal.SIGTERM), ("work", signal.SIGINT), ("up", signal.SIGTERM)],
    ids=["work-sigterm", "work-ctrl-c", "up-sigterm"],
)
async def test_stop_in_the_middle_of_work_and_upgrade(
    command: str, number: signal.Signals, database_url: str, tmp_path: Path
) -> None:
    grace = 20.0
    settings = {"homing_mail_connections": 4, "homing_mail_batch": 60, "homing_grace_seconds": grace}
    async with site(database_url, tmp_path, mails=400, delay=0.1, **settings) as here:
        old = here.start(command)
        await here.until_taken(20)
        assert await stop(old, number, grace) == 0
        states = await here.states()
        assert set(states) == {("sent", 0), ("queued", 0)}, "nothing is left in dispatching or charged"
        assert 20 <= states["sent", 0] < 400, "it was stopped in the middle"
        assert sum(here.copies().values()) == states["sent", 0], "what was begun was finished and noted"
        here.sink.hurry()
        new = here.start(command)
        await here.until_all_ended()
        assert await stop(new, number, grace) == 0
        assert await here.states() == {("sent", 0): 400}
        assert set(here.copies().values()) == {1}


async def test_rolling_restarts_double_nothing(postgres_url: str, tmp_path: Path) -> None:
    settings = {"homing_mail_connections": 4, "homing_mail_batch": 100}
    async with site(postgres_url, tmp_path, mails=1200, delay=0.04, **settings) as here:
        current = here.start("work")
        await current.until_ready()
        for _ in range(5):
            replacement = here.start("work")
            await replacement.until_ready()
            taken = len(here.sink.addresses())
            assert await current.end() == 0
            current = replacement
            await here.until_taken(min(1200, taken + 50))
        here.sink.hurry()
        await here.until_all_ended()
        assert await current.end() == 0
        assert await here.states() == {("sent", 0): 1200}
        assert sum(here.copies().values()) == 1200


@pytest.mark.parametrize("arguments", [("work",), ("work", "--once"), ("up",)], ids=" ".join)
async def test_grace_time_ends_also_when_the_relay_is_stuck(
    arguments: Sequence[str], database_url: str, tmp_path: Path
) -> None:
    """All slots are full and none comes free: the stop must not wait for one."""
    settings = {"homing_mail_connections": 2, "homing_mail_batch": 10, "homing_grace_seconds": 1}
    async with site(database_url, tmp_path, mails=50, delay=60.0, **settings) as here:
        process = here.start(*arguments)
        await here.until_taken(2)
        assert await stop(process, signal.SIGTERM, within=1 + SLACK) == 0
        assert await here.states() == {("queued", 0): 50}


async def test_second_ctrl_c_ends_at_once_and_gives_back_the_claims(
    database_url: str, tmp_path: Path
) -> None:
    settings = {"homing_mail_connections": 2, "homing_mail_batch": 10, "homing_grace_seconds": 600}
    async with site(database_url, tmp_path, mails=50, delay=60.0, **settings) as here:
        process = here.start("work")
        await here.until_taken(2)
        process.send(signal.SIGINT)
        await here.until_said(process, "service.stopping")
        assert await stop(process, signal.SIGINT, within=SLACK) == 0
        assert await here.states() == {("queued", 0): 50}


async def test_stop_of_a_single_pass_leaves_nothing_behind(database_url: str, tmp_path: Path) -> None:
    settings = {"homing_mail_connections": 4, "homing_mail_batch": 20}
    async with site(database_url, tmp_path, mails=200, delay=0.1, **settings) as here:
        process = here.start("work", "--once")
        await here.until_taken(30)
        assert await stop(process, signal.SIGTERM, within=30) == 0
        states = await here.states()
        assert set(states) == {("sent", 0), ("queued", 0)}
        assert sum(here.copies().values()) == states["sent", 0] < 200


async def test_stop_of_one_batch_leaves_nothing_behind(database_url: str, tmp_path: Path) -> None:
    """`homing dispatch`, as a cron line runs it: nobody else would ever rescue its rows."""
    settings = {"homing_mail_connections": 2}
    async with site(database_url, tmp_path, mails=100, delay=0.1, **settings) as here:
        process = here.start("dispatch", "--batch-size", "100")
        await here.until_taken(5)
        assert await stop(process, signal.SIGTERM, within=30) == 0
        states = await here.states()
        assert set(states) == {("sent", 0), ("queued", 0)}
        assert sum(here.copies().values()) == states["sent", 0] < 100


async def owners_of(table: MailTable) -> set[str]:
    return {held.owner for held in await table.held()}


def pid_of(owner: str) -> int:
    return int(owner.rpartition(":")[2])


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("whole_group", [False, True], ids=["sigterm to the parent", "ctrl-c in a terminal"])
async def test_several_processes_stop_together(whole_group: bool, postgres_url: str, tmp_path: Path) -> None:
    """A terminal's Ctrl-C reaches the parent and its children at once: that is one signal, not two."""
    settings = {"homing_mail_connections": 2, "homing_mail_batch": 20, "homing_grace_seconds": 20}
    async with site(postgres_url, tmp_path, mails=400, delay=0.4, **settings) as here:
        parent = here.start("work", "--processes", "3")
        owners: set[str] = set()

        async def three_at_work() -> bool:
            owners.update(await owners_of(here.table))
            return len(owners) == 3

        assert await until(three_at_work, PATIENCE)
        parent.ended_by_us = True
        if whole_group:
            os.killpg(parent.pid, signal.SIGINT)
        else:
            parent.send(signal.SIGTERM)
        assert await parent.exited() == 0
        assert not any(exists(pid_of(owner)) for owner in owners)
        states = await here.states()
        assert set(states) == {("sent", 0), ("queued", 0)}
        assert sum(here.copies().values()) == states["sent", 0], "what was begun was finished"


async def test_killed_child_is_replaced(postgres_url: str, tmp_path: Path) -> None:
    settings = {"homing_mail_connections": 2, "homing_mail_batch": 20, "dispatch_lease_seconds": 2}
    async with site(postgres_url, tmp_path, mails=400, delay=0.3, **settings) as here:
        parent = here.start("work", "--processes", "2")
        seen: set[str] = set()

        async def seen_at_work(count: int) -> bool:
            seen.update(await owners_of(here.table))
            return len(seen) >= count

        assert await until(lambda: seen_at_work(2), PATIENCE)
        os.kill(pid_of(min(seen)), signal.SIGKILL)
        assert await until(lambda: seen_at_work(3), PATIENCE), "a new one works in its place"
        assert await stop(parent, signal.SIGTERM, within=30 + SLACK) == 0
        assert not any(exists(pid_of(owner)) for owner in seen)
