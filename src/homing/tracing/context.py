"""W3C Trace Context: which trace a message belongs to, as `traceparent` and `tracestate` say it.

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    version · trace · span that it comes from · flags (1: sampled)

Anybody may write a header or a column, so everything is checked, and what is no trace context is passed over:
it is never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import Struct

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

_FORM = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-[!-~]*)?"
)
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_STATE = re.compile(r"[ -~]+")
#: What the recommendation wants to be passed on at the least, and we at the most.
_LONGEST_STATE = 512
_SAMPLED = 1


class Trace(Struct, frozen=True, gc=False):
    """A place in a trace: something that was done, and may have led to something else."""

    #: 32 and 16 digits of hexadecimal, in lower case.
    trace_id: str
    span_id: str
    flags: int = _SAMPLED
    #: What other tracing systems want to know.
    tracestate: str | None = None

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & _SAMPLED)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def headers(self) -> list[tuple[str, str]]:
        named = [(TRACEPARENT, self.traceparent)]
        return named if self.tracestate is None else [*named, (TRACESTATE, self.tracestate)]


def read_trace(traceparent: str | None, tracestate: str | None = None) -> Trace | None:
    """None for what is no `traceparent`; then `tracestate` says nothing either."""
    match = _FORM.fullmatch(traceparent) if traceparent else None
    if match is None or (match["version"] == "00" and match["more"] is not None):
        return None
    flags = int(match["flags"], 16)
    # Of a version to come only this flag is known to mean the same.
    known = flags if match["version"] == "00" else flags & _SAMPLED
    return Trace(match["trace"], match["span"], known, _checked_state(tracestate))


def trace_id_of(text: str | None) -> str | None:
    """The trace that a `traceparent`, or a trace id alone, names; None for anything else."""
    if not text:
        return None
    if _TRACE_ID.fullmatch(text):
        return text
    trace = read_trace(text)
    return trace.trace_id if trace is not None else None


def _checked_state(text: str | None) -> str | None:
    if not text or len(text) > _LONGEST_STATE or not _STATE.fullmatch(text):
        return None
    return text.strip(" ,") or None


# ── where a request or a message came from ───────────────────────────────────────────────────────

_came_from: ContextVar[Trace | None] = ContextVar("homing_came_from", default=None)


def came_from() -> Trace | None:
    """The trace of the request or the message that is being handled."""
    return _came_from.get()


@contextmanager
def coming_from(trace: Trace | None) -> Iterator[None]:
    token = _came_from.set(trace)
    try:
        yield
    finally:
        _came_from.reset(token)


def trace_in(headers: Iterable[tuple[bytes, bytes]]) -> Trace | None:
    """Of a request, whose names are in lower case. Two `traceparent` are none; two `tracestate`, one list."""
    parents, states = [], []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    if len(parents) != 1:
        return None
    return read_trace(parents[0].strip().decode("latin-1"), b",".join(states).decode("latin-1"))
