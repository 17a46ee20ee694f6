"""Jobs may be in MongoDB, too: the tests of the lane run on all three databases, with tables in them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.lanes.dispatch_jobs.api_bench import ApiBench, api_bench


@pytest.fixture
def database_url(jobs_database_url: str) -> str:
    return jobs_database_url


@pytest.fixture
def postgres_url(migrated_postgres_url: str) -> str:
    return migrated_postgres_url


@pytest.fixture
def mongodb_url(migrated_mongodb_url: str) -> str:
    return migrated_mongodb_url


@pytest.fixture
def sqlite_url(migrated_sqlite_url: str) -> str:
    return migrated_sqlite_url


@pytest.fixture(params=["sqlite", "postgres"])
async def sql_api(request: pytest.FixtureRequest) -> AsyncIterator[ApiBench]:
    """Another program writes SQL; into MongoDB, jobs come by the API."""
    async with api_bench(request.getfixturevalue(f"{request.param}_url")) as bench:
        yield bench
