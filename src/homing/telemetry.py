"""What Homing says about itself: log lines and metrics, from one catalogue of events.

Every attempt is one line, `delivery.attempted`, with every field a person needs to follow a message
through the log. Addresses, subjects and bodies are in no event. `docs/telemetry.md` lists them all.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, TextIO

import msgspec
import structlog
from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LogFormat = Literal["auto", "json", "console"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600)

#: Whoever puts an order's number into the type must not fill the memory of Prometheus.
_MOST_JOB_KINDS = 500
#: As much of a stack as it takes to find the place.
_FRAMES = 12


class Attempted(Struct, frozen=True):
    """One attempt, from claim to settlement."""

    lane: str
    id: int
    claim_seq: int
    #: Which attempt this was, the charged ones before it counted.
    attempt: int
    #: delivered, retry, reject, skip
    outcome: str
    #: complete, retry_in, bury, discard
    settlement: str
    #: False when the row had been taken over: nothing was written.
    settled: bool
    seconds: float
    error_code: str | None
    error: str | None
    retry_in: float | None
    charged: bool
    fields: Mapping[str, Any]


class Telemetry:
    """Where the engine and the lanes report to."""

    def __init__(self, logger: Any = None, registry: CollectorRegistry | None = None) -> None:
        self.log = logger if logger is not None else structlog.get_logger()
        sink = getattr(self.log, "_logger", None)
        self._lines = sink if isinstance(sink, _LineWriter) else None
        self.registry = registry if registry is not None else CollectorRegistry()
        self._define_metrics(self.registry)
        # A labels() call looks its child up under a lock; the hot path keeps the few it needs.
        self._attempts_of = lru_cache(maxsize=1024)(self._attempts.labels)
        self._jobs_of = lru_cache(maxsize=4096)(self._jobs.labels)
        self._job_kinds: set[tuple[str, str]] = set()
        self._seconds_of = lru_cache(maxsize=64)(self._attempt_seconds.labels)

    def _define_metrics(self, registry: CollectorRegistry) -> None:
        self._attempts = Counter(
            "homing_attempts_total",
            "Attempts by outcome.",
            ["lane", "outcome", "error_code"],
            registry=registry,
        )
        self._attempt_seconds = Histogram(
            "homing_attempt_duration_seconds", "From the start of an attempt to its outcome.", ["lane"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._claim_seconds = Histogram(
            "homing_claim_duration_seconds", "One claim statement.", ["lane"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._claimed = Counter("homing_claimed_total", "Rows claimed.", ["lane"], registry=registry)
        self._lease_losses = Counter(
            "homing_lease_losses_total", "Claims that another worker took over.", ["lane"], registry=registry
        )
        self._rescues = Counter(
            "homing_rescues_total", "Rows taken back from workers that died.", ["lane"], registry=registry
        )
        self._swept = Counter(
            "homing_swept_total", "Rows ended without an attempt.", ["lane", "state"], registry=registry
        )
        self._enqueued = Counter("homing_enqueued_total", "Rows put in by us.", ["lane"], registry=registry)
        self._jobs = Counter(
            "homing_jobs_settled_total",
            "Attempts at dispatch jobs by the state that they led to.",
            ["source", "type", "state"],
            registry=registry,
        )
        self._breakers = Counter(
            "homing_breaker_openings_total",
            "Targets left alone because they kept failing.",
            registry=registry,
        )
        self._routed = Counter(
            "homing_router_messages_total",
            "Messages that the router took from queues, by what became of them.",
            ["pool", "outcome"],
            registry=registry,
        )
        self._router_running = Gauge(
            "homing_router_running", "Messages that a pool processes now.", ["pool"], registry=registry
        )
        self._emails_requeued = Counter(
            "homing_emails_requeued_total",
            "Emails that the scheduler put into the queue again.",
            registry=registry,
        )
        self._emails_dead = Counter(
            "homing_emails_dead_total", "Emails given up, by reason.", ["reason"], registry=registry
        )
        self.in_flight = Gauge(
            "homing_in_flight", "Claims held by this process.", ["lane"], registry=registry
        )
        self.backlog = Gauge("homing_messages", "Rows by state.", ["lane", "state"], registry=registry)
        self.oldest_due = Gauge(
            "homing_oldest_due_age_seconds",
            "How long the oldest due row has waited.",
            ["lane"],
            registry=registry,
        )

    def attempted(self, event: Attempted) -> None:
        self._attempts_of(event.lane, event.outcome, event.error_code or "").inc()
        self._seconds_of(event.lane).observe(event.seconds)
        if not event.settled:
            self._lease_losses.labels(event.lane).inc()
        well = event.outcome == "delivered" and event.settled
        fields = {
            "lane": event.lane, "id": event.id, "claim_seq": event.claim_seq, "attempt": event.attempt,
            "outcome": event.outcome, "settlement": event.settlement, "settled": event.settled,
            "charged": event.charged, "duration_ms": round(event.seconds * 1000, 2),
            "error_code": event.error_code, "error": event.error, "retry_in": event.retry_in, **event.fields,
        }  # fmt: skip
        if self._lines is None:
            (self.log.info if well else self.log.warning)("delivery.attempted", **fields)
        else:
            # The one line that is written for every message: past the logger's layers it costs half.
            self._lines.event(logging.INFO if well else logging.WARNING, "delivery.attempted", fields)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is logged inside goes out in one write: a line costs less than the call that writes it."""
        if self._lines is None:
            yield
            return
        self._lines.hold()
        try:
            yield
        finally:
            self._lines.release()

    def claimed(self, lane: str, count: int, seconds: float) -> None:
        self._claim_seconds.labels(lane).observe(seconds)
        self._claimed.labels(lane).inc(count)

    def lease_lost(self, lane: str, id: int, claim_seq: int) -> None:
        self._lease_losses.labels(lane).inc()
        self.log.warning("lease.lost", lane=lane, id=id, claim_seq=claim_seq)

    def rescued(self, lane: str, requeued: int, charged: int) -> None:
        self._rescues.labels(lane).inc(requeued + charged)
        self.log.warning("lease.rescued", lane=lane, requeued=requeued, charged=charged)

    def swept(self, lane: str, ended: Mapping[str, int]) -> None:
        for state, count in ended.items():
            self._swept.labels(lane, state).inc(count)
        self.log.info("lane.swept", lane=lane, **ended)

    def job_settled(self, source: str, type: str, state: str) -> None:
        """By source and type, as the specification wants it; beyond some hundreds they are `other`."""
        key = (source, type)
        if key not in self._job_kinds:
            if len(self._job_kinds) >= _MOST_JOB_KINDS:
                key = ("other", "other")
            else:
                self._job_kinds.add(key)
        self._jobs_of(*key, state).inc()

    def breaker_opened(self, target: str) -> None:
        self._breakers.inc()
        self.log.warning("breaker.opened", target=target)

    def routed(self, pool: str, outcome: str) -> None:
        """done, later, failed, no_room, duplicate, malformed"""
        self._routed.labels(pool, outcome).inc()

    def router_pool(self, pool: str, running: Callable[[], int]) -> None:
        """Asked when somebody looks."""
        self._router_running.labels(pool).set_function(running)

    def email_scheduled(
        self, id: int, attempts: int, due_at: object, *, reason: str | None, again: bool = False
    ) -> None:
        """One action of the scheduler, in the words of its specification: published, or why it was not."""
        published = reason is None
        if published and again:
            self._emails_requeued.inc()
        fields = {
            "EmailId": id, "AttemptCount": attempts, "NextAttemptAt": due_at, "Published": published,
            "Reason": reason,
        }  # fmt: skip
        if self._lines is None:
            (self.log.info if published else self.log.warning)("email.scheduled", **fields)
        else:
            self._lines.event(logging.INFO if published else logging.WARNING, "email.scheduled", fields)

    def email_died(self, reason: str) -> None:
        self._emails_dead.labels(reason).inc()

    def enqueued(self, lane: str, count: int) -> None:
        self._enqueued.labels(lane).inc(count)

    def crashed(self, event: str, bug: BaseException, **fields: Any) -> None:
        """Where a bug struck, but not its message: that may quote an address or a body."""
        frames = traceback.extract_tb(bug.__traceback__)[-_FRAMES:]
        places = [f"{PurePath(f.filename).name}:{f.lineno} {f.name}" for f in frames]
        self.log.error(event, error=type(bug).__name__, places=places, **fields)


class _LineWriter:
    """Writes one finished line at a time; the last processor made bytes of it."""

    def __init__(self, stream: BinaryIO, level: int) -> None:
        self._write, self._flush = stream.write, stream.flush
        self._level = level
        self._held: list[bytes] | None = None

    def event(self, level: int, name: str, fields: Mapping[str, Any]) -> None:
        """As the logger would write it."""
        if level >= self._level:
            self.msg(_line({"time": _now(), "level": _LEVELS[level], "event": name, **fields}))

    def msg(self, line: bytes) -> None:
        if self._held is not None:
            self._held.append(line)
        else:
            self._write(line + b"\n")
            self._flush()

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        lines, self._held = self._held, None
        if lines:
            self._write(b"\n".join(lines) + b"\n")
            self._flush()

    log = debug = info = warning = error = critical = msg


@lru_cache(maxsize=1)
def _iso(milliseconds: int) -> str:
    """Under load many lines are written in the same millisecond."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stamp(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["time"] = _now()
    return event


def _now() -> str:
    return _iso(time.time_ns() // 1_000_000)


_encoder = msgspec.json.Encoder(enc_hook=str)
_LEVELS = {logging.INFO: "info", logging.WARNING: "warning"}


def _line(fields: Mapping[str, Any]) -> bytes:
    try:
        return _encoder.encode(fields)
    except UnicodeEncodeError:
        # Half a character, from somebody else's JSON: a line that cannot be written must not stop the work.
        return json.dumps(fields, default=str, ensure_ascii=False).encode("utf-8", "replace")


def _to_json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> bytes:
    return _line(
        {"time": event.pop("time"), "level": event.pop("level"), "event": event.pop("event"), **event}
    )


def _add_level(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["level"] = method
    return event


def make_logger(log_format: LogFormat, level: int, stream: TextIO | None = None) -> Any:
    """A structlog logger: lines for people on a terminal, JSON lines elsewhere."""
    out = stream if stream is not None else sys.stderr
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    if console:
        renderer: Any = structlog.dev.ConsoleRenderer(colors=out.isatty(), timestamp_key="time")
        sink: Any = structlog.PrintLogger(out)
    else:
        renderer, sink = _to_json, _LineWriter(out.buffer, level)
    return structlog.wrap_logger(
        sink,
        processors=[_add_level, _stamp, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    ).bind()
