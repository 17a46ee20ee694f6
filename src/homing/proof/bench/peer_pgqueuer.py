"""pgqueuer, a job queue on PostgreSQL: a mail entrypoint, jobs fetched and finished in batches of 100."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

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


class QueueInPostgres:
    """pgqueuer with one entrypoint, and jobs that are all put in before the first one is done."""

    def __init__(self, url: str, entrypoint: Callable[[bytes], Awaitable[None]]) -> None:
        self._url = url
        self._entrypoint = entrypoint
        self._jobs = self._done = 0

    async def open(self, payloads: Sequence[bytes | None]) -> None:
        self._connection = await asyncpg.connect(self._url)
        self._queue = PgQueuer.from_asyncpg_connection(self._connection)
        queries = Queries(self._queue.connection)
        await queries.install()
        # Their advice for busy queues.
        await queries.optimize_autovacuum()
        for first in range(0, len(payloads), _ENQUEUED_AT_ONCE):
            some = list(payloads[first : first + _ENQUEUED_AT_ONCE])
            await queries.enqueue(["send"] * len(some), some, [0] * len(some))
        self._jobs = len(payloads)
        self._queue.entrypoint("send")(self._do)

    async def _do(self, job: QueuedJob) -> None:
        await self._entrypoint(job.payload or b"")
        self._done += 1
        if self._done == self._jobs:
            # Its own end comes after a pause for new work, which would be charged to it.
            self._queue.shutdown.set()

    async def drain(self) -> int:
        await self._queue.qm.run(batch_size=_BATCH)
        return self._done

    async def close(self) -> None:
        await self._connection.close()


class PgQueuerPeer:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._smtp = SmtpConnections(job.smtp_port)
        self._queue = QueueInPostgres(job.postgres_url, self._send)

    async def prepare(self) -> None:
        await self._queue.open([msgspec.json.encode(mail) for mail in sample_mails(self._job.mails)])
        await self._smtp.open()

    async def _send(self, payload: bytes) -> None:
        await self._smtp.send(msgspec.json.decode(payload, type=SampleMail))

    async def deliver(self) -> int:
        return await self._queue.drain()

    async def close(self) -> None:
        await self._smtp.close()
        await self._queue.close()
