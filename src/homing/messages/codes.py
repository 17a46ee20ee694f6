"""Classes and codes of errors, to the letter: another program may have written anything into them."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from homing.db.conditions import LONGEST_CODE

#: The empty code; a line cannot show it in another way.
_EMPTY: Final = "%"
_UNWRITABLE: Final = re.compile(r"[%\x00-\x1f\x7f-\x9f]")


def told_apart(code: str) -> str:
    """As much of a code as is compared."""
    return code[:LONGEST_CODE]


def escaped(code: str) -> str:
    """As a query line can show it: what cannot be typed, as in a URL."""
    return _UNWRITABLE.sub(_in_percent, code) or _EMPTY


def _in_percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


def unescaped(text: str) -> str | None:
    """What was escaped; None where that is no text."""
    try:
        return "" if text == _EMPTY else told_apart(unquote(text, errors="strict"))
    except UnicodeDecodeError:
        return None
