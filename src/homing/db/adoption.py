"""Adoption: tables that another program made, described by data and checked before anything is changed.

A lane describes each table that it can adopt by a `TableSpec`: its columns, what each of them has to hold,
and what `homing migrate` adds. `refusals` compares the description with the database and names all that
cannot be added or repaired, all at once. What is added is in the lane's migrations: either they say `IF NOT
EXISTS` everywhere, or `adopt/` beside a migration has the file that is run in its place where the table
exists (`migrate.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Literal

from msgspec import Struct

from homing.db.database import Database, Row
from homing.db.queries import Query
from homing.errors import DatabaseError

Kind = Literal["integer", "text", "time", "json"]
Presence = Literal["required", "added", "optional"]


class ColumnSpec(Struct, frozen=True):
    kind: Kind
    #: required: it cannot be made up, so a table without it is refused. added: the migration adds it where it
    #: is missing. optional: it is used where it exists; else what depends on it is left out.
    presence: Presence = "required"
    #: The lane writes NULL into it.
    is_cleared: bool = False
    #: The lane cannot do with NULL in it.
    is_filled: bool = False
    #: A CHECK has to allow all of these.
    words: tuple[str, ...] = ()
    #: How many characters the lane writes into it at most; 0 where nothing is known of that.
    length: int = 0
    #: A value that a producer would write, where the usual one of this kind would not do.
    sample: Any = None


def required(kind: Kind, *, words: tuple[str, ...] = (), length: int = 0, sample: Any = None) -> ColumnSpec:
    return ColumnSpec(kind, words=words, length=length, sample=sample)


def added(kind: Kind, *, is_cleared: bool = False, is_filled: bool = False, length: int = 0) -> ColumnSpec:
    return ColumnSpec(kind, "added", is_cleared=is_cleared, is_filled=is_filled, length=length)


def optional(kind: Kind, *, is_cleared: bool = False, words: tuple[str, ...] = ()) -> ColumnSpec:
    return ColumnSpec(kind, "optional", is_cleared=is_cleared, words=words)


class UniqueSpec(Struct, frozen=True):
    """A unique index that the migration makes, unless the table has one over these columns."""

    columns: tuple[str, ...]
    #: How the migration calls it.
    index: str
    #: What there are several of, in the plural, and why that cannot stay.
    subject: str
    reason: str


class TableSpec(Struct, frozen=True, kw_only=True):
    name: str
    columns: Mapping[str, ColumnSpec]
    #: A column by which the lane finds one row.
    key: str | None = None
    #: A column that has to number its rows itself, because the lane inserts rows without it.
    numbered: str | None = None
    #: The lane inserts rows: further columns that it fills. None where another program's columns may be NOT
    #: NULL without a default; then only that program can insert (`unfilled`).
    filled: frozenset[str] | None = None
    #: Of each group the table has to have one column at least.
    one_of: tuple[tuple[str, ...], ...] = ()
    unique: UniqueSpec | None = None
    #: Indexes that the migration makes: none of them may belong to the other program.
    indexes: tuple[str, ...] = ()
    #: Times that are compared as text in SQLite, where a number would sort before every text.
    text_times: tuple[str, ...] = ()
    #: In SQLite the order of its rows is that of their rowid.
    by_rowid: bool = False


class FoundColumn(Struct, frozen=True):
    """A column as the database describes it."""

    name: str
    declared: str
    #: What can be kept in it.
    holds: frozenset[Kind]
    is_required: bool
    has_default: bool
    #: The longest text that fits, where there is a limit.
    length: int | None = None


class FoundTable(Struct, frozen=True):
    name: str
    is_table: bool
    columns: Mapping[str, FoundColumn]
    #: The columns of each key, and of each unique index without a condition.
    unique: tuple[frozenset[str], ...]
    #: Who alone may change it, where that is not us.
    owner: str | None = None
    #: False in SQLite where no number of a row's own goes by that name.
    has_rowid: bool = True


async def find_table(database: Database, name: str) -> FoundTable | None:
    """The table as it is in the database; None where there is none."""
    return await _catalog(database).table(name)


async def unfilled(database: Database, spec: TableSpec) -> list[str]:
    """Why no row of ours can be inserted, a sentence for each column; that program's own INSERTs go on."""
    table = await find_table(database, spec.name)
    return [] if table is None else list(_of_new_rows(spec, spec.filled or frozenset(), table))


async def refused_words(database: Database, spec: TableSpec, column: str, words: Sequence[str]) -> list[str]:
    """Which of these words a CHECK of the column forbids; none where there is no such table."""
    catalog = _catalog(database)
    table = await catalog.table(spec.name)
    return [] if table is None else await catalog.refused_words(spec, table, column, words)


async def refusals(database: Database, specs: Sequence[TableSpec]) -> list[str]:
    """Why these tables cannot be adopted, a sentence each; empty when they can, or do not exist yet."""
    catalog = _catalog(database)
    found = [(spec, table) for spec in specs if (table := await catalog.table(spec.name)) is not None]
    said = [sentence for spec, table in found for sentence in _of_shape(spec, table)]
    said += [sentence for spec, _ in found for sentence in await _of_indexes(catalog, spec)]
    if said:
        return said
    return [sentence for spec, table in found for sentence in await _of_contents(catalog, spec, table)]


def _catalog(database: Database) -> _Sqlite | _Postgres:
    return _Postgres(database) if database.dialect == "postgres" else _Sqlite(database)


_HOLDS = {"integer": "whole numbers", "text": "text", "time": "times", "json": "JSON"}


def _of_shape(spec: TableSpec, table: FoundTable) -> Iterator[str]:
    """What its description tells."""
    if not table.is_table:
        yield f"{spec.name} is no table but a view or something like it; rows cannot be claimed in it"
        return
    if table.owner is not None:
        only = f"only its owner can add columns, so run `homing migrate` as {table.owner}"
        yield f"{spec.name} belongs to {table.owner}; {only}"
    for name, wanted in spec.columns.items():
        if (column := table.columns.get(name)) is not None:
            yield from _of_column(spec, wanted, column)
        elif wanted.presence == "required":
            yield f"{spec.name} has no column {name}, which cannot be made up; add it and fill it"
    for group in spec.one_of:
        if not any(name in table.columns for name in group):
            yield f"{spec.name} has no column {' or '.join(group)}; add one of them and fill it"
    if spec.by_rowid and not table.has_rowid:
        told = "make it without WITHOUT ROWID, and without a column of that name"
        yield f"{spec.name} has no rowid, by which its rows are told apart; {told}"
    yield from _of_keys(spec, table)
    if spec.filled is not None:
        yield from _of_new_rows(spec, spec.filled, table)


def _of_column(spec: TableSpec, wanted: ColumnSpec, column: FoundColumn) -> Iterator[str]:
    name = f"{spec.name}.{column.name}"
    if wanted.kind not in column.holds:
        yield f"{name} is {column.declared}; it has to hold {_HOLDS[wanted.kind]}"
    elif column.length is not None and column.length < wanted.length:
        yield f"{name} is {column.declared}; it has to hold {wanted.length} characters"
    if wanted.is_filled and not column.is_required:
        yield f"{name} may be NULL; declare it NOT NULL, for a row without it would never be due"
    if wanted.is_cleared and column.is_required:
        yield f"{name} is NOT NULL; a row that nobody holds has nothing there"


def _of_keys(spec: TableSpec, table: FoundTable) -> Iterator[str]:
    key = spec.key
    if key is not None and key in table.columns and frozenset({key}) not in table.unique:
        yield f"{spec.name}.{key} is no unique key; make it the primary key, or give it a unique index"
    numbered = table.columns.get(spec.numbered or "")
    if numbered is None or numbered.has_default:
        return
    # One that is added where it is missing may stay empty.
    if numbered.is_required or spec.columns[numbered.name].presence == "required":
        yield f"{spec.name}.{spec.numbered} does not number its rows; Homing adds some without knowing theirs"


def _of_new_rows(spec: TableSpec, filled: frozenset[str], table: FoundTable) -> Iterator[str]:
    for column in table.columns.values():
        known = column.name in filled or column.name in spec.columns
        if not known and column.is_required and not column.has_default:
            yield f"{spec.name}.{column.name} wants a value that Homing does not know; give it a default"


async def _of_indexes(catalog: _Sqlite | _Postgres, spec: TableSpec) -> list[str]:
    taken = await catalog.indexes(spec.indexes)
    return [f"there is an index {name}, the name of one that Homing makes; rename it" for name in taken]


async def _of_contents(catalog: _Sqlite | _Postgres, spec: TableSpec, table: FoundTable) -> list[str]:
    """What its rules and its rows tell."""
    said = [
        f"{spec.name}.{name} does not take {', '.join(refused)}; a CHECK forbids it"
        for name, wanted in spec.columns.items()
        if wanted.words and name in table.columns
        if (refused := await catalog.refused_words(spec, table, name, wanted.words))
    ]
    said += [
        f"{spec.name}.{name} is a number in {numbers} rows; it has to be a time as ISO text"
        for name in spec.text_times
        if name in table.columns and (numbers := await catalog.numbers(spec.name, name))
    ]
    for name, wanted in spec.columns.items():
        if wanted.kind != "json" or name not in table.columns:
            continue
        if rows := await catalog.malformed(spec.name, name):
            found = f"`SELECT {spec.key} FROM {spec.name} WHERE NOT json_valid({name})`"  # noqa: S608 - shown
            said.append(
                f"{spec.name}.{name} is no JSON in {rows} rows; write JSON or NULL there: {found} finds them"
            )
    if spec.unique is not None and (twice := await _twice(catalog, spec.name, spec.unique, table)):
        subject, reason = spec.unique.subject, spec.unique.reason
        found = f"`{_repeated(spec.name, spec.unique)}` finds them"
        said.append(f"{spec.name} has {twice} {subject} more than once; {reason}: {found}")
    return said


async def _twice(catalog: _Sqlite | _Postgres, name: str, unique: UniqueSpec, table: FoundTable) -> int:
    there = set(unique.columns) <= set(table.columns)
    if not there or frozenset(unique.columns) in table.unique:
        return 0
    (row,) = await catalog.ask(f"SELECT count(*) AS count FROM ({_repeated(name, unique)}) AS twice")  # noqa: S608 - ours
    return int(row["count"])


def _repeated(name: str, unique: UniqueSpec) -> str:
    """The names are those of a description of ours. NULLs are never the same."""
    columns = ", ".join(unique.columns)
    known = " AND ".join(f"{column} IS NOT NULL" for column in unique.columns)
    return f"SELECT {columns}, count(*) FROM {name} WHERE {known} GROUP BY {columns} HAVING count(*) > 1"  # noqa: S608 - ours


class _Catalog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def ask(self, sql: str, **parameters: Any) -> Sequence[Row]:
        return await self._database.fetch(Query("adopt", sql, tuple(parameters), writes=False), parameters)


# ── SQLite ───────────────────────────────────────────────────────────────────────────────────────


class _Sqlite(_Catalog):
    async def table(self, name: str) -> FoundTable | None:
        kind = await self.ask(_SQLITE_KIND, name=name)
        if not kind:
            return None
        columns = await self.ask(_SQLITE_COLUMNS, name=name)
        unique = await self.ask(_SQLITE_UNIQUE, name=name)
        # A key that is the row's own number needs no index, and is not listed with them.
        own = frozenset(row["name"] for row in columns if row["pk"])
        (rowid,) = await self.ask(_SQLITE_ROWID, name=name)
        # Without rowids, not even a key of whole numbers is one.
        numbering = own if rowid["has_rowid"] else frozenset()
        found = {row["name"].lower(): _sqlite_column(row, numbering) for row in columns}
        named = found.get("rowid")
        return FoundTable(
            name,
            kind[0]["type"] == "table",
            found,
            (own, *(frozenset(row["columns"].lower().split(",")) for row in unique)),
            has_rowid=bool(rowid["has_rowid"]) and (named is None or named.has_default),
        )

    async def indexes(self, names: Sequence[str]) -> list[str]:
        found = await self.ask("SELECT name FROM sqlite_master WHERE type = 'index'")
        there = {row["name"].lower() for row in found}
        return [name for name in names if name in there]

    async def refused_words(
        self, spec: TableSpec, table: FoundTable, column: str, words: Sequence[str]
    ) -> list[str]:
        """Tried on a table of the same definition, in memory, with a row like one that is there."""
        (definition,) = await self.ask(_SQLITE_DEFINITION, name=table.name)
        # The name is that of a description of ours.
        rows = await self.ask(f"SELECT * FROM {table.name} LIMIT 1")  # noqa: S608 - ours
        row = dict(rows[0]) if rows else _invented(spec, table)
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

    async def numbers(self, table: str, column: str) -> int:
        (row,) = await self.ask(
            f"SELECT count(*) AS count FROM {table} WHERE typeof({column}) IN ('integer', 'real')"  # noqa: S608 - ours
        )
        return int(row["count"])

    async def malformed(self, table: str, column: str) -> int:
        """An empty text is read as nothing."""
        (row,) = await self.ask(
            f"SELECT count(*) AS count FROM {table} WHERE {column} <> '' AND "  # noqa: S608 - ours
            f"CASE typeof({column}) WHEN 'text' THEN NOT json_valid({column}) ELSE 1 END"
        )
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


_SAMPLES: Mapping[Kind, Any] = {
    "integer": 1,
    "time": "2026-01-01T00:00:00.000Z",
    "text": "0" * 40,
    "json": "{}",
}


def _invented(spec: TableSpec, table: FoundTable) -> dict[str, Any]:
    """A row as a producer would write it, where there is none to look at."""
    known = {
        name: wanted.sample or _SAMPLES[wanted.kind]
        for name, wanted in spec.columns.items()
        if name in table.columns
    }
    others = {
        name: _SAMPLES["integer" if column.holds == {"integer"} else "text"]
        for name, column in table.columns.items()
        if column.is_required and not column.has_default and name not in known
    }
    return {**known, **others}


def _sqlite_column(row: Row, key: frozenset[str]) -> FoundColumn:
    declared = str(row["type"] or "").upper()
    numbers_itself = key == {row["name"]} and declared == "INTEGER"
    return FoundColumn(
        row["name"].lower(),
        declared or "of no type",
        _sqlite_holds(declared),
        bool(row["notnull"]),
        row["dflt_value"] is not None or numbers_itself or row["hidden"] in _GENERATED,
    )


def _sqlite_holds(declared: str) -> frozenset[Kind]:
    """By SQLite's rules of affinity. A column of numbers would keep a text, but nobody puts times there."""
    if "INT" in declared:
        return frozenset({"integer"})
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return frozenset({"text", "time", "json"})
    if any(word in declared for word in ("REAL", "FLOA", "DOUB")):
        return frozenset()
    return frozenset({"integer", "text", "time", "json"})


_SQLITE_KIND = "SELECT type FROM sqlite_master WHERE lower(name) = :name AND type IN ('table', 'view')"
_SQLITE_DEFINITION = "SELECT sql FROM sqlite_master WHERE lower(name) = :name AND type = 'table'"
_SQLITE_COLUMNS = 'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(:name)'
#: Each index of a table with rowids ends in them. A key without an index is the rowid itself.
_SQLITE_ROWID = """
SELECT NOT EXISTS (
    SELECT 1 FROM pragma_index_list(:name) AS l
    WHERE l.origin = 'pk' AND NOT EXISTS (SELECT 1 FROM pragma_index_xinfo(l.name) AS x WHERE x.cid = -1)
) AS has_rowid
"""
#: In the column `hidden`: its value is made from others, and may be kept.
_GENERATED = frozenset({2, 3})
_SQLITE_UNIQUE = """
SELECT (SELECT group_concat(i.name) FROM pragma_index_info(l.name) AS i) AS columns
FROM pragma_index_list(:name) AS l
WHERE l."unique" AND NOT l.partial AND columns IS NOT NULL
"""


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────


class _Postgres(_Catalog):
    async def table(self, name: str) -> FoundTable | None:
        kind = await self.ask(_POSTGRES_KIND, name=name)
        if not kind:
            return None
        columns = await self.ask(_POSTGRES_COLUMNS, name=name)
        unique = await self.ask(_POSTGRES_UNIQUE, name=name)
        return FoundTable(
            name,
            kind[0]["kind"] == "r",
            {row["name"]: _postgres_column(row) for row in columns},
            tuple(frozenset(row["columns"]) for row in unique),
            None if kind[0]["owned"] else kind[0]["owner"],
        )

    async def indexes(self, names: Sequence[str]) -> list[str]:
        rows = await self.ask(
            "SELECT name FROM unnest($1::text[]) AS t(name) WHERE to_regclass(name) IS NOT NULL",
            names=list(names),
        )
        return [row["name"] for row in rows]

    async def refused_words(
        self, _spec: TableSpec, table: FoundTable, column: str, words: Sequence[str]
    ) -> list[str]:
        """Each CHECK of the column alone, asked about each word."""
        checks = await self.ask(_POSTGRES_CHECKS, name=table.name, column=column)
        refused = [word for check in checks for word in await self._refused_by(check["rule"], column, words)]
        return [word for word in words if word in refused]

    async def _refused_by(self, rule: str, column: str, words: Sequence[str]) -> list[str]:
        # The rule is as the server itself writes it down; it reads a column of that name.
        named = f"(SELECT word AS {column}) AS row"
        sql = f"SELECT word FROM unnest($1::text[]) AS t(word), LATERAL {named} WHERE NOT ({rule})"  # noqa: S608 - the server's own text
        # One that is about another type than text does not compare with a word; then nothing is known.
        with suppress(DatabaseError):
            return [row["word"] for row in await self.ask(sql, words=list(words))]
        return []

    async def numbers(self, _table: str, _column: str) -> int:
        """A column of times holds nothing else."""
        return 0

    async def malformed(self, _table: str, _column: str) -> int:
        """Nor does one of JSON."""
        return 0


def _postgres_column(row: Row) -> FoundColumn:
    holds, has_length = _postgres_holds(row), row["type"] == "varchar" and row["modifier"] > 0
    length = row["modifier"] - _VARCHAR_HEADER if has_length else None
    return FoundColumn(row["name"], row["declared"], holds, row["required"], row["filled"], length)


def _postgres_holds(row: Row) -> frozenset[Kind]:
    match row["type"]:
        case "int2" | "int4" | "int8":
            return frozenset({"integer"})
        case "text" | "varchar":
            return frozenset({"text"})
        case "jsonb":
            return frozenset({"json"})
        # A lock is ours when its time is what we wrote, so it has to keep milliseconds.
        case "timestamptz" | "timestamp" if row["modifier"] in _FINE:
            return frozenset({"time"})
        case _:
            return frozenset()


#: Of a time: its decimals; -1 is as fine as it gets.
_FINE = frozenset({-1, 3, 4, 5, 6})
#: PostgreSQL counts the length word into the modifier of a varchar.
_VARCHAR_HEADER = 4

_POSTGRES_KIND = """
SELECT relkind::text AS kind, pg_get_userbyid(relowner)::text AS owner,
    pg_has_role(relowner, 'USAGE') AS owned
FROM pg_class WHERE oid = to_regclass($1)
"""
_POSTGRES_COLUMNS = """
SELECT a.attname::text AS name, t.typname::text AS type, format_type(a.atttypid, a.atttypmod) AS declared,
    a.atttypmod AS modifier, a.attnotnull AS required, a.atthasdef OR a.attidentity <> '' AS filled
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
