"""uvicorn in our own event loop, with the signals left to us."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from litestar import Litestar

from homing.errors import HomingError
from homing.http.connection import Connection, Crowd, Limits

#: Open requests are given this many seconds when the server stops.
_SHUTDOWN_SLACK = 5
#: Connections that are accepted at once: each is a file before anybody looks at it.
_BACKLOG = 512
#: As many files as a process of ours can make use of.
_MOST_FILES = 65_536


@asynccontextmanager
async def serving(
    application: Litestar, host: str, port: int, limits: Limits | None = None
) -> AsyncIterator[str]:
    listener = listen(host, port)
    limits = limits or Limits()
    config = uvicorn.Config(
        application,
        http=Connection,
        # Else it would take a connection over from ours.
        ws="none",
        log_config=None,
        # What it warns of is what clients do wrong, as often as they like.
        log_level="error",
        access_log=False,
        # Who a proxy says that it asks for is the door's to judge (`Site.see_through`).
        proxy_headers=False,
        lifespan="off",
        backlog=_BACKLOG,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=_SHUTDOWN_SLACK,
    )
    # The other half is for databases, brokers and receivers.
    server = _Server(config, Crowd(limits, _raised_files() // 2, application.state.telemetry))
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
    """A server that leaves the signals to us, and knows who is connected."""

    def __init__(self, config: uvicorn.Config, crowd: Crowd) -> None:
        super().__init__(config)
        self.server_state = self._crowd = crowd

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % 10 == 0:
            self._crowd.pass_second()
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _raised_files() -> int:
    """How many files this process may open, after it has asked for as many as it may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


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
