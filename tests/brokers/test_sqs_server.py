"""The private SQS: it answers on loopback, and ends with us."""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path

import pytest
from tests.brokers.peers import bodies, receive, texts
from tests.conftest import require

from homing.brokers.base import Queue
from homing.brokers.open import open_broker
from homing.telemetry import Telemetry
from homing.testing.components.obtain import Missing
from homing.testing.components.shared import shared_url
from homing.testing.components.sqs import SqsServer, start_sqs

pytest.importorskip("ministack")


@pytest.mark.slow
async def test_it_answers_and_is_gone_when_it_is_closed(sqs_url: str) -> None:
    # The fixture is there so that this runs where servers may be started.
    with require(start_sqs()) as server:
        assert isinstance(server, SqsServer)
        broker = open_broker(server.url, Telemetry())
        await broker.publish(Queue("q"), texts("hello"))
        assert bodies(await receive(await broker.consume(Queue("q"), 1), 1)) == [b"hello"]
        await broker.close()
        assert _addresses(server.port) in ({"0100007F"}, set())
    assert not server.home.exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0


def _addresses(port: int) -> set[str]:
    """Where somebody listens on the port, as far as the system tells."""
    if sys.platform != "linux":
        return set()
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {line[1].split(":")[0] for line in lines if line[3] == "0A" and int(line[1][-4:], 16) == port}


def test_what_cannot_be_had_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    refused = start_sqs()
    assert isinstance(refused, Missing)
    assert "ministack" in str(refused)


def test_the_one_that_the_environment_names_is_used_instead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOMING_TEST_SQS_URL", "sqs://127.0.0.1:1")
    assert shared_url(tmp_path, "sqs", start_sqs) == "sqs://127.0.0.1:1"
