"""What the doctor learns of a broker."""

from __future__ import annotations

from tests.brokers.peers import Peer, texts

from homing.brokers.findings import broker_findings
from homing.brokers.open import open_broker
from homing.telemetry import Telemetry
from homing.testing.components.processes import free_port


async def test_a_broker_that_answers_tells_how_much_waits(peer: Peer) -> None:
    broker, queue = peer.open(), peer.queue()
    await broker.publish(queue, texts("a", "b"))
    well, waiting = await broker_findings(broker, "HOMING_BROKER_URL", [queue])
    assert well == (f"broker {peer.name}", True, "answers")
    assert waiting[:2] == (f"queue {queue.name}", True)
    assert waiting[2].endswith("messages wait")


async def test_a_broker_that_is_away_is_named_with_the_setting() -> None:
    for url in (f"amqp://user:password@127.0.0.1:{free_port()}/", f"sqs://127.0.0.1:{free_port()}"):
        broker = open_broker(url, Telemetry())
        ((_, well, detail),) = await broker_findings(broker, "HOMING_BROKER_URL", [])
        assert not well
        assert "check HOMING_BROKER_URL" in detail
        assert "password" not in detail
        await broker.close()
