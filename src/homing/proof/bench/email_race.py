"""The race of emails through RabbitMQ: a bare SMTP loop, Homing, and Celery doing the same work.

What is measured begins when the rows are written and their messages are in the queue, and ends when every row
says that it was sent. Creating and publishing is measured beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct

from homing.errors import HomingError
from homing.proof.bench.child import in_child
from homing.proof.bench.contender import Round
from homing.proof.bench.email_contender import EmailJob
from homing.proof.bench.measure import Budget, Series
from homing.proof.bench.race import (
    HOMING,
    LIMIT,
    Entrant,
    Line,
    Step,
    entrants_here,
    in_turns,
    peer_budgets,
    statement_budget,
    table_lines,
)
from homing.proof.bench.servers import fresh_database, postgres, smtp_sink
from homing.testing.components.obtain import Missing
from homing.testing.components.postgres import Postgres
from homing.testing.components.rabbitmq import RabbitMqServer, start_rabbitmq

OUTBOX = "mail_outbox, no broker"
ENTRANTS = (
    Entrant(LIMIT, "limit:Limit", 2.0),
    Entrant(HOMING, "email_homing:ThroughRabbitMq", 1.0),
    Entrant(OUTBOX, "homing_worker:OnPostgres", 1.0),
    Entrant("Celery, late acks", "email_peer_celery:CeleryPeer", 0.1, 3.0, "celery"),
    Entrant("Celery, early acks", "email_peer_celery:EagerCelery", 0.1, 3.0, "celery"),
)
#: Put the row in and publish its message, confirmed.
CREATES = (
    Entrant(HOMING, "email_homing:Creating", 1.0),
    Entrant("Celery", "email_peer_celery:CeleryCreating", 0.1, needs="celery"),
)


class CreateRate(Struct, frozen=True):
    """Emails that one entrant created and published per second, over all rounds."""

    name: str
    rate: Series
    homing_over: Series
    cpu_micros: Series


class EmailTable(Struct, frozen=True):
    lines: tuple[Line, ...]
    creates: tuple[CreateRate, ...]
    budgets: tuple[Budget, ...]
    left_out: tuple[str, ...]


class Servers(Struct, frozen=True):
    """What the contenders run against, all of them started before the first round."""

    postgres: Postgres
    smtp_port: int
    broker_url: str


def turns() -> int:
    """How many rounds there are in one round of all."""
    return len(entrants_here(ENTRANTS)[0]) + len(entrants_here(CREATES)[0])


async def email_race(emails: int, rounds: int, step: Step, *, postgres_url: str | None = None) -> EmailTable:
    running, missing = entrants_here(ENTRANTS)
    creating, _ = entrants_here(CREATES)
    with postgres(postgres_url) as server, smtp_sink() as sink, rabbitmq() as broker:
        servers = Servers(server, sink.port, broker.url)
        results = await in_turns(running, rounds, step, lambda e: _one_round(e, emails, servers))
        created = await in_turns(creating, rounds, step, lambda e: _one_round(e, emails, servers))
    lines = table_lines(results)
    left_out = tuple(entrant.name for entrant in missing)
    return EmailTable(tuple(lines), tuple(create_rates(created)), tuple(budgets(lines)), left_out)


async def _one_round(entrant: Entrant, emails: int, servers: Servers) -> Round:
    with fresh_database(servers.postgres) as url:
        contender = f"{__package__}.{entrant.contender}"
        job = EmailJob(contender, entrant.amount(emails), servers.smtp_port, url, servers.broker_url)
        return await in_child(f"{__package__}.email_contender:run_round", job, Round)


def create_rates(results: Mapping[str, Sequence[Round]]) -> list[CreateRate]:
    rates = {name: Series(tuple(r.rate for r in rounds)) for name, rounds in results.items()}
    cpu = {
        name: Series(tuple(r.cpu_seconds / r.delivered * 1e6 for r in rounds))
        for name, rounds in results.items()
    }
    return [CreateRate(name, rate, rates[HOMING].over(rate), cpu[name]) for name, rate in rates.items()]


def budgets(lines: Sequence[Line]) -> list[Budget]:
    return [*peer_budgets(ENTRANTS, lines), statement_budget(lines)]


@contextmanager
def rabbitmq() -> Iterator[RabbitMqServer]:
    server = start_rabbitmq()
    if isinstance(server, Missing):
        raise HomingError(str(server))
    with server:
        yield server
