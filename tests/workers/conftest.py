"""These tests begin with the tables."""

from __future__ import annotations

import pytest


@pytest.fixture
def postgres_url(migrated_postgres_url: str) -> str:
    return migrated_postgres_url


@pytest.fixture
def sqlite_url(migrated_sqlite_url: str) -> str:
    return migrated_sqlite_url
