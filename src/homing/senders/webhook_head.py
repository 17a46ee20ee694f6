"""How a request begins: its first line and its headers, in bytes that cannot be taken for anything else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from homing import __version__
from homing.senders.egress import Target

# These frame the message, and a job that could set them could smuggle a second request into it.
_NOT_FOR_CALLERS = frozenset(
    (
        "host", "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection",
        "proxy-authorization", "te", "trailer", "upgrade", "expect", "accept-encoding",
    )
)  # fmt: skip
_IS_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
# Line ends would begin another header; the other controls and lone surrogates are nothing to send either.
_UNWRITABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]").search
_DEFAULTS = (("Accept", "*/*"), ("User-Agent", f"Homing/{__version__}"))


class Origin(NamedTuple):
    """Whom a connection leads to. Requests with the same origin share connections."""

    tls: bool
    host: str
    port: int


class Destination(Struct, frozen=True):
    """What a URL says, read once: whom to ask, and how every request to it begins."""

    origin: Origin
    #: Up to where the length of the body goes.
    start: str


def destination(target: Target) -> Destination:
    tls = target.scheme == "https"
    usual = 443 if tls else 80
    port = usual if target.port is None else target.port
    host = f"[{target.host}]" if ":" in target.host else target.host
    shown = host if port == usual else f"{host}:{port}"
    # Path and query go out byte for byte as they were given.
    path = target.rest if target.rest.startswith("/") else f"/{target.rest}"
    start = f"POST {path} HTTP/1.1\r\nHost: {shown}\r\nContent-Length: "
    return Destination(Origin(tls, target.host, port), start)


def request_head(to: Destination, headers: Sequence[tuple[str, str]], length: int) -> bytes | None:
    """All that goes before a body of some length; None where a header cannot be written."""
    shape = _shape(tuple([name for name, _ in headers]))
    values = [value for _, value in headers]
    if shape is None or not _is_writable("".join(values)):
        return None
    pairs = zip(shape.starts, values, strict=True)
    lines = [start + value for start, value in pairs if start]
    return f"{to.start}{length}{shape.before}{''.join(lines)}\r\n\r\n".encode()


class _Shape(Struct, frozen=True):
    """What the names alone decide."""

    #: Our own headers.
    before: str
    #: How the line of each given header starts, with the end of the line before; empty where it is left out.
    starts: tuple[str, ...]


# Jobs come in crowds with the same names in the same order.
@lru_cache(maxsize=512)
def _shape(names: tuple[str, ...]) -> _Shape | None:
    if not all(map(_IS_NAME, names)):
        return None
    given = [name.lower() for name in names]
    ours = [f"\r\n{name}: {value}" for name, value in _DEFAULTS if name.lower() not in given]
    before = "\r\nAccept-Encoding: identity" + "".join(ours)
    return _Shape(before, tuple([_start(name) for name in names]))


def _start(name: str) -> str:
    return "" if name.lower() in _NOT_FOR_CALLERS else f"\r\n{name}: "


def _is_writable(text: str) -> bool:
    # The first question is quick and answers for nearly all; a tab is no printable character, but allowed.
    return text.isprintable() or _UNWRITABLE(text) is None
