"""The bench of MongoDB beside PostgreSQL measures both, and loses no job on the way."""

from __future__ import annotations

from tests.conftest import require

from homing.proof.bench.mongo_claims import compare
from homing.testing.components.mongodb import start_mongodb
from homing.testing.components.postgres import start_postgres


async def test_both_are_measured_in_one_run() -> None:
    with require(start_postgres()) as postgres, require(start_mongodb()) as mongodb:
        found = await compare(postgres, mongodb, jobs=200, rounds=1, workers=2)
    for rate in (found.postgres, found.mongodb):
        assert min(rate.creates, rate.claims, rate.settles, rate.both) > 0
    assert found.ratio > 0
