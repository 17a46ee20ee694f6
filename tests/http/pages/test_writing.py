"""How amounts, times and payloads are written on a page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf

import pytest

from homing.http.pages.json_tree import Node, json_tree
from homing.http.pages.writing import ago, at_most, compact, duration, percent, ticks


def test_what_is_known_by_its_bound_says_so() -> None:
    assert [at_most(seconds) for seconds in (0.025, 600, inf, None)] == [
        "≤ 25 ms",
        "≤ 10 min",
        "off the scale",
        "—",
    ]


def test_times_and_amounts_are_written_for_people() -> None:
    now = datetime(2026, 11, 16, 12, tzinfo=UTC)
    spans = {
        0.2: "now",
        5.4: "5 s ago",
        119.0: "1 min ago",
        7200.0: "2 h ago",
        90000.0: "1 d ago",
        -61.0: "in 1 min",
    }
    assert {seconds: ago(now - timedelta(seconds=seconds), now) for seconds in spans} == spans
    lengths = {
        0.0484: "48 ms",
        1.26: "1.3 s",
        59.9: "59 s",
        60.0: "1 min",
        3900.0: "1 h 5 min",
        90000.0: "1 d 1 h",
    }
    assert {seconds: duration(seconds) for seconds in lengths} == lengths
    assert [percent(share) for share in (None, 1.0, 0.99999, 0.9912, 0.5)] == [
        "—",
        "100 %",
        "99.99 %",
        "99.12 %",
        "50.0 %",
    ]
    assert [compact(n) for n in (9999, 12345, 4_560_000, 456_000_000)] == ["9,999", "12.3k", "4.56M", "456M"]
    assert ticks("no `<a>`; did <b>") == "no <code>&lt;a&gt;</code>; did &lt;b&gt;"
    assert ticks("odd ` one") == "odd ` one"


def test_a_tree_keeps_numbers_and_doubled_keys() -> None:
    tree = json_tree('{"n": 12345678901234567890, "n": 1.50, "deep": [true, null, "ü\\n"], "none": {}}')
    assert tree is not None
    assert [(key, node.kind, node.text) for key, node in tree.members][:2] == [
        ('"n"', "number", "12345678901234567890"),
        ('"n"', "number", "1.50"),
    ]
    deep = dict(tree.members)['"deep"']
    assert [node.text for _, node in deep.members] == ["true", "null", '"ü\\n"']
    assert dict(tree.members)['"none"'] == Node("object")


def test_half_a_pair_of_surrogates_stays_an_escape() -> None:
    tree = json_tree('{"\\udfff": "a\\ud800", "\\ud83d\\ude00": "ü"}')
    assert tree is not None
    assert [(key, node.text) for key, node in tree.members] == [('"\\udfff"', '"a\\ud800"'), ('"😀"', '"ü"')]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        '{"a": NaN}',
        '{"a": 1',
        "[" * 50 + "]" * 50,
        "[" * 100_000,
        "[" + "1," * 5000 + "1]",
        "1" * 300_000,
    ],
)
def test_what_is_no_json_or_too_much_of_it_is_no_tree(text: str) -> None:
    assert json_tree(text) is None
