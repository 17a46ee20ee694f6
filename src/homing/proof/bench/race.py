"""A race: the limit, Homing and its peers deliver the same things in turns. Here also the one of mails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
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
    #: Its share of the work: rates are compared, and a slow one need not take minutes.
    share: float
    #: Homing must be this many times faster.
    beaten_by: float | None = None
    needs: str | None = None

    def amount(self, whole: int) -> int:
        return max(1, round(whole * self.share))


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
    delivered: int
    rate: Series
    of_limit: Series
    #: How many times faster Homing on PostgreSQL was.
    homing_over: Series
    cpu_micros: Series
    transactions_each: Series


class RaceTable(Struct, frozen=True):
    lines: tuple[Line, ...]
    budgets: tuple[Budget, ...]
    left_out: tuple[str, ...]


def entrants_here(entrants: Sequence[Entrant] | None = None) -> tuple[list[Entrant], list[Entrant]]:
    """Those that can run, and those whose package is not installed."""
    everybody = ENTRANTS if entrants is None else entrants
    missing = [e for e in everybody if e.needs is not None and find_spec(e.needs) is None]
    return [e for e in everybody if e not in missing], missing


async def race(mails: int, rounds: int, step: Step, *, postgres_url: str | None = None) -> RaceTable:
    running, missing = entrants_here()
    with postgres(postgres_url) as server, smtp_sink() as sink:
        results = await in_turns(running, rounds, step, lambda e: _one_round(e, mails, server, sink.port))
    lines = table_lines(results)
    return RaceTable(tuple(lines), tuple(budgets(lines)), tuple(entrant.name for entrant in missing))


async def _one_round(entrant: Entrant, mails: int, server: Postgres, smtp_port: int) -> Round:
    with fresh_database(server) as url:
        contender = f"{__package__}.{entrant.contender}"
        job = Job(contender, entrant.amount(mails), smtp_port, url)
        return await in_child(f"{__package__}.contender:run_round", job, Round)


async def in_turns(
    entrants: Sequence[Entrant], rounds: int, step: Step, one_round: Callable[[Entrant], Awaitable[Round]]
) -> dict[str, list[Round]]:
    """What slows the machine down for a while slows everybody down."""
    results: dict[str, list[Round]] = {entrant.name: [] for entrant in entrants}
    for number in range(1, rounds + 1):
        for entrant in entrants:
            step(f"round {number} of {rounds}: {entrant.name}")
            results[entrant.name].append(await one_round(entrant))
    return results


def table_lines(results: Mapping[str, Sequence[Round]]) -> list[Line]:
    limit, homing = (Series(tuple(r.rate for r in results[name])) for name in (LIMIT, HOMING))
    lines = []
    for name, rounds in results.items():
        rate = Series(tuple(r.rate for r in rounds))
        cpu = Series(tuple(r.cpu_seconds / r.delivered * 1e6 for r in rounds))
        transactions = Series(tuple(r.transactions / r.delivered for r in rounds))
        lines.append(
            Line(name, rounds[0].delivered, rate, rate.over(limit), homing.over(rate), cpu, transactions)
        )
    return lines


def budgets(lines: Sequence[Line]) -> list[Budget]:
    ours = [line for line in lines if line.name in {HOMING, ON_SQLITE}]
    return [*limit_budgets(ours, 0.2, 0.25), *peer_budgets(ENTRANTS, lines), statement_budget(lines)]


def limit_budgets(ours: Sequence[Line], bound: float, goal: float) -> list[Budget]:
    return [
        Budget(f"{line.name}, of the limit", line.of_limit.median, bound, "least", goal=goal) for line in ours
    ]


def peer_budgets(entrants: Sequence[Entrant], lines: Sequence[Line]) -> list[Budget]:
    over = {line.name: line.homing_over.median for line in lines}
    return [
        Budget(f"Homing over {entrant.name}", over[entrant.name], entrant.beaten_by, "least", unit="x")
        for entrant in entrants
        if entrant.beaten_by is not None and entrant.name in over
    ]


def statement_budget(lines: Sequence[Line]) -> Budget:
    (homing,) = (line for line in lines if line.name == HOMING)
    return Budget("SQL statements per delivery", homing.transactions_each.median, 0.05, "most")
