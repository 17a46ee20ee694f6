"""Homing itself: one worker, logs and metrics on, every setting at its default."""

from __future__ import annotations

import tempfile
from pathlib import Path

from homing.app import Homing
from homing.proof.bench.contender import CONNECTIONS, Job
from homing.proof.bench.sample_mails import fill_outbox, write_template
from homing.settings import Settings, load_settings


def settings_for(database_url: str, smtp_port: int, **others: str) -> Settings:
    """The defaults, whatever the caller's environment and folder say."""
    urls = {"HOMING_DATABASE_URL": database_url, "HOMING_MAIL_URL": f"smtp://127.0.0.1:{smtp_port}"}
    return load_settings(environ={**urls, "HOMING_LOG_FORMAT": "json", **others})


class OnPostgres:
    kind = "bodies"

    def __init__(self, job: Job) -> None:
        self._job = job
        self._folder = tempfile.TemporaryDirectory(prefix="homing-bench-")
        write_template(Path(self._folder.name) / "templates")

    def database_url(self) -> str:
        return self._job.postgres_url

    async def prepare(self) -> None:
        self._settings = settings_for(
            self.database_url(),
            self._job.smtp_port,
            HOMING_TEMPLATE_DIR=f"{self._folder.name}/templates",
            HOMING_MAIL_CONNECTIONS=str(CONNECTIONS),
        )
        first = Homing(self._settings)
        await first.migrate()
        await fill_outbox(first.database, self._job.mails, self.kind)
        await first.close()
        self._homing = Homing(self._settings)
        await self._homing.require_schema()

    async def deliver(self) -> int:
        return await self._homing.mail.worker().drain()

    async def close(self) -> None:
        counts = await self._homing.outbox.counts()
        assert counts["sent"] == self._job.mails, f"not all were sent: {counts}"
        await self._homing.mail.deliverer.drain(0)
        await self._homing.close()
        self._folder.cleanup()


class WithTemplates(OnPostgres):
    """Every mail rendered from a template: subject, text and html."""

    kind = "template"


class OnSqlite(OnPostgres):
    """In a file on the disk that temporary files are on, synchronous=FULL as always."""

    def database_url(self) -> str:
        return f"sqlite:///{self._folder.name}/homing.db"
