"""What errors have in common: their words, without what is different in each of them.

550 5.1.1 <bob@example.org>: no mailbox here        →  * <*>: no mailbox here
no answer from 10.1.2.3:8443 within 30 s            →  no answer from * within * s
"""

from __future__ import annotations

import re
from typing import Final

_LONGEST = 200
#: A word that is a class or code by itself, and never different for each message.
_CODE: Final = re.compile(r"[A-Za-z][A-Za-z_]*(?:[._-][A-Za-z0-9_]+|\d{1,3})*")
#: In this order: what is part of something longer is not looked at again.
_DIFFERENT: Final = re.compile(
    r"""
      \b[a-z][a-z0-9+.-]*://[^\s<>"')]+                      # an address of the web
    | [^\s<>"'(),;:=]+@[^\s<>"'(),;:=]+                      # one of a mailbox
    | \b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b        # a UUID
    | \[[0-9a-f:.]*:[0-9a-f:.]*\](?::\d+)?                   # an address in brackets, with its port
    | \b(?:[a-z0-9-]+\.)+[a-z]{2,24}\b(?::\d+)?              # a host
    | \b(?=\w*\d)[0-9A-Za-z]{12,}\b                          # an id: letters and digits
    | \b[0-9a-f]{16,}\b                                      # … or many hexadecimal ones
    | \d+(?:[.,:-]\d+)*                                      # numbers, times, dates, addresses, versions
    """,
    re.VERBOSE | re.IGNORECASE,
)
_RUN: Final = re.compile(r"\*(?:[\s.,:/-]*\*)+")


def likeness(text: str) -> str:
    """The same for texts that say the same; `*` stands for what is different in each."""
    line = " ".join(text.split())
    # Cut before: a text of a megabyte is not worth reading to its end.
    kept = line[: 2 * _LONGEST]
    common = _RUN.sub("*", _DIFFERENT.sub("*", kept))
    return f"{common[:_LONGEST].rstrip()}*" if len(common) > _LONGEST or len(line) > len(kept) else common


def code_like(text: str) -> str:
    """A class or code as it is; of any other text its likeness, which is a pattern that finds it."""
    return text if _CODE.fullmatch(text) else likeness(text)
