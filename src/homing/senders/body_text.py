"""How a text travels: the encodings of a body, each for what survives in it."""

from __future__ import annotations

import re
from binascii import b2a_base64, b2a_qp
from typing import Final, Literal

Encoding = Literal["7bit", "quoted-printable", "base64"]

#: How a boundary between parts begins. In quoted-printable and base64 there is no such thing.
BOUNDARY: Final = "=_"
#: RFC 5322 allows so many octets a line.
LINE_LIMIT: Final = 998
#: What a 7bit body may consist of. Other control characters are legal there and do not survive
#: everywhere; a NUL before a dot has ended mails early.
SEVEN_BIT: Final = bytes([9, 10, *range(32, 127)])
_FROM_LINE = re.compile(rb"^F(?=rom )", re.MULTILINE)


def encode_text(raw: bytes) -> tuple[Encoding, bytes]:
    """Choose the lightest encoding in which text with LF line ends survives the way."""
    special = len(raw.translate(None, SEVEN_BIT))
    if not special and not has_long_line(raw) and not has_from_line(raw):
        return "7bit", raw.replace(b"\n", b"\r\n")
    if is_better_quoted(special + raw.count(b"="), len(raw)):
        return "quoted-printable", quoted_printable(raw)
    return "base64", base64_lines(raw.replace(b"\n", b"\r\n"))


def is_better_quoted(special: int, octets: int) -> bool:
    """Each octet that has to be quoted takes two more; base64 takes a third more for everything."""
    return 6 * special <= octets


def has_long_line(raw: bytes) -> bool:
    start = 0
    while len(raw) - start > LINE_LIMIT:
        # The last line end within reach; if there is none, the line goes on for too long.
        end = raw.rfind(b"\n", start, start + LINE_LIMIT + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def has_from_line(raw: bytes) -> bool:
    return b"\nFrom " in raw or raw.startswith(b"From ")


def quoted_printable(raw: bytes) -> bytes:
    # b2a_qp already protects lone dots and blanks at line ends. A `From ` at the start of a line
    # becomes `>From ` in old mail stores; the soft break keeps such a line within 76 columns.
    encoded = _FROM_LINE.sub(b"=46=\n", b2a_qp(raw))
    return encoded.replace(b"\n", b"\r\n")


def base64_lines(raw: bytes) -> bytes:
    encoded = b2a_base64(raw, newline=False)
    return b"\r\n".join([encoded[start : start + 76] for start in range(0, len(encoded), 76)])
