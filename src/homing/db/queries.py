"""SQL in files: a query's name is the name of the method that runs it.

    -- name: claim
    -- Why it is written the way it is.
    UPDATE … WHERE id = :id

Parameters are `:name` in both dialects. SQLite takes them so; for PostgreSQL they become `$1`, `$2`, …
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Literal

from msgspec import Struct

Dialect = Literal["postgres", "sqlite"]

_HEADING = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
# A comment, a string, a cast, or a parameter: only the last is replaced, and the first is dropped.
_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|::|:([a-z_][a-z0-9_]*)")
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|pg_notify)\b")


class Query(Struct, frozen=True):
    """One named statement, ready for its database."""

    name: str
    sql: str
    #: In the order of PostgreSQL's `$1`, `$2`, …
    parameters: tuple[str, ...]
    writes: bool


Queries = Mapping[str, Query]


def load_queries(package: str, dialect: Dialect) -> Queries:
    """The queries of `postgres.sql` or `sqlite.sql` in a package."""
    text = files(package).joinpath(f"{dialect}.sql").read_text(encoding="utf-8")
    return {query.name: query for query in parse_queries(text, dialect)}


def parse_queries(text: str, dialect: Dialect) -> Iterator[Query]:
    _preamble, *parts = _HEADING.split(text)
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        yield _query(name, body, dialect)


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
