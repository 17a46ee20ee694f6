"""The race of webhooks: a bare aiohttp loop, Homing, and peers that send the same signed POSTs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from homing.errors import HomingError
from homing.proof.bench.child import in_child
from homing.proof.bench.contender import Round
from homing.proof.bench.measure import Budget
from homing.proof.bench.race import (
    HOMING,
    LIMIT,
    ON_SQLITE,
    Entrant,
    Line,
    RaceTable,
    Step,
    entrants_here,
    in_turns,
    limit_budgets,
    peer_budgets,
    statement_budget,
    table_lines,
)
from homing.proof.bench.servers import fresh_database, postgres
from homing.proof.bench.webhook_contender import WebhookJob
from homing.proof.bench.webhook_sink import ArrivalCounter, WebhookSink, find_nginx
from homing.testing.components.obtain import Missing
from homing.testing.components.postgres import Postgres
from homing.testing.components.rabbitmq import start_rabbitmq

CELERY = "Celery"
ENTRANTS = (
    Entrant(LIMIT, "webhook_limit:Limit", 4.0),
    Entrant(HOMING, "webhook_homing:OnPostgres", 2.0),
    Entrant(ON_SQLITE, "webhook_homing:OnSqlite", 1.0),
    Entrant("pgqueuer", "webhook_peer_pgqueuer:PgQueuerPeer", 1.0, 1.5, "pgqueuer"),
    Entrant("procrastinate", "webhook_peer_procrastinate:Procrastinate", 0.3, 3.0, "procrastinate"),
    Entrant(CELERY, "webhook_peer_celery:CeleryPeer", 0.5, 3.0, "celery"),
)


class Servers(Struct, frozen=True):
    """What the contenders run against, all of them started before the first round."""

    postgres: Postgres
    sink_port: int
    broker_url: str | None


async def webhook_race(jobs: int, rounds: int, step: Step, *, postgres_url: str | None = None) -> RaceTable:
    running, missing = entrants_here(ENTRANTS)
    with postgres(postgres_url) as server, webhook_sink() as sink, _broker(running) as broker_url:
        if broker_url is None:
            missing.extend(e for e in running if e.name == CELERY)
            running = [e for e in running if e.name != CELERY]
        servers = Servers(server, sink.port, broker_url)
        results = await in_turns(running, rounds, step, lambda e: _one_round(e, e.amount(jobs), servers))
    lines = table_lines(results)
    return RaceTable(tuple(lines), tuple(budgets(lines)), tuple(entrant.name for entrant in missing))


async def _one_round(entrant: Entrant, jobs: int, servers: Servers) -> Round:
    contender = f"{__package__}.{entrant.contender}"
    counter = ArrivalCounter(servers.sink_port)
    with fresh_database(servers.postgres) as url:
        job = WebhookJob(contender, jobs, servers.sink_port, url, servers.broker_url)
        measured = await in_child(f"{__package__}.webhook_contender:run_round", job, Round)
    arrived = counter.arrived()
    counter.close()
    # What warmed the connections up arrived as well.
    if arrived < jobs:
        raise HomingError(f"of {jobs} POSTs of {entrant.name} only {arrived} arrived")
    return measured


def budgets(lines: Sequence[Line]) -> list[Budget]:
    # SQLite is beside it to be seen, and promises nothing here.
    ours = [line for line in lines if line.name == HOMING]
    return [*limit_budgets(ours, 0.6, 0.7), *peer_budgets(ENTRANTS, lines), statement_budget(lines)]


@contextmanager
def webhook_sink() -> Iterator[WebhookSink]:
    program = find_nginx()
    if isinstance(program, Missing):
        raise HomingError(str(program))
    with WebhookSink(program) as sink:
        yield sink


@contextmanager
def _broker(running: Sequence[Entrant]) -> Iterator[str | None]:
    """For Celery alone; without it the others can still be compared."""
    server = start_rabbitmq() if any(e.name == CELERY for e in running) else None
    if server is None or isinstance(server, Missing):
        yield None
        return
    with server:
        yield server.url
