"""A message tells which bulk runs have changed it, and only those."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.desk.bulk import ANN, Act, BulkBench, bulk_bench
from tests.desk.test_bulk_retention import DAY, deleted
from tests.tables import Tables

from homing.desk import bulk_runner
from homing.desk.bulk import BulkRuns
from homing.desk.bulk_changed import newest_changed
from homing.errors import Refused
from homing.messages.model import Step, Verb

pytestmark = pytest.mark.clause("JOB-25")

DEAD = "lane:mail_outbox status:dead"


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[BulkBench]:
    async with bulk_bench(database_url) as found:
        yield found


async def told(desk: BulkBench, number: int, *scopes: str) -> list[str]:
    """What the timeline of a mail says of bulk runs."""
    return [step.title for step in await timeline(desk, number, *scopes) if step.kind == "bulk"]


async def timeline(desk: BulkBench, number: int, *scopes: str) -> Sequence[Step]:
    detail = await desk.homing.desk.show(f"outbox_{number}", may=lambda scope: not scopes or scope in scopes)
    assert detail is not None
    return detail.timeline


async def ran(desk: BulkBench, line: str, verb: Verb, runs: BulkRuns | None = None) -> int:
    run = await (runs or desk.runs).start(line, verb, ANN)
    assert await desk.runner(runs).once(run.id)
    return run.id


async def test_a_message_tells_the_runs_that_changed_it(desk: BulkBench) -> None:
    await desk.mails(3)
    await desk.mails(1, "sent", None)
    first = await ran(desk, DEAD, "requeue")
    second = await ran(desk, "lane:mail_outbox status:waiting id:outbox_2", "cancel")
    requeued = f"Requeued by bulk run {first} of user:ann"
    assert await told(desk, 1) == await told(desk, 3) == [requeued]
    assert await told(desk, 2) == [requeued, f"Cancelled by bulk run {second} of user:ann"]
    assert await told(desk, 4) == [], "it was sent"
    steps = await timeline(desk, 1)
    assert [step.kind for step in steps] == ["created", "bulk", "waits"], "in the order of time"
    assert [step.bulk_run for step in steps] == [None, first, None]


async def test_a_run_tells_which_messages_it_changed_whatever_became_of_them(desk: BulkBench) -> None:
    await desk.mails(3)
    await desk.mails(2, "sent", None)
    run = await desk.now(await ran(desk, DEAD, "requeue"))
    await ran(desk, "lane:mail_outbox status:waiting id:outbox_2", "cancel")
    changed = await newest_changed(desk.runs, run, limit=20)
    assert [(row.id, row.state) for row in changed] == [
        ("outbox_3", "queued"), ("outbox_2", "cancelled"), ("outbox_1", "queued"),
    ]  # fmt: skip
    assert [row.number for row in await newest_changed(desk.runs, run, limit=2)] == [3, 2]
    await desk.sql("DELETE FROM mail_outbox WHERE id = 3 RETURNING id")
    assert [row.number for row in await newest_changed(desk.runs, run, limit=20)] == [2, 1]


async def test_of_a_long_run_the_newest_that_it_changed_are_told(desk: BulkBench) -> None:
    await desk.mails(1200)
    run = await desk.now(await ran(desk, DEAD, "requeue"))
    assert [row.number for row in await newest_changed(desk.runs, run, limit=3)] == [1200, 1199, 1198]


async def test_it_is_told_of_every_batch_in_both_directions(desk: BulkBench) -> None:
    await desk.mails(2300)
    requeue = await ran(desk, DEAD, "requeue")
    cancel = await ran(desk, "lane:mail_outbox status:waiting", "cancel")
    for number in (1, 999, 1000, 1001, 1300, 1301, 2299, 2300):
        steps = [step for step in await timeline(desk, number) if step.kind == "bulk"]
        assert [step.bulk_run for step in steps] == [requeue, cancel], number


async def test_who_may_not_read_all_of_a_run_is_not_told_who_ordered_it(desk: BulkBench) -> None:
    await desk.mails(1)
    run = await ran(desk, "status:dead", "requeue")
    assert await told(desk, 1, "mail:read") == [f"Requeued by bulk run {run}"]


async def test_what_was_skipped_or_refused_is_not_told(desk: BulkBench) -> None:
    await desk.mails(6)

    async def troubled(act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        if 4 in numbers:
            raise Refused("not this one")
        # Somebody else is quicker.
        await act(verb, [n for n in numbers if n == 2])
        return await act(verb, numbers)

    await ran(desk, DEAD, "requeue", desk.troubled(troubled))
    assert [len(await told(desk, number)) for number in range(1, 7)] == [1, 0, 1, 0, 1, 1]


async def test_what_a_process_did_before_it_died_is_told(desk: BulkBench) -> None:
    await desk.mails(5)

    async def die(act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        await act(verb, [n for n in numbers if n in {1, 2, 4}])
        raise asyncio.CancelledError

    runs = desk.troubled(die)
    run = await runs.start(DEAD, "requeue", ANN)
    with pytest.raises(asyncio.CancelledError):
        await desk.runner(runs, lease_seconds=0.0).once()
    await desk.until_free(run.id)
    assert await desk.runner().once()
    assert [len(await told(desk, number)) for number in range(1, 6)] == [1, 1, 1, 1, 1]
    assert (await desk.now(run.id)).done == 5


@pytest.mark.parametrize("ending", ["stopped", "dead"])
async def test_what_was_delivered_before_its_turn_was_not_cancelled(
    desk: BulkBench, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on finds a part of a batch sent, which was written down and not done."""
    await desk.mails(5, "queued", None)

    async def die(act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        raise asyncio.CancelledError

    run = await desk.runs.start("lane:mail_outbox status:waiting", "cancel", ANN)
    if ending == "dead":
        with pytest.raises(asyncio.CancelledError):
            await desk.runner(desk.troubled(die), lease_seconds=0.0).once()
    else:
        monkeypatch.setattr(bulk_runner, "_LONGEST_REST", 600.0)
        await stopped_before_it_acts(desk)
    await desk.until_free(run.id)
    await desk.deliverer.settled(await desk.deliverer.run_batch(2))
    assert await desk.states() == {"sent": 2, "queued": 3}
    assert await desk.runner().once()
    ended = await desk.now(run.id)
    # Of a batch that stood there nobody knows that it was not done, so the two are skipped.
    assert (ended.state, ended.done, ended.skipped) == ("done", 3, 2 if ending == "dead" else 0)
    assert [len(await told(desk, number)) for number in range(1, 6)] == [0, 0, 1, 1, 1]


async def stopped_before_it_acts(desk: BulkBench) -> None:
    """As a deployment stops it, in the rest before a batch."""
    runner = desk.runner(pause=1e9)
    doing = asyncio.create_task(runner.once())
    async with asyncio.timeout(60):
        while not (await desk.sql("SELECT started_at FROM homing_bulk_run"))[0]["started_at"]:
            await asyncio.sleep(0.01)
    runner.stop()
    await doing


async def test_what_was_cancelled_before_a_process_died_is_told_and_counted(desk: BulkBench) -> None:
    await desk.mails(5, "queued", None)

    async def die(act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        await act(verb, [n for n in numbers if n >= 3])
        raise asyncio.CancelledError

    runs = desk.troubled(die)
    run = await runs.start("lane:mail_outbox status:waiting", "cancel", ANN)
    with pytest.raises(asyncio.CancelledError):
        await desk.runner(runs, lease_seconds=0.0).once()
    await desk.deliverer.settled(await desk.deliverer.run_batch(1))
    await desk.until_free(run.id)
    assert await desk.runner().once()
    ended = await desk.now(run.id)
    assert (ended.state, ended.done, ended.skipped) == ("done", 4, 1)
    assert [len(await told(desk, number)) for number in range(1, 6)] == [0, 1, 1, 1, 1]


async def test_a_message_has_no_story_of_an_older_one_with_its_number(desk: BulkBench) -> None:
    await desk.mails(1)
    await ran(desk, DEAD, "requeue")
    assert len(await told(desk, 1)) == 1
    tables = Tables(desk.homing.database)
    await tables.shift("homing_bulk_batch", ["at"], DAY)
    assert await told(desk, 1) == []


async def test_a_run_that_an_older_version_began_is_ended(desk: BulkBench) -> None:
    await desk.mails(3)
    run = await desk.runs.start(DEAD, "requeue", ANN)
    begun = '{"after": {}, "over": [], "batch": {"lane": "mail_outbox", "last": 3, "size": 4}}'
    await Tables(desk.homing.database).change("homing_bulk_run", {"progress": begun}, id=run.id)
    assert await desk.runner().once(run.id)
    assert ((await desk.now(run.id)).done, len(await told(desk, 3))) == (3, 1)


async def test_what_was_kept_goes_with_its_run(desk: BulkBench) -> None:
    await desk.mails(2)
    old = await ran(desk, DEAD, "requeue")
    young = await ran(desk, "lane:mail_outbox status:waiting", "cancel")
    tables = Tables(desk.homing.database)
    await tables.shift("homing_bulk_run", ["created_at", "finished_at"], 40 * DAY, id=old)
    assert await deleted(desk.homing, "bulk_runs") == [{"done": 1}]
    assert [row["run_id"] for row in await tables.rows("homing_bulk_batch")] == [young]
    assert await told(desk, 1) == [f"Cancelled by bulk run {young} of user:ann"]


async def test_a_message_is_shown_also_where_its_runs_cannot_be_read(desk: BulkBench) -> None:
    await desk.mails(1)
    await desk.homing.database.run_script("DROP TABLE homing_bulk_batch")
    assert [step.kind for step in await timeline(desk, 1)] == ["created", "dead"]
