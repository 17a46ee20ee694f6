"""The private RabbitMQ: it starts, it keeps what is durable, and it ends with us."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import require

from homing.testing.components.obtain import Missing
from homing.testing.components.processes import free_port, wait_until
from homing.testing.components.rabbitmq import RabbitMqServer, obtain_rabbitmq, speaks_amqp, start_rabbitmq

kombu = pytest.importorskip("kombu")

HOLDER = """
import sys
from homing.testing.components.rabbitmq import start_rabbitmq
server = start_rabbitmq()
print(server.home, server.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[RabbitMqServer]:
    with require(start_rabbitmq()) as server:
        yield server


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _put(server: RabbitMqServer, queue: str, text: str) -> None:
    confirmed = {"confirm_publish": True}
    with kombu.Connection(server.url, transport_options=confirmed) as connection:
        connection.SimpleQueue(queue).put(text)


def _get(server: RabbitMqServer, queue: str) -> object:
    with kombu.Connection(server.url) as connection:
        message = connection.SimpleQueue(queue).get(timeout=60)
        message.ack()
        return message.payload


@pytest.mark.slow
def test_a_message_passes_through(rabbitmq: RabbitMqServer) -> None:
    _put(rabbitmq, "passing", "hello")
    assert _get(rabbitmq, "passing") == "hello"


@pytest.mark.slow
@pytest.mark.parametrize("immediate", [False, True], ids=["stop", "crash"])
def test_it_comes_back_at_the_same_address_with_what_was_confirmed(
    rabbitmq: RabbitMqServer, immediate: bool
) -> None:
    url = rabbitmq.url
    _put(rabbitmq, "kept", f"crashed: {immediate}")
    rabbitmq.stop(immediate=immediate)
    assert not rabbitmq.running()
    rabbitmq.start()
    assert rabbitmq.url == url
    assert _get(rabbitmq, "kept") == f"crashed: {immediate}"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of its sockets")
def test_it_listens_on_loopback_alone(rabbitmq: RabbitMqServer) -> None:
    addresses = [address for address, port in _listeners() if port in rabbitmq.ports]
    # Each port on IPv4, and that of epmd also on IPv6.
    assert len(addresses) >= 3
    assert set(addresses) <= {"0100007F", "00000000000000000000000001000000"}


def _listeners() -> Iterator[tuple[str, int]]:
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":
                address, _, port = local.partition(":")
                yield address, int(port, 16)


@pytest.mark.slow
def test_it_ends_with_its_holder_however_that_ends(rabbitmq: RabbitMqServer) -> None:
    # The fixture is there to skip where no RabbitMQ can be had, and must not be hit.
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    with holder:
        assert holder.stdout is not None
        home, port = holder.stdout.readline().split()
        assert speaks_amqp(int(port))
        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=60)
    wait_until(lambda: not Path(home).exists(), "ending the broker after its holder")
    assert not _listens(int(port))
    assert rabbitmq.running()


def test_what_cannot_be_had_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = obtain_rabbitmq()
    assert isinstance(refused, Missing)
    assert "no apt-get" in str(refused)


def test_a_closed_port_is_no_broker() -> None:
    assert not speaks_amqp(free_port())
