"""Mails to send, and aiosmtpd as a peer that nobody here wrote."""

from __future__ import annotations

import asyncio
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trustme
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from homing.senders.mail import MailMessage
from homing.senders.smtp import Limits, Relay, SmtpSender
from homing.testing.smtp_sink import SmtpSink

#: So short that a test of a time-out is over at once, long enough for a busy machine to answer.
QUICK = Limits(connect=5, command=0.4, dot=0.4, deadline=10, idle=30, quit=1, chain=30, crowded=0.2)


def mail(*recipients: str, number: int = 1, **changes: Any) -> MailMessage:
    to = recipients or ("ann@example.org",)
    given: dict[str, Any] = {
        "message_id": f"<m{number}@example.org>",
        "date": datetime(2026, 3, 4, 12, 0, tzinfo=UTC),
        "sender": "Homing <no-reply@example.org>",
        "recipients": to,
        "to": to,
        "subject": "Hello",
        "text": "A line.\n.\n..two dots\nEnd.\n",
    }
    return MailMessage(**(given | changes))


def sender_to(peer: SmtpSink | str, *, limits: Limits | None = None, **options: Any) -> SmtpSender:
    url = peer if isinstance(peer, str) else peer.url
    return SmtpSender(Relay.from_url(url), limits=limits, **options)


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, and say which one it was if it never came."""
    for _ in range(12_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"waited in vain for {what}")


class Certificates:
    """An authority of our own, and server contexts signed by it."""

    def __init__(self, directory: Path) -> None:
        self._authority = trustme.CA()
        self.cafile = directory / "authority.pem"
        self._authority.cert_pem.write_to_path(self.cafile)

    def server(self, *names: str) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._authority.issue_cert(*names).configure_cert(context)
        return context


class _Inbox:
    """A handler of aiosmtpd that keeps envelopes and knows one user."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []

    async def handle_RCPT(  # noqa: N802  (the name is aiosmtpd's)
        self, server: SMTP, session: Session, envelope: Envelope, address: str, rcpt_options: list[str]
    ) -> str:
        if address.startswith("nobody@"):
            return "550 5.1.1 no such user here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802  (the name is aiosmtpd's)
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        self.envelopes.append(envelope)
        return "250 Message accepted for delivery"

    @staticmethod
    def check_login(
        server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: LoginPassword
    ) -> AuthResult:
        return AuthResult(success=(data.login, data.password) == (b"ann", b"s3cret:/@"), handled=False)


class AiosmtpdPeer:
    def __init__(self, port: int, inbox: _Inbox) -> None:
        self.port = port
        self._inbox = inbox

    @property
    def envelopes(self) -> list[Envelope]:
        return self._inbox.envelopes

    @property
    def contents(self) -> list[bytes]:
        return [content for e in self.envelopes if isinstance(content := e.content, bytes)]


@contextmanager
def aiosmtpd_peer(
    *, implicit_tls: ssl.SSLContext | None = None, login: bool = False, **options: Any
) -> Iterator[AiosmtpdPeer]:
    """A server in a thread and an event loop of its own, so that it shares nothing with ours."""
    inbox = _Inbox()
    if login:
        options |= {"authenticator": inbox.check_login, "auth_required": True}
    loop = asyncio.new_event_loop()

    def protocol() -> SMTP:
        with warnings.catch_warnings():
            # It does not count TLS from the first byte as TLS, and warns of a login in the clear.
            warnings.simplefilter("ignore")
            return SMTP(inbox, hostname="peer.example", loop=loop, **options)

    server = loop.run_until_complete(loop.create_server(protocol, "127.0.0.1", 0, ssl=implicit_tls))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield AiosmtpdPeer(server.sockets[0].getsockname()[1], inbox)
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _stop(server: asyncio.Server) -> None:
    server.close()
    # Sessions run in tasks of their own, which must not outlive their loop.
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
