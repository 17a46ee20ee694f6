"""Alerts whatever others write: keys that are ours, words that no database takes, words without end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.alerts.bench import NOWHERE, PEOPLE, AlertBench, alert_bench
from tests.http.door import opened_door

from homing.alerts import deaths
from homing.alerts.rules import Cause
from homing.alerts.store import Deaths
from homing.errors import Refused, Unreachable

FAIL = (
    "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, fanout_status, error) "
)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


async def test_the_keys_and_the_source_of_alerts_are_nobody_elses(sqlite_url: str) -> None:
    async with opened_door(sqlite_url) as door:
        writer = await door.key("mail:write", "jobs:write")
        mail = {"to": "ann@example.org", "subject": "Hi", "text": "."}
        for key in ("homing-alert:1", "Homing-ALERT:1:x"):
            given = {**mail, "idempotencyKey": key}
            reply = await door.ask("POST", "/api/mail", writer, json=given)
            assert (reply.status_code, reply.json()["error"]["details"]["field"]) == (400, "idempotencyKey")
            assert "Homing's own alerts" in reply.json()["error"]["message"]
            several = (await door.ask("POST", "/api/mail", writer, json=[given])).json()
            assert [item["verdict"] for item in several["items"]] == ["invalid"]
        job = {"source": "homing", "type": "homing.alert", "targetUrl": "https://a.example/", "payload": "{}"}
        reply = await door.ask("POST", "/api/dispatch/jobs", writer, json=job)
        assert (reply.status_code, reply.json()["error"]["details"]["field"]) == (400, "source")
        for table in ("mail_outbox", "dispatch_job"):
            assert await door.sql(f"SELECT id FROM {table}") == []


async def take_key(bench: AlertBench, **columns: Any) -> None:
    """Put a mail where the one alert that waits wants to put its own."""
    ((id, token),) = [(row["id"], row["token"]) for row in await bench.tables.rows("homing_alert")]
    await bench.mail(idempotency_key=f"homing-alert:{id}:{token}", **columns)


async def untold(bench: AlertBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert is raised, and its process ends before it is handed over."""

    async def nothing() -> int:
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(bench.watch.post, "hand_over", nothing)
        await bench.kill_mails(1)
        await bench.look()


@pytest.mark.parametrize("columns", [{}, {"fingerprint": "another"}])
async def test_a_mail_under_the_key_of_an_alert_does_not_pass_for_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch, columns: dict[str, Any]
) -> None:
    async with alert_bench(database_url) as bench:
        await untold(bench, monkeypatch)
        await take_key(bench, **columns)
        await bench.look()
        assert len(bench.log.all("alert.key_taken")) == 1
        assert [mail["to_address"] for mail in await bench.alert_mails()] == ["ann@example.org", PEOPLE]
        (told,) = await bench.told()
        assert told.mail_id == (await bench.alert_mails())[-1]["id"]


async def test_an_alert_whose_key_is_taken_goes_by_the_other_way(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with alert_bench(database_url, alert_webhook_url=NOWHERE) as bench:
        await untold(bench, monkeypatch)
        await bench.tables.change("homing_alert", {"ways": '["mail"]'})
        await take_key(bench)
        await bench.look()
        (told,), (job,) = await bench.told(), await bench.alert_jobs()
        assert (told.mail_id, told.job_id) == (None, job["id"])


async def test_the_keys_of_alerts_cannot_be_guessed(database_url: str) -> None:
    async with alert_bench(database_url, alert_webhook_url=NOWHERE) as bench:
        for number in range(2):
            await bench.kill_mails(1, f"error_{number}: x")
        await bench.look()
        mails, jobs = await bench.alert_mails(), await bench.alert_jobs()
        keys = [row["idempotency_key"] for row in mails]
        assert sorted(keys) == sorted(row["idempotency_key"] for row in jobs)
        secrets = {key.split(":")[2] for key in keys}
        assert [len(secret) for secret in secrets] == [32, 32]


# ── words ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("a\x00b", "a b"),
        ("x" * 9000, "x" * 100),
        ("550", "550"),
        (" ", "unclassified"),
        ("é" * 400, "é" * 100),
    ],
    ids=["nul", "long", "number", "blank", "wide"],
)
async def test_an_odd_word_of_another_program_stops_nothing(database_url: str, code: str, word: str) -> None:
    async with alert_bench(database_url) as bench:
        sql = bench.tables.sql
        await bench.look()
        for id, one in enumerate((code, "later_good")):
            error = msgspec.json.encode({"code": one}).decode()
            await sql(f"{FAIL} VALUES ({id}, 1, 'k', 'failed', :error) RETURNING 1 AS one", error=error)
            await bench.look()
        causes = [one.cause for one in await bench.told()]
        assert causes == [f"dead:open_events:{word}", "dead:open_events:later_good"]


async def test_a_long_reason_of_a_dead_email_stops_nothing(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        sql = bench.tables.sql
        for reason in ("y" * 9000, "Plain"):
            await sql("INSERT INTO email_log (to_address) VALUES ('a@example.org') RETURNING id")
            await sql(
                "UPDATE email_log SET status = 'Dead', dead_reason = :reason "
                "WHERE status = 'Pending' RETURNING id",
                reason=reason,
            )
        await bench.look()
        assert {one.cause for one in await bench.told()} == {
            f"dead:email_log:{'y' * 100}", "dead:email_log:Plain",
        }  # fmt: skip
        assert await bench.tables.rows("homing_email_death") == []


@pytest.mark.parametrize("lane", ["email_log", "open_events"])
async def test_what_is_refused_all_the_same_is_counted_without_its_word(
    postgres_url: str, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with alert_bench(postgres_url) as bench:
        await bench.look()
        sql = bench.tables.sql
        if lane == "email_log":
            await sql("INSERT INTO email_log (to_address) VALUES ('a'), ('b') RETURNING id")
            await sql("UPDATE email_log SET status = 'Dead', dead_reason = 'Bad ' || id RETURNING id")
        else:
            both = ", ".join(f"({id}, 1, 'k', 'failed', '{{\"code\": \"bad\"}}')" for id in (1, 2))
            await sql(f"{FAIL} VALUES {both} RETURNING 1 AS one")
        with monkeypatch.context() as patch:
            patch.setattr(deaths, "word_of", lambda error: error if error == "unclassified" else "\x00")
            await bench.look()
        assert [(one.cause, one.title[:2]) for one in await bench.told()] == [
            (f"dead:{lane}:unclassified", "2 ")
        ]
        await bench.look()
        assert len(await bench.told()) == 1


async def test_words_without_end_are_told_together(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "_MOST_WORDS", 3)
    async with alert_bench(database_url) as bench:
        for words in ("abcde", "fgha"):
            for word in words:
                await bench.kill_mails(1, f"made_up_{word}: x")
            await bench.look()
        assert len(await bench.told()) == 4
        assert {one.cause.rpartition(":")[2]: one.title[:2] for one in await bench.alerts.firing()} == {
            "made_up_a": "2 ", "made_up_b": "1 ", "made_up_c": "1 ", "various": "3 ",
        }  # fmt: skip
        await bench.pass_time(601)
        await bench.look()
        assert sorted((await bench.titles())[4:]) == [
            "1 mail was given up: made_up_a",
            "3 mails were given up: various",
        ]


def test_what_is_alike_is_one_cause_and_the_rest_is_counted_with_it() -> None:
    given = [deaths.deaths_of("email_log", word, 2, "email_1") for word in ("no x 1", "no x 2", "various")]
    full = frozenset(f"dead:email_log:{n}" for n in range(50))
    assert [(one.cause, one.count) for one in deaths.bounded("email_log", given, frozenset())] == [
        ("dead:email_log:no x *", 4),
        ("dead:email_log:various", 2),
    ]
    (one,) = deaths.bounded("email_log", given, full)
    assert one == Deaths(
        "dead:email_log:various", {"lane": "email_log", "error": "various", "example": "email_1"}, 6
    )


# ── targets, and databases that are away ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ["https://shop.example:99999", "https://[nonsense]:443#7", "invalid"])
async def test_a_target_that_is_no_address_stops_nothing(database_url: str, target: str) -> None:
    """As the trigger of the table makes it of what another program wrote."""
    async with alert_bench(database_url) as bench:
        await bench.tables.insert("homing_target", {"target": target, "failures": 30})
        await bench.kill_mails(1)
        await bench.look()
        place = target.removeprefix("https://").partition("#")[0]
        assert sorted(await bench.titles()) == [
            "1 mail was given up: invalid_recipient",
            f"{place} has failed 30 times in a row (100 % of the threshold)",
        ]
        assert len(await bench.alerts.firing()) == 2
        assert len(await bench.alert_mails()) == 2


async def test_an_odd_error_of_a_target_stops_nothing(postgres_url: str, tmp_path: Path) -> None:
    """SQLite and MongoDB take what PostgreSQL does not, and the causes of alerts are in the main database."""
    jobs = f"sqlite:///{tmp_path}/jobs.db"
    async with alert_bench(postgres_url, jobs_database_url=jobs) as bench:
        odd = {"target": "https://a.example:443", "failures": 30, "last_error": "503\x00 Service\n gone"}
        await bench.jobs.insert("homing_target", odd)
        await bench.look()
        assert [one.cause for one in await bench.told()] == ["target:https://a.example:443"]
        (mail,) = await bench.alert_mails()
        assert "Last error: 503  Service  gone" in mail["text_body"]


async def test_a_verdict_that_cannot_be_written_holds_up_no_other(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with alert_bench(database_url) as bench:
        tell = bench.watch.store.tell

        async def refusing(cause: Cause, *more: Any) -> None:
            if cause.kind == "target":
                raise Refused("it does not take a value")
            await tell(cause, *more)

        for name in ("a", "b"):
            await bench.tables.insert("homing_target", {"target": f"https://{name}:443", "failures": 30})
        await bench.kill_mails(1)
        await bench.kill_mails(1, "timeout: x")
        monkeypatch.setattr(bench.watch.store, "tell", refusing)
        await bench.look_after_trouble()
        assert {one.kind for one in await bench.told()} == {"dead"}
        assert len(await bench.alert_mails()) == 2
        assert len(bench.log.all("alert.failed")) == 2, "each is told of"


async def test_while_the_database_of_jobs_is_away_alerts_go_by_mail(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with alert_bench(database_url, alert_webhook_url=NOWHERE) as bench:
        asked = []

        async def away(_jobs: Any) -> Any:
            asked.append(1)
            raise Unreachable("cannot reach it")

        await bench.kill_mails(1)
        await bench.kill_mails(1, "timeout: x")
        with monkeypatch.context() as patch:
            patch.setattr(bench.homing.jobs, "enqueue", away)
            for round in (1, 2):
                await bench.look_after_trouble()
                assert len(await bench.alert_mails()) == 2
                # The first look of a round hands over what is left of the one before, the second what is new.
                assert len(asked) <= 2 * round, "whoever is away is not asked again for every alert"
        await bench.look_after_trouble()
        assert len(await bench.alert_jobs()) == len(await bench.alert_mails()) == 2, "once by each way"
        assert [one.job_id is not None and one.mail_id is not None for one in await bench.told()] == [
            True
        ] * 2


async def test_while_the_database_of_jobs_is_away_the_other_lanes_are_watched_over(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_arguments: Any) -> Any:
        raise Unreachable("cannot reach it")

    jobs = f"sqlite:///{tmp_path}/jobs.db"
    async with alert_bench(database_url, jobs_database_url=jobs) as bench:
        id = await bench.mail()
        await bench.tables.shift("mail_outbox", ["next_attempt_at", "created_at"], 1000, id=id)
        monkeypatch.setattr(bench.homing.jobs_database, "fetch", away)
        await bench.look_after_trouble()
        await bench.pass_time(61)
        await bench.look_after_trouble()
        assert {one.cause for one in await bench.told()} == {"backlog:mail_outbox", "idle:mail_outbox"}


async def test_what_comes_into_sight_again_is_no_news(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another program's table the newest dead are looked at, and older ones move up when those go."""
    monkeypatch.setattr(deaths, "_NEWEST", 3)
    failed = FAIL + "VALUES (:id, 1, 'k', 'failed', '{\"code\": \"bad\"}') RETURNING 1 AS one"
    async with alert_bench(database_url) as bench:
        for id in range(1, 7):
            await bench.tables.sql(failed, id=id)
        await bench.look()
        newest = "SELECT max(notification_id) FROM open_event_notifications"
        for _ in range(2):
            await bench.tables.sql(
                f"DELETE FROM open_event_notifications WHERE notification_id = ({newest}) RETURNING 1 AS one"
            )
        await bench.look()
        assert await bench.told() == [], "they died long ago"
        await bench.tables.sql(failed, id=7)
        await bench.look()
        assert await bench.titles() == ["1 notification was given up: bad"]
