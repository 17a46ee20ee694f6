"""Jobs may be in MongoDB, too: the tests of the lane run on all three databases, with tables in them."""

from __future__ import annotations

import pytest


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
