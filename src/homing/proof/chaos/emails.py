"""`homing chaos emails`: the broker is stopped, killed and loses its queue while emails go out.

Emails come in by the API of a real process, some before the run and most of them during it, so that creates
meet the outages as well. Schedulers and senders are real processes; nobody restarts them, unless it was us
who killed them. What is done to whom is here, what must hold of it is in `email_checker.py`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from homing.app import opened
from homing.errors import DatabaseError
from homing.lanes.email_log.queues import queues_of
from homing.proof.chaos.checker import Verdict
from homing.proof.chaos.email_checker import (
    EmailEvidence,
    EmailFault,
    FaultKind,
    QueueEnd,
    check_emails,
)
from homing.proof.chaos.email_crew import EmailCrew
from homing.proof.chaos.email_intake import Intake
from homing.proof.chaos.email_queue import ChaosBroker
from homing.proof.chaos.email_sink import EmailSinkProcess, SinkPlan
from homing.proof.chaos.email_table import EmailTable
from homing.proof.chaos.processes import WorkerProcess, worker_environment
from homing.proof.chaos.table import Held
from homing.proof.chaos.waiting import TICK, until
from homing.settings import load_settings
from homing.testing.components.processes import free_port
from homing.testing.components.rabbitmq import RabbitMqServer

SEND_QUEUE, DEAD_LETTERS = queues_of().send.name, queues_of().dead_letters.name

#: About what a broker takes to start.
_START = 8.0
#: Between two faults: time to work off what has piled up.
_PAUSE = 10.0
_KILL_PAUSE = (0.5, 2.0)
#: A message that waits this long is not gone but late.
_LONGEST_WAIT = 20.0
_BEFORE = 0.1
#: A burst is on its way, and not yet through, when the fault comes.
_INTO_THE_BURST = 1.0
#: Kills wait for processes that start.
_KILL_SLACK = 1.5
#: They come after a fault, about so many, with so many seconds in between.
_NEWCOMERS, _BETWEEN_NEWCOMERS = 20, 0.2
#: They come while the broker is away, and before each kill.
_IN_AN_OUTAGE, _BEFORE_A_KILL = 5, 10
_STANDSTILL = 60.0


class EmailPlan(Struct, frozen=True, kw_only=True):
    emails: int = 10_000
    schedulers: int = 2
    senders: int = 4
    #: How often the broker is stopped, and for how many seconds each time.
    stops: int = 3
    outage: float = 10.0
    broker_kills: int = 1
    deletions: int = 1
    #: SIGKILLs of schedulers and senders besides.
    kills: int = 0
    #: How many addresses the sink refuses at first.
    refuse: float = 0.1
    lease: float = 5.0
    pause: float = _PAUSE
    #: What the senders may take to come back to the broker, in seconds.
    healing_limit: float = 15.0
    #: SMTP connections of one sender.
    connections: int = 10
    seed: int = 0

    @property
    def broker_faults(self) -> int:
        return self.stops + self.broker_kills + self.deletions

    @property
    def duration(self) -> float:
        """About how long the faults take."""
        starts = (self.stops + self.broker_kills) * _START
        kills = self.kills * sum(_KILL_PAUSE) / 2
        return max(self.broker_faults * self.pause + starts + self.stops * self.outage, kills * _KILL_SLACK)

    @property
    def reserved(self) -> int:
        """Around each fault of the broker a burst, and after it some to see whether they come through."""
        bursts = self.broker_faults * (self.burst + _NEWCOMERS) + self.stops * _IN_AN_OUTAGE
        return bursts + self.kills * _BEFORE_A_KILL

    @property
    def rate(self) -> float:
        """Emails per second that come in beside that."""
        return max(1.0, (self.emails * (1 - _BEFORE) - self.reserved) / max(self.duration, 1.0))

    @property
    def sink_delay(self) -> float:
        """So slow that all senders are at work, and so fast that a pause makes up for an outage."""
        away = self.outage + _START if self.stops or self.broker_kills else 0.0
        in_a_pause = self.rate * (away + self.pause) + (self.burst if self.broker_faults else 0)
        return min(0.5, max(0.02, self.senders * self.connections / (in_a_pause / self.pause * 2)))

    @property
    def sweep(self) -> float:
        """Longer than a message waits that is not lost: during an outage, and in line after it."""
        return 2 * self.outage + _LONGEST_WAIT

    @property
    def prefetch(self) -> int:
        return self.connections * 2

    @property
    def burst(self) -> int:
        """More than the senders take at once: some wait in the queue when the fault comes."""
        return max(self.senders * self.prefetch * 2, self.emails // 40)

    def order_of_faults(self, chance: random.Random) -> list[FaultKind]:
        outages: list[FaultKind] = ["stop-broker" for _ in range(self.stops)]
        outages += ["kill-broker" for _ in range(self.broker_kills)]
        chance.shuffle(outages)
        # Early: what is lost with a queue is found by a sweep, and the run should not have to wait for it.
        for _ in range(self.deletions):
            outages.insert(chance.randrange(len(outages) // 2 + 1), "delete-queue")
        return outages


class EmailProgress(Struct, frozen=True):
    """Where a run is."""

    total: int
    ended: int
    now: str


class EmailReport(Struct, frozen=True):
    plan: EmailPlan
    verdict: Verdict
    seconds: float


Tell = Callable[[EmailProgress], None]


async def run_emails(
    plan: EmailPlan,
    database_url: str,
    server: RabbitMqServer,
    folder: Path,
    *,
    tell: Tell = lambda _: None,
) -> EmailReport:
    """Run the plan on an empty database and a broker that is ours to break; `folder` gets the logs."""
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        await _make_tables(database_url)
        log = str(folder / "contacts.jsonl")
        sink = EmailSinkProcess(folder, SinkPlan(log, plan.sink_delay, plan.refuse, plan.seed))
        stack.callback(sink.close)
        table = EmailTable(database_url)
        stack.push_async_callback(table.close)
        environment = email_environment(plan, database_url, sink.url, server.url)
        crew = EmailCrew(folder, environment, schedulers=plan.schedulers, senders=plan.senders)
        stack.callback(crew.close)
        intake = stack.enter_context(Intake(crew.port, plan.emails, reserved=plan.reserved))
        broker = ChaosBroker(server, SEND_QUEUE, DEAD_LETTERS)
        evidence = await EmailRun(plan, Scene(broker, table, sink, crew, intake), tell).to_the_end()
    return EmailReport(plan, check_emails(evidence), round(time.monotonic() - started, 1))


async def _make_tables(database_url: str) -> None:
    settings = load_settings({"database_url": database_url, "mail_url": "memory://"}, environ={})
    async with opened(settings, makes_file=True) as homing:
        await homing.migrate()


def email_environment(plan: EmailPlan, database_url: str, mail_url: str, broker_url: str) -> dict[str, str]:
    return worker_environment(
        database_url, mail_url,
        homing_email_broker_url=broker_url, homing_port=free_port(),
        homing_mail_connections=plan.connections, homing_email_prefetch=plan.prefetch,
        homing_email_lease_seconds=plan.lease, homing_email_lost_after_seconds=plan.sweep,
        homing_email_retry_interval_seconds=1, homing_email_backoff_schedule="1s,2s,3s",
        homing_email_max_attempts=50,
    )  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """Who takes part."""

    broker: ChaosBroker
    table: EmailTable
    sink: EmailSinkProcess
    crew: EmailCrew
    intake: Intake


class EmailRun:
    def __init__(self, plan: EmailPlan, scene: Scene, tell: Tell) -> None:
        self._plan, self._tell = plan, tell
        self._broker, self._table, self._sink = scene.broker, scene.table, scene.sink
        self._crew, self._intake = scene.crew, scene.intake
        self._random = random.Random(plan.seed)  # noqa: S311 - a fault need not be unguessable
        self._open = plan.emails
        self._now = "starting"
        self.faults: list[EmailFault] = []

    async def to_the_end(self) -> EmailEvidence:
        await self._crew.api.until_ready()
        await self._intake.put_in(int(self._plan.emails * _BEFORE))
        self._crew.begin()
        keeping = asyncio.create_task(self._keep_watch())
        coming = asyncio.create_task(self._intake.keep_coming(self._plan.rate))
        try:
            await self._crew.until_ready()
            await asyncio.gather(self._trouble_the_broker(), self._kill_processes())
            self._sink.hurry()
            await coming
            await self._intake.put_in_rest()
            await self._drain()
        finally:
            for task in (keeping, coming):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await self._crew.dismiss()
        return await self._evidence()

    async def _evidence(self) -> EmailEvidence:
        plan, queues = self._plan, self._broker.queues
        crowds = [await self._broker.look(queue) for queue in queues]
        left = [QueueEnd(q, crowd.messages) for q, crowd in zip(queues, crowds, strict=True) if crowd]
        wanted: list[tuple[FaultKind, int]] = [
            ("stop-broker", plan.stops), ("kill-broker", plan.broker_kills),
            ("delete-queue", plan.deletions), ("kill", plan.kills),
        ]  # fmt: skip
        return EmailEvidence(
            self._intake.ordered, await self._table.ends(), self._sink.contacts(), self.faults,
            self._crew.testimony(), left, self._crew.deserters, wanted, plan.healing_limit, plan.sweep,
        )  # fmt: skip

    # ── faults of the broker ─────────────────────────────────────────────────────────────────────

    async def _trouble_the_broker(self) -> None:
        for kind in self._plan.order_of_faults(self._random):
            self._now = "working"
            await asyncio.sleep(self._plan.pause * self._random.uniform(0.7, 1.0))
            self._now = kind
            fault, since = await (self._delete_queue() if kind == "delete-queue" else self._take_away(kind))
            self.faults.append(await self._timed(fault, since))

    async def _delete_queue(self) -> tuple[EmailFault, float]:
        """With a burst that nobody has taken yet. To stand still meanwhile may cost senders their leases."""
        with self._crew.senders_held():
            held, begun = await self._held_by_senders(), time.time()
            await self._intake.put_in_reserved(self._plan.burst)
            await until(self._something_waits, _STANDSTILL)
            fault = await self._strike("delete-queue", self._broker.delete(SEND_QUEUE))
        return replace(fault, begun=begun, held=_united(held, fault.held)), time.monotonic()

    async def _take_away(self, kind: FaultKind) -> tuple[EmailFault, float]:
        """In the middle of a burst."""
        burst = asyncio.create_task(self._intake.put_in_reserved(self._plan.burst))
        await until(self._something_waits, _INTO_THE_BURST)
        fault, since = await self._strike(kind, self._outage(kind)), time.monotonic()
        await burst
        return fault, since

    async def _outage(self, kind: FaultKind) -> None:
        await self._broker.stop(immediate=kind == "kill-broker")
        if kind == "stop-broker":
            meet_it = self._intake.put_in_reserved(_IN_AN_OUTAGE)
            await asyncio.gather(asyncio.sleep(self._plan.outage), meet_it)
        await self._broker.start()

    async def _strike(self, kind: FaultKind, blow: Coroutine[None, None, None]) -> EmailFault:
        waiting = await self._broker.look(SEND_QUEUE)
        held, begun = await self._held_by_senders(), time.time()
        await blow
        # Before and after: what begins while the broker is being struck was in flight as well.
        held_then = _united(held, await self._held_by_senders())
        return EmailFault(kind, begun, time.time(), held_then, waiting.messages if waiting else 0)

    async def _timed(self, fault: EmailFault, since: float) -> EmailFault:
        """How long it took until a new email was sent, and until every sender had sent one.

        RabbitMQ may count readers to whom it gives nothing any more, so they have to show that they work.
        """
        before, enough = self._intake.newest, asyncio.Event()
        newcomers = asyncio.create_task(self._intake.trickle(_BETWEEN_NEWCOMERS, enough))

        async def one_works() -> bool:
            return any(newest > before for newest in self._crew.newest_sent())

        async def all_work() -> bool:
            return all(newest > before for newest in self._crew.newest_sent()) and await self._all_read()

        flowing = time.monotonic() - since if await until(one_works, _STANDSTILL) else None
        complete = time.monotonic() - since if await until(all_work, _STANDSTILL) else None
        enough.set()
        await newcomers
        return replace(fault, flowing=flowing, complete=complete)

    async def _all_read(self) -> bool:
        crowd = await self._broker.look(SEND_QUEUE)
        return crowd is not None and crowd.readers >= len(self._crew.senders)

    async def _something_waits(self) -> bool:
        crowd = await self._broker.look(SEND_QUEUE)
        return crowd is not None and crowd.messages > 0

    # ── faults of processes ──────────────────────────────────────────────────────────────────────

    async def _kill_processes(self) -> None:
        for number in range(self._plan.kills):
            await asyncio.sleep(self._random.uniform(*_KILL_PAUSE))
            await self._intake.put_in_reserved(_BEFORE_A_KILL)
            await self._kill(await (self._busy_sender() if number % 2 else self._anybody()))

    async def _anybody(self) -> WorkerProcess:
        await until(self._somebody_works)
        return self._random.choice(self._crew.at_work())

    async def _busy_sender(self) -> WorkerProcess:
        """Who is sending something; anybody, if nobody is for long."""
        deadline = time.monotonic() + _PAUSE
        while time.monotonic() < deadline:
            owners = {held.owner for held in await self._held_by_senders()}
            if busy := [worker for worker in self._crew.at_work() if worker.owner in owners]:
                return self._random.choice(busy)
            await asyncio.sleep(TICK)
        return await self._anybody()

    async def _somebody_works(self) -> bool:
        return bool(self._crew.at_work())

    async def _kill(self, victim: WorkerProcess) -> None:
        sends = victim in self._crew.senders
        begun = time.time()
        before = await self._held()
        victim.kill()
        # Before and after: on a busy machine its leases may be over by the time that we look again.
        held = _united(before, await self._held())
        own = tuple(h for h in held if h.owner == victim.owner) if sends else ()
        self.faults.append(EmailFault("kill", begun, time.time(), own))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    async def _held_by_senders(self) -> list[Held]:
        """Schedulers hold rows as well, but send nothing: theirs excuse no double."""
        owners = {sender.owner for sender in self._crew.senders}
        return [held for held in await self._held() if held.owner in owners]

    async def _held(self) -> list[Held]:
        while True:
            with suppress(DatabaseError):
                return await self._table.held()
            await asyncio.sleep(TICK)

    async def _keep_watch(self) -> None:
        """Replace those whom we have killed, and say how far it is."""
        while True:
            self._crew.muster()
            with suppress(DatabaseError):
                self._open = self._intake.missing + await self._table.open_rows()
            self._tell(EmailProgress(self._plan.emails, self._plan.emails - self._open, self._now))
            await asyncio.sleep(TICK * 4)

    async def _drain(self) -> None:
        """Until nothing is open, or nothing moves any more: the checker says what was left."""
        self._now = "draining"
        least, since = self._open, time.monotonic()
        while self._open and time.monotonic() - since < self._plan.sweep + _STANDSTILL:
            await asyncio.sleep(TICK)
            if self._open < least:
                least, since = self._open, time.monotonic()
        await until(self._queue_is_empty, _STANDSTILL)

    async def _queue_is_empty(self) -> bool:
        crowd = await self._broker.look(SEND_QUEUE)
        return crowd is not None and not crowd.messages


def _united(*looks: Iterable[Held]) -> tuple[Held, ...]:
    return tuple({(held.id, held.claim_seq): held for look in looks for held in look}.values())
