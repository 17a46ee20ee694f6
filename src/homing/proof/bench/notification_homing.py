"""Homing itself: one worker of `open_events` without a rate limit, every other setting at its default.

Beside it `mail_outbox` with mails that say the same: what is left of the difference is the lane's own.
"""

from __future__ import annotations

import tempfile

from homing.app import Homing
from homing.lines import Line
from homing.proof.bench.contender import CONNECTIONS, Job
from homing.proof.bench.homing_worker import settings_for
from homing.proof.bench.sample_openings import fill_openings, fill_same_mails


class OnPostgres:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._folder = tempfile.TemporaryDirectory(prefix="homing-bench-")

    def database_url(self) -> str:
        return self._job.postgres_url

    async def prepare(self) -> None:
        settings = settings_for(
            self.database_url(),
            self._job.smtp_port,
            HOMING_MAIL_CONNECTIONS=str(CONNECTIONS),
            HOMING_NOTIFY_RATE_PER_SECOND="0",
            # As in production: loopback is looked at more closely by the writer of mails.
            HOMING_BASE_URL="https://seats.example.com",
            # Else a key would be made beside the database.
            HOMING_ENCRYPTION_KEY="a2V5IG9mIHRoZSBiZW5jaG1hcmssIDMyIGJ5dGVzISE=",
        )
        first = Homing(settings)
        await first.migrate()
        await self.fill(first)
        await first.close()
        self._homing = Homing(settings)
        await self._homing.require_schema()

    async def deliver(self) -> int:
        return await self.line().worker().drain()

    def line(self) -> Line:
        return self._homing.notify

    async def fill(self, homing: Homing) -> None:
        await fill_openings(homing.notify_database, self._job.mails)

    async def sent(self) -> int:
        return (await self._homing.notifications.counts())["sent"]

    async def close(self) -> None:
        sent = await self.sent()
        assert sent == self._job.mails, f"{sent} of {self._job.mails} were sent"
        await self.line().deliverer.drain(0)
        await self._homing.close()
        self._folder.cleanup()


class SameMails(OnPostgres):
    """From the same template in `mail_outbox`, their variables given."""

    async def fill(self, homing: Homing) -> None:
        await fill_same_mails(homing.database, self._job.mails)

    def line(self) -> Line:
        return self._homing.mail

    async def sent(self) -> int:
        return (await self._homing.outbox.counts())["sent"]


class OnSqlite(OnPostgres):
    """In a file on the disk that temporary files are on, synchronous=FULL as always."""

    def database_url(self) -> str:
        return f"sqlite:///{self._folder.name}/homing.db"
