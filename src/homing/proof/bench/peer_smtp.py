"""What the peers send with: `EmailMessage` and aiosmtplib, on connections that stay open."""

from __future__ import annotations

import asyncio

import aiosmtplib

from homing.proof.bench.contender import CONNECTIONS
from homing.proof.bench.sample_mails import SampleMail, email_message


class SmtpConnections:
    """As many as everybody has; whoever finds none free waits for one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: asyncio.LifoQueue[aiosmtplib.SMTP] = asyncio.LifoQueue()

    async def open(self) -> None:
        for _ in range(CONNECTIONS):
            client = aiosmtplib.SMTP(hostname="127.0.0.1", port=self._port, start_tls=False)
            await client.connect()
            self._free.put_nowait(client)

    async def send(self, mail: SampleMail) -> None:
        client = await self._free.get()
        try:
            await client.send_message(email_message(mail))
        finally:
            self._free.put_nowait(client)

    async def close(self) -> None:
        while not self._free.empty():
            self._free.get_nowait().close()
