"""Homing itself: one process that sends what messages in RabbitMQ name, with every setting at its default."""

from __future__ import annotations

import asyncio

import asyncpg

from homing.app import Homing
from homing.errors import HomingError
from homing.lanes.email_log.orders import EmailRequest, order_of
from homing.lanes.email_log.queues import queues_of
from homing.proof.bench.contender import CONNECTIONS
from homing.proof.bench.email_contender import EmailJob
from homing.proof.bench.homing_worker import settings_for
from homing.proof.bench.sample_mails import SENDER, SampleMail, sample_mails
from homing.proof.chaos.email_queue import delete_queue
from homing.proof.chaos.waiting import until

#: Callers that create at the same time, as many as an API under load has.
_CALLERS = 64
_PATIENCE = 300.0
_LAST_CALLS = 10.0
_OPEN = "SELECT EXISTS (SELECT 1 FROM email_log WHERE status IN ('Pending', 'RetryQueued', 'Failed'))"


class OnRabbitMq:
    """What both have in common: tables, and a queue that is gone afterwards."""

    def __init__(self, job: EmailJob) -> None:
        self._job = job
        self._settings = settings_for(
            job.postgres_url,
            job.smtp_port,
            HOMING_EMAIL_BROKER_URL=job.broker_url,
            HOMING_MAIL_CONNECTIONS=str(CONNECTIONS),
        )

    async def _open(self) -> Homing:
        homing = Homing(self._settings)
        await homing.migrate()
        return homing

    async def _create_all(self, homing: Homing) -> None:
        """By the way that the API goes, with as many callers as it would have."""
        waiting = iter([_order(mail) for mail in sample_mails(self._job.mails)])

        async def call() -> None:
            for order in waiting:
                await homing.email_orders.place(order_of(order))

        await asyncio.gather(*(call() for _ in range(_CALLERS)))

    async def _close(self, homing: Homing) -> None:
        await homing.lines["email_log:schedule"].deliverer.drain(_LAST_CALLS)
        await homing.close()


class ThroughRabbitMq(OnRabbitMq):
    """Rows and messages are there; what is measured is from the first message to the last settlement."""

    async def prepare(self) -> None:
        first = await self._open()
        await self._create_all(first)
        await self._close(first)
        self._homing = await self._open()
        self._watching = await asyncpg.connect(self._job.postgres_url)

    async def deliver(self) -> int:
        self._workers = self._homing.workers("email_log:send")
        self._working = [asyncio.create_task(worker.run()) for worker in self._workers]
        if not await until(self._all_sent, _PATIENCE):
            raise HomingError(f"emails were still open after {_PATIENCE:g} s")
        return self._job.mails

    async def _all_sent(self) -> bool:
        return not await self._watching.fetchval(_OPEN)

    async def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        await asyncio.wait(self._working, timeout=_LAST_CALLS)
        await self._homing.lines["email_log:send"].drain(_LAST_CALLS)
        counts = await self._homing.emails.counts()
        assert counts["Sent"] == self._job.mails, f"not all were sent: {counts}"
        await self._watching.close()
        await self._close(self._homing)
        left = await delete_queue(self._job.broker_url, queues_of().send.name)
        assert left == 0, f"{left} messages were left in the queue"


class Creating(OnRabbitMq):
    """The row and its key written, the message confirmed by the broker, and the row says so."""

    async def prepare(self) -> None:
        self._homing = await self._open()

    async def deliver(self) -> int:
        await self._create_all(self._homing)
        return self._job.mails

    async def close(self) -> None:
        await self._close(self._homing)
        published = await delete_queue(self._job.broker_url, queues_of().send.name)
        assert published == self._job.mails, f"{published} messages were published"


def _order(mail: SampleMail) -> EmailRequest:
    return EmailRequest(to=mail.to, subject=mail.subject, body=mail.text, html=mail.html, sender=SENDER)
