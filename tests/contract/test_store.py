"""The conformance suite of the store: every lane, on every database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.outbox import Bench, bench

from homing.engine.model import Bury, Complete, Failure, RetryIn
from homing.lanes.mail_outbox.mail import Mail, NewMail
from homing.senders.compose import StoredAttachment

FAILURE = Failure("network_error", "gone")


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[Bench]:
    async with bench(database_url) as opened:
        yield opened


@pytest.mark.clause("OUT-01")
async def test_a_claim_takes_what_is_queued_and_due_and_marks_it(lane: Bench) -> None:
    due, later, sent = await lane.insert(3)
    await lane.age(later, -60)
    await lane.sql("UPDATE mail_outbox SET status = 'sent' WHERE id = :id RETURNING id", id=sent)
    claims = await lane.outbox.claim(10)
    assert [c.id for c in claims] == [due]
    row = await lane.row(due)
    assert row["status"] == "dispatching"
    assert row["last_attempt_at"] is not None
    assert row["lease_expires_at"] is not None
    assert row["locked_by"]
    assert (await lane.row(later))["status"] == "queued"


@pytest.mark.clause("OUT-03")
async def test_the_isolation_is_read_committed_whatever_the_server_says(postgres_url: str) -> None:
    async with bench(postgres_url) as lane:
        name = postgres_url.rsplit("/", 1)[1]
        await lane.sql(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'")
    async with bench(postgres_url) as lane:
        (row,) = await lane.sql("SELECT current_setting('transaction_isolation') AS level")
        assert row["level"] == "read committed"
        ids = await lane.insert(30)
        taken = [
            c.id for batch in await asyncio.gather(*(lane.outbox.claim(5) for _ in range(6))) for c in batch
        ]
        assert sorted(taken) == ids, "nobody had to undo a claim"


async def test_a_large_mail_is_put_in_among_small_ones_as_it_is(lane: Bench) -> None:
    """Its bulky columns come another way than those of the others."""
    large: dict[str, Any] = {
        "text_body": "\\u0041 é" * (1 << 20),
        "html_body": "<p>Hello.</p>",
        "variables": {"name": "Zoë"},
        "headers": {"X-A": "1"},
        "attachments": (StoredAttachment(filename="a.bin", content=b"a"),),
        "metadata": {"order": 7},
    }
    mails = [
        NewMail(token=token, idempotency_key=token, to_address="ann@example.org", **given)
        for token, given in (("first", {}), ("large", large), ("last", {}))
    ]
    ordered = await lane.outbox.enqueue(mails)
    assert [one.verdict for one in ordered] == ["created"] * 3
    assert [one.id for one in await lane.outbox.enqueue(mails)] == [one.id for one in ordered]
    for one, token, given in zip(ordered, ("first", "large", "last"), ({}, large, {}), strict=True):
        row = await lane.row(one.id)
        assert row["token"] == token
        for name in large:
            value = row[name]
            if name not in {"text_body", "html_body"} and isinstance(value, str):
                value = msgspec.json.decode(value)
            assert value == msgspec.json.decode(msgspec.json.encode(given.get(name))), (token, name)


@pytest.mark.parametrize("query", ["claim", "claim_lost"])
async def test_claims_return_their_columns_in_the_order_of_the_item(lane: Bench, query: str) -> None:
    (id,) = await lane.insert()
    if query == "claim_lost":
        await lane.outbox.claim(1)
        await lane.age(id, 1000)
        await lane.sql("UPDATE mail_outbox SET rescue_count = 3 WHERE id = :id RETURNING id", id=id)
    (row,) = await lane.outbox.run(query, limit=1)
    assert list(row.keys()) == [
        "id",
        "fence",
        "attempts",
        "deferrals",
        "age",
        "traceparent",
        *Mail.__struct_fields__,
    ]


@pytest.mark.clause("OUT-01")
async def test_a_claim_is_limited(lane: Bench) -> None:
    await lane.insert(5)
    assert len(await lane.outbox.claim(2)) == 2
    assert len(await lane.outbox.claim(10)) == 3


@pytest.mark.clause("OUT-01", "OUT-12")
async def test_a_row_at_the_limit_is_not_claimed(lane: Bench) -> None:
    at_limit, below = await lane.insert(2)
    await lane.sql("UPDATE mail_outbox SET retry_count = 5 WHERE id = :id RETURNING id", id=at_limit)
    await lane.sql("UPDATE mail_outbox SET retry_count = 4 WHERE id = :id RETURNING id", id=below)
    assert [c.id for c in await lane.outbox.claim(10)] == [below]


@pytest.mark.clause("OUT-02")
async def test_claims_come_in_the_order_of_next_attempt_and_id(lane: Bench) -> None:
    ids = await lane.insert(6)
    for position, id in enumerate(ids):
        await lane.age(id, 10 * (3 - position % 3))
    expected = [ids[0], ids[3], ids[1], ids[4], ids[2], ids[5]]
    assert [c.id for c in await lane.outbox.claim(4)] == expected[:4]
    assert [c.id for c in await lane.outbox.claim(4)] == expected[4:]


@pytest.mark.clause("OUT-04")
async def test_concurrent_claims_are_exclusive(lane: Bench) -> None:
    ids = await lane.insert(60)
    batches = await asyncio.gather(*(lane.outbox.claim(7) for _ in range(12)))
    taken = [c.id for batch in batches for c in batch]
    assert len(taken) == len(set(taken))
    assert set(taken) <= set(ids)
    rest = [c.id for c in await lane.outbox.claim(100)]
    assert sorted(taken + rest) == ids


async def test_the_fence_rises_with_every_claim(lane: Bench) -> None:
    await lane.insert()
    fences = []
    for _ in range(3):
        (claim,) = await lane.outbox.claim(1)
        fences.append(claim.fence)
        assert await lane.outbox.release([claim]) == {claim.id}
    assert fences == sorted(set(fences))


async def test_a_settlement_takes_effect_once(lane: Bench) -> None:
    await lane.insert()
    (claim,) = await lane.outbox.claim(1)
    assert await lane.outbox.settle([(claim, Complete())]) == {claim.id}
    assert await lane.outbox.settle([(claim, Bury(FAILURE))]) == set()
    assert (await lane.row(claim.id))["status"] == "sent"


async def test_a_settlement_whose_answer_was_lost_is_confirmed_and_no_other(lane: Bench) -> None:
    settled, held, lost = await lane.insert(3)
    claims = {claim.id: claim for claim in await lane.outbox.claim(3)}
    await lane.outbox.settle([(claims[settled], Complete())])
    await lane.age(lost, 1000)
    assert await lane.outbox.rescue(10) == 1
    assert await lane.outbox.confirm(list(claims.values())) == {settled}
    assert (await lane.row(held))["status"] == "dispatching"
    assert (await lane.row(lost))["status"] == "queued", "rescued, and not by a settlement of ours"


async def test_a_stale_owner_is_refused_everything(lane: Bench) -> None:
    """Its lease ended and another took the row: nothing it says touches it any more."""
    (id,) = await lane.insert()
    (stale,) = await lane.outbox.claim(1)
    await lane.age(id, 1000)
    assert await lane.outbox.rescue(10) == 1
    (owner,) = await lane.outbox.claim(1)
    assert owner.fence > stale.fence
    assert await lane.outbox.settle([(stale, Complete())]) == set()
    assert await lane.outbox.renew([stale]) == set()
    assert await lane.outbox.release([stale]) == set()
    assert (await lane.row(id))["status"] == "dispatching"
    assert await lane.outbox.settle([(owner, Complete())]) == {id}


async def test_one_batch_settles_each_claim_in_its_own_way(lane: Bench) -> None:
    a, b, c, d = await lane.insert(4)
    claims = {claim.id: claim for claim in await lane.outbox.claim(4)}
    stale = claims[d]
    await lane.outbox.release([stale])
    settled = await lane.outbox.settle(
        [
            (claims[b], RetryIn(90.0, FAILURE)),
            (stale, Complete()),
            (claims[c], Bury(FAILURE)),
            (claims[a], Complete()),
        ]
    )
    assert settled == {a, b, c}
    assert [(await lane.row(id))["status"] for id in (a, b, c, d)] == ["sent", "queued", "failed", "queued"]


async def test_a_renewal_prolongs_only_what_is_ours(lane: Bench) -> None:
    (id,) = await lane.insert()
    (claim,) = await lane.outbox.claim(1)
    await lane.age(id, 100)
    before = (await lane.row(id))["lease_expires_at"]
    assert await lane.outbox.renew([claim]) == {id}
    assert (await lane.row(id))["lease_expires_at"] > before
    assert await lane.outbox.rescue(10) == 0


async def test_a_release_charges_nothing_and_keeps_the_place_in_the_queue(lane: Bench) -> None:
    (id,) = await lane.insert()
    before = (await lane.row(id))["next_attempt_at"]
    (claim,) = await lane.outbox.claim(1)
    assert await lane.outbox.release([claim]) == {id}
    row = await lane.row(id)
    assert (row["status"], row["retry_count"], row["next_attempt_at"]) == ("queued", 0, before)
    assert row["lease_expires_at"] is None


@pytest.mark.clause("OUT-13")
async def test_a_row_of_a_dead_worker_is_due_again_behind_the_others(lane: Bench) -> None:
    lost, other = await lane.insert(2)
    (claim,) = await lane.outbox.claim(1)
    assert claim.id == lost
    assert await lane.outbox.rescue(10) == 0
    await lane.age(lost, 1000)
    assert await lane.outbox.rescue(10) == 1
    row = await lane.row(lost)
    assert (row["status"], row["retry_count"], row["rescue_count"]) == ("queued", 0, 1)
    assert [c.id for c in await lane.outbox.claim(10)] == [other, lost]


@pytest.mark.clause("OUT-13")
async def test_the_fourth_rescue_costs_an_attempt(lane: Bench) -> None:
    (id,) = await lane.insert()
    for rescues in range(1, 5):
        (claim,) = await lane.outbox.claim(1)
        await lane.age(id, 1000)
        await lane.homing.mail.maintenance.rescue()
        row = await lane.row(id)
        assert (row["rescue_count"], row["retry_count"], row["status"]) == (
            rescues,
            int(rescues == 4),
            "queued",
        )
        assert await lane.outbox.settle([(claim, Complete())]) == set()
    assert "worker_died" in (await lane.row(id))["last_error"]
    assert await lane.outbox.claim(1) == [], "a charged rescue waits like any failed attempt"


@pytest.mark.clause("OUT-13")
async def test_a_row_that_kills_its_workers_ends(lane: Bench) -> None:
    (id,) = await lane.insert()
    for _ in range(3 + 5):
        await lane.age(id, 100_000)
        await lane.outbox.claim(1)
        await lane.age(id, 100_000)
        await lane.homing.mail.maintenance.rescue()
    row = await lane.row(id)
    assert (row["status"], row["retry_count"]) == ("failed", 5)


@pytest.mark.clause("OUT-12")
async def test_maintenance_ends_rows_beyond_a_lowered_limit(database_url: str) -> None:
    async with bench(database_url) as before:
        over, under = await before.insert(2)
        await before.sql(
            "UPDATE mail_outbox SET retry_count = 3, last_error = 'x' WHERE id = :id RETURNING id", id=over
        )
        await before.sql("UPDATE mail_outbox SET retry_count = 1 WHERE id = :id RETURNING id", id=under)
    async with bench(database_url, dispatch_max_attempts=3) as lowered:
        await lowered.homing.mail.maintenance.once()
        assert (await lowered.row(over))["status"] == "failed"
        assert (await lowered.row(over))["last_error"] == "x"
        assert (await lowered.row(under))["status"] == "queued"


async def test_maintenance_ends_what_has_expired(lane: Bench) -> None:
    past, future, never = await lane.insert(3)
    sooner, later = "2020-01-01T00:00:00.000Z", "2999-01-01T00:00:00.000Z"
    cast = "::text::timestamptz" if lane.homing.database.dialect == "postgres" else ""
    for id, moment in ((past, sooner), (future, later)):
        await lane.sql(
            f"UPDATE mail_outbox SET expires_at = :t{cast} WHERE id = :id RETURNING id", t=moment, id=id
        )
    await lane.homing.mail.maintenance.once()
    states = [(await lane.row(id))["status"] for id in (past, future, never)]
    assert states == ["expired", "queued", "queued"]
    assert (await lane.row(past))["retry_count"] == 0


async def test_renewing_and_settling_the_same_rows_at_once_never_deadlocks(lane: Bench) -> None:
    await lane.insert(40)
    claims = await lane.outbox.claim(40)
    for _ in range(10):
        backwards = list(reversed(claims))
        results = await asyncio.gather(
            lane.outbox.renew(claims),
            lane.outbox.renew(backwards),
            lane.outbox.renew(claims[::3] + claims[1::3]),
        )
        assert [len(kept) for kept in results] == [40, 40, 27]
    await asyncio.gather(
        lane.outbox.renew(claims), lane.outbox.settle([(c, Complete()) for c in reversed(claims)])
    )
    assert (await lane.outbox.counts())["sent"] == 40
