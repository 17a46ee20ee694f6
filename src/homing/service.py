"""Running until told to stop: the API, the workers, or both in one process."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from ipaddress import ip_address

import uvicorn
from litestar import Litestar

from homing.app import Homing
from homing.errors import HomingError, SettingsError

_SHUTDOWN_SLACK = 5


class Stop:
    """The first SIGTERM or Ctrl-C asks for a graceful end, the second for an immediate one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)

    def ask(self) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()


async def run(homing: Homing, stop: Stop, *, api: bool, work: bool, ready: Callable[[str], None]) -> None:
    """Serve and work until stopped; then finish what has begun within the grace time."""
    async with _serving(homing, api=api) as address, _maintaining(homing):
        worker = homing.worker() if work else None
        working = asyncio.create_task(worker.run()) if worker else None
        ready(address)
        await _until_asked(stop, working)
        homing.telemetry.log.info("service.stopping", grace_seconds=homing.settings.grace_seconds)
        if worker and working:
            worker.stop()
            await working
        await _drain(homing, stop)
    homing.telemetry.log.info("service.stopped")


async def _until_asked(stop: Stop, working: asyncio.Task[None] | None) -> None:
    """Also when the worker has ended by a bug: a process that claims no more must not look alive."""
    asked = asyncio.create_task(stop.asked.wait())
    await asyncio.wait({asked, working} if working else {asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()


async def drain_once(homing: Homing, stop: Stop) -> int:
    """Deliver what is due, and end: `homing work --once`."""
    await homing.maintenance.once()
    worker = homing.worker()
    drained = asyncio.create_task(worker.drain())
    asked = asyncio.create_task(stop.asked.wait())
    await asyncio.wait({drained, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not drained.done():
        worker.stop()
        await _drain(homing, stop)
        # A claim that was under way when the stop came may have brought more.
        await drained
        await _drain(homing, stop)
    return await drained


async def _drain(homing: Homing, stop: Stop) -> None:
    draining = asyncio.create_task(homing.deliverer.drain(homing.settings.grace_seconds))
    insisted = asyncio.create_task(stop.insisted.wait())
    await asyncio.wait({draining, insisted}, return_when=asyncio.FIRST_COMPLETED)
    insisted.cancel()
    if not draining.done():
        # Even an immediate end gives back what it holds, so that nobody waits for the leases.
        draining.cancel()
        with suppress(asyncio.CancelledError):
            await draining
        await homing.deliverer.drain(0)


@asynccontextmanager
async def _maintaining(homing: Homing) -> AsyncIterator[None]:
    task = asyncio.create_task(homing.maintenance.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _serving(homing: Homing, *, api: bool) -> AsyncIterator[str]:
    """The API, or for a worker with `HOMING_METRICS_PORT` its metrics, or nothing."""
    settings = homing.settings
    if api:
        async with serving(homing.asgi(), settings.host, settings.port) as address:
            yield address
    elif settings.metrics_port:
        async with serving(homing.metrics_asgi(), settings.host, settings.metrics_port) as address:
            yield address
    else:
        yield ""


@asynccontextmanager
async def serving(application: Litestar, host: str, port: int) -> AsyncIterator[str]:
    listener = listen(host, port)
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_SHUTDOWN_SLACK,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://{_bracketed(host)}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


class _Server(uvicorn.Server):
    """A server that leaves the signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; says what to do when it cannot be had."""
    require_loopback(host)
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


def require_loopback(host: str) -> None:
    """There are no access keys yet, so whoever reaches the port may do everything."""
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise SettingsError(
            f"HOMING_HOST={host} is not a loopback address: this version has no access keys, so it serves "
            "only 127.0.0.1, ::1 or localhost; put a proxy with authentication in front of it"
        )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
