"""Tables that fit: where the terminal is narrow, texts are wrapped, and what is needed least is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from homing.cli.listener import printable
from homing.cli.options import output_width

#: Words are kept whole up to this length, unless the terminal is too narrow for what has to be shown.
_LONGEST_WORD = 24
#: What a border and the space around a cell take.
_BORDER = 3


class Column(Struct, frozen=True):
    name: str
    #: 0 always stays; of the others the highest is the first to be left out.
    rank: int = 0
    #: An id or a time, which is never wrapped.
    whole: bool = False
    right: bool = False


def listing(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, title: str | None = None, width: int = 0
) -> Table:
    """`width` is that of the terminal unless it is given."""
    cells = [[printable(cell) for cell in row] for row in rows]
    shown = _fitting(columns, cells, width or output_width())
    table = Table(title=title, title_justify="left", title_style="bold")
    for n, least in shown.items():
        column = columns[n]
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            no_wrap=column.whole or column.right,
            overflow="fold",
            min_width=least,
        )
    for row in cells:
        table.add_row(*(escape(row[n]) for n in shown))
    return table


def _fitting(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> dict[int, int | None]:
    """Which columns have room, and how much each needs; None where there is not enough even so."""
    shown = {n: _least(column, [row[n] for row in cells]) for n, column in enumerate(columns)}
    while sum(shown.values()) + _BORDER * len(shown) + 1 > width:
        last = max(shown, key=lambda n: columns[n].rank)
        if not columns[last].rank:
            return dict.fromkeys(shown)
        del shown[last]
    return dict(shown)


def _least(column: Column, cells: Sequence[str]) -> int:
    if column.whole or column.right:
        return max(cell_len(line) for cell in [column.name, *cells] for line in cell.split("\n"))
    words = [column.name, *(word for cell in cells for word in cell.split())]
    return min(_LONGEST_WORD, max(map(cell_len, words)))


def fields(values: Mapping[str, Any]) -> Table:
    """One line for each value that there is."""
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        if value not in (None, "", [], {}):
            table.add_row(escape(printable(name)), escape(printable(_text(value))))
    return table


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(_text(inner) for inner in value)
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
