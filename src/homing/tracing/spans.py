"""What OpenTelemetry is told: who put messages in, who claimed them, each attempt, and how they were settled.

    create mail_outbox      when it is put in: a part of the caller's trace; its place is kept with the row
    receive mail_outbox     a claim that brought something, with links to where each was put in
    process mail_outbox     an attempt: a trace of its own, with a link to where the message was put in
    settle mail_outbox      how some of them were written down, with links to their attempts

Links and no parents: an attempt may come days after the request, and a hundred times. Names and attributes
are those of the semantic conventions for messaging and HTTP. No address, no subject, no body, no URL and no
error's words.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from homing.errors import SettingsError
from homing.tracing.context import Trace, read_trace, trace_id_of

#: More links than this a span does not keep.
_MOST_LINKS = 128
#: A collector that is away is told of once in so many seconds.
_WARN_EVERY = 60.0
#: Stages whose attempts put a message into a broker's queue.
_SENDS = frozenset({"dispatch_queue", "email_log:schedule"})
_NOTHING_BEFORE = Context()
#: Fields of a log line that are an attribute here, too.
_ATTRIBUTES = {
    "job": "messaging.message.id",
    "response_code": "http.response.status_code",
    "provider": "homing.provider",
    "recipients": "homing.recipients",
}
_FAILED = Status(StatusCode.ERROR)
_VERSION = version("homing")


def otlp_spans(sample: float, warn: Callable[[str], None]) -> Spans:
    """Told to the collector that the standard variables (OTEL_EXPORTER_OTLP_…) name."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if os.environ.get(name, "http/protobuf") != "http/protobuf":
            raise SettingsError(f"{name}: only http/protobuf can be spoken; its port is usually 4318")
    _mind_the_library(warn)
    provider = make_provider(sample)
    try:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise SettingsError(f"OpenTelemetry does not take its OTEL_… variables: {error}") from None
    return Spans(provider)


def make_provider(sample: float = 1.0) -> TracerProvider:
    return TracerProvider(
        sampler=ParentBased(_ByItsLinks(sample)), resource=_this_service(), shutdown_on_exit=False
    )


def _this_service() -> Resource:
    found = Resource.create({"service.version": _VERSION})
    named = str(found.attributes["service.name"])
    # What the environment says goes first.
    return found.merge(Resource({"service.name": "homing"})) if named.startswith("unknown_service") else found


class _ByItsLinks(Sampler):
    """Who put a message in has decided for all its attempts; where nobody has, the ratio does."""

    def __init__(self, ratio: float) -> None:
        self._others = TraceIdRatioBased(ratio)

    def should_sample(  # noqa: PLR0917 - as the library calls it
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        if not links:
            chosen: Sampler = self._others
        else:
            chosen = ALWAYS_ON if any(link.context.trace_flags.sampled for link in links) else ALWAYS_OFF
        return chosen.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"ByItsLinks{{{self._others.get_description()}}}"


class Attempt:
    """A span of an attempt, and what is said of it."""

    def __init__(self, span: otel.Span) -> None:
        self._span = span
        self.context = span.get_span_context()

    def ended(self, outcome: str, error: str | None, fields: Mapping[str, Any]) -> None:
        """`outcome` is delivered, retry, reject or skip; `fields` are those of the log line."""
        if not self._span.is_recording():
            return
        self._span.set_attribute("homing.outcome", outcome)
        for field, name in _ATTRIBUTES.items():
            if fields.get(field) is not None:
                self._span.set_attribute(name, fields[field])
        if (target := fields.get("target")) is not None:
            self._span.set_attributes(_of_target(target))
        if error is not None and outcome != "skip":
            _fail(self._span, error)

    def broke_off(self, error: BaseException) -> None:
        """A lease that was lost or a stop; or a bug of ours."""
        called_off = isinstance(error, asyncio.CancelledError)
        self._span.set_attribute("homing.outcome", "called_off" if called_off else "crashed")
        _fail(self._span, "called_off" if called_off else type(error).__name__)


def _fail(span: otel.Span, error: str) -> None:
    """With a word of few, and without the error's own."""
    span.set_attribute("error.type", error)
    span.set_status(_FAILED)


class Spans:
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("homing", _VERSION)
        self._is_closed = False

    # ── putting in ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def creating(self, lane: str, count: int, came: Trace | None) -> Iterator[Trace | None]:
        """In the trace of the request; or of what is being done here, where Homing is used as a library."""
        parent = otel.set_span_in_context(otel.NonRecordingSpan(_context_of(came))) if came else None
        with self._tracer.start_as_current_span(
            f"create {lane}",
            context=parent,
            kind=SpanKind.PRODUCER,
            attributes=_operation("create", lane, count),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield _trace_of(span.get_span_context())
            except Exception as error:
                _fail(span, type(error).__name__)
                raise

    def current(self) -> Trace | None:
        return _trace_of(otel.get_current_span().get_span_context())

    # ── working ──────────────────────────────────────────────────────────────────────────────────

    def received(self, lane: str, began: int, traceparents: Sequence[str | None]) -> None:
        """One claim; `began` is in nanoseconds."""
        links = [link for text in traceparents[:_MOST_LINKS] if (link := _link_to(text)) is not None]
        self._tracer.start_span(
            f"receive {lane}",
            context=_NOTHING_BEFORE,
            kind=SpanKind.CONSUMER,
            attributes=_operation("receive", lane, len(traceparents)),
            links=links,
            start_time=began,
        ).end()

    @contextmanager
    def attempting(self, lane: str, id: int, attempts: int, traceparent: str | None) -> Iterator[Attempt]:
        link = _link_to(traceparent)
        sends = lane in _SENDS
        span = self._tracer.start_span(
            f"{'send' if sends else 'process'} {lane}",
            # Whoever started this task may have been in the middle of something else.
            context=_NOTHING_BEFORE,
            kind=SpanKind.PRODUCER if sends else SpanKind.CLIENT,
            attributes=_attempt(lane, id, attempts, sends=sends),
            links=[link] if link is not None else None,
        )
        attempt = Attempt(span)
        with otel.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield attempt
            except BaseException as error:
                attempt.broke_off(error)
                raise

    @contextmanager
    def settling(self, lane: str, count: int, attempts: Sequence[SpanContext]) -> Iterator[None]:
        span = self._tracer.start_span(
            f"settle {lane}",
            context=_NOTHING_BEFORE,
            kind=SpanKind.CLIENT,
            attributes=_operation("settle", lane, count),
            links=[Link(context) for context in attempts[:_MOST_LINKS]],
        )
        try:
            yield
        except BaseException as error:
            _fail(span, type(error).__name__)
            raise
        finally:
            span.end()

    @contextmanager
    def mediating(self, pool: str, came: Trace | None) -> Iterator[None]:
        """A message of the router, on its way to whoever processes it."""
        span = self._tracer.start_span(
            f"process {pool}",
            context=_NOTHING_BEFORE,
            kind=SpanKind.CONSUMER,
            attributes=_operation("process", pool, 1),
            links=[Link(_context_of(came))] if came is not None else None,
        )
        with otel.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    async def close(self, seconds: float) -> None:
        """In a thread that nobody waits for at the end: a collector may be silent for longer than we stop."""
        if self._is_closed:
            return
        self._is_closed = True
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._shut_down, args=(loop, done), name="otel-close", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                await done.wait()
        except TimeoutError:
            logging.getLogger("opentelemetry.homing").warning("not everything was told before the end")

    def _shut_down(self, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
        self._provider.shutdown()
        # The loop is closed when nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(done.set)


def _operation(name: str, lane: str, count: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "homing",
        "messaging.destination.name": lane,
        "messaging.operation.name": name,
        "messaging.operation.type": name,
    }
    return attributes if count == 1 else {**attributes, "messaging.batch.message_count": count}


def _attempt(lane: str, id: int, attempts: int, *, sends: bool) -> dict[str, Any]:
    attributes = {
        **_operation("send" if sends else "process", lane, 1),
        "messaging.message.id": str(id),
        "homing.attempt": attempts + 1,
    }
    if lane == "dispatch_jobs":
        attributes["http.request.method"] = "POST"
        if attempts:
            attributes["http.request.resend_count"] = attempts
    return attributes


def _of_target(target: str) -> dict[str, Any]:
    """`https://example.org:443#12`: where it went, without the path, which may hold a secret."""
    try:
        parts = urlsplit(target)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        # Of an address that another program wrote, and that is none.
        return {}
    if not parts.hostname:
        return {}
    return {"server.address": parts.hostname, "server.port": port, "url.scheme": parts.scheme}


# ── between their words and ours ─────────────────────────────────────────────────────────────────


def _context_of(trace: Trace) -> SpanContext:
    state = TraceState.from_header([trace.tracestate]) if trace.tracestate else None
    flags = TraceFlags(trace.flags)
    return SpanContext(int(trace.trace_id, 16), int(trace.span_id, 16), True, flags, state)


def _trace_of(context: SpanContext) -> Trace | None:
    if not context.is_valid:
        return None
    state = context.trace_state.to_header() or None
    return Trace(
        otel.format_trace_id(context.trace_id),
        otel.format_span_id(context.span_id),
        int(context.trace_flags),
        state,
    )


def _link_to(text: str | None) -> Link | None:
    trace = read_trace(text)
    if trace is None and (trace_id := trace_id_of(text)) is not None:
        # A table that has room for the trace alone: its end stands for the span, for a link names both.
        trace = Trace(trace_id, trace_id[16:] if trace_id[16:].strip("0") else trace_id[:16])
    return Link(_context_of(trace)) if trace is not None else None


class _Seldom(logging.Handler):
    """What the library complains of, once a minute at the most: it does so with every batch."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn
        self._next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _WARN_EVERY
            # Not in its words, which may have the address of the collector and its key in them.
            self._warn(f"spans may be lost, the collector does not take them ({record.name})")


def _mind_the_library(warn: Callable[[str], None]) -> None:
    logger = logging.getLogger("opentelemetry")
    logger.handlers = [handler for handler in logger.handlers if not isinstance(handler, _Seldom)]
    logger.addHandler(_Seldom(warn))
    logger.propagate = False
