"""Dispatch jobs through a broker and the router, beside the worker that polls the database.

The SQS here is an emulator on the same machine, so its own limit is measured beside it: a bare client that
takes messages and deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from homing.errors import HomingError
from homing.proof.bench.child import in_child
from homing.proof.bench.contender import Round
from homing.proof.bench.email_race import rabbitmq
from homing.proof.bench.measure import Budget
from homing.proof.bench.race import HOMING, LIMIT, Entrant, Line, Step, in_turns, table_lines
from homing.proof.bench.servers import fresh_database, postgres
from homing.proof.bench.webhook_contender import WebhookJob
from homing.proof.bench.webhook_race import webhook_sink
from homing.testing.components.obtain import Missing
from homing.testing.components.postgres import Postgres
from homing.testing.components.sqs import SqsServer, start_sqs

ON_RABBITMQ, ON_SQS = "router on RabbitMQ", "router on SQS"
SQS_ALONE = "the SQS emulator alone"
#: `Homing` is the polling worker, to which the others are compared.
ENTRANTS = (
    Entrant(LIMIT, "webhook_limit:Limit", 2.0),
    Entrant(HOMING, "webhook_homing:OnPostgres", 1.0),
    Entrant(ON_RABBITMQ, "router_homing:Routed", 1.0),
    Entrant(ON_SQS, "router_homing:Routed", 0.5),
    Entrant(SQS_ALONE, "router_ceiling:SqsCeiling", 0.5),
)
#: From this share of what the emulator can do at all, it is the emulator that was measured.
_NEAR = 0.5


class RouterTable(Struct, frozen=True):
    lines: tuple[Line, ...]
    #: What the router did of what the emulator can do.
    of_emulator: float
    budgets: tuple[Budget, ...] = ()

    @property
    def emulator_is_the_limit(self) -> bool:
        return self.of_emulator >= _NEAR


class Servers(Struct, frozen=True):
    """What the contenders run against, all of them started before the first round."""

    postgres: Postgres
    sink_port: int
    rabbitmq_url: str
    sqs_url: str

    def broker_url(self, entrant: Entrant) -> str:
        return self.rabbitmq_url if entrant.name == ON_RABBITMQ else self.sqs_url


async def router_race(jobs: int, rounds: int, step: Step, *, postgres_url: str | None = None) -> RouterTable:
    with postgres(postgres_url) as server, webhook_sink() as sink, rabbitmq() as broker, _sqs() as sqs:
        servers = Servers(server, sink.port, broker.url, sqs.url)
        results = await in_turns(ENTRANTS, rounds, step, lambda e: _one_round(e, e.amount(jobs), servers))
    return table_of(table_lines(results))


async def _one_round(entrant: Entrant, jobs: int, servers: Servers) -> Round:
    with fresh_database(servers.postgres) as url:
        contender = f"{__package__}.{entrant.contender}"
        job = WebhookJob(contender, jobs, servers.sink_port, url, servers.broker_url(entrant))
        return await in_child(f"{__package__}.webhook_contender:run_round", job, Round)


def table_of(lines: list[Line]) -> RouterTable:
    rates = {line.name: line.rate for line in lines}
    return RouterTable(tuple(lines), rates[ON_SQS].over(rates[SQS_ALONE]).median)


@contextmanager
def _sqs() -> Iterator[SqsServer]:
    server = start_sqs()
    if isinstance(server, Missing):
        raise HomingError(str(server))
    with server:
        yield server
