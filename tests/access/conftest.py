from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.access.desk import Desk, opened_desk


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    async with opened_desk(database_url) as desk:
        yield desk
