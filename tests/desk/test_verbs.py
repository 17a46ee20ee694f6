"""requeue, cancel and send now in every lane: which rows they change, and what holds one back regardless."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.desk.bulk import BulkBench
from tests.jobs import job

from homing.db import instant
from homing.lanes.email_log.queues import Hint
from homing.messages.model import HowMany, LaneDesk, LaneName, Verb, Wanted

LATER = datetime(2099, 1, 1, tzinfo=UTC)
URL = "http://127.0.0.1:9/hooks"


def lane_of(desk: BulkBench, name: LaneName) -> LaneDesk:
    return desk.homing.desk.lanes[name]


def time(desk: BulkBench, moment: datetime) -> Any:
    return moment if desk.homing.database.dialect == "postgres" else moment.isoformat().replace("+00:00", "Z")


async def due(desk: BulkBench, table: str, key: str, column: str, id: int) -> datetime | None:
    (row,) = await desk.sql(f"SELECT {column} AS at FROM {table} WHERE {key} = :id", id=id)
    return instant(row["at"])


def is_now(moment: datetime | None) -> bool:
    return moment is not None and abs(datetime.now(UTC) - moment) < timedelta(minutes=1)


# ── mail_outbox ──────────────────────────────────────────────────────────────────────────────────


async def test_a_mail_that_is_queued_for_later_is_sent_now(desk: BulkBench) -> None:
    (later,) = await desk.insert(next_attempt_at=time(desk, LATER), send_at=time(desk, LATER))
    (failed,) = await desk.insert(status="failed")
    assert not await desk.deliver()
    lane = lane_of(desk, "mail_outbox")
    assert await lane.act("send_now", [later, failed]) == [later]
    assert await lane.act("send_now", [later]) == [later], "once more is the same"
    assert list(await desk.deliver()) == [later]
    assert (await desk.row(later))["status"] == "sent"
    assert (await desk.row(failed))["status"] == "failed"


async def test_an_urgent_mail_stays_before_the_others(desk: BulkBench) -> None:
    early = datetime.now(UTC) - timedelta(days=1)
    (urgent,) = await desk.insert(next_attempt_at=time(desk, early))
    await lane_of(desk, "mail_outbox").act("send_now", [urgent])
    at = await due(desk, "mail_outbox", "id", "next_attempt_at", urgent)
    assert at is not None
    assert abs(at - early) < timedelta(seconds=1)


# ── dispatch_jobs ────────────────────────────────────────────────────────────────────────────────


async def jobs_of(desk: BulkBench, count: int = 1, **columns: Any) -> list[int]:
    return [one.id for one in await desk.homing.jobs.enqueue([job(URL, **columns) for _ in range(count)])]


async def test_a_job_that_is_scheduled_is_due_now_and_its_message_is_sent_again(desk: BulkBench) -> None:
    (id,) = await jobs_of(desk)
    await desk.sql(
        "UPDATE dispatch_job SET next_attempt_at = :at, scheduled_for = :at, queue_at = :at, queued = :yes "
        "WHERE id = :id RETURNING id",
        at=time(desk, LATER), yes=True, id=id,
    )  # fmt: skip
    assert await lane_of(desk, "dispatch_jobs").act("send_now", [id]) == [id]
    for column in ("next_attempt_at", "scheduled_for", "queue_at"):
        assert is_now(await due(desk, "dispatch_job", "id", column, id)), column
    (row,) = await desk.sql("SELECT queued FROM dispatch_job WHERE id = :id", id=id)
    assert not row["queued"]
    assert [claim.id for claim in await desk.homing.jobs.claim(10)] == [id]


async def test_what_is_paused_stays_paused_and_what_is_ordered_stays_in_order(desk: BulkBench) -> None:
    lane = lane_of(desk, "dispatch_jobs")
    first, second = await jobs_of(desk, 2, group_id="g", ordering="group")
    assert sorted(await lane.act("send_now", [first, second])) == [first, second]
    assert [claim.id for claim in await desk.homing.jobs.claim(10)] == [first]
    (elsewhere,) = await jobs_of(desk)
    (row,) = await desk.sql("SELECT target FROM dispatch_job WHERE id = :id", id=elsewhere)
    await desk.homing.jobs.run("pause_target", target=row["target"], until=time(desk, LATER), reason="x")
    assert await lane.act("send_now", [elsewhere]) == [elsewhere]
    assert not await desk.homing.jobs.claim(10)


async def test_a_job_under_way_is_not_touched(desk: BulkBench) -> None:
    (id,) = await jobs_of(desk)
    assert await desk.homing.jobs.claim(1)
    for verb in ("send_now", "cancel", "requeue"):
        assert not await lane_of(desk, "dispatch_jobs").act(verb, [id])


# ── email_log ────────────────────────────────────────────────────────────────────────────────────


async def email(desk: BulkBench, **columns: Any) -> int:
    values = {"to_address": "ann@example.org", "subject": "Hi", "body": "Hello.", **columns}
    names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    rows = await desk.sql(f"INSERT INTO email_log ({names}) VALUES ({marks}) RETURNING id", **values)
    id: int = rows[0]["id"]
    return id


async def test_an_email_that_waits_for_another_attempt_is_due_now(desk: BulkBench) -> None:
    failed = await email(desk, status="Failed", next_attempt_at=time(desk, LATER), attempt_count=1)
    queued = await email(desk, next_attempt_at=time(desk, LATER), last_queued_at=time(desk, LATER))
    unqueued = await email(desk, next_attempt_at=time(desk, LATER))
    held = await email(desk, status="Failed", next_attempt_at=time(desk, LATER), locked_by="w")
    lane = lane_of(desk, "email_log")
    assert sorted(await lane.act("send_now", [failed, queued, unqueued, held])) == [failed, unqueued]
    claimed = await desk.homing.email_schedule.lane.store.claim(10)
    assert sorted(claim.id for claim in claimed) == [failed, unqueued], "no second message of one attempt"


async def test_a_cancelled_email_is_dead_by_that_reason_and_nobody_sends_or_announces_it(
    desk: BulkBench,
) -> None:
    lane = lane_of(desk, "email_log")
    queued = await email(desk, message_key="k", last_queued_at=time(desk, LATER))
    sent = await email(desk, status="Sent")
    assert await lane.act("cancel", [queued, sent]) == [queued]
    (found,) = await desk.homing.emails.claim_these([Hint(queued, "k")])
    assert "Dead" in str(found), "its message finds nothing to send"
    row = await desk.homing.emails.get(queued)
    assert row is not None
    assert (row["status"], row["dead_reason"], row["announced_at"] is not None) == ("Dead", "Cancelled", True)
    assert await lane.act("requeue", [queued]) == [queued]
    (found,) = await desk.homing.emails.claim_these([Hint(queued, "k")])
    assert getattr(found, "id", None) == queued


# ── open_events ──────────────────────────────────────────────────────────────────────────────────


async def notification(desk: BulkBench, number: int, **columns: Any) -> int:
    values = {"open_event_id": number, "subscription_id": number, "dedupe_key": f"d{number}", **columns}
    names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    rows = await desk.sql(
        f"INSERT INTO open_event_notifications ({names}) VALUES ({marks}) RETURNING notification_id AS id",
        **values,
    )
    id: int = rows[0]["id"]
    return id


async def test_a_notification_that_waits_is_looked_at_now_and_a_lock_is_respected(desk: BulkBench) -> None:
    waits = {"due_at": time(desk, LATER), "due_attempts": 0, "error": '{"code":"outside_window"}'}
    waiting = await notification(desk, 1, **waits)
    locked = await notification(desk, 2, locked_by="other", locked_at=time(desk, datetime.now(UTC)))
    spelt = await notification(desk, 3, fanout_status="PENDING", **waits)
    lane = lane_of(desk, "open_events")
    assert await lane.act("send_now", [waiting, locked, spelt]) == [waiting, spelt]
    claimed = await desk.homing.notifications.run("claim", limit=10)
    assert sorted(row["id"] for row in claimed) == [waiting, spelt]


# ── all of them ──────────────────────────────────────────────────────────────────────────────────


async def test_every_lane_knows_its_own_states_and_what_can_be_done_from_them(desk: BulkBench) -> None:
    verbs: tuple[Verb, ...] = ("requeue", "cancel", "send_now")
    for name, lane in desk.homing.desk.lanes.items():
        assert set(lane.from_states) == set(verbs), name
        for verb in verbs:
            assert set(lane.from_states[verb]) <= set(lane.phases), (name, verb)
            assert await lane.act(verb, []) == [], (name, verb)


async def test_numbers_come_in_order_and_go_on_where_they_ended(desk: BulkBench) -> None:
    await desk.mails(25)
    await desk.mails(5, error="other: x")
    await desk.mails(5, status="expired")
    lane = lane_of(desk, "mail_outbox")
    wanted = Wanted(lanes=("mail_outbox",), states=("failed", "expired"), error="timeout")
    forwards = await walked(lane, wanted, newest_first=False)
    assert forwards == [*range(1, 26), *range(31, 36)]
    assert await walked(lane, wanted, newest_first=True) == forwards[::-1]
    assert await lane.count(wanted, most=100, seconds=60) == HowMany(30)
    assert await lane.count(wanted, most=7, seconds=60) == HowMany(7, is_lower_bound=True)
    assert await lane.count(Wanted(states=("failed",)), most=100, seconds=60) == HowMany(30)
    one = Wanted(states=("failed", "queued"), id="outbox_3")
    assert await walked(lane, one, newest_first=False) == [3]
    assert await lane.numbers(Wanted(states=("failed",), source="x"), after=None, limit=5) == []


async def walked(lane: LaneDesk, wanted: Wanted, *, newest_first: bool) -> list[int]:
    found: list[int] = []
    while some := await lane.numbers(
        wanted, after=found[-1] if found else None, limit=4, newest_first=newest_first
    ):
        found += some
    return found


async def test_a_walk_looks_beyond_windows_in_which_nothing_is_meant(
    desk: BulkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.db.walking.SCATTERED", 10)
    for error in ("other: x", "timeout: y", "other: z"):
        await desk.mails(33, error=error)
    lane = lane_of(desk, "mail_outbox")
    wanted = Wanted(states=("failed",), error="timeout")
    for newest_first in (False, True):
        found = await walked(lane, wanted, newest_first=newest_first)
        assert sorted(found) == list(range(34, 67))
    assert await lane.count(wanted, most=1000, seconds=60) == HowMany(33)
    assert await lane.count(wanted, most=1000, seconds=0) == HowMany(0, is_lower_bound=True)
