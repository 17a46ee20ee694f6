"""What the tests of flips and subscriptions share."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def seats_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind. PostgreSQL comes with its tables, which takes a fraction of the time."""
    name = "migrated_sqlite_url" if request.param == "sqlite" else "migrated_postgres_url"
    url: str = request.getfixturevalue(name)
    return url
