"""Numbers in addresses: databases have room for 64 bits, and whoever types has room for more."""

from __future__ import annotations

import math
from typing import Final

from homing.errors import InvalidRequest

LARGEST_ID: Final = 2**63 - 1
#: Digits of the largest.
_LONGEST = len(str(LARGEST_ID))


def row_id(number: int) -> int:
    """A number that no database has room for is one that no row has, as is 0."""
    return number if 0 <= number <= LARGEST_ID else 0


def id_in(text: str) -> int:
    """The same, from a text; what is no number is the id of nothing."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST
    return row_id(int(text)) if is_number else 0


def page_before(before: int | None) -> int | None:
    if before is not None and not 0 <= before <= LARGEST_ID:
        raise InvalidRequest("before is the id that the last page ended with", "before")
    return before


def number_in(text: str, name: str, kind: type[int | float] = float) -> float | int | None:
    """What a field of a form says; None where nothing stands in it. Raises `InvalidRequest`."""
    if not text.strip():
        return None
    try:
        number = kind(text.strip())
    except ValueError:
        number = math.nan
    # Not so: no number at all, one without an end, or larger than anything that is counted here.
    if not abs(number) <= LARGEST_ID:
        raise InvalidRequest(f"{name}: write a number, or nothing", name)
    return number
