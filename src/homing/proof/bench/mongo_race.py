"""Dispatch jobs put in, claimed and settled on MongoDB, beside the same on PostgreSQL. No budget is set."""

from __future__ import annotations

from msgspec import Struct

from homing.errors import HomingError
from homing.proof.bench.measure import Budget
from homing.proof.bench.mongo_claims import Compared, compare
from homing.proof.bench.race import Step
from homing.proof.bench.servers import postgres
from homing.testing.components.mongodb import start_mongodb
from homing.testing.components.obtain import Missing
from homing.testing.components.postgres import PostgresServer


class MongoTable(Struct, frozen=True):
    compared: Compared
    budgets: tuple[Budget, ...] = ()


async def mongo_race(jobs: int, rounds: int, step: Step) -> MongoTable:
    """On servers of its own, both durable."""
    mongodb = start_mongodb()
    if isinstance(mongodb, Missing):
        raise HomingError(str(mongodb))
    with mongodb, postgres() as server:
        assert isinstance(server, PostgresServer), "a private one"
        step(f"{rounds} rounds in turns")
        return MongoTable(await compare(server, mongodb, jobs=jobs, rounds=rounds))
