"""What was added to another program's tables, and is gone since: that program has made a table anew.

SQLite's usual way to change a table is to make another, copy the rows and drop the first. Columns and indexes
of ours do not survive that, and the record of our migrations does not know of it. The migration itself says
what has to be there, and can be run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from homing.db import Database, Query, Row
from homing.db.migrate import Migration, run_again
from homing.db.patience import Patience
from homing.db.queries import Dialect

#: `ALTER TABLE t ADD COLUMN …`, in PostgreSQL with several columns; and indexes, whatever they are on.
_STATEMENT = re.compile(
    r"^ALTER TABLE (?:IF EXISTS )?(?P<altered>\w+)"
    r"|^CREATE TABLE IF NOT EXISTS (?P<made>\w+)"
    r"|ADD COLUMN IF NOT EXISTS (?P<column>\w+)"
    r"|CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?(?P<index>\w+)\s+ON (?P<on>\w+)",
    re.MULTILINE,
)
_ONCE = "homing_notifications_once"


class Loss(Struct, frozen=True):
    """What the tables lack of what a migration made."""

    #: Such as `open_event_notifications.claim_seq`, or the name of a table or of an index.
    missing: tuple[str, ...]
    #: Indexes of ours that are on another table: the old one, which was renamed and kept.
    strays: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.missing)


async def losses(database: Database, migration: Migration) -> Loss | None:
    """None when everything is there."""
    look = _LOOKS[database.dialect]
    on = {row["name"]: row["on"] for row in await _ask(database, look.indexes)}
    if await _ask(database, look.once):
        # A key of the other program's own is as good.
        on[_ONCE] = "open_event_notifications"
    wanted = list(_wanted(migration.sql))
    # Of these tables only: the other program may have thousands.
    tables = sorted({thing.partition(".")[0] for thing, on_table in wanted if on_table is None})
    columns = await _ask(database, look.columns, tables=msgspec.json.encode(tables).decode())
    there = {*on.items(), *((row["thing"], None) for row in columns)}
    missing = [thing for thing, table in wanted if (thing, table) not in there]
    strays = [thing for thing, table in wanted if table and on.get(thing, table) != table]
    return Loss(tuple(missing), tuple(strays)) if missing else None


async def repair(database: Database, migrations: Sequence[Migration], patience: Patience) -> list[Migration]:
    """Run again what has lost something; what was."""
    return [migration for migration in migrations if await _repaired(database, migration, patience)]


async def _repaired(database: Database, migration: Migration, patience: Patience) -> bool:
    loss = await losses(database, migration)
    if loss is None:
        return False
    # An index on a table that was put aside keeps its name from the one that is needed.
    dropped = "".join(f"DROP INDEX IF EXISTS {name};\n" for name in loss.strays)
    await run_again(database, migration, before=dropped, patience=patience)
    return True


def _wanted(sql: str) -> Iterator[tuple[str, str | None]]:
    """Tables and columns; and indexes, each with its table."""
    table = ""
    for found in _STATEMENT.finditer(sql):
        if found["altered"]:
            table = found["altered"]
        elif found["column"]:
            yield f"{table}.{found['column']}", None
        else:
            yield found["made"] or found["index"], found["on"]


async def _ask(database: Database, sql: str, **parameters: str) -> Sequence[Row]:
    return await database.fetch(Query("repair", sql, tuple(parameters), writes=False), parameters)


class _Look(Struct, frozen=True):
    """How a database is asked for its tables and columns, its indexes, and the key against doubles."""

    columns: str
    indexes: str
    once: str


_LOOKS: dict[Dialect, _Look] = {
    "sqlite": _Look(
        columns="""
WITH asked AS (
    SELECT m.name FROM sqlite_master AS m
    WHERE m.type = 'table' AND lower(m.name) IN (SELECT value FROM json_each(:tables))
)
SELECT lower(name) AS thing FROM asked
UNION ALL
SELECT lower(asked.name) || '.' || lower(c.name) FROM asked, pragma_table_xinfo(asked.name) AS c
""",
        indexes="SELECT name, lower(tbl_name) AS \"on\" FROM sqlite_master WHERE type = 'index'",
        once="""
SELECT 1 AS one FROM pragma_index_list('open_event_notifications') AS l
WHERE l."unique" AND NOT l.partial
  AND (SELECT group_concat(name) FROM (SELECT lower(name) AS name FROM pragma_index_info(l.name) ORDER BY 1))
      = 'open_event_id,subscription_id'
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
        indexes="""
SELECT c.relname::text AS name, t.relname::text AS on
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
WHERE pg_table_is_visible(c.oid) AND c.relname LIKE 'homing%'
""",
        once="""
SELECT 1 AS one
FROM pg_index AS i
WHERE i.indrelid = to_regclass('open_event_notifications') AND i.indisunique AND i.indisvalid
  AND i.indpred IS NULL AND i.indnkeyatts = 2
  AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text) FROM pg_attribute AS a
       WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)) = '{open_event_id,subscription_id}'
""",
    ),
}
