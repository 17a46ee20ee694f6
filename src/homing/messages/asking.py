"""What a query line asks of any lane, in the lane's own words: its states, its ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from homing.db import Dialect
from homing.db.conditions import Conditions
from homing.db.looking import Stream, Table
from homing.messages.model import Phase, Wanted

_LONGEST_NUMBER = 18


class Named(Struct, frozen=True):
    """The messages that an id, or a key, names."""

    where: Conditions
    #: There is at most one, and an index by it.
    is_unique: bool = True


class Layout(Struct, frozen=True):
    """How the messages of a lane lie in its table, and what a line asks of them."""

    table: Table
    #: How ids begin.
    prefix: str
    #: The column of a row's state, or what tells it.
    state: str
    #: How the rows of a state lie; an empty stream where no index is by it, for nearly all are in it.
    stream_of: Callable[[Dialect, str], Stream]
    named: Callable[[str], Named]
    #: What is asked for beside states and ids; None when no message can be that.
    others: Callable[[Wanted, Dialect], Conditions | None]


def possible(dialect: Dialect, wanted: Wanted) -> Wanted | None:
    """Without codes that no message can have; None when no others are asked for.

    No text of PostgreSQL has a zero byte, and to ask for one is an error there.
    """
    if dialect != "postgres" or not wanted.codes:
        return wanted
    codes = tuple(code for code in wanted.codes if "\0" not in code)
    return replace(wanted, codes=codes) if codes else None


def states_of(phases: Mapping[str, Phase], wanted: Wanted) -> tuple[str, ...]:
    """The states that are asked for; all of them when none is. What has arrived has no error."""
    every = not wanted.phases and not wanted.states
    return tuple(
        state
        for state, phase in phases.items()
        if (every or phase in wanted.phases or state in wanted.states)
        and not (phase == "delivered" and wanted.has_error)
    )


def number_of(prefix: str, id: str) -> int | None:
    """The number of an id such as `outbox_12`; None of any other text."""
    digits = id.removeprefix(prefix)
    is_one = id != digits and digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER
    return int(digits) if is_one else None
