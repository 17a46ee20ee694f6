"""Running until told to stop: the API, the workers, or both in one process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from homing.app import Homing
from homing.engine.calling_off import call_off
from homing.engine.prune import Pruner
from homing.errors import DatabaseError, HomingError
from homing.lanes.mail_outbox.dispatching import DispatchReply, DispatchRequest
from homing.lines import Line
from homing.workers.heartbeat import Heartbeat

#: Seconds that a stop waits for a claim that is under way; its rows are rescued when it comes later.
_LAST_CLAIM = 5.0
#: Seconds between two looks whether processes of the version before are still there.
_LOOK_FOR_FORMER = 60.0
#: … and two deletions of what is known of old logins.
_FORGET_EVERY = 600.0


class Stop:
    """The first SIGTERM or Ctrl-C asks for a graceful end, the second for an immediate one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)

    def ask(self) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()


async def run(
    homing: Homing, stop: Stop, *, api: bool, work: Iterable[str], ready: Callable[[str], None]
) -> None:
    """Serve and work on some lanes until stopped; then finish what has begun within the grace time."""
    lines = list(homing.lines.values())
    lanes = list(work)
    async with (
        _serving(homing, api=api) as address,
        _maintaining(lines),
        _pruning(homing, lanes),
        _counting(homing, api=api),
        _alerting(homing),
        _beating(homing, lanes, api=api) as heartbeat,
        _finishing_migration(homing),
        _forgetting(homing, api=api),
    ):
        homing.ground.address = address or None
        _check_templates(homing, lanes)
        workers = [worker for lane in lanes for worker in homing.workers(lane)]
        if api or "dispatch_jobs" in lanes:
            workers += homing.publishers()
        workers.append(homing.bulk.runner())
        working = {asyncio.create_task(worker.run()) for worker in workers}
        ready(address)
        await _until_asked(stop, working)
        homing.telemetry.log.info("service.stopping", grace_seconds=homing.settings.grace_seconds)
        for line in lines:
            line.claim_no_more()
        for worker in workers:
            worker.stop()
        await heartbeat.stopping()
        if working:
            await asyncio.wait(working, timeout=_LAST_CLAIM)
        await _drain(homing, lines, stop)
    homing.telemetry.log.info("service.stopped")
    for task in working:
        if not task.cancel():
            task.result()


def _check_templates(homing: Homing, lanes: Sequence[str]) -> None:
    """Before anything is claimed: a mail without words ends as failed."""
    if "open_events" in lanes:
        homing.notifications_part.check_templates()


async def _until_asked(stop: Stop, working: set[asyncio.Task[None]]) -> None:
    """Also when a worker has ended by a bug: a process that claims no more must not look alive."""
    asked = asyncio.create_task(stop.asked.wait())
    await asyncio.wait({asked, *working}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()


async def drain_once(homing: Homing, stop: Stop, lanes: Iterable[str]) -> int:
    """Deliver what is due, and end: `homing work --once`."""
    chosen = list(lanes)
    _check_templates(homing, chosen)
    lines = [line for lane in chosen for line in homing.lines_of(lane)]
    for line in lines:
        await line.maintenance.once()
    drained = asyncio.ensure_future(_drain_lines(lines))
    await _until_done_or_asked(homing, lines, stop, drained)
    # What came from a queue is told of there when everything has ended.
    for line in lines:
        line.claim_no_more()
    await asyncio.gather(*(line.drain(0) for line in lines if line.open_feed is not None))
    return drained.result() if drained.done() and not drained.cancelled() else 0


async def _drain_lines(lines: Sequence[Line]) -> int:
    """First what is taken from the database: some of it goes into the queues that others are fed by."""
    total = 0
    for fed in (False, True):
        chosen = [line for line in lines if (line.open_feed is not None) == fed]
        total += sum(await asyncio.gather(*(line.worker().drain() for line in chosen)))
    return total


async def dispatch_once(homing: Homing, stop: Stop, request: DispatchRequest) -> DispatchReply:
    """One batch to its end: `homing dispatch`. Whoever runs only this is rescued by nobody else."""
    if not request.dry_run:
        await homing.mail.maintenance.once()
    dispatched = asyncio.create_task(homing.dispatching(request))
    await _until_done_or_asked(homing, [homing.mail], stop, dispatched)
    if not dispatched.done():
        raise HomingError(
            "stopped before the database had answered; what it claimed is rescued after its lease"
        )
    return dispatched.result()


async def _until_done_or_asked(
    homing: Homing, lines: Sequence[Line], stop: Stop, work: asyncio.Future[Any]
) -> None:
    """Let work end by itself; when a stop comes first, finish or give back what it holds."""
    asked = asyncio.create_task(stop.asked.wait())
    await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if work.done():
        return
    for line in lines:
        line.claim_no_more()
    await _drain(homing, lines, stop)
    # A claim that was under way when the stop came may have brought more.
    await asyncio.wait({work}, timeout=_LAST_CLAIM)
    await _drain(homing, lines, stop)
    # What was given back has an end too, so the work comes to its own unless the database is silent.
    await asyncio.wait({work}, timeout=_LAST_CLAIM)
    work.cancel()


async def _drain(homing: Homing, lines: Sequence[Line], stop: Stop) -> None:
    draining = asyncio.ensure_future(_drain_all(homing, lines, homing.settings.grace_seconds))
    insisted = asyncio.create_task(stop.insisted.wait())
    await asyncio.wait({draining, insisted}, return_when=asyncio.FIRST_COMPLETED)
    insisted.cancel()
    if not draining.done():
        # Even an immediate end gives back what it holds, so that nobody waits for the leases.
        draining.cancel()
        with suppress(asyncio.CancelledError):
            await draining
        await _drain_all(homing, lines, 0)


async def _drain_all(homing: Homing, lines: Sequence[Line], grace: float) -> None:
    routers = [homing.router] if homing.router is not None else []
    await asyncio.gather(*(line.drain(grace) for line in lines), *(router.drain(grace) for router in routers))


@asynccontextmanager
async def _maintaining(lines: Sequence[Line]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(line.maintenance.run()) for line in lines]
    try:
        yield
    finally:
        await call_off(*tasks)


@asynccontextmanager
async def _beating(homing: Homing, lanes: Sequence[str], *, api: bool) -> AsyncIterator[Heartbeat]:
    """The process is seen, and does what it is told: also one that only serves."""
    worked = {line.name for lane in lanes for line in homing.lines_of(lane)}
    if homing.queueing is not None and (api or "dispatch_jobs" in lanes):
        worked.add(homing.queueing.name)
    heartbeat = homing.operations.heartbeat(lanes, worked=worked, serves=api)
    await heartbeat.begin()
    task = asyncio.create_task(heartbeat.run())
    try:
        yield heartbeat
    finally:
        await call_off(task)
        await heartbeat.stopped()


@asynccontextmanager
async def _counting(homing: Homing, *, api: bool) -> AsyncIterator[None]:
    """What this process did is written down every few seconds, and what all have appended is summed up."""
    tasks = [asyncio.create_task(_kept(homing, keep)) for keep in homing.figures.keepers(serves=api)]
    try:
        yield
    finally:
        await call_off(*tasks)


async def _kept(homing: Homing, keep: Callable[[], Awaitable[None]]) -> None:
    try:
        await keep()
    except Exception as bug:  # noqa: BLE001 - what is only counted must not hold up a stop
        homing.telemetry.crashed("figures.crashed", bug)


@asynccontextmanager
async def _finishing_migration(homing: Homing) -> AsyncIterator[None]:
    """What processes of the version before still need goes when the last of them has stopped."""

    async def until_finished() -> None:
        while True:
            if await _is_migrated(homing):
                return
            await asyncio.sleep(_LOOK_FOR_FORMER)

    task = asyncio.create_task(until_finished())
    try:
        yield
    finally:
        await call_off(task)


async def _is_migrated(homing: Homing) -> bool:
    try:
        return await homing.finish_migration()
    except DatabaseError as error:
        homing.telemetry.log.warning("migrate.unfinished", error=str(error))
        return False


@asynccontextmanager
async def _alerting(homing: Homing) -> AsyncIterator[None]:
    """Any process may; one of them does."""
    watch = homing.alerts_part.watch
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        await call_off(task)
        await watch.leave()


@asynccontextmanager
async def _forgetting(homing: Homing, *, api: bool) -> AsyncIterator[None]:
    """Of logins that failed, and of sessions that have ended: also while nobody logs in."""

    async def forget() -> None:
        while True:
            # Next time, where the database is away.
            with suppress(DatabaseError):
                await homing.access.log_in.forget_old()
            await asyncio.sleep(_FORGET_EVERY)

    tasks = [asyncio.create_task(forget())] if api else []
    try:
        yield
    finally:
        await call_off(*tasks)


@asynccontextmanager
async def _pruning(homing: Homing, lanes: Sequence[str]) -> AsyncIterator[None]:
    """Beside work: who only serves deletes nothing."""
    if not (homing.pruning and lanes):
        yield
        return
    task = asyncio.create_task(Pruner(homing.pruning, homing.telemetry).run())
    try:
        yield
    finally:
        await call_off(task)


@asynccontextmanager
async def _serving(homing: Homing, *, api: bool) -> AsyncIterator[str]:
    """The API, or for a worker with `HOMING_METRICS_PORT` its metrics, or nothing."""
    settings = homing.settings
    if not (api or settings.metrics_port):
        yield ""
        return
    # Imported late: a worker without metrics needs no web server.
    from homing.http.connection import Limits
    from homing.http.server import serving

    application = homing.asgi() if api else homing.metrics_asgi()
    port = settings.port if api else settings.metrics_port
    limits = Limits(
        settings.api_header_seconds,
        settings.api_idle_seconds,
        settings.api_connections_per_address,
        settings.api_intake_mib << 20,
    )
    async with serving(application, settings.host, port, limits) as address:
        yield address
