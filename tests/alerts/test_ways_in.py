"""Alerts by API, by command line, in a service that runs, and with jobs in a database of their own."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.alerts.bench import NOWHERE, PEOPLE, alert_bench
from tests.conftest import make_tables
from tests.http.door import opened_door
from tests.jobs import eventually
from tests.tables import Tables
from typer.testing import CliRunner, Result

from homing.app import MIGRATED
from homing.cli import app
from homing.errors import InvalidRequest
from homing.service import Stop, run
from homing.testing.smtp_sink import SmtpSink

CAUSE = "dead:mail_outbox:invalid_recipient"


# ── the API ──────────────────────────────────────────────────────────────────────────────────────


async def test_the_api_tells_what_is_wrong_and_silences_it(sqlite_url: str) -> None:
    async with opened_door(sqlite_url) as door:
        ops, operator = await door.key("ops"), await door.key("alerts:operate")
        (id,) = await door.insert()
        await door.sql(
            "UPDATE mail_outbox SET status = 'failed', last_error = 'invalid_recipient: x' RETURNING id"
        )
        await door.homing.alerts.look()
        page = (await door.ask("GET", "/api/alerts", ops)).json()
        (item,) = page["items"]
        assert (item["cause"], item["kind"], item["event"]) == (CAUSE, "dead", "fired")
        assert item["title"] == "1 mail was given up: invalid_recipient"
        assert [one["cause"] for one in page["firing"]] == [CAUSE]
        path = f"/api/alerts/{item['id']}/silence"
        assert (await door.ask("POST", path, ops, json={"seconds": 60})).status_code == 403
        reply = await door.ask("POST", path, operator, json={"seconds": 7200})
        assert reply.status_code == 200, reply.text
        assert reply.json()["cause"] == CAUSE
        assert reply.json()["silencedUntil"] is not None
        entry = (await door.audit())[-1]
        assert (entry["outcome"], entry["detail"]["cause"], entry["detail"]["seconds"]) == (
            "done", CAUSE, 7200,
        )  # fmt: skip
        assert id


async def test_what_is_wrong_with_a_call_is_said(sqlite_url: str) -> None:
    calls: list[tuple[str, str, dict[str, Any] | None, int]] = [
        ("GET", "/api/alerts?limit=0", None, 400),
        ("GET", "/api/alerts?limit=201", None, 400),
        ("POST", "/api/alerts/5/silence", {"seconds": 60}, 404),
        ("POST", f"/api/alerts/{2**70}/silence", {"seconds": 60}, 404),
        ("POST", "/api/alerts/5/silence", {"seconds": -1}, 400),
        ("POST", "/api/alerts/5/silence", {}, 400),
    ]
    async with opened_door(sqlite_url) as door:
        key = await door.key()
        for method, path, body, status in calls:
            reply = await door.ask(method, path, key, json=body)
            assert reply.status_code == status, (path, reply.text)


# ── the command line ─────────────────────────────────────────────────────────────────────────────


class Shell:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, *arguments: str, **environment: str) -> Result:
        given = {
            "HOMING_DATABASE_URL": f"sqlite:///{self.file}",
            "HOMING_ENCRYPTION_KEY": "A" * 43 + "=",
            "HOMING_LOG_FORMAT": "json",
            **environment,
        }
        return CliRunner(env=given).invoke(app, ["alerts", *arguments])

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.file)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    make_tables(f"sqlite:///{tmp_path}/homing.db", MIGRATED)
    return Shell(tmp_path / "homing.db")


def test_the_command_line_sends_a_test_and_says_how_to_follow_it(shell: Shell) -> None:
    refused = shell("test")
    assert isinstance(refused.exception, InvalidRequest)
    assert "HOMING_ALERT_MAIL_TO" in str(refused.exception)
    sent = shell("test", HOMING_ALERT_MAIL_TO=PEOPLE, HOMING_ALERT_WEBHOOK_URL=NOWHERE)
    assert sent.exit_code == 0, sent.output
    assert "homing show outbox_1" in sent.stdout
    assert re.search(r"homing show [0-9A-Z]{13}\b", sent.stdout)
    ((to, subject),) = shell.rows("SELECT to_address, subject FROM mail_outbox")
    assert (to, subject) == (PEOPLE, "[test] Homing: This is a test: alerts reach you")
    (told,) = json.loads(shell("list", "--json").stdout)["recent"]
    assert told["event"] == "test"
    assert re.fullmatch(r"[-0-9]{10}T[0-9:]{8}\.\d{3}Z", told["at"]), "as in all our JSON"


def test_the_command_line_silences_a_cause_and_the_audit_log_knows(shell: Shell) -> None:
    assert "nothing is wrong" in shell("list").stdout
    assert "silenced until" in shell("silence", CAUSE, "--for", "2h").stdout
    assert CAUSE in shell("list").stdout
    assert "no longer silenced" in shell("silence", CAUSE, "--for", "0m").stdout
    for wrong in (("silence", "nonsense", "--for", "2h"), ("silence", CAUSE, "--for", "soon")):
        assert isinstance(shell(*wrong).exception, InvalidRequest)
    entries = shell.rows("SELECT action, object, outcome FROM homing_audit ORDER BY id")
    assert entries[0] == ("alerts.silence", CAUSE, "done")
    assert {action for action, _, _ in entries} == {"alerts.silence"}


# ── a service ────────────────────────────────────────────────────────────────────────────────────


async def test_a_service_at_work_tells_by_itself(database_url: str) -> None:
    async with SmtpSink() as smtp:
        settings = {"mail_url": f"smtp://127.0.0.1:{smtp.port}", "alert_interval_seconds": 0.1}
        async with alert_bench(database_url, **settings) as bench:
            await bench.kill_mails(1)
            stop = Stop()
            running = asyncio.create_task(
                run(bench.homing, stop, api=False, work=["mail_outbox"], ready=lambda _address: None)
            )

            async def arrived() -> bool:
                return bool(smtp.mails)

            await eventually(arrived)
            stop.ask()
            await running
            assert [mail.recipients for mail in smtp.mails] == [(PEOPLE,)]
            (held,) = await bench.tables.sql("SELECT * FROM homing_alert_watch")
            assert held["holder"] == bench.homing.ground.owner
            assert await bench.homing.alerts_part.watch.store.take_watch("another", 1), "it was left"


# ── jobs elsewhere ───────────────────────────────────────────────────────────────────────────────


async def test_jobs_in_a_database_of_their_own_are_watched_over_too(
    database_url: str, tmp_path: Path
) -> None:
    other = f"sqlite:///{tmp_path}/jobs.db"
    async with alert_bench(database_url, jobs_database_url=other, alert_webhook_url=NOWHERE) as bench:
        await bench.job("http://127.0.0.1:9/other", max_retries=1)
        await bench.deliver()
        await bench.look()
        assert await bench.titles() == ["1 webhook was given up: connect_error"]
        assert [one.job_id is not None for one in await bench.told()] == [True]
        assert await Tables(bench.homing.jobs_database).rows("homing_job_death") == []
