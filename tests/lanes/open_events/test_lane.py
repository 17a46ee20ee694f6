"""What a worker of the lane does: what it sends, what it waits for, what it never sends."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.waiting import until
from tests.notifications import (
    KEY,
    NotificationBench,
    lane_on,
    notification_bench,
    read_json,
    sqlite_path,
)

from homing.engine.coalesce import Batched
from homing.engine.deliver import Deliverer
from homing.engine.model import Claim, Delivered, Failure, Reject, Retry, RetryIn, Skip
from homing.engine.policy import Schedule, decide
from homing.lanes.open_events.lane import LONGEST_LOOK_AWAY, policy_of_terms, transition
from homing.lanes.open_events.links import LinkKeys, Links
from homing.lanes.open_events.notification import Terms
from homing.lanes.open_events.notifications import Notifications, Standing
from homing.lanes.open_events.payload import DeliveryPolicy, Jobs
from homing.senders.addresses import parse_address
from homing.senders.mail import MailMessage, SendError, SendErrorCode, SendResult
from homing.senders.memory import MemorySender
from homing.senders.reliable import ReliableMailSender
from homing.senders.templates import Templates

POLICY = DeliveryPolicy(3, 120, (0, 2000, 7000))


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[NotificationBench]:
    async with notification_bench(database_url) as opened:
        yield opened


class Held(MemorySender):
    """Keeps mails until it is let go."""

    def __init__(self) -> None:
        super().__init__("smtp")
        self.gate = asyncio.Event()

    async def send(self, message: MailMessage) -> SendResult:
        self.messages.append(message)
        await self.gate.wait()
        return SendResult(status="sent", provider="smtp")


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-05", "NTF-19")
async def test_the_sender_is_told_everything(bench: NotificationBench) -> None:
    event = await bench.event(index_number="09214", trace_id="trace-42")
    subscription = await bench.subscription(contact_value=" Ann@Example.org ", locale="zh_CN")
    await bench.notification(event, subscription, dedupe_key="a1b2")
    await bench.deliver()
    (message,) = bench.memory.messages
    assert message.recipients == message.to == ("Ann@Example.org",)
    assert (message.locale, message.template_id, message.template_version) == ("zh-CN", "open-seat", "v1")
    assert message.dedupe_key == "a1b2"
    assert message.merge_key == f"a1b2:{subscription}", "the key is shared by all subscribers of the event"
    assert message.trace_id == "trace-42"
    assert ("X-Trace-Id", "trace-42") in message.headers
    assert message.metadata == {
        "subscriptionId": subscription, "openEventId": event, "term": "20269", "campus": "NB",
    }  # fmt: skip
    assert message.manage_url is not None
    assert message.manage_url.startswith(f"https://seats.example.com/subscriptions/{subscription}?token=")
    assert message.unsubscribe_url is not None
    assert message.unsubscribe_url.startswith("https://seats.example.com/unsubscribe?token=")
    assert (message.variables or {})["sectionIndex"] == "09214"
    assert "Data Structures" in message.subject
    assert message.unsubscribe_url in (message.whole_text or "")
    assert message.manage_url in (message.whole_html or "")


@pytest.mark.parametrize("trace", ["a\nb", "ü", "", "x" * 300, None])
async def test_a_trace_that_is_unfit_for_a_header_is_left_out(sqlite_url: str, trace: str | None) -> None:
    async with notification_bench(sqlite_url) as bench:
        await bench.notification(await bench.event(trace_id=trace))
        await bench.deliver()
        assert [message.headers for message in bench.memory.messages] == [()]


@pytest.mark.clause("NTF-05", "NTF-17")
async def test_every_attempt_has_the_same_message_id_and_every_subscriber_another(
    bench: NotificationBench,
) -> None:
    event = await bench.event()
    id = await bench.notification(event)
    await bench.deliver()
    await bench.other.change(id, fanout_status="pending", fanout_attempts=0, error=None)
    await bench.deliver()
    await bench.notification(event)
    await bench.deliver()
    first, again, another = (message.message_id for message in bench.memory.messages)
    assert first == again
    assert another != first


@pytest.mark.clause("NTF-19")
@pytest.mark.parametrize(
    ("asked", "found"),
    [("zh-CN", "zh-CN"), ("en_GB", "en-US"), (None, "en-US"), ("xx", "en-US"), ("../x", "en-US")],
)
async def test_the_locale_is_the_subscription_s_else_the_default(
    sqlite_url: str, asked: str | None, found: str
) -> None:
    async with notification_bench(sqlite_url) as bench:
        await bench.notification(subscription=await bench.subscription(locale=asked))
        await bench.deliver()
        assert [message.locale for message in bench.memory.messages] == [found]


@pytest.mark.clause("NTF-14", "NTF-22")
async def test_a_template_that_is_missing_is_ours_to_mend(sqlite_url: str, tmp_path: Path) -> None:
    """Its version reaches the loader, and never another one silently."""
    folder = tmp_path / "templates" / "open-seat" / "v2"
    folder.mkdir(parents=True)
    (folder / "en-US.subject.txt").write_text("Two: {{ courseTitle }}")
    (folder / "en-US.txt").write_text("v2")
    async with notification_bench(sqlite_url) as bench:
        lane = bench.lane
        links = Links(lambda: LinkKeys([KEY]), lambda: "https://x.example")
        lane._templates = Templates(tmp_path / "templates", default_locale="en-US")
        for version, wanted in (("v2", ("sent", None)), ("v3", ("failed", "validation_error"))):
            lane._jobs = Jobs(links, POLICY, locales=("en-US",), template_version=version)
            id = await bench.notification()
            await bench.deliver()
            row = await bench.other.row(id)
            assert (row["fanout_status"], read_json(row["error"]).get("code")) == wanted
        assert [message.subject for message in bench.memory.messages] == ["Two: Data Structures"]
        (folder / "en-US.txt").write_text("{{ nobodyKnows }}")
        lane._jobs = Jobs(links, POLICY, locales=("en-US",), template_version="v2")
        id = await bench.notification()
        await bench.deliver()
        row = await bench.other.row(id)
        assert read_json(row["error"])["code"] == "template_variable_missing"
        assert row["fanout_status"] == "failed"
        lane._templates = Templates(tmp_path / "templates", default_locale="de")
        lane._jobs = Jobs(links, POLICY, locales=("fr",), template_version="v2")
        id = await bench.notification()
        await bench.deliver()
        row = await bench.other.row(id)
        assert (row["fanout_status"], read_json(row["error"])["code"]) == (
            "failed",
            "template_missing_locale",
        )


# ── when to try again ────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-13", "NTF-18")
@pytest.mark.parametrize(
    ("attempts", "asked", "wait"),
    [(0, None, 0.0), (1, None, 2.0), (2, None, 7.0), (3, None, 60.0), (9, None, 60.0),
     (0, 3.0, 3.0), (1, 1.0, 2.0), (3, 500.0, 500.0)],
)  # fmt: skip
def test_the_next_pick_is_the_schedule_s_capped_by_the_lock_or_what_was_asked_for(
    attempts: int, asked: float | None, wait: float
) -> None:
    policy = policy_of_terms(100, Schedule((0.0, 2.0, 7.0, 300.0)), 60.0)
    claim: Claim[Any] = Claim(1, 1, attempts, None)
    settlement = decide(policy, claim, Retry(Failure("network_error"), asked), lambda: 0.5)
    assert isinstance(settlement, RetryIn)
    assert settlement.delay == wait


@pytest.mark.clause("NTF-12", "NTF-13", "NTF-15")
async def test_a_row_is_tried_as_often_as_the_policy_says(bench: NotificationBench) -> None:
    gone = SendResult(
        status="retryable", provider="smtp", error=SendError(SendErrorCode.NETWORK_ERROR, "gone")
    )
    bench.memory.answer_next(gone, gone, gone)
    id = await bench.notification()
    await bench.drain()
    assert (await bench.other.row(id))["fanout_attempts"] == 2, "the first retry is at once"
    await bench.age(id, 3)
    await bench.drain()
    row = await bench.other.row(id)
    assert (row["fanout_status"], row["fanout_attempts"]) == ("failed", 3)
    assert len(bench.memory.messages) == 3


# ── what waits ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-23")
async def test_a_mail_waits_for_its_window_and_is_not_dropped(bench: NotificationBench) -> None:
    now = datetime.now(UTC)
    soon = now + timedelta(minutes=6)
    window = {
        "startMinutes": soon.hour * 60 + soon.minute,
        "endMinutes": (soon.hour * 60 + soon.minute + 60) % 1440,
    }
    subscription = await bench.subscription(
        metadata=msgspec.json.encode({"preferences": {"deliveryWindow": window}}).decode()
    )
    id = await bench.notification(subscription=subscription)
    await bench.deliver()
    row = await bench.other.row(id)
    assert (row["fanout_status"], row["fanout_attempts"], row["locked_by"]) == ("pending", 0, None)
    due = await bench.due_in(id)
    assert due is not None
    assert 200 < due <= 360, "looked at again when it opens"
    assert await bench.deliver() == {}, "and not before"
    await bench.other.change_subscription(subscription, metadata=None)
    await bench.age(id, 400)
    await bench.deliver()
    assert (await bench.other.row(id))["fanout_status"] == "sent"


@pytest.mark.clause("NTF-23")
async def test_what_a_subscriber_wants_is_looked_at_again_every_quarter_of_an_hour(
    bench: NotificationBench,
) -> None:
    far = '{"preferences": {"snoozeUntil": "2099-01-01T00:00:00Z"}}'
    id = await bench.notification(subscription=await bench.subscription(metadata=far))
    for _ in range(12):
        await bench.deliver()
        due = await bench.due_in(id)
        assert due is not None
        assert LONGEST_LOOK_AWAY - 60 < due <= LONGEST_LOOK_AWAY
        await bench.age(id, LONGEST_LOOK_AWAY + 1)
    row = await bench.other.row(id)
    assert (row["fanout_status"], row["fanout_attempts"]) == ("pending", 0), "however often it waits"
    assert bench.memory.messages == []


@pytest.mark.clause("NTF-23")
async def test_of_several_in_flight_only_as_many_are_sent_as_are_wanted(database_url: str) -> None:
    """Five openings at once for somebody who wants two mails: two go out, however many workers there are."""
    sender = Held()
    async with notification_bench(database_url, sender=sender) as bench:
        subscription = await bench.subscription(metadata='{"maxNotifications": 2}')
        ids = [await bench.notification(subscription=subscription) for _ in range(5)]
        other = lane_on(bench.notifications, sender, POLICY)
        second = Deliverer(other, bench.telemetry, concurrency=10, slots=500)
        # One after the other: two that claim in the same moment may wait for each other, for five seconds.
        await bench.deliverer.run_batch(2)
        await second.run_batch(3)
        await until(lambda: len(sender.messages) == 2)
        sender.gate.set()
        await asyncio.gather(bench.deliverer.finished(), second.finished())
        for id in ids:
            await bench.age(id, 30)
        await bench.drain()
        states = [(await bench.other.row(id))["fanout_status"] for id in ids]
        assert states == ["sent", "sent", "skipped", "skipped", "skipped"]
        assert len(sender.messages) == 2
        await second.drain(1)


@pytest.mark.clause("NTF-23")
async def test_one_that_waits_behind_another_is_sent_when_that_one_fails(bench: NotificationBench) -> None:
    refused = SendResult(status="failed", provider="smtp", error=SendError(SendErrorCode.UNAUTHORIZED, "no"))
    bench.memory.answer_next(refused)
    subscription = await bench.subscription(metadata='{"maxNotifications": 1}')
    first, second = [await bench.notification(subscription=subscription) for _ in range(2)]
    await bench.deliver()
    assert (await bench.other.row(first))["fanout_status"] == "failed"
    row = await bench.other.row(second)
    assert (row["fanout_status"], row["fanout_attempts"]) == ("pending", 0)
    await bench.age(second, 10)
    await bench.deliver()
    assert (await bench.other.row(second))["fanout_status"] == "sent"


# ── never again ──────────────────────────────────────────────────────────────────────────────────


class Turn:
    """A clock that stands still until it is told to go on, and a sender that waits for its turn."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class InLine:
    """Two mails are claimed; one is sent, the other waits for a token until it is released."""

    def __init__(self, bench: NotificationBench) -> None:
        self.bench = bench
        self.clock = Turn()
        self._released = asyncio.Event()
        look = bench.lane._last_look
        bench.lane._sender = ReliableMailSender(
            look, rate_per_second=10, burst=1, monotonic=self.clock, sleep=self._wait
        )
        look._monotonic = bench.lane._monotonic = bench.notifications._monotonic = self.clock

    async def _wait(self, _seconds: float) -> None:
        await self._released.wait()

    async def claim(self, **subscription: Any) -> int:
        """The id of the one that waits."""
        await self.bench.notification()
        id = await self.bench.notification(subscription=await self.bench.subscription(**subscription))
        await self.bench.deliverer.run_batch(2)
        await until(lambda: len(self.bench.memory.messages) == 1)
        return id

    async def release(self, after: float) -> int:
        """How many mails were sent after it had waited for so long."""
        self.clock.now += after
        self._released.set()
        await self.bench.deliverer.finished()
        return len(self.bench.memory.messages) - 1


@pytest.mark.clause("NTF-14", "NTF-21")
@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"status": "unsubscribed"}, "skipped", "unsubscribed"),
        ({"status": "paused"}, "skipped", "ineligible"),
        ({"contact_value": "somebody-else@example.org"}, "pending", None),
        ({"metadata": '{"preferences": {"snoozeUntil": "2099-01-01T00:00:00Z"}}'}, "pending", None),
        ({"last_notified_at": datetime(2026, 1, 1, tzinfo=UTC)}, "sent", None),
    ],
    ids=["unsubscribed", "paused", "another address", "snoozed", "nothing that matters"],
)
async def test_what_changes_while_a_claim_waits_for_its_turn_counts(
    bench: NotificationBench, change: dict[str, Any], status: str, code: str | None
) -> None:
    """The rate limit holds a mail back for a moment; somebody unsubscribes; it is not sent."""
    line = InLine(bench)
    id = await line.claim()
    await bench.other.change_subscription((await bench.other.row(id))["subscription_id"], **change)
    assert await line.release(after=0.25) == (status == "sent")
    row = await bench.other.row(id)
    assert row["fanout_status"] == status
    if code is not None:
        assert read_json(row["error"])["code"] == code
    if status == "pending":
        assert row["fanout_attempts"] == 0, "nothing was tried, so nothing is charged"


@pytest.mark.clause("NTF-17")
@pytest.mark.parametrize("how", ["a worker of ours", "a foreign worker", "ended by hand"])
async def test_what_is_no_longer_ours_when_its_turn_comes_is_not_sent(
    bench: NotificationBench, how: str
) -> None:
    line = InLine(bench)
    id = await line.claim()
    if how == "a worker of ours":
        await bench.age(id, 130)
        terms = Terms("worker-2", 120.0, 86400.0)
        assert await Notifications(bench.database, transition, terms=terms).claim(10)
    elif how == "a foreign worker":
        await bench.other.change(id, locked_by="theirs", locked_at=datetime.now(UTC))
    else:
        await bench.other.change(id, fanout_status="skipped")
    before = await bench.other.row(id)
    assert await line.release(after=0.25) == 0
    assert await bench.other.row(id) == before, "and nothing is written"


@pytest.mark.clause("NTF-23")
async def test_a_window_that_ends_while_a_claim_waits_for_its_turn_is_over(bench: NotificationBench) -> None:
    now = datetime.now(UTC)
    minute = now.hour * 60 + now.minute
    window = {"startMinutes": (minute - 60) % 1440, "endMinutes": (minute + 5) % 1440}
    line = InLine(bench)
    id = await line.claim(metadata=msgspec.json.encode({"deliveryWindow": window}).decode())
    assert await line.release(after=600) == 0
    row = await bench.other.row(id)
    assert (row["fanout_status"], row["fanout_attempts"]) == ("pending", 0)
    assert await bench.due_in(id), "it goes out when the window opens again"


@pytest.mark.clause("NTF-24")
async def test_an_event_that_expires_while_a_claim_waits_for_its_turn_is_no_news(
    bench: NotificationBench,
) -> None:
    line = InLine(bench)
    id = await line.claim()
    await bench.other.sql(
        "UPDATE open_events SET event_at = :at WHERE open_event_id = :id RETURNING 1 AS one",
        at=datetime.now(UTC) - timedelta(days=2),
        id=(await bench.other.row(id))["open_event_id"],
    )
    assert await line.release(after=0.25) == 0
    assert (await bench.other.row(id))["fanout_status"] == "expired"


async def test_a_claim_that_is_new_is_not_looked_at_twice(sqlite_url: str) -> None:
    async with notification_bench(sqlite_url) as bench:
        asked: list[int] = []
        standings = bench.notifications._standings

        async def counted(ids: Sequence[int]) -> list[Standing | None]:
            asked.extend(ids)
            return await standings(ids)

        bench.notifications.standing = Batched(counted)
        # On a busy machine the real one may not be new any more.
        clock = Turn()
        bench.lane._last_look._monotonic = bench.notifications._monotonic = clock
        for _ in range(20):
            await bench.notification()
        await bench.deliver()
        assert len(bench.memory.messages) == 20
        assert asked == []


# ── one by one, without the engine ───────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-20")
async def test_an_attempt_is_a_value(bench: NotificationBench) -> None:
    good = await bench.notification()
    await bench.notification(subscription=await bench.subscription(status="unsubscribed"))
    await bench.notification(await bench.event(payload=None))
    claims = await bench.notifications.claim(10)
    outcomes = [await bench.lane.attempt(claim) for claim in claims]
    assert [type(outcome) for outcome in outcomes] == [Delivered, Skip, Reject]
    assert claims[0].id == good
    described = bench.lane.describe(claims[0], None)
    assert set(described) == {"openEventId", "subscriptionId", "traceId"}


async def test_no_address_is_in_the_log(bench: NotificationBench) -> None:
    await bench.notification(subscription=await bench.subscription(contact_value="canary@example.org"))
    await bench.notification(subscription=await bench.subscription(contact_value="canary @@"))
    await bench.deliver()
    assert "canary" not in bench.log.text
    assert "delivery.attempted" in bench.log.text


@pytest.mark.clause("NTF-01")
async def test_the_other_writer_may_hold_its_lock_for_a_while(sqlite_url: str) -> None:
    """We wait for it, with everything: the claim, the settlement; nothing fails and nothing is sent twice."""
    async with notification_bench(sqlite_url) as bench:
        ids = [await bench.notification() for _ in range(5)]
        writer = sqlite3.connect(sqlite_path(sqlite_url), isolation_level=None, check_same_thread=False)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE subscriptions SET locale = 'en-US'")
        delivering = asyncio.create_task(bench.deliver())
        await asyncio.sleep(0.2)
        assert not delivering.done()
        await asyncio.to_thread(writer.execute, "COMMIT")
        await delivering
        writer.close()
        assert [(await bench.other.row(id))["fanout_status"] for id in ids] == ["sent"] * 5
        assert len(bench.memory.messages) == 5
        assert "warning" not in bench.log.text


@pytest.mark.clause("NTF-19")
async def test_the_mail_is_written_to_the_name_of_the_recipient(bench: NotificationBench) -> None:
    name = 'O"Hara \\ Ann, <x@example.org>'
    metadata = msgspec.json.encode({"name": name}).decode()
    await bench.notification(subscription=await bench.subscription(metadata=metadata))
    await bench.deliver()
    (message,) = bench.memory.messages
    (written,) = message.to
    assert parse_address(written) == (name, message.recipients[0])
