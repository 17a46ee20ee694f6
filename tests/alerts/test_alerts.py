"""Alerts on both databases, to a real mail server and a real receiver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.alerts.bench import NOWHERE, PEOPLE, AlertBench, alert_bench, parsed

from homing.alerts.rules import Cause
from homing.alerts.store import AlertStore
from homing.alerts.words import place_of
from homing.errors import InvalidRequest, SettingsError, Unreachable
from homing.lanes.dispatch_jobs.credentials.orders import CreateCredentials
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.lanes.mail_outbox.view import listed
from homing.settings import load_settings
from homing.signatures import verify
from homing.testing.http_sink import Answer, HttpSink
from homing.testing.smtp_sink import SmtpSink, reply


@asynccontextmanager
async def peers(database_url: str, **settings: Any) -> AsyncIterator[tuple[AlertBench, SmtpSink, HttpSink]]:
    async with SmtpSink() as smtp, HttpSink() as hooks:
        flags = {
            "mail_url": f"smtp://127.0.0.1:{smtp.port}",
            "alert_webhook_url": f"{hooks.url}/alerts",
            **settings,
        }
        async with alert_bench(database_url, **flags) as bench:
            yield bench, smtp, hooks


def to_people(smtp: SmtpSink) -> list[EmailMessage]:
    return [parsed(mail.data) for mail in smtp.mails if PEOPLE in mail.recipients]


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-25")
async def test_dead_letters_are_told_by_mail_and_by_webhook(database_url: str) -> None:
    async with peers(database_url) as (bench, smtp, hooks):
        await bench.kill_mails(3)
        job = await bench.job(NOWHERE, max_retries=1)
        await bench.deliver()
        await bench.look()
        await bench.deliver()
        assert sorted(await bench.titles()) == [
            "1 webhook was given up: connect_error",
            "3 mails were given up: invalid_recipient",
        ]
        mails = {str(mail["subject"]): mail for mail in to_people(smtp)}
        assert set(mails) == {f"[alert] Homing: {title}" for title in await bench.titles()}
        mail = mails["[alert] Homing: 1 webhook was given up: connect_error"]
        for kind in ("plain", "html"):
            body = mail.get_body((kind,))
            assert body is not None
            assert "http://127.0.0.1:8080/dead" in body.get_content()
            assert text_of(job) in body.get_content()
        assert mail["auto-submitted"] == "auto-generated"
        events = [msgspec.json.decode(one.body) for one in await hooks.received(2)]
        assert {event["type"] for event in events} == {"homing.alert"}
        assert {event["data"]["title"] for event in events} == set(await bench.titles())
        await bench.look()
        assert len(await bench.told()) == 2, "once"


async def test_what_dies_later_is_collected_over_the_cool_down(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        await bench.kill_mails(1)
        await bench.look()
        for _ in range(3):
            await bench.kill_mails(2)
            await bench.look()
        assert await bench.titles() == ["1 mail was given up: invalid_recipient"]
        (firing,) = await bench.alerts.firing()
        assert firing.title == "7 mails were given up: invalid_recipient", "as many as are dead now"
        await bench.pass_time(601)
        await bench.look()
        assert (await bench.titles())[1:] == ["6 mails were given up: invalid_recipient"]
        assert (await bench.told())[1].event == "again"
        await bench.pass_time(601)
        await bench.look()
        assert not await bench.alerts.firing()


async def test_what_was_requeued_or_cancelled_is_wrong_no_more(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        await bench.kill_mails(2)
        await bench.kill_mails(1, "timeout: nobody answered")
        job = await bench.job(NOWHERE, max_retries=1)
        await bench.deliver()
        await bench.look()
        await bench.look()
        assert len(await bench.alerts.firing()) == 3, "they are all still there"
        await bench.homing.jobs.requeue([job])
        mails = [row["id"] for row in await bench.tables.rows("mail_outbox", status="failed")]
        await bench.homing.outbox.requeue(mails[:2])
        await bench.look()
        assert [one.cause for one in await bench.alerts.firing()] == ["dead:mail_outbox:timeout"]
        await bench.homing.outbox.requeue(mails[2:])
        await bench.look()
        assert await bench.alerts.firing() == []
        assert len(await bench.told()) == 3, "nobody is told of that"


async def test_nobody_is_told_of_what_was_requeued_before_the_cool_down_ended(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        await bench.kill_mails(2)
        await bench.look()
        await bench.kill_mails(3)
        await bench.look()
        (mail,) = await bench.alert_mails()
        assert "Dead now: 2" in " ".join(mail["text_body"].split())
        assert [one.title for one in await bench.alerts.firing()] == [
            "5 mails were given up: invalid_recipient"
        ]
        dead = [row["id"] for row in await bench.tables.rows("mail_outbox", status="failed")]
        await bench.homing.outbox.requeue(dead[:1])
        await bench.look()
        assert (await bench.alerts.firing())[0].title == "4 mails were given up: invalid_recipient"
        await bench.homing.outbox.requeue(dead[1:])
        await bench.look()
        assert await bench.alerts.firing() == []
        await bench.pass_time(601)
        await bench.look()
        assert len(await bench.told()) == 1, "three that nobody was told of are dead no more"
        await bench.kill_mails(1)
        await bench.look()
        assert (await bench.titles())[1:] == ["1 mail was given up: invalid_recipient"]


async def test_each_lane_notes_its_dead(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        sql = bench.tables.sql
        await bench.look()
        await sql("INSERT INTO email_log (to_address) VALUES ('a@example.org') RETURNING id")
        await sql("UPDATE email_log SET status = 'Dead', dead_reason = 'InvalidRecipient' RETURNING id")
        await sql("INSERT INTO email_log (to_address) VALUES ('b@example.org') RETURNING id")
        await sql(
            "UPDATE email_log SET status = 'Dead', dead_reason = 'Cancelled' "
            "WHERE status <> 'Dead' RETURNING id"
        )
        await sql(
            "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, "
            "fanout_status, error) VALUES (1, 1, 'k', 'failed', :error) RETURNING notification_id",
            error='{"code": "rate_limited"}',
        )
        await bench.kill_mails(1, "no attempts left")
        await bench.look()
        assert sorted(await bench.titles()) == [
            "1 email was given up: InvalidRecipient",
            "1 mail was given up: unclassified",
            "1 notification was given up: rate_limited",
        ]
        await bench.look()
        assert len(await bench.told()) == 3
        # Requeued, and dead again: that is news, in the number of the next alert.
        await sql("UPDATE mail_outbox SET status = 'queued' WHERE status = 'failed' RETURNING id")
        await sql("UPDATE mail_outbox SET status = 'failed' WHERE status = 'queued' RETURNING id")
        await bench.look()
        await bench.pass_time(601)
        await bench.look()
        assert "1 mail was given up: unclassified" in (await bench.titles())[3:]


async def test_an_error_that_is_no_word_holds_up_no_alert(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        job = await bench.job(NOWHERE)
        odd = "two\nlines " + "x" * 1000
        await bench.tables.change("dispatch_job", {"status": "ERROR", "error_class": odd}, id=job)
        await bench.kill_mails(1)
        await bench.look()
        subjects = [mail["subject"] for mail in await bench.alert_mails()]
        assert len(subjects) == 2
        assert any("1 webhook was given up: two lines xxx" in subject for subject in subjects)
        assert max(map(len, subjects)) < 300


async def test_a_template_of_the_operators_own_is_taken_if_it_can_be(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "alert/v1").mkdir(parents=True)
    (tmp_path / "alert/v1/en.subject.txt").write_text("Uh-oh: {{ title }}")
    async with alert_bench(database_url, template_dir=str(tmp_path)) as bench:
        await bench.kill_mails(1)
        await bench.look()
        (tmp_path / "alert/v1/en.subject.txt").write_text("{{ nonsense }}")
        bench.homing.alerts_part.watch.post._templates._recheck_seconds = 0
        await bench.kill_mails(1, "other: x")
        await bench.look()
        assert [mail["subject"] for mail in await bench.alert_mails()] == [
            "Uh-oh: 1 mail was given up: invalid_recipient",
            "[alert] Homing: 1 mail was given up: other",
        ]
        assert "nonsense" in bench.log.all("alert.template_failed")[0]["error"]


async def test_the_dead_that_nobody_watched_over_are_no_news_in_another_programs_table(
    database_url: str,
) -> None:
    async with alert_bench(database_url) as bench:
        for number in range(3):
            await bench.tables.sql(
                "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, "
                "fanout_status, error) VALUES (:n, 1, 'k', 'failed', 'no JSON') RETURNING notification_id",
                n=number,
            )
        await bench.look()
        assert await bench.told() == []


# ── targets ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_target_that_keeps_failing_is_told_of_level_by_level(database_url: str) -> None:
    answers = [Answer(status=503)]
    async with HttpSink(lambda _request: answers[0]) as shop:
        settings = {"alert_target_failures": 10, "jobs_breaker_failures": 100}
        async with alert_bench(database_url, **settings) as bench:
            for _ in range(11):
                await bench.job(shop.url, max_retries=5)
                await bench.deliver()
                await bench.look()
            told = await bench.told()
            assert [(one.event, one.title.partition("(")[2][:5]) for one in told] == [
                ("fired", "50 % "), ("level", "70 % "), ("level", "90 % "), ("level", "100 %"),
            ]  # fmt: skip
            assert f"127.0.0.1:{shop.port} has failed 5 times in a row" in told[0].title
            answers[0] = Answer()
            await bench.job(shop.url)
            await bench.deliver()
            await bench.look()
            await bench.look()
            assert (await bench.told())[4:] != []
            assert [one.event for one in (await bench.told())[4:]] == ["resolved"]
            assert (await bench.alert_mails())[-1]["subject"].startswith("[resolved] Homing: 127.0.0.1:")


# ── backlogs and workers ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lane", ["mail_outbox", "dispatch_jobs"])
async def test_a_backlog_that_ages_goes_by_the_other_way(database_url: str, lane: str) -> None:
    async with peers(database_url) as (bench, _smtp, _hooks):
        id = await (bench.mail() if lane == "mail_outbox" else bench.job(NOWHERE))
        table = "mail_outbox" if lane == "mail_outbox" else "dispatch_job"
        await bench.tables.shift(table, ["next_attempt_at", "created_at"], 1000, id=id)
        await bench.look()
        assert await bench.told() == [], "it has to last"
        await bench.pass_time(61)
        await bench.look()
        (backlog,) = [one for one in await bench.told() if one.kind == "backlog"]
        many = "Mails" if lane == "mail_outbox" else "Webhooks"
        assert backlog.title == f"{many} are late: the oldest has waited 16 minutes"
        assert backlog.ways == (("webhook",) if lane == "mail_outbox" else ("mail",))
        assert len(await bench.alert_jobs()) == len([o for o in await bench.told() if "webhook" in o.ways])
        await bench.pass_time(601)
        await bench.look()
        await bench.tables.sql(f"DELETE FROM {table} WHERE id = {id} RETURNING id")
        await bench.look()
        assert [one.event for one in await bench.told() if one.kind == "backlog"] == [
            "fired", "again", "resolved",
        ]  # fmt: skip


async def test_a_backlog_of_the_only_way_goes_by_that_and_onto_the_page(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        id = await bench.mail()
        await bench.tables.shift("mail_outbox", ["next_attempt_at", "created_at"], 1000, id=id)
        await bench.look()
        await bench.pass_time(61)
        await bench.look()
        assert {one.kind: one.ways for one in await bench.told()}["backlog"] == ("mail",)
        assert "backlog:mail_outbox" in [one.cause for one in await bench.alerts.firing()]


async def test_a_backlog_that_a_target_holds_back_is_late_all_the_same(database_url: str) -> None:
    """And the alert says which target that is."""
    async with alert_bench(database_url) as bench:
        id = await bench.job(NOWHERE)
        (row,) = await bench.tables.rows("dispatch_job", id=id)
        await bench.homing.jobs.run(
            "pause_target",
            target=row["target"],
            until=bench.tables.time(datetime.now(UTC) + timedelta(hours=9)),
            reason="they move house",
        )
        await bench.tables.shift("dispatch_job", ["next_attempt_at", "created_at"], 1000, id=id)
        await bench.look()
        await bench.pass_time(61)
        await bench.look()
        (backlog,) = [one for one in await bench.told() if one.kind == "backlog"]
        assert backlog.title == "Webhooks are late: the oldest has waited 16 minutes"
        (mail,) = [one for one in await bench.alert_mails() if "late" in one["subject"]]
        assert "Held back: 1 since 20" in mail["text_body"]
        assert f"for {place_of(row['target'])}: paused, or failing" in mail["text_body"]


async def test_an_alert_goes_by_a_lane_that_somebody_works_on(database_url: str) -> None:
    async with alert_bench(database_url, alert_webhook_url=NOWHERE) as bench:
        await bench.kill_mails(1, "first: x")
        await bench.look()
        operations = bench.homing.operations
        await operations.heartbeat(["dispatch_jobs"], worked={"dispatch_jobs"}, serves=False).begin()
        await bench.kill_mails(1, "second: x")
        await bench.look()
        assert [one.ways for one in await bench.told()] == [("mail", "webhook"), ("webhook",)]


async def test_alert_mails_are_due_since_they_were_made(database_url: str) -> None:
    """Though they go before all others, by a time in the past."""
    async with alert_bench(database_url) as bench:
        waiting = await bench.mail()
        await bench.tables.shift("mail_outbox", ["next_attempt_at", "created_at"], 50, id=waiting)
        await bench.kill_mails(1)
        await bench.look()
        (mail,) = await bench.alert_mails()
        assert 49 < await bench.homing.outbox.oldest_due() < 3600
        detail = await bench.homing.desk.show(f"outbox_{mail['id']}", may=lambda _: True)
        assert detail is not None
        assert detail.summary.due_at == detail.summary.created_at
        assert listed(mail).next_attempt_at == listed(mail).created_at
        deliverer = bench.homing.mail.deliverer
        claims = await deliverer.run_batch(1)
        await deliverer.settled(claims)
        assert [claim.id for claim in claims] == [mail["id"]], "it goes first"


async def test_no_worker_and_a_lost_worker_are_told_of(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        id = await bench.mail()
        await bench.tables.shift("mail_outbox", ["next_attempt_at", "created_at"], 400, id=id)
        heartbeat = bench.homing.operations.heartbeat(["mail_outbox"], worked={"mail_outbox"}, serves=False)
        await heartbeat.begin()
        for _ in range(2):
            await bench.look()
            await bench.pass_time(61)
        assert await bench.told() == [], "somebody is there to take them"
        await bench.tables.shift("homing_worker", ["seen_at"], 3600)
        await bench.look()
        await bench.pass_time(61)
        await bench.look()
        titles = await bench.titles()
        assert titles[1] == "No worker takes mails"
        assert titles[0].startswith("The worker ")


# ── never a loop ─────────────────────────────────────────────────────────────────────────────────


async def rounds_of_trouble(bench: AlertBench, rounds: int) -> None:
    """Whatever can be delivered is tried to its end, again and again, for hours."""
    for _ in range(rounds):
        await bench.look()
        await bench.deliver_until_idle(60)
        await bench.pass_time(700)
        for table, column in (("mail_outbox", "created_at"), ("dispatch_job", "created_at")):
            await bench.tables.shift(table, [column], 700)


async def test_alert_mails_that_die_bring_forth_no_alert(database_url: str) -> None:
    async with (
        SmtpSink(script=lambda stage, _: reply("550 5.1.1 no") if stage == "rcpt" else None) as smtp,
        alert_bench(database_url, mail_url=f"smtp://127.0.0.1:{smtp.port}") as bench,
    ):
        await bench.mail()
        await bench.deliver()
        await rounds_of_trouble(bench, 5)
        assert await bench.titles() == ["1 mail was given up: invalid_recipient"]
        (mail,) = await bench.alert_mails()
        assert mail["status"] == "failed"
        assert await bench.tables.rows("homing_mail_death") == []


async def test_an_alert_webhook_whose_target_is_down_for_ever_is_no_loop(database_url: str) -> None:
    settings = {
        "alert_webhook_url": NOWHERE,
        "alert_mail_to": "",
        "alert_target_failures": 2,
        "jobs_dead_letter_url": "http://127.0.0.1:9/dead",
    }
    async with alert_bench(database_url, **settings) as bench:
        await bench.kill_mails(1)
        await rounds_of_trouble(bench, 5)
        await bench.homing.jobs.sweep(100)
        await rounds_of_trouble(bench, 2)
        assert await bench.titles() == ["1 mail was given up: invalid_recipient"]
        (job,) = await bench.alert_jobs()
        assert (job["status"], job["attempt_count"]) == ("ERROR", 10)
        assert len(await bench.tables.rows("dispatch_job")) == 1, "no dead letter of an alert"
        assert await bench.alerts.firing() == []


async def test_alerts_that_wait_are_no_backlog(database_url: str) -> None:
    async with alert_bench(database_url, alert_webhook_url=NOWHERE) as bench:
        await bench.kill_mails(1)
        await bench.look()
        await bench.tables.shift("mail_outbox", ["next_attempt_at", "created_at"], 5000)
        await bench.tables.shift("dispatch_job", ["next_attempt_at", "created_at"], 5000)
        for _ in range(3):
            await bench.look()
            await bench.pass_time(100)
        assert len(await bench.told()) == 1


async def test_an_hour_has_room_for_so_many_alerts_and_no_more(database_url: str) -> None:
    async with alert_bench(database_url, alert_most_per_hour=3) as bench:
        for number in range(6):
            await bench.kill_mails(1, f"error_{number}: x")
        await bench.look()
        await bench.look()
        assert len(await bench.alert_mails()) == 3
        assert bench.log.all("alert.held_back")[0]["count"] == 3
        assert len(await bench.alerts.firing()) == 6, "the page shows them all"
        await bench.pass_time(3700)
        await bench.look()
        assert len(await bench.alert_mails()) == 6, "what had no room is told when there is some"


# ── exactly one ──────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def processes(database_url: str, count: int, **settings: Any) -> AsyncIterator[list[AlertBench]]:
    async with AsyncExitStack() as stack:
        benches = []
        for number in range(count):
            bench = await stack.enter_async_context(alert_bench(database_url, **settings))
            bench.watch._owner = f"process-{number}"
            benches.append(bench)
        yield benches


async def test_of_several_processes_one_tells(database_url: str) -> None:
    async with processes(database_url, 4, alert_webhook_url=NOWHERE) as benches:
        first = benches[0]
        for _ in range(3):
            await first.kill_mails(5)
            await asyncio.gather(*(bench.watch.round() for bench in benches))
        await first.look()
        assert len(await first.told()) == 1
        assert len(await first.alert_mails()) == len(await first.alert_jobs()) == 1
        told = (await first.tables.rows("homing_alert"))[0]["facts"]
        (cause,) = await first.tables.rows("homing_alert_cause", kind="dead")
        count = msgspec.json.decode(told)["count"]
        assert count + cause["pending"] == 15, "each is counted once"


async def test_a_verdict_over_what_somebody_else_has_judged_counts_for_nothing(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        store, now = bench.watch.store, await bench.tables.now()
        cause = Cause("backlog:mail_outbox", "backlog", now, state="firing", level=1)
        for facts in ({"age": 1}, {"age": 2}):
            await store.tell(replace(cause, facts=facts), "fired", ["mail"])
        assert [row["event"] for row in await bench.tables.rows("homing_alert")] == ["fired"]
        (stood,) = (await store.causes()).values()
        assert stood.facts == {"age": 1}
        await store.tell(replace(stood, state="quiet"), "resolved", ["mail"])
        await store.tell(replace(stood, state="quiet"), "resolved", ["mail"])
        assert len(await bench.tables.rows("homing_alert")) == 2


async def test_one_process_looks_and_another_follows_when_it_ends(database_url: str) -> None:
    async with processes(database_url, 2) as (one, other):
        assert await one.watch.once()
        assert await one.watch.once()
        assert not await other.watch.once()
        await one.watch.leave()
        assert await other.watch.once()
        await one.tables.shift("homing_alert_watch", ["until"], 3600)
        assert await one.watch.once(), "who was silent for too long is followed, too"


class ProcessEnds(BaseException):
    """Nothing that comes after it is done."""


@pytest.mark.parametrize("after", ["tell", "mail", "webhook"])
async def test_a_crash_neither_loses_nor_doubles_an_alert(
    database_url: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with alert_bench(database_url, alert_webhook_url=NOWHERE) as bench:
        await bench.kill_mails(2)

        async def crash(*_arguments: Any, **_named: Any) -> Any:
            raise ProcessEnds

        places: dict[str, tuple[object, str]] = {
            "tell": (bench.homing.outbox, "enqueue"),
            "mail": (bench.homing.jobs, "enqueue"),
            "webhook": (AlertStore, "note_ways"),
        }
        with monkeypatch.context() as patch:
            patch.setattr(*places[after], crash)
            with pytest.raises(ProcessEnds):
                await bench.watch.round()
        assert len(await bench.alert_jobs()) == (after == "webhook")
        await bench.look()
        assert await bench.titles() == ["2 mails were given up: invalid_recipient"]
        assert len(await bench.alert_mails()) == len(await bench.alert_jobs()) == 1


@pytest.mark.parametrize("step", ["count_deaths", "drop_deaths"])
async def test_a_crash_while_the_dead_are_counted_counts_none_twice(
    database_url: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with alert_bench(database_url) as bench:
        await bench.kill_mails(4)
        fetch = bench.homing.database.fetch

        async def failing(query: Any, parameters: Any) -> Any:
            if query.name == step:
                raise Unreachable("the process is gone")
            return await fetch(query, parameters)

        with monkeypatch.context() as patch:
            patch.setattr(bench.homing.database, "fetch", failing)
            await bench.watch.round()
        await bench.look_after_trouble()
        assert await bench.titles() == ["4 mails were given up: invalid_recipient"]
        await bench.pass_time(601)
        await bench.look_after_trouble()
        assert len(await bench.told()) == 1
        assert await bench.tables.rows("homing_mail_death") == []


# ── silence, test, settings ──────────────────────────────────────────────────────────────────────


async def test_a_silenced_cause_is_told_of_afterwards(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        cause = "dead:mail_outbox:invalid_recipient"
        done = await bench.alerts.silence(cause, 7200, by="user:ann")
        assert done.silenced_until is not None
        await bench.kill_mails(2)
        await bench.look()
        assert await bench.told() == []
        assert [one.silenced_by for one in await bench.alerts.silenced()] == ["user:ann"]
        await bench.pass_time(7201)
        await bench.look()
        assert await bench.titles() == ["2 mails were given up: invalid_recipient"]
        for wrong in ("nonsense", "dead:mail_outbox:\udcff", "test", ""):
            with pytest.raises(InvalidRequest):
                await bench.alerts.silence(wrong, 60, by="user:ann")


async def test_a_test_goes_the_real_way_and_is_signed(database_url: str) -> None:
    async with alert_bench(database_url, alert_mail_to="") as bench:
        issued = await bench.homing.credentials.create(CreateCredentials(name="alerts"))
        with pytest.raises(InvalidRequest, match="HOMING_ALERT_MAIL_TO"):
            await bench.alerts.test()
    credentials = text_of(issued.row["id"])
    unknown = {"alert_webhook_url": NOWHERE, "alert_webhook_credentials_id": "0ARYZVZXW372S"}
    async with alert_bench(database_url, **unknown) as bench:
        with pytest.raises(InvalidRequest, match="no such credentials"):
            await bench.alerts.test()
    async with peers(database_url, alert_webhook_credentials_id=credentials) as (bench, smtp, hooks):
        alert = await bench.alerts.test()
        await bench.deliver()
        (mail,) = to_people(smtp)
        assert mail["subject"] == "[test] Homing: This is a test: alerts reach you"
        (request,) = await hooks.received(1)
        verify(request.body, dict(request.headers), issued.made["signing_secret"])
        assert msgspec.json.decode(request.body)["data"]["event"] == "test"
        assert (alert.ways, alert.event) == (("mail", "webhook"), "test")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alert_mail_to": "ops@"}, "HOMING_ALERT_MAIL_TO"),
        ({"alert_webhook_url": "ftp://example.org"}, "HOMING_ALERT_WEBHOOK_URL cannot be used"),
        ({"alert_webhook_credentials_id": "0ARYZVZXW372S"}, "HOMING_ALERT_WEBHOOK_URL is not"),
        (
            {"alert_webhook_url": NOWHERE, "alert_webhook_credentials_id": "x"},
            "HOMING_ALERT_WEBHOOK_CREDENTIALS_ID is no id",
        ),
    ],
)
async def test_settings_by_which_no_alert_could_arrive_are_refused(
    sqlite_url: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        async with alert_bench(sqlite_url, **settings):
            pass


def test_addresses_are_not_repeated_in_complaints(sqlite_url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({"database_url": sqlite_url, "alert_mail_to": 5}, environ={})
    assert "***" in str(refused.value)
