"""Every kind of broker for the tests of the seam."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from tests.brokers.peers import Peer


def _url(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == "memory":
        return f"memory://{uuid4().hex}"
    url: str = request.getfixturevalue(f"{kind}_url")
    return url


async def _opened(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    peer = Peer(request.param, _url(request.param, request))
    yield peer
    await peer.close()


@pytest.fixture(params=["memory", "rabbitmq", "sqs"])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    """The test runs once with each."""
    async for peer in _opened(request):
        yield peer


@pytest.fixture(params=["memory", "sqs"])
async def ordered_peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    """Those that keep groups in order, know doubles, and hide a message for a time.

    RabbitMQ promises none of it: there a message is hidden as long as the channel of its holder lives.
    """
    async for peer in _opened(request):
        yield peer


@pytest.fixture(params=["rabbitmq", "sqs"])
async def remote_peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    """Those that are reached by a connection, which can be lost."""
    async for peer in _opened(request):
        yield peer
