"""`homing credentials`: what it prints and exits with, and that no secret goes where it should not."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from homing.cli import credentials
from homing.db import connect
from homing.db.migrate import migrate
from homing.errors import HomingError, InvalidRequest, NotAllowed, NotFound, SchemaError
from homing.lanes.dispatch_jobs.credentials import Credentials, Secrets
from homing.lanes.dispatch_jobs.tsid import number_of
from homing.signatures import make_private_key, public_key_of, verify
from homing.vault import Vault

OLD_KEY, NEW_KEY = b"o" * 32, b"n" * 32
OLD, NEW = b64encode(OLD_KEY).decode(), b64encode(NEW_KEY).decode()

app = typer.Typer()
credentials.add_to(app)


@app.callback()
def homing() -> None:
    """As the real one, which has more commands."""


Run = Callable[..., Result]


@pytest.fixture
def database_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A migrated database in the folder that the command runs in."""
    from homing.app import MIGRATED
    from homing.db.migrate import load_migrations

    async def make() -> None:
        database = connect(f"sqlite:///{tmp_path}/homing.db")
        await migrate(database, load_migrations(MIGRATED, "sqlite"))
        await database.close()

    asyncio.run(make())
    monkeypatch.chdir(tmp_path)
    return tmp_path / "homing.db"


@pytest.fixture
def run(database_file: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def invoke(*arguments: str, standard_input: str | None = None, key: str = OLD) -> Result:
        environment = {"HOMING_DATABASE_URL": f"sqlite:///{database_file}", "HOMING_ENCRYPTION_KEY": key}
        return CliRunner(env=environment).invoke(app, ["credentials", *arguments], input=standard_input)

    return invoke


def json_of(result: Result) -> Any:
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def secrets_in(database_file: Path, id: str, *keys: bytes) -> Secrets:
    async def read() -> Any:
        database = connect(f"sqlite:///{database_file}")
        try:
            return await Credentials(database, Vault(keys or [OLD_KEY])).get(number_of(id) or 0)
        finally:
            await database.close()

    found = asyncio.run(read())
    assert isinstance(found, Secrets)
    return found


@pytest.mark.clause("JOB-05", "JOB-24")
def test_from_making_to_deleting(run: Run, database_file: Path) -> None:
    created = json_of(run("create", "--name", "partner", "--json"))
    assert {"bearerToken", "signingSecret", "fingerprint"} < set(created)
    shown = json_of(run("show", created["id"], "--json"))
    assert shown == {k: v for k, v in created.items() if k not in {"bearerToken", "signingSecret"}}
    assert [one["id"] for one in json_of(run("list", "--json"))] == [created["id"]]
    listed = run("list").stdout
    assert all(words in listed for words in (created["id"], "partner", created["fingerprint"]))
    headers = secrets_in(database_file, created["id"]).headers("m", datetime.now(UTC), b"{}")
    assert headers["Authorization"] == f"Bearer {created['bearerToken']}"
    assert verify(b"{}", headers, created["signingSecret"]).id == "m"
    rotated = json_of(run("rotate", created["id"], "--grace-seconds", "60", "--json"))
    assert {"bearerToken", "signingSecret", "previousUntil"} < set(rotated)
    assert rotated["previousUntil"] in run("list").stdout
    assert json_of(run("delete", created["id"], "--yes", "--json")) == {"message": "Credentials deleted"}
    assert "no credentials" in run("list").stdout


@pytest.mark.clause("JOB-24")
def test_where_they_may_be_used(run: Run) -> None:
    made = json_of(run("create", "--allowed-target", "https://a.example", "--json"))
    assert made["allowedTargets"] == ["https://a.example:443"]
    more = json_of(run("allow", made["id"], "https://b.example", "--json"))
    assert more["allowedTargets"] == ["https://a.example:443", "https://b.example:443"]
    assert "https://a.example:443, https://b.example:443" in run("show", made["id"]).stdout
    assert json_of(run("allow", made["id"], "*", "--only", "--json"))["allowedTargets"] == ["*"]
    assert json_of(run("allow", made["id"], "--only", "--json"))["allowedTargets"] == []
    for arguments, why in (((), "name what they may be used for"), (("a.example",), "without a path")):
        wrong = run("allow", made["id"], *arguments)
        assert isinstance(wrong.exception, InvalidRequest)
        assert why in str(wrong.exception)


def test_what_was_made_is_shown_with_a_warning(run: Run) -> None:
    created = run("create")
    assert "whsec_" in created.stdout
    assert "hm_" in created.stdout
    assert "shown this once" in created.stderr
    given = run(
        "create", "--signing-secret-file", "-", "--without", "bearer-token", standard_input="s3cret-1\n"
    )
    assert "shown this once" not in given.stderr
    assert "s3cret-1" not in given.output


@pytest.mark.clause("JOB-24")
def test_secrets_come_from_files(run: Run, tmp_path: Path, database_file: Path) -> None:
    key = make_private_key()
    for name, text in (("token", "sk_live\n"), ("secret", "s3cret-1\r\n"), ("key", key)):
        (tmp_path / name).write_text(text, newline="")
    created = json_of(
        run("create", "--bearer-token-file", "token", "--signing-secret-file", "secret",
            "--signing-key-file", "key", "--json")
    )  # fmt: skip
    assert "bearerToken" not in created
    assert created["publicKey"] == public_key_of(key)
    headers = secrets_in(database_file, created["id"]).headers("m", datetime.now(UTC), b"{}")
    assert headers["Authorization"] == "Bearer sk_live"
    assert verify(b"{}", headers, "s3cret-1").secret_index == 0
    assert verify(b"{}", headers, created["publicKey"]).secret_index == 0
    generated = json_of(
        run("rotate", created["id"], "--generate", "signing-key", "--generate", "bearer-token", "--json")
    )
    assert generated["bearerToken"].startswith("hm_")
    assert generated["publicKey"] != created["publicKey"]
    assert "signingSecret" not in generated
    assert "whsk_" not in json.dumps(generated)


def test_mistakes_are_explained(run: Run, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    id = json_of(run("create", "--json"))["id"]
    for arguments, kind, words in (
        (("create", "--bearer-token-file", "missing"), InvalidRequest, "cannot be read"),
        (("create", "--bearer-token-file", "binary"), InvalidRequest, "no text"),
        (
            ("create", "--bearer-token-file", "-", "--signing-secret-file", "-"),
            InvalidRequest,
            "one secret only",
        ),
        (("create", "--bearer-token-file", "-", "--without", "bearer-token"), InvalidRequest, "contradict"),
        (("create", "--without", "bearer-token", "--without", "signing-secret"), InvalidRequest, "need"),
        (("rotate", id, "--grace-seconds", "700000"), InvalidRequest, "7 days"),
        (("rotate", "nonsense"), NotFound, "ids look like"),
        (("show", "0000000000005"), NotFound, "there are no credentials"),
        (("list", "--before", "nonsense"), InvalidRequest, "that the last page ended with"),
        (("delete", "0000000000005", "--yes"), NotFound, "there are no credentials"),
    ):
        result = run(*arguments, standard_input="x")
        assert isinstance(result.exception, kind), result.output
        assert words in str(result.exception)
    assert run("create", "--bearer-token", "sk_live").exit_code == 2, "no secret is taken from a flag"


def test_deleting_asks_first(run: Run, database_file: Path) -> None:
    id = json_of(run("create", "--json"))["id"]
    assert run("delete", id, standard_input="n\n").exit_code == 1
    with sqlite3.connect(database_file) as connection:
        connection.execute(
            "INSERT INTO dispatch_job (id, source, type, target_url, payload, credentials_id) "
            "VALUES (1, 's', 't', 'https://a.example', '{}', ?)",
            [number_of(id)],
        )
    connection.close()
    assert isinstance(run("delete", id, standard_input="y\n").exception, NotAllowed)
    assert run("delete", id, "--force", standard_input="y\n").exit_code == 0


@pytest.mark.clause("JOB-24")
def test_rewrap(run: Run, database_file: Path) -> None:
    ids = [json_of(run("create", "--json"))["id"] for _ in range(3)]
    assert "3 credentials, 0 sealed anew" in run("rewrap").stdout
    both = run("rewrap", "--json", key=f"{NEW},{OLD}")
    assert json_of(both) == {"total": 3, "seen": 3, "resealed": 3, "unreadable": 0, "missed": 0}
    for id in ids:
        secrets_in(database_file, id, NEW_KEY)
    stranger = run("rewrap", key=OLD)
    assert stranger.exit_code == 1
    assert "3 cannot be opened" in stranger.stdout


def test_no_key_is_made_beside_a_database_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner(env={"HOMING_DATABASE_URL": "sqlite:///typo.db"}).invoke(app, ["credentials", "list"])
    assert isinstance(result.exception, SchemaError)
    assert list(tmp_path.iterdir()) == []


def test_without_a_key_in_the_settings_there_is_a_file(run: Run, database_file: Path) -> None:
    created = json_of(run("create", "--json", key=""))
    assert (database_file.parent / "homing.key").stat().st_mode & 0o777 == 0o600
    assert json_of(run("rotate", created["id"], "--json", key=""))["id"] == created["id"]
    wrong = run("create", key="nonsense")
    assert isinstance(wrong.exception, HomingError)
    assert "openssl rand -base64 32" in str(wrong.exception)
