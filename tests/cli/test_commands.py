"""The commands, as processes: what they print, and what they exit with."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.command import Homing


def insert(tmp_path: Path, count: int = 1, **columns: Any) -> None:
    values = {"to_address": "ann@example.org", "subject": "Hi", "text_body": "Hello.", **columns}
    names, marks = ", ".join(values), ", ".join("?" for _ in values)
    with sqlite3.connect(tmp_path / "homing.db") as connection:
        for _ in range(count):
            connection.execute(f"INSERT INTO mail_outbox ({names}) VALUES ({marks})", list(values.values()))
    connection.close()


def test_migrate_tells_what_it_did(homing: Homing) -> None:
    assert homing("migrate", "--check").returncode == 1
    first = homing("migrate")
    assert first.returncode == 0
    assert "applied: mail_outbox 0001 mail_outbox" in first.stdout
    assert "up to date" in homing("migrate").stdout
    assert homing("migrate", "--check").returncode == 0
    assert json.loads(homing("migrate", "--check", "--json").stdout) == {"pending": []}


def test_migrate_tells_what_becomes_of_rows_that_were_there(homing: Homing, tmp_path: Path) -> None:
    """Who adopts a table may have forgotten what is in it."""
    with sqlite3.connect(tmp_path / "homing.db") as connection:
        connection.execute(
            "CREATE TABLE mail_outbox "
            "(id INTEGER PRIMARY KEY, status TEXT, to_address TEXT, subject TEXT, text_body TEXT)"
        )
    connection.close()
    insert(tmp_path, 2, status="queued")
    insert(tmp_path, status="draft")
    assert "mail_outbox was there already: its queued mails (2) will be sent" in homing("migrate").stdout
    assert "there already" not in homing("migrate").stdout


def test_a_day_of_mails(homing: Homing, tmp_path: Path) -> None:
    """Status, list, show, dispatch, requeue, cancel: for people and as JSON."""
    homing("migrate")
    insert(tmp_path, 3)
    insert(tmp_path, to_address="nonsense")
    insert(tmp_path, subject="urgently cancelled")
    assert json.loads(homing("status", "--json").stdout)["mail_outbox"]["queued"] == 5
    assert homing("cancel", "5").returncode == 0
    dry = homing("dispatch", "--dry-run", "--json")
    assert [item["id"] for item in json.loads(dry.stdout)["items"]] == [f"outbox_{n}" for n in (1, 2, 3, 4)]
    done = json.loads(homing("dispatch", "--json").stdout)
    assert [item["status"] for item in done["items"]] == ["sent", "sent", "sent", "failed"]
    assert "nothing is due" in homing("dispatch").stdout
    status = homing("status").stdout
    assert all(word in status for word in ("mail_outbox", "sent", "failed", "cancelled"))
    listed = json.loads(homing("list", "--status", "failed", "--json").stdout)
    assert [mail["id"] for mail in listed] == ["outbox_4"]
    shown = homing("show", "outbox_4")
    assert "invalid_recipient" in shown.stdout
    told = json.loads(homing("show", "4", "--json").stdout)
    assert told["retryCount"] == 1
    (tried,) = told["history"]
    assert (tried["title"], tried["delivered"], tried["errorClass"]) == (
        "Attempt 1",
        False,
        "invalid_recipient",
    )
    assert tried["worker"] in shown.stdout
    (sent,) = json.loads(homing("show", "1", "--json").stdout)["history"]
    assert (sent["delivered"], sent["errorClass"], sent["worker"]) == (True, None, tried["worker"])
    assert "1 mail would be changed" in homing("requeue", "--all", "failed", "--dry-run").stdout
    assert json.loads(homing("requeue", "--all", "failed", "--yes", "--json").stdout) == {
        "dryRun": False,
        "requeue": 1,
    }
    assert json.loads(homing("status", "--json").stdout)["mail_outbox"] | {"oldestDueSeconds": 0} == {
        "queued": 1, "dispatching": 0, "sent": 3, "failed": 0, "cancelled": 1, "expired": 0,
        "oldestDueSeconds": 0,
        "heldBack": {"count": 0, "orMore": False, "since": None, "targets": []},
    }  # fmt: skip


def test_acting_on_what_cannot_be_acted_on_changes_nothing(homing: Homing, tmp_path: Path) -> None:
    homing("migrate")
    insert(tmp_path, 2)
    for arguments, words in (
        (("requeue", "1"), "outbox_1 is queued"),
        (("cancel", "1", "99"), "there is no mail outbox_99"),
        (("show", "99"), "there is no mail 99"),
        (("show", "nonsense"), "ids look like outbox_123"),
    ):
        result = homing(*arguments)
        assert result.returncode == 1, arguments
        assert words in result.stderr
    wrong_calls: list[tuple[tuple[str, ...], str]] = [
        (("requeue",), "name the messages"),
        (("requeue", "--all", "sent"), "cannot be used"),
        (("list", "--status", "odd"), "there is no state"),
    ]
    for call, words in wrong_calls:
        result = homing(*call)
        assert result.returncode == 2, call
        assert words in result.stderr
    assert json.loads(homing("status", "--json").stdout)["mail_outbox"]["queued"] == 2


@pytest.mark.parametrize(
    "call",
    [
        "status", "list", "show outbox_1", "show 0ARYZVZXW372S", "requeue 1", "cancel --all queued", "find",
        "bulk list", "bulk stop 1", "bulk requeue status:dead", "prune --dry-run", "serve -p 0", "work",
        "audit", "alerts", "alerts silence idle:mail_outbox --for 1h", "workers",
        "workers pause --lane mail_outbox", "users list", "keys list", "credentials list",
        "dispatch",
    ],
)  # fmt: skip
def test_a_look_at_a_file_that_is_not_there_says_so_and_does_not_make_it(
    homing: Homing, tmp_path: Path, call: str
) -> None:
    """In the same words everywhere, with the path: it is the path that is wrong."""
    typo = tmp_path / "typo.db"
    result = homing(*call.split(), HOMING_DATABASE_URL=f"sqlite:///{typo}")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == f"homing: there is no database {typo}; run `homing migrate` to make it\n"
    assert not typo.exists()


def test_of_many_missing_migrations_only_the_number_is_told(homing: Homing, tmp_path: Path) -> None:
    (tmp_path / "homing.db").touch()
    result = homing("serve", "-p", "0")
    assert result.returncode == 3
    assert re.fullmatch(r"homing: the database lacks \d+ migrations; run `homing migrate`\n", result.stderr)


def test_dispatch_rescues_what_a_dead_one_left(homing: Homing, tmp_path: Path) -> None:
    homing("migrate")
    insert(tmp_path, status="dispatching", lease_expires_at="2020-01-01T00:00:00.000Z", rescue_count=0)
    (item,) = json.loads(homing("dispatch", "--json").stdout)["items"]
    assert item["status"] == "sent"


def test_children_are_told_to_be_one_process(homing: Homing, monkeypatch: pytest.MonkeyPatch) -> None:
    """HOMING_WORK_PROCESSES holds for the children too, which would otherwise have children of their own."""
    commands: list[list[str]] = []

    def note(command: list[str], *_rest: Any) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr("homing.supervisor.supervise", note)
    homing("migrate")
    homing("work", HOMING_WORK_PROCESSES="2")
    assert commands[0][-2:] == ["--processes", "1"]


def test_work_once_delivers_everything_and_ends(homing: Homing, tmp_path: Path) -> None:
    homing("migrate")
    insert(tmp_path, 700)
    result = homing("work", "mail_outbox", "--once")
    assert result.returncode == 0, result.stderr
    assert json.loads(homing("status", "--json").stdout)["mail_outbox"]["sent"] == 700


@pytest.mark.parametrize(
    ("arguments", "changes", "code", "words"),
    [
        (("up",), {"HOMING_DATABASE_URL": "oracle://x"}, 2, "no database URL that Homing knows"),
        (("up",), {"HOMING_DATABASE_URL": "sqlite:////nowhere/at/all/x.db"}, 3, "there is no folder"),
        (
            ("status",),
            {"HOMING_DATABASE_URL": "postgresql://a:hush@127.0.0.1:1/x"},
            3,
            "cannot reach PostgreSQL",
        ),
        (("up",), {"HOMING_PRT": "1"}, 2, "did you mean HOMING_PORT"),
        (("up",), {"DISPATCH_MAX_ATTEMPTS": "0"}, 2, "DISPATCH_MAX_ATTEMPTS='0'"),
        (("up",), {"HOMING_MAIL_URL": "pigeon://x"}, 2, "no sender for pigeon://"),
        (("up",), {"HOMING_MAIL_URL": "smtp://user:hush@"}, 2, "smtp"),
        (("up", "--host", "0.0.0.0"), {}, 2, "not a loopback address"),
        (("work",), {"HOMING_HOST": "0.0.0.0", "HOMING_METRICS_PORT": "1"}, 2, "not a loopback address"),
        (("up",), {"HOMING_MAIL_FROM": "nobody"}, 2, "HOMING_MAIL_FROM"),
        (("up",), {"DISPATCH_MAX_ATEMPTS": "4"}, 2, "did you mean DISPATCH_MAX_ATTEMPTS"),
        (("work", "pigeons"), {}, 2, "there is no lane 'pigeons'"),
        (("work",), {}, 3, "run `homing migrate`"),
        (("serve",), {}, 3, "run `homing migrate`"),
        (("status",), {}, 3, "run `homing migrate`"),
        (("up", "--config", "missing.toml"), {}, 2, "there is no configuration file"),
    ],
)
def test_a_mistake_gets_a_sentence_and_an_exit_code(
    homing: Homing, arguments: tuple[str, ...], changes: dict[str, str], code: int, words: str
) -> None:
    result = homing(*arguments, **changes)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "hush" not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_says_so_and_nothing_is_made(homing: Homing, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = homing("up", "--port", port)
    assert result.returncode == 1
    assert f"port {port} is in use" in result.stderr
    assert "HOMING_PORT" in result.stderr
    assert list(tmp_path.iterdir()) == [], "neither a database nor a key"


def test_a_switch_has_no_value_and_only_settings_are_named_in_help(homing: Homing) -> None:
    for command in (("bulk", "requeue"), ("workers", "pause"), ("work",)):
        told = homing(*command, "--help").stdout
        assert "<bool>" not in told
        assert "[[" not in told
        named = set(re.findall(r"HOMING_\w+", told))
        assert named <= {"HOMING_DATABASE_URL", "HOMING_MAIL_URL", "HOMING_CONFIG"}
    assert "{NAME}" in homing("users", "add", "--help").stdout


def test_a_look_names_the_database_that_was_looked_at(homing: Homing, tmp_path: Path) -> None:
    homing("migrate")
    for command in ("status", "find"):
        told = homing(command)
        assert f"database sqlite:///{tmp_path}/homing.db" in told.stderr
        assert "database" not in told.stdout
        assert "database" not in homing(command, "--json").stderr


def test_a_locked_file_says_so(homing: Homing, tmp_path: Path) -> None:
    homing("migrate")
    insert(tmp_path)
    other = sqlite3.connect(tmp_path / "homing.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    result = homing("dispatch", HOMING_DATABASE_URL=f"sqlite:///{tmp_path}/homing.db?busy_timeout=0.1")
    other.close()
    assert result.returncode == 3
    assert "locked by another process" in result.stderr


def test_the_doctor_finds_what_is_wrong_and_says_how_to_mend_it(homing: Homing, tmp_path: Path) -> None:
    sick = homing("doctor", "--mail-url", "smtp://127.0.0.1:1", DISPATCH_LEASE_SECONDS="2")
    assert sick.returncode == 1
    for words in ("run `homing migrate`", "relay 127.0.0.1:1", "120 is the default"):
        assert words in sick.stdout
    homing("migrate")
    well = homing("doctor", "--json")
    assert well.returncode == 0, well.stdout
    checks = {finding["check"]: finding for finding in json.loads(well.stdout)}
    assert {
        "database",
        "SQLite journal_mode",
        "SQLite synchronous",
        "migrations",
        "clock skew",
        "lease",
    } <= set(checks)
    assert all(finding["ok"] for finding in checks.values())


def test_the_doctor_on_postgres(homing: Homing, postgres_url: str) -> None:
    """The server of the test run has fsync off, and the relay is missing: both are found."""
    homing("migrate", HOMING_DATABASE_URL=postgres_url)
    result = homing("doctor", "--json", HOMING_DATABASE_URL=postgres_url)
    findings = {finding["check"]: finding for finding in json.loads(result.stdout)}
    assert findings["migrations"]["ok"]
    assert not findings["PostgreSQL fsync"]["ok"]
    assert "set fsync = on" in findings["PostgreSQL fsync"]["detail"]
    assert not findings["mail"]["ok"], "catch:// beside PostgreSQL is a finding"
    assert result.returncode == 1


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        return str(response.read().decode())


def until(condition: Callable[[], object], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.05)
    pytest.fail("it did not come true in time")


def seconds_to_start(environment: dict[str, str]) -> float:
    """What it takes to say the version: less than a second, where the machine has nothing else to do."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "homing", "--version"], env=environment, check=True)
    return time.monotonic() - began


@pytest.mark.slow
def test_demo_shows_messages_that_fail_and_recover_within_ten_seconds(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment.pop("HOMING_DATABASE_URL")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = f"http://127.0.0.1:{port}"
    before = seconds_to_start(environment)
    started = time.monotonic()
    demo = subprocess.Popen(
        [sys.executable, "-m", "homing", "demo", "--port", str(port), "--rate", "50"],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until(lambda: "/caught/" in read(f"{here}/") and "lane-dispatch_jobs" in read(f"{here}/"))
        until(lambda: 'href="/messages/0' in read(f"{here}/messages?q=lane:dispatch_jobs"))
        starting = time.monotonic() - started
        mails = f"{here}/api/mail?limit=100&status=sent"
        until(lambda: any(mail["retryCount"] for mail in json.loads(read(mails))["items"]))
        page = read(f"{here}/caught/1")
        assert "Message-ID" in page
        look_at_the_webhooks(f"{here}/api/dispatch")
    finally:
        stopped = time.monotonic()
        demo.send_signal(signal.SIGINT)
        output, _ = demo.communicate(timeout=100)
    stopping = time.monotonic() - stopped
    # A machine that became busy meanwhile is no bug: what is slower is what anything takes here now.
    limit = max(20.0, 10 * max(before, seconds_to_start(environment)))
    assert max(starting, stopping) < limit, "ten seconds, and as much again for pauses of the machine"
    assert demo.returncode == 0, output
    assert f"curl '{here}/api/dispatch/jobs?status=FAILED'" in output
    assert "demo ended: mails: " in output.replace("\n", " ")
    assert " COMPLETED" in output.rpartition("webhooks: ")[2]


def look_at_the_webhooks(api: str) -> None:
    """Every kind of fault is there: some recover, one path never works, one asks for a pause, one is down."""

    def jobs(**filters: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(read(f"{api}/jobs?size=100&{urlencode(filters)}"))["items"]
        return found

    def states() -> set[str]:
        return {target["state"] for target in json.loads(read(f"{api}/targets"))["items"]}

    until(lambda: any(job["attemptCount"] > 1 for job in jobs(status="COMPLETED")))
    until(
        lambda: (
            {"http_500", "http_410"} <= {g["errorClass"] for g in json.loads(read(f"{api}/dead"))["groups"]}
        )
    )
    until(lambda: states() & {"open", "half_open"})
    until(lambda: any(job["attemptCount"] > 1 for job in jobs(type="invoice.issued")))
    assert {job["metadata"]["tenantId"] for job in jobs()} == {"acme", "globex", "initech"}
    assert not any("401" in (job["lastError"] or "") for job in jobs()), "every signature was right"
    ordered = [job for job in jobs(status="COMPLETED") if job["ordering"] == "group"]
    assert ordered
    assert all(job["credentialsId"] for job in ordered)
