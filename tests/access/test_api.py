"""`GET /api/audit`: who did what, of however many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.http.door import Door, opened_door, url_with_tables

from homing.access.audit import Entry


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with opened_door(url_with_tables(tmp_path)) as door:
        yield door


async def test_all_keys_are_found_however_many_they_are(door: Door) -> None:
    key, log = await door.key("ops"), door.homing.access.audit
    people = [f"key:n{number:03}" for number in range(250)]
    await asyncio.gather(*(log.write(Entry(who, "jobs.cancel")) for who in people))
    found, before = [], None
    while True:
        asked = {"who": "key:n*", "limit": 100, **({"before": before} if before is not None else {})}
        page = (await door.ask("GET", "/api/audit", key, params=asked)).json()
        found += [entry["who"] for entry in page["items"]]
        before = page["next"]
        if before is None:
            break
    assert sorted(found) == people


async def test_a_name_that_nobody_can_have_is_refused_in_words(door: Door) -> None:
    key = await door.key("ops")
    for who in ("a" * 5000, "a\x00b"):
        answer = await door.ask("GET", "/api/audit", key, params={"who": who})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "who has at most 200 characters, and none of them is NUL"
