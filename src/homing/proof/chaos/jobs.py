"""`homing chaos jobs`: workers are killed and stopped and the database restarted while webhooks go out.

A receiver in a process of its own verifies every request, fails some of them, and holds each for a while, so
that the run lasts and every worker has jobs in flight. `groups` makes the jobs ordered ones.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from homing.app import Homing, opened
from homing.errors import DatabaseError
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.target import target_of
from homing.proof.chaos.job_checker import JobEvidence, OrderedJob, check_jobs
from homing.proof.chaos.job_receiver import Keys, ReceiverPlan, ReceiverProcess
from homing.proof.chaos.job_table import JobTable
from homing.proof.chaos.processes import worker_environment
from homing.proof.chaos.run import ChaosReport, Crew, FaultPlan, Restart, Run, Tell
from homing.proof.chaos.waiting import TICK
from homing.settings import load_settings
from homing.signatures import make_secret

_BATCH = 1000
#: So many credentials, and so many targets; jobs go to them in turns, those of one group as well.
_TARGETS = 3
#: Far more than failing answers can use up.
_MOST_ATTEMPTS = 50
_LONGEST_NOTE = 2000
#: Letters of one, two, three and four bytes: what is compared is bytes.
_LETTERS = 'abc xyz\\"\n\té߿€漢😀'


class JobPlan(FaultPlan, frozen=True, kw_only=True):
    jobs: int = 10_000
    #: Ordered groups that the jobs are shared out to; 0: each job for itself.
    groups: int = 0
    #: How many requests the receiver answers with a 500.
    fail: float = 0.1
    #: Webhooks that a worker sends to one target at once, and jobs that it holds.
    connections: int = 10
    batch: int = 60

    @property
    def hold(self) -> float:
        """Seconds for which the receiver keeps a request before it answers."""
        return self.answer_delay(self.jobs, _TARGETS * self.connections)


class _Addressee(Struct, frozen=True):
    """A target: its path at the receiver, and what it is sent with."""

    path: str
    credentials_id: int


async def run_jobs(
    plan: JobPlan,
    database_url: str,
    folder: Path,
    *,
    tell: Tell = lambda _: None,
    restart: Restart | None = None,
) -> ChaosReport:
    """Run the plan on an empty database; `folder` gets the logs. `restart` crashes the database server."""
    started = time.monotonic()
    encryption_key = b64encode(secrets.token_bytes(32)).decode()
    async with AsyncExitStack() as stack:
        receiver, ordered = await _prepare(plan, database_url, folder, encryption_key)
        stack.callback(receiver.close)
        table = JobTable(database_url)
        stack.push_async_callback(table.close)
        crew = Crew(plan, folder, _environment(plan, database_url, encryption_key), "dispatch_jobs")
        stack.callback(crew.close)
        run = Run(
            plan, plan.jobs, table, receiver.accepted, crew,
            hurry=receiver.hurry, restart=restart, tell=tell,
        )  # fmt: skip
        async with _watching_groups(table) as crowded:
            await run.to_the_end()
        evidence = JobEvidence(
            ordered, await table.ends(), await table.attempts(), receiver.receipts(), run.faults,
            crew.testimony(), sorted(crowded), crew.deserters,
            wanted_hits=plan.kills, recovery_limit=plan.recovery_limit(crew.slowest_start),
        )  # fmt: skip
    return ChaosReport(plan, check_jobs(evidence), round(time.monotonic() - started, 1))


def _environment(plan: JobPlan, database_url: str, encryption_key: str) -> dict[str, str]:
    return worker_environment(
        database_url, "memory://",
        homing_encryption_key=encryption_key,
        homing_jobs_connections_per_target=plan.connections, homing_jobs_batch=plan.batch,
        homing_jobs_lease_seconds=plan.lease,
        homing_jobs_backoff_base_seconds=0.2, homing_jobs_backoff_max_seconds=2,
    )  # fmt: skip


# ── what is put in ───────────────────────────────────────────────────────────────────────────────


async def _prepare(
    plan: JobPlan, database_url: str, folder: Path, encryption_key: str
) -> tuple[ReceiverProcess, list[OrderedJob]]:
    settings = load_settings(
        {"database_url": database_url, "mail_url": "memory://", "encryption_key": encryption_key}, environ={}
    )
    async with opened(settings, makes_file=True) as homing:
        await homing.migrate()
        keys = {f"/receiver/{n}": Keys(make_secret(), secrets.token_urlsafe(24)) for n in range(_TARGETS)}
        log = str(folder / "received.jsonl")
        receiver = ReceiverProcess(folder, ReceiverPlan(log, keys, plan.hold, plan.fail, plan.seed))
        addressees = [_Addressee(path, await _create(homing, key)) for path, key in keys.items()]
        return receiver, await _fill(homing, plan, receiver.url, addressees)


async def _create(homing: Homing, keys: Keys) -> int:
    request = CreateCredentials(
        bearer_token=keys.bearer_token, signing_secret=keys.signing_secret, allowed_targets=("*",)
    )
    id: int = (await homing.credentials.create(request)).row["id"]
    return id


async def _fill(
    homing: Homing, plan: JobPlan, receiver_url: str, addressees: Sequence[_Addressee]
) -> list[OrderedJob]:
    chance = random.Random(plan.seed)  # noqa: S311 - bytes that are to be told apart, no secrets
    orders = [_order(plan, number, receiver_url, addressees, chance) for number in range(plan.jobs)]
    placed: list[OrderedJob] = []
    for start in range(0, plan.jobs, _BATCH):
        batch = orders[start : start + _BATCH]
        created = await homing.jobs.enqueue(batch)
        placed += [
            OrderedJob(made.id, sha256(order.payload.encode()).hexdigest(), order.group_id)
            for made, order in zip(created, batch, strict=True)
        ]
    return placed


def _order(
    plan: JobPlan, number: int, url: str, addressees: Sequence[_Addressee], chance: random.Random
) -> NewJob:
    addressee = addressees[chance.randrange(len(addressees))]
    note = "".join(chance.choices(_LETTERS, k=chance.randrange(_LONGEST_NOTE)))
    return NewJob(
        source="chaos",
        type="chaos.happened",
        target_url=url + addressee.path,
        target=target_of(url, addressee.credentials_id),
        payload=f"job {number}: {note}",
        payload_content_type="text/plain; charset=utf-8",
        credentials_id=addressee.credentials_id,
        max_retries=_MOST_ATTEMPTS,
        group_id=f"group-{number % plan.groups:05}" if plan.groups else None,
        ordering="group" if plan.groups else "none",
    )


# ── looking ──────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _watching_groups(table: JobTable) -> AsyncIterator[set[str]]:
    """The groups that have two jobs in flight at any moment in which we look."""
    crowded: set[str] = set()
    watching = asyncio.create_task(_watch_groups(table, crowded))
    try:
        yield crowded
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch_groups(table: JobTable, crowded: set[str]) -> None:
    while True:
        with suppress(DatabaseError):
            crowded.update(await table.crowded_groups())
        await asyncio.sleep(TICK)
