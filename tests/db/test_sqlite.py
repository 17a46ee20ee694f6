"""SQLite as it is met in the wild: other processes, files that cannot be used, texts that are none."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.outbox import bench

from homing.db import Database, Query, connect
from homing.db.queries import parse_queries
from homing.db.sqlite import SqliteDatabase, _integrity
from homing.errors import Conflict, DatabaseError, HomingError, SchemaError, SettingsError, Unreachable

WRITE = Query("write", "INSERT INTO notes (text) VALUES (:text) RETURNING id", ("text",), writes=True)
READ = Query("read", "SELECT text FROM notes ORDER BY id", (), writes=False)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    opened = SqliteDatabase(str(tmp_path / "notes.db"), busy_timeout=0.1)
    await opened.run_script("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT);")
    yield opened
    await opened.close()


async def error_of(database: Database, query: Query = READ, **parameters: object) -> HomingError:
    try:
        with pytest.raises(HomingError) as caught:
            await database.fetch(query, parameters)
    finally:
        await database.close()
    return caught.value


# ── durable ──────────────────────────────────────────────────────────────────────────────────────


async def test_it_writes_ahead_and_syncs_every_commit(database: SqliteDatabase) -> None:
    findings = {name: (well, text) for name, well, text in await database.findings()}
    assert findings["SQLite synchronous"] == (True, "full")
    assert all(well for well, _ in findings.values())


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


async def test_a_file_that_we_make_is_for_its_owner_and_what_lies_beside_it_too(tmp_path: Path) -> None:
    """Tokens and mails are in it, and the key that seals the rest is 0600, too."""
    before = os.umask(0)
    try:
        made = SqliteDatabase(str(tmp_path / "notes.db"))
        await made.run_script("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT);")
        await made.fetch(READ, {})
        assert modes_in(tmp_path) == dict.fromkeys(("notes.db", "notes.db-wal", "notes.db-shm"), 0o600)
        await made.close()
    finally:
        os.umask(before)


async def test_the_mode_of_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """Another program may read it: of open_events it does."""
    path = tmp_path / "notes.db"
    path.touch()
    path.chmod(0o640)
    opened = SqliteDatabase(str(path))
    await opened.run_script("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT);")
    await opened.close()
    assert modes_in(tmp_path) == {"notes.db": 0o640}


async def test_a_statement_that_fails_changes_nothing_and_the_next_one_works(
    database: SqliteDatabase,
) -> None:
    await database.fetch(WRITE, {"text": "kept"})
    bad = Query("bad", "UPDATE notes SET id = 1, text = nothing_like_it(text) RETURNING id", (), writes=True)
    with pytest.raises(DatabaseError):
        await database.fetch(bad, {})
    twice = Query(
        "twice", "INSERT INTO notes (id, text) VALUES (7, 'a'), (7, 'b') RETURNING id", (), writes=True
    )
    with pytest.raises(DatabaseError, match="UNIQUE"):
        await database.fetch(twice, {})
    await database.fetch(WRITE, {"text": "kept too"})
    assert [row["text"] for row in await database.fetch(READ, {})] == ["kept", "kept too"]


async def test_a_script_is_one_transaction_and_may_hold_triggers(database: SqliteDatabase) -> None:
    await database.run_script(
        "CREATE TABLE log (text TEXT);\n"
        "CREATE TRIGGER noted AFTER INSERT ON notes BEGIN INSERT INTO log VALUES (NEW.text); "
        "INSERT INTO log VALUES (';'); END;\nINSERT INTO notes (text) VALUES ('x;y');"
    )
    with pytest.raises(DatabaseError):
        await database.run_script(
            "INSERT INTO notes (text) VALUES ('undone'); INSERT INTO nowhere VALUES (1);"
        )
    log = Query("log", "SELECT text FROM log", (), writes=False)
    assert [row["text"] for row in await database.fetch(log, {})] == ["x;y", ";"]


# ── other processes ──────────────────────────────────────────────────────────────────────────────


async def test_a_lock_that_another_holds_too_long_is_a_conflict(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "notes.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Conflict, match="locked by another process"):
        await database.fetch(WRITE, {"text": "x"})
    assert await database.fetch(READ, {}) == [], "readers do not wait for writers"
    other.execute("ROLLBACK")
    other.close()
    assert len(await database.fetch(WRITE, {"text": "x"})) == 1


@pytest.mark.clause("OUT-04")
async def test_two_processes_write_and_claim_side_by_side(sqlite_url: str) -> None:
    """Another program inserts by itself while two of ours claim: nothing is lost, nothing taken twice."""
    script = (
        "import sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)\n"
        "for n in range(60):\n"
        "    c.execute(\"INSERT INTO mail_outbox (to_address, text_body) VALUES ('a@example.org', 'x')\")\n"
    )
    async with bench(sqlite_url) as first, bench(sqlite_url) as second:
        path = sqlite_url.removeprefix("sqlite:///")
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, path)
        taken: list[int] = []
        async with asyncio.timeout(60):
            while len(taken) < 60:
                for claims in await asyncio.gather(first.outbox.claim(7), second.outbox.claim(7)):
                    taken += [claim.id for claim in claims]
        assert await process.wait() == 0
        assert sorted(taken) == list(range(1, 61))


# ── files that cannot be used ────────────────────────────────────────────────────────────────────


async def test_no_folder(tmp_path: Path) -> None:
    error = await error_of(connect(f"sqlite:///{tmp_path / 'missing' / 'homing.db'}"))
    assert isinstance(error, Unreachable)
    assert f"there is no folder {tmp_path / 'missing'}" in str(error)


async def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    error = await error_of(connect(f"sqlite:///{tmp_path}"))
    assert isinstance(error, Unreachable)


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_text("Dear Sir or Madam, this is a letter. " * 200)
    error = await error_of(connect(f"sqlite:///{path}"))
    assert f"{path} is no SQLite database" in str(error)
    assert path.read_text().startswith("Dear Sir")


async def test_a_missing_table_says_what_to_do(database: SqliteDatabase) -> None:
    missing = Query("missing", "SELECT * FROM mail_outbox", (), writes=False)
    with pytest.raises(SchemaError, match="no such table: mail_outbox; run `homing migrate`"):
        await database.fetch(missing, {})


async def test_a_statement_that_was_said_to_read_cannot_write(database: SqliteDatabase) -> None:
    mistaken = Query("mistaken", WRITE.sql, WRITE.parameters, writes=False)
    with pytest.raises(DatabaseError, match="readonly"):
        await database.fetch(mistaken, {"text": "x"})
    assert await database.fetch(READ, {}) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """One megabyte, then it is full; None where we may not mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    mounted = (
        shutil.which("mount") and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )
    yield disk if mounted else None
    if mounted:
        subprocess.run(["umount", str(disk)], check=True)


async def fill(database: SqliteDatabase, disk: Path | None) -> None:
    if disk is None:
        await database.run_script("PRAGMA max_page_count = 8;")
        return
    with pytest.raises(OSError, match="No space left"):
        (disk / "ballast").write_bytes(b"x" * 2_000_000)


async def make_space(database: SqliteDatabase, disk: Path | None) -> None:
    if disk is None:
        await database.run_script("PRAGMA max_page_count = 100000;")
    else:
        (disk / "ballast").unlink()


async def test_a_full_disk_is_an_error_that_passes_and_breaks_nothing(
    small_disk: Path | None, tmp_path: Path
) -> None:
    """On a real full disk where one can be mounted; else SQLite is told that there are no more pages."""
    database = SqliteDatabase(str((small_disk or tmp_path) / "notes.db"))
    try:
        await database.run_script("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT);")
        await database.fetch(WRITE, {"text": "before"})
        await fill(database, small_disk)
        with pytest.raises(DatabaseError, match=r"full|disk I/O"):
            await database.fetch(WRITE, {"text": "y" * 300_000})
        await make_space(database, small_disk)
        await database.fetch(WRITE, {"text": "after"})
        assert [row["text"] for row in await database.fetch(READ, {})] == ["before", "after"]
        assert all(well for _, well, _ in await database.findings())
    finally:
        await database.close()


# ── text ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["Grüße, 世界 🕊", "a\x00b", "", "\u2028", "'; DROP TABLE notes; --"])
async def test_texts_come_back_as_they_were(database: SqliteDatabase, text: str) -> None:
    await database.fetch(WRITE, {"text": text})
    assert [row["text"] for row in await database.fetch(READ, {})] == [text]


async def test_a_row_whose_text_is_no_utf8_does_not_block_the_queue(sqlite_url: str) -> None:
    """Another program wrote bytes that are no text: its mail may fail, but not everybody else's."""
    async with bench(sqlite_url) as opened:
        (first,) = await opened.insert()
        await opened.sql(
            "INSERT INTO mail_outbox (to_address, text_body) "
            "VALUES ('b@example.org', CAST(x'48ff' AS TEXT)) RETURNING id"
        )
        (last,) = await opened.insert()
        ends = await opened.deliver()
        assert set(ends) == {first, first + 1, last}
        assert (await opened.row(first))["status"] == (await opened.row(last))["status"] == "sent"


async def test_half_a_surrogate_pair_is_refused_as_a_value(database: SqliteDatabase) -> None:
    with pytest.raises(DatabaseError):
        await database.fetch(WRITE, {"text": "\udc80"})


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "names no file"),
        ("sqlite://host/file.db", "names no file"),
        ("sqlite:///a.db?busy_timeout=soon", "no number of seconds"),
        ("sqlite:///a.db?mode=ro", "unknown option 'mode'"),
        ("mysql://root:secret@host/db", "no database URL that Homing knows"),
        ("homing.db", "no database URL that Homing knows"),
    ],
)
def test_a_url_that_means_nothing_is_explained(url: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        connect(url)
    assert "secret" not in str(caught.value)


def test_parsed_queries_run_as_they_are(tmp_path: Path) -> None:
    """The loader leaves `:name` to SQLite, so what it says must be what SQLite takes."""
    (query,) = parse_queries("-- name: q\n-- it's a comment :x\nSELECT :a || ':b' AS both", "sqlite")
    connection = sqlite3.connect(":memory:")
    assert connection.execute(query.sql, {"a": "1"}).fetchone() == ("1:b",)
    connection.close()


async def test_a_new_file_gets_wal_and_a_file_of_somebody_else_keeps_its_journal(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.db"
    with closing(sqlite3.connect(theirs)) as file:
        file.execute("CREATE TABLE courses (id INTEGER)")
    for path, expected in ((tmp_path / "new.db", "wal"), (theirs, "delete")):
        database = SqliteDatabase(str(path))
        await database.run_script("CREATE TABLE ours (id INTEGER);")
        found = {name: (well, detail) for name, well, detail in await database.findings()}
        assert found["SQLite journal_mode"][0] == (expected == "wal")
        await database.close()
        with closing(sqlite3.connect(path)) as file:
            assert file.execute("PRAGMA journal_mode").fetchone() == (expected,)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT locked_at FROM notes",
        "SELECT id FROM notes INDEXED BY homing_notes",
        "INSERT INTO notes (locked_by) VALUES ('me')",
    ],
)
async def test_what_is_missing_is_no_lock_whatever_it_is_called(database: SqliteDatabase, sql: str) -> None:
    error = await error_of(database, Query("missing", sql, (), writes=sql.startswith("INSERT")))
    assert isinstance(error, SchemaError)
    assert "run `homing migrate`" in str(error)


def test_a_check_of_the_file_that_takes_too_long_says_so() -> None:
    connection = sqlite3.connect(":memory:")
    try:
        assert _integrity(connection) == (True, "ok")
        # Every statement is interrupted from here on, as by the time that is over.
        connection.set_progress_handler(lambda: 1, 1)
        well, told = _integrity(connection)
        assert well
        assert "`PRAGMA quick_check` looks at the whole file" in told
    finally:
        connection.close()
