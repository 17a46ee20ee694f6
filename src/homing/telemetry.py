"""What Homing says about itself: log lines and metrics, from one catalogue of events.

Every attempt is one line, `delivery.attempted`, with every field a person needs to follow a message
through the log. Addresses, subjects and bodies are in no event. `docs/telemetry.md` lists them all.
"""

from __future__ import annotations

import json
import logging
import math
import platform
import sys
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from itertools import accumulate
from pathlib import PurePath
from typing import Any, BinaryIO, Generic, Literal, TextIO, TypeVar

import msgspec
import structlog
from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from homing.tracing import Tracing

LogFormat = Literal["auto", "json", "console"]
Value = TypeVar("Value")

#: In seconds, where the buckets of durations end.
ATTEMPT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600)
#: For what may wait for retries: up to three days.
WAIT_BOUNDS = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200,
    14400, 28800, 86400, 259200,
)  # fmt: skip

#: Whoever puts an order's number into the type must not fill the memory of Prometheus.
_MOST_JOB_KINDS = 500
#: Targets with a label of their own, for the same reason.
_MOST_TARGETS = 100
#: Seconds between two lines of the same trouble, which comes back with every batch.
_SAID_EVERY = 60.0
#: As much of a stack as it takes to find the place.
_FRAMES = 12
#: Errors in a row, of which each brought about the one before.
_CAUSES = 5

#: What each metric is, and its labels. A counter is exposed as homing_…_total, a histogram as
#: homing_…_seconds.
_COUNTERS = {
    "attempts": ("Attempts by outcome.", "lane outcome error_code"),
    "retries": ("Attempts that are to be repeated.", "lane"),
    "dead": ("Messages given up after an attempt: refused for good, or no attempts left.", "lane"),
    "claimed": ("Rows claimed.", "lane"),
    "lease_losses": ("Claims that another worker took over.", "lane"),
    "stale_settles": ("Attempts whose row had been taken over: nothing was written of them.", "lane"),
    "attempts_untold": ("Failed attempts of settled messages, of which nothing could be kept.", "lane"),
    "rescues": ("Rows taken back from workers that died.", "lane"),
    "swept": ("Rows ended without an attempt.", "lane state"),
    "pruned_rows": ("Rows deleted because they were old enough.", "lane state"),
    "enqueued": ("Rows put in by us.", "lane"),
    "jobs_settled": ("Attempts at dispatch jobs by the state that they led to.", "source type state"),
    "breaker_openings": ("Targets left alone because they kept failing.", "target"),
    "router_messages": ("Messages that the router took from queues, by what became of them.", "pool outcome"),
    "emails_requeued": ("Emails that the scheduler put into the queue again.", ""),
    "emails_dead": ("Emails given up, by reason.", "reason"),
    "http_refused": ("Connections and requests that got no further than the server, by reason.", "reason"),
    "loop_held": ("Stretches of a request that held the event loop for more than 50 ms of CPU.", "route"),
    "log_events": ("Log events by name, but those that are written for every message.", "event level"),
}
_GAUGES = {
    "messages": ("Rows by state.", "lane state"),
    "oldest_due_age_seconds": ("How long the oldest due row has waited, held back or not.", "lane"),
    "held_back_messages": (
        "Due rows that wait for a target which is paused or keeps failing.",
        "lane target",
    ),
    "held_back_age_seconds": ("How long the oldest of them has waited.", "lane target"),
    "in_flight": ("Claims held by this process.", "lane"),
    "bytes_in_hand": ("Bytes of large messages that are being sent, or read for it.", ""),
    "bytes_at_once": ("How many these may be; others wait, unread.", ""),
    "lane_paused": ("Whether this process claims nothing of the lane, which is paused.", "lane"),
    "queue_messages": ("Messages in a queue of a broker, about: waiting, held, delayed.", "queue state"),
    "target_breaker_open": ("1 for each target that is left alone because it kept failing.", "target"),
    "router_running": ("Messages that a pool processes now.", "pool"),
    "last_claim_timestamp_seconds": ("When the database last answered a claim.", "lane"),
    "last_success_timestamp_seconds": ("When a message was last delivered.", "lane"),
    "http_connections": ("Connections to the API, or to the metrics.", ""),
    "http_intake_bytes": ("Bodies over 64 KiB that the API holds now.", ""),
    "http_unread_bytes": ("Answers that clients have not read.", ""),
    "loop_longest_hold_seconds": ("The longest of these stretches, in CPU time.", "route"),
    "build_info": ("Always 1; the labels tell what is running.", "version python"),
}
#: What each histogram is, and where its buckets end; each is by lane.
_HISTOGRAMS = {
    "attempt_duration": ("From the start of an attempt to its outcome.", ATTEMPT_BOUNDS),
    "claim_duration": ("One claim statement.", ATTEMPT_BOUNDS),
    "delivery_latency": (
        "From a message's creation, or from when it was first due, to its delivery.",
        WAIT_BOUNDS,
    ),
}


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
    #: Seconds from the message's creation, or from when it was first due if that is later, to this outcome.
    since_created: float | None = None
    #: The trace that the message was put in with.
    trace_id: str | None = None


class Totals(Struct, frozen=True):
    """What became of a lane's attempts since the process began; `desk/traffic.py` takes the differences."""

    delivered: int
    retried: int
    dead: int
    stopped: int
    #: By bucket of `ATTEMPT_BOUNDS`: from the start of an attempt to its outcome.
    attempts: tuple[int, ...]
    #: By bucket of `WAIT_BOUNDS`: from a message's creation to its delivery.
    waits: tuple[int, ...]


class _Durations:
    """How many were how long.

    Only the loop's thread counts, so it needs no locks: the library's histogram takes two, and four times as
    long.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    @property
    def counts(self) -> tuple[int, ...]:
        """By bucket; the last is of all that took longer than its bounds."""
        return tuple(self._counts)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def add_to(self, family: HistogramMetricFamily, lane: str) -> None:
        ends = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        family.add_metric([lane], list(zip(ends, accumulate(self._counts), strict=True)), self._sum)


class _Histogram(Collector):
    """A histogram by lane."""

    def __init__(self, name: str, told: str, bounds: Sequence[float]) -> None:
        self._name, self._told, self._bounds = name, told, bounds
        self._lanes: dict[str, _Durations] = {}

    def of_lane(self, lane: str) -> _Durations:
        return self._lanes.setdefault(lane, _Durations(self._bounds))

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._told, labels=["lane"])
        for lane, durations in self._lanes.items():
            durations.add_to(family, lane)
        return [family]


class _Metrics:
    """What the catalogue names, in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counters = {
            name: Counter(f"homing_{name}_total", told, labels.split(), registry=registry)
            for name, (told, labels) in _COUNTERS.items()
        }
        self.gauges = {
            name: Gauge(f"homing_{name}", told, labels.split(), registry=registry)
            for name, (told, labels) in _GAUGES.items()
        }
        self.histograms = {
            name: _Histogram(f"homing_{name}_seconds", told, bounds)
            for name, (told, bounds) in _HISTOGRAMS.items()
        }
        for histogram in self.histograms.values():
            registry.register(histogram)


class _OfLane:
    """What is counted of one lane.

    All are made together, so that each begins with a zero: a counter that appears with its first event has
    not risen, as Prometheus sees it, and nobody would be alerted.
    """

    def __init__(self, metrics: _Metrics, lane: str, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._attempts = metrics.histograms["attempt_duration"].of_lane(lane)
        self._latencies = metrics.histograms["delivery_latency"].of_lane(lane)
        self.observe_attempt, self._observe_latency = self._attempts.observe, self._latencies.observe
        self._delivered = self._retried = self._dead = self._stopped = 0
        self._observe_claim = metrics.histograms["claim_duration"].of_lane(lane).observe
        counters = metrics.counters
        self._count_claimed = counters["claimed"].labels(lane).inc
        self._count_retry = counters["retries"].labels(lane).inc
        self._count_dead = counters["dead"].labels(lane).inc
        self.count_lease_loss = counters["lease_losses"].labels(lane).inc
        self._count_stale_settle = counters["stale_settles"].labels(lane).inc
        self.count_rescues = counters["rescues"].labels(lane).inc
        self._count_untold = counters["attempts_untold"].labels(lane).inc
        self._untold, self._untold_said_at = 0, -math.inf
        # Plain numbers, read when somebody scrapes: to set a gauge takes a lock. None of them is there yet.
        self._claimed_at = self.succeeded_at = math.nan
        metrics.gauges["last_claim_timestamp_seconds"].labels(lane).set_function(lambda: self._claimed_at)
        metrics.gauges["last_success_timestamp_seconds"].labels(lane).set_function(lambda: self.succeeded_at)

    def claimed(self, count: int, seconds: float) -> None:
        self._observe_claim(seconds)
        self._count_claimed(count)
        self._claimed_at = time.time()

    def untold(self, attempts: int) -> int:
        """How many there are to be told of; 0 while that was said less than a minute ago."""
        self._count_untold(attempts)
        self._untold += attempts
        now = self._monotonic()
        if now - self._untold_said_at < _SAID_EVERY:
            return 0
        due, self._untold, self._untold_said_at = self._untold, 0, now
        return due

    @property
    def totals(self) -> Totals:
        ends = (self._delivered, self._retried, self._dead, self._stopped)
        return Totals(*ends, self._attempts.counts, self._latencies.counts)

    def delivered(self, latency: float | None) -> None:
        self._delivered += 1
        self.succeeded_at = time.time()
        # Another program may have written a creation that is infinitely long ago, or is still to come.
        if latency is not None and 0.0 <= latency < math.inf:
            self._observe_latency(latency)

    def failed(self, event: Attempted) -> None:
        if not event.settled:
            self.count_lease_loss()
            self._count_stale_settle()
        elif event.settlement == "retry_in":
            self._retried += 1
            self._count_retry()
        elif event.settlement == "bury":
            self._dead += 1
            self._count_dead()
        else:
            self._stopped += 1


class _Lanes(dict[str, _OfLane]):
    """Each lane's, made when it is first asked for."""

    def __init__(self, metrics: _Metrics, monotonic: Callable[[], float]) -> None:
        self._metrics, self._monotonic = metrics, monotonic

    def __missing__(self, lane: str) -> _OfLane:
        made = self[lane] = _OfLane(self._metrics, lane, self._monotonic)
        return made


class _CountedLog:
    """A logger that counts what goes through it by name: of every event an alert can be made."""

    def __init__(self, logger: Any, count: Counter) -> None:
        self._logger = logger
        self._count = count

    def info(self, event: str, /, **fields: Any) -> None:
        self._count.labels(event, "info").inc()
        self._logger.info(event, **fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._count.labels(event, "warning").inc()
        self._logger.warning(event, **fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._count.labels(event, "error").inc()
        self._logger.error(event, **fields)


class _Known(Generic[Value]):
    """The first so many values that come; those after them are `other`."""

    def __init__(self, most: int, other: Value) -> None:
        self._most, self._other = most, other
        self._values: set[Value] = set()

    def name(self, value: Value) -> Value:
        if value in self._values:
            return value
        if len(self._values) >= self._most:
            return self._other
        self._values.add(value)
        return value


class Telemetry:
    """Where the engine and the lanes report to."""

    def __init__(
        self,
        logger: Any = None,
        registry: CollectorRegistry | None = None,
        tracing: Tracing | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        #: Which trace a message belongs to, and who is told of it.
        self.tracing = tracing or Tracing()
        #: For what is written for every message: it has metrics of its own.
        self._plain_log = logger if logger is not None else structlog.get_logger()
        sink = getattr(self._plain_log, "_logger", None)
        self._lines = sink if isinstance(sink, _LineWriter) else None
        self.registry = registry if registry is not None else CollectorRegistry()
        metrics = _Metrics(self.registry)
        ProcessCollector("homing", registry=self.registry)
        self._counters, self._gauges = metrics.counters, metrics.gauges
        self.log = _CountedLog(self._plain_log, self._counters["log_events"])
        self.in_flight, self.backlog = self._gauges["in_flight"], self._gauges["messages"]
        self.oldest_due = self._gauges["oldest_due_age_seconds"]
        #: Of each lane, which targets its gauges name: one that takes messages again is not named any more.
        self._held_places: dict[str, set[str]] = {}
        self._gauges["build_info"].labels(version("homing"), platform.python_version()).set(1)
        # A labels() call looks its child up under a lock; the hot path keeps the few it needs.
        self._count_attempt = lru_cache(maxsize=1024)(
            lambda *labels: metrics.counters["attempts"].labels(*labels).inc
        )
        self._jobs_of = lru_cache(maxsize=4096)(self._counters["jobs_settled"].labels)
        self._lanes = _Lanes(metrics, monotonic)
        self._lane = self._lanes.__getitem__
        self._job_kinds = _Known(_MOST_JOB_KINDS, ("other", "other"))
        self._targets = _Known(_MOST_TARGETS, "other")
        self._monotonic = monotonic
        #: Of each route that held the loop, for how long at the most, and when that was said.
        self._holds: dict[str, tuple[float, float]] = {}

    def room(self, limit: int, held: Callable[[], int]) -> None:
        """How much of large messages this process may have in hand, and whom to ask how much it has."""
        self._gauges["bytes_at_once"].set(limit)
        self._gauges["bytes_in_hand"].set_function(held)

    def attempted(self, event: Attempted) -> None:
        self._count_attempt(event.lane, event.outcome, event.error_code or "")()
        lane = self._lane(event.lane)
        lane.observe_attempt(event.seconds)
        well = event.outcome == "delivered" and event.settled
        if well:
            lane.delivered(event.since_created)
        else:
            lane.failed(event)
        # The duration is rounded by hand: round() takes as long as a counter.
        fields = {
            "lane": event.lane, "id": event.id, "claim_seq": event.claim_seq, "attempt": event.attempt,
            "outcome": event.outcome, "settlement": event.settlement, "settled": event.settled,
            "charged": event.charged, "duration_ms": int(event.seconds * 100_000 + 0.5) / 100,
            "error_code": event.error_code, "error": event.error, "retry_in": event.retry_in, **event.fields,
        }  # fmt: skip
        if event.trace_id is not None:
            fields["trace_id"] = event.trace_id
        if self._lines is None:
            (self._plain_log.info if well else self._plain_log.warning)("delivery.attempted", **fields)
        else:
            # The one line that is written for every message: past the logger's layers it costs half.
            self._lines.event(logging.INFO if well else logging.WARNING, "delivery.attempted", fields)

    def totals(self) -> dict[str, Totals]:
        """Of each lane that this process has worked on."""
        return {lane: counted.totals for lane, counted in self._lanes.items()}

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
        self._lane(lane).claimed(count, seconds)

    def lease_lost(self, lane: str, id: int, claim_seq: int) -> None:
        self._lane(lane).count_lease_loss()
        self.log.warning("lease.lost", lane=lane, id=id, claim_seq=claim_seq)

    def lock_unreadable(self, lane: str, id: int, locked_by: str) -> None:
        self.log.warning("lock.unreadable", lane=lane, id=id, locked_by=locked_by)

    def rescued(self, lane: str, requeued: int, charged: int) -> None:
        self._lane(lane).count_rescues(requeued + charged)
        self.log.warning("lease.rescued", lane=lane, requeued=requeued, charged=charged)

    def attempts_untold(self, lane: str, attempts: int, error: Exception) -> None:
        """Of these nobody can be told later, though their messages are settled; a line a minute says so."""
        due = self._lane(lane).untold(attempts)
        if due:
            self.log.warning("attempts.untold", lane=lane, rows=due, error=str(error))

    def swept(self, lane: str, ended: Mapping[str, int]) -> None:
        for state, count in ended.items():
            self._counters["swept"].labels(lane, state).inc(count)
        self.log.info("lane.swept", lane=lane, **ended)

    def pruned(self, lane: str, state: str, count: int) -> None:
        self._counters["pruned_rows"].labels(lane, state).inc(count)
        self.log.info("retention.pruned", lane=lane, state=state, count=count)

    def job_settled(self, source: str, type: str, state: str) -> None:
        """By source and type, as the specification wants it; beyond some hundreds they are `other`."""
        self._jobs_of(*self._job_kinds.name((source, type)), state).inc()

    def breaker_opened(self, target: str) -> None:
        # Without the number of its credentials: one host is one label.
        self._counters["breaker_openings"].labels(self._targets.name(target.partition("#")[0])).inc()
        self.log.warning("breaker.opened", target=target)

    def routed(self, pool: str, outcome: str) -> None:
        """done, later, failed, no_room, duplicate, malformed"""
        self._counters["router_messages"].labels(pool, outcome).inc()

    def lane_paused(self, lane: str, *, is_on: bool) -> None:
        self._gauges["lane_paused"].labels(lane).set(int(is_on))

    def queues_measured(self, depths: Mapping[str, Mapping[str, int]]) -> None:
        """By queue and state. One that does not tell is gone: an old figure would mislead."""
        gauge = self._gauges["queue_messages"]
        gauge.clear()
        for queue, states in depths.items():
            for state, count in states.items():
                gauge.labels(queue, state).set(count)

    def breakers_open(self, targets: Iterable[str]) -> None:
        gauge = self._gauges["target_breaker_open"]
        gauge.clear()
        # Without the number of its credentials, and of the first hundred: labels are for people.
        for target in sorted({target.partition("#")[0] for target in targets})[:_MOST_TARGETS]:
            gauge.labels(target).set(1)

    def held_back(self, lane: str, targets: Iterable[tuple[str, int, float]]) -> None:
        """How many rows are due for each target that takes none, and for how long."""
        counts, ages = self._gauges["held_back_messages"], self._gauges["held_back_age_seconds"]
        held: dict[str, tuple[int, float]] = {}
        for target, count, age in targets:
            place = target.partition("#")[0]
            before = held.get(place, (0, 0.0))
            held[place] = before[0] + count, max(before[1], age)
        for place in self._held_places.get(lane, set()) - held.keys():
            counts.remove(lane, place)
            ages.remove(lane, place)
        self._held_places[lane] = set(held)
        for place, (count, age) in held.items():
            counts.labels(lane, place).set(count)
            ages.labels(lane, place).set(age)

    def router_pool(self, pool: str, running: Callable[[], int]) -> None:
        """Asked when somebody looks."""
        self._gauges["router_running"].labels(pool).set_function(running)

    def email_scheduled(
        self, id: int, attempts: int, due_at: object, *, reason: str | None, again: bool = False
    ) -> None:
        """One action of the scheduler, in the words of its specification: published, or why it was not."""
        published = reason is None
        if published and again:
            self._counters["emails_requeued"].inc()
        fields = {
            "EmailId": id, "AttemptCount": attempts, "NextAttemptAt": due_at, "Published": published,
            "Reason": reason,
        }  # fmt: skip
        if self._lines is None:
            (self._plain_log.info if published else self._plain_log.warning)("email.scheduled", **fields)
        else:
            self._lines.event(logging.INFO if published else logging.WARNING, "email.scheduled", fields)

    def email_died(self, reason: str) -> None:
        self._counters["emails_dead"].labels(reason).inc()

    def http_refused(self, reason: str) -> None:
        """malformed, slow, long_url, large_head, crowded, unread, intake"""
        self._counters["http_refused"].labels(reason).inc()

    def count_connections(self, open: Callable[[], int], unread: Callable[[], int]) -> None:
        self._gauges["http_connections"].set_function(open)
        self._gauges["http_unread_bytes"].set_function(unread)

    def count_intake(self, held: Callable[[], int]) -> None:
        self._gauges["http_intake_bytes"].set_function(held)

    def enqueued(self, lane: str, count: int) -> None:
        self._counters["enqueued"].labels(lane).inc(count)

    def loop_held(self, route: str, seconds: float) -> None:
        """Seconds of CPU time in which nobody else was served. A line a minute, and one for each record."""
        longest, said_at = self._holds.get(route, (0.0, -math.inf))
        self._counters["loop_held"].labels(route).inc()
        self._gauges["loop_longest_hold_seconds"].labels(route).set(max(longest, seconds))
        now = self._monotonic()
        if is_due := seconds > longest or now - said_at >= _SAID_EVERY:
            self.log.warning("loop.held", route=route, cpu_ms=round(seconds * 1000))
        self._holds[route] = (max(longest, seconds), now if is_due else said_at)

    def crashed(self, event: str, bug: BaseException, **fields: Any) -> None:
        """Where a bug struck, but not its message: that may quote an address or a body."""
        self.log.error(event, error=type(bug).__name__, places=_places(bug), **fields)


def stack_trace(bug: BaseException) -> str:
    """Where a bug struck, and what brought it about, without their messages."""
    told: list[str] = []
    cause: BaseException | None = bug
    while cause is not None and len(told) < _CAUSES:
        told.append("\n".join([type(cause).__qualname__, *(f"  at {place}" for place in _places(cause))]))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\ncaused by ".join(told)


def _places(bug: BaseException) -> list[str]:
    frames = traceback.extract_tb(bug.__traceback__)[-_FRAMES:]
    return [f"{PurePath(f.filename).name}:{f.lineno} {f.name}" for f in frames]


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
            self._put(line)

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        lines, self._held = self._held, None
        if lines:
            self._put(b"\n".join(lines))

    def _put(self, text: bytes) -> None:
        # A full disk, or a pipe that nobody reads any more, is no reason to deliver nothing.
        with suppress(OSError):
            self._write(text + b"\n")
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
