"""The limit: mails that are ready-made, sent by the least code that speaks pipelined SMTP.

Two writes and two waits per mail: the envelope (MAIL, RCPT and DATA in one), then the message. Nothing
is claimed, rendered, assembled, checked, logged or settled.
"""

from __future__ import annotations

import asyncio
from email.policy import SMTP
from functools import partial
from typing import cast

from homing.proof.bench.contender import CONNECTIONS, Job
from homing.proof.bench.sample_mails import SENDER, email_message, sample_mail

_DIFFERENT_MAILS = 100


class Limit:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._connections: list[_Connection] = []

    async def prepare(self) -> None:
        loop = asyncio.get_running_loop()
        mails = [_ready_made(number) for number in range(1, _DIFFERENT_MAILS + 1)]
        for first in range(CONNECTIONS):
            connection = _Connection(mails[first::CONNECTIONS])
            await loop.create_connection(partial(_itself, connection), "127.0.0.1", self._job.smtp_port)
            self._connections.append(connection)
        await asyncio.gather(*(connection.ended for connection in self._connections))

    async def deliver(self) -> int:
        shares = [len(range(first, self._job.mails, CONNECTIONS)) for first in range(CONNECTIONS)]
        return sum(
            await asyncio.gather(
                *(connection.send(share) for connection, share in zip(self._connections, shares, strict=True))
            )
        )

    async def close(self) -> None:
        for connection in self._connections:
            connection.transport.close()


def _itself(connection: _Connection) -> _Connection:
    return connection


def _ready_made(number: int) -> tuple[bytes, bytes]:
    mail = sample_mail(number)
    envelope = f"MAIL FROM:<{SENDER}>\r\nRCPT TO:<{mail.to}>\r\nDATA\r\n".encode()
    return envelope, email_message(mail).as_bytes(policy=SMTP) + b".\r\n"


class _Connection(asyncio.Protocol):
    """Counts reply lines and does not read them, but for the first digit of the last."""

    transport: asyncio.Transport

    def __init__(self, mails: list[tuple[bytes, bytes]]) -> None:
        self._mails = mails
        self._sent = 0
        self._wanted = 0
        self._lines = 0
        self._in_data = False
        self._greeted = False
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(b"EHLO bench.example\r\n")

    def send(self, count: int) -> asyncio.Future[int]:
        self.ended = asyncio.get_running_loop().create_future()
        self._wanted = self._sent + count
        self._next()
        return self.ended

    def _next(self) -> None:
        if self._sent == self._wanted:
            self.ended.set_result(self._wanted)
            return
        envelope, _ = self._mails[self._sent % len(self._mails)]
        self.transport.write(envelope)

    def data_received(self, data: bytes) -> None:
        if not self._greeted:
            self._greet(data)
            return
        self._lines += data.count(b"\n")
        if not self._in_data and self._lines == 3:
            self._lines, self._in_data = 0, True
            self.transport.write(self._mails[self._sent % len(self._mails)][1])
        elif self._in_data and self._lines:
            self._lines, self._in_data = 0, False
            self._accepted(data)

    def _accepted(self, data: bytes) -> None:
        if not data.startswith(b"250"):
            self.ended.set_exception(ConnectionError(f"the sink said {data!r}"))
            return
        self._sent += 1
        self._next()

    def _greet(self, data: bytes) -> None:
        """The last line of the answer to EHLO has a blank after its code."""
        if b"\r\n250 " in b"\r\n" + data:
            self._greeted = True
            self.ended.set_result(0)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("the sink hung up"))
