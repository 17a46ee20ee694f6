"""uvicorn in our own event loop, with the signals left to us."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from litestar import Litestar

from homing.errors import HomingError

#: Open requests are given this many seconds when the server stops.
_SHUTDOWN_SLACK = 5


@asynccontextmanager
async def serving(application: Litestar, host: str, port: int) -> AsyncIterator[str]:
    listener = listen(host, port)
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        # Who a proxy says that it asks for is the door's to judge (`Site.see_through`).
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=_SHUTDOWN_SLACK,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://{_bracketed(host)}:{listener.getsockname()[1]}"
    finally:
        await _close_pages(application)
        server.should_exit = True
        await task
        listener.close()


async def _close_pages(application: Litestar) -> None:
    """What pages keep open ends first: a stream would hold the server until its patience ends."""
    for close in application.state.get("closing", ()):
        await close()


class _Server(uvicorn.Server):
    """A server that leaves the signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; says what to do when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise HomingError(f"port {port} is in use; choose another with --port or HOMING_PORT") from None
        raise HomingError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.listen(2048)
    return listener


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
