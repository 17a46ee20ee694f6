"""OTLP over HTTP to a collector of ours, which may be away, silent or angry; settings that cannot be met."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.outbox import LogLines

from homing.app import Homing
from homing.errors import SettingsError
from homing.lanes.mail_outbox.orders import MailRequest, order_of
from homing.parts.signals import make_telemetry
from homing.settings import load_settings
from homing.testing.http_sink import Answer, HttpSink, SinkRequest
from homing.tracing import Tracing, make_tracing

NOWHERE = "http://127.0.0.1:9"


def exported(requests: list[SinkRequest]) -> list[tuple[str, str]]:
    """(service, span) of all that came."""
    found = []
    for request in requests:
        assert request.path == "/v1/traces"
        parsed = ExportTraceServiceRequest.FromString(request.body)
        for resource in parsed.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            spans = [span.name for scope in resource.scope_spans for span in scope.spans]
            found += [(names["service.name"], span) for span in spans]
    return found


def create(tracing: Tracing, count: int = 1) -> None:
    for _ in range(count):
        with tracing.creating("mail_outbox"):
            pass


@pytest.fixture(autouse=True)
def no_other_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    yield
    # The exporter goes on in threads of its own, which use `random`: a test of Hypothesis would notice.
    for thread in threading.enumerate():
        if thread.name.lower().startswith("otel"):
            thread.join(20)
            assert not thread.is_alive()
    # Its connections are left to the garbage collector, which would complain in some other test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def test_spans_reach_a_collector(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with HttpSink() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        flags = {"database_url": sqlite_url, "tracing": "otlp", "mail_url": "memory://"}
        homing = Homing(load_settings({**flags, "encryption_key": "A" * 43 + "="}, environ={}))
        await homing.migrate()
        orders = homing.mails_part.orders
        await orders.place(order_of(MailRequest(to="ann@example.org", text="Hello.")))
        await homing.mail.deliverer.settled(await homing.mail.deliverer.run_batch(10))
        # The end waits for what was not told yet.
        await homing.close()
        names = ("create", "receive", "process", "settle")
        assert set(exported(collector.requests)) == {("homing", f"{name} mail_outbox") for name in names}


async def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    async with HttpSink() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "shop-mails")
        tracing = make_tracing("otlp", 1.0)
        create(tracing)
        await tracing.close(10)
        assert exported(collector.requests) == [("shop-mails", "create mail_outbox")]


@pytest.mark.parametrize("collector", ["away", "silent", "angry"])
async def test_a_collector_that_does_not_take_them_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, collector: str
) -> None:
    heard: list[str] = []
    answer = Answer(silent=True) if collector == "silent" else Answer(status=503)
    async with HttpSink(lambda _: answer) as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", NOWHERE if collector == "away" else sink.url)
        tracing = make_tracing("otlp", 1.0, heard.append)
        # More than are kept: the oldest are dropped, and nobody waits.
        create(tracing, 3000)
        began = time.monotonic()
        await tracing.close(0.3)
        assert time.monotonic() - began < 5
    assert len(heard) <= 1, "not with every batch"
    assert not any("127.0.0.1" in words for words in heard)


async def test_the_log_says_once_that_nobody_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", NOWHERE)
    log = LogLines()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", log.stream)
        telemetry = make_telemetry(load_settings({"tracing": "otlp", "log_format": "json"}, environ={}))
        create(telemetry.tracing, 600)
        await telemetry.tracing.close(0.3)
    (line,) = log.all("tracing.failed")
    assert line["level"] == "warning"


def without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "homing.tracing.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)


def test_without_the_extra_the_command_that_mends_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    without_opentelemetry(monkeypatch)
    with pytest.raises(SettingsError, match=r"pip install 'homing\[otel\]'"):
        make_tracing("otlp", 1.0)
    assert make_tracing("off", 1.0).spans is None


def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(SettingsError, match="http/protobuf"):
        make_tracing("otlp", 1.0)


def test_variables_that_cannot_be_met_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    with pytest.raises(SettingsError, match="OTEL_"):
        make_tracing("otlp", 1.0)


def test_off_it_is_not_even_imported() -> None:
    code = "import sys, homing.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    done: Any = subprocess.run([sys.executable, "-c", code], check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0
