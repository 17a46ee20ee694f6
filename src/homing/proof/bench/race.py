"""The mail table: the limit, Homing and its peers deliver the same mails in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from msgspec import Struct

from homing.proof.bench.child import in_child
from homing.proof.bench.contender import Job, Round
from homing.proof.bench.measure import Budget, Series
from homing.proof.bench.servers import fresh_database, postgres, smtp_sink
from homing.testing.components.postgres import Postgres

Step = Callable[[str], None]


class Entrant(Struct, frozen=True):
    """A line of the table."""

    name: str
    contender: str
    #: Its share of the mails: rates are compared, and a slow one need not take minutes.
    share: float
    #: Homing must be this many times faster.
    beaten_by: float | None = None
    needs: str | None = None


LIMIT, HOMING, ON_SQLITE = "limit", "Homing", "Homing on SQLite"
ENTRANTS = (
    Entrant(LIMIT, "limit:Limit", 3.0),
    Entrant(HOMING, "homing_worker:OnPostgres", 1.0),
    Entrant("Homing, templates", "homing_worker:WithTemplates", 0.5),
    Entrant(ON_SQLITE, "homing_worker:OnSqlite", 0.5),
    Entrant("EmailMessage loop", "peer_loop:Loop", 0.075, 15.0),
    Entrant("pgqueuer", "peer_pgqueuer:PgQueuerPeer", 0.075, 1.5, "pgqueuer"),
    Entrant("procrastinate", "peer_procrastinate:Procrastinate", 0.075, 3.0, "procrastinate"),
    Entrant("django-post-office", "peer_post_office:PostOffice", 0.15, 3.0, "post_office"),
)


class Line(Struct, frozen=True):
    """What one entrant did, over all rounds."""

    name: str
    mails: int
    rate: Series
    of_limit: Series
    #: How many times faster Homing on PostgreSQL was.
    homing_over: Series
    cpu_micros: Series
    transactions_per_mail: Series


class MailTable(Struct, frozen=True):
    lines: tuple[Line, ...]
    budgets: tuple[Budget, ...]
    left_out: tuple[str, ...]


def entrants_here() -> tuple[Sequence[Entrant], Sequence[Entrant]]:
    """Those that can run, and those whose package is not installed."""
    missing = [e for e in ENTRANTS if e.needs is not None and find_spec(e.needs) is None]
    return [e for e in ENTRANTS if e not in missing], missing


async def race(mails: int, rounds: int, step: Step, *, postgres_url: str | None = None) -> MailTable:
    running, missing = entrants_here()
    results: dict[str, list[Round]] = {entrant.name: [] for entrant in running}
    with postgres(postgres_url) as server, smtp_sink() as sink:
        for number in range(1, rounds + 1):
            for entrant in running:
                step(f"round {number} of {rounds}: {entrant.name}")
                results[entrant.name].append(await _one_round(entrant, mails, server, sink.port))
    lines = table_lines(results)
    return MailTable(tuple(lines), tuple(budgets(lines)), tuple(entrant.name for entrant in missing))


async def _one_round(entrant: Entrant, mails: int, server: Postgres, smtp_port: int) -> Round:
    with fresh_database(server) as url:
        contender = f"{__package__}.{entrant.contender}"
        job = Job(contender, max(1, round(mails * entrant.share)), smtp_port, url)
        return await in_child(f"{__package__}.contender:run_round", job, Round)


def table_lines(results: Mapping[str, Sequence[Round]]) -> list[Line]:
    limit, homing = (Series(tuple(r.rate for r in results[name])) for name in (LIMIT, HOMING))
    lines = []
    for name, rounds in results.items():
        rate = Series(tuple(r.rate for r in rounds))
        cpu = Series(tuple(r.cpu_seconds / r.mails * 1e6 for r in rounds))
        transactions = Series(tuple(r.transactions / r.mails for r in rounds))
        lines.append(
            Line(name, rounds[0].mails, rate, rate.over(limit), homing.over(rate), cpu, transactions)
        )
    return lines


def budgets(lines: Sequence[Line]) -> list[Budget]:
    by_name = {line.name: line for line in lines}
    homing, sqlite = by_name[HOMING], by_name[ON_SQLITE]
    found = [
        Budget("Homing, of the limit", homing.of_limit.median, 0.2, "least", goal=0.25),
        Budget("Homing on SQLite, of the limit", sqlite.of_limit.median, 0.2, "least", goal=0.25),
    ]
    for entrant in ENTRANTS:
        if entrant.beaten_by is not None and (line := by_name.get(entrant.name)):
            over = line.homing_over.median
            found.append(Budget(f"Homing over {entrant.name}", over, entrant.beaten_by, "least", unit="x"))
    statements = homing.transactions_per_mail.median
    return [*found, Budget("SQL statements per delivery", statements, 0.05, "most")]
