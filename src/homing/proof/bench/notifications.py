"""The race of open seats: notifications beside the mails of `mail_outbox`, in the same rounds.

A notification is more than a mail: its job is built from five tables and checked against a schema, two links
are signed, subject, text and html rendered, and its end is written into three tables. Beside it stands what a
fan-out costs: one event for very many subscribers.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from homing.proof.bench.child import in_child
from homing.proof.bench.contender import Job, Round
from homing.proof.bench.measure import Budget, Series
from homing.proof.bench.notification_fanout import FannedOut, FanoutJob
from homing.proof.bench.race import HOMING, LIMIT, ON_SQLITE, Entrant, Line, Step, in_turns, table_lines
from homing.proof.bench.servers import fresh_database, postgres, smtp_sink
from homing.testing.components.postgres import Postgres

OUTBOX, OUTBOX_ON_SQLITE = "mail_outbox", "mail_outbox on SQLite"
#: By `mail_outbox`, from the template of the notifications.
SAME_MAILS = "the same mails"
ENTRANTS = (
    Entrant(LIMIT, "limit:Limit", 1.0),
    Entrant(OUTBOX, "homing_worker:OnPostgres", 1.0),
    Entrant(SAME_MAILS, "notification_homing:SameMails", 1.0),
    Entrant(HOMING, "notification_homing:OnPostgres", 1.0),
    Entrant(OUTBOX_ON_SQLITE, "homing_worker:OnSqlite", 1.0),
    Entrant(ON_SQLITE, "notification_homing:OnSqlite", 1.0),
)
#: Of the rate of mails.
_SHARE = 0.5
_FANOUTS = ("PostgreSQL", "SQLite")


class FanoutCost(Struct, frozen=True):
    """One event for many subscribers, over all rounds."""

    database: str
    subscribers: int
    seconds: Series
    #: Milliseconds: the longest that another program waited for a write, and that the loop stood still.
    waited_ms: Series
    stalled_ms: Series


class NotificationTable(Struct, frozen=True):
    lines: tuple[Line, ...]
    #: Notifications as a share of mails, round by round.
    of_mails: Series
    of_mails_on_sqlite: Series
    #: As a share of mails that say the same, on PostgreSQL.
    of_same_mails: Series
    fanouts: tuple[FanoutCost, ...]
    budgets: tuple[Budget, ...]


def turns() -> int:
    """How many rounds there are in one round of all."""
    return len(ENTRANTS) + len(_FANOUTS)


async def notification_race(
    notifications: int, subscribers: int, rounds: int, step: Step, *, postgres_url: str | None = None
) -> NotificationTable:
    with postgres(postgres_url) as server, smtp_sink() as sink:
        results = await in_turns(
            ENTRANTS, rounds, step, lambda e: _one_round(e, notifications, server, sink.port)
        )
        fanouts = [await _fanout_cost(name, subscribers, rounds, step, server) for name in _FANOUTS]
    return table_of(table_lines(results), fanouts)


async def _one_round(entrant: Entrant, notifications: int, server: Postgres, smtp_port: int) -> Round:
    with fresh_database(server) as url:
        contender = f"{__package__}.{entrant.contender}"
        job = Job(contender, entrant.amount(notifications), smtp_port, url)
        return await in_child(f"{__package__}.contender:run_round", job, Round)


async def _fanout_cost(name: str, subscribers: int, rounds: int, step: Step, server: Postgres) -> FanoutCost:
    found = []
    for number in range(1, rounds + 1):
        step(f"round {number} of {rounds}: fan-out on {name}")
        with fresh_database(server) as url:
            job = FanoutJob(subscribers, url if name == "PostgreSQL" else None)
            found.append(await in_child(f"{__package__}.notification_fanout:fan_out", job, FannedOut))
    return FanoutCost(
        name, subscribers, Series(tuple(f.seconds for f in found)),
        Series(tuple(f.waited * 1000 for f in found)), Series(tuple(f.stalled * 1000 for f in found)),
    )  # fmt: skip


def table_of(lines: Sequence[Line], fanouts: Sequence[FanoutCost]) -> NotificationTable:
    rates = {line.name: line.rate for line in lines}
    of_mails = rates[HOMING].over(rates[OUTBOX])
    on_sqlite = rates[ON_SQLITE].over(rates[OUTBOX_ON_SQLITE])
    budgets = (
        Budget("notifications, of the mails on PostgreSQL", of_mails.median, _SHARE, "least"),
        Budget("notifications, of the mails on SQLite", on_sqlite.median, _SHARE, "least"),
    )
    of_same = rates[HOMING].over(rates[SAME_MAILS])
    return NotificationTable(tuple(lines), of_mails, on_sqlite, of_same, tuple(fanouts), budgets)
