"""Where a database is, as it may be shown: not as whom, and not how."""

from __future__ import annotations

import re

_OPTIONS = re.compile(r"[?#]")
_HOST = r"(?:\[[\dA-Fa-f:.]+\]|[^/:,\[\]]*)(?::\d*)?"
#: MongoDB may have several hosts. What follows is the name of the database, or of its file.
_PLACE = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/.*)?", re.DOTALL)
_UNKNOWN = "…"


def place_of(url: str) -> str:
    """A URL without who logs in and without options.

    A password that was not escaped may hold anything that has a meaning in a URL. It ends before the last @.
    Where that may stand in the options, or where a port is none, it cannot be told what is a password, and
    nothing is shown but the scheme.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _UNKNOWN
    address, *options = _OPTIONS.split(rest, maxsplit=1)
    _, at, place = address.rpartition("@")
    if any("@" in option for option in options) or not _PLACE.fullmatch(place):
        return f"{scheme}://{_UNKNOWN}"
    return f"{scheme}://{'***@' if at else ''}{place}"
