"""The stores of both stages of email_log, on every database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import msgspec
import pytest
from tests.emails import EmailBench, email_bench

from homing.db import instant
from homing.engine.model import Bury, Claim, Complete, Failure, RetryIn
from homing.errors import Refused
from homing.lanes.email_log.email import Dropped, Due, Email, Held, NewEmail
from homing.lanes.email_log.queues import Hint, encode, read_hint
from homing.senders.compose import StoredAttachment

FAILURE = Failure("network_error", "gone")


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[EmailBench]:
    async with email_bench(database_url) as opened:
        yield opened


async def claim_one(lane: EmailBench, id: int) -> Claim[Email] | Dropped | Held:
    key = (await lane.row(id))["message_key"]
    (claim,) = await lane.emails.claim_these([Hint(id, key)])
    return claim


async def sending(lane: EmailBench, id: int) -> Claim[Email]:
    claim = await claim_one(lane, id)
    assert isinstance(claim, Claim), claim
    return claim


async def failed(lane: EmailBench, count: int = 1, *, due: bool = True, attempts: int = 1) -> list[int]:
    ids = await lane.insert(count, status="Failed", attempt_count=attempts, last_error="x")
    for id in ids:
        await lane.shift(id, 5 if due else -3600, "next_attempt_at")
    return ids


# ── put in ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_large_email_is_put_in_among_small_ones_as_it_is(lane: EmailBench) -> None:
    """Its bulky columns come another way than those of the others."""
    large: dict[str, Any] = {
        "body": "\\u0041 é" * (1 << 20),
        "html_body": "<p>Hello.</p>",
        "variables": {"name": "Zoë"},
        "headers": {"X-A": "1"},
        "attachments": (StoredAttachment(filename="a.bin", content=b"a"),),
    }
    emails = [
        NewEmail(
            message_key=key, fingerprint=key, token=key, to_address="ann@example.org", subject="Hi", **given
        )
        for key, given in (("first", {}), ("large", large), ("last", {}))
    ]
    ordered = await lane.emails.enqueue(emails, publish=False)
    assert [one.verdict for one in ordered] == ["created"] * 3
    repeated = [msgspec.structs.replace(email, token=f"{email.token} again") for email in emails]
    again = await lane.emails.enqueue(repeated, publish=False)
    assert [(one.verdict, one.id) for one in again] == [("duplicate", one.id) for one in ordered]
    for one, given in zip(ordered, ({}, large, {}), strict=True):
        row = await lane.row(one.id)
        for name in large:
            value = row[name]
            if name not in {"body", "html_body"} and isinstance(value, str):
                value = msgspec.json.decode(value)
            assert value == msgspec.json.decode(msgspec.json.encode(given.get(name))), (one.message_key, name)


# ── the scheduling stage ─────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-07")
async def test_due_is_failed_in_time_below_the_limit_and_unlocked(lane: EmailBench) -> None:
    due, over = await failed(lane, 2)
    await lane.shift(over, 10, "locked_until")
    (later,) = await failed(lane, due=False)
    (at_limit,) = await failed(lane, attempts=8)
    (locked,) = await failed(lane)
    await lane.shift(locked, -60, "locked_until")
    ended = await lane.insert(1, status="Sent") + await lane.insert(1, status="Dead")
    assert sorted(c.id for c in await lane.due.claim(100)) == sorted([due, over])
    assert await lane.states([later, at_limit, locked]) == ["Failed"] * 3
    assert await lane.states(ended) == ["Sent", "Dead"]


@pytest.mark.clause("RTY-07")
async def test_a_row_whose_scheduler_died_is_due_when_its_lease_is_over(lane: EmailBench) -> None:
    (id,) = await failed(lane)
    (stale,) = await lane.due.claim(10)
    assert await lane.due.claim(10) == []
    await lane.age(id)
    (again,) = await lane.due.claim(10)
    assert (again.id, again.attempts) == (id, 1)
    assert again.fence > stale.fence
    await lane.due.settle([(stale, RetryIn(5.0, FAILURE))])
    assert (await lane.row(id))["status"] == "RetryQueued", "the dead one's word counts no more"


@pytest.mark.clause("RTY-08")
async def test_a_claim_marks_and_locks_the_row_for_one_lease(lane: EmailBench) -> None:
    (id,) = await failed(lane)
    await lane.due.claim(10)
    row = await lane.row(id)
    (now,) = await lane.sql(
        "SELECT now() AS now" if lane.is_postgres else "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AS now"
    )
    until, present = instant(row["locked_until"]), instant(now["now"])
    assert until is not None
    assert present is not None
    assert row["status"] == "RetryQueued"
    assert 110 < (until - present).total_seconds() <= 120
    assert row["locked_by"]


@pytest.mark.clause("RTY-13")
async def test_many_schedulers_at_once_take_each_row_once(lane: EmailBench) -> None:
    ids = await failed(lane, 60)
    batches = await asyncio.gather(*(lane.due.claim(7) for _ in range(12)))
    taken = [c.id for batch in batches for c in batch]
    assert len(taken) == len(set(taken))
    rest = [c.id for c in await lane.due.claim(100)]
    assert sorted(taken + rest) == ids


@pytest.mark.clause("RTY-10")
async def test_a_confirmed_publish_leaves_the_row_pending_unlocked_and_dated(lane: EmailBench) -> None:
    (id,) = await failed(lane)
    (claim,) = await lane.due.claim(1)
    assert await lane.due.settle([(claim, Complete())]) == {id}
    row = await lane.row(id)
    assert (row["status"], row["locked_until"], row["locked_by"]) == ("Pending", None, None)
    assert row["last_queued_at"] is not None
    assert (row["attempt_count"], row["last_error"]) == (1, "x")
    assert await lane.due.claim(10) == [], "once in its window"


@pytest.mark.clause("RTY-10")
async def test_a_consumer_overtakes_the_scheduler_whose_settle_is_then_refused(lane: EmailBench) -> None:
    (id,) = await failed(lane)
    (scheduled,) = await lane.due.claim(1)
    claim = await sending(lane, id)
    assert claim.fence > scheduled.fence
    await lane.due.settle([(scheduled, Complete())])
    row = await lane.row(id)
    assert row["locked_by"], "the sender's lease stands"
    assert row["claim_seq"] == claim.fence
    assert await lane.emails.settle([(claim, Complete())]) == {id}
    await lane.due.settle([(scheduled, RetryIn(1.0, FAILURE))])
    assert (await lane.row(id))["status"] == "Sent"


@pytest.mark.clause("RTY-16")
async def test_a_failed_publish_costs_no_attempt_and_is_due_again(lane: EmailBench) -> None:
    (id,) = await failed(lane)
    before = await lane.row(id)
    (claim,) = await lane.due.claim(1)
    await lane.due.settle([(claim, RetryIn(30.0, Failure("unreachable", "no broker")))])
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"], row["locked_until"]) == ("Failed", 1, None)
    assert row["next_attempt_at"] > before["next_attempt_at"]
    assert (row["last_error"], row["publish_failures"]) == ("x", 1)
    await lane.age(id)
    assert [c.id for c in await lane.due.claim(1)] == [id]


@pytest.mark.clause("RTY-16")
async def test_what_was_never_tried_waits_as_pending_when_its_publish_failed(lane: EmailBench) -> None:
    (id,) = await lane.insert()
    (claim,) = await lane.due.claim(1)
    await lane.due.settle([(claim, RetryIn(30.0, Failure("unreachable", "no broker")))])
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"], row["last_queued_at"]) == ("Pending", 0, None)
    assert await lane.due.claim(1) == []
    await lane.shift(id, 100, "next_attempt_at")
    assert [c.id for c in await lane.due.claim(1)] == [id]


async def published(lane: EmailBench, count: int = 1) -> list[int]:
    """Emails whose message is in the queue, as the scheduler has written it down."""
    ids = await lane.insert(count)
    claims = await lane.due.claim(count)
    assert await lane.due.settle([(claim, Complete()) for claim in claims]) == set(ids)
    return ids


@pytest.fixture
async def away(database_url: str) -> AsyncIterator[EmailBench]:
    """Its broker is not there, so that nothing is seen but what a test says."""
    async with email_bench(database_url, email_broker_url="amqp://127.0.0.1:1") as opened:
        yield opened


async def seen(
    lane: EmailBench, *, is_gone: bool = False, is_empty: bool = False, since: float = 0.0
) -> None:
    """As a scheduler writes down what it has seen of the queue."""
    await lane.due.run("saw_queue", is_gone=is_gone, is_empty=is_empty, since=since)


async def found_lost(lane: EmailBench) -> list[int]:
    """What is published again after a round of maintenance."""
    await lane.due.sweep(100)
    claims = await lane.due.claim(100)
    await lane.due.release(claims)
    return sorted(claim.id for claim in claims)


@pytest.mark.clause("RTY-16", "RTY-22")
async def test_a_message_that_nobody_answers_is_lost_after_its_time_and_not_before(database_url: str) -> None:
    async with email_bench(
        database_url, email_broker_url="amqp://127.0.0.1:1", email_lost_after_seconds=900
    ) as lane:
        (id,) = await published(lane)
        await lane.age(id, 890)
        assert await found_lost(lane) == []
        await lane.age(id, 20)
        assert await found_lost(lane) == [id]
        assert (await lane.row(id))["attempt_count"] == 0


@pytest.mark.clause("RTY-16", "RTY-22")
async def test_a_queue_that_was_seen_missing_has_lost_what_was_in_it(away: EmailBench) -> None:
    (earlier,) = await published(away)
    await away.age(earlier, 60)
    await seen(away, is_gone=True, since=30)
    (later,) = await published(away)
    assert await found_lost(away) == [earlier]
    assert (await away.row(later))["last_queued_at"] is not None
    (again,) = await away.due.claim(1)
    await away.due.settle([(again, Complete())])
    assert await found_lost(away) == [], "it was published since"


@pytest.mark.clause("RTY-12", "RTY-22")
async def test_a_queue_that_was_seen_empty_twice_one_lease_apart_has_lost_it(away: EmailBench) -> None:
    (id,) = await published(away)
    await away.age(id, 600)
    for since in (590, 480, 475):
        await seen(away, is_empty=True, since=since)
    assert await found_lost(away) == [], "no two are a lease apart"
    await seen(away, since=300)
    assert await found_lost(away) == [], "a backlog is no sighting"
    (held, busy) = await published(away, 2)
    for one in (held, busy):
        await away.age(one, 500)
    await away.set(held, locked_until=(await away.row(held))["created_at"])
    await away.shift(held, -600, "locked_until")
    await seen(away, is_empty=True, since=460)
    assert await found_lost(away) == [id], "of the others there was one sighting"
    await seen(away, is_empty=True, since=200)
    assert await found_lost(away) == [id, busy], "and one is in somebody's hands"


@pytest.mark.clause("RTY-20")
async def test_deaths_wait_for_a_process_whose_broker_is_away(away: EmailBench, database_url: str) -> None:
    await away.due.sweep(10)
    async with email_bench(database_url) as without:
        (id,) = await without.insert(1, status="Dead")
        await without.due.sweep(10)
        assert (await without.row(id))["announced_at"] is None
    await away.due.sweep(10)
    assert (await away.row(id))["announced_at"] is None, "nor can it tell anybody now"


@pytest.mark.clause("RTY-16", "RTY-22")
async def test_what_a_version_before_has_published_is_lost_after_its_time(away: EmailBench) -> None:
    """It notes no time of its own."""
    ids = await published(away, 2)
    for id, age in zip(ids, (90_000, 3_600), strict=True):
        await away.set(id, published_at=None)
        await away.shift(id, age, "next_attempt_at", "last_queued_at")
    assert await found_lost(away) == ids[:1]


@pytest.mark.clause("RTY-22")
async def test_what_another_program_has_published_or_taken_is_never_lost(away: EmailBench) -> None:
    retried, taken, waiting = await published(away, 3)
    queued = await away.insert(1, status="RetryQueued") + await away.insert(1)
    for id in (retried, taken, *queued):
        await away.shift(id, 3_600, "last_queued_at")
    await away.set(waiting, status="RetryQueued")
    await seen(away, is_gone=True)
    assert await found_lost(away) == []


async def another(lane: EmailBench, id: int, sets: str) -> None:
    """What another program, or a person, writes by plain SQL."""
    await lane.sql(f"UPDATE email_log SET {sets} WHERE id = :id RETURNING id", id=id)


#: How another sender ends an email.
ENDED = (
    "status = 'Sent'",
    "status = 'Sent', sent_at = CURRENT_TIMESTAMP",
    "status = 'Dead'",
    "status = 'Dead', last_attempt_at = CURRENT_TIMESTAMP",
    "status = 'Failed', attempt_count = 3, next_attempt_at = NULL",
)


@pytest.mark.clause("OUT-15", "RTY-22")
@pytest.mark.parametrize("publish_new", [True, False])
async def test_what_another_sender_has_ended_is_published_when_it_is_put_back_as_pending(
    database_url: str, *, publish_new: bool
) -> None:
    async with email_bench(database_url, email_publish_new=publish_new) as lane:
        ours = await failed(lane, len(ENDED))
        await lane.due.settle([(claim, Complete()) for claim in await lane.due.claim(10)])
        theirs = await lane.insert(len(ENDED), last_queued_at=(await lane.row(ours[0]))["last_queued_at"])
        tokens = {id: (await lane.row(id))["token"] for id in ours + theirs}
        for id, ended in zip(ours + theirs, ENDED * 2, strict=True):
            await another(lane, id, ended)
            back = "status = 'Pending', attempt_count = 0"
            await another(lane, id, f"{back}, next_attempt_at = CURRENT_TIMESTAMP")
        claims = await lane.due.claim(100)
        assert sorted(claim.id for claim in claims) == ours + theirs
        await lane.due.settle([(claim, Complete()) for claim in claims])
        assert await lane.due.claim(100) == [], "once"
        for id, ended in zip(ours + theirs, ENDED * 2, strict=True):
            assert ((await sending(lane, id)).item.token != tokens[id]) == ("Sent" in ended), ended


@pytest.mark.clause("OUT-15", "RTY-22")
async def test_what_was_cancelled_while_it_was_queued_is_published_when_it_is_put_back(
    lane: EmailBench,
) -> None:
    (id,) = await published(lane)
    assert await lane.emails.cancel([id]) == [id]
    await another(lane, id, "status = 'Pending'")
    assert [claim.id for claim in await lane.due.claim(10)] == [id]


@pytest.mark.clause("RTY-12", "RTY-22")
async def test_what_others_publish_and_what_we_requeue_is_not_taken_for_put_back(lane: EmailBench) -> None:
    retried, dated, requeued = await failed(lane, 3, due=False)
    for id in (retried, dated, requeued):
        await another(lane, id, "claim_seq = 5, last_queued_at = created_at")
    await another(lane, retried, "status = 'Pending'")
    await another(lane, dated, "status = 'Dead'")
    await another(lane, dated, "status = 'Pending', attempt_count = 0, last_queued_at = CURRENT_TIMESTAMP")
    await lane.emails.requeue([requeued])
    assert [claim.id for claim in await lane.due.claim(10)] == [requeued]
    row = await lane.row(requeued)
    assert (row["claim_seq"], row["ended_claim"]) == (7, 6), "one by the requeue and one by the claim"


@pytest.mark.clause("RTY-22")
async def test_new_rows_are_published_only_where_that_is_said(database_url: str) -> None:
    async with email_bench(database_url, email_publish_new=False) as lane:
        (theirs,) = await lane.insert()
        ours = (await lane.order()).id
        dead, retried = await failed(lane, 2)
        await lane.set(dead, status="Dead")
        await lane.emails.requeue([dead])
        (handed_out,) = await lane.insert()
        (given_back,) = await lane.insert()
        await lane.emails.release([await sending(lane, given_back)])
        await sending(lane, handed_out)
        await lane.age(handed_out)
        await lane.emails.rescue(10)
        found = sorted(claim.id for claim in await lane.due.claim(100))
        assert found == sorted([ours, dead, retried, given_back, handed_out])
        assert (await lane.row(theirs))["status"] == "Pending"


@pytest.mark.clause("RTY-20", "RTY-22")
async def test_rows_without_a_next_attempt_can_be_written_and_a_new_one_is_published(
    lane: EmailBench,
) -> None:
    new, other = await lane.insert(2, next_attempt_at=None)
    others = [(await lane.insert(1, next_attempt_at=None, status=s))[0] for s in ("Failed", "Sent", "Dead")]
    claims = await lane.due.claim(10)
    assert sorted(claim.id for claim in claims) == [new, other]
    for id in (new, other):
        await lane.age(id)
    again = await lane.due.claim(10)
    assert len(again) == 2, "a scheduler that dies with them is followed by another"
    assert await lane.due.settle([(claim, Complete()) for claim in again]) == {new, other}
    assert isinstance(await claim_one(lane, new), Claim)
    assert await lane.states(others) == ["Failed", "Sent", "Dead"]
    assert await lane.emails.send_now(others[:1]) == others[:1]
    assert [claim.id for claim in await lane.due.claim(10)] == others[:1]


async def test_a_row_that_another_scheduler_queued_by_the_specified_sql_is_left_alone(
    lane: EmailBench,
) -> None:
    """It sets Pending, clears the lock and dates it, and leaves next_attempt_at in the past."""
    (id,) = await failed(lane)
    await lane.set(id, status="Pending")
    await lane.shift(id, 1, "last_queued_at")
    assert await lane.due.claim(10) == []


async def test_a_release_leaves_a_row_as_due_as_it_was(lane: EmailBench) -> None:
    (tried,) = await failed(lane)
    (fresh,) = await lane.insert()
    before = {id: (await lane.row(id))["next_attempt_at"] for id in (tried, fresh)}
    claims = await lane.due.claim(10)
    assert await lane.due.release(claims) == {tried, fresh}
    assert await lane.states([tried, fresh]) == ["Failed", "Pending"]
    assert {id: (await lane.row(id))["next_attempt_at"] for id in before} == before
    assert len(await lane.due.claim(10)) == 2


@pytest.mark.clause("RTY-14")
async def test_whatever_is_at_the_limit_is_ended_with_its_last_error(database_url: str) -> None:
    async with email_bench(database_url, email_max_attempts=3) as lane:
        over, under = await failed(lane, 2)
        (sent,) = await lane.insert(1, status="Sent", attempt_count=7)
        await lane.set(over, attempt_count=3, last_error="the last word")
        await lane.homing.email_schedule.maintenance.once()
        row = await lane.row(over)
        assert (row["status"], row["dead_reason"]) == ("Dead", "MaxAttemptsExceeded")
        assert (row["last_error"], row["attempt_count"]) == ("the last word", 3)
        assert await lane.states([under, sent]) == ["Failed", "Sent"]


async def test_claims_return_their_columns_in_the_order_of_the_item(lane: EmailBench) -> None:
    (id,) = await lane.insert()
    (row,) = await lane.due.run("claim", limit=1)
    assert list(row.keys()) == [
        "id",
        "fence",
        "attempts",
        "deferrals",
        "age",
        "traceparent",
        *Due.__struct_fields__,
    ]
    key = (await lane.row(id))["message_key"]
    (row,) = await lane.emails.run("claim_these", batch=f'[{{"id": {id}, "key": "{key}"}}]')
    assert list(row.keys()) == [
        "id",
        "fence",
        "attempts",
        "deferrals",
        "age",
        "traceparent",
        *Email.__struct_fields__,
    ]
    await lane.age(id)
    await lane.set(id, rescue_count=3)
    (row,) = await lane.emails.run("claim_lost", limit=1)
    assert list(row.keys()) == [
        "id",
        "fence",
        "attempts",
        "deferrals",
        "age",
        "traceparent",
        *Email.__struct_fields__,
    ]


# ── the sending stage ────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-19")
async def test_a_message_claims_its_row_and_no_other(lane: EmailBench) -> None:
    wanted, other = await lane.insert(2)
    claim = await sending(lane, wanted)
    assert (claim.id, claim.attempts) == (wanted, 0)
    row = await lane.row(wanted)
    assert row["status"] == "Pending"
    assert row["locked_by"]
    assert row["last_attempt_at"] is not None
    assert (await lane.row(other))["locked_by"] is None


@pytest.mark.clause("RTY-19", "RTY-12")
async def test_a_message_for_what_is_done_leased_failed_or_unknown_claims_nothing(lane: EmailBench) -> None:
    ids = [(await lane.insert(1, status=state))[0] for state in ("Sent", "Dead", "Failed")]
    (leased,) = await lane.insert()
    await sending(lane, leased)
    (other_key,) = await lane.insert()
    dropped = [await claim_one(lane, id) for id in (*ids, leased)]
    dropped += await lane.emails.claim_these([Hint(other_key, "not its key"), Hint(10**9, "k")])
    assert [d.reason for d in dropped if isinstance(d, Dropped)] == [
        "it is Sent",
        "it is Dead",
        "it is Failed",
        "another worker has it, or it is beyond the limit",
        "the message key is another one",
        "there is no such email",
    ]


@pytest.mark.clause("RTY-19", "RTY-12")
async def test_a_second_message_claims_nothing_while_another_sender_holds_the_row(lane: EmailBench) -> None:
    """It took the message that we published. Nothing of ours is locked, so the lock is no scheduler's."""
    (id,) = await published(lane)
    await lane.shift(id, -120, "locked_until")
    assert isinstance(await claim_one(lane, id), Dropped)
    await lane.shift(id, 600, "locked_until")
    assert isinstance(await claim_one(lane, id), Claim), "it has died"


@pytest.mark.clause("RTY-23")
async def test_what_another_scheduler_has_published_after_ours_is_claimed_under_its_lock(
    lane: EmailBench,
) -> None:
    """Its sender failed, or ended it and a person put it back; and it notes no time and keeps its lock."""
    for status, put_back in product(("Failed", "RetryQueued", "Pending"), (True, False)):
        (id,) = await published(lane)
        await lane.age(id, 600)
        if put_back:
            await lane.set(id, status="Dead")
        await lane.set(id, status="Failed", attempt_count=1)
        if not put_back:
            await lane.set(id, next_attempt_at=(await lane.row(id))["created_at"])
        await lane.shift(id, -120, "locked_until")
        await lane.set(id, status=status)
        assert isinstance(await claim_one(lane, id), Claim), (status, put_back)


@pytest.mark.clause("RTY-12")
async def test_of_two_messages_that_come_together_one_gets_the_row(lane: EmailBench) -> None:
    (id,) = await lane.insert()
    hint = Hint(id, (await lane.row(id))["message_key"])
    first, second = await lane.emails.claim_these([hint, hint])
    assert isinstance(first, Claim)
    assert isinstance(second, Dropped)


async def test_claims_of_the_same_rows_at_once_are_exclusive(lane: EmailBench) -> None:
    ids = await lane.insert(20)
    hints = [Hint(id, (await lane.row(id))["message_key"]) for id in ids]
    batches = await asyncio.gather(
        *(lane.emails.claim_these(hints[::step]) for step in (1, -1, 1, -1)),
    )
    taken = [c.id for batch in batches for c in batch if isinstance(c, Claim)]
    assert sorted(taken) == ids


@pytest.mark.clause("RTY-05")
async def test_a_failure_is_counted_dated_and_unlocked(lane: EmailBench) -> None:
    (id,) = await lane.insert()
    claim = await sending(lane, id)
    before = instant((await lane.row(id))["last_attempt_at"])
    assert await lane.emails.settle([(claim, RetryIn(60.0, FAILURE))]) == {id}
    row = await lane.row(id)
    after = instant(row["next_attempt_at"])
    assert before is not None
    assert after is not None
    assert (row["status"], row["attempt_count"], row["locked_until"]) == ("Failed", 1, None)
    assert row["last_error"] == "network_error: gone"
    assert 59 <= (after - before).total_seconds() <= 65


async def test_a_settlement_takes_effect_once_and_completes_the_key(lane: EmailBench) -> None:
    ordered = await lane.order(messageKey="order-1")
    claim = await sending(lane, ordered.id)
    assert await lane.emails.settle([(claim, Complete())]) == {ordered.id}
    assert await lane.emails.settle([(claim, Bury(FAILURE))]) == set()
    assert await lane.emails.confirm([claim]) == {ordered.id}
    row = await lane.row(ordered.id)
    assert row["status"] == "Sent"
    assert row["sent_at"] is not None
    assert row["completed_at"] is not None


async def test_a_stale_sender_is_refused_everything(lane: EmailBench) -> None:
    (id,) = await lane.insert()
    stale = await sending(lane, id)
    await lane.age(id)
    assert await lane.emails.rescue(10) == 1
    owner = await sending(lane, id)
    assert owner.fence > stale.fence
    assert await lane.emails.settle([(stale, Complete())]) == set()
    assert await lane.emails.renew([stale]) == set()
    assert await lane.emails.release([stale]) == set()
    assert await lane.emails.confirm([stale]) == set()
    assert await lane.emails.renew([owner]) == {id}
    assert await lane.emails.settle([(owner, Complete())]) == {id}


async def test_a_row_whose_sender_died_is_published_again_uncharged_three_times(lane: EmailBench) -> None:
    (id,) = await lane.insert()
    for rescues in range(1, 5):
        await sending(lane, id)
        assert await lane.due.claim(10) == [], "what is being sent is no scheduler's business"
        await lane.age(id)
        assert await lane.due.claim(10) == [], "nor is what its dead sender left behind"
        await lane.homing.email_send.maintenance.rescue()
        row = await lane.row(id)
        assert (row["rescue_count"], row["attempt_count"]) == (rescues, int(rescues == 4))
        if rescues < 4:
            (claim,) = await lane.due.claim(10)
            await lane.due.settle([(claim, Complete())])
    assert row["status"] == "Failed"
    assert "worker_died" in row["last_error"]


async def test_a_release_leaves_the_row_to_its_message_and_to_a_scheduler(lane: EmailBench) -> None:
    """The message may have been dropped while the row was locked."""
    (id,) = await failed(lane)
    await lane.due.claim(1)
    claim = await sending(lane, id)
    assert await lane.emails.release([claim]) == {id}
    row = await lane.row(id)
    assert (row["status"], row["locked_by"], row["attempt_count"]) == ("Pending", None, 1)
    (again,) = await lane.due.claim(10)
    assert (again.id, again.attempts) == (id, 1), "published again at once"
    assert isinstance(await claim_one(lane, id), Claim), "and the message finds it free"


async def test_renewing_settling_and_claiming_the_same_rows_at_once_never_deadlocks(lane: EmailBench) -> None:
    ids = await lane.insert(40)
    hints = [Hint(id, (await lane.row(id))["message_key"]) for id in ids]
    claims = [c for c in await lane.emails.claim_these(hints) if isinstance(c, Claim)]
    for _ in range(5):
        results = await asyncio.gather(
            lane.emails.renew(claims), lane.emails.renew(claims[::-1]), lane.emails.claim_these(hints[::-1])
        )
        assert [len(kept) for kept in results[:2]] == [40, 40]
    await asyncio.gather(
        lane.emails.renew(claims), lane.emails.settle([(c, Complete()) for c in reversed(claims)])
    )
    assert (await lane.emails.counts())["Sent"] == 40


# ── the tables ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-02")
async def test_the_tables_have_the_contracts_columns_and_index(lane: EmailBench) -> None:
    (id,) = await lane.insert()
    columns = (
        "id, message_key, to_address, subject, body, status, attempt_count, next_attempt_at, last_error, \
        locked_until, dead_reason, last_queued_at, created_at, sent_at"
    )
    (row,) = await lane.sql(f"SELECT {columns} FROM email_log WHERE id = :id", id=id)
    assert (row["status"], row["attempt_count"], row["locked_until"]) == ("Pending", 0, None)
    assert (
        await lane.sql("SELECT message_key, email_id, completed_at, created_at FROM email_idempotency") == []
    )
    if lane.is_postgres:
        (index,) = await lane.sql("SELECT indexdef FROM pg_indexes WHERE indexname = 'email_log_due'")
        assert "(status, next_attempt_at)" in index["indexdef"]
    else:
        found = await lane.sql("SELECT name FROM pragma_index_info('email_log_due')")
        assert [column["name"] for column in found] == ["status", "next_attempt_at"]


@pytest.mark.clause("RTY-02")
@pytest.mark.parametrize("status", ["pending", "Sending", ""])
async def test_no_other_state_can_be_stored(lane: EmailBench, status: str) -> None:
    from homing.errors import DatabaseError

    with pytest.raises(DatabaseError):
        await lane.insert(1, status=status)


@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb", "a\x7f", "\x01"])
async def test_no_key_can_be_stored_that_no_message_can_name(lane: EmailBench, key: str) -> None:
    with pytest.raises(Refused):
        await lane.insert(1, message_key=key)


@pytest.mark.parametrize("key", ["k" * 255, "a b", "ä" * 255, "[-]*?^", "\u2028"])
async def test_every_other_key_can_be_stored_and_named(lane: EmailBench, key: str) -> None:
    (id,) = await lane.insert(1, message_key=key)
    assert isinstance(read_hint(encode(Hint(id, key))), Hint)
    assert (await lane.order(messageKey=key)).id == id


async def test_sqlite_keeps_no_key_with_a_nul_and_none_that_is_no_text(sqlite_url: str) -> None:
    async with email_bench(sqlite_url) as lane:
        for key in ("a\0b", b"blob"):
            with pytest.raises(Refused):
                await lane.insert(1, message_key=key)


async def test_another_programs_row_cannot_have_a_key_that_an_email_has(lane: EmailBench) -> None:
    ordered = await lane.order(messageKey="k")
    await lane.deliver()
    for key in (ordered.message_key, "k"):
        with pytest.raises(Refused):
            await lane.insert(1, message_key=key)
    assert len(await lane.sql("SELECT id FROM email_log")) == 1


async def test_an_order_with_the_key_of_another_programs_row_is_answered_with_that(lane: EmailBench) -> None:
    (raw,) = await lane.insert(1, message_key="k")
    ordered = await asyncio.gather(*(lane.order(messageKey=key) for key in ("k", "new", "k")))
    assert [one.verdict for one in ordered] == ["duplicate", "created", "duplicate"]
    assert [one.id for one in ordered][::2] == [raw, raw]
    assert await lane.emails.id_of("k") == raw
    assert (await lane.order(messageKey="k", subject="Another")).verdict == "duplicate"
    await lane.deliver()
    assert len(lane.sender.messages) == 2
    assert (await lane.row(raw))["completed_at"] is not None
    assert (await lane.order(messageKey="k")).id == raw


async def test_orders_and_other_programs_rows_with_the_same_keys_at_once_are_one_email_each(
    lane: EmailBench,
) -> None:
    keys = [f"k{n}" for n in range(30)]
    raw = asyncio.gather(*(lane.insert(1, message_key=key) for key in keys), return_exceptions=True)
    ordered = await asyncio.gather(*(lane.order(messageKey=key) for key in keys))
    assert {type(one) for one in await raw} <= {list, Refused}
    rows = await lane.sql("SELECT id, message_key FROM email_log")
    assert {row["message_key"]: row["id"] for row in rows} == {one.message_key: one.id for one in ordered}
    assert len(rows) == 30


@pytest.mark.clause("RTY-02")
async def test_a_message_key_is_written_once_however_many_order_it_at_the_same_time(lane: EmailBench) -> None:
    ordered = await asyncio.gather(*(lane.order(messageKey="order-7") for _ in range(20)))
    assert len({one.id for one in ordered}) == 1
    assert sorted(one.verdict for one in ordered) == ["created"] + ["duplicate"] * 19
    assert len(await lane.sql("SELECT id FROM email_log")) == 1
