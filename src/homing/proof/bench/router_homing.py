"""Homing with a broker: jobs whose messages lie in a queue, taken from there by the router and delivered.

The same jobs, settings and sink as in the race of webhooks. The pool may run as many at once as the polling
worker has POSTs under way.
"""

from __future__ import annotations

import asyncio

import asyncpg

from homing.app import Homing
from homing.errors import HomingError
from homing.proof.bench.homing_worker import settings_for
from homing.proof.bench.webhook_contender import CONCURRENCY, WebhookJob
from homing.proof.bench.webhook_homing import fill_jobs, webhook_settings
from homing.proof.chaos.waiting import until
from homing.settings import Settings

_PATIENCE = 300.0
_LAST_CALLS = 30.0
_OPEN = "SELECT count(*) FROM dispatch_job WHERE status IN ('PENDING', 'FAILED', 'IN_PROGRESS')"


class Routed:
    def __init__(self, job: WebhookJob) -> None:
        self._job = job

    async def prepare(self) -> None:
        """Fill the table, and have the messages of all sent."""
        settings = self._settings()
        first = Homing(settings)
        await first.migrate()
        await fill_jobs(first, self._job.jobs, self._job.sink_port)
        assert first.queueing is not None, "with a broker jobs are queued"
        await first.queueing.worker().drain()
        await first.queueing.deliverer.drain(_LAST_CALLS)
        await first.close()
        self._homing = Homing(settings)
        await self._homing.require_schema()
        self._watching = await asyncpg.connect(self._job.postgres_url)

    def _settings(self) -> Settings:
        assert self._job.broker_url is not None, "a router has a broker"
        plain = webhook_settings(self._job.postgres_url)
        return settings_for(
            self._job.postgres_url,
            self._job.sink_port,
            HOMING_JOBS_CONNECTIONS_PER_TARGET=str(CONCURRENCY),
            HOMING_JOBS_POOL_CONCURRENCY=str(CONCURRENCY),
            HOMING_JOBS_BROKER_URL=self._job.broker_url,
            HOMING_ENCRYPTION_KEY=str(plain.encryption_key),
        )

    async def deliver(self) -> int:
        router = self._homing.router
        assert router is not None, "with a broker there is a router"
        self._routing = asyncio.create_task(router.run())
        if not await until(self._all_ended, _PATIENCE):
            raise HomingError(f"jobs were still open after {_PATIENCE:g} s")
        return self._job.jobs

    async def _all_ended(self) -> bool:
        return not await self._watching.fetchval(_OPEN)

    async def close(self) -> None:
        """What is still to be deleted from the queue is, for the next round has the same queue."""
        router = self._homing.router
        assert router is not None, "with a broker there is a router"
        await router.drain(_LAST_CALLS)
        await self._routing
        await self._homing.webhooks.deliverer.drain(0)
        counts = await self._homing.jobs.counts()
        assert counts["COMPLETED"] == self._job.jobs, f"not all were completed: {counts}"
        await self._watching.close()
        await self._homing.close()
