"""These tests begin with the tables, also on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.http.door import url_with_tables


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return url_with_tables(tmp_path)
