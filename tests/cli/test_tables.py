"""Tables fit the terminal: nothing is cut, ids stay whole, and what is needed least goes first."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from tests.command import Homing

from homing.cli.tables import Column, fields, listing

COLUMNS = (
    Column("job", whole=True),
    Column("state", whole=True),
    Column("type"),
    Column("attempts", rank=2, right=True),
    Column("last error", rank=1),
    Column("created", rank=3, whole=True),
)
ROW = (
    "0ARYZVZXW372S",
    "COMPLETED",
    "order.created",
    "12",
    "the relay said no, and said why",
    "2026-01-01T00:00",
)


def lines(table: Table, width: int) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=width, highlight=False).print(table)
    return output.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize("width", range(36, 130, 3))
def test_every_line_fits_and_ids_stay_whole(width: int) -> None:
    shown = lines(listing(COLUMNS, [ROW, ROW], width=width), width)
    assert max(map(cell_len, shown)) <= width
    text = "\n".join(shown)
    assert "0ARYZVZXW372S" in text
    assert "…" not in text, "nothing is cut off"


def test_what_is_needed_least_is_left_out_first() -> None:
    heads = [lines(listing(COLUMNS, [ROW], width=width), width)[1] for width in (130, 76, 66, 50)]
    assert all("created" in head for head in heads[:1])
    assert [name in heads[1] for name in ("created", "attempts", "last error")] == [False, True, True]
    assert [name in heads[2] for name in ("created", "attempts", "last error")] == [False, False, True]
    assert [name in heads[3] for name in ("attempts", "last error", "type")] == [False, False, True]


def test_words_are_kept_whole_before_columns_are() -> None:
    text = "\n".join(lines(listing(COLUMNS, [ROW], width=62), 62))
    assert "order.created" in text


def test_cells_are_neither_markup_nor_commands() -> None:
    text = "\n".join(lines(listing(COLUMNS, [("[red]x[/red]", "\x1b[31m", "", "", "", "")], width=200), 200))
    assert "[red]x[/red]" in text
    assert "\x1b" not in text


def test_fields_leave_out_what_is_empty_and_spell_out_the_rest() -> None:
    values = {"none": None, "empty": {}, "pairs": {"a": 1, "b": {"c": "d"}}, "some": ["x", "y"], "zero": 0}
    shown = [line.split() for line in lines(fields(values), 80)]
    assert shown == [["pairs", "a:", "1"], ["b:", "c:", "d"], ["some", "x,", "y"], ["zero", "0"]]


def test_a_mail_is_shown_with_a_table_of_verdicts(homing: Homing, tmp_path: Path) -> None:
    homing("migrate")
    verdicts = {
        "ann@example.org": {"status": "accepted", "code": 250, "enhanced": "2.0.0", "text": "ok"},
        "bo@example.org": {"status": "rejected", "code": 550, "text": "no such user"},
        "cy@example.org": "nonsense",
    }
    with sqlite3.connect(tmp_path / "homing.db") as connection:
        connection.execute(
            "INSERT INTO mail_outbox (to_address, subject, text_body, recipients) VALUES (?, ?, ?, ?)",
            ("ann@example.org", "Hi", "Hello.", json.dumps(verdicts)),
        )
    connection.close()
    shown = homing("show", "1").stdout
    assert "{'" not in shown, "no Python in what people read"
    rows = [line for line in shown.splitlines() if "@example.org" in line and "│" in line]
    assert [" ".join(row.replace("│", " ").split()) for row in rows] == [
        "ann@example.org accepted 250 2.0.0 ok",
        "bo@example.org rejected 550 no such user",
        "cy@example.org nonsense",
    ]
    assert json.loads(homing("show", "1", "--json").stdout)["recipients"] == verdicts
