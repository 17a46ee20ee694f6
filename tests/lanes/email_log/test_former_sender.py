"""A sender of the version before, at work beside processes of this one while an installation is upgraded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.emails import EmailBench, email_bench

from homing.db.queries import parse_queries
from homing.engine.model import Claim, Complete
from homing.lanes.email_log.email import Dropped
from homing.lanes.email_log.queues import Hint

pytestmark = pytest.mark.clause("RTY-12", "RTY-13")

_SETTLED = {"delay": 0, "error": None, "dead_reason": None, "recipients": None, "provider": None,
            "provider_message_id": None, "millis": 5}  # fmt: skip


class FormerSender:
    """Runs the statements of that version as they were."""

    def __init__(self, lane: EmailBench) -> None:
        self._database = lane.homing.database
        file = Path(__file__).with_name(f"former_{self._database.dialect}.sql")
        text = file.read_text(encoding="utf-8")
        self._queries = {query.name: query for query in parse_queries(text, self._database.dialect)}

    async def _run(self, name: str, **batch: Any) -> list[int]:
        query = self._queries[name]
        given = {
            "batch": json.dumps([batch]), "owner": "former:1", "lease_seconds": 120.0,
            "max_attempts": 8, "sweep_seconds": 900.0,
        }  # fmt: skip
        rows = await self._database.fetch(query, {name: given[name] for name in query.parameters})
        return [row["fence"] if name == "claim_these" else row["id"] for row in rows]

    async def claim(self, id: int, key: str) -> int:
        (fence,) = await self._run("claim_these", id=id, key=key)
        return fence

    async def renew(self, id: int, fence: int) -> list[int]:
        return await self._run("renew", id=id, fence=fence)

    async def settle(self, id: int, fence: int, *, status: str = "Sent", charged: int = 0) -> list[int]:
        return await self._run("settle", id=id, fence=fence, status=status, charged=charged, **_SETTLED)


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[EmailBench]:
    async with email_bench(database_url) as opened:
        yield opened


@pytest.fixture
def former(lane: EmailBench) -> FormerSender:
    return FormerSender(lane)


async def overtaken(lane: EmailBench, former: FormerSender) -> tuple[int, str, int]:
    """Our scheduler has published, and its message came to the former sender before that was written down."""
    (id,) = await lane.insert(1, status="Failed", attempt_count=2)
    (claim,) = await lane.due.claim(1)
    key = (await lane.row(id))["message_key"]
    fence = await former.claim(id, key)
    await lane.due.settle([(claim, Complete())])
    return id, key, fence


@pytest.mark.parametrize("renewed", [True, False])
async def test_a_former_sender_that_overtakes_our_scheduler_settles_what_it_has_sent(
    lane: EmailBench, former: FormerSender, *, renewed: bool
) -> None:
    id, key, fence = await overtaken(lane, former)
    if renewed:
        assert await former.renew(id, fence) == [id]
    await lane.homing.email_send.maintenance.once()
    await lane.homing.email_schedule.maintenance.once()
    (again,) = await lane.emails.claim_these([Hint(id, key)])
    assert isinstance(again, Dropped), "a second message finds it in somebody's hands"
    assert await former.settle(id, fence) == [id]
    assert await lane.states([id]) == ["Sent"]


async def test_what_a_former_sender_held_when_it_died_is_rescued(
    lane: EmailBench, former: FormerSender
) -> None:
    id, _, _ = await overtaken(lane, former)
    await lane.age(id, 600)
    await lane.homing.email_send.maintenance.once()
    assert (await lane.row(id))["rescue_count"] == 1
    assert list(await lane.schedule()) == [id]


async def test_what_a_former_sender_has_failed_is_ours_again(lane: EmailBench, former: FormerSender) -> None:
    """And another program that takes it from us then is noticed: what the former one left says nothing."""
    id, key, fence = await overtaken(lane, former)
    assert await former.settle(id, fence, status="Failed", charged=1) == [id]
    assert list(await lane.schedule()) == [id]
    (claim,) = await lane.emails.claim_these([Hint(id, key)])
    assert isinstance(claim, Claim)
    await lane.shift(id, -300, "locked_until")
    assert await lane.emails.settle([(claim, Complete())]) == set()
