"""The loop that many teams have: claim some rows, build an `EmailMessage`, send, mark the row.

On Homing's own table, with twenty mails under way. It claims a hundred at a time, which is more than
most of these loops do, and settles each mail when it is sent.
"""

from __future__ import annotations

import asyncio

import asyncpg

from homing.app import Homing
from homing.proof.bench.contender import CONNECTIONS, Job
from homing.proof.bench.homing_worker import settings_for
from homing.proof.bench.peer_smtp import SmtpConnections
from homing.proof.bench.sample_mails import SampleMail, fill_outbox

_CLAIM = """
UPDATE mail_outbox SET status = 'dispatching', last_attempt_at = now()
WHERE id IN (
    SELECT id FROM mail_outbox WHERE status = 'queued' AND next_attempt_at <= now()
    ORDER BY next_attempt_at, id LIMIT 100 FOR UPDATE SKIP LOCKED)
RETURNING id, to_address, subject, text_body, html_body
"""
_SETTLE = "UPDATE mail_outbox SET status = 'sent', sent_at = now() WHERE id = $1"


class Loop:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._smtp = SmtpConnections(job.smtp_port)
        self._delivered = 0

    async def prepare(self) -> None:
        homing = Homing(settings_for(self._job.postgres_url, self._job.smtp_port))
        await homing.migrate()
        await fill_outbox(homing.database, self._job.mails)
        await homing.close()
        self._pool = await asyncpg.create_pool(self._job.postgres_url, min_size=4, max_size=4)
        await self._smtp.open()

    async def deliver(self) -> int:
        rows: asyncio.Queue[asyncpg.Record | None] = asyncio.Queue(maxsize=100)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claim(rows))
            for _ in range(CONNECTIONS):
                group.create_task(self._send_from(rows))
        return self._delivered

    async def _claim(self, rows: asyncio.Queue[asyncpg.Record | None]) -> None:
        while claimed := await self._pool.fetch(_CLAIM):
            for row in claimed:
                await rows.put(row)
        for _ in range(CONNECTIONS):
            await rows.put(None)

    async def _send_from(self, rows: asyncio.Queue[asyncpg.Record | None]) -> None:
        while (row := await rows.get()) is not None:
            mail = SampleMail(row["to_address"], row["subject"], row["text_body"], row["html_body"])
            await self._smtp.send(mail)
            await self._pool.execute(_SETTLE, row["id"])
            self._delivered += 1

    async def close(self) -> None:
        await self._smtp.close()
        await self._pool.close()
