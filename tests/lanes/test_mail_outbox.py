"""mail_outbox against real databases and a real SMTP conversation."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.outbox import Bench, bench
from tests.senders.peers import AiosmtpdPeer, aiosmtpd_peer

from homing.db import instant, iso
from homing.engine.model import Bury, Complete, Failure, RetryIn
from homing.errors import Refused, Unreachable
from homing.testing.smtp_sink import Act, SmtpSink, Stage, drop, reply


@pytest.fixture
async def sink() -> AsyncIterator[SmtpSink]:
    async with SmtpSink() as opened:
        yield opened


@pytest.fixture
async def lane(database_url: str, sink: SmtpSink) -> AsyncIterator[Bench]:
    async with bench(database_url, mail_url=sink.url) as opened:
        yield opened


@pytest.fixture
def peer() -> Iterator[AiosmtpdPeer]:
    with aiosmtpd_peer() as server:
        yield server


def refusing(*answers: tuple[str, str]) -> SmtpSink:
    """A relay that answers RCPT for some addresses in its own way."""
    table = dict(answers)

    def script(stage: Stage, argument: str) -> Act | None:
        if stage != "rcpt":
            return None
        return next((reply(text) for address, text in table.items() if address in argument), None)

    return SmtpSink(script=script)


# ── the order ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("OUT-05")
async def test_an_insert_by_another_driver_is_a_complete_order(postgres_url: str, peer: AiosmtpdPeer) -> None:
    """Recipient, subject and body are enough; the independent peer is aiosmtpd."""
    async with bench(postgres_url, mail_url=f"smtp://127.0.0.1:{peer.port}") as lane:
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(
            "INSERT INTO mail_outbox (to_address, subject, text_body) "
            "VALUES ('ann@example.org', 'Hi', 'Hello.')"
        )
        await connection.close()
        (settlement,) = (await lane.deliver()).values()
        assert isinstance(settlement, Complete)
    (envelope,) = peer.envelopes
    (content,) = peer.contents
    assert envelope.rcpt_tos == ["ann@example.org"]
    message = message_from_bytes(content, policy=policy.default)
    assert (message["subject"], message.get_content().strip()) == ("Hi", "Hello.")
    assert message["from"] == "shop@example.com"


@pytest.mark.clause("OUT-05")
async def test_an_insert_by_another_program_into_the_sqlite_file_is_a_complete_order(
    sqlite_url: str, sink: SmtpSink, tmp_path: Path
) -> None:
    async with bench(sqlite_url, mail_url=sink.url) as lane:
        with sqlite3.connect(tmp_path / "homing.db") as other:
            other.execute(
                "INSERT INTO mail_outbox (to_address, subject, text_body) "
                "VALUES ('ann@example.org', 'Hi', 'Hello.')"
            )
        other.close()
        await lane.deliver()
        assert [mail.recipients for mail in sink.mails] == [("ann@example.org",)]


@pytest.mark.clause("OUT-05")
async def test_the_columns_of_the_specification(database_url: str) -> None:
    async with bench(database_url) as lane:
        (id,) = await lane.insert()
        row = await lane.row(id)
        assert (row["retry_count"], row["last_error"], row["last_attempt_at"]) == (0, None, None)
        assert row["next_attempt_at"] is not None
        for column in ("retry_count", "next_attempt_at"):
            with pytest.raises(Exception, match=r"(?i)not.null"):
                await lane.sql(f"UPDATE mail_outbox SET {column} = NULL WHERE id = :id RETURNING id", id=id)
        with pytest.raises(Exception, match=r"(?i)check"):
            await lane.sql("UPDATE mail_outbox SET status = 'nonsense' WHERE id = :id RETURNING id", id=id)


@pytest.mark.clause("OUT-05")
@pytest.mark.parametrize(
    "written", ["2099-01-02 03:04:05", "2099-01-02T03:04:05+00:00", "2099-01-02T03:04:05Z"]
)
async def test_sqlite_reads_times_in_any_iso_form(sqlite_url: str, written: str) -> None:
    async with bench(sqlite_url) as lane:
        (id,) = await lane.insert(next_attempt_at=written)
        assert (await lane.row(id))["next_attempt_at"] == "2099-01-02T03:04:05.000Z"


async def test_sqlite_refuses_a_time_that_is_none(sqlite_url: str) -> None:
    async with bench(sqlite_url) as lane:
        for wrong in (
            "soon",
            "",
            0,
            "0000-00-00T00:00:00.000Z",
            "2026-13-45T00:00:00.000Z",
            "9999-12-31T00:00:00.000Z",
        ):
            with pytest.raises(Refused):
                await lane.insert(next_attempt_at=wrong)
            with pytest.raises(Refused):
                await lane.insert(expires_at=wrong)
        assert await lane.outbox.page() == []


@pytest.mark.parametrize("wrong", ["-infinity", "infinity", "0001-01-01", "9999-12-31"])
async def test_postgres_refuses_times_that_nobody_can_read(postgres_url: str, wrong: str) -> None:
    async with bench(postgres_url) as lane:
        for column in ("next_attempt_at", "expires_at"):
            with pytest.raises(Refused):
                await lane.sql(
                    f"INSERT INTO mail_outbox (to_address, {column}) "
                    "VALUES ('a@example.org', :t::text::timestamptz) RETURNING id",
                    t=wrong,
                )
        assert await lane.outbox.page() == []


# ── how attempts end ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("OUT-07", "OUT-08")
async def test_a_success(lane: Bench, sink: SmtpSink) -> None:
    (id,) = await lane.insert()
    await lane.sql(
        "UPDATE mail_outbox SET last_error = 'earlier', retry_count = 2 WHERE id = :id RETURNING id", id=id
    )
    await lane.deliver()
    row = await lane.row(id)
    assert (row["status"], row["last_error"], row["retry_count"], row["provider"]) == (
        "sent",
        None,
        2,
        "smtp",
    )
    assert instant(row["last_attempt_at"]) is not None
    assert instant(row["sent_at"]) is not None
    assert json.loads(row["recipients"])["ann@example.org"]["status"] == "accepted"
    assert (row["locked_by"], row["lease_expires_at"]) == (None, None)
    assert len(sink.mails) == 1


@pytest.mark.clause("OUT-06", "OUT-07", "OUT-09")
async def test_a_deferred_mail_is_charged_and_waits_by_the_formula(database_url: str) -> None:
    async with (
        refusing(("ann@", "450 4.2.1 busy")) as relay,
        bench(database_url, mail_url=relay.url, dispatch_backoff_jitter=0.0) as lane,
    ):
        (id,) = await lane.insert()
        for failures, wait in ((1, 60), (2, 120), (3, 240), (4, 480)):
            (settlement,) = (await lane.deliver()).values()
            assert isinstance(settlement, RetryIn)
            row = await lane.row(id)
            assert (row["status"], row["retry_count"]) == ("queued", failures)
            assert "450 4.2.1 busy" in row["last_error"]
            due, last = instant(row["next_attempt_at"]), instant(row["last_attempt_at"])
            assert due is not None
            assert last is not None
            assert wait <= (due - last).total_seconds() < wait + 5
            assert await lane.deliver() == {}, "not due yet"
            await lane.age(id, wait)
        (settlement,) = (await lane.deliver()).values()
        assert isinstance(settlement, Bury)
        assert ((await lane.row(id))["status"], (await lane.row(id))["retry_count"]) == ("failed", 5)
        await lane.age(id, 100_000)
        assert await lane.deliver() == {}, "no attempt follows"


@pytest.mark.clause("OUT-12")
@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"to_address": "ann@example.org"}, "550 5.1.1"),
        ({"to_address": "no address at all"}, "invalid_recipient"),
        ({"to_address": ""}, "there is no recipient"),
        ({"to_address": "bo@example.org", "subject": "A\r\nBcc: x@example.org"}, "control character"),
        ({"to_address": "bo@example.org", "template": "missing"}, "template missing"),
        ({"to_address": "bo@example.org", "from_address": "nobody"}, "the sender"),
    ],
)
async def test_a_permanent_refusal_fails_at_once(
    database_url: str, columns: dict[str, Any], error: str
) -> None:
    async with (
        refusing(("ann@", "550 5.1.1 no such user")) as relay,
        bench(database_url, mail_url=relay.url) as lane,
    ):
        (id,) = await lane.insert(**columns)
        await lane.deliver()
        row = await lane.row(id)
        assert (row["status"], row["retry_count"]) == ("failed", 1)
        assert error in row["last_error"]
        assert relay.mails == []


@pytest.mark.clause("OUT-06")
async def test_a_connection_that_fails_is_a_failed_attempt_and_the_breaker_saves_the_rest(
    database_url: str,
) -> None:
    async with SmtpSink() as gone:
        url = gone.url
    async with bench(database_url, mail_url=url, mail_connections=1) as lane:
        ids = await lane.insert(30)
        await lane.deliver(30)
        counts = [(await lane.row(id))["retry_count"] for id in ids]
        assert 0 < sum(counts) < 30, "a few are charged, then the breaker opens"
        assert max(counts) == 1
        deferred = [(await lane.row(id))["defer_count"] for id in ids]
        assert sum(deferred) == 30 - sum(counts)
        for id in ids:
            await lane.age(id, 1000)
        assert await lane.deliver(30) == {}, "nothing is claimed while the relay is away"
        assert [(await lane.row(id))["retry_count"] for id in ids] == counts


@pytest.mark.clause("OUT-06")
async def test_the_breaker_closes_again_when_a_probe_succeeds(database_url: str) -> None:
    async with SmtpSink() as first:
        port = first.port
    async with bench(database_url, mail_url=f"smtp://127.0.0.1:{port}", mail_connections=1) as lane:
        ids = await lane.insert(10)
        await lane.deliver(10)
        for id in ids:
            await lane.age(id, 1000)
        async with SmtpSink(port=port) as back:
            async with asyncio.timeout(60):
                while len(back.mails) < 10:
                    await lane.deliver(10)
                    await asyncio.sleep(0.1)
                    for id in ids:
                        await lane.age(id, 1000)
            assert {(await lane.row(id))["status"] for id in ids} == {"sent"}


@pytest.mark.clause("OUT-06")
async def test_a_relay_that_is_busy_for_everybody_costs_nothing_ten_times(database_url: str) -> None:
    async with (
        SmtpSink(
            script=lambda stage, _argument: reply("421 4.3.2 busy", drop=True) if stage == "mail" else None
        ) as busy,
        bench(database_url, mail_url=busy.url) as lane,
    ):
        (id,) = await lane.insert()
        for deferrals in (1, 2, 3):
            await lane.age(id, 1000)
            await lane.deliver()
            row = await lane.row(id)
            assert (row["status"], row["retry_count"], row["defer_count"]) == ("queued", 0, deferrals)
        # Many refusals in a row open the breaker, which would keep this test waiting.
        await lane.sql("UPDATE mail_outbox SET defer_count = 10 WHERE id = :id RETURNING id", id=id)
        await lane.age(id, 1000)
        await lane.deliver()
        row = await lane.row(id)
        assert (row["retry_count"], row["defer_count"]) == (1, 0)


async def test_unknown_is_not_failed(database_url: str) -> None:
    """The relay kept the mail and hung up before it said so: the retry carries the same Message-ID."""
    dots: list[str] = []

    def script(stage: Stage, argument: str) -> Act | None:
        if stage == "dot":
            dots.append(argument)
            return drop(accept=True) if len(dots) == 1 else None
        return None

    async with SmtpSink(script=script) as relay, bench(database_url, mail_url=relay.url) as lane:
        (id,) = await lane.insert()
        await lane.deliver()
        row = await lane.row(id)
        assert (row["status"], row["retry_count"]) == ("queued", 1)
        assert row["last_error"].startswith("unknown")
        await lane.age(id, 1000)
        await lane.deliver()
        assert (await lane.row(id))["status"] == "sent"
        assert len(relay.mails) == 2
        assert len({mail.message_id for mail in relay.mails}) == 1


# ── several recipients ───────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("OUT-08")
async def test_each_recipient_has_a_verdict_and_a_retry_reaches_only_the_open_ones(database_url: str) -> None:
    answers = {"bo@": "450 4.2.0 later", "cy@": "550 5.1.1 unknown"}

    def script(stage: Stage, argument: str) -> Act | None:
        return next((reply(t) for a, t in answers.items() if stage == "rcpt" and a in argument), None)

    async with SmtpSink(script=script) as relay, bench(database_url, mail_url=relay.url) as lane:
        (id,) = await lane.insert(to_address="ann@example.org, bo@example.org", cc_address="cy@example.org")
        await lane.deliver()
        row = await lane.row(id)
        verdicts = {address: v["status"] for address, v in json.loads(row["recipients"]).items()}
        assert verdicts == {
            "ann@example.org": "accepted",
            "bo@example.org": "deferred",
            "cy@example.org": "rejected",
        }
        assert (row["status"], row["retry_count"]) == ("queued", 1)
        del answers["bo@"]
        await lane.age(id, 1000)
        await lane.deliver()
        assert [mail.recipients for mail in relay.mails] == [("ann@example.org",), ("bo@example.org",)]
        assert len({mail.message_id for mail in relay.mails}) == 1
        row = await lane.row(id)
        assert row["status"] == "failed", "one was refused, and none is open any more"
        answers.clear()
        assert await lane.outbox.requeue([id]) == [id]
        await lane.deliver()
        assert relay.mails[-1].recipients == ("cy@example.org",)
        row = await lane.row(id)
        assert row["status"] == "sent"
        assert {v["status"] for v in json.loads(row["recipients"]).values()} == {"accepted"}


@pytest.mark.clause("OUT-08")
async def test_bcc_is_in_the_envelope_and_in_no_header(lane: Bench, sink: SmtpSink) -> None:
    await lane.insert(to_address="Ann <ann@example.org>", bcc_address="secret@example.org")
    await lane.deliver()
    (mail,) = sink.mails
    assert set(mail.recipients) == {"ann@example.org", "secret@example.org"}
    assert b"secret@example.org" not in mail.data


async def test_a_malformed_recipient_does_not_keep_the_others_from_theirs(
    lane: Bench, sink: SmtpSink
) -> None:
    (id,) = await lane.insert(to_address="ann@example.org, not an address")
    await lane.deliver()
    assert [mail.recipients for mail in sink.mails] == [("ann@example.org",)]
    assert (await lane.row(id))["status"] == "failed"


# ── content ──────────────────────────────────────────────────────────────────────────────────────


def body_of(message: EmailMessage, kind: str) -> str:
    part = message.get_body((kind,))
    assert part is not None
    return str(part.get_content())


async def test_everything_a_mail_can_have_arrives(lane: Bench, sink: SmtpSink) -> None:
    files = [{"filename": "a.txt", "contentType": "text/plain", "content": "aGVsbG8="}]
    await lane.insert(
        to_address="Änn <ann@bücher.example>",
        cc_address="bo@example.org",
        reply_to="help@example.com",
        from_address="Shop <orders@example.com>",
        subject="Grüße ✓",
        html_body="<p>Hello <b>Ann</b></p>",
        text_body=None,
        headers=json.dumps({"X-Order": "42"}),
        attachments=json.dumps(files),
        unsubscribe_url="https://example.com/u/1",
    )
    await lane.deliver()
    (mail,) = sink.mails
    assert set(mail.recipients) == {"ann@xn--bcher-kva.example", "bo@example.org"}
    message = message_from_bytes(mail.data, EmailMessage, policy=policy.default)
    assert message["subject"] == "Grüße ✓"
    assert (message["from"], message["reply-to"]) == ("Shop <orders@example.com>", "help@example.com")
    assert message["x-order"] == "42"
    assert message["list-unsubscribe"] == "<https://example.com/u/1>"
    assert message["list-unsubscribe-post"] == "List-Unsubscribe=One-Click"
    assert body_of(message, "html").strip() == "<p>Hello <b>Ann</b></p>"
    assert "Hello Ann" in body_of(message, "plain")
    (attachment,) = message.iter_attachments()
    assert (attachment.get_filename(), attachment.get_content().strip()) == ("a.txt", "hello")


@pytest.mark.parametrize("large", ["text_body", "html_body", "variables", "attachments"])
async def test_what_is_large_is_read_for_the_attempt_and_arrives_whole(
    database_url: str, sink: SmtpSink, tmp_path: Path, large: str
) -> None:
    folder = tmp_path / "templates" / "welcome"
    folder.mkdir(parents=True)
    (folder / "en.subject.txt").write_text("Hi")
    (folder / "en.html").write_text("<p>{{ name }}</p>")
    words = " ".join(map(str, range(20_000)))
    given: dict[str, str | None] = {
        "text_body": words,
        "html_body": f"<p>{words}</p>",
        "variables": json.dumps({"name": words}),
        "attachments": json.dumps([{"filename": "a.txt", "content": b64encode(words.encode()).decode()}]),
    }
    columns: dict[str, Any] = {
        large: given[large],
        **({"template": "welcome"} if large == "variables" else {}),
    }
    async with bench(database_url, mail_url=sink.url, template_dir=str(folder.parent)) as lane:
        await lane.insert(**columns)
        (claim,) = await lane.outbox.claim(10)
        assert claim.size > 65536
        assert large == "attachments" or getattr(claim.item, large) is None
        assert await lane.outbox.weigh(claim) >= len(words)
        await lane.outbox.release([claim])
        await lane.deliver()
        (mail,) = sink.mails
    message = message_from_bytes(mail.data, EmailMessage, policy=policy.default)
    found = " ".join(str(part.get_content()) for part in message.walk() if not part.is_multipart())
    assert " ".join(words.split()) in " ".join(found.split())


async def test_a_template_with_variables_and_locale(
    database_url: str, sink: SmtpSink, tmp_path: Path
) -> None:
    folder = tmp_path / "templates" / "welcome"
    folder.mkdir(parents=True)
    for locale, word in (("en", "Welcome"), ("de", "Willkommen")):
        (folder / f"{locale}.subject.txt").write_text(f"{word}, {{{{ name }}}}")
        (folder / f"{locale}.html").write_text(f"<p>{word}, {{{{ name }}}}!</p>")
    async with bench(database_url, mail_url=sink.url, template_dir=str(folder.parent)) as lane:
        variables = json.dumps({"name": "Ann & Co"})
        (german,) = await lane.insert(
            template="welcome", variables=variables, locale="de-AT", subject="", text_body=None
        )
        (incomplete,) = await lane.insert(template="welcome", variables="{}", subject="", text_body=None)
        await lane.deliver()
        (mail,) = sink.mails
        message = message_from_bytes(mail.data, EmailMessage, policy=policy.default)
        assert message["subject"] == "Willkommen, Ann & Co"
        assert "Ann &amp; Co" in body_of(message, "html")
        assert (await lane.row(german))["status"] == "sent"
        row = await lane.row(incomplete)
        assert row["status"] == "failed"
        assert row["last_error"].startswith("template_variable_missing")


async def test_an_expired_mail_is_not_sent(lane: Bench, sink: SmtpSink) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    value = past if lane.homing.database.dialect == "postgres" else "2020-01-01T00:00:00.000Z"
    (id,) = await lane.insert(expires_at=value)
    await lane.deliver()
    row = await lane.row(id)
    assert (row["status"], row["retry_count"]) == ("expired", 0)
    assert sink.mails == []


@pytest.mark.clause("OUT-05")
async def test_a_long_failure_is_cut_and_told_in_one_line(database_url: str) -> None:
    async with bench(database_url) as lane:
        (id,) = await lane.insert()
        (claim,) = await lane.outbox.claim(1)
        await lane.outbox.settle([(claim, Bury(Failure("provider_error", "a\n\x00b " * 1000)))])
        error = (await lane.row(id))["last_error"]
        assert len(error) == 500
        assert error.startswith("provider_error: a b a b")


@pytest.mark.clause("OUT-07")
async def test_every_attempt_is_dated_the_successful_one_too(database_url: str) -> None:
    answers = [reply("450 4.2.0 later"), reply("450 4.2.0 later")]

    def script(stage: Stage, _argument: str) -> Act | None:
        return answers.pop() if stage == "rcpt" and answers else None

    async with SmtpSink(script=script) as relay, bench(database_url, mail_url=relay.url) as lane:
        (id,) = await lane.insert()
        dates = []
        for status in ("queued", "queued", "sent"):
            await lane.deliver()
            row = await lane.row(id)
            assert row["status"] == status
            dates.append(iso(row["last_attempt_at"]) or "")
            await lane.age(id, 10_000)
            await asyncio.sleep(0.002)
        assert dates == sorted(set(dates)), "each is later than the one before"


@pytest.mark.clause("OUT-13")
async def test_a_row_marked_by_the_specifications_own_sql_is_rescued_too(database_url: str) -> None:
    """Another dispatcher wrote `dispatching` and `last_attempt_at`, no lease, and died."""
    async with bench(database_url) as lane:
        fresh, old, undated = await lane.insert(3)
        moment = (
            "now()" if lane.homing.database.dialect == "postgres" else "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
        )
        past = (
            "now() - interval '1 hour'"
            if moment == "now()"
            else "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hour')"
        )
        for id, date in ((fresh, moment), (old, past), (undated, "NULL")):
            await lane.sql(
                f"UPDATE mail_outbox SET status = 'dispatching', last_attempt_at = {date} "
                "WHERE id = :id RETURNING id",
                id=id,
            )
        await lane.homing.mail.maintenance.once()
        states = [(await lane.row(id))["status"] for id in (fresh, old, undated)]
        assert states == ["dispatching", "queued", "queued"]


async def test_last_error_is_compact(database_url: str) -> None:
    async with (
        refusing(("ann@", "550 5.1.1 " + "x" * 3000)) as relay,
        bench(database_url, mail_url=relay.url) as lane,
    ):
        (id,) = await lane.insert()
        await lane.deliver()
        assert len((await lane.row(id))["last_error"]) <= 500


# ── what is said ─────────────────────────────────────────────────────────────────────────────────


async def test_one_log_line_per_attempt_and_no_address_in_it(database_url: str) -> None:
    async with (
        refusing(("bo.secret@", "550 5.1.1 <bo.secret@example.org> unknown")) as relay,
        bench(database_url, mail_url=relay.url) as lane,
    ):
        (good,) = await lane.insert(
            to_address="Ann Secret <ann.secret@example.org>", subject="hush", text_body="hush hush"
        )
        (bad,) = await lane.insert(to_address="bo.secret@example.org", subject="hush")
        await lane.deliver()
        lines = {line["id"]: line for line in lane.log.all("delivery.attempted")}
        assert set(lines) == {good, bad}
        assert lines[good]["outcome"] == "delivered"
        assert lines[bad]["outcome"] == "reject"
        for line in lines.values():
            assert {
                "lane",
                "claim_seq",
                "attempt",
                "settlement",
                "settled",
                "duration_ms",
                "provider",
            } <= line.keys()
        assert "secret" not in lane.log.text
        assert "hush" not in lane.log.text


async def test_metrics_count_what_happened(lane: Bench) -> None:
    await lane.insert(3)
    await lane.deliver()
    await lane.homing.mail.backlog.refresh()
    value = lane.homing.telemetry.registry.get_sample_value
    labels = {"lane": "mail_outbox", "outcome": "delivered", "error_code": ""}
    assert value("homing_attempts_total", labels) == 3
    assert value("homing_messages", {"lane": "mail_outbox", "state": "sent"}) == 3
    assert value("homing_claimed_total", {"lane": "mail_outbox"}) == 3
    assert value("homing_attempt_duration_seconds_count", {"lane": "mail_outbox"}) == 3
    assert value("homing_oldest_due_age_seconds", {"lane": "mail_outbox"}) == 0


@pytest.mark.clause("OUT-06")
async def test_our_own_database_being_away_costs_a_mail_nothing(database_url: str, sink: SmtpSink) -> None:
    """Files are read in the attempt; that they cannot be read then is no failure of the mail."""
    async with bench(database_url, mail_url=sink.url) as lane:
        (id,) = await lane.insert(attachments=json.dumps([{"filename": "a", "content": "aGVsbG8="}]))
        read = lane.outbox.parts

        async def away(id: int) -> None:
            raise Unreachable("gone")

        lane.outbox.parts = away  # type: ignore[method-assign]
        await lane.deliver()
        row = await lane.row(id)
        assert (row["status"], row["retry_count"], row["defer_count"]) == ("queued", 0, 1)
        lane.outbox.parts = read  # type: ignore[method-assign]
        await lane.age(id, 1000)
        await lane.deliver()
        assert (await lane.row(id))["status"] == "sent"
