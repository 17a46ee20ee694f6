"""`homing keys`, `users` and `audit`: what they print and exit with, and what they leave behind."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from tests.access.desk import CHEAP
from tests.conftest import make_tables
from typer.testing import CliRunner, Result

from homing.access.passwords import Passwords
from homing.cli import alerts, audit, credentials, keys, messages, prune, run, users
from homing.errors import HomingError, InvalidRequest, NotFound

PASSWORD = "correct horse battery staple"
KEY = re.compile(r"hom_[0-9a-z]{10}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}")


def command_line() -> typer.Typer:
    """As the real one, which has more commands."""
    app = typer.Typer()
    for part in (run, messages, prune, credentials, keys, users, alerts, audit):
        part.add_to(app)
    audit.watch(app)
    return app


class Shell:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.app = command_line()

    def __call__(self, *arguments: str, typed: str | None = None) -> Result:
        environment = {
            "HOMING_DATABASE_URL": f"sqlite:///{self.file}",
            "HOMING_ENCRYPTION_KEY": "A" * 43 + "=",
        }
        return CliRunner(env=environment).invoke(self.app, arguments, input=typed)

    def json(self, *arguments: str, typed: str | None = None) -> Any:
        result = self(*arguments, "--json", typed=typed)
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.file)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def entries(self) -> list[tuple[str, str | None, str]]:
        rows = self.sql("SELECT action, object, outcome FROM homing_audit ORDER BY id")
        return [(action, object, outcome) for action, object, outcome in rows]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("homing.access.desk.Passwords", lambda _cost: Passwords(CHEAP))
    make_tables(f"sqlite:///{tmp_path}/homing.db", ["homing.access"])
    return Shell(tmp_path / "homing.db")


def complaint(result: Result) -> str:
    assert isinstance(result.exception, HomingError), result.output
    return str(result.exception)


def test_a_key_is_printed_once_and_kept_nowhere(shell: Shell) -> None:
    result = shell("keys", "create", "shop", "--scope", "jobs:write", "-s", "mail:*", "--expires", "90d")
    key = result.stdout.strip()
    assert KEY.fullmatch(key), "alone on standard output, so that it can be piped"
    assert "shown this once" in result.stderr
    (row,) = shell.json("keys", "list")
    assert row["id"] == key.split("_")[1]
    assert (row["name"], row["state"], row["lastUsedAt"]) == ("shop", "valid", None)
    assert row["scopes"] == ["jobs:write", "mail:operate", "mail:read", "mail:write"]
    assert re.fullmatch(r"cli:.+@.+", row["createdBy"])
    table = shell("keys", "list").stdout
    assert row["id"] in table
    assert key.split("_")[2] not in table
    assert key.split("_")[2].encode() not in shell.file.read_bytes()


def test_a_key_is_revoked_by_its_id_or_by_itself(shell: Shell) -> None:
    first, second = (shell.json("keys", "create", name, "-s", "ops") for name in ("a", "b"))
    assert shell.json("keys", "revoke", first["id"])["state"] == "revoked"
    assert "revoked" in shell("keys", "revoke", second["key"]).stdout
    assert {row["state"] for row in shell.json("keys", "list")} == {"revoked"}
    assert "is revoked already" in complaint(shell("keys", "revoke", first["id"]))
    assert "there is no key" in complaint(shell("keys", "revoke", "0000000000"))
    assert [action for action, _, _ in shell.entries()] == ["keys.create"] * 2 + ["keys.revoke"] * 2


def test_what_is_wrong_with_a_key_is_said_before_anything_is_made(shell: Shell) -> None:
    for arguments, said in (
        (["a", "-s", "job:write"], "did you mean jobs:write"),
        (["a", "-s", "ops", "--expires", "soon"], "90d"),
        (["", "-s", "ops"], "name"),
    ):
        result = shell("keys", "create", *arguments)
        assert isinstance(result.exception, InvalidRequest)
        assert said in complaint(result)
    assert shell("keys", "create", "a").exit_code == 2, "a scope is needed"
    assert shell.sql("SELECT * FROM homing_api_key") == []
    assert "jobs:write" in shell("keys", "scopes").stdout


def test_people_are_added_and_removed_and_their_password_is_no_flag(shell: Shell) -> None:
    assert shell.json("users", "add", "ann", "--role", "admin", typed=PASSWORD + "\n") == {
        "name": "ann",
        "role": "admin",
    }
    (row,) = shell.json("users", "list")
    assert (row["name"], row["role"], row["lastLoginAt"]) == ("ann", "admin", None)
    assert "ann" in shell("users", "list").stdout
    shell.json("users", "passwd", "ann", typed="another good password")
    shell.json("users", "role", "ann", "viewer")
    shell.json("users", "remove", "ann")
    assert shell.json("users", "list") == []
    assert [action for action, _, _ in shell.entries()] == [
        "users.add", "users.passwd", "users.role", "users.remove",
    ]  # fmt: skip
    for command in ("add", "passwd"):
        assert "--password" not in shell("users", command, "--help").stdout
    kept = str([shell.sql(f"SELECT * FROM homing_{table}") for table in ("user", "audit")])
    assert "good password" not in kept
    assert PASSWORD not in kept


def test_without_a_password_nobody_is_added(shell: Shell) -> None:
    assert "standard input" in complaint(shell("users", "add", "ann", typed=""))
    assert "12 to 1000" in complaint(shell("users", "add", "ann", typed="short\n"))
    assert "there is no user" in complaint(shell("users", "passwd", "ann", typed=PASSWORD))
    assert shell.sql("SELECT * FROM homing_user") == []


def test_a_short_password_is_told_of_before_it_is_typed_again(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    result = shell("users", "add", "ann", typed=f"short\n{PASSWORD}\n{PASSWORD}\n")
    assert result.exit_code == 0, result.output
    assert "a password has 12 to 1000 characters" in result.stderr
    assert result.stderr.count("Repeat") == 1
    assert shell.sql("SELECT name FROM homing_user") == [("ann",)]


def test_commands_that_change_something_are_in_the_log_and_others_are_not(shell: Shell) -> None:
    make_tables(f"sqlite:///{shell.file}", ["homing.lanes.mail_outbox", "homing.lanes.dispatch_jobs"])
    shell.sql("SELECT 1")
    assert shell("migrate").exit_code == 0
    assert shell("migrate", "--check").exit_code == 0
    connection = sqlite3.connect(shell.file)
    connection.execute("INSERT INTO mail_outbox (to_address, text_body) VALUES ('ann@example.org', 'Hi')")
    connection.commit()
    connection.close()
    assert shell("cancel", "outbox_1", "--yes").exit_code == 0
    assert shell("show", "outbox_1").exit_code == 0
    assert shell("requeue", "--all", "cancelled", "--dry-run").exit_code == 0
    assert shell("requeue", "--all", "cancelled", "--lane", "mail_outbox", "--yes").exit_code == 0
    assert isinstance(shell("requeue", "outbox_7", "--yes").exception, NotFound)
    made = shell.json("credentials", "create", "--name", "shop")
    shell.json("credentials", "rotate", made["id"], "--grace-seconds", "60")
    assert shell("credentials", "delete", made["id"], typed="n\n").exit_code == 1
    assert shell.entries() == [
        ("migrate", None, "done"),
        ("cancel", "outbox_1", "done"),
        ("requeue", None, "done"),
        ("requeue", "outbox_7", "failed"),
        ("credentials.create", "shop", "done"),
        ("credentials.rotate", made["id"], "done"),
        ("credentials.delete", made["id"], "refused"),
    ]
    entries = shell.json("audit")
    assert entries[4]["detail"] == {"all": "cancelled", "lane": "mail_outbox"}
    assert entries[1]["detail"] == {"grace_seconds": 60}
    everything = shell("audit").stdout
    for secret in made.values():
        if secret and len(str(secret)) > 20:
            assert str(secret) not in everything


def test_the_log_is_read_by_time_and_person(shell: Shell) -> None:
    for name in ("a", "b", "c"):
        shell.json("keys", "create", name, "-s", "ops")
    who = shell.json("audit")[0]["who"]
    assert len(shell.json("audit", "--since", "1h", "--who", who)) == 3
    assert len(shell.json("audit", "--who", who.removeprefix("cli:"))) == 3
    assert shell.json("audit", "--who", "user:ann") == []
    assert "nothing is found" in shell("audit", "--who", "nobody").stdout
    assert shell.json("audit", "--since", "2999-01-01T00:00:00Z") == []
    page = shell.json("audit", "--limit", "2")
    (oldest,) = shell.json("audit", "--before", str(page[-1]["id"]))
    assert oldest["detail"] == {"name": "a", "scopes": ["ops"]}
    assert "keys.create" in shell("audit").stdout
    for wrong in ("yesterday", "2026-01-01T00:00:00", "1y"):
        assert "--since" in complaint(shell("audit", "--since", wrong))


def test_without_its_tables_a_database_is_said_to_need_them(tmp_path: Path) -> None:
    assert "homing migrate" in complaint(Shell(tmp_path / "none.db")("keys", "create", "a", "-s", "ops"))
    assert not (tmp_path / "none.db").exists()


def test_a_command_that_is_gone_would_be_missed() -> None:
    app = typer.Typer()
    messages.add_to(app)
    with pytest.raises(RuntimeError, match="credentials create"):
        audit.watch(app)
