"""pgqueuer with a webhook entrypoint: aiohttp, jobs fetched and finished in batches of 100."""

from __future__ import annotations

import msgspec

from homing.proof.bench.peer_pgqueuer import QueueInPostgres
from homing.proof.bench.sample_jobs import SampleJob, sample_jobs
from homing.proof.bench.webhook_client import WebhookClient
from homing.proof.bench.webhook_contender import WebhookJob


class PgQueuerPeer:
    def __init__(self, job: WebhookJob) -> None:
        self._job = job
        self._client = WebhookClient(job.sink_port)
        self._queue = QueueInPostgres(job.postgres_url, self._send)

    async def prepare(self) -> None:
        jobs = sample_jobs(self._job.jobs, self._job.sink_port)
        await self._queue.open([msgspec.json.encode(job) for job in jobs])
        await self._client.open()

    async def _send(self, payload: bytes) -> None:
        await self._client.send(msgspec.json.decode(payload, type=SampleJob))

    async def deliver(self) -> int:
        return await self._queue.drain()

    async def close(self) -> None:
        await self._client.close()
        await self._queue.close()
