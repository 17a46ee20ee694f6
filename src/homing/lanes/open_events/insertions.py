"""Queries that insert into tables of another program: what has no value is left to the column's own default.

A column may be NOT NULL there and have a default, which a NULL of ours would not get. So a line of such a
query that ends in `-- given: name` is left out where there is no such value.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

from homing.db.queries import Dialect, Queries, parse_queries


@lru_cache(maxsize=256)
def queries_without(subject: str, dialect: Dialect, absent: frozenset[str] = frozenset()) -> Queries:
    """The queries of a file such as `fanout_postgres.sql`, without the lines for values that are absent."""
    text = files(__package__ or "").joinpath(f"{subject}_{dialect}.sql").read_text(encoding="utf-8")
    for name in absent:
        text = re.sub(rf"^.*-- given: {name}$\n", "", text, flags=re.MULTILINE)
    return {query.name: query for query in parse_queries(text, dialect)}
