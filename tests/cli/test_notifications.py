"""status, list, show, requeue, cancel and work, for notifications: what the runbook asks for."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.command import Homing, Result
from tests.notifications import NotificationBench, notification_bench, sqlite_path

from homing.senders.mail import Verdict


class Desk:
    """A database with notifications in it, and the commands that look at them."""

    def __init__(self, homing: Homing, database_url: str) -> None:
        self.url = database_url
        self._homing = homing

    def __call__(self, *arguments: str, **changes: str) -> Result:
        return self._homing(*arguments, **{"HOMING_DATABASE_URL": self.url, **changes})

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def do(self, work: Callable[[NotificationBench], Awaitable[None]]) -> None:
        async def run() -> None:
            async with notification_bench(self.url) as bench:
                await work(bench)

        asyncio.run(run())


async def _fill(bench: NotificationBench) -> None:
    """One that was sent, one that was refused, one that failed, one that waits, one that somebody holds."""
    bench.memory.answer("bo@example.org", Verdict("rejected", 550, "5.1.1", "unknown"))
    await bench.notification()
    await bench.notification(subscription=await bench.subscription(contact_value="bo@example.org"))
    await bench.notification(event=99)
    await bench.deliver()
    await bench.notification()
    await bench.notification(locked_by="other:1", locked_at=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def desk(homing: Homing, database_url: str) -> Desk:
    desk = Desk(homing, database_url)
    assert desk("migrate").returncode == 0
    desk.do(_fill)
    return desk


@pytest.mark.clause("NTF-16")
def test_notifications_are_counted_listed_and_shown(desk: Desk) -> None:
    counts = desk.json("status")["open_events"]
    assert {state: counts[state] for state in ("pending", "sent", "skipped", "failed", "expired")} == {
        "pending": 2, "sent": 1, "skipped": 1, "failed": 1, "expired": 0,
    }  # fmt: skip
    assert [one["id"] for one in desk.json("list", "--lane", "open_events", "--limit", "2")] == [
        "notification_5",
        "notification_4",
    ]
    (failed,) = desk.json("list", "--lane", "open_events", "--status", "failed")
    assert failed["errorCode"] == "open_event_missing"
    shown = desk.json("show", "notification_2")
    assert (shown["status"], shown["error"]["code"]) == ("skipped", "invalid_recipient")
    assert "bo@example.org" not in json.dumps(shown), "addresses are masked"
    assert "notification_2" in desk("show", "notification_2").stdout
    (sent,) = desk.json("list", "--lane", "open_events", "--status", "sent")
    for id, field in (("notification_2", "error"), (sent["id"], "result")):
        names = [line.split()[0] for line in desk("show", id).stdout.splitlines() if line.strip()]
        assert [name for name in names if name in {"error", "result"}] == [field]


def test_the_questions_of_the_runbook_have_answers(desk: Desk) -> None:
    told = desk.json("status", "--lane", "open_events")["open_events"]
    assert {(why["status"], why["code"]): why["count"] for why in told["reasons"]} == {
        ("skipped", "invalid_recipient"): 1,
        ("failed", "open_event_missing"): 1,
    }
    (lock,) = told["locks"]
    assert (lock["locked_by"], lock["count"], int(lock["over"])) == ("other:1", 1, 1)
    assert told["churn"] == []
    table = desk("status", "--lane", "open_events").stdout
    assert "other:1" in table
    assert "invalid_recipient" in table


@pytest.mark.clause("NTF-16")
def test_what_ended_is_requeued_by_name_or_all_at_once(desk: Desk) -> None:
    assert desk.json("requeue", "notification_2") == {"dryRun": False, "requeue": 1}
    refused = desk("requeue", "notification_1")
    assert refused.returncode == 1
    assert "notification_1 is sent" in refused.stderr
    many = ("requeue", "--lane", "open_events", "--all", "failed")
    assert desk.json(*many, "--dry-run") == {"dryRun": True, "requeue": 1}
    assert desk.json(*many, "--yes") == {"dryRun": False, "requeue": 1}
    assert desk.json("status")["open_events"]["pending"] == 4
    assert desk.json("cancel", "notification_4") == {"dryRun": False, "cancel": 1}


def test_a_worker_drains_what_is_due(desk: Desk) -> None:
    """Also what somebody held whose lock is over."""
    done = desk("work", "open_events", "--once", HOMING_MAIL_URL="memory://")
    assert done.returncode == 0, done.stderr
    counts = desk.json("status")["open_events"]
    assert (counts["pending"], counts["sent"]) == (0, 3)


def test_another_programs_file_is_worked_on_beside_our_own(homing: Homing, tmp_path: Path) -> None:
    """HOMING_NOTIFY_DATABASE_URL names it; ours has everything else."""
    theirs = f"sqlite:///{tmp_path}/theirs.db"
    ours = {"HOMING_DATABASE_URL": f"sqlite:///{tmp_path}/ours.db", "HOMING_NOTIFY_DATABASE_URL": theirs}
    assert homing("migrate", **ours).returncode == 0
    Desk(homing, theirs).do(_fill)
    done = homing("work", "open_events", "--once", **ours, HOMING_MAIL_URL="memory://")
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(sqlite_path(theirs))) as file:
        rows = file.execute("SELECT fanout_status FROM open_event_notifications ORDER BY 1").fetchall()
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert [word for (word,) in rows] == ["failed", "sent", "sent", "sent", "skipped"]
    assert "mail_outbox" not in tables, "a foreign file gets nothing but what its lane needs"


def test_once_refuses_what_has_no_words_before_it_claims(desk: Desk) -> None:
    refused = desk("work", "open_events", "--once", HOMING_MAIL_URL="memory://", HOMING_NOTIFY_LOCALES="fr")
    assert refused.returncode == 2, refused.stdout
    assert "HOMING_NOTIFY_LOCALES" in refused.stderr
    assert desk.json("status")["open_events"]["pending"] == 2, "nothing was touched"


def test_a_time_zone_that_does_not_exist_is_told(homing: Homing) -> None:
    refused = homing("status", HOMING_NOTIFY_TIME_ZONE="Mars/X")
    assert refused.returncode == 2
    assert "there is no time zone 'Mars/X'" in refused.stderr
