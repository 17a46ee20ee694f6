"""procrastinate, a task queue on PostgreSQL: an async mail task, twenty of them at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import procrastinate

from homing.proof.bench.contender import CONNECTIONS, Job
from homing.proof.bench.peer_smtp import SmtpConnections
from homing.proof.bench.sample_mails import SampleMail, sample_mails

_DATABASE_CONNECTIONS = 20


class TasksInPostgres:
    """procrastinate with one task, and jobs that are all deferred before the first one is done."""

    def __init__(self, url: str, concurrency: int, task: Callable[..., Awaitable[None]]) -> None:
        connector = procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=_DATABASE_CONNECTIONS)
        self._app = procrastinate.App(connector=connector)
        self._concurrency = concurrency
        self._work = task
        self._task = self._app.task(name="send")(self._do)
        self._done = 0

    async def _do(self, **arguments: Any) -> None:
        await self._work(**arguments)
        self._done += 1

    async def open(self, jobs: Iterable[msgspec.Struct]) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()
        await self._task.batch_defer_async(*map(msgspec.structs.asdict, jobs))

    async def drain(self) -> int:
        await self._app.run_worker_async(
            concurrency=self._concurrency, wait=False, listen_notify=False, install_signal_handlers=False
        )
        return self._done

    async def close(self) -> None:
        await self._app.close_async()


class Procrastinate:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._smtp = SmtpConnections(job.smtp_port)
        self._tasks = TasksInPostgres(job.postgres_url, CONNECTIONS, self._send)

    async def _send(self, to: str, subject: str, text: str, html: str | None) -> None:
        await self._smtp.send(SampleMail(to, subject, text, html))

    async def prepare(self) -> None:
        await self._tasks.open(sample_mails(self._job.mails))
        await self._smtp.open()

    async def deliver(self) -> int:
        return await self._tasks.drain()

    async def close(self) -> None:
        await self._smtp.close()
        await self._tasks.close()
