"""django-post-office, an outbox for Django: `send_queued` on PostgreSQL, its settings turned up.

Batches of 500 instead of 100, as many threads (each with its connection) as the others have connections
instead of 5, and no row in its log table for a mail that was sent.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings
from django.core.management import call_command

from homing.proof.bench.contender import CONNECTIONS, Job
from homing.proof.bench.sample_mails import SENDER, sample_mails


class PostOffice:
    def __init__(self, job: Job) -> None:
        self._job = job
        # Django keeps a database connection per thread, so one thread does it all.
        self._thread = ThreadPoolExecutor(1)

    async def prepare(self) -> None:
        await self._in_thread(self._set_up)

    async def deliver(self) -> int:
        delivered: int = await self._in_thread(self._send_all)
        return delivered

    async def close(self) -> None:
        await self._in_thread(import_module("django.db").connections.close_all)
        self._thread.shutdown()

    async def _in_thread(self, call: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _set_up(self) -> None:
        settings.configure(
            DATABASES={"default": _database(self._job.postgres_url)},
            INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "post_office"],
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
            USE_TZ=True,
            EMAIL_HOST="127.0.0.1",
            EMAIL_PORT=self._job.smtp_port,
            POST_OFFICE={
                "BATCH_SIZE": 500,
                "THREADS_PER_PROCESS": CONNECTIONS,
                "LOG_LEVEL": 1,
                "LOCK_FILE_NAME": f"homing-bench-{os.getpid()}",
            },
        )
        django.setup()
        call_command("migrate", verbosity=0)
        orders = [_order(mail) for mail in sample_mails(self._job.mails)]
        import_module("post_office.mail").send_many(orders)

    def _send_all(self) -> int:
        send_queued = import_module("post_office.mail").send_queued
        total = 0
        while sent := send_queued(processes=1, log_level=1)[0]:
            total += sent
        return total


def _order(mail: Any) -> dict[str, Any]:
    return {
        "recipients": [mail.to],
        "sender": SENDER,
        "subject": mail.subject,
        "message": mail.text,
        "html_message": mail.html or "",
    }


def _database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "HOST": parts.hostname,
        "PORT": parts.port or "",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "CONN_MAX_AGE": None,
    }
