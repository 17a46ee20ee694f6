"""`homing workers`, and where else a pause is told of."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.command import Homing, Result
from tests.http.door import url_with_tables

from homing.db import connect
from homing.workers.fleet import Fleet
from homing.workers.model import Identity, LaneReport, Report

LANES = ("mail_outbox", "email_log", "email_log:send")


@pytest.fixture
def fleet(tmp_path: Path, environment: dict[str, str]) -> str:
    """One worker, as it would say itself."""
    url = url_with_tables(tmp_path)
    environment["HOMING_DATABASE_URL"] = url

    async def beat() -> None:
        database = connect(url)
        who = Identity("ann:1", "ann", 1, "1.0", "boot", ("mail_outbox",), serves=True)
        report = Report((LaneReport("mail_outbox", 3, 100, 1234, 1200),))
        await Fleet(database, LANES).beat(who, "running", report, up_seconds=60.0)
        await database.close()

    asyncio.run(beat())
    return "ann:1"


def test_workers_are_listed(fleet: str, homing: Homing) -> None:
    for command in (("workers",), ("workers", "list")):
        told = homing(*command)
        assert told.returncode == 0, told.stderr
        assert all(word in told.stdout for word in (fleet, "running", "mail_outbox, (serves)", "1,234"))
    found = json.loads(homing("workers", "list", "--json").stdout)
    assert found["workers"][0]["name"] == fleet
    assert found["workers"][0]["report"]["lanes"][0]["inFlight"] == 3
    assert found["pauses"] == []


def test_a_pause_is_told_of_wherever_somebody_looks(fleet: str, homing: Homing) -> None:
    assert "every process follows" in homing("workers", "pause", fleet).stdout
    assert "was paused already" in homing("workers", "pause", fleet).stdout
    paused = homing("workers", "pause", "--lane", "email_log:send", "--reason", "the relay [moves]", "--json")
    assert json.loads(paused.stdout) == {"scope": "lane", "name": "email_log:send", "changed": True}
    audited = homing("audit", "--limit", "1").stdout
    assert "reason the relay [moves]" in audited, "a cell is no markup, and is not escaped twice"
    for command in (("workers",), ("status",)):
        told = homing(*command).stderr
        assert "paused: lane email_log:send, by cli:" in told
        assert "the relay [moves]" in told
        assert f"paused: worker {fleet}" in told
    status = json.loads(homing("status", "--json").stdout)
    assert status["email_log"]["paused"][0]["reason"] == "the relay [moves]"
    assert "paused" not in status["mail_outbox"]
    findings = {one["check"]: one for one in json.loads(homing("doctor", "--json").stdout)}
    assert not findings["workers"]["ok"]
    assert "email_log:send is paused by cli:" in findings["workers"]["detail"]
    for mend in ("`homing workers resume --lane email_log:send`", f"`homing workers resume {fleet}`"):
        assert mend in findings["workers"]["detail"]
    for what in ([fleet], ["--lane", "email_log:send"]):
        assert "resumed" in homing("workers", "resume", *what).stdout
    assert "was not paused" in homing("workers", "resume", fleet).stdout
    assert "paused" not in homing("status").stderr
    actions = [entry["action"] for entry in json.loads(homing("audit", "--json").stdout)]
    assert actions.count("workers.pause") == 3
    assert actions.count("workers.resume") == 3
    assert "changed nothing" in homing("audit", "--limit", "1").stdout


def test_a_message_of_a_paused_lane_says_what_it_waits_for(
    fleet: str, homing: Homing, environment: dict[str, str]
) -> None:
    del fleet
    path = environment["HOMING_DATABASE_URL"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for state in ("queued", "cancelled"):
            database.execute("INSERT INTO mail_outbox (to_address, status) VALUES ('a@b.c', ?)", (state,))
    assert "paused" not in homing("show", "outbox_1").stderr
    homing("workers", "pause", "--lane", "mail_outbox", "--reason", "the relay moves")
    assert "paused: lane mail_outbox, by cli:" in homing("show", "outbox_1").stderr
    assert homing("show", "outbox_1", "--json").stderr == ""
    assert homing("show", "outbox_2").stderr == "", "it waits for nothing"


def test_the_audit_log_is_asked_by_what_was_done_to_what_and_how_it_ended(fleet: str, homing: Homing) -> None:
    for lane in ("mail_outbox", "dispatch_jobs"):
        homing("workers", "pause", "--lane", lane)
    homing("workers", "resume", "--lane", "mail_outbox")
    homing("alerts", "silence", "nonsense", "--for", "2h")

    def found(*flags: str) -> list[tuple[str, str]]:
        entries = json.loads(homing("audit", *flags, "--json").stdout)
        return [(entry["action"], entry["object"]) for entry in entries]

    mails, jobs = "lane mail_outbox", "lane dispatch_jobs"
    assert found("--action", "workers.pause") == [("workers.pause", jobs), ("workers.pause", mails)]
    assert found("--action", "workers.*", "--limit", "1") == [("workers.resume", mails)]
    assert found("--object", jobs) == [("workers.pause", jobs)]
    assert found("--outcome", "failed") == [("alerts.silence", "nonsense")]
    assert found("--outcome", "refused") == []
    assert homing("audit", "--outcome", "lost").returncode == 2
    del fleet


def test_a_test_of_alerts_names_whose_settings_it_goes_by(fleet: str, homing: Homing) -> None:
    del fleet
    told = homing("alerts", "test")
    assert told.returncode == 2
    assert "alerts go nowhere by the settings of this shell" in told.stderr


def test_a_wrong_call_says_what_to_write(fleet: str, homing: Homing) -> None:
    for wrong, told in (
        (("pause",), "name a worker, or a lane with --lane"),
        (("pause", fleet, "--lane", "mail_outbox"), "name a worker, or a lane with --lane"),
        (("pause", "--lane", "mails"), "there is no lane 'mails'; there are mail_outbox"),
        (("resume", "--lane", "mails"), "there is no lane 'mails'; there are mail_outbox"),
        (("release", fleet), "finishes what it holds by itself; pause or stop it instead"),
    ):
        answer = homing("workers", *wrong)
        assert answer.returncode == 2, answer
        assert told in answer.stderr
    for verb in ("release", "resume"):
        answer = homing("workers", verb, "bo:2")
        assert (answer.returncode, answer.stdout) == (1, "")
        assert "there is no worker bo:2" in answer.stderr
    actions = [entry["action"] for entry in json.loads(homing("audit", "--json").stdout)]
    assert "workers.resume" not in actions, "nobody was resumed"


def test_a_flag_before_the_command_is_not_lost(fleet: str, homing: Homing, tmp_path: Path) -> None:
    """It would have been the flag of nobody: a pause went to another database than the one that was named."""
    elsewhere = f"sqlite:///{tmp_path}/other.db"
    refused = homing("workers", "--database-url", elsewhere, "pause", fleet)
    assert refused.returncode == 2, refused.stdout
    assert json.loads(homing("workers", "--json").stdout)["pauses"] == []
    assert homing("workers", "--database-url", elsewhere).returncode == 3, (
        "which lists, as its name alone does"
    )
    assert "release" in homing("workers", "--help").stdout
    asked = {"_HOMING_COMPLETE": "complete_bash", "COMP_WORDS": "homing workers ", "COMP_CWORD": "2"}
    assert homing(**asked).stdout.split() == ["list", "pause", "resume", "release"]
    assert json.loads(homing("alerts", "--limit", "1", "--json").stdout)["recent"] == []


def test_a_silence_of_what_was_never_seen_is_warned_of(
    fleet: str, homing: Homing, environment: dict[str, str]
) -> None:
    """A typing mistake at three at night is a silence of nothing."""
    del fleet

    def silence(cause: str, *flags: str) -> Result:
        return homing("alerts", "silence", cause, "--for", "2h", *flags)

    first = silence("dead:mail_outbox:timeout", "--json")
    assert (first.returncode, "nothing has been wrong so far" in first.stderr) == (0, True)
    assert json.loads(first.stdout)["title"] == "Not seen so far: dead:mail_outbox:timeout"
    path = environment["HOMING_DATABASE_URL"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(
            "UPDATE homing_alert_cause SET facts = ?", ('{"lane":"mail_outbox","error":"timeout","count":2}',)
        )
    assert silence("dead:mail_outbox:timeout").stderr == ""
    warned = silence("dead:mail_outbox:timeuot")
    assert warned.stdout.startswith("silenced until ")
    assert "no such cause has been seen so far, it is silenced all the same" in warned.stderr
    assert "did you mean dead:mail_outbox:timeout?" in warned.stderr
    assert "known are dead:mail_outbox:timeout" in silence("worker:zoe:1").stderr
    assert homing("alerts", "silence", "worker:zoe:1", "--for", "0m").stderr == ""


def test_brackets_are_no_markup(fleet: str, homing: Homing) -> None:
    del fleet
    cause = "dead:mail_outbox:[/odd]"
    assert f": {cause}" in homing("alerts", "silence", cause, "--for", "2h").stdout
    assert cause in homing("alerts").stdout
    assert homing("keys", "create", "the shop [eu]", "--scope", "ops").returncode == 0
    listed = homing("keys", "list").stdout
    assert "the shop [eu]" in listed
    assert "(the shop [eu])" in homing("keys", "revoke", listed.split("│")[1].strip()).stdout
