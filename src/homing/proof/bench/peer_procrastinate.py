"""procrastinate, a task queue on PostgreSQL: an async mail task, twenty of them at a time."""

from __future__ import annotations

import msgspec
import procrastinate

from homing.proof.bench.contender import CONNECTIONS, Job
from homing.proof.bench.peer_smtp import SmtpConnections
from homing.proof.bench.sample_mails import SampleMail, sample_mails


class Procrastinate:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._smtp = SmtpConnections(job.smtp_port)
        self._delivered = 0
        connector = procrastinate.PsycopgConnector(
            conninfo=job.postgres_url, min_size=4, max_size=CONNECTIONS
        )
        self._app = procrastinate.App(connector=connector)
        self._task = self._app.task(name="send_mail")(self._send)

    async def _send(self, to: str, subject: str, text: str, html: str | None) -> None:
        await self._smtp.send(SampleMail(to, subject, text, html))
        self._delivered += 1

    async def prepare(self) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()
        await self._task.batch_defer_async(*map(msgspec.structs.asdict, sample_mails(self._job.mails)))
        await self._smtp.open()

    async def deliver(self) -> int:
        await self._app.run_worker_async(
            concurrency=CONNECTIONS, wait=False, listen_notify=False, install_signal_handlers=False
        )
        return self._delivered

    async def close(self) -> None:
        await self._smtp.close()
        await self._app.close_async()
