"""The store of open_event_notifications, on every database, beside another program on the same rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.notifications import TTL, NotificationBench, notification_bench, read_json

from homing.db import connect, instant
from homing.engine.model import Bury, Claim, Complete, Discard, Failure, RetryIn, Settlement
from homing.lanes.open_events.lane import transition
from homing.lanes.open_events.notification import Notification, Terms
from homing.lanes.open_events.notifications import Notifications
from homing.lanes.open_events.requeue import NotificationRequeueRequest, requeue_ended
from homing.lanes.open_events.view import listed, notification_number, shown

GONE = Failure("network_error", "gone")


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[NotificationBench]:
    async with notification_bench(database_url) as opened:
        yield opened


async def claim_one(bench: NotificationBench) -> Claim[Notification]:
    (claim,) = await bench.notifications.claim(10)
    return claim


async def claimed_ids(bench: NotificationBench, limit: int = 100) -> list[int]:
    return [claim.id for claim in await bench.notifications.claim(limit)]


def second_worker(bench: NotificationBench) -> Notifications:
    return Notifications(bench.database, transition, terms=Terms("worker-2", TTL, 86400.0))


# ── claim ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-02", "NTF-03", "NTF-18")
async def test_a_claim_locks_the_row_and_charges_nothing(bench: NotificationBench) -> None:
    id = await bench.notification()
    before = datetime.now(UTC) - timedelta(seconds=2)
    claim = await claim_one(bench)
    row = await bench.other.row(id)
    assert (row["locked_by"], row["fanout_status"], row["fanout_attempts"]) == ("worker-1", "pending", 0)
    assert row["last_attempt_at"] is None
    locked = instant(row["locked_at"])
    assert locked is not None
    assert locked > before
    assert (claim.id, claim.attempts) == (id, 0)
    assert claim.item.claimed_at == locked
    assert await claimed_ids(bench) == [], "a fresh lock is respected"


@pytest.mark.clause("NTF-02")
async def test_the_due_are_claimed_in_the_order_of_their_ids(bench: NotificationBench) -> None:
    event = await bench.event()
    ids = [await bench.notification(event) for _ in range(7)]
    assert await claimed_ids(bench, 3) == ids[:3]
    assert await claimed_ids(bench, 3) == ids[3:6]
    assert await claimed_ids(bench, 3) == ids[6:]


@pytest.mark.clause("NTF-01", "NTF-02")
@pytest.mark.parametrize(("age", "is_due"), [(0, False), (60, False), (TTL - 10, False), (TTL + 1, True)])
async def test_another_program_s_lock_holds_for_its_time(
    bench: NotificationBench, age: float, is_due: bool
) -> None:
    """It sets `locked_by` and `locked_at`, and knows nothing else."""
    id = await bench.notification(
        locked_by="mail-dispatcher-7", locked_at=datetime.now(UTC) - timedelta(seconds=age)
    )
    assert await claimed_ids(bench) == ([id] if is_due else [])


async def test_what_goes_before_is_not_counted_without_end(bench: NotificationBench) -> None:
    subscription = await bench.subscription(metadata='{"maxNotifications": 99}')
    for _ in range(12):
        await bench.notification(subscription=subscription)
    bench.notifications._parameters = {**bench.notifications._parameters, "most_counted": 5}
    claims = await bench.notifications.claim(100)
    assert [claim.item.ahead for claim in claims] == [0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5]


@pytest.mark.clause("NTF-01", "NTF-13")
async def test_a_delay_that_is_told_by_an_older_lock_is_kept(bench: NotificationBench) -> None:
    """The origin's worker knows no other way to wait: nobody's lock, dated back."""
    later = datetime.now(UTC) - timedelta(seconds=TTL - 60)
    now = datetime.now(UTC) - timedelta(seconds=TTL + 0.5)
    waits = await bench.notification(locked_at=later, fanout_attempts=1)
    due = await bench.notification(locked_at=now, fanout_attempts=1)
    assert await claimed_ids(bench) == [due]
    assert (await bench.other.row(waits))["locked_by"] is None


def in_every_form(moment: datetime) -> dict[str, str]:
    east = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    return {
        "ours": moment.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "SQLite's own": moment.strftime("%Y-%m-%d %H:%M:%S"),
        "without seconds": moment.strftime("%Y-%m-%dT%H:%MZ"),
        "an offset": east.strftime("%Y-%m-%dT%H:%M:%S+05:30"),
        "an offset without a colon": east.strftime("%Y-%m-%dT%H:%M:%S+0530"),
        "microseconds": moment.strftime("%Y-%m-%dT%H:%M:%S.123456+00:00"),
        "the basic form": moment.strftime("%Y%m%dT%H%M%SZ"),
    }


@pytest.mark.clause("NTF-01")
async def test_times_are_read_in_any_iso_form(sqlite_url: str) -> None:
    async with notification_bench(sqlite_url) as bench:
        fresh = in_every_form(datetime.now(UTC) - timedelta(seconds=5))
        over = in_every_form(datetime.now(UTC) - timedelta(seconds=TTL + 70))
        held = [await bench.notification(locked_by="x", locked_at=text) for text in fresh.values()]
        free = [await bench.notification(locked_by="x", locked_at=text) for text in over.values()]
        claimed = await claimed_ids(bench)
        assert claimed == free, [name for name, id in zip(over, free, strict=True) if id not in claimed]
        assert not set(held) & set(claimed)


@pytest.mark.clause("NTF-01")
async def test_an_event_expires_by_its_instant_however_it_is_written(sqlite_url: str) -> None:
    async with notification_bench(sqlite_url) as bench:
        old = in_every_form(datetime.now(UTC) - timedelta(hours=24, minutes=2))
        new = in_every_form(datetime.now(UTC) - timedelta(hours=23, minutes=58))
        for text in (*old.values(), *new.values()):
            await bench.notification(await bench.event(event_at=text))
        claims = await bench.notifications.claim(100)
        expired = [bool(claim.item.event and claim.item.event.expired) for claim in claims]
        assert expired == [True] * len(old) + [False] * len(new)


@pytest.mark.clause("NTF-01")
async def test_words_are_compared_without_case(sqlite_url: str) -> None:
    async with notification_bench(sqlite_url) as bench:
        ids = [await bench.notification(fanout_status=word) for word in ("PENDING", "Pending", "pending")]
        await bench.notification(fanout_status="SENT")
        active = await bench.subscription(status="ACTIVE")
        await bench.notification(subscription=active, fanout_status="Failed")
        assert await claimed_ids(bench) == ids
        assert (await bench.notifications.counts())["failed"] == 1


@pytest.mark.clause("NTF-01", "NTF-02")
async def test_workers_that_claim_at_once_share_no_row(bench: NotificationBench, database_url: str) -> None:
    event = await bench.event()
    ids = [await bench.notification(event) for _ in range(60)]
    databases = [connect(database_url) for _ in range(3)]
    stores = [
        Notifications(database, transition, terms=Terms(f"w{n}", TTL, 86400.0))
        for n, database in enumerate(databases)
    ]
    taken: list[int] = []
    while len(taken) < len(ids):
        rounds = await asyncio.gather(*(store.claim(7) for store in stores))
        taken += [claim.id for claims in rounds for claim in claims]
    assert sorted(taken) == ids
    for database in databases:
        await database.close()


# ── the fence ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-17")
async def test_a_stale_worker_s_result_is_refused(bench: NotificationBench) -> None:
    id = await bench.notification()
    stale = await claim_one(bench)
    await bench.age(id, TTL + 1)
    (fresh,) = await second_worker(bench).claim(10)
    assert fresh.fence > stale.fence
    assert await bench.notifications.settle([(stale, Complete())]) == set()
    row = await bench.other.row(id)
    assert (row["locked_by"], row["fanout_status"], row["fanout_attempts"]) == ("worker-2", "pending", 0)
    assert await bench.other.history(row["subscription_id"]) == [], "of what was refused nothing is told"
    assert await bench.notifications.confirm([stale]) == set()
    assert await bench.notifications.renew([stale]) == set()
    assert await bench.notifications.release([stale]) == set()
    assert await second_worker(bench).settle([(fresh, Complete())]) == {id}


@pytest.mark.clause("NTF-01", "NTF-17")
async def test_a_foreign_worker_that_took_over_is_left_alone(bench: NotificationBench) -> None:
    """It does not raise our number, so the lock's name and time have to tell."""
    for locked_by in ("foreign", "worker-1"):
        id = await bench.notification()
        stale = await claim_one(bench)
        await bench.other.change(
            id, locked_by=locked_by, locked_at=datetime.now(UTC) + timedelta(milliseconds=7)
        )
        assert await bench.notifications.settle([(stale, Bury(GONE))]) == set()
        assert await bench.notifications.renew([stale]) == set()
        assert await bench.notifications.release([stale]) == set()
        assert await bench.notifications.confirm([stale]) == set()
        row = await bench.other.row(id)
        assert (row["locked_by"], row["fanout_status"]) == (locked_by, "pending")


@pytest.mark.clause("NTF-17")
async def test_what_a_foreign_worker_has_ended_stays_ended(bench: NotificationBench) -> None:
    id = await bench.notification()
    stale = await claim_one(bench)
    await bench.other.change(id, fanout_status="sent", fanout_attempts=1)
    assert await bench.notifications.settle([(stale, RetryIn(1.0, GONE))]) == set()
    row = await bench.other.row(id)
    assert (row["fanout_status"], row["fanout_attempts"]) == ("sent", 1)


async def test_a_renewed_lock_is_still_ours(bench: NotificationBench) -> None:
    id = await bench.notification()
    claim = await claim_one(bench)
    await bench.age(id, 60)
    before = (await bench.other.row(id))["locked_at"]
    assert await bench.notifications.renew([claim]) == {id}
    assert (await bench.other.row(id))["locked_at"] > before
    assert await bench.notifications.settle([(claim, Complete())]) == {id}
    assert await bench.notifications.confirm([claim]) == {id}
    assert await bench.notifications.settle([(claim, Complete())]) == set(), "once is enough"
    assert len(await bench.other.history((await bench.other.row(id))["subscription_id"])) == 1


@pytest.mark.clause("NTF-03")
async def test_what_is_given_back_was_never_taken(bench: NotificationBench) -> None:
    id = await bench.notification(fanout_attempts=1, error='{"code":"x"}')
    before = await bench.other.row(id)
    claim = await claim_one(bench)
    assert await bench.notifications.release([claim]) == {id}
    after = await bench.other.row(id)
    assert {**after, "claim_seq": None} == {**before, "claim_seq": None}
    assert await claimed_ids(bench) == [id]


@pytest.mark.clause("NTF-17")
async def test_a_lock_is_taken_over_when_its_time_is_over(bench: NotificationBench) -> None:
    id = await bench.notification()
    await claim_one(bench)
    await bench.age(id, TTL - 5)
    assert await claimed_ids(bench) == []
    await bench.age(id, 6)
    (again,) = await bench.notifications.claim(10)
    assert (again.id, again.attempts) == (id, 0)


# ── settle ───────────────────────────────────────────────────────────────────────────────────────


async def test_many_are_settled_together_each_its_own_way(bench: NotificationBench) -> None:
    """More than one flush of SQLite takes, and a stale one among them."""
    event = await bench.event()
    ids = [await bench.notification(event) for _ in range(260)]
    claims = await bench.notifications.claim(500)
    await bench.other.change(ids[0], locked_by="foreign")
    ends: list[Settlement] = [
        Complete(), RetryIn(5.0, GONE), Bury(GONE), Discard(Failure("unsubscribed")),
    ]  # fmt: skip
    batch = [(claim, ends[number % 4]) for number, claim in enumerate(claims)]
    assert await bench.notifications.settle(batch) == set(ids[1:])
    rows = await bench.other.sql("SELECT * FROM open_event_notifications ORDER BY notification_id")
    states = ["sent", "pending", "failed", "skipped"]
    assert [row["fanout_status"] for row in rows] == ["pending", *(states[n % 4] for n in range(1, 260))]
    assert [row["fanout_attempts"] for row in rows] == [0] + [1] * 259


@pytest.mark.clause("NTF-23")
async def test_several_of_one_subscription_in_one_flush_are_counted_together(
    bench: NotificationBench,
) -> None:
    subscription = await bench.subscription(metadata='{"maxNotifications": 3}')
    for _ in range(3):
        await bench.notification(subscription=subscription)
    claims = await bench.notifications.claim(10)
    await bench.notifications.settle([(claim, Complete()) for claim in claims])
    events = [line["event_type"] for line in await bench.other.history(subscription)]
    assert events == ["notify_sent"] * 3
    await bench.notification(subscription=subscription)
    assert (await claim_one(bench)).item.notified == 3


@pytest.mark.clause("NTF-23")
async def test_who_unsubscribed_meanwhile_stays_so(bench: NotificationBench) -> None:
    subscription = await bench.subscription(metadata='{"maxNotifications": 1}')
    await bench.notification(subscription=subscription)
    claim = await claim_one(bench)
    await bench.other.change_subscription(subscription, status="unsubscribed")
    await bench.notifications.settle([(claim, Complete())])
    assert (await bench.other.subscription(subscription))["status"] == "unsubscribed"
    events = [line["event_type"] for line in await bench.other.history(subscription)]
    assert events == ["notify_sent"]


@pytest.mark.clause("NTF-23")
async def test_a_resumption_begins_a_new_count(bench: NotificationBench) -> None:
    """As our pages do it, and whoever else leaves a line of it in the history."""
    subscription = await bench.subscription(metadata='{"maxNotifications": 1}')
    await bench.notification(subscription=subscription)
    await bench.notifications.settle([(await claim_one(bench), Complete())])
    line = {"subscription_id": subscription, "event_type": "status_changed"}
    await bench.other.insert("subscription_events", "event_id", line)
    await bench.notification(subscription=subscription)
    assert (await claim_one(bench)).item.notified == 0


# ── reset by hand ────────────────────────────────────────────────────────────────────────────────

REQUEUE = {"fanout_status": "pending", "fanout_attempts": 0, "error": None}


@pytest.mark.clause("NTF-16")
@pytest.mark.parametrize(
    "end",
    [
        Complete(),
        Bury(GONE),
        Discard(Failure("unsubscribed")),
        RetryIn(3600.0, GONE),
        RetryIn(3600.0, GONE, charged=False),
    ],
    ids=["sent", "failed", "skipped", "waits", "waits uncharged"],
)
async def test_a_requeue_by_plain_sql_is_enough(bench: NotificationBench, end: Any) -> None:
    id = await bench.notification()
    await bench.notifications.settle([(await claim_one(bench), end)])
    assert await claimed_ids(bench) == []
    await bench.other.change(id, **REQUEUE)
    assert await claimed_ids(bench) == [id]


@pytest.mark.clause("NTF-16")
@pytest.mark.parametrize("charged", [True, False])
async def test_what_a_foreign_worker_ended_while_it_waited_for_us_can_be_requeued(
    bench: NotificationBench, charged: bool
) -> None:
    """`due_at` is left over then, and must not hold the row back, though it had no attempts before either."""
    id = await bench.notification()
    await bench.notifications.settle([(await claim_one(bench), RetryIn(3600.0, GONE, charged=charged))])
    assert await claimed_ids(bench) == []
    await bench.other.change(id, fanout_status="failed", fanout_attempts=1, error='{"code": "x"}')
    await bench.other.change(id, **REQUEUE)
    assert await claimed_ids(bench) == [id]


@pytest.mark.clause("NTF-16")
async def test_clearing_a_lock_by_plain_sql_frees_the_row(bench: NotificationBench) -> None:
    id = await bench.notification()
    claim = await claim_one(bench)
    await bench.other.change(id, locked_by=None, locked_at=None)
    assert await bench.notifications.settle([(claim, Complete())]) == set(), "it is no longer ours"
    (again,) = await bench.notifications.claim(10)
    assert (again.id, again.fence) == (id, claim.fence + 1)


async def test_what_is_reset_goes_on_from_there(bench: NotificationBench) -> None:
    """Once it is claimed again it is like any other: it is not claimed a second time."""
    id = await bench.notification()
    await bench.notifications.settle([(await claim_one(bench), RetryIn(3600.0, GONE))])
    await bench.other.change(id, fanout_attempts=0, error=None)
    claim = await claim_one(bench)
    assert await claimed_ids(bench) == []
    await bench.notifications.settle([(claim, RetryIn(3600.0, GONE))])
    assert await claimed_ids(bench) == []


# ── nonsense ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-01")
async def test_nonsense_of_another_program_stops_nobody(sqlite_url: str) -> None:
    """SQLite keeps whatever it is given; what cannot be read counts as not there."""
    async with notification_bench(sqlite_url) as bench:
        await bench.other.sql("PRAGMA ignore_check_constraints = ON")
        good = await bench.notification()
        odd = [
            await bench.notification(fanout_attempts=-5),
            await bench.notification(fanout_attempts="many"),
            await bench.notification(error="oops, {not JSON"),
            await bench.notification(error=b"\xff\xfe"),
            await bench.notification(subscription=await bench.subscription(metadata="{{", locale="\x00")),
            await bench.notification(subscription=await bench.subscription(metadata=b"\xff\x00")),
            await bench.notification(
                await bench.event(event_at="some day", payload=b"\xfe", trace_id="a\nb")
            ),
            await bench.notification(await bench.event(section_id="elsewhere", trace_id="\u2028")),
        ]
        bad = [
            await bench.notification(subscription=await bench.subscription(contact_value=b"\xff@x")),
            await bench.notification(subscription=await bench.subscription(status=b"\x01")),
            await bench.notification(event="elephant"),
            await bench.notification(subscription="nobody"),
            await bench.notification(await bench.event(index_number=b"\xff", term_id=3)),
        ]
        assert await bench.drain() == 1 + len(odd) + len(bad)
        assert (await bench.other.row(good))["fanout_status"] == "sent"
        states = [(await bench.other.row(id))["fanout_status"] for id in odd]
        assert states == ["sent"] * 6 + ["failed"] * 2
        for id in (*odd, *bad):
            row = await bench.other.row(id)
            assert row["fanout_attempts"] == 1, row
            assert isinstance(read_json(row["error"]), dict)
            found = await bench.notifications.get(id)
            assert found is not None
            assert shown(found).attempts == 1
        assert "crashed" not in bench.log.text


# ── people ───────────────────────────────────────────────────────────────────────────────────────


async def test_looking_at_notifications(bench: NotificationBench) -> None:
    waiting, failed, sent = [await bench.notification() for _ in range(3)]
    claims = {claim.id: claim for claim in await bench.notifications.claim(10)}
    await bench.notifications.settle(
        [(claims[waiting], RetryIn(60.0, GONE)), (claims[failed], Bury(GONE)), (claims[sent], Complete())]
    )
    counts = await bench.notifications.counts()
    assert counts == {"pending": 1, "sent": 1, "skipped": 0, "failed": 1, "expired": 0}
    (row,) = await bench.notifications.page(status="failed")
    summary = listed(row)
    assert (summary.id, summary.status, summary.attempts) == (f"notification_{failed}", "failed", 1)
    assert (summary.error_code, summary.due_at) == ("network_error", None)
    assert notification_number(summary.id) == failed
    assert summary.to is not None
    assert summary.to.startswith("s***@")
    everything = await bench.notifications.page()
    assert [row["id"] for row in everything] == [sent, failed, waiting]
    assert [r["id"] for r in await bench.notifications.page(before=failed)] == [waiting]
    view = shown((await bench.notifications.get(waiting)) or everything[0])
    assert view.due_at is not None
    assert view.error == {"code": "network_error", "message": "gone"}
    assert view.event_payload["courseTitle"] == "Data Structures"
    (reason,) = await bench.notifications.reasons()
    assert (reason["status"], reason["code"], reason["count"]) == ("failed", "network_error", 1)
    assert await bench.notifications.get(999_999) is None


async def test_what_an_operator_asks(bench: NotificationBench) -> None:
    """Backlog, stuck locks, churn."""
    await bench.notification()
    stuck = await bench.notification(locked_by="dead", locked_at=datetime.now(UTC) - timedelta(seconds=500))
    await bench.notification(locked_by="alive", locked_at=datetime.now(UTC))
    await bench.notification(fanout_attempts=2)
    locks = {row["locked_by"]: (row["count"], row["over"]) for row in await bench.notifications.locks()}
    assert locks == {"dead": (1, 1), "alive": (1, 0)}
    (churn,) = await bench.notifications.churn()
    assert (churn["attempts"], churn["count"]) == (2, 1)
    assert 0 <= await bench.notifications.oldest_due() < 60
    assert stuck in await claimed_ids(bench)
    assert await bench.notifications.oldest_due() == 0.0


@pytest.mark.clause("NTF-16")
async def test_requeue_and_cancel(bench: NotificationBench) -> None:
    event = await bench.event()
    ids = [await bench.notification(event) for _ in range(5)]
    claims = await bench.notifications.claim(4)
    auth = Failure("unauthorized", "no")
    ends: list[Settlement] = [Bury(GONE), Bury(auth), Discard(Failure("unsubscribed")), Complete()]
    await bench.notifications.settle(list(zip(claims, ends, strict=True)))
    dry = await requeue_ended(
        bench.notifications, NotificationRequeueRequest(status="failed", code="network_error")
    )
    assert (dry.matched, dry.requeued, dry.more) == (1, 0, False)
    wet = NotificationRequeueRequest(status="failed", code="network_error", dry_run=False)
    assert (await requeue_ended(bench.notifications, wet)).requeued == 1
    row = await bench.other.row(ids[0])
    assert (row["fanout_status"], row["fanout_attempts"], row["error"]) == ("pending", 0, None)
    assert await bench.notifications.requeue(ids) == ids[1:3], "what was sent, or waits, is left as it is"
    assert await bench.notifications.ids_by_status("pending") == [*ids[:3], ids[4]]
    await bench.notifications.claim(1)
    assert await bench.notifications.cancel(ids) == [*ids[1:3], ids[4]], "what a worker holds is its own"
    row = await bench.other.row(ids[4])
    assert (row["fanout_status"], read_json(row["error"])["code"]) == ("skipped", "cancelled")
    assert row["fanout_attempts"] == 0
