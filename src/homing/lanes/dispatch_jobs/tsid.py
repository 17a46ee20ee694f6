"""TSIDs: 64-bit ids that sort by the time they were made.

42 bits of milliseconds since 2020, then 22 bits that tell apart what was made within one. The database
makes them; people see them as 13 characters of Crockford's base32, which sort as the numbers do.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)

_LENGTH = 13
_TAIL_BITS = 22
_LARGEST = 2**63 - 1
_MILLISECOND = timedelta(milliseconds=1)
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: Two letters at a time: each webhook carries its id, and letter by letter it costs as much as a signature.
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]
_VALUES = {
    **{letter: value for value, letter in enumerate(_ALPHABET)},
    **{letter.lower(): value for value, letter in enumerate(_ALPHABET)},
    # What people misread, as Crockford says.
    **dict.fromkeys("oO", 0),
    **dict.fromkeys("iIlL", 1),
}


def text_of(id: int) -> str:
    pairs = _PAIRS
    return (
        f"{_ALPHABET[id >> 60]}{pairs[id >> 50 & 1023]}{pairs[id >> 40 & 1023]}{pairs[id >> 30 & 1023]}"
        f"{pairs[id >> 20 & 1023]}{pairs[id >> 10 & 1023]}{pairs[id & 1023]}"
    )


def number_of(text: str) -> int | None:
    """The id that a text names; None when it names none."""
    if len(text) != _LENGTH:
        return None
    number = 0
    for letter in text:
        value = _VALUES.get(letter)
        if value is None:
            return None
        number = number << 5 | value
    return number if number <= _LARGEST else None


def time_of(id: int) -> datetime:
    return EPOCH + (id >> _TAIL_BITS) * _MILLISECOND


def first_at(moment: datetime) -> int:
    """The smallest id of that millisecond: what was made from then on has this id or a larger one."""
    return min(max(0, (moment - EPOCH) // _MILLISECOND << _TAIL_BITS), _LARGEST)
