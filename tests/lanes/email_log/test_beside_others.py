"""One half of the lane is another program's: a sender, a scheduler, a producer, or an SQL console."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from itertools import product
from typing import Any
from uuid import uuid4

import aio_pika
import pytest
from tests.conftest import IN_FULL
from tests.emails import EmailBench, email_bench, until
from tests.foreign_emails import (
    DEAD,
    FAILED,
    LOCKED,
    SENT,
    Console,
    Scheduler,
    Sender,
    console,
    consuming,
    publish,
    publishing,
)

from homing.engine.model import Claim, Complete
from homing.lanes.email_log.email import Held
from homing.lanes.email_log.queues import Hint
from homing.senders.mail import Verdict

NEVER = Verdict("rejected", 550, "5.1.1", "unknown")
LATER = Verdict("deferred", 450, "4.2.0", "later")
#: The race of RTY-21: rows, and how often it is run.
ROWS, ROUNDS = (2000, 10) if IN_FULL else (300, 1)


@pytest.fixture
def prefix() -> str:
    return f"test.{uuid4().hex}"


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[Console]:
    async with console(database_url) as opened:
        yield opened


@pytest.fixture
async def lane(database_url: str, rabbitmq_url: str, prefix: str) -> AsyncIterator[EmailBench]:
    async with email_bench(database_url, email_broker_url=rabbitmq_url, email_queue_prefix=prefix) as opened:
        yield opened


async def make_queue(lane: EmailBench) -> str:
    await lane.homing.email_broker.publish(lane.queues.send, [])
    return lane.queues.send.name


async def insert(sql: Console, rows: int, **columns: Any) -> list[int]:
    """As another program writes them."""
    values = {"to_address": "ann@example.org", "subject": "Hi", "body": "Hello.", **columns}
    names, marks = ", ".join(values), ", ".join([f"({', '.join('?' * len(values))})"] * rows)
    statement = f"INSERT INTO email_log ({names}) VALUES {marks} RETURNING id"
    return sorted(row[0] for row in await sql(statement, *(list(values.values()) * rows)))


async def statuses(sql: Console) -> Counter[str]:
    rows = await sql("SELECT status, count(*) FROM email_log GROUP BY status")
    return Counter(dict(rows))


async def schedule_all(lane: EmailBench) -> None:
    while await lane.schedule():
        pass


# ── their sender beside our scheduler ────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-21", "RTY-12")
@pytest.mark.timeout(7200 if IN_FULL else 240)
@pytest.mark.parametrize(
    ("answer", "ends"),
    [((SENT,), "Sent"), ((FAILED,), "Failed"), ((LOCKED, DEAD), "Dead")],
    ids=["sent", "failed", "dead"],
)
async def test_a_sender_that_answers_at_once_is_never_overwritten(
    lane: EmailBench, sql: Console, rabbitmq_url: str, answer: tuple[str, ...], ends: str
) -> None:
    queue = await make_queue(lane)
    for _ in range(ROUNDS):
        await sql("DELETE FROM email_log")
        ids = await insert(sql, ROWS, status="Failed", attempt_count=2)
        sender = Sender(sql, *answer)
        async with consuming(rabbitmq_url, queue, sender):
            await schedule_all(lane)
            await until(partial(_answered, sender, ids), 600)
            # One round gives up the claims of a thousand.
            for _ in range(ROWS // 1000 + 1):
                await lane.homing.email_schedule.maintenance.once()
                await lane.homing.email_send.maintenance.once()
            await schedule_all(lane)
        assert await statuses(sql) == Counter({ends: ROWS})
        repeated = {id for id, times in sender.received.items() if times > 1}
        assert repeated <= unconfirmed(lane), "no message twice"
        (held,) = await sql("SELECT count(*) FROM email_log WHERE locked_by IS NOT NULL")
        assert held == (0,), "nothing says that we hold it"
        assert await lane.homing.email_broker.depth(lane.queues.send) == 0
        assert sender.content_types == {"application/json"}


def unconfirmed(lane: EmailBench) -> set[int]:
    """What the broker did not confirm in time, as on a busy machine, is published again (RTY-16)."""
    lines = lane.log.all("email.scheduled")
    return {line["EmailId"] for line in lines if line["Reason"] == "broker_unconfirmed"}


async def _answered(sender: Sender, ids: list[int]) -> bool:
    return set(ids) <= set(sender.received) and sender.answered == sender.received.total()


@pytest.mark.clause("RTY-21")
async def test_our_lock_is_none_that_another_program_would_write(lane: EmailBench, sql: Console) -> None:
    """It writes whole seconds by datetime(). One in a thousand of our leases was the same."""
    await insert(sql, 20, status="Failed", attempt_count=2)
    await lane.due.claim(20)
    ours = {str(row[0]) for row in await sql("SELECT locked_until FROM email_log")}
    assert len(ours) == 1
    assert lane.is_postgres or ours.pop().endswith("7Z")


@pytest.mark.clause("RTY-21")
@pytest.mark.parametrize("statement", [SENT, FAILED, DEAD, LOCKED], ids=["sent", "failed", "dead", "locked"])
@pytest.mark.parametrize("published", [True, False])
async def test_what_a_sender_wrote_after_the_publish_stays(
    lane: EmailBench, sql: Console, statement: str, *, published: bool
) -> None:
    """Without a race: the message is out, and the scheduler has not yet heard of the confirmation."""
    from homing.engine.model import Complete, Failure, RetryIn

    (retried,) = await insert(sql, 1, status="Failed", attempt_count=2)
    (claim,) = await lane.due.claim(10)
    (created,) = await lane.emails.enqueue([_new_email()], publish=True)
    assert created.claim is not None
    for id in (retried, created.id):
        await sql(statement, id)
    columns = "id, status, attempt_count, next_attempt_at, locked_until, last_queued_at, last_error"
    before = await sql(f"SELECT {columns} FROM email_log ORDER BY id")
    settlement = Complete() if published else RetryIn(1.0, Failure("network_error", "gone"))
    await lane.due.settle([(claim, settlement), (created.claim, settlement)])
    assert await lane.due.renew([claim, created.claim]) == set()
    assert await lane.due.release([claim, created.claim]) == set()
    assert await sql(f"SELECT {columns} FROM email_log ORDER BY id") == before
    await lane.emails.rescue(10)
    assert await sql(f"SELECT {columns} FROM email_log ORDER BY id") == before
    assert await sql("SELECT count(*) FROM email_log WHERE locked_by IS NOT NULL") == [(0,)]


def _new_email() -> Any:
    from homing.lanes.email_log.orders import EmailRequest, order_of

    return order_of(EmailRequest(to="ann@example.org", subject="Hi", body="Hello."))


@pytest.mark.clause("RTY-21")
@pytest.mark.parametrize("statement", [SENT, FAILED, DEAD, LOCKED], ids=["sent", "failed", "dead", "locked"])
async def test_what_another_sender_wrote_while_ours_was_sending_stays(
    lane: EmailBench, sql: Console, statement: str
) -> None:
    """Ours was stopped for longer than its lease, and the message came to the other one."""
    (id,) = await insert(sql, 1)
    key = (await lane.row(id))["message_key"]
    (claim,) = await lane.emails.claim_these([Hint(id, key)])
    assert isinstance(claim, Claim)
    await sql(statement, id)
    before = await sql("SELECT status, attempt_count, locked_until FROM email_log")
    assert await lane.emails.settle([(claim, Complete())]) == set()
    assert await lane.emails.renew([claim]) == set()
    await lane.emails.rescue(10)
    assert await lane.emails.confirm([claim]) == set()
    assert await sql("SELECT status, attempt_count, locked_until FROM email_log") == before


@pytest.mark.clause("RTY-20", "RTY-18", "RTY-14")
async def test_what_another_sender_wrote_is_counted_and_its_dead_are_announced(
    lane: EmailBench, sql: Console, rabbitmq_url: str
) -> None:
    queue = await make_queue(lane)
    ids = await insert(sql, 3)
    later = await insert(sql, 1, status="Failed", attempt_count=3)
    async with consuming(rabbitmq_url, queue, Sender(sql, DEAD)):
        await schedule_all(lane)
        await until(lambda: _are(sql, "Dead", 4))
    for _ in range(2):
        await lane.homing.email_schedule.maintenance.once()
    told = [json.loads(message.body) for message in await lane.messages(dead=True)]
    assert sorted(one["EmailId"] for one in told) == sorted(ids + later)
    assert {one["DeadReason"] for one in told} == {"Bounced"}
    value = lane.homing.telemetry.registry.get_sample_value
    assert value("homing_emails_dead_total", {"reason": "Bounced"}) == 4
    assert value("homing_emails_requeued_total") == 1


async def _are(sql: Console, status: str, count: int) -> bool:
    return (await statuses(sql))[status] == count


# ── their scheduler beside our sender ────────────────────────────────────────────────────────────

OPTIONS: list[Any] = [
    {"marks_claims": marks, "ends": ends, "clears_lock": clears, "notes_time": notes}
    for marks, ends, clears, notes in product(
        (True, False), ("Pending", "RetryQueued"), (True, False), (True, False)
    )
]


@pytest.mark.clause("RTY-23", "RTY-19")
async def test_our_sender_sends_what_any_scheduler_has_published(
    lane: EmailBench, sql: Console, rabbitmq_url: str
) -> None:
    """Every choice that steps B and D leave to it; also when the message is there before step D."""
    queue = await make_queue(lane)
    async with publishing(rabbitmq_url) as channel:
        for options, settles in product(OPTIONS, (True, False)):
            (id,) = await insert(sql, 1, status="Failed", attempt_count=2)
            scheduler = Scheduler(sql, channel, queue, **options)
            assert await scheduler.once(settles=settles) == [id]
            await lane.homing.email_schedule.maintenance.once()
            assert await lane.consume() == 1
            assert (await lane.row(id))["status"] == "Sent", (options, settles)
    assert len(lane.sender.messages) == len(OPTIONS) * 2
    assert await lane.messages(dead=True) == []


@pytest.mark.clause("RTY-22", "RTY-12")
async def test_our_scheduler_publishes_nothing_that_another_has_published(
    lane: EmailBench, sql: Console, rabbitmq_url: str
) -> None:
    """A lock that it keeps is respected until it is over: then it has died, as far as anybody can tell."""
    queue = await make_queue(lane)
    async with publishing(rabbitmq_url) as channel:
        for options in OPTIONS:
            ids = await insert(sql, 1, status="Failed", attempt_count=2)
            assert await Scheduler(sql, channel, queue, **options).once() == ids
    await lane.homing.email_schedule.maintenance.once()
    assert await lane.schedule() == {}
    found = Counter(json.loads(message.body)["EmailId"] for message in await lane.messages())
    assert set(found.values()) == {1}


@pytest.mark.clause("RTY-23")
async def test_a_message_with_more_in_it_or_digits_for_an_id_is_read(
    lane: EmailBench, sql: Console, rabbitmq_url: str
) -> None:
    queue = await make_queue(lane)
    more, digits = await insert(sql, 2)
    keys: dict[int, str] = dict(await sql("SELECT id, message_key FROM email_log"))
    async with publishing(rabbitmq_url) as channel:
        await publish(channel, queue, {"EmailId": more, "MessageKey": keys[more], "QueuedBy": "them", "N": 1})
        await publish(channel, queue, {"EmailId": str(digits), "MessageKey": keys[digits]})
    assert await lane.consume() == 2
    assert await lane.states([more, digits]) == ["Sent", "Sent"]
    assert await lane.messages(dead=True) == []


@pytest.mark.clause("RTY-23")
async def test_a_redelivery_waits_while_somebody_may_be_sending(
    database_url: str, sql: Console, rabbitmq_url: str, prefix: str
) -> None:
    """A sender of theirs locked the row and died. Its message is the only one, so it must not be dropped."""
    settings = {"email_broker_url": rabbitmq_url, "email_queue_prefix": prefix}
    async with email_bench(database_url, **settings) as lane:
        queue = await make_queue(lane)
        (id,) = await insert(sql, 1)
        key = (await lane.row(id))["message_key"]
        async with publishing(rabbitmq_url) as channel:
            await publish(channel, queue, {"EmailId": id, "MessageKey": key})
        connection = await aio_pika.connect(rabbitmq_url)
        theirs = await (await connection.channel()).get_queue(queue)
        assert await theirs.get() is not None
        await sql(LOCKED, id)
        await connection.close()
        (held,) = await lane.emails.claim_these([Hint(id, key, redelivered=True)])
        assert isinstance(held, Held)
        assert 100 < held.seconds <= 120
        if lane.is_postgres:
            await sql("UPDATE email_log SET locked_until = now() + interval '3 seconds'")
        else:
            await sql("UPDATE email_log SET locked_until = datetime('now', '+3 seconds')")
        feed = lane.homing.email_send.worker()
        running = asyncio.create_task(feed.run())
        await until(lambda: _are(sql, "Sent", 1))
        feed.stop()
        await running
        assert len(lane.sender.messages) == 1
        assert lane.log.all("email.dropped") == []


@pytest.mark.clause("RTY-23")
async def test_a_plain_durable_declare_of_theirs_finds_a_classic_queue(
    database_url: str, rabbitmq_url: str, prefix: str
) -> None:
    settings = {"email_broker_url": rabbitmq_url, "email_queue_prefix": prefix, "email_queue_type": "classic"}
    async with email_bench(database_url, **settings) as lane:
        ordered = await lane.order()
        async with await aio_pika.connect(rabbitmq_url) as connection:
            channel = await connection.channel()
            for queue in (lane.queues.send.name, lane.queues.dead_letters.name):
                await channel.declare_queue(queue, durable=True)
        await lane.publish(b"nonsense")
        assert await lane.consume() == 2
        assert (await lane.row(ordered.id))["status"] == "Sent"
        assert [message.body for message in await lane.messages(dead=True)] == [b"nonsense"]


@pytest.mark.clause("RTY-23", "RTY-03")
async def test_a_quorum_queue_is_found_by_the_declare_that_is_documented(
    lane: EmailBench, rabbitmq_url: str
) -> None:
    await lane.order()
    documented: Any = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": lane.queues.dead_letters.name,
        "x-delivery-limit": 19,
    }
    async with await aio_pika.connect(rabbitmq_url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(lane.queues.send.name, durable=True, arguments=documented)


@pytest.mark.clause("RTY-23", "RTY-03")
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 5}], ids=["plain", "priorities"])
async def test_a_queue_is_used_as_it_is_found(
    lane: EmailBench, rabbitmq_url: str, arguments: dict[str, Any]
) -> None:
    async with await aio_pika.connect(rabbitmq_url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(lane.queues.send.name, durable=True, arguments=arguments)
        ordered = await lane.order()
        assert await lane.consume() == 1
        assert (await lane.row(ordered.id))["status"] == "Sent"


# ── their producer ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-22")
@pytest.mark.parametrize("notes_time", [True, False])
async def test_a_producer_that_publishes_itself_has_one_message_for_each(
    database_url: str, sql: Console, rabbitmq_url: str, prefix: str, *, notes_time: bool
) -> None:
    settings = {
        "email_broker_url": rabbitmq_url, "email_queue_prefix": prefix, "email_publish_new": False,
    }  # fmt: skip
    async with email_bench(database_url, **settings) as lane:
        queue = await make_queue(lane)
        ids = await insert(sql, 20)
        await lane.schedule()
        async with publishing(rabbitmq_url) as channel:
            for id, key in await sql("SELECT id, message_key FROM email_log"):
                await publish(channel, queue, {"EmailId": id, "MessageKey": key})
                if notes_time:
                    await sql("UPDATE email_log SET last_queued_at = {now} WHERE id = ?", id)
        await lane.homing.email_schedule.maintenance.once()
        await lane.schedule()
        assert await lane.homing.email_broker.depth(lane.queues.send) == 20
        lane.sender.answer("ann@example.org", LATER)
        assert await lane.consume() == 20
        lane.sender.answer("ann@example.org", Verdict("accepted"))
        for id in ids:
            await lane.age(id)
        await schedule_all(lane)
        assert await lane.consume() == 20, "retries are ours"
        assert await statuses(sql) == Counter({"Sent": 20})


# ── an operator with an SQL console ──────────────────────────────────────────────────────────────

PUT_BACK = {
    "Failed": "UPDATE email_log SET status = 'Failed', attempt_count = 0, next_attempt_at = {now} "
    "WHERE id = ?",
    "Pending": "UPDATE email_log SET status = 'Pending', attempt_count = 0 WHERE id = ?",
    "unqueued": "UPDATE email_log SET status = 'Pending', last_queued_at = NULL WHERE id = ?",
}


async def send_all(lane: EmailBench) -> None:
    await lane.homing.email_send.maintenance.once()
    await lane.homing.email_schedule.maintenance.once()
    await lane.deliver()


@pytest.mark.clause("OUT-15", "RTY-15")
@pytest.mark.parametrize("how", PUT_BACK)
async def test_a_refused_email_that_is_put_back_by_sql_is_sent_to_whom_it_did_not_reach(
    lane: EmailBench, sql: Console, how: str
) -> None:
    lane.sender.answer("bo@example.org", NEVER)
    ordered = await lane.order(to=["ann@example.org", "bo@example.org"])
    await send_all(lane)
    assert (await lane.row(ordered.id))["status"] == "Dead"
    lane.sender.answer("bo@example.org", Verdict("accepted"))
    await sql(PUT_BACK[how], ordered.id)
    await send_all(lane)
    row = await lane.row(ordered.id)
    assert (row["status"], row["last_error"], row["dead_reason"]) == ("Sent", None, None)
    assert [message.recipients for message in lane.sender.messages] == [
        ("ann@example.org", "bo@example.org"),
        ("bo@example.org",),
    ]
    assert len({message.message_id for message in lane.sender.messages}) == 1


@pytest.mark.clause("RTY-22", "RTY-12")
@pytest.mark.parametrize("ended", ["Dead", "Failed", "Sent"])
async def test_what_was_put_back_as_failed_is_published_by_one_scheduler(
    lane: EmailBench, sql: Console, rabbitmq_url: str, ended: str
) -> None:
    """Theirs was first, and noted no time: it looks as what was made Pending by plain SQL, which is ours."""
    queue = await make_queue(lane)
    lane.sender.answer("bo@example.org", NEVER)
    lane.sender.answer("cy@example.org", LATER)
    to = {"Dead": "bo@example.org", "Failed": "cy@example.org", "Sent": "ann@example.org"}[ended]
    async with publishing(rabbitmq_url) as channel:
        for options in OPTIONS:
            ordered = await lane.order(to=[to])
            await send_all(lane)
            assert (await lane.row(ordered.id))["status"] == ended
            await sql(PUT_BACK["Failed"], ordered.id)
            assert await Scheduler(sql, channel, queue, **options).once() == [ordered.id]
            await lane.homing.email_schedule.maintenance.once()
            assert await lane.schedule() == {}, options
            # What was published is confirmed, so it is in the queue.
            assert len(await lane.messages(wait=0.03)) == 1
            # It ends, and is put back the other way: then it is ours.
            await sql(DEAD, ordered.id)
            await sql(PUT_BACK["Pending"], ordered.id)
            await schedule_all(lane)
            await sql("DELETE FROM email_log")
            assert len(await lane.messages(wait=0.03)) == 1, options


@pytest.mark.clause("RTY-22", "RTY-12")
async def test_a_retry_that_a_scheduler_without_notes_has_published_is_not_taken_for_lost(
    lane: EmailBench, sql: Console, rabbitmq_url: str
) -> None:
    """All that is known is that it was not published before it was due; and it was last queued hours ago."""
    queue = await make_queue(lane)
    lane.sender.answer("ann@example.org", LATER)
    ordered = await lane.order(to=["ann@example.org"])
    await send_all(lane)
    await lane.shift(ordered.id, 30_000, "last_queued_at", "last_attempt_at")
    await lane.shift(ordered.id, 61, "next_attempt_at")
    async with publishing(rabbitmq_url) as channel:
        scheduler = Scheduler(
            sql, channel, queue, marks_claims=True, ends="Pending", clears_lock=True, notes_time=False
        )
        assert await scheduler.once() == [ordered.id]
    await lane.homing.email_schedule.maintenance.once()
    assert await lane.schedule() == {}
    await lane.shift(ordered.id, 30_000, "next_attempt_at")
    await lane.homing.email_schedule.maintenance.once()
    assert list(await lane.schedule()) == [ordered.id], "after its time it is"


@pytest.mark.clause("OUT-15", "RTY-15")
@pytest.mark.parametrize("how", PUT_BACK)
async def test_a_failed_email_that_is_put_back_by_sql_is_sent(
    lane: EmailBench, sql: Console, how: str
) -> None:
    lane.sender.answer("ann@example.org", LATER)
    ordered = await lane.order(to=["ann@example.org"])
    await send_all(lane)
    assert (await lane.row(ordered.id))["status"] == "Failed"
    lane.sender.answer("ann@example.org", Verdict("accepted"))
    await sql(PUT_BACK[how], ordered.id)
    await lane.age(ordered.id)
    await send_all(lane)
    assert (await lane.row(ordered.id))["status"] == "Sent"


@pytest.mark.clause("RTY-21")
async def test_a_lock_that_is_cleared_while_we_send_costs_no_second_mail(
    lane: EmailBench, sql: Console
) -> None:
    (id,) = await insert(sql, 1)
    (claim,) = await lane.emails.claim_these([Hint(id, (await lane.row(id))["message_key"])])
    assert isinstance(claim, Claim)
    await sql("UPDATE email_log SET locked_until = NULL WHERE id = ?", id)
    await lane.homing.email_send.maintenance.once()
    assert await lane.emails.settle([(claim, Complete())]) == {id}
    assert (await lane.row(id))["status"] == "Sent"


@pytest.mark.clause("OUT-15", "RTY-15")
@pytest.mark.parametrize("how", PUT_BACK)
async def test_a_sent_email_that_is_put_back_by_sql_goes_to_all_under_a_new_message_id(
    lane: EmailBench, sql: Console, how: str
) -> None:
    ordered = await lane.order(to=["ann@example.org", "bo@example.org"])
    await send_all(lane)
    await sql(PUT_BACK[how], ordered.id)
    lane.sender.answer("bo@example.org", LATER)
    await send_all(lane)
    assert (await lane.row(ordered.id))["status"] == "Failed"
    lane.sender.answer("bo@example.org", Verdict("accepted"))
    await lane.age(ordered.id)
    await send_all(lane)
    assert (await lane.row(ordered.id))["status"] == "Sent"
    first, again, rest = lane.sender.messages
    assert (again.recipients, rest.recipients) == (first.recipients, ("bo@example.org",))
    assert again.message_id == rest.message_id != first.message_id


@pytest.mark.clause("OUT-15", "RTY-14")
async def test_an_email_that_dies_again_after_it_was_put_back_is_announced_again(
    lane: EmailBench, sql: Console
) -> None:
    lane.sender.answer("ann@example.org", NEVER)
    ordered = await lane.order()
    for _ in range(2):
        await send_all(lane)
        await lane.homing.email_schedule.maintenance.once()
        assert (await lane.row(ordered.id))["status"] == "Dead"
        await sql(PUT_BACK["Failed"], ordered.id)
    assert len(await lane.messages(dead=True)) == 2


@pytest.mark.clause("OUT-15")
async def test_what_was_put_back_at_its_limit_is_ended_and_not_sent(lane: EmailBench, sql: Console) -> None:
    (id,) = await insert(sql, 1, status="Dead", attempt_count=8)
    await sql("UPDATE email_log SET status = 'Failed', next_attempt_at = {now} WHERE id = ?", id)
    await send_all(lane)
    assert (await lane.row(id))["status"] == "Dead"
    assert lane.sender.messages == []
