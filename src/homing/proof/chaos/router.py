"""`homing chaos router`: ordered jobs through SQS FIFO, whose messages come twice and are seen too soon.

Several Homings in one process, as several processes would be, route the same queue. What it hands out is
tampered with: some messages are handed out twice, and of some the visibility ends while they are being
processed, so that somebody else gets them too. A receiver in a process of its own notes what comes when.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path

from homing.app import Homing, opened
from homing.brokers.base import Broker, Consumer, Depth, Message, Publication, Queue
from homing.engine.model import Failure
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.target import target_of
from homing.proof.chaos.checker import Check, Verdict, read_testimony
from homing.proof.chaos.job_checker import JobEvidence, OrderedJob, check_jobs
from homing.proof.chaos.job_receiver import Keys, Receipt, ReceiverPlan, ReceiverProcess
from homing.proof.chaos.job_table import JobTable
from homing.proof.chaos.processes import read_events
from homing.proof.chaos.run import ChaosReport, FaultPlan, Progress, Tell
from homing.proof.chaos.waiting import TICK
from homing.service import Stop, run
from homing.settings import Settings, load_settings
from homing.signatures import make_secret
from homing.telemetry import Telemetry, make_logger

_BATCH = 1000
_PATH = "/receiver"
#: Far more than failing answers can use up.
_MOST_ATTEMPTS = 50
#: Seconds until the visibility of a message ends that is to be lost: it is being processed by then, or waits.
_SOON = 0.05
#: Without any progress for this long, the run will not end.
_STANDSTILL = 60.0


class RouterPlan(FaultPlan, frozen=True, kw_only=True):
    workers: int = 2
    kills: int = 0
    stops: int = 0
    jobs: int = 5000
    groups: int = 100
    #: Of `DISPATCH-POOL`, in each of the routers.
    concurrency: int = 5
    #: How many messages are handed out twice, and of how many the visibility ends too soon.
    duplicates: float = 0.05
    expiries: float = 0.05
    visibility: float = 5.0
    #: How many requests the receiver answers with a 500, and how long it takes for each.
    fail: float = 0.02
    hold: float = 0.03

    @property
    def at_once(self) -> int:
        """Requests that all pools together have under way."""
        return self.concurrency * self.workers


class Troubled:
    """A broker that hands out some messages twice, and forgets of some that they are held."""

    def __init__(self, broker: Broker, plan: RouterPlan, chance: random.Random) -> None:
        self._broker = broker
        self._plan = plan
        self._chance = chance
        self.duplicates = 0
        self.expiries = 0

    @property
    def name(self) -> str:
        return self._broker.name

    async def publish(self, queue: Queue, publications: Sequence[Publication]) -> Sequence[Failure | None]:
        return await self._broker.publish(queue, publications)

    async def consume(self, queue: Queue, prefetch: int) -> Consumer:
        return _TroubledConsumer(await self._broker.consume(queue, prefetch), self)

    def doubled(self, messages: Sequence[Message]) -> list[Message]:
        again = [message for message in messages if self._chance.random() < self._plan.duplicates]
        self.duplicates += len(again)
        return [*messages, *again]

    def forgotten(self, messages: Sequence[Message]) -> list[Message]:
        chosen = [message for message in messages if self._chance.random() < self._plan.expiries]
        self.expiries += len(chosen)
        return chosen

    async def find(self, named: str, among: Sequence[str]) -> str | None:
        return await self._broker.find(named, among)

    async def depth(self, queue: Queue) -> int | None:
        return await self._broker.depth(queue)

    async def measure(self, queue: Queue) -> Depth | None:
        return await self._broker.measure(queue)

    async def check(self) -> Failure | None:
        return await self._broker.check()

    async def close(self) -> None:
        await self._broker.close()


class _TroubledConsumer:
    def __init__(self, consumer: Consumer, trouble: Troubled) -> None:
        self._consumer = consumer
        self._trouble = trouble
        self._forgetting: set[asyncio.Task[None]] = set()
        self.acknowledge = consumer.acknowledge
        self.give_back = consumer.give_back
        self.extend = consumer.extend
        self.bury = consumer.bury
        self.rest = consumer.rest

    async def receive(self, limit: int, wait: float) -> list[Message]:
        messages = await self._consumer.receive(limit, wait)
        if forgotten := self._trouble.forgotten(messages):
            task = asyncio.create_task(self._forget(forgotten))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)
        return self._trouble.doubled(messages)

    async def _forget(self, messages: Sequence[Message]) -> None:
        """Seen by all again, while its holder knows nothing of it."""
        await asyncio.sleep(_SOON)
        await self._consumer.give_back(messages)

    async def close(self) -> None:
        await asyncio.gather(*self._forgetting)
        await self._consumer.close()


async def run_router(
    plan: RouterPlan, database_url: str, folder: Path, *, sqs_url: str, tell: Tell = lambda _: None
) -> ChaosReport:
    """Run the plan on an empty database and SQS; `folder` gets the logs."""
    started = time.monotonic()
    chance = random.Random(plan.seed)  # noqa: S311 - faults that can be repeated, no secrets
    settings = _settings(plan, database_url, sqs_url)
    async with AsyncExitStack() as stack:
        receiver, ordered = await _prepare(plan, settings, folder)
        stack.callback(receiver.close)
        table = JobTable(database_url)
        stack.push_async_callback(table.close)
        crew = [
            await stack.enter_async_context(_routing(plan, settings, folder / f"router-{n}.log", chance))
            for n in range(plan.workers)
        ]
        crowded = await _watch(plan, table, tell)
        peaks = [_peak(homing) for homing, _ in crew]
        troubles = [trouble for _, trouble in crew]
        receipts = receiver.receipts()
        events = [
            event
            for n in range(plan.workers)
            for event in read_events(folder / f"router-{n}.log")
            if event.get("lane") == "dispatch_jobs"
        ]
        evidence = JobEvidence(
            ordered, await table.ends(), await table.attempts(), receipts, (), read_testimony(events),
            sorted(crowded),
        )  # fmt: skip
    verdict = _judge(plan, check_jobs(evidence), peaks, troubles, receipts)
    return ChaosReport(plan, verdict, round(time.monotonic() - started, 1))


def _settings(plan: RouterPlan, database_url: str, sqs_url: str) -> Settings:
    return load_settings(
        {
            "database_url": database_url,
            "mail_url": "memory://",
            "encryption_key": b64encode(secrets.token_bytes(32)).decode(),
            "jobs_broker_url": sqs_url,
            "jobs_queue": f"chaos-{secrets.token_hex(6)}.fifo",
            "jobs_pool_concurrency": plan.concurrency,
            "jobs_visibility_seconds": plan.visibility,
            "jobs_backoff_base_seconds": 0.2,
            "jobs_backoff_max_seconds": 1.0,
        },
        environ={},
    )


# ── what is put in ───────────────────────────────────────────────────────────────────────────────


async def _prepare(
    plan: RouterPlan, settings: Settings, folder: Path
) -> tuple[ReceiverProcess, list[OrderedJob]]:
    async with opened(settings, makes_file=True) as homing:
        await homing.migrate()
        keys = Keys(make_secret(), secrets.token_urlsafe(24))
        receiver = ReceiverProcess(
            folder,
            ReceiverPlan(
                str(folder / "received.jsonl"), {_PATH: keys}, plan.hold, plan.fail, plan.seed, plan.at_once
            ),
        )
        request = CreateCredentials(
            bearer_token=keys.bearer_token, signing_secret=keys.signing_secret, allowed_targets=("*",)
        )
        credentials_id: int = (await homing.credentials.create(request)).row["id"]
        orders = [_order(plan, number, receiver.url + _PATH, credentials_id) for number in range(plan.jobs)]
        return receiver, await _fill(homing, orders)


async def _fill(homing: Homing, orders: Sequence[NewJob]) -> list[OrderedJob]:
    placed: list[OrderedJob] = []
    for start in range(0, len(orders), _BATCH):
        batch = orders[start : start + _BATCH]
        created = await homing.jobs.enqueue(batch)
        placed += [
            OrderedJob(made.id, sha256(order.payload.encode()).hexdigest(), order.group_id)
            for made, order in zip(created, batch, strict=True)
        ]
    return placed


def _order(plan: RouterPlan, number: int, url: str, credentials_id: int) -> NewJob:
    return NewJob(
        source="chaos",
        type="chaos.happened",
        target_url=url,
        target=target_of(url, credentials_id),
        payload=f"job {number}",
        payload_content_type="text/plain; charset=utf-8",
        credentials_id=credentials_id,
        max_retries=_MOST_ATTEMPTS,
        group_id=f"group-{number % plan.groups:05}",
        ordering="group",
    )


# ── at work ──────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _routing(
    plan: RouterPlan, settings: Settings, log: Path, chance: random.Random
) -> AsyncIterator[tuple[Homing, Troubled]]:
    with log.open("w", encoding="utf-8") as stream:
        homing = Homing(settings, Telemetry(make_logger("json", logging.INFO, stream)))
        assert homing.jobs_broker is not None, "the settings name one"
        trouble = Troubled(homing.jobs_broker, plan, chance)
        # It is first used when the router is made.
        homing.jobs_part.broker = trouble
        stop = Stop()
        working = asyncio.create_task(
            run(homing, stop, api=False, work=("dispatch_jobs",), ready=lambda _: None)
        )
        try:
            yield homing, trouble
        finally:
            stop.ask()
            await working
            await homing.close()


async def _watch(plan: RouterPlan, table: JobTable, tell: Tell) -> set[str]:
    """Until all jobs have ended, or nothing moves; the groups that had two jobs in flight at once."""
    crowded: set[str] = set()
    left, moved = plan.jobs, time.monotonic()
    while left and time.monotonic() - moved < _STANDSTILL:
        crowded.update(await table.crowded_groups())
        now_left = await table.open_rows()
        if now_left < left:
            left, moved = now_left, time.monotonic()
            tell(Progress(plan.jobs, plan.jobs - left, 0, 0, 0, 0))
        await asyncio.sleep(2 * TICK)
    return crowded


def _peak(homing: Homing) -> int:
    assert homing.router is not None, "there is a broker"
    return max((pool.peak for pool in homing.router.status()), default=0)


# ── what must hold of routers ────────────────────────────────────────────────────────────────────


def _judge(
    plan: RouterPlan,
    verdict: Verdict,
    peaks: Sequence[int],
    troubles: Sequence[Troubled],
    receipts: Sequence[Receipt],
) -> Verdict:
    at_once = most_at_once(receipts)
    doubles = sum(trouble.duplicates for trouble in troubles)
    expiries = sum(trouble.expiries for trouble in troubles)
    checks = [
        Check("DISPATCH-POOL runs its concurrency", set(peaks) == {plan.concurrency}, f"{peaks}"),
        Check(
            "requests side by side at the receiver",
            at_once == plan.at_once,
            f"{at_once} of {plan.at_once}",
        ),
        Check("messages handed out twice", doubles > 0 or not plan.duplicates, f"{doubles}"),
        Check("messages seen again too soon", expiries > 0 or not plan.expiries, f"{expiries}"),
    ]
    figures = {**verdict.figures, "handed_out_twice": doubles, "seen_too_soon": expiries}
    return Verdict(figures, [*verdict.checks, *checks])


def most_at_once(receipts: Sequence[Receipt]) -> int:
    """How many requests the receiver had at the same time, at the most."""
    changes = sorted(
        [(receipt.ended, -1) for receipt in receipts] + [(receipt.begun, 1) for receipt in receipts]
    )
    there, most = 0, 0
    for _, change in changes:
        there += change
        most = max(most, there)
    return most
