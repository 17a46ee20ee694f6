"""From a URL to a broker: what is wrong is said, and no secret with it."""

from __future__ import annotations

import importlib
from types import ModuleType
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.brokers.peers import bodies, receive, texts

from homing.brokers.address import identity, redacted
from homing.brokers.base import Publication, Queue
from homing.brokers.memory import MemoryBroker
from homing.brokers.open import open_broker
from homing.brokers.rabbitmq_queues import LONGEST_NAME, declarations_of, delay_of
from homing.brokers.sqs import SqsBroker, _batches
from homing.brokers.sqs_client import Endpoint
from homing.brokers.sqs_letters import entry_of, message_of, size_of
from homing.errors import SettingsError
from homing.telemetry import Telemetry


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("rabbitmq://host", "did you mean amqp"),
        ("amqp+ssl://host", "did you mean amqps"),
        ("memry://", "did you mean memory"),
        ("kafka://host", "known are memory"),
        ("", "no broker for nothing"),
        ("amqp://", "names no host"),
        ("amqp://u:hunter2@host:port/", "malformed"),
        ("sqs://key:hunter2@127.0.0.1/", "takes no user"),
        ("sqs://key:12/hunter2@127.0.0.1/", "takes no user"),
        ("sqs://127.0.0.1?regoin=x", "does not know regoin"),
    ],
)
async def test_what_is_wrong_with_a_url_is_said_without_its_secrets(url: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint) as refused:
        open_broker(url, Telemetry())
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "client", "extra"),
    [("amqp://host", "aio_pika", "rabbitmq"), ("sqs://127.0.0.1", "aiobotocore", "sqs")],
)
async def test_a_client_that_is_not_installed_is_named_with_its_extra(
    url: str, client: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> ModuleType:
        if name == client:
            raise ModuleNotFoundError(name)
        return importlib.import_module(name)

    monkeypatch.setattr("homing.brokers.open.import_module", missing)
    with pytest.raises(SettingsError, match=rf"pip install 'homing\[{extra}\]'"):
        open_broker(url, Telemetry())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://user:hunter2@host:5672/vhost", "amqp://host:5672"),
        ("amqps://host", "amqps://host"),
        ("amqp://u:hunter2@[::1]:5672/", "amqp://[::1]:5672"),
        ("amqp://user:12/hunter2@h/", "amqp://h"),
        ("amqp://user:12@hunter2/x@h:1/?heartbeat=5", "amqp://h:1"),
        ("amqp://user:12?hunter2@h/", "amqp://"),
        ("amqp://user:12#hunter2@h/", "amqp://"),
        ("amqp://u:hunter2@host:port", "amqp://"),
        ("u:hunter2@host", "a malformed URL"),
        ("u:hunter2://host", "a malformed URL"),
    ],
)
def test_an_address_is_shown_without_any_part_of_a_password(url: str, shown: str) -> None:
    assert redacted(url) == shown


_PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=4)


@given(_PASSWORDS)
def test_whatever_a_password_is_made_of_it_is_not_shown(password: str) -> None:
    assert redacted(f"amqp://user:{password}@host/") in {"amqp://host", "amqp://"}


async def test_one_memory_url_is_one_broker_and_another_is_another() -> None:
    url, queue = f"memory://{uuid4().hex}", Queue("q")
    publisher, reader, stranger = MemoryBroker(url), MemoryBroker(url), MemoryBroker(url + "x")
    await publisher.publish(queue, texts("met"))
    assert await stranger.depth(queue) == 0
    await publisher.close()
    assert bodies(await receive(await reader.consume(queue, 1), 1)) == [b"met"]
    await reader.close()
    assert await MemoryBroker(url).depth(queue) == 0, "gone with the last who had it open"


async def test_a_double_is_known_for_five_minutes() -> None:
    now = 0.0
    broker, queue = MemoryBroker(f"memory://{uuid4().hex}", lambda: now), Queue("q")
    once = [Publication(b"x", dedup="d")]
    await broker.publish(queue, once)
    now = 299.0
    await broker.publish(queue, once)
    assert await broker.depth(queue) == 1
    now = 301.0
    await broker.publish(queue, once)
    assert await broker.depth(queue) == 2


# ── SQS ──────────────────────────────────────────────────────────────────────────────────────────


def test_loopback_is_plain_http_with_any_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert Endpoint.from_url("sqs://localhost:4566") == Endpoint(
        "http://localhost:4566", "us-east-1", ("homing", "homing")
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "theirs")
    assert Endpoint.from_url("sqs://127.0.0.1:1?region=eu-west-1").credentials is None


def test_elsewhere_it_is_https_and_needs_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(SettingsError, match="needs a region"):
        Endpoint.from_url("sqs://")
    there = Endpoint.from_url("sqs://vpce.example.com?region=eu-west-1")
    assert there == Endpoint("https://vpce.example.com", "eu-west-1")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert Endpoint.from_url("sqs://") == Endpoint(None, "eu-north-1")


@pytest.mark.slow
async def test_an_sqs_that_is_away_is_a_failure() -> None:
    broker = SqsBroker(Endpoint("http://127.0.0.1:1", "us-east-1", ("a", "b")), Telemetry())
    try:
        [failure] = await broker.publish(Queue("q"), texts("x"))
        assert failure is not None
        assert failure.code == "broker_unreachable"
        assert await broker.check() is not None
        assert await broker.depth(Queue("q")) is None
    finally:
        await broker.close()


@given(body=st.binary(max_size=200), group=st.text(min_size=1, max_size=200), fifo=st.booleans())
def test_every_body_and_group_survives_the_way_through_sqs(body: bytes, group: str, fifo: bool) -> None:
    entry = entry_of(Publication(body, group.encode(errors="replace").decode()), fifo=fifo)
    assert entry["MessageBody"]
    received = {
        "Body": entry["MessageBody"],
        "MessageAttributes": entry.get("MessageAttributes", {}),
        "Attributes": {"MessageGroupId": entry["MessageGroupId"]} if fifo else {},
    }
    message = message_of(received, None)
    assert message.body == body
    if group.isprintable() and group.isascii():
        assert message.group == group


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=40))
def test_batches_are_no_larger_than_sqs_takes(sizes: list[int]) -> None:
    lane = [(index, {"MessageBody": "x" * size}) for index, size in enumerate(sizes)]
    batches = list(_batches(lane))
    assert [numbered for batch in batches for numbered in batch] == lane
    for batch in batches:
        assert len(batch) <= 10
        assert len(batch) == 1 or sum(size_of(entry) for _, entry in batch) <= 256 * 1024


# ── RabbitMQ ─────────────────────────────────────────────────────────────────────────────────────


@given(st.floats(0.001, 3600))
def test_a_delay_is_rounded_up_by_a_quarter_at_most(delay: float) -> None:
    declared = delay_of(Queue("q"), delay)
    seconds = declared.arguments["x-message-ttl"] / 1000
    assert delay <= seconds + 1e-3
    assert seconds <= max(delay * 1.25, 0.1) + 2e-3
    # Nobody may delete it while something is in it that was put there in time.
    assert declared.arguments["x-expires"] / 1000 >= seconds + declared.keeps


def test_a_delay_beyond_an_hour_is_an_hour() -> None:
    assert delay_of(Queue("q"), 1e6).arguments["x-message-ttl"] == 3_600_000


@given(st.text(min_size=1, max_size=255), st.floats(0.001, 4000))
def test_a_queue_of_delayed_messages_has_a_name_that_is_short_enough(name: str, delay: float) -> None:
    name = name.encode(errors="replace").decode()
    while len(name.encode()) > LONGEST_NAME:
        name = name[:-1]
    declared = delay_of(Queue(name), delay)
    assert len(declared.name.encode()) <= LONGEST_NAME
    assert declared.arguments["x-dead-letter-routing-key"] == name


def test_dead_letters_are_declared_before_what_points_to_them() -> None:
    first, second = declarations_of(Queue("q", dead_letters="d", delivery_limit=20))
    assert (first.name, second.name) == ("d", "q")
    assert first == declarations_of(Queue("d"))[0], "whoever reads them declares the same"
    assert second.arguments["x-delivery-limit"] == 19


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://user:geheim@host:5672/shop", "amqp://host:5672/shop"),
        ("amqp://user:geheim@host", "amqp://host"),
        ("amqp://user:geheim@host//", "amqp://host"),
        ("amqp://user:geheim@host/%2F?heartbeat=5", "amqp://host"),
        ("amqp://user:ge/heim@host/shop", "amqp://host/shop"),
        ("amqp://user:ge?h@eim@host/shop", "amqp://"),
        ("memory://", "memory://"),
        ("sqs://key:geheim@localhost:9324/x", "sqs://localhost:9324/x"),
    ],
)
def test_a_broker_is_known_by_its_place_and_virtual_host_without_a_password(url: str, shown: str) -> None:
    assert identity(url) == shown
