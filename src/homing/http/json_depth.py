"""How deep a JSON body may be nested: some programs that read it later would run out of stack."""

from __future__ import annotations

import re

from homing.errors import InvalidRequest

DEEPEST = 64

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in _BRACKETS)
_AS_ROUND = bytes.maketrans(b"[]{}", b"()()")


def require_shallow(body: bytes) -> None:
    """Raise for more than 64 levels. What is no JSON at all is left to the decoder."""
    if body.count(b"[") + body.count(b"{") > DEEPEST and _is_deep(body):
        raise InvalidRequest(f"the body is nested more than {DEEPEST} levels deep")


def _is_deep(body: bytes) -> bool:
    """Takes away the innermost level, again and again: each step is one quick replace, however long it is."""
    rest = _STRING.sub(b"", body).translate(_AS_ROUND, _NO_BRACKETS)
    for _ in range(DEEPEST):
        if b"()" not in rest:
            break
        rest = rest.replace(b"()", b"")
    return b"()" in rest
