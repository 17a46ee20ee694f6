"""Tables that fit: where the terminal is narrow, texts are wrapped, and what is needed least is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from rich.cells import cell_len
from rich.console import JustifyMethod
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
    #: A number.
    right: bool = False

    @property
    def stiff(self) -> bool:
        return self.whole or self.right


def listing(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, title: str | None = None, width: int = 0
) -> Table:
    """`width` is that of the terminal unless it is given."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = _widths(columns, cells, width or output_width())
    table = Table(title=title, title_justify="left", title_style="bold")
    for n, given in widths.items():
        column = columns[n]
        justify: JustifyMethod = "right" if column.right else "left"
        table.add_column(column.name, justify=justify, no_wrap=column.stiff, overflow="fold", width=given)
    for row in cells:
        table.add_row(*(escape(row[n]) for n in widths))
    return table


class _Need(Struct, frozen=True):
    """How wide a column should be at least, and how wide its longest line is."""

    least: int
    full: int


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> dict[int, int | None]:
    """The columns that have room, and how wide each is; None where there is not enough even so."""
    needs = {n: _need(column, [row[n] for row in cells]) for n, column in enumerate(columns)}
    while (room := width - 1 - _BORDER * len(needs)) < sum(need.least for need in needs.values()):
        last = max(needs, key=lambda n: columns[n].rank)
        if not columns[last].rank:
            return dict.fromkeys(needs)
        del needs[last]
    return dict(_shared(needs, room))


def _need(column: Column, cells: Sequence[str]) -> _Need:
    full = max(cell_len(line) for cell in [column.name, *cells] for line in cell.split("\n"))
    if column.stiff:
        return _Need(full, full)
    words = [column.name, *(word for cell in cells for word in cell.split())]
    return _Need(min(_LONGEST_WORD, max(map(cell_len, words))), full)


def _shared(needs: Mapping[int, _Need], room: int) -> dict[int, int]:
    """What is left over goes to whoever lacks most. Rich would shrink ids as well as texts."""
    given = {n: need.least for n, need in needs.items()}
    for _ in range(room - sum(given.values())):
        neediest = max(given, key=lambda n: needs[n].full - given[n])
        if needs[neediest].full <= given[neediest]:
            break
        given[neediest] += 1
    return given


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
