"""What was added to another program's tables, and is gone since: that program has made a table anew.

SQLite's usual way to change a table is to make another, copy the rows and drop the first. Columns, indexes
and triggers of ours do not survive that, and the record of our migrations does not know of it. The migrations
themselves say what has to be there, and are run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from homing.db.adoption import TableSpec, find_table
from homing.db.database import Database, Row
from homing.db.migrate import Migration, run_again
from homing.db.patience import Patience
from homing.db.queries import Dialect, Query

#: `ALTER TABLE t ADD COLUMN …`, in PostgreSQL with several columns; indexes and triggers, whatever is theirs.
#: A trigger that is only there under a condition is passed over.
_STATEMENT = re.compile(
    r"^-- unless: .*\nCREATE TRIGGER"
    r"|^ALTER TABLE (?:IF EXISTS )?(?P<altered>\w+)"
    r"|^CREATE TABLE IF NOT EXISTS (?P<made>\w+)"
    r"|ADD COLUMN IF NOT EXISTS (?P<column>\w+)"
    r"|CREATE (?:UNIQUE INDEX|INDEX|TRIGGER) (?:IF NOT EXISTS )?(?P<name>\w+)\s[\w\s,]*?\bON (?P<on>\w+)",
    re.MULTILINE,
)


class Loss(Struct, frozen=True):
    """What the tables lack of what a migration made."""

    #: Such as `open_event_notifications.claim_seq`, or the name of a table, an index or a trigger.
    missing: tuple[str, ...]
    #: What is ours and on another table: the old one, which was renamed and kept.
    strays: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.missing)


async def losses(
    database: Database, migrations: Sequence[Migration], specs: Sequence[TableSpec]
) -> Mapping[Migration, Loss]:
    """Of what these migrations made on tables that another program may have made, what is there no more."""
    if not migrations:
        return {}
    look = _LOOKS[database.dialect]
    wanted = {migration: list(_wanted(migration)) for migration in migrations}
    names = [thing for things in wanted.values() for thing, table in things if table is not None]
    # Of these tables only: the other program may have thousands.
    tables = {
        thing.partition(".")[0] for things in wanted.values() for thing, table in things if table is None
    }
    on = {(row["name"], row["on"]) for row in await _ask(database, look.attached, names)}
    on |= await _keys_of_their_own(database, specs)
    there = on | {(row["thing"], None) for row in await _ask(database, look.columns, sorted(tables))}
    lost = {
        migration: tuple(one for one in things if one not in there) for migration, things in wanted.items()
    }
    known = {name for name, _ in on}
    return {
        migration: Loss(tuple(thing for thing, _ in gone), tuple(name for name, _ in gone if name in known))
        for migration, gone in lost.items()
        if gone
    }


async def _keys_of_their_own(database: Database, specs: Sequence[TableSpec]) -> set[tuple[str, str]]:
    """A key of the other program's own is as good as the index that a migration would have made."""
    found = set()
    for name, unique in [(spec.name, spec.unique) for spec in specs if spec.unique is not None]:
        table = await find_table(database, name)
        if table is not None and frozenset(unique.columns) in table.unique:
            found.add((unique.index, name))
    return found


async def repair(
    database: Database,
    migrations: Sequence[Migration],
    specs: Sequence[TableSpec],
    patience: Patience,
    undo: str | None = None,
) -> list[Migration]:
    """Run again what has lost something; what was. All, where they can be run twice only after `undo`."""
    lost = await losses(database, migrations, specs)
    if lost and undo is not None:
        await run_again(database, *migrations, before=undo, patience=patience)
        return list(migrations)
    for migration, loss in lost.items():
        # An index on a table that was put aside keeps its name from the one that is needed.
        dropped = "".join(f"DROP INDEX IF EXISTS {name};\n" for name in loss.strays)
        await run_again(database, migration, before=dropped, patience=patience)
    return list(lost)


def _wanted(migration: Migration) -> Iterator[tuple[str, str | None]]:
    """Tables and columns; and indexes and triggers, each with its table."""
    table = ""
    for found in _STATEMENT.finditer(migration.adopting or migration.sql):
        if found["altered"]:
            table = found["altered"]
        elif found["column"]:
            yield f"{table}.{found['column']}", None
        elif found["made"]:
            yield found["made"], None
        # Whose table it is cannot be seen any more: what only one of them has is not asked for.
        elif found["name"] and found["name"] in migration.sql:
            yield found["name"], found["on"]


async def _ask(database: Database, sql: str, names: Sequence[str]) -> Sequence[Row]:
    parameters = {"names": msgspec.json.encode(names).decode()}
    return await database.fetch(Query("repair", sql, ("names",), writes=False), parameters)


class _Look(Struct, frozen=True):
    """How a database is asked for tables with their columns; for indexes and triggers with their tables."""

    columns: str
    attached: str


_LOOKS: dict[Dialect, _Look] = {
    "sqlite": _Look(
        columns="""
WITH asked AS (
    SELECT m.name FROM sqlite_master AS m
    WHERE m.type = 'table' AND lower(m.name) IN (SELECT value FROM json_each(:names))
)
SELECT lower(name) AS thing FROM asked
UNION ALL
SELECT lower(asked.name) || '.' || lower(c.name) FROM asked, pragma_table_xinfo(asked.name) AS c
""",
        attached="""
SELECT name, lower(tbl_name) AS "on" FROM sqlite_master
WHERE type IN ('index', 'trigger') AND name IN (SELECT value FROM json_each(:names))
""",
    ),
    "postgres": _Look(
        columns="""
WITH asked AS (
    SELECT c.oid, c.relname::text AS name
    FROM json_array_elements_text($1::json) AS t(name) JOIN pg_class AS c ON c.relname = t.name
    WHERE c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid)
)
SELECT name AS thing FROM asked
UNION ALL
SELECT asked.name || '.' || a.attname::text
FROM asked JOIN pg_attribute AS a ON a.attrelid = asked.oid AND a.attnum > 0 AND NOT a.attisdropped
""",
        attached="""
WITH asked AS (SELECT name FROM json_array_elements_text($1::json) AS t(name))
SELECT c.relname::text AS name, t.relname::text AS on
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
WHERE pg_table_is_visible(c.oid) AND c.relname IN (SELECT name FROM asked)
UNION ALL
SELECT g.tgname::text, t.relname::text
FROM pg_trigger AS g JOIN pg_class AS t ON t.oid = g.tgrelid
WHERE pg_table_is_visible(t.oid) AND g.tgname IN (SELECT name FROM asked)
""",
    ),
}
