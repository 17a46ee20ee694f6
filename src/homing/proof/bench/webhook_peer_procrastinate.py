"""procrastinate with an async webhook task: aiohttp, a hundred of them at a time."""

from __future__ import annotations

from homing.proof.bench.peer_procrastinate import TasksInPostgres
from homing.proof.bench.sample_jobs import SampleJob, sample_jobs
from homing.proof.bench.webhook_client import WebhookClient
from homing.proof.bench.webhook_contender import CONCURRENCY, WebhookJob


class Procrastinate:
    def __init__(self, job: WebhookJob) -> None:
        self._job = job
        self._client = WebhookClient(job.sink_port)
        self._tasks = TasksInPostgres(job.postgres_url, CONCURRENCY, self._send)

    async def _send(self, id: str, url: str, payload: str) -> None:
        await self._client.send(SampleJob(id, url, payload))

    async def prepare(self) -> None:
        await self._tasks.open(sample_jobs(self._job.jobs, self._job.sink_port))
        await self._client.open()

    async def deliver(self) -> int:
        return await self._tasks.drain()

    async def close(self) -> None:
        await self._client.close()
        await self._tasks.close()
