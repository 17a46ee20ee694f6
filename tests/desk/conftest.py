"""These tests begin with the tables."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.desk.bulk import BulkBench, bulk_bench


@pytest.fixture
def postgres_url(migrated_postgres_url: str) -> str:
    return migrated_postgres_url


@pytest.fixture
def sqlite_url(migrated_sqlite_url: str) -> str:
    return migrated_sqlite_url


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[BulkBench]:
    async with bulk_bench(database_url) as bench:
        yield bench
