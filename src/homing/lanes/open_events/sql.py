"""Queries that are not the worker's have files of their own, such as `fanout_postgres.sql`."""

from __future__ import annotations

from importlib.resources import files

from homing.db.patience import patiently
from homing.db.queries import Dialect, Queries, parse_queries

__all__ = ["patiently", "queries_of"]


def queries_of(subject: str, dialect: Dialect) -> Queries:
    text = files(__package__ or "").joinpath(f"{subject}_{dialect}.sql").read_text(encoding="utf-8")
    return {query.name: query for query in parse_queries(text, dialect)}
