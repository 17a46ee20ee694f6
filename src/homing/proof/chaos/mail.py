"""`homing chaos mail`: workers are killed and stopped and the database restarted while mails go out.

A sink in a process of its own answers slowly, so that the run lasts and every worker has mail in flight.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path

from homing.app import opened
from homing.proof.chaos.checker import Evidence, check
from homing.proof.chaos.processes import SinkProcess, worker_environment
from homing.proof.chaos.run import ChaosReport, Crew, FaultPlan, Restart, Run, Tell
from homing.proof.chaos.table import MailTable
from homing.settings import load_settings


class Plan(FaultPlan, frozen=True, kw_only=True):
    mails: int = 10_000
    connections: int = 10
    #: Rows that one worker holds: what it sends now, and as much again that waits.
    batch: int = 40

    @property
    def sink_delay(self) -> float:
        return self.answer_delay(self.mails, self.connections)


async def run_mail(
    plan: Plan,
    database_url: str,
    folder: Path,
    *,
    tell: Tell = lambda _: None,
    restart: Restart | None = None,
) -> ChaosReport:
    """Run the plan on an empty database; `folder` gets the logs. `restart` crashes the database server."""
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        await _make_tables(database_url)
        table = MailTable(database_url)
        stack.push_async_callback(table.close)
        ordered = await table.fill(plan.mails)
        sink = SinkProcess(folder, delay=plan.sink_delay)
        stack.callback(sink.close)
        crew = Crew(plan, folder, _environment(plan, database_url, sink.url), "mail_outbox")
        stack.callback(crew.close)
        run = Run(plan, plan.mails, table, sink.addresses, crew, hurry=sink.hurry, restart=restart, tell=tell)
        await run.to_the_end()
        evidence = Evidence(
            ordered, await table.ends(), sink.deliveries(), run.faults, crew.testimony(), crew.deserters,
            wanted_hits=plan.kills, recovery_limit=plan.recovery_limit(crew.slowest_start),
        )  # fmt: skip
    return ChaosReport(plan, check(evidence), round(time.monotonic() - started, 1))


async def _make_tables(database_url: str) -> None:
    settings = load_settings({"database_url": database_url, "mail_url": "memory://"}, environ={})
    async with opened(settings, makes_file=True) as homing:
        await homing.migrate()


def _environment(plan: Plan, database_url: str, mail_url: str) -> dict[str, str]:
    return worker_environment(
        database_url, mail_url,
        homing_mail_connections=plan.connections, homing_mail_batch=plan.batch,
        dispatch_lease_seconds=plan.lease,
        dispatch_backoff_base_seconds=1, dispatch_backoff_max_seconds=5,
    )  # fmt: skip
