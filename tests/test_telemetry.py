"""What is counted, and at which label it ends."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from tests.outbox import LogLines

from homing import __version__
from homing.errors import DatabaseError
from homing.telemetry import Attempted, Telemetry, make_logger

DELIVERED = Attempted(
    lane="mail_outbox", id=1, claim_seq=1, attempt=1, outcome="delivered", settlement="complete",
    settled=True, seconds=0.0123456, error_code=None, error=None, retry_in=None, charged=False, fields={},
)  # fmt: skip
RETRY = replace(DELIVERED, outcome="retry", settlement="retry_in", error_code="timeout", retry_in=5.0)
LANE = {"lane": "mail_outbox"}


class Heard(Telemetry):
    """Telemetry, and what a test asks it."""

    def __init__(self, level: int = 10) -> None:
        self.lines, self.now = LogLines(), 5.0
        super().__init__(
            make_logger("json", level, self.lines.stream), CollectorRegistry(), monotonic=lambda: self.now
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def labels(self, name: str, label: str) -> set[str]:
        found = [sample for metric in self.registry.collect() for sample in metric.samples]
        return {sample.labels[label] for sample in found if sample.name == name}


def test_a_lane_begins_with_zeros() -> None:
    """A counter that appears with its first event has not risen, as Prometheus sees it."""
    heard = Heard()
    heard.claimed("mail_outbox", 0, 0.001)
    for name in ("claimed", "retries", "dead", "lease_losses", "stale_settles", "rescues", "attempts_untold"):
        assert heard.value(f"homing_{name}_total", **LANE) == 0
    assert math.isnan(heard.value("homing_last_success_timestamp_seconds", **LANE) or 0)


def test_a_trouble_that_comes_with_every_batch_is_said_once_a_minute() -> None:
    heard = Heard()
    for seconds, lane, attempts in (
        (0.0, "mail_outbox", 3), (1.0, "mail_outbox", 2), (0.0, "open_events", 1), (58.9, "mail_outbox", 4),
        (0.2, "mail_outbox", 1), (30.0, "mail_outbox", 5),
    ):  # fmt: skip
        heard.now += seconds
        heard.attempts_untold(lane, attempts, DatabaseError("no such table"))
    said = [(line["lane"], line["rows"], line["error"]) for line in heard.lines.all("attempts.untold")]
    assert said == [
        ("mail_outbox", 3, "no such table"),
        ("open_events", 1, "no such table"),
        ("mail_outbox", 7, "no such table"),
    ]
    assert heard.value("homing_attempts_untold_total", **LANE) == 15, "each is counted"


def test_claims_and_successes_have_a_time() -> None:
    heard = Heard()
    before = time.time()
    heard.claimed("mail_outbox", 0, 0.001)
    heard.attempted(RETRY)
    assert before <= (heard.value("homing_last_claim_timestamp_seconds", **LANE) or 0) <= time.time()
    assert math.isnan(heard.value("homing_last_success_timestamp_seconds", **LANE) or 0)
    heard.attempted(DELIVERED)
    assert before <= (heard.value("homing_last_success_timestamp_seconds", **LANE) or 0) <= time.time()


@pytest.mark.parametrize(
    ("event", "counted"),
    [
        (DELIVERED, {}),
        (RETRY, {"retries": 1.0}),
        (replace(RETRY, settlement="bury"), {"dead": 1.0}),
        (replace(RETRY, outcome="skip", settlement="discard"), {}),
        (replace(RETRY, settlement="bury", settled=False), {"lease_losses": 1.0, "stale_settles": 1.0}),
        (replace(DELIVERED, settled=False), {"lease_losses": 1.0, "stale_settles": 1.0}),
    ],
)
def test_what_an_attempt_led_to_is_counted(event: Attempted, counted: dict[str, float]) -> None:
    heard = Heard()
    heard.attempted(event)
    names = ("retries", "dead", "lease_losses", "stale_settles")
    assert {n: v for n in names if (v := heard.value(f"homing_{n}_total", **LANE))} == counted
    code = event.error_code or ""
    assert heard.value("homing_attempts_total", **LANE, outcome=event.outcome, error_code=code) == 1


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0, 0.0), (0.0123456, 12.35), (1.000004, 1000.0), (90, 90000)]
)
def test_durations_are_shown_to_a_hundredth_of_a_millisecond(seconds: float, shown: float) -> None:
    heard = Heard()
    heard.attempted(replace(DELIVERED, seconds=seconds))
    (line,) = heard.lines.all("delivery.attempted")
    assert line["duration_ms"] == shown


def test_events_are_counted_also_when_nobody_reads_them() -> None:
    heard = Heard(level=50)
    heard.lease_lost("mail_outbox", 1, 1)
    heard.pruned("mail_outbox", "sent", 7)
    heard.crashed("delivery.crashed", ValueError(), lane="mail_outbox")
    assert heard.lines.all() == []
    found: dict[Any, Any] = {
        (event, level): heard.value("homing_log_events_total", event=event, level=level)
        for event, level in (
            ("lease.lost", "warning"),
            ("retention.pruned", "info"),
            ("delivery.crashed", "error"),
        )
    }
    assert set(found.values()) == {1.0}, found
    assert heard.value("homing_pruned_rows_total", **LANE, state="sent") == 7


def test_what_is_written_for_every_message_is_no_event_to_count() -> None:
    console = Telemetry(make_logger("console", 10, LogLines().stream), CollectorRegistry())
    for telemetry in (Heard(), console):
        telemetry.attempted(DELIVERED)
        telemetry.email_scheduled(1, 0, None, reason=None)
        samples = [s for metric in telemetry.registry.collect() for s in metric.samples]
        assert not [sample for sample in samples if sample.name == "homing_log_events_total"]


def test_targets_are_hosts_and_not_too_many() -> None:
    heard = Heard()
    for number in range(150):
        heard.breaker_opened(f"https://host-{number}.example:443#{number}")
        heard.breaker_opened("https://host-0.example:443#77")
    targets = heard.labels("homing_breaker_openings_total", "target")
    assert len(targets) == 101
    assert {"https://host-0.example:443", "other"} <= targets
    assert heard.value("homing_breaker_openings_total", target="https://host-0.example:443") == 151
    assert heard.value("homing_breaker_openings_total", target="other") == 50


def test_kinds_of_jobs_are_not_too_many() -> None:
    heard = Heard()
    for number in range(600):
        heard.job_settled("shop", f"order.{number}", "COMPLETED")
    assert len(heard.labels("homing_jobs_settled_total", "type")) == 501
    other = {"source": "other", "type": "other", "state": "COMPLETED"}
    assert heard.value("homing_jobs_settled_total", **other) == 100


def test_it_says_what_is_running() -> None:
    assert Heard().labels("homing_build_info", "version") == {__version__}
