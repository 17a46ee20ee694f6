"""A bulk run does not outlive the right to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.desk.bulk import ANN, Act, BulkBench

from homing.access.keys import KeyOrder
from homing.access.scopes import EVERYTHING
from homing.desk import bulk_runner
from homing.desk.bulk import Asker
from homing.messages.model import Verb

DEAD = "status:dead lane:mail_outbox"


async def refused(desk: BulkBench, id: int, why: str) -> None:
    """The run is at its end, with the reason, in the run and in the audit log; nothing was changed."""
    assert await desk.runner().once()
    ended = await desk.now(id)
    assert (ended.state, ended.processed) == ("cancelled", 0)
    assert ended.finished_at is not None
    assert why in (ended.last_error or "")
    last = (await desk.told())[-1]
    assert (last.action, last.object, last.outcome) == ("bulk.end", f"bulk_{id}", "refused")
    assert why in (last.detail or {})["error"]
    assert await desk.states() == {"failed": 3}
    assert not await desk.runner().once(), "it is over"


@pytest.mark.clause("JOB-25")
async def test_a_run_of_a_user_who_was_removed_is_not_taken_up(desk: BulkBench) -> None:
    await desk.mails(3)
    run = await desk.runs.start(DEAD, "requeue", ANN)
    await desk.homing.access.users.remove("ann", by="cli:test")
    await refused(desk, run.id, "user:ann, who ordered it, was removed")


async def test_nor_one_of_a_user_who_is_a_viewer_by_now(desk: BulkBench) -> None:
    await desk.mails(3)
    run = await desk.runs.start(DEAD, "requeue", ANN)
    await desk.homing.access.users.set_role("ann", "viewer", by="cli:test")
    await refused(desk, run.id, "needs the scope mail:operate")


async def test_nor_one_of_a_key_that_is_revoked(desk: BulkBench) -> None:
    await desk.mails(3)
    keys = desk.homing.access.keys
    order = KeyOrder("night", ["desk:read", "mail:read", "mail:operate"])
    ids = [(await keys.create(order, by="cli:test")).row["id"] for _ in range(2)]
    revoked, valid = [
        await desk.runs.start(DEAD, "requeue", Asker(f"key:{id}", lambda _scope: True)) for id in ids
    ]
    await keys.revoke(ids[0], by="cli:test")
    await refused_first(desk, revoked.id)
    assert (await desk.now(valid.id)).state == "done"


async def refused_first(desk: BulkBench, id: int) -> None:
    for _ in range(2):
        assert await desk.runner().once()
    ended = await desk.now(id)
    assert (ended.state, ended.processed) == ("cancelled", 0)
    assert "revoked" in (ended.last_error or "")


async def test_whoever_works_on_the_machine_itself_keeps_the_right(desk: BulkBench) -> None:
    await desk.mails(3)
    for who in ("cli:root", "loopback"):
        run = await desk.runs.start(DEAD, "requeue", Asker(who, lambda _scope: True))
        await desk.runner().once()
        assert (await desk.now(run.id)).state == "done"


async def test_a_run_that_is_under_way_stops_after_its_batch(
    desk: BulkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_runner, "_RIGHTS_EVERY", 0.02)
    await desk.mails(2500)
    gone, noticed, batches = asyncio.Event(), asyncio.Event(), []

    async def rights(_who: str) -> frozenset[str] | None:
        if gone.is_set():
            noticed.set()
            return None
        return EVERYTHING

    async def act(act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        batches.append(len(numbers))
        gone.set()
        await noticed.wait()
        return await act(verb, numbers)

    runs = desk.troubled(act)
    runs._rights = rights
    run = await runs.start(DEAD, "requeue", ANN)
    await asyncio.wait_for(desk.runner(runs).once(), 50)
    ended = await desk.now(run.id)
    assert [ended.done] == batches
    assert ended.state == "cancelled"
    assert await desk.states() == {"queued": ended.done, "failed": 2500 - ended.done}
