"""SQL in files: what the loader takes for a parameter, and that both dialects say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import homing.lanes
import homing.senders
from homing.db.queries import Dialect, Query, load_queries, parse_queries

DIALECTS: tuple[Dialect, Dialect] = ("postgres", "sqlite")


def parse(text: str, dialect: Dialect = "postgres") -> Query:
    (query,) = parse_queries(f"-- name: one\n{text}", dialect)
    return query


def test_parameters_become_numbers_in_the_order_of_their_first_use() -> None:
    query = parse("SELECT :b, :a, :b, :a_2")
    assert query.sql == "SELECT $1, $2, $1, $3"
    assert query.parameters == ("b", "a", "a_2")


def test_sqlite_keeps_the_names() -> None:
    query = parse("SELECT :b, :a, :b", "sqlite")
    assert query.sql == "SELECT :b, :a, :b"
    assert query.parameters == ("b", "a")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_comments_may_hold_anything(dialect: Dialect) -> None:
    query = parse("-- it's :here, isn't it?\nSELECT 1 -- don't; :there 'open\nFROM t", dialect)
    assert query.sql.split() == ["SELECT", "1", "FROM", "t"]
    assert query.parameters == ()


@pytest.mark.parametrize("text", ["'12:30:00'", "'it''s :not'", "'-- no comment'", "'::'", "''", "'a' ':b'"])
def test_strings_are_left_alone(text: str) -> None:
    query = parse(f"SELECT {text}, :real")
    assert query.sql == f"SELECT {text}, $1"
    assert query.parameters == ("real",)


def test_casts_are_no_parameters() -> None:
    query = parse("SELECT :batch::json, x::text, '1'::bigint, :ids :: json")
    assert query.sql == "SELECT $1::json, x::text, '1'::bigint, $2 :: json"
    assert query.parameters == ("batch", "ids")


def test_several_queries_in_one_text_and_a_preamble() -> None:
    text = "-- It's SQL: yes.\n\n-- name: first\nSELECT :a;\n\n-- name: second\n-- Why.\nDELETE FROM t\n"
    first, second = parse_queries(text, "postgres")
    assert (first.name, first.sql, first.writes) == ("first", "SELECT $1", False)
    assert (second.name, second.sql, second.writes) == ("second", "DELETE FROM t", True)


@pytest.mark.parametrize(
    ("sql", "writes"),
    [
        ("SELECT 1", False),
        ("SELECT updated, deleted_at FROM t", False),
        ("WITH a AS (SELECT 1) UPDATE t SET x = 1", True),
        ("INSERT INTO t SELECT 1", True),
        ("SELECT pg_notify(:channel, '')", True),
    ],
)
def test_a_query_knows_whether_it_writes(sql: str, writes: bool) -> None:
    assert parse(sql).writes is writes


words = st.sampled_from(
    ["SELECT", "x", ":a", ":b", "'it''s'", "':c'", "::text", "-- :d '\n", ",", "(", ")", "\n"]
)


@given(st.lists(words, max_size=20))
def test_every_mixture_is_read_alike_in_both_dialects(pieces: list[str]) -> None:
    text = " ".join(pieces)
    expected = tuple(dict.fromkeys(piece[1:] for piece in pieces if piece in {":a", ":b"}))
    for dialect in DIALECTS:
        query = parse(text, dialect)
        assert query.parameters == expected
        assert "--" not in query.sql


def packages() -> list[str]:
    """Every package that has its SQL in both dialects."""
    found = []
    for parent in (homing.lanes, homing.senders):
        for folder in (Path(root) for root in parent.__path__):
            found += [f"{parent.__name__}.{file.parent.name}" for file in folder.glob("*/postgres.sql")]
    return sorted(found)


def test_the_lanes_are_found() -> None:
    assert "homing.lanes.mail_outbox" in packages()


#: What PostgreSQL does within another statement, by a CTE that writes a second table.
STEPS_OF_SQLITE = {"homing.lanes.email_log": {"reserve_keys", "complete_keys"}}


@pytest.mark.parametrize("package", packages())
def test_both_dialects_have_the_same_queries_with_the_same_parameters(package: str) -> None:
    postgres, sqlite = (load_queries(package, dialect) for dialect in DIALECTS)
    assert set(postgres) == set(sqlite) - STEPS_OF_SQLITE.get(package, set())
    for name, query in postgres.items():
        assert set(query.parameters) == set(sqlite[name].parameters), name
        assert query.writes == sqlite[name].writes, name
