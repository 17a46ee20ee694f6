"""What a consumer of SQS believes of the messages that it holds."""

from __future__ import annotations

import pytest
from tests.brokers.peers import Peer, receive, texts

from homing.brokers.sqs_consumer import SqsConsumer

pytest.importorskip("ministack")


@pytest.mark.slow
async def test_a_message_is_held_longer_only_when_the_service_has_heard_so(sqs_url: str) -> None:
    peer = Peer("sqs", sqs_url)
    queue, broker = peer.queue(visibility=30.0), peer.open()
    await broker.publish(queue, texts("x"))
    consumer = await broker.consume(queue, 10)
    assert isinstance(consumer, SqsConsumer)
    messages = await receive(consumer, 1)
    (held,) = consumer._held.values()
    first = held.until
    await consumer.extend(messages, 60.0)
    second = held.until
    assert second > first + 20
    await peer.delete(queue)
    await consumer.extend(messages, 600.0)
    assert held.until == second, "others may see it before, and we must not think otherwise"
    await peer.close()


@pytest.mark.slow
async def test_of_a_batch_only_what_was_not_refused_counts_as_extended(
    sqs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer("sqs", sqs_url)
    queue, broker = peer.queue(), peer.open()
    await broker.publish(queue, texts("a", "b"))
    consumer = await broker.consume(queue, 10)
    assert isinstance(consumer, SqsConsumer)
    messages = await receive(consumer, 2)
    before = [message.receipt.until for message in messages]
    client = await consumer._connection.client()

    async def refuse_second(**_: object) -> dict[str, object]:
        return {"Failed": [{"Id": "1", "Code": "InternalError", "SenderFault": False}]}

    monkeypatch.setattr(client, "change_message_visibility_batch", refuse_second)
    await consumer.extend(messages, 600.0)
    after = [message.receipt.until for message in messages]
    assert after[0] > before[0] + 500
    assert after[1] == before[1]
    monkeypatch.undo()
    await peer.close()
