"""Numbered SQL files, applied once each, in order, by one process at a time.

A component is a package with `migrations/postgres/NNNN_name.sql` and `migrations/sqlite/…`; for MongoDB
`migrations/mongodb/NNNN_name.json` holds commands that can be run twice. What was applied is recorded in
`homing_migration` with a checksum, so that a file that was changed afterwards is noticed instead of believed.

Where another program has made a table already, `adopt/NNNN_name.sql` beside the migration is run in its
place: it adds only what is missing. Its first line names the table, `-- table: mail_outbox`. What is recorded
is the migration, so that everything after it is the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from homing.db.adoption import find_table
from homing.db.database import Database, instant
from homing.db.patience import Patience, patiently
from homing.db.queries import Dialect, Query
from homing.errors import Conflict, DatabaseError, NoDatabase, SchemaError

Result = TypeVar("Result")
_PATIENCE: Final = Patience()
#: More are only counted: a wall of names hides what is to be done.
_MOST_NAMED: Final = 5


class Migration(Struct, frozen=True, order=True):
    component: str
    version: int
    name: str
    sql: str
    #: What is run instead where another program has made the table that it names.
    adopting: str | None = None

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.component} {self.version:04d} {self.name}"


class Pending(Struct, frozen=True):
    """What a database lacks."""

    migrations: tuple[Migration, ...]
    #: Where there is no database at all, that in a sentence.
    absent: str | None = None

    def require_none(self, setting: str | None = None) -> None:
        """`setting` names the database where it is not the main one: its URL may just be wrong."""
        if not self.migrations:
            return
        if self.absent is not None:
            raise NoDatabase(self.absent if setting is None else f"{setting}: {self.absent}")
        if setting is None:
            raise SchemaError(f"the database lacks {self._in_words()}; run `homing migrate`")
        raise SchemaError(
            f"the database of {setting} lacks {self._in_words()}; check that it is the one, then run "
            "`homing migrate`"
        )

    def _in_words(self) -> str:
        if len(self.migrations) > _MOST_NAMED:
            return f"{len(self.migrations)} migrations"
        return ", ".join(str(m) for m in self.migrations)


def load_migrations(packages: Iterable[str], dialect: Dialect) -> list[Migration]:
    """All migrations of some packages, in the order in which they are applied."""
    return [migration for package in packages for migration in _of_package(package, dialect)]


def _of_package(package: str, dialect: Dialect) -> list[Migration]:
    folder = files(package).joinpath("migrations", dialect)
    return sorted(_read(package, folder, file) for file in folder.iterdir() if file.is_file())


def _read(package: str, folder: Traversable, file: Traversable) -> Migration:
    version, _, name = file.name.rpartition(".")[0].partition("_")
    adopting = folder.joinpath("adopt", file.name)
    return Migration(
        package.rsplit(".", 1)[-1],
        int(version),
        name,
        file.read_text(encoding="utf-8"),
        adopting.read_text(encoding="utf-8") if adopting.is_file() else None,
    )


async def check(database: Database, migrations: Sequence[Migration]) -> Pending:
    """What is still to be applied; raises `SchemaError` when what was applied is not what we know."""
    try:
        applied = await _applied(database)
    except NoDatabase as error:
        return Pending(tuple(migrations), str(error))
    for migration in migrations:
        recorded = applied.pop((migration.component, migration.version), migration.checksum)
        if recorded != migration.checksum:
            raise SchemaError(
                f"migration {migration} was changed after it had been applied; restore the file"
            )
    known = {m.component for m in migrations}
    if newer := sorted(key for key in applied if key[0] in known):
        raise SchemaError(
            f"a newer Homing has migrated this database ({newer[-1][0]} {newer[-1][1]:04d}); upgrade"
        )
    done = await _applied(database)
    return Pending(tuple(m for m in migrations if (m.component, m.version) not in done))


async def migrate(
    database: Database, migrations: Sequence[Migration], patience: Patience = _PATIENCE
) -> list[Migration]:
    """Apply what is missing; what was applied by us. Several processes may do it at once."""
    pending = (await patiently(lambda: check(database, migrations))).migrations
    return [one for one in pending if await _apply_patiently(database, one, patience)]


def once_more(migration: Migration) -> Migration:
    """To be applied a second time, with a record of its own. Only for scripts that may be run twice."""
    return replace(migration, component=f"{migration.component}_again")


async def applied_at(database: Database, component: str, version: int) -> datetime | None:
    """None when it was not applied."""
    text = f"SELECT applied_at FROM homing_migration WHERE component = '{component}' AND version = {version}"  # noqa: S608 - ours
    rows = await database.fetch(Query("applied_at", text, (), writes=False), {})
    return instant(rows[0]["applied_at"]) if rows else None


async def run_again(
    database: Database, *migrations: Migration, before: str = "", patience: Patience = _PATIENCE
) -> None:
    """Run once more what was applied, in one transaction: scripts that may run twice, if after `before`."""
    script = _LEDGER[database.dialect] + before
    for migration in migrations:
        script += _statements(database.dialect, await _as_found(database, migration))
    await _patiently(database, migrations[0], patience, lambda: database.run_script(script))


async def _apply_patiently(database: Database, migration: Migration, patience: Patience) -> bool:
    return await _patiently(database, migration, patience, lambda: _apply(database, migration))


async def _patiently(
    database: Database, migration: Migration, patience: Patience, work: Callable[[], Awaitable[Result]]
) -> Result:
    if database.dialect != "postgres":
        # Nobody queues up behind us there.
        return await patiently(work)
    try:
        return await patience.hold(str(migration), work)
    except Conflict as error:
        raise DatabaseError(
            f"{migration} was not applied: in {patience.tries} tries another program always held what it "
            f"needs. Who has been in a transaction for long is shown by `{_HOLDERS}`; wait for it or end it, "
            "and run `homing migrate` again"
        ) from error


async def _apply(database: Database, migration: Migration) -> bool:
    try:
        await database.run_script(_script(database.dialect, migration, await _as_found(database, migration)))
    except DatabaseError:
        # Another process may have been first; its record then stands where ours was refused.
        if (migration.component, migration.version) in await _applied(database):
            return False
        raise
    return True


async def _as_found(database: Database, migration: Migration) -> str:
    """The statements of a migration, or those that adopt the table that it would make."""
    found = _TABLE.match(migration.adopting or "")
    if migration.adopting is None or found is None or await find_table(database, found["name"]) is None:
        return migration.sql
    return migration.adopting


def _script(dialect: Dialect, migration: Migration, sql: str) -> str:
    """The record goes in first: a second process waits for it, and then fails on it before any DDL."""
    if dialect == "mongodb":
        return _commands(migration)
    record = (
        "INSERT INTO homing_migration (component, version, name, checksum) VALUES "  # noqa: S608 - ours
        f"('{migration.component}', {migration.version}, '{migration.name}', '{migration.checksum}');\n"
    )
    return _LEDGER[dialect] + record + _statements(dialect, sql)


def _statements(dialect: Dialect, sql: str) -> str:
    return _OWN_TIMEOUT.sub("", sql) if dialect == "postgres" else sql


def _commands(migration: Migration) -> str:
    record = {
        "component": migration.component,
        "version": migration.version,
        "name": migration.name,
        "checksum": migration.checksum,
    }
    return json.dumps({"record": record, "commands": json.loads(migration.sql)})


_TABLE: Final = re.compile(r"-- table: (?P<name>\w+)\n")
_HOLDERS: Final = "SELECT pid, application_name, xact_start FROM pg_stat_activity ORDER BY xact_start"
#: What a file of ours says of this itself, and cannot be rid of since it was applied.
_OWN_TIMEOUT: Final = re.compile(r"^SET LOCAL lock_timeout = [^;]+;", re.MULTILINE)

# On PostgreSQL whoever comes after a migration that waits for a table waits behind it, also to insert a row.
# So it waits for a second, and tries again; for another that migrates, which stops nobody, for longer.
_LEDGER: dict[Dialect, str] = {
    "postgres": """
SET LOCAL lock_timeout = '60s';
SELECT pg_advisory_xact_lock(hashtext('homing_migration'));
SET LOCAL lock_timeout = '1s';
CREATE TABLE IF NOT EXISTS homing_migration (
    component text NOT NULL, version integer NOT NULL, name text NOT NULL, checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (component, version)
);
""",
    "sqlite": """
CREATE TABLE IF NOT EXISTS homing_migration (
    component TEXT NOT NULL, version INTEGER NOT NULL, name TEXT NOT NULL, checksum TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), PRIMARY KEY (component, version)
);
""",
}


async def _applied(database: Database) -> dict[tuple[str, int], str]:
    text = "SELECT component, version, checksum FROM homing_migration"
    query = Query("applied", text, (), False, _applied_in_mongodb)
    try:
        rows = await database.fetch(query, {})
    except NoDatabase:
        raise
    except SchemaError:
        return {}
    return {(row["component"], row["version"]): row["checksum"] for row in rows}


async def _applied_in_mongodb(session: Any, _parameters: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = await session.find("homing_migration", {})
    return found
