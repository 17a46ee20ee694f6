"""pgqueuer, a job queue on PostgreSQL: a mail entrypoint, jobs fetched and finished in batches of 100."""

from __future__ import annotations

import asyncpg
import msgspec
from pgqueuer import PgQueuer
from pgqueuer.models import Job as QueuedJob
from pgqueuer.queries import Queries

from homing.proof.bench.contender import Job
from homing.proof.bench.peer_smtp import SmtpConnections
from homing.proof.bench.sample_mails import SampleMail, sample_mails

_BATCH = 100
_ENQUEUED_AT_ONCE = 1000


class PgQueuerPeer:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._smtp = SmtpConnections(job.smtp_port)
        self._delivered = 0

    async def prepare(self) -> None:
        self._connection = await asyncpg.connect(self._job.postgres_url)
        self._queue = PgQueuer.from_asyncpg_connection(self._connection)
        queries = Queries(self._queue.connection)
        await queries.install()
        # Their advice for busy queues.
        await queries.optimize_autovacuum()
        payloads: list[bytes | None] = [msgspec.json.encode(mail) for mail in sample_mails(self._job.mails)]
        for first in range(0, len(payloads), _ENQUEUED_AT_ONCE):
            some = payloads[first : first + _ENQUEUED_AT_ONCE]
            await queries.enqueue(["send_mail"] * len(some), some, [0] * len(some))
        self._queue.entrypoint("send_mail")(self._send)
        await self._smtp.open()

    async def _send(self, job: QueuedJob) -> None:
        await self._smtp.send(msgspec.json.decode(job.payload or b"", type=SampleMail))
        self._delivered += 1
        if self._delivered == self._job.mails:
            # Its own end comes after a pause for new work, which would be charged to it.
            self._queue.shutdown.set()

    async def deliver(self) -> int:
        await self._queue.qm.run(batch_size=_BATCH)
        return self._delivered

    async def close(self) -> None:
        await self._smtp.close()
        await self._connection.close()
