"""email_log from end to end: with a broker in memory for the logic, and RabbitMQ for what is said of it."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from uuid import uuid4

import aio_pika
import pytest
from tests.emails import EmailBench, email_bench, until

from homing.db import instant
from homing.errors import NotAllowed, Refused, SettingsError, Unreachable
from homing.lanes.email_log.queues import Unreadable, read_hint
from homing.lines import Feed
from homing.senders.mail import MailMessage, SendError, SendErrorCode, SendResult, Verdict
from homing.service import Stop, drain_once, run
from homing.settings import load_settings
from homing.workers.model import Identity, Own, Report

LATER = Verdict("deferred", 450, "4.2.0", "later")
NEVER = Verdict("rejected", 550, "5.1.1", "unknown")


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[EmailBench]:
    async with email_bench(database_url) as opened:
        yield opened


@pytest.fixture
def prefix() -> str:
    return f"test.{uuid4().hex}"


@pytest.fixture
async def rabbit(database_url: str, rabbitmq_url: str, prefix: str) -> AsyncIterator[EmailBench]:
    async with email_bench(database_url, email_broker_url=rabbitmq_url, email_queue_prefix=prefix) as opened:
        yield opened


def seconds_between(earlier: object, later: object) -> float:
    first, second = instant(earlier), instant(later)  # type: ignore[arg-type]  # as the database gives them
    assert first is not None
    assert second is not None
    return (second - first).total_seconds()


# ── from an order to a mail ──────────────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-03", "RTY-09", "RTY-19")
async def test_an_email_goes_through_rabbitmq(rabbit: EmailBench) -> None:
    ordered = await rabbit.order(messageKey="order-1")
    row = await rabbit.row(ordered.id)
    assert (row["status"], row["locked_until"]) == ("Pending", None)
    assert row["last_queued_at"] is not None, "the message was in the queue before the order was answered"
    assert rabbit.sender.messages == [], "and nothing was sent"
    assert await rabbit.consume() == 1
    row = await rabbit.row(ordered.id)
    assert (row["status"], row["attempt_count"], row["locked_until"]) == ("Sent", 0, None)
    assert row["completed_at"] is not None
    assert [address for address, _ in rabbit.sender.delivered] == ["ann@example.org"]
    assert await rabbit.messages() == []


@pytest.mark.clause("RTY-03", "RTY-09")
async def test_the_message_is_persistent_json_of_exactly_two_keys(
    rabbit: EmailBench, rabbitmq_url: str, prefix: str
) -> None:
    ordered = await rabbit.order(messageKey="order-1")
    async with await aio_pika.connect(rabbitmq_url) as connection:
        channel = await connection.channel()
        queue = await channel.get_queue(f"{prefix}.send")
        message = await queue.get()
        assert message is not None
        assert json.loads(message.body) == {"EmailId": ordered.id, "MessageKey": "order-1"}
        assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
        await message.ack()


@pytest.mark.clause("RTY-03")
async def test_a_queue_that_was_deleted_is_made_again(
    rabbit: EmailBench, rabbitmq_url: str, prefix: str
) -> None:
    await rabbit.order()
    async with await aio_pika.connect(rabbitmq_url) as connection:
        channel = await connection.channel()
        await channel.queue_delete(f"{prefix}.send")
    second = await rabbit.order()
    assert [json.loads(m.body)["EmailId"] for m in await rabbit.messages()] == [second.id]


@pytest.mark.clause("RTY-03")
def test_the_queues_have_the_specified_names() -> None:
    from homing.lanes.email_log.queues import queues_of

    queues = queues_of(load_settings(environ={}).email_queue_prefix)
    assert queues.send.name == "email.dispatcher.send"
    assert (queues.dead_letters.name, queues.send.dead_letters) == ("email.dispatcher.dlq",) * 2


async def test_sqs_serves_as_well(database_url: str, sqs_url: str, prefix: str) -> None:
    async with email_bench(database_url, email_broker_url=sqs_url, email_queue_prefix=prefix) as lane:
        ordered = await lane.order()
        # To make a queue may take longer than an order waits for it.

        async def is_queued() -> bool:
            return (await lane.row(ordered.id))["last_queued_at"] is not None

        await until(is_queued)
        await lane.consume()
        assert (await lane.row(ordered.id))["status"] == "Sent"


async def test_in_memory_the_scheduler_publishes_what_is_created(lane: EmailBench) -> None:
    ordered = await lane.order()
    assert (await lane.row(ordered.id))["last_queued_at"] is None
    await lane.deliver()
    assert (await lane.row(ordered.id))["status"] == "Sent"


async def test_a_row_of_another_program_is_a_complete_order(lane: EmailBench) -> None:
    (id,) = await lane.insert()
    await lane.deliver()
    row = await lane.row(id)
    assert row["status"] == "Sent"
    assert row["completed_at"] is not None, "its key is known from now on"


async def test_everything_a_mail_can_have_arrives(lane: EmailBench) -> None:
    await lane.order(
        to=["Ann <ann@example.org>"],
        cc="bo@example.org",
        bcc="cy@example.org",
        sender="Shop <orders@example.com>",
        replyTo="help@example.com",
        html="<p>Hello</p>",
        headers={"X-Order": "42"},
        unsubscribeUrl="https://example.com/u/1",
    )
    await lane.deliver()
    (message,) = lane.sender.messages
    assert message.recipients == ("ann@example.org", "bo@example.org", "cy@example.org")
    assert (message.sender, message.reply_to) == ("Shop <orders@example.com>", ("help@example.com",))
    assert (message.text, message.html, message.headers) == ("Hello.", "<p>Hello</p>", (("X-Order", "42"),))


@pytest.mark.parametrize("large", ["body", "html_body", "attachments"])
async def test_what_is_large_is_read_for_the_attempt_and_arrives_whole(lane: EmailBench, large: str) -> None:
    words = " ".join(map(str, range(20_000)))
    file = {"filename": "a.txt", "content": b64encode(words.encode()).decode()}
    given = {"body": words, "html_body": f"<p>{words}</p>", "attachments": json.dumps([file])}
    columns: dict[str, Any] = {large: given[large]}
    await lane.insert(**columns)
    await lane.deliver()
    (message,) = lane.sender.messages
    found = [message.text, message.html, *(file.content.decode() for file in message.attachments)]
    assert any(words in str(part) for part in found if part)


async def test_a_key_gives_back_its_first_email_or_says_that_it_is_another(lane: EmailBench) -> None:
    first = await lane.order(messageKey="k")
    again = await lane.order(messageKey="k")
    assert (again.id, again.verdict) == (first.id, "duplicate")
    with pytest.raises(NotAllowed, match=f"email_{first.id}"):
        await lane.order(messageKey="k", subject="Another")
    await lane.sql("DELETE FROM email_log WHERE id = :id RETURNING id", id=first.id)
    assert (await lane.order(messageKey="k")).id == first.id, "also when the email is long gone"


# ── the scheduler ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-01")
async def test_after_a_restart_the_database_alone_says_what_is_due(database_url: str) -> None:
    async with email_bench(database_url) as before:
        before.sender.answer("ann@example.org", LATER)
        ordered = await before.order()
        await before.deliver()
        await before.age(ordered.id)
    async with email_bench(database_url) as after:
        await after.deliver()
        assert (await after.row(ordered.id))["status"] == "Sent"


@pytest.mark.clause("RTY-01", "RTY-04")
async def test_it_runs_continuously_and_looks_every_interval(database_url: str) -> None:
    async with email_bench(database_url, email_retry_interval_seconds=0.1) as lane:
        stop = Stop()
        ready = asyncio.Event()
        service = asyncio.create_task(
            run(lane.homing, stop, api=False, work=["email_log"], ready=lambda _address: ready.set())
        )
        await ready.wait()
        for _ in range(3):
            # Nobody announces what another program writes.
            (id,) = await lane.insert()
            await until(partial(_is, lane, id, "Sent"))
        stop.ask()
        await service


async def _is(lane: EmailBench, id: int, status: str) -> bool:
    return bool((await lane.row(id))["status"] == status)


@pytest.mark.clause("RTY-04")
def test_the_settings_have_the_specified_defaults_and_names() -> None:
    settings = load_settings(environ={})
    assert settings.email_retry_interval_seconds == 60
    assert settings.email_max_attempts == 8
    assert settings.email_backoff_schedule == "1m,5m,15m,1h,3h,6h,12h,24h"
    assert settings.email_lease_seconds == 120
    environ = {
        "HOMING_EMAIL_RETRY_INTERVAL_SECONDS": "0.5",
        "HOMING_EMAIL_MAX_ATTEMPTS": "3",
        "HOMING_EMAIL_BACKOFF_SCHEDULE": "1s, 2.5m",
        "HOMING_EMAIL_LEASE_SECONDS": "30",
    }
    settings = load_settings(environ=environ)
    assert (settings.email_retry_interval_seconds, settings.email_max_attempts) == (0.5, 3)


@pytest.mark.clause("RTY-04")
@pytest.mark.parametrize("text", ["", "1", "1x", "0s", "-1m", "1m;5m", "31d", "1m,oops"])
def test_a_schedule_that_cannot_be_read_is_refused_with_words(text: str) -> None:
    with pytest.raises(SettingsError, match="HOMING_EMAIL_BACKOFF_SCHEDULE"):
        load_settings({"email_backoff_schedule": text}, environ={})


@pytest.mark.clause("RTY-05", "RTY-04", "RTY-14")
async def test_every_failure_waits_as_scheduled_and_the_eighth_is_the_last(lane: EmailBench) -> None:
    lane.sender.answer("ann@example.org", LATER)
    ordered = await lane.order()
    waits = []
    for attempt in range(1, 9):
        await lane.deliver()
        row = await lane.row(ordered.id)
        assert (row["attempt_count"], row["locked_until"]) == (attempt, None)
        assert row["last_error"].startswith("provider_error")
        if attempt < 8:
            assert row["status"] == "Failed"
            waits.append(round(seconds_between(row["last_attempt_at"], row["next_attempt_at"]) / 60))
            await lane.schedule()
            assert (await lane.row(ordered.id))["status"] == "Failed", "not before it is due"
            await lane.age(ordered.id)
    assert waits == [1, 5, 15, 60, 180, 360, 720]
    assert (row["status"], row["dead_reason"]) == ("Dead", "MaxAttemptsExceeded")
    assert len(lane.sender.messages) == 8
    assert len({message.message_id for message in lane.sender.messages}) == 1
    await lane.age(ordered.id)
    assert await lane.deliver() == 0


@pytest.mark.clause("RTY-06")
async def test_a_permanent_failure_is_dead_and_says_which_kind(lane: EmailBench) -> None:
    lane.sender.answer("ann@example.org", NEVER)
    refused = await lane.order()
    (no_template,) = await lane.insert(1, template="nowhere")
    (no_address,) = await lane.insert(1, to_address="not an address")
    await lane.deliver()
    rows = [await lane.row(id) for id in (refused.id, no_template, no_address)]
    assert {row["status"] for row in rows} == {"Dead"}
    assert [row["dead_reason"] for row in rows] == [
        "InvalidRecipient",
        "ValidationError",
        "InvalidRecipient",
    ]
    for row in rows:
        await lane.age(row["id"])
    assert await lane.deliver() == 0


@pytest.mark.clause("RTY-06")
async def test_a_refusal_in_the_last_attempt_is_no_exhaustion(database_url: str) -> None:
    async with email_bench(database_url, email_max_attempts=1) as lane:
        lane.sender.answer("ann@example.org", NEVER)
        lane.sender.answer("bo@example.org", LATER)
        refused, exhausted = await lane.order(), await lane.order(to="bo@example.org")
        await lane.deliver()
        reasons = [(await lane.row(one.id))["dead_reason"] for one in (refused, exhausted)]
        assert reasons == ["InvalidRecipient", "MaxAttemptsExceeded"]


@pytest.mark.clause("RTY-12", "RTY-13")
async def test_two_schedulers_publish_each_window_once(
    database_url: str, rabbitmq_url: str, prefix: str
) -> None:
    settings = {"email_broker_url": rabbitmq_url, "email_queue_prefix": prefix}
    async with email_bench(database_url, **settings) as one, email_bench(database_url, **settings) as other:
        ids = await one.insert(100, status="Failed", attempt_count=2)
        for id in ids:
            await one.shift(id, 5, "next_attempt_at")
        for _ in range(3):
            await asyncio.gather(*(bench.schedule(17) for bench in (one, other) for _ in range(3)))
        found = Counter(json.loads(m.body)["EmailId"] for m in await one.messages())
        assert found == Counter(ids)
        windows = Counter((line["EmailId"], line["AttemptCount"]) for line in
                          one.log.all("email.scheduled") + other.log.all("email.scheduled"))  # fmt: skip
        assert windows == Counter((id, 2) for id in ids)


@pytest.mark.clause("RTY-14")
async def test_the_dead_letter_queue_is_told_once_of_each_that_is_given_up(rabbit: EmailBench) -> None:
    rabbit.sender.answer("ann@example.org", NEVER)
    refused = await rabbit.order(messageKey="r")
    await rabbit.consume()
    (exhausted,) = await rabbit.insert(
        1, status="Failed", attempt_count=8, message_key="e", last_error="gone"
    )
    for _ in range(3):
        await rabbit.homing.email_schedule.maintenance.once()
    told = [json.loads(message.body) for message in await rabbit.messages(dead=True)]
    assert sorted(told, key=lambda one: str(one["MessageKey"])) == [
        {"EmailId": exhausted, "MessageKey": "e", "AttemptCount": 8, "DeadReason": "MaxAttemptsExceeded"},
        {"EmailId": refused.id, "MessageKey": "r", "AttemptCount": 1, "DeadReason": "InvalidRecipient"},
    ]
    assert (await rabbit.row(exhausted))["last_error"] == "gone"


@pytest.mark.clause("RTY-16")
async def test_without_a_broker_orders_are_taken_and_sent_when_it_is_back(
    database_url: str, rabbitmq_url: str, prefix: str
) -> None:
    async with email_bench(database_url, email_broker_url="amqp://127.0.0.1:1") as away:
        ordered = await away.order()
        row = await away.row(ordered.id)
        assert (row["status"], row["last_queued_at"], row["locked_until"]) == ("Pending", None, None)
        (tried,) = await away.insert(1, status="Failed", attempt_count=3, last_error="x")
        await away.shift(tried, 5, "next_attempt_at")
        before = await away.row(tried)
        assert await away.schedule() == {}, "nothing is claimed while the broker is known to be away"
        assert (await away.row(tried))["next_attempt_at"] == before["next_attempt_at"]
    async with email_bench(database_url, email_broker_url="amqp://127.0.0.1:1") as away:
        await away.schedule()
        row = await away.row(tried)
        assert (row["status"], row["attempt_count"], row["locked_until"]) == ("Failed", 3, None)
        assert row["next_attempt_at"] > before["next_attempt_at"]
        assert row["last_error"] == "x"
    async with email_bench(database_url, email_broker_url=rabbitmq_url, email_queue_prefix=prefix) as back:
        for id in (ordered.id, tried):
            await back.age(id)
        await back.deliver()
        assert await back.states([ordered.id, tried]) == ["Sent", "Sent"]


@pytest.mark.clause("RTY-16", "RTY-22")
async def test_what_was_in_a_queue_that_was_deleted_is_published_again(
    rabbit: EmailBench, rabbitmq_url: str, prefix: str
) -> None:
    ordered = await rabbit.order()
    async with await aio_pika.connect(rabbitmq_url) as connection:
        await (await connection.channel()).queue_delete(f"{prefix}.send")
    await rabbit.homing.email_schedule.maintenance.once()
    assert list(await rabbit.schedule()) == [ordered.id]
    assert await rabbit.consume() == 1
    assert (await rabbit.row(ordered.id))["status"] == "Sent"


@pytest.mark.clause("RTY-16", "RTY-22")
async def test_a_message_that_vanished_is_published_again_when_its_queue_stays_empty(
    database_url: str, rabbitmq_url: str, prefix: str
) -> None:
    settings = {"email_broker_url": rabbitmq_url, "email_queue_prefix": prefix, "email_lease_seconds": 1}
    async with email_bench(database_url, **settings) as rabbit:
        ordered = await rabbit.order()
        assert len(await rabbit.messages()) == 1, "somebody took it and did nothing"
        await rabbit.homing.email_schedule.maintenance.once()
        assert await rabbit.schedule() == {}, "one sighting says nothing"

        async def is_queued() -> bool:
            await rabbit.homing.email_schedule.maintenance.once()
            return list(await rabbit.schedule()) == [ordered.id]

        await until(is_queued)
        assert await rabbit.consume() == 1
        assert (await rabbit.row(ordered.id))["status"] == "Sent"


@pytest.mark.clause("RTY-12", "RTY-16", "RTY-22")
async def test_a_message_that_waits_in_its_queue_is_published_again_after_hours_only(
    database_url: str, rabbitmq_url: str, prefix: str
) -> None:
    """No sender comes for most of a day."""
    settings = {"email_broker_url": rabbitmq_url, "email_queue_prefix": prefix, "email_lease_seconds": 1}
    async with email_bench(database_url, **settings) as rabbit:
        ordered = await rabbit.order()
        for _ in range(70):
            await rabbit.age(ordered.id, 900)
            await rabbit.homing.email_schedule.maintenance.once()
            await rabbit.schedule()
        assert await rabbit.homing.email_broker.depth(rabbit.queues.send) == 3, "in 17.5 hours, 6 apart"
        assert await rabbit.consume() == 3
        assert len(rabbit.sender.messages) == 1


@pytest.mark.clause("RTY-16")
async def test_what_was_in_memory_is_published_again_after_a_minute(lane: EmailBench) -> None:
    ordered = await lane.order()
    await lane.schedule()
    assert len(await lane.messages(wait=0.05)) == 1, "as if its process had ended"
    await lane.age(ordered.id, 55)
    await lane.homing.email_schedule.maintenance.once()
    assert await lane.schedule() == {}
    await lane.age(ordered.id, 10)
    await lane.homing.email_schedule.maintenance.once()
    assert list(await lane.schedule()) == [ordered.id]


@pytest.mark.clause("RTY-20", "RTY-14")
async def test_a_process_without_the_broker_leaves_deaths_to_one_that_has_it(
    database_url: str, rabbitmq_url: str, prefix: str
) -> None:
    settings = {"email_broker_url": rabbitmq_url, "email_queue_prefix": prefix}
    async with email_bench(database_url, **settings) as worker, email_bench(database_url) as server:
        await worker.homing.email_schedule.maintenance.once()
        (id,) = await worker.insert(1, status="Dead", dead_reason="Bounced")
        for _ in range(2):
            await server.homing.email_schedule.maintenance.once()
        assert (await worker.row(id))["announced_at"] is None
        await worker.homing.email_schedule.maintenance.once()
        assert [json.loads(m.body)["EmailId"] for m in await worker.messages(dead=True)] == [id]
        assert (await worker.row(id))["announced_at"] is not None


@pytest.mark.clause("RTY-20")
async def test_where_no_process_has_a_broker_the_dead_are_counted_and_nobody_is_told_later(
    database_url: str, rabbitmq_url: str, prefix: str
) -> None:
    settings = {"email_broker_url": rabbitmq_url, "email_queue_prefix": prefix}
    async with email_bench(database_url) as lane:
        await lane.insert(2, status="Dead", dead_reason="Bounced")
        await lane.homing.email_schedule.maintenance.once()
        value = lane.homing.telemetry.registry.get_sample_value
        assert value("homing_emails_dead_total", {"reason": "Bounced"}) == 2
    async with email_bench(database_url, **settings) as later:
        await later.homing.email_schedule.maintenance.once()
        assert await later.messages(dead=True) == []


@pytest.mark.clause("RTY-20", "RTY-14")
@pytest.mark.parametrize(
    ("brokers", "waits"),
    [
        ({"email_log": "amqp://mq.example.com email.dispatcher.send"}, True),
        ({}, True),
        ({"email_log": "Memory:// email.dispatcher.send"}, False),
    ],
    ids=["has a broker", "does not say", "has none"],
)
@pytest.mark.parametrize("state", ["running", "stopped"])
async def test_deaths_wait_for_a_process_that_has_not_seen_its_queue_yet(
    lane: EmailBench, brokers: dict[str, str], state: Own, *, waits: bool
) -> None:
    """After an upgrade the first may be one without a broker; a version before does not say what it has."""
    who = Identity("other:1", "other", 1, "0.1.0", "boot", ("email_log",), serves=True)
    await lane.homing.fleet.beat(who, state, Report(brokers=brokers), up_seconds=60.0)
    (id,) = await lane.insert(1, status="Dead", dead_reason="Bounced")
    await lane.homing.email_schedule.maintenance.once()
    assert ((await lane.row(id))["announced_at"] is None) == waits


@pytest.mark.clause("RTY-17")
async def test_every_scheduling_action_is_a_line_in_the_log(database_url: str) -> None:
    async with email_bench(database_url, email_broker_url="amqp://127.0.0.1:1") as lane:
        (skipped,) = await lane.insert(1, status="Failed", attempt_count=3)
        (over,) = await lane.insert(1, status="Failed", attempt_count=8)
        for id in (skipped, over):
            await lane.shift(id, 5, "next_attempt_at")
        await lane.schedule()
        await lane.homing.email_schedule.maintenance.once()
        lines = {line["EmailId"]: line for line in lane.log.all("email.scheduled")}
    assert (lines[skipped]["Published"], lines[skipped]["Reason"]) == (False, "broker_unreachable")
    assert (lines[skipped]["AttemptCount"], lines[over]["AttemptCount"]) == (3, 8)
    assert (lines[over]["Published"], lines[over]["Reason"]) == (False, "MaxAttemptsExceeded")
    async with email_bench(database_url) as lane:
        await lane.age(skipped)
        await lane.schedule()
        (line,) = lane.log.all("email.scheduled")
        assert (line["EmailId"], line["Published"], line["Reason"]) == (skipped, True, None)
        assert line["NextAttemptAt"]
        assert "example.org" not in lane.log.text


@pytest.mark.clause("RTY-17")
async def test_a_publish_that_was_called_off_is_a_line_too(lane: EmailBench) -> None:
    """A consumer took the row while the broker kept us waiting for its word, and the lease was lost to it."""
    waiting = asyncio.Event()

    async def silent(_queue: object, _publications: object) -> list[None]:
        waiting.set()
        await asyncio.sleep(3600)
        return []

    lane.homing.email_broker.publish = silent  # type: ignore[method-assign, assignment]
    (id,) = await lane.insert()
    deliverer = lane.homing.email_schedule.deliverer
    (claim,) = await deliverer.run_batch(10)
    await waiting.wait()
    await deliverer.drain(0)
    (line,) = lane.log.all("email.scheduled")
    assert (line["EmailId"], line["Published"], line["Reason"]) == (id, False, "called_off")
    assert claim.id == id


@pytest.mark.clause("RTY-18")
async def test_metrics_tell_what_is_due_requeued_and_dead(lane: EmailBench) -> None:
    value = lane.homing.telemetry.registry.get_sample_value
    lane.sender.answer("ann@example.org", LATER)
    ordered = await lane.order()
    await lane.deliver()
    assert value("homing_emails_requeued_total") == 0, "the first time is no retry"
    await lane.age(ordered.id)
    await lane.homing.email_schedule.backlog.refresh()
    assert value("homing_messages", {"lane": "email_log:schedule", "state": "due"}) == 1
    await lane.schedule()
    assert value("homing_emails_requeued_total") == 1
    await lane.insert(1, status="Failed", attempt_count=8)
    await lane.homing.email_schedule.maintenance.once()
    assert value("homing_emails_dead_total", {"reason": "MaxAttemptsExceeded"}) == 1
    await lane.homing.email_send.backlog.refresh()
    assert value("homing_messages", {"lane": "email_log", "state": "Dead"}) == 1
    assert (
        value(
            "homing_attempts_total",
            {"lane": "email_log:send", "outcome": "retry", "error_code": "provider_error"},
        )
        == 1
    )


# ── the sender ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-12", "RTY-19")
async def test_a_duplicate_never_sends_twice(rabbit: EmailBench) -> None:
    first, second = await rabbit.order(), await rabbit.order()
    (body, other) = [message.body for message in await rabbit.messages()]
    await rabbit.publish(body, other, body, other, body)
    assert await rabbit.consume() == 5
    await rabbit.publish(body, body)
    assert await rabbit.consume() == 2
    sent = Counter(message.dedupe_key for message in rabbit.sender.messages)
    assert sorted(sent.values()) == [1, 1]
    assert await rabbit.states([first.id, second.id]) == ["Sent", "Sent"]
    reasons = {line["Reason"] for line in rabbit.log.all("email.dropped")}
    assert reasons <= {"it is Sent", "another worker has it, or it is beyond the limit"}
    assert len(rabbit.log.all("email.dropped")) == 5
    assert await rabbit.messages() == []


@pytest.mark.clause("RTY-12")
async def test_a_message_of_an_older_window_sends_nothing_twice(lane: EmailBench) -> None:
    lane.sender.answer_next(
        SendResult(status="retryable", provider="memory", error=SendError(SendErrorCode.NETWORK_ERROR, "x"))
    )
    ordered = await lane.order()
    await lane.schedule()
    (message,) = await lane.messages(wait=0.05)
    await lane.publish(message.body, message.body)
    await lane.consume()
    assert (await lane.row(ordered.id))["status"] == "Failed"
    assert len(lane.sender.messages) == 1, "the second found a row that waits for its time"
    await lane.age(ordered.id)
    await lane.schedule()
    await lane.publish(message.body)
    await lane.consume()
    assert (await lane.row(ordered.id))["status"] == "Sent"
    assert len(lane.sender.messages) == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b"[]", b"{}", b'{"EmailId": 1}', b'{"EmailId": "1 ", "MessageKey": "k"}', b"\xff\xfe",
     b'{"EmailId": "", "MessageKey": "k"}', b'{"EmailId": "0", "MessageKey": "k"}',
     b'{"EmailId": "-1", "MessageKey": "k"}', b'{"EmailId": "9999999999999999999", "MessageKey": "k"}',
     b'{"EmailId": "1\\n", "MessageKey": "k"}', b'{"EmailId": 0, "MessageKey": "k"}', b"[" * 100_000,
     b'{"EmailId": true, "MessageKey": "k"}', b'{"EmailId": 1e400, "MessageKey": "k"}',
     b'{"EmailId": 99999999999999999999, "MessageKey": "k"}', b'{"EmailId": 1, "MessageKey": ""}',
     b'{"EmailId": 1, "MessageKey": "a\\u0000b"}', b'{"EmailId": 1, "MessageKey": "a\\n"}',
     b'{"EmailId": 1, "MessageKey": "' + b"k" * 256 + b'"}'],
)  # fmt: skip
def test_what_is_no_message_of_ours_is_refused_with_a_reason(body: bytes) -> None:
    found = read_hint(body)
    assert isinstance(found, Unreadable)
    assert 0 < len(found.reason) <= 200


@pytest.mark.clause("RTY-03", "RTY-19")
async def test_what_nobody_can_read_goes_to_the_dead_letters_and_blocks_nobody(rabbit: EmailBench) -> None:
    await rabbit.publish(b"nonsense", b'{"EmailId": 1}')
    ordered = await rabbit.order()
    assert await rabbit.consume() == 3
    assert (await rabbit.row(ordered.id))["status"] == "Sent"
    buried = await rabbit.messages(dead=True)
    assert sorted(message.body for message in buried) == [b"nonsense", b'{"EmailId": 1}']
    assert all(message.reason for message in buried)
    assert await rabbit.messages() == []


@pytest.mark.clause("RTY-19")
async def test_as_many_poisoned_messages_as_a_process_holds_block_nobody(
    database_url: str, rabbitmq_url: str, prefix: str
) -> None:
    settings = {"email_broker_url": rabbitmq_url, "email_queue_prefix": prefix, "email_prefetch": 3}
    async with email_bench(database_url, **settings) as rabbit:
        poison = b'{"EmailId": 1, "MessageKey": "a\\u0000b"}'
        await rabbit.publish(poison, poison, poison)
        ordered = [await rabbit.order() for _ in range(4)]
        feed = rabbit.homing.email_send.worker()
        running = asyncio.create_task(feed.run())
        await until(lambda: _is(rabbit, ordered[-1].id, "Sent"))
        await until(lambda: _buried(rabbit, 3))
        feed.stop()
        await running
        assert [message.body for message in await rabbit.messages(dead=True)] == [poison] * 3


async def _buried(lane: EmailBench, count: int) -> bool:
    return await lane.homing.email_broker.depth(lane.queues.dead_letters) == count


async def test_what_the_database_refuses_is_buried_with_a_reason_and_not_asked_again(
    lane: EmailBench,
) -> None:
    refused, taken = await lane.order(messageKey="refused"), await lane.order(messageKey="taken")
    await lane.schedule()
    claim, asked = lane.emails.run, 0

    async def picky(name: str, **parameters: object) -> object:
        nonlocal asked
        if name == "claim_these" and "refused" in str(parameters["batch"]):
            asked += 1
            raise Refused("no such value")
        return await claim(name, **parameters)

    lane.emails.run = picky  # type: ignore[method-assign, assignment]
    assert await asyncio.wait_for(lane.consume(), 60) == 2
    assert await lane.states([refused.id, taken.id]) == ["Pending", "Sent"]
    (buried,) = await lane.messages(dead=True, wait=0.05)
    assert "no such value" in (buried.reason or "")
    assert asked <= 2, "with the others, and alone"


@pytest.mark.clause("RTY-19")
async def test_a_message_is_acknowledged_only_after_its_row_is_settled(lane: EmailBench) -> None:
    """The settlement hangs in the database; whoever stops the process now gets the message again."""
    ordered = await lane.order()
    await lane.schedule()
    settling, may_settle = asyncio.Event(), asyncio.Event()
    settle = lane.emails.settle

    async def slow(batch: object) -> set[int]:
        settling.set()
        await may_settle.wait()
        return await settle(batch)  # type: ignore[arg-type]  # passed on as it came

    lane.emails.settle = slow  # type: ignore[method-assign]
    feed = lane.homing.email_send.worker()
    running = asyncio.create_task(feed.run())
    await settling.wait()
    assert len(lane.sender.messages) == 1
    assert isinstance(feed, Feed)
    assert feed._pump.in_flight == 1, "sent, and the broker still holds it for us"
    may_settle.set()
    await until(lambda: _is(lane, ordered.id, "Sent"))
    feed.stop()
    await running
    await feed.finish()
    assert await lane.messages(wait=0.05) == []


@pytest.mark.clause("RTY-19")
async def test_a_stop_gives_back_what_it_could_not_finish_and_another_sends_it(
    database_url: str, rabbitmq_url: str, prefix: str
) -> None:
    settings = {"email_broker_url": rabbitmq_url, "email_queue_prefix": prefix, "grace_seconds": 0.1}
    async with email_bench(database_url, **settings) as slow:
        started = asyncio.Event()

        async def never(message: MailMessage) -> SendResult:
            started.set()
            await asyncio.sleep(3600)
            raise AssertionError(message)

        slow.sender.send = never  # type: ignore[method-assign]
        ordered = await slow.order()
        stop, ready = Stop(), asyncio.Event()
        service = asyncio.create_task(
            run(slow.homing, stop, api=False, work=["email_log:send"], ready=lambda _address: ready.set())
        )
        await started.wait()
        stop.ask()
        await service
        row = await slow.row(ordered.id)
        assert (row["status"], row["locked_by"], row["attempt_count"]) == ("Pending", None, 0)
    async with email_bench(database_url, **settings) as other:
        assert await other.consume() == 1
        assert (await other.row(ordered.id))["status"] == "Sent"


@pytest.mark.clause("RTY-19")
async def test_a_stop_keeps_a_message_from_others_until_its_row_is_free(
    database_url: str, rabbitmq_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gets it earlier finds a locked row, and drops the only message there is."""
    monkeypatch.setattr("homing.lines._LAST_ACKNOWLEDGEMENTS", 0.1)
    settings = {"email_broker_url": rabbitmq_url, "email_queue_prefix": prefix}
    async with email_bench(database_url, **settings) as slow, email_bench(database_url, **settings) as other:
        started = asyncio.Event()

        async def never(message: MailMessage) -> SendResult:
            started.set()
            await asyncio.sleep(3600)
            raise AssertionError(message)

        slow.sender.send = never  # type: ignore[method-assign]
        ordered = await slow.order()
        feeds = [slow.homing.email_send.worker()]
        running = [asyncio.create_task(feeds[0].run())]
        await started.wait()
        feeds.append(other.homing.email_send.worker())
        running.append(asyncio.create_task(feeds[1].run()))
        slow.homing.email_send.claim_no_more()
        await slow.homing.email_send.drain(1.0)
        await until(lambda: _is(other, ordered.id, "Sent"))
        assert other.log.all("email.dropped") == []
        feeds[1].stop()
        await asyncio.gather(*running)


async def test_while_the_relay_is_away_messages_wait_and_cost_nothing(lane: EmailBench) -> None:
    lane.sender.is_available = False
    ordered = await lane.order()
    await lane.schedule()
    feed = lane.homing.email_send.worker()
    running = asyncio.create_task(feed.run())
    await asyncio.sleep(0.15)
    row = await lane.row(ordered.id)
    assert (row["status"], row["locked_by"], row["attempt_count"]) == ("Pending", None, 0)
    lane.sender.is_available = True
    await until(lambda: _is(lane, ordered.id, "Sent"))
    feed.stop()
    await running


async def test_while_the_database_is_away_messages_wait_and_are_not_given_back(lane: EmailBench) -> None:
    ordered = await lane.order()
    await lane.schedule()
    claim, failures = lane.emails.run, iter([Unreachable("gone"), Unreachable("gone")])

    async def away(name: str, **parameters: object) -> object:
        if name == "claim_these" and (error := next(failures, None)):
            raise error
        return await claim(name, **parameters)

    lane.emails.run = away  # type: ignore[method-assign, assignment]
    assert await lane.consume() == 1
    assert (await lane.row(ordered.id))["status"] == "Sent"
    assert len(lane.log.all("claim.failed")) == 2


async def test_messages_that_come_together_are_claimed_and_settled_together(
    lane: EmailBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.lanes.email_log.consuming._HOLD_SECONDS", 0.1)
    await asyncio.gather(*(lane.order() for _ in range(100)))
    await lane.schedule()
    claim, claims = lane.emails.claim_these, 0

    async def counted(hints: object) -> object:
        nonlocal claims
        claims += 1
        return await claim(hints)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(lane.homing.email_send.lane.store, "claim_these", counted)
    assert await lane.consume() == 100
    assert len(lane.sender.messages) == 100
    assert claims <= 3


async def test_a_lone_message_waits_for_no_company(lane: EmailBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homing.lanes.email_log.consuming._HOLD_SECONDS", 3600.0)
    ordered = await lane.order()
    await lane.schedule()
    await asyncio.wait_for(lane.consume(), 60)
    assert (await lane.row(ordered.id))["status"] == "Sent"


@pytest.mark.clause("RTY-19")
async def test_a_redelivery_while_its_sender_lives_is_dropped_and_after_its_death_published_again(
    lane: EmailBench,
) -> None:
    from homing.engine.model import Claim
    from homing.lanes.email_log.queues import Hint

    ordered = await lane.order()
    await lane.schedule()
    (message,) = await lane.messages(wait=0.05)
    (claim,) = await lane.emails.claim_these([Hint(ordered.id, ordered.message_key)])
    assert isinstance(claim, Claim), "a sender has it, and will die"
    await lane.publish(message.body)
    assert await lane.consume() == 1
    assert lane.sender.messages == []
    await lane.age(ordered.id)
    await lane.homing.email_send.maintenance.once()
    await lane.deliver()
    assert (await lane.row(ordered.id))["status"] == "Sent"
    assert len(lane.sender.messages) == 1


async def test_a_busy_relay_costs_no_attempt(lane: EmailBench) -> None:
    error = SendError(SendErrorCode.RATE_LIMITED, "421 busy")
    lane.sender.answer_next(SendResult(status="retryable", provider="memory", error=error, attempted=False))
    ordered = await lane.order()
    await lane.deliver()
    row = await lane.row(ordered.id)
    assert (row["status"], row["attempt_count"], row["defer_count"]) == ("Failed", 0, 1)
    await lane.age(ordered.id)
    await lane.deliver()
    assert (await lane.row(ordered.id))["status"] == "Sent"


async def test_once_delivers_what_is_due_and_ends(lane: EmailBench) -> None:
    ids = [(await lane.order()).id for _ in range(20)]
    count = await drain_once(lane.homing, Stop(), ["email_log"])
    assert count >= 20
    assert set(await lane.states(ids)) == {"Sent"}


async def test_once_ends_also_when_nothing_can_be_sent(lane: EmailBench) -> None:
    ordered = await lane.order()
    lane.sender.is_available = False
    await drain_once(lane.homing, Stop(), ["email_log"])
    assert (await lane.row(ordered.id))["status"] == "Pending"


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-15")
async def test_a_dead_email_is_requeued_with_all_attempts_to_those_who_lack_it(lane: EmailBench) -> None:
    lane.sender.answer("bo@example.org", NEVER)
    ordered = await lane.order(to=["ann@example.org", "bo@example.org"])
    await lane.deliver()
    assert (await lane.row(ordered.id))["status"] == "Dead"
    lane.sender.answer("bo@example.org", Verdict("accepted"))
    assert await lane.emails.requeue([ordered.id]) == [ordered.id]
    row = await lane.row(ordered.id)
    assert (row["status"], row["attempt_count"], row["dead_reason"]) == ("Pending", 0, None)
    await lane.deliver()
    assert (await lane.row(ordered.id))["status"] == "Sent"
    assert [address for address, _ in lane.sender.delivered] == ["ann@example.org", "bo@example.org"]
    assert await lane.emails.requeue([ordered.id]) == [], "what is sent stays sent"


async def test_whoever_gives_up_waiting_ends_nobody_elses_wait(lane: EmailBench) -> None:
    """An order is answered after a second, and a stop waits for the same row."""
    await lane.insert()
    deliverer = lane.homing.email_schedule.deliverer
    claims = await deliverer.run_batch(10)
    impatient = asyncio.create_task(deliverer.settled(claims))
    patient = asyncio.create_task(deliverer.settled(claims))
    await asyncio.sleep(0)
    impatient.cancel()
    assert set(await patient) == {claim.id for claim in claims}
