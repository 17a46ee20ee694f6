"""Tables that another program has made: what of them cannot be worked with, found before anything is changed.

`homing migrate` adds what is missing. It cannot add a key to rows that have none, nor mend a column that
holds something else; those it names, all at once, and leaves the database as it was.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Literal

from msgspec import Struct

from homing.db import Database, Query, Row
from homing.errors import DatabaseError
from homing.lanes.open_events.notification import STATES

Kind = Literal["integer", "text", "time"]

_EVENTS, _NOTIFICATIONS, _SUBSCRIPTIONS = "open_events", "open_event_notifications", "subscriptions"
_HISTORY = "subscription_events"

#: Without these a table is not the one of the contract.
_NEEDED: Mapping[str, Mapping[str, Kind]] = {
    _EVENTS: {
        "open_event_id": "integer",
        "term_id": "text",
        "campus_code": "text",
        "index_number": "text",
        "status_after": "text",
        "event_at": "time",
        "dedupe_key": "text",
    },
    _NOTIFICATIONS: {
        "notification_id": "integer",
        "open_event_id": "integer",
        "subscription_id": "integer",
        "dedupe_key": "text",
        "fanout_status": "text",
        "fanout_attempts": "integer",
    },
    _SUBSCRIPTIONS: {
        "subscription_id": "integer",
        "term_id": "text",
        "campus_code": "text",
        "index_number": "text",
        "contact_type": "text",
        "contact_value": "text",
        "status": "text",
    },
    _HISTORY: {"event_id": "integer", "subscription_id": "integer", "event_type": "text"},
    "sections": {"section_id": "integer"},
    "courses": {"course_id": "integer"},
    "section_meetings": {"meeting_id": "integer", "section_id": "integer"},
}
#: Those that are added where they are missing, and have to hold this where they are not.
_ADDED: Mapping[str, Mapping[str, Kind]] = {
    _EVENTS: {"section_id": "integer", "payload": "text", "trace_id": "text", "created_at": "time"},
    _NOTIFICATIONS: {
        "last_attempt_at": "time",
        "locked_by": "text",
        "locked_at": "time",
        "error": "text",
        "created_at": "time",
        "claim_seq": "integer",
        "due_at": "time",
        "due_attempts": "integer",
        "lock_written_at": "time",
        "delivered_by": "text",
        "delivered_millis": "integer",
    },
    _SUBSCRIPTIONS: {
        "locale": "text",
        "metadata": "text",
        "updated_at": "time",
        "last_notified_at": "time",
        "last_known_section_status": "text",
    },
    _HISTORY: {"section_status_snapshot": "text", "payload": "text", "created_at": "time"},
    "sections": {"course_id": "integer"},
}
_KEYS = {
    _EVENTS: "open_event_id",
    _NOTIFICATIONS: "notification_id",
    _SUBSCRIPTIONS: "subscription_id",
}
_NUMBERS = {**_KEYS, _HISTORY: "event_id"}
#: Written as NULL, whatever it was.
_EMPTIED = {
    _NOTIFICATIONS: ("locked_by", "locked_at", "error", "due_at", "due_attempts", "lock_written_at"),
    _HISTORY: ("section_status_snapshot",),
}
#: What is known of a row that is added, by a worker or by the API; everything else must do without.
_GIVEN = {
    _EVENTS: frozenset(
        {
            *_NEEDED[_EVENTS],
            *_ADDED[_EVENTS],
            *("status_before", "seat_delta", "detected_by", "snapshot_id"),
        }
    ),
    _NOTIFICATIONS: frozenset({*_NEEDED[_NOTIFICATIONS], *_ADDED[_NOTIFICATIONS]}),
    _SUBSCRIPTIONS: frozenset(
        {
            *_NEEDED[_SUBSCRIPTIONS],
            *_ADDED[_SUBSCRIPTIONS],
            *("section_id", "contact_hash", "is_verified", "created_at", "unsubscribe_token"),
        }
    ),
    _HISTORY: frozenset({*_NEEDED[_HISTORY], *_ADDED[_HISTORY]}),
}
_WORDS = {
    (_NOTIFICATIONS, "fanout_status"): STATES,
    (_SUBSCRIPTIONS, "status"): ("pending", "active", "paused", "suppressed", "unsubscribed"),
    (_HISTORY, "event_type"): ("notify_sent", "notify_failed", "status_changed", "unsubscribed"),
}
_PAIR = frozenset({"open_event_id", "subscription_id"})
_HOLDS = {"integer": "whole numbers", "text": "text", "time": "times"}


class Column(Struct, frozen=True):
    """A column as the database describes it."""

    name: str
    declared: str
    #: What can be kept in it.
    holds: frozenset[Kind]
    is_required: bool
    has_default: bool


class Table(Struct, frozen=True):
    name: str
    is_table: bool
    columns: Mapping[str, Column]
    #: The columns of each key, and of each unique index without a condition.
    unique: tuple[frozenset[str], ...]


async def refusals(database: Database) -> list[str]:
    """Why these tables cannot be taken over, a sentence each; empty when they can, or are not there yet."""
    look = _Postgres(database) if database.dialect == "postgres" else _Sqlite(database)
    found = [table for name in _NEEDED if (table := await look.table(name)) is not None]
    said = [sentence for table in found for sentence in _of_shape(table)]
    if said:
        return said
    return [sentence for table in found for sentence in await _of_contents(look, table)]


def _of_shape(table: Table) -> Iterator[str]:
    """What its description tells."""
    if not table.is_table:
        yield f"{table.name} is no table but a view or something like it; rows cannot be claimed in it"
        return
    for name, kind in _NEEDED[table.name].items():
        if name not in table.columns:
            yield f"{table.name} has no column {name}, which cannot be made up; add it and fill it"
        else:
            yield from _of_kind(table, name, kind)
    for name, kind in _ADDED.get(table.name, {}).items():
        if name in table.columns:
            yield from _of_kind(table, name, kind)
    yield from _of_keys(table)
    yield from _of_nulls(table)


def _of_kind(table: Table, name: str, kind: Kind) -> Iterator[str]:
    column = table.columns[name]
    if kind not in column.holds:
        yield f"{table.name}.{name} is {column.declared}; it has to hold {_HOLDS[kind]}"


def _of_keys(table: Table) -> Iterator[str]:
    key = _KEYS.get(table.name)
    if key is not None and key in table.columns and frozenset({key}) not in table.unique:
        yield f"{table.name}.{key} is no unique key; make it the primary key, or give it a unique index"


def _of_nulls(table: Table) -> Iterator[str]:
    for name in _EMPTIED.get(table.name, ()):
        if name in table.columns and table.columns[name].is_required:
            yield f"{table.name}.{name} is NOT NULL; a row that nobody holds has nothing there"
    if table.name in _GIVEN:
        yield from _of_new_rows(table)


def _of_new_rows(table: Table) -> Iterator[str]:
    for column in table.columns.values():
        if column.name not in _GIVEN[table.name] and column.is_required and not column.has_default:
            yield f"{table.name}.{column.name} wants a value that Homing does not know; give it a default"
    key = _NUMBERS[table.name]
    if key in table.columns and not table.columns[key].has_default:
        yield f"{table.name}.{key} does not number its rows; Homing adds some without knowing theirs"


async def _of_contents(look: _Sqlite | _Postgres, table: Table) -> list[str]:
    """What its rules and its rows tell."""
    said = []
    for (name, column), words in _WORDS.items():
        if name == table.name and (refused := await look.refused_words(table, column, words)):
            said.append(f"{name}.{column} does not take {', '.join(refused)}; a CHECK forbids it")
    if table.name == _NOTIFICATIONS and _PAIR not in table.unique and (twice := await look.twice()):
        said.append(
            f"{table.name} has {twice} pairs of open_event_id and subscription_id more than once; nobody is "
            "to be told twice of one event, so delete the others"
        )
    return said


# ── SQLite ───────────────────────────────────────────────────────────────────────────────────────


class _Sqlite:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def _ask(self, sql: str, **parameters: Any) -> Sequence[Row]:
        return await self._database.fetch(Query("adopt", sql, tuple(parameters), writes=False), parameters)

    async def table(self, name: str) -> Table | None:
        kind = await self._ask(_SQLITE_KIND, name=name)
        if not kind:
            return None
        columns = await self._ask(_SQLITE_COLUMNS, name=name)
        unique = await self._ask(_SQLITE_UNIQUE, name=name)
        # A key that is the row's own number needs no index, and is not listed with them.
        own = frozenset(row["name"] for row in columns if row["pk"])
        return Table(
            name,
            kind[0]["type"] == "table",
            {row["name"].lower(): _sqlite_column(row, own) for row in columns},
            (own, *(frozenset(row["columns"].lower().split(",")) for row in unique)),
        )

    async def refused_words(self, table: Table, column: str, words: Sequence[str]) -> list[str]:
        """Tried on a table of the same definition, in memory, with a row like one that is there."""
        (definition,) = await self._ask(_SQLITE_DEFINITION, name=table.name)
        # The name comes from a list above, and is that of a table.
        rows = await self._ask(f"SELECT * FROM {table.name} LIMIT 1")  # noqa: S608 - ours
        row = dict(rows[0]) if rows else _invented(table)
        with closing(sqlite3.connect(":memory:")) as memory:
            try:
                memory.execute(definition["sql"])
            except sqlite3.Error:
                # It names something that is only there, such as a collation; then nothing is known.
                return []
            refused = [word for word in words if _is_refused(memory, table.name, {**row, column: word})]
            known = [*words, *map(str.upper, words)] if not rows else ()
            # What refuses a row in every spelling has something else against it: here it was invented.
            if known and all(_is_refused(memory, table.name, {**row, column: word}) for word in known):
                return []
        return refused

    async def twice(self) -> int:
        (row,) = await self._ask(_TWICE)
        return int(row["count"])


def _is_refused(memory: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> bool:
    names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
    try:
        memory.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', tuple(row.values()))  # noqa: S608 - ours
    except sqlite3.IntegrityError as error:
        return "CHECK" in str(error)
    finally:
        memory.rollback()
    return False


def _invented(table: Table) -> dict[str, Any]:
    """A row as a producer would write it, where there is none to look at."""
    samples: Mapping[Kind, Any] = {"integer": 1, "time": "2026-01-01T00:00:00.000Z", "text": "0" * 40}
    kinds = {**_NEEDED[table.name], **_ADDED.get(table.name, {})}
    known = {name: samples[kind] for name, kind in kinds.items() if name in table.columns}
    others = {
        name: samples["integer" if column.holds == {"integer"} else "text"]
        for name, column in table.columns.items()
        if column.is_required and not column.has_default and name not in known
    }
    return {**known, **others, **({"contact_type": "email"} if "contact_type" in known else {})}


def _sqlite_column(row: Row, key: frozenset[str]) -> Column:
    declared = str(row["type"] or "").upper()
    numbers_itself = key == {row["name"]} and declared == "INTEGER"
    return Column(
        row["name"].lower(),
        declared or "of no type",
        _sqlite_holds(declared),
        bool(row["notnull"]),
        row["dflt_value"] is not None or numbers_itself,
    )


def _sqlite_holds(declared: str) -> frozenset[Kind]:
    """By SQLite's rules of affinity. A column of numbers would keep a text, but nobody puts times there."""
    if "INT" in declared:
        return frozenset({"integer"})
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return frozenset({"text", "time"})
    if any(word in declared for word in ("REAL", "FLOA", "DOUB")):
        return frozenset()
    return frozenset({"integer", "text", "time"})


_SQLITE_KIND = "SELECT type FROM sqlite_master WHERE lower(name) = :name AND type IN ('table', 'view')"
_SQLITE_DEFINITION = "SELECT sql FROM sqlite_master WHERE lower(name) = :name AND type = 'table'"
_SQLITE_COLUMNS = 'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_xinfo(:name)'
_SQLITE_UNIQUE = """
SELECT (SELECT group_concat(i.name) FROM pragma_index_info(l.name) AS i) AS columns
FROM pragma_index_list(:name) AS l
WHERE l."unique" AND NOT l.partial AND columns IS NOT NULL
"""
_TWICE = """
SELECT count(*) AS count
FROM (
    SELECT 1 FROM open_event_notifications GROUP BY open_event_id, subscription_id HAVING count(*) > 1
) AS pairs
"""


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────


class _Postgres:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def _ask(self, sql: str, **parameters: Any) -> Sequence[Row]:
        return await self._database.fetch(Query("adopt", sql, tuple(parameters), writes=False), parameters)

    async def table(self, name: str) -> Table | None:
        kind = await self._ask(_POSTGRES_KIND, name=name)
        if not kind:
            return None
        columns = await self._ask(_POSTGRES_COLUMNS, name=name)
        unique = await self._ask(_POSTGRES_UNIQUE, name=name)
        return Table(
            name,
            kind[0]["kind"] in {"r", "p"},
            {row["name"]: _postgres_column(row) for row in columns},
            tuple(frozenset(row["columns"]) for row in unique),
        )

    async def refused_words(self, table: Table, column: str, words: Sequence[str]) -> list[str]:
        """Each CHECK of the column alone, asked about each word."""
        checks = await self._ask(_POSTGRES_CHECKS, name=table.name, column=column)
        refused = [word for check in checks for word in await self._refused_by(check["rule"], column, words)]
        return [word for word in words if word in refused]

    async def _refused_by(self, rule: str, column: str, words: Sequence[str]) -> list[str]:
        # The rule is as the server itself writes it down; it reads a column of that name.
        named = f"(SELECT word AS {column}) AS row"
        sql = f"SELECT word FROM unnest($1::text[]) AS t(word), LATERAL {named} WHERE NOT ({rule})"  # noqa: S608 - the server's own text
        # One that is about another type than text does not compare with a word; then nothing is known.
        with suppress(DatabaseError):
            return [row["word"] for row in await self._ask(sql, words=list(words))]
        return []

    async def twice(self) -> int:
        (row,) = await self._ask(_TWICE)
        return int(row["count"])


def _postgres_column(row: Row) -> Column:
    return Column(row["name"], row["declared"], _postgres_holds(row), row["required"], row["filled"])


def _postgres_holds(row: Row) -> frozenset[Kind]:
    match row["type"]:
        case "int2" | "int4" | "int8":
            return frozenset({"integer"})
        case "text" | "varchar":
            return frozenset({"text"})
        # A lock is ours when its time is what we wrote, so it has to keep milliseconds.
        case "timestamptz" | "timestamp" if row["precision"] in _FINE:
            return frozenset({"time"})
        case _:
            return frozenset()


#: -1 is as fine as it gets.
_FINE = frozenset({-1, 3, 4, 5, 6})

_POSTGRES_KIND = "SELECT relkind::text AS kind FROM pg_class WHERE oid = to_regclass($1)"
_POSTGRES_COLUMNS = """
SELECT a.attname::text AS name, t.typname::text AS type, format_type(a.atttypid, a.atttypmod) AS declared,
    a.atttypmod AS precision, a.attnotnull AS required, a.atthasdef OR a.attidentity <> '' AS filled
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
"""
_POSTGRES_UNIQUE = """
SELECT array_agg(a.attname::text) AS columns
FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
  AND i.indexprs IS NULL AND i.indnatts = i.indnkeyatts
GROUP BY i.indexrelid
"""
_POSTGRES_CHECKS = """
SELECT pg_get_expr(c.conbin, c.conrelid) AS rule
FROM pg_constraint AS c JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attname = $2::text
WHERE c.conrelid = to_regclass($1) AND c.contype = 'c' AND c.conkey = ARRAY[a.attnum]
"""
