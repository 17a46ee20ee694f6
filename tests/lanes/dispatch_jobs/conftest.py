"""Jobs may be in MongoDB, too: the tests of the lane run on all three databases."""

from __future__ import annotations

import pytest


@pytest.fixture
def database_url(jobs_database_url: str) -> str:
    return jobs_database_url
