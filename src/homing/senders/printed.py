"""Text that many mails share, encoded once, with blanks that are filled in for each.

A mail to the subscribers of an event differs from one to the next in two links. To write its other six
kilobytes again for each, as text, as octets, as a part and as a mail, takes longer than everything else about
it: not for the work, but for the memory that goes through the processor. So lines are encoded when the text
is printed, those with a blank in them when it is filled in, and all are handed on in pieces.

The octets are the same as if the whole had been encoded; whatever does not lend itself to that says None, and
is encoded so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from homing.senders.body_text import (
    BOUNDARY,
    LINE_LIMIT,
    SEVEN_BIT,
    Encoding,
    has_from_line,
    has_long_line,
    is_better_quoted,
    quoted_printable,
)

#: A line in pieces: every second one is the name of a blank. It ends with its line end.
Line = tuple[str, ...]
#: What old mail stores take for the beginning of a mail, when it stands at the beginning of a line.
_FROM = "From "
#: Of a value at the beginning of a line: it might complete `From `, or the line would begin with a dot.
_ODD_BEGINNINGS = _FROM + "."


class Printed(Struct, frozen=True, gc=False):
    """A text with blanks."""

    #: Text and names of blanks, in turns.
    pieces: tuple[str, ...]
    #: What stands around the blanks, as 7bit; None where it has to be quoted.
    plain: tuple[bytes, ...] | None
    #: Where it has to be quoted: whole lines, quoted, and those with blanks.
    quoted: tuple[bytes | Line, ...]
    #: How many octets it has without its blanks, and how many of them would have to be quoted.
    octets: int
    special: int
    #: With values of up to this length no line is too long.
    room: int
    #: How a line begins may depend on what is filled in.
    begins_with_blank: bool
    #: As plain text, all its lines are such as they can stand in SMTP's DATA.
    is_stuffed: bool


class Encoded(NamedTuple):
    encoding: Encoding
    #: One after the other they are the body.
    chunks: list[bytes]
    #: Every line end is a CRLF, and no line begins with a dot.
    is_stuffed: bool


class Filled(Struct, frozen=True, gc=False):
    """A text whose blanks are filled in. As `str` it is just that."""

    printed: Printed
    values: Mapping[str, str]

    def __str__(self) -> str:
        return _filled(self.printed.pieces, self.values)

    def encoded(self) -> Encoded | None:
        """As `encode_text` would encode the whole; None where it has to be asked. Holds no `=_`."""
        printed, values = self.printed, self.values
        for value in values.values():
            if not _fits(printed, value):
                return None
        return _quoted(printed, values) if printed.plain is None else _plain(printed, printed.plain, values)


def print_text(pieces: Sequence[str]) -> Printed | None:
    """`pieces` are text and names of blanks, in turns. None for what is not shared line by line."""
    fixed = "".join(pieces[::2])
    if "\r" in fixed or BOUNDARY in fixed or not _is_encodable(fixed):
        return None
    raw = fixed.encode()
    blocks = list(_blocks(pieces))
    whole = "".join(block for block in blocks if isinstance(block, str)).encode()
    lines = [block for block in blocks if not isinstance(block, str)]
    special = len(raw.translate(None, SEVEN_BIT))
    from_lines = has_from_line(whole) or any(line[0].startswith(_FROM) for line in lines)
    is_plain = not (special or from_lines or has_long_line(whole))
    return Printed(
        pieces=tuple(pieces),
        plain=tuple(piece.replace("\n", "\r\n").encode() for piece in pieces[::2]) if is_plain else None,
        quoted=() if is_plain else tuple(map(_quoted_block, blocks)),
        octets=len(raw),
        special=special + raw.count(b"="),
        room=min(map(_room, lines), default=LINE_LIMIT),
        begins_with_blank=any(_FROM.startswith(line[0]) for line in lines),
        is_stuffed=is_plain and b"\n." not in b"\n" + whole and not any(line[0][:1] == "." for line in lines),
    )


def _room(line: Line) -> int:
    return (LINE_LIMIT - sum(map(len, line[::2]))) // (len(line) // 2)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _blocks(pieces: Sequence[str]) -> Iterable[str | Line]:
    """Whole lines together, and each line with blanks on its own."""
    line = [""]
    for number, piece in enumerate(pieces):
        if number % 2:
            line += (piece, "")
            continue
        end, line_end, rest = piece.partition("\n")
        line[-1] += end + line_end
        if not line_end:
            continue
        yield from _ended(line)
        whole, line_end, begun = rest.rpartition("\n")
        yield whole + line_end
        line = [begun]
    yield from _ended(line)


def _ended(line: list[str]) -> Iterable[str | Line]:
    yield tuple(line) if len(line) > 1 else line[0]


def _quoted_block(block: str | Line) -> bytes | Line:
    return quoted_printable(block.encode()) if isinstance(block, str) else block


def _fits(printed: Printed, value: str) -> bool:
    """Wherever a value that fits is filled in, it changes nothing but its own line's length."""
    return (
        len(value) <= printed.room
        and value.isascii()
        and value.isprintable()
        and BOUNDARY not in value
        # With what stands beside it, it might be one.
        and value[:1] != BOUNDARY[1]
        and value[-1:] != BOUNDARY[0]
        and not (printed.begins_with_blank and value[:1] in _ODD_BEGINNINGS)
    )


def _plain(printed: Printed, plain: tuple[bytes, ...], values: Mapping[str, str]) -> Encoded:
    chunks = [b""] * len(printed.pieces)
    chunks[::2] = plain
    chunks[1::2] = [values[name].encode() for name in printed.pieces[1::2]]
    return Encoded("7bit", chunks, printed.is_stuffed)


def _quoted(printed: Printed, values: Mapping[str, str]) -> Encoded | None:
    given = [values[name] for name in printed.pieces[1::2]]
    special = printed.special + sum(value.count("=") for value in given)
    if not is_better_quoted(special, printed.octets + sum(map(len, given))):
        return None
    chunks = [
        block if isinstance(block, bytes) else quoted_printable(_filled(block, values).encode())
        for block in printed.quoted
    ]
    return Encoded("quoted-printable", chunks, is_stuffed=False)


def _filled(line: Line, values: Mapping[str, str]) -> str:
    parts = list(line)
    parts[1::2] = [values[name] for name in line[1::2]]
    return "".join(parts)
