"""A row that a person puts back by plain SQL is attempted, and goes to those who do not have it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.lanes.test_mail_outbox_adopt import TABLES, made
from tests.notifications import other_program
from tests.outbox import Bench, bench

from homing.app import MAIL_PACKAGE
from homing.db import connect, instant
from homing.db.migrate import load_migrations, migrate
from homing.engine.model import Bury, Complete, RetryIn
from homing.senders.mail import SendError, SendErrorCode, SendResult, Verdict

REFUSED = Verdict("rejected", code=550, enhanced="5.1.1", text="no such user")
ACCEPTED = Verdict("accepted", code=250)
LATER = Verdict("deferred", code=450)
GONE = SendResult(status="retryable", provider="memory", error=SendError(SendErrorCode.NETWORK_ERROR, "gone"))


async def put_back(lane: Bench, id: int, **columns: Any) -> None:
    """As a person does it at the SQL console."""
    sets = "".join(f", {name} = :{name}" for name in columns)
    await lane.sql(
        f"UPDATE mail_outbox SET status = 'queued', retry_count = 0, next_attempt_at = created_at{sets} "
        "WHERE id = :id RETURNING id",
        id=id, **columns,
    )  # fmt: skip


async def refused(lane: Bench, *refusing: str, to: str = "ann@example.org") -> int:
    """A mail that has failed because some refused it, and would be taken now."""
    for address in refusing:
        lane.sender.answer(address, REFUSED)
    (id,) = await lane.insert(to_address=to)
    assert isinstance((await lane.deliver())[id], Bury)
    for address in refusing:
        lane.sender.answer(address, ACCEPTED)
    lane.sender.messages.clear()
    return id


def reached(lane: Bench) -> list[list[str]]:
    return [sorted(message.recipients) for message in lane.sender.messages]


async def ends(lane: Bench, ids: Iterable[int]) -> list[str]:
    return [(await lane.row(id))["status"] for id in ids]


@pytest.mark.clause("OUT-15")
async def test_a_refused_mail_that_was_put_back_is_sent(database_url: str) -> None:
    async with bench(database_url) as lane:
        id = await refused(lane, "ann@example.org")
        await put_back(lane, id)
        assert isinstance((await lane.deliver())[id], Complete)
        assert reached(lane) == [["ann@example.org"]]
        row = await lane.row(id)
        assert (row["status"], row["retry_count"], row["last_error"]) == ("sent", 0, None)


@pytest.mark.clause("OUT-15")
async def test_only_those_who_have_not_accepted_get_it_and_under_the_same_message_id(
    database_url: str,
) -> None:
    async with bench(database_url) as lane:
        lane.sender.answer("bob@example.org", REFUSED)
        (id,) = await lane.insert(to_address="ann@example.org, bob@example.org")
        await lane.deliver()
        lane.sender.answer("bob@example.org", ACCEPTED)
        await put_back(lane, id)
        assert isinstance((await lane.deliver())[id], Complete)
        assert reached(lane) == [["ann@example.org", "bob@example.org"], ["bob@example.org"]]
        first, second = lane.sender.messages
        assert first.message_id == second.message_id


@pytest.mark.clause("OUT-15")
@pytest.mark.parametrize("columns", [{}, {"sent_at": None, "last_error": None}])
async def test_a_sent_mail_that_was_put_back_goes_to_all_under_a_new_message_id(
    database_url: str, columns: dict[str, Any]
) -> None:
    everybody = ["ann@example.org", "bob@example.org"]
    async with bench(database_url) as lane:
        (id,) = await lane.insert(to_address=", ".join(everybody))
        assert isinstance((await lane.deliver())[id], Complete)
        for _ in range(2):
            await put_back(lane, id, **columns)
            assert isinstance((await lane.deliver())[id], Complete)
        assert reached(lane) == [everybody] * 3
        assert len({message.message_id for message in lane.sender.messages}) == 3


@pytest.mark.clause("OUT-15")
async def test_retries_of_what_was_put_back_keep_its_message_id_and_go_to_whom_it_is_open(
    database_url: str,
) -> None:
    async with bench(database_url) as lane:
        (id,) = await lane.insert(to_address="ann@example.org, bob@example.org")
        await lane.deliver()
        await put_back(lane, id)
        lane.sender.answer_next(GONE)
        lane.sender.answer("bob@example.org", LATER)
        for _ in range(2):
            assert isinstance((await lane.deliver())[id], RetryIn)
            await lane.age(id, 100_000)
        lane.sender.answer("bob@example.org", ACCEPTED)
        assert isinstance((await lane.deliver())[id], Complete)
        both = ["ann@example.org", "bob@example.org"]
        assert reached(lane) == [both, both, both, ["bob@example.org"]]
        assert len({message.message_id for message in lane.sender.messages[1:]}) == 1
        assert lane.sender.messages[0].message_id != lane.sender.messages[1].message_id


@pytest.mark.clause("OUT-15")
@pytest.mark.parametrize("lost", ["released", "rescued", "rescued for the fourth time"])
async def test_a_worker_that_is_lost_after_the_claim_changes_nothing(database_url: str, lost: str) -> None:
    async with bench(database_url) as lane:
        id = await refused(lane, "ann@example.org")
        await put_back(lane, id)
        claims = await lane.outbox.claim(10)
        if lost == "released":
            await lane.outbox.release(claims)
        else:
            await lane.age(id, 1000)
            if lost != "rescued":
                await lane.sql("UPDATE mail_outbox SET rescue_count = 3 WHERE id = :id RETURNING id", id=id)
                (taken,) = await lane.outbox.claim_lost(10)
                assert taken.item.recipients is None
                await lane.outbox.release([taken])
            else:
                assert await lane.outbox.rescue(10) == 1
        assert isinstance((await lane.deliver())[id], Complete)
        assert reached(lane) == [["ann@example.org"]]


@pytest.mark.clause("OUT-15")
async def test_what_had_expired_is_sent_when_it_was_put_back(database_url: str) -> None:
    async with bench(database_url) as lane:
        past = "2026-01-01T00:00:00.000Z"
        expires = instant(past) if lane.homing.database.dialect == "postgres" else past
        swept, claimed = await lane.insert(2, expires_at=expires)
        await lane.sql(
            "UPDATE mail_outbox SET next_attempt_at = '2099-01-01' WHERE id = :id RETURNING id", id=swept
        )
        await lane.deliver()
        assert await lane.outbox.sweep(10) == {"expired": 1}
        assert await ends(lane, (swept, claimed)) == ["expired", "expired"]
        for id in (swept, claimed):
            await put_back(lane, id)
        assert await lane.outbox.sweep(10) == {}
        lane.sender.answer_next(GONE, GONE)
        for _ in range(2):
            await lane.deliver()
            for id in (swept, claimed):
                await lane.age(id, 100_000)
            assert await lane.outbox.sweep(10) == {}
        assert await ends(lane, (swept, claimed)) == ["sent", "sent"]


@pytest.mark.clause("OUT-15", "OUT-14")
@pytest.mark.parametrize("table", ["ours", *TABLES])
async def test_what_plain_sql_had_ended_is_sent_when_it_was_put_back(database_url: str, table: str) -> None:
    states = ["cancelled", "expired", "failed", "sent"]
    async with AsyncExitStack() as stack:
        if table != "ours":
            await stack.enter_async_context(made(database_url, TABLES[table]))
        lane = await stack.enter_async_context(bench(database_url))
        new = {"status": "queued", "retry_count": 0}
        tried = await lane.insert(len(states), to_address="ann@example.org, bob@example.org", **new)
        lane.sender.answer("ann@example.org", REFUSED)
        lane.sender.answer("bob@example.org", LATER)
        assert {type(end) for end in (await lane.deliver()).values()} == {RetryIn}
        lane.sender.answer("ann@example.org", ACCEPTED)
        lane.sender.answer("bob@example.org", ACCEPTED)
        past = "2026-01-01T00:00:00.000Z"
        expires = instant(past) if lane.homing.database.dialect == "postgres" else past
        late = await lane.insert(len(states), to_address="cy@example.org", expires_at=expires, **new)

        lane.sender.messages.clear()
        for id, status in zip([*tried, *late], states * 2, strict=True):
            await lane.sql(
                "UPDATE mail_outbox SET status = :status WHERE id = :id RETURNING id", id=id, status=status
            )
            await put_back(lane, id)
        assert await lane.outbox.sweep(10) == {}
        await lane.deliver()
        assert await ends(lane, [*tried, *late]) == ["sent"] * 8
        assert (
            sorted(reached(lane)) == [["ann@example.org", "bob@example.org"]] * 4 + [["cy@example.org"]] * 4
        )


@pytest.mark.clause("OUT-15")
async def test_what_was_cancelled_is_sent_when_it_was_put_back(database_url: str) -> None:
    async with bench(database_url) as lane:
        (id,) = await lane.insert(to_address="ann@example.org, bob@example.org")
        lane.sender.answer("ann@example.org", REFUSED)
        lane.sender.answer("bob@example.org", LATER)
        await lane.deliver()
        assert await lane.outbox.cancel([id]) == [id]
        for address in ("ann@example.org", "bob@example.org"):
            lane.sender.answer(address, ACCEPTED)
        await put_back(lane, id)
        assert isinstance((await lane.deliver())[id], Complete)


@pytest.mark.clause("OUT-15", "OUT-08")
async def test_an_ordinary_retry_goes_to_the_recipients_that_are_open(database_url: str) -> None:
    async with bench(database_url) as lane:
        lane.sender.answer("ann@example.org", REFUSED)
        lane.sender.answer("bob@example.org", LATER)
        (id,) = await lane.insert(to_address="ann@example.org, bob@example.org, cy@example.org")
        assert isinstance((await lane.deliver())[id], RetryIn)
        await lane.age(id, 100_000)
        lane.sender.answer("bob@example.org", ACCEPTED)
        assert isinstance((await lane.deliver())[id], Bury)
        assert reached(lane)[1:] == [["bob@example.org"]]


@pytest.mark.clause("OUT-15")
@pytest.mark.parametrize("recipients", ['"x"', "[]", '{"ann@example.org": "accepted"}', "{}"])
async def test_verdicts_that_another_program_wrote_hold_nothing_up(
    database_url: str, recipients: str
) -> None:
    async with bench(database_url) as lane:
        (id,) = await lane.insert()
        (other,) = await lane.insert(to_address="bob@example.org")
        await lane.deliver()
        given = "CAST(:recipients AS jsonb)" if lane.homing.database.dialect == "postgres" else ":recipients"
        await lane.sql(
            f"UPDATE mail_outbox SET recipients = {given}, delivered_by = NULL WHERE id = :id RETURNING id",
            id=id, recipients=recipients,
        )  # fmt: skip
        for one in (id, other):
            await put_back(lane, one)
        await lane.deliver()
        assert await ends(lane, (id, other)) == ["sent", "sent"]
        assert len(lane.sender.messages) == 4


@pytest.mark.clause("OUT-15")
async def test_what_ended_before_the_upgrade_is_attempted_too(database_url: str) -> None:
    database = connect(database_url)
    other = await other_program(database_url)
    before = [one for one in load_migrations([MAIL_PACKAGE], database.dialect) if one.version <= 5]
    await migrate(database, before)
    rejected = '{"ann@example.org": {"status": "rejected", "code": 550}}'
    accepted = '{"ann@example.org": {"status": "accepted", "code": 250}}'
    for status, verdicts, sent in (("failed", rejected, "NULL"), ("sent", accepted, "CURRENT_TIMESTAMP")):
        await other.sql(
            "INSERT INTO mail_outbox (to_address, subject, text_body, status, recipients, claim_seq, "
            "sent_at) "
            f"VALUES ('ann@example.org', 'Hi', 'Hello.', '{status}', '{verdicts}', 3, {sent})"
        )
    await other.close()
    await database.close()
    async with bench(database_url) as lane:
        for id in (1, 2):
            await put_back(lane, id)
        lane.sender.answer_next(GONE, GONE)
        for _ in range(2):
            await lane.deliver()
            for id in (1, 2):
                await lane.age(id, 100_000)
        assert await ends(lane, (1, 2)) == ["sent", "sent"]
        assert reached(lane) == [["ann@example.org"]] * 4
        assert len({message.message_id for message in lane.sender.messages}) == 2


@pytest.mark.clause("OUT-15")
@pytest.mark.parametrize("version", [5, 10])
async def test_what_was_put_back_before_the_upgrade_is_attempted_too(database_url: str, version: int) -> None:
    """And nothing else is taken for it: a retry goes to whom it is open, and what is over expires."""
    database = connect(database_url)
    other = await other_program(database_url)
    before = [one for one in load_migrations([MAIL_PACKAGE], database.dialect) if one.version <= version]
    await migrate(database, before)
    refused = """'{"ann@example.org": {"status": "rejected"}}'"""
    partly = """'{"ann@example.org": {"status": "accepted"}, "bob@example.org": {"status": "rejected"}}'"""
    past = "'2026-01-01T00:00:00.000Z'"
    for to, verdicts, error, seq, retries, deferrals, expires in (
        ("ann@example.org", refused, "'550'", 1, 0, 0, "NULL"),
        ("ann@example.org, bob@example.org", partly, "'550'", 1, 0, 0, "NULL"),
        ("cy@example.org", "NULL", "'expired before it could be sent'", 0, 0, 0, past),
        ("ann@example.org, di@example.org", refused, "'450'", 1, 1, 0, "NULL"),
        ("ann@example.org, ed@example.org", refused, "'421'", 1, 0, 1, "NULL"),
        ("fay@example.org", "NULL", "NULL", 1, 0, 0, past),
    ):
        await other.sql(
            "INSERT INTO mail_outbox (to_address, subject, text_body, recipients, last_error, claim_seq, "
            f"retry_count, defer_count, expires_at) VALUES ('{to}', 'Hi', 'Hello.', {verdicts}, {error}, "
            f"{seq}, {retries}, {deferrals}, {expires})"
        )
    await other.close()
    await database.close()
    async with bench(database_url) as lane:
        assert await lane.outbox.sweep(10) == {"expired": 1}
        await lane.deliver()
        assert await ends(lane, range(1, 7)) == ["sent", "sent", "sent", "failed", "failed", "expired"]
        ann, bob, cy, di, ed = (f"{name}@example.org" for name in ("ann", "bob", "cy", "di", "ed"))
        assert sorted(reached(lane)) == [[ann], [bob], [cy], [di], [ed]]


@pytest.mark.clause("OUT-15", "OUT-12")
async def test_what_was_put_back_without_an_attempt_and_is_over_ends(database_url: str) -> None:
    async with bench(database_url) as lane:
        id = await refused(lane, "ann@example.org")
        await lane.sql(
            "UPDATE mail_outbox SET status = 'queued', retry_count = 5, expires_at = created_at"
            " WHERE id = :id RETURNING id",
            id=id,
        )
        await lane.outbox.sweep(10)
        assert await ends(lane, [id]) == ["failed"]
