"""Every attempt of a mail is told: those that failed, whoever made them, and the one that delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.desk.rows import Bench, bench
from tests.outbox import bench as outbox_bench

from homing.db.store import SqlStore
from homing.engine.model import Bury, Claim, Complete, Discard, Failure, RetryIn, Settlement
from homing.engine.prune import Pace, Retention, plan, prune, survey
from homing.lanes.email_log.queues import Hint
from homing.lanes.open_events.lane import Report as NotifyReport
from homing.messages.model import Step
from homing.parts.retention import prunable_tables
from homing.senders.mail import MailMessage, SendError, SendErrorCode, SendResult

pytestmark = pytest.mark.clause("RTY-15", "NTF-16")

BUSY = RetryIn(0.0, Failure("rate_limited", "come\x00 later \ud800"), millis=1250)
AWAY = RetryIn(0.0, Failure("network_error", "no route"), charged=False, millis=10)
LANES = ("mail_outbox", "email_log", "open_events")
#: As metrics name them.
STAGES = {lane: "email_log:send" if lane == "email_log" else lane for lane in LANES}
TABLES = {
    "mail_outbox": ("mail_outbox", "id"),
    "email_log": ("email_log", "id"),
    "open_events": ("open_event_notifications", "notification_id"),
}


@pytest.fixture
async def lanes(database_url: str) -> AsyncIterator[Bench]:
    async with bench(database_url) as one:
        await one.fill()
        await one.run("DELETE FROM mail_outbox WHERE status <> 'queued'")
        yield one


class Tried:
    """One message of a lane, tried with whatever end."""

    def __init__(self, lanes: Bench, lane: str) -> None:
        homing = lanes.homing
        self._lanes, self.lane = lanes, lane
        stores: dict[str, SqlStore[Any]] = {
            "mail_outbox": homing.outbox,
            "email_log": homing.emails,
            "open_events": homing.notifications,
        }
        self.store = stores[lane]
        self.number, self.id = {
            "mail_outbox": (2, "outbox_2"),
            "email_log": (2, "email_2"),
            "open_events": (2, "notification_2"),
        }[lane]

    async def claim(self) -> Claim[Any]:
        claims: dict[str, Callable[[], Awaitable[list[Any]]]] = {
            "mail_outbox": lambda: self.store.claim(1),
            "email_log": self._claim_email,
            "open_events": lambda: self.store.claim(1),
        }
        claim: Claim[Any]
        (claim,) = await claims[self.lane]()
        assert claim.id == self.number
        return claim

    async def _claim_email(self) -> list[Any]:
        await self._lanes.run("UPDATE email_log SET status = 'Pending' WHERE id = 2")
        (row,) = await self._lanes.run("SELECT message_key FROM email_log WHERE id = 2")
        return list(await self._lanes.homing.emails.claim_these([Hint(2, row["message_key"])]))

    async def settle(self, end: Settlement) -> None:
        assert await self.store.settle([(await self.claim(), end)]) == {self.number}

    async def timeline(self) -> list[Step]:
        detail = await self._lanes.desk.show(self.id, may=lambda _scope: True)
        assert detail is not None
        return list(detail.timeline)

    async def attempts(self) -> list[Step]:
        return [step for step in await self.timeline() if step.kind == "attempt"]


@pytest.mark.parametrize("lane", LANES)
async def test_every_attempt_is_told_with_its_error_its_time_and_its_worker(lanes: Bench, lane: str) -> None:
    one = Tried(lanes, lane)
    owner = lanes.homing.ground.owner
    await one.settle(BUSY)
    await one.settle(Bury(Failure("invalid_recipient", "who?"), millis=40))
    first, last = await one.attempts()
    assert (first.title, first.seconds, first.worker, first.well) == ("Attempt 1", 1.25, owner, False)
    assert (first.error_class, first.error) == ("rate_limited", "come later ?")
    assert (last.title, last.seconds, last.error_class, last.error) == (
        "Attempt 2", 0.04, "invalid_recipient", "who?",
    )  # fmt: skip
    assert first.at < last.at
    assert (await one.timeline())[-1].kind == "dead", "it ended after its last attempt"


@pytest.mark.parametrize("lane", LANES)
async def test_the_attempt_that_delivers_is_the_last_of_them(lanes: Bench, lane: str) -> None:
    one = Tried(lanes, lane)
    await one.settle(BUSY)
    await one.settle(Complete(millis=333))
    first, last = await one.attempts()
    assert (first.well, first.error_class) == (False, "rate_limited")
    assert (last.title, last.well, last.seconds) == ("Attempt 2", True, 0.333)
    assert last.worker == lanes.homing.ground.owner
    assert (await one.timeline())[-1].kind == "delivered"


@pytest.mark.parametrize("lane", LANES)
async def test_what_never_reached_the_other_side_is_no_attempt(lanes: Bench, lane: str) -> None:
    """It would grow for as long as a provider is away."""
    one = Tried(lanes, lane)
    await one.settle(AWAY)
    await one.settle(AWAY)
    assert await lanes.run("SELECT 1 AS one FROM homing_attempt") == []
    await one.settle(Discard(Failure("expired", "too late")))
    assert await lanes.run("SELECT 1 AS one FROM homing_attempt") == []


async def test_attempts_before_a_requeue_stay_told(lanes: Bench) -> None:
    one = Tried(lanes, "mail_outbox")
    await one.settle(Bury(Failure("unauthorized", "wrong key"), millis=5))
    assert await lanes.homing.outbox.requeue([2]) == [2]
    await one.settle(Complete(millis=1))
    assert [(step.title, step.well) for step in await one.attempts()] == [
        ("Attempt 1", False),
        ("Attempt 1, after a requeue", True),
    ]


async def test_one_that_may_have_been_taken_says_so(lanes: Bench) -> None:
    """Whoever requeues it may send a double."""
    report = NotifyReport(provider="smtp", unknown=True)
    await Tried(lanes, "open_events").settle(
        RetryIn(0.0, Failure("network_error", "no answer"), report=report, millis=9)
    )
    (one,) = await Tried(lanes, "open_events").attempts()
    assert (one.error_class, one.unknown) == ("network_error", True)


@pytest.mark.parametrize("lane", LANES)
async def test_a_settlement_that_comes_too_late_leaves_nothing(lanes: Bench, lane: str) -> None:
    one = Tried(lanes, lane)
    late = await one.claim()
    name, key = TABLES[lane]
    # As a rescue does it, or another worker that takes over.
    await lanes.run(f"UPDATE {name} SET claim_seq = claim_seq + 1 WHERE {key} = {one.number}")
    assert await one.store.settle([(late, BUSY)]) == set()
    assert await lanes.run("SELECT 1 AS one FROM homing_attempt") == []


@pytest.mark.parametrize("lane", LANES)
async def test_a_number_that_is_used_again_brings_no_foreign_attempts(lanes: Bench, lane: str) -> None:
    """After a TRUNCATE, or in a file whose numbers are used again."""
    one = Tried(lanes, lane)
    await one.settle(BUSY)
    await lanes.run("UPDATE homing_attempt SET ended_at = '2020-01-01T00:00:00Z', message = 'of another'")
    name, key = TABLES[lane]
    await lanes.run(
        f"UPDATE {name} SET claim_seq = 0, created_at = '2025-01-01T00:00:00Z' WHERE {key} = {one.number}"
    )
    assert [step.error for step in await one.attempts() if step.error == "of another"] == []
    await one.settle(Bury(Failure("invalid_recipient", "its own"), millis=1))
    assert [step.error for step in await one.attempts()] == ["its own"]


@pytest.mark.parametrize("lane", LANES)
async def test_attempts_of_messages_that_somebody_deleted_end_with_their_age(lanes: Bench, lane: str) -> None:
    one = Tried(lanes, lane)
    await one.settle(BUSY)
    name, key = TABLES[lane]
    homing = lanes.homing
    tables = prunable_tables(homing.database, homing.jobs_database, homing.notify_database)
    (step,) = [
        step for step in plan(Retention({lane: 86400.0}), tables) if tuple(step.table.states) == ("attempts",)
    ]

    async def found() -> list[tuple[str, int]]:
        return [(one.state, one.count) async for window in survey(step) for one in window]

    await lanes.run(f"DELETE FROM {name} WHERE {key} = {one.number}")
    assert await found() == [], "it is too young"
    await lanes.run("UPDATE homing_attempt SET ended_at = '2020-01-01T00:00:00Z'")
    assert await found() == [("attempts", 1)]
    assert [deleted async for deleted in prune(step, Pace(1.0))] == [{"attempts": 1}]
    assert await lanes.run("SELECT 1 AS one FROM homing_attempt") == []


@pytest.mark.parametrize("lane", ["mail_outbox", "email_log"])
async def test_what_a_lost_worker_did_is_not_made_up(lanes: Bench, lane: str) -> None:
    one = Tried(lanes, lane)
    await one.settle(BUSY)
    await lanes.run("UPDATE homing_attempt SET ended_at = '2026-02-01T00:00:00Z'")
    await one.claim()
    columns = {"mail_outbox": ("lease_expires_at",), "email_log": ("locked_until", "leased_until")}
    over = ", ".join(f"{column} = '2020-01-01T00:00:00.000Z'" for column in columns[lane])
    await lanes.run(f"UPDATE {lane} SET {over} WHERE id = {one.number}")
    assert await one.store.rescue(10) == 1
    assert [step.title for step in await one.attempts()] == ["Attempt 1"]
    lost = [step for step in await one.timeline() if step.kind == "lost"]
    assert [(step.title, step.error, step.unknown) for step in lost] == [("Lost with its worker", None, True)]


async def test_what_a_stopped_worker_gave_back_may_have_arrived(lanes: Bench) -> None:
    """A second Ctrl-C breaks an attempt off, and nobody knows how far it was."""
    one = Tried(lanes, "mail_outbox")
    assert await one.store.release([await one.claim()]) == {one.number}
    (told,) = [step for step in await one.timeline() if step.kind == "claimed"]
    assert told.title == "Given back by a worker that was stopped; what had begun may have arrived"


@pytest.mark.parametrize("lane", ["mail_outbox", "email_log"])
async def test_a_mail_that_was_only_deferred_says_so(lanes: Bench, lane: str) -> None:
    one = Tried(lanes, lane)
    await one.settle(AWAY)
    deferred = [step for step in await one.timeline() if step.kind == "deferred"]
    assert await one.attempts() == []
    assert [(step.title, step.error_class, step.error) for step in deferred] == [
        ("Deferred", "network_error", "no route")
    ]


@pytest.mark.parametrize("lane", LANES)
async def test_a_story_that_cannot_be_kept_holds_up_no_settlement(lanes: Bench, lane: str) -> None:
    one = Tried(lanes, lane)
    claim = await one.claim()
    await lanes.run("DROP TABLE homing_attempt")
    assert await one.store.settle([(claim, BUSY)]) == {one.number}
    assert lanes.untold(STAGES[lane]) == 1, "and somebody is told that it is missing"


async def test_only_what_was_settled_and_charged_is_missed(lanes: Bench) -> None:
    one = Tried(lanes, "mail_outbox")
    late = await one.claim()
    await lanes.run("UPDATE mail_outbox SET claim_seq = claim_seq + 1 WHERE id = 2")
    await lanes.run("DROP TABLE homing_attempt")
    assert await one.store.settle([(late, BUSY)]) == set()
    assert lanes.untold("mail_outbox") is None, "another worker tells of it"
    await lanes.run("UPDATE mail_outbox SET claim_seq = claim_seq - 1 WHERE id = 2")
    assert await one.store.settle([(late, AWAY)]) == {one.number}
    assert lanes.untold("mail_outbox") is None, "that was no attempt"


async def test_a_delivery_in_the_first_moment_of_all_is_shown(lanes: Bench) -> None:
    """As another program may have written it."""
    await lanes.run(
        "UPDATE mail_outbox SET status = 'sent', delivered_millis = 5, sent_at = '0001-01-01T00:00:00Z'"
        " WHERE id = 2"
    )
    (sent,) = await Tried(lanes, "mail_outbox").attempts()
    assert (sent.at.year, sent.seconds) == (1, 0.005)


async def test_a_row_of_another_program_tells_its_last_attempt(lanes: Bench) -> None:
    """Nobody kept the others: the row is all there is."""
    await lanes.run(
        "UPDATE mail_outbox SET retry_count = 3, last_attempt_at = '2026-01-01T00:01:00Z',"
        " last_error = 'network_error: no route' WHERE id = 2"
    )
    (last,) = await Tried(lanes, "mail_outbox").attempts()
    assert (last.title, last.error_class, last.worker) == ("Last attempt, of 3", "network_error", None)


@pytest.mark.parametrize("lane", LANES)
async def test_attempts_go_with_their_message(lanes: Bench, lane: str) -> None:
    one = Tried(lanes, lane)
    await one.settle(BUSY)
    homing = lanes.homing
    tables = prunable_tables(homing.database, homing.jobs_database, homing.notify_database)
    steps = plan(Retention({lane: 86400.0}), tables)
    table, ages = steps[0].table, steps[0].ages
    assert await table.prune(ages, [one.number]) == {}, "it waits"
    assert len(await one.attempts()) == 1
    await one.settle(Bury(Failure("invalid_recipient"), millis=1))
    long_ago = {
        "mail_outbox": "created_at = :at, last_attempt_at = :at, next_attempt_at = :at",
        "email_log": "created_at = :at, last_attempt_at = :at, last_queued_at = :at, announced_at = :at",
        "open_events": "created_at = :at, last_attempt_at = :at",
    }[lane].replace(":at", "'2020-01-01T00:00:00Z'")
    name, key = TABLES[lane]
    await lanes.run(f"UPDATE {name} SET {long_ago} WHERE {key} = {one.number}")
    assert sum((await table.prune(ages, [one.number])).values()) == 1
    assert await lanes.run("SELECT 1 AS one FROM homing_attempt") == []


async def test_an_attempt_is_timed_and_named_on_its_way(database_url: str) -> None:
    """Through the deliverer itself, not by hand."""
    async with outbox_bench(database_url) as opened:
        (id,) = await opened.insert()

        async def refuse(message: MailMessage) -> SendResult:
            del message
            error = SendError(code=SendErrorCode.INVALID_RECIPIENT, message="who?")
            return SendResult(status="failed", provider="none", error=error)

        opened.sender.send = refuse  # type: ignore[method-assign]
        await opened.deliverer.settled(await opened.deliverer.claim(1))
        (kept,) = await opened.sql("SELECT * FROM homing_attempt")
        row = await opened.row(id)
    assert (kept["message_id"], kept["fence"], kept["code"]) == (id, row["claim_seq"], "invalid_recipient")
    assert 0 <= kept["duration_millis"] < 60_000
    assert kept["worker"]
