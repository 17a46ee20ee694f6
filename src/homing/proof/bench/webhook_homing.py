"""Homing itself: one worker, every index in place, logs and metrics on, each job signed and its attempt kept.

All settings are at their defaults, but that it may have as many POSTs under way as the others.
"""

from __future__ import annotations

import base64
import tempfile

from homing.app import Homing
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.target import target_of
from homing.proof.bench.homing_worker import settings_for
from homing.proof.bench.sample_jobs import BEARER_TOKEN, SIGNING_SECRET, SampleJob, sample_jobs
from homing.proof.bench.webhook_contender import CONCURRENCY, WebhookJob
from homing.settings import Settings

_NO_MAILS = 25
_AT_ONCE = 1000


class OnPostgres:
    def __init__(self, job: WebhookJob) -> None:
        self._job = job
        self._folder = tempfile.TemporaryDirectory(prefix="homing-bench-")

    def database_url(self) -> str:
        return self._job.postgres_url

    async def prepare(self) -> None:
        settings = webhook_settings(self.database_url())
        first = Homing(settings)
        await first.migrate()
        await fill_jobs(first, self._job.jobs, self._job.sink_port)
        await first.close()
        self._homing = Homing(settings)
        await self._homing.require_schema()

    async def deliver(self) -> int:
        # A job that waited too long for its turn is claimed again, so claims may be more than jobs.
        await self._homing.webhooks.worker().drain()
        return self._job.jobs

    async def close(self) -> None:
        counts = await self._homing.jobs.counts()
        assert counts["COMPLETED"] == self._job.jobs, f"not all were completed: {counts}"
        await self._homing.webhooks.deliverer.drain(0)
        await self._homing.close()
        self._folder.cleanup()


class OnSqlite(OnPostgres):
    """In a file on the disk that temporary files are on, synchronous=FULL as always."""

    def database_url(self) -> str:
        return f"sqlite:///{self._folder.name}/homing.db"


def webhook_settings(database_url: str) -> Settings:
    return settings_for(
        database_url,
        _NO_MAILS,
        HOMING_JOBS_CONNECTIONS_PER_TARGET=str(CONCURRENCY),
        HOMING_ENCRYPTION_KEY=base64.b64encode(bytes(32)).decode(),
    )


async def fill_jobs(homing: Homing, count: int, port: int) -> None:
    """`count` jobs, due now, with credentials of their own."""
    request = CreateCredentials(
        bearer_token=BEARER_TOKEN, signing_secret=SIGNING_SECRET, allowed_targets=("*",)
    )
    credentials: int = (await homing.credentials.create(request)).row["id"]
    jobs = [_new_job(job, credentials) for job in sample_jobs(count, port)]
    for first in range(0, count, _AT_ONCE):
        await homing.jobs.enqueue(jobs[first : first + _AT_ONCE])


def _new_job(job: SampleJob, credentials: int) -> NewJob:
    return NewJob(
        source="order-service",
        type="order.shipped",
        target_url=job.url,
        target=target_of(job.url, credentials),
        payload=job.payload,
        external_id=job.id,
        credentials_id=credentials,
    )
