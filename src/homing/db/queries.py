"""SQL in files: a query's name is the name of the method that runs it.

    -- fragment: columns
    id, status

    -- name: claim
    -- Why it is written the way it is.
    UPDATE … WHERE id = :id RETURNING {columns}

Parameters are `:name` in both dialects. SQLite takes them so; for PostgreSQL they become `$1`, `$2`, …
A fragment is text that several queries of one file share. A line that ends in `-- given: name` is left out
where there is no such value: a column of somebody else's table may be NOT NULL and have a default, which a
NULL of ours would not get.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Literal

from msgspec import Struct

Dialect = Literal["postgres", "sqlite", "mongodb"]
#: On MongoDB a query is a function of a session and the parameters; its rows.
Operation = Callable[[Any, Mapping[str, Any]], Awaitable[Any]]

_HEADING = re.compile(r"^-- (name|fragment): (\w+)\s*$", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")
# A comment, a string, a cast, or a parameter: only the last is replaced, and the first is dropped.
_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|::|:([a-z_][a-z0-9_]*)")
_WRITES = re.compile(r"\b(INSERT|(?<!FOR )UPDATE|DELETE|pg_notify)\b")


class Query(Struct, frozen=True):
    """One named statement, ready for its database."""

    name: str
    sql: str
    #: In the order of PostgreSQL's `$1`, `$2`, …
    parameters: tuple[str, ...]
    writes: bool
    operation: Operation | None = None
    #: Seconds that it waits at most for a lock in SQLite, behind earlier statements as well; None is as long
    #: as the URL says. PostgreSQL has one limit for all.
    lock_timeout: float | None = None


Queries = Mapping[str, Query]


@lru_cache(maxsize=512)
def load_queries(
    package: str,
    dialect: Dialect,
    subject: str | None = None,
    absent: frozenset[str] = frozenset(),
    **fragments: str,
) -> Queries:
    """The queries of `postgres.sql`, `sqlite.sql` or `mongo.py` in a package.

    A lane's further queries have files of their own, such as `fanout_postgres.sql`, by their subject. Queries
    that serve several tables are given their names, as fragments.
    """
    if dialect == "mongodb":
        operations: Mapping[str, Operation] = import_module(f"{package}.mongo").QUERIES
        return {name: Query(name, "", (), True, operation) for name, operation in operations.items()}
    name = f"{subject}_{dialect}.sql" if subject else f"{dialect}.sql"
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    for value in absent:
        text = re.sub(rf"^.*-- given: {value}$\n", "", text, flags=re.MULTILINE)
    given = "".join(f"\n-- fragment: {name}\n{body}\n" for name, body in fragments.items())
    return {query.name: query for query in parse_queries(text + given, dialect)}


def parse_queries(text: str, dialect: Dialect) -> Iterator[Query]:
    _preamble, *parts = _HEADING.split(text)
    sections = list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))
    fragments = {name: body.strip() for kind, name, body in sections if kind == "fragment"}
    for kind, name, body in sections:
        if kind == "name":
            yield _query(name, _with_fragments(body, fragments), dialect)


def _with_fragments(text: str, fragments: Mapping[str, str]) -> str:
    """A fragment may use others."""
    while _FRAGMENT.search(text):
        text = _FRAGMENT.sub(lambda match: fragments[match.group(1)], text)
    return text


def _query(name: str, body: str, dialect: Dialect) -> Query:
    parameters: list[str] = []

    def replace(match: re.Match[str]) -> str:
        token, parameter = match.group(0), match.group(1)
        if token.startswith("--"):
            return ""
        if parameter is None:
            return token
        if parameter not in parameters:
            parameters.append(parameter)
        return token if dialect == "sqlite" else f"${parameters.index(parameter) + 1}"

    sql = "\n".join(line for line in _TOKEN.sub(replace, body).splitlines() if line.strip())
    sql = sql.strip().rstrip(";")
    return Query(name, sql, tuple(parameters), writes=bool(_WRITES.search(sql)))
