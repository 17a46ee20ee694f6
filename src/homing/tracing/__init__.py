"""Traces: a message keeps the trace of whoever put it in, and takes it along.

`Tracing` is always there, and passes on what came. With OpenTelemetry (`HOMING_TRACING=otlp`) it has `spans`,
which tell a collector of what is done; without, asking for them is all that it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from homing.errors import SettingsError
from homing.tracing.context import (
    TRACEPARENT,
    TRACESTATE,
    Trace,
    came_from,
    coming_from,
    read_trace,
    trace_id_of,
    trace_in,
)

if TYPE_CHECKING:
    from homing.tracing.spans import Spans

__all__ = [
    "TRACEPARENT",
    "TRACESTATE",
    "Trace",
    "Tracing",
    "came_from",
    "coming_from",
    "make_tracing",
    "read_trace",
    "trace_id_of",
    "trace_in",
]

_MISSING = (
    "HOMING_TRACING is on, and OpenTelemetry is not installed; install it with `pip install 'homing[otel]'`, "
    "or set HOMING_TRACING=off"
)


class Tracing:
    def __init__(self, spans: Spans | None = None) -> None:
        self.spans = spans

    @contextmanager
    def creating(self, lane: str, count: int = 1) -> Iterator[Trace | None]:
        """Around putting messages in; gives the trace that they are to keep."""
        if self.spans is None:
            yield came_from()
            return
        with self.spans.creating(lane, count, came_from()) as trace:
            yield trace

    @contextmanager
    def mediating(self, pool: str, trace: Trace | None) -> Iterator[None]:
        """Around having a message of the router processed."""
        with coming_from(trace):
            if self.spans is None:
                yield
                return
            with self.spans.mediating(pool, trace):
                yield

    def outgoing(self, traceparent: str | None, tracestate: str | None = None) -> Trace | None:
        """What goes along with a message: the span that sends it, or else the trace it was put in with."""
        return self._or_current(read_trace(traceparent, tracestate) if traceparent else None)

    def passed_on(self) -> Trace | None:
        """The same, for what is asked of others while a request or a message is handled."""
        return self._or_current(came_from())

    def _or_current(self, came: Trace | None) -> Trace | None:
        if self.spans is None:
            return came
        current = self.spans.current()
        # Where nobody is told of what is being done here, the trace of whoever began it says more.
        return current if current is not None and current.is_sampled else came or current

    async def close(self, seconds: float) -> None:
        """Tell the collector what it has not been told, within so many seconds."""
        if self.spans is not None:
            await self.spans.close(seconds)


def make_tracing(
    kind: Literal["off", "otlp"], sample: float, warn: Callable[[str], None] = lambda _: None
) -> Tracing:
    """`sample` is the share of traces that begin here and are told of; `warn` hears when none can be."""
    if kind == "off":
        return Tracing()
    try:
        from homing.tracing.spans import otlp_spans  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise SettingsError(_MISSING) from None
    return Tracing(otlp_spans(sample, warn))
