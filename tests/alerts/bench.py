"""A Homing whose alerts go to a real mail server and a real receiver, and time that can be let pass."""

from __future__ import annotations

import email
import email.policy
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from email.message import EmailMessage
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from tests.outbox import LogLines
from tests.tables import Tables

from homing.alerts.desk import Alerts, AlertView
from homing.alerts.watch import Watch
from homing.app import Homing
from homing.db import instant
from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.target import target_of
from homing.settings import load_settings
from homing.telemetry import Telemetry, make_logger

PEOPLE = "ops@example.org"
#: Where nobody listens.
NOWHERE = "http://127.0.0.1:9/hooks"


class AlertBench:
    def __init__(self, homing: Homing, log: LogLines) -> None:
        self.homing, self.log = homing, log
        self.tables = Tables(homing.database)
        #: Which may be elsewhere.
        self.jobs = Tables(homing.jobs_database)

    @property
    def watch(self) -> Watch:
        return self.homing.alerts_part.watch

    @property
    def alerts(self) -> Alerts:
        return self.homing.alerts

    async def look(self) -> None:
        """One round, whoever holds the watch."""
        await self.watch.round()
        assert not self.log.all("alert.crashed"), self.log.all("alert.crashed")
        assert not self.log.all("alert.failed"), self.log.all("alert.failed")

    async def look_after_trouble(self) -> None:
        """The same where the log tells of a trouble that the test has made."""
        await self.watch.round()

    async def told(self) -> Sequence[AlertView]:
        """Oldest first."""
        return list(reversed(await self.alerts.recent(100)))

    async def titles(self) -> list[str]:
        return [alert.title for alert in await self.told()]

    async def pass_time(self, seconds: float) -> None:
        """For what alerts remember: everything is that much longer ago."""
        await self.tables.shift("homing_alert", ["at"], seconds)
        await self.tables.shift("homing_alert_cause", ["since", "updated_at", "silenced_until"], seconds)
        for row in await self.tables.rows("homing_alert_cause"):
            told = msgspec.json.decode(row["told"])
            earlier = {level: _earlier(at, seconds) for level, at in told.items()}
            text = msgspec.json.encode(earlier).decode()
            await self.tables.change("homing_alert_cause", {"told": text}, cause=row["cause"])

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    async def mail(self, **columns: Any) -> int:
        values = {"to_address": "ann@example.org", "subject": "Hi", "text_body": "Hello.", **columns}
        names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        statement = f"INSERT INTO mail_outbox ({names}) VALUES ({marks}) RETURNING id"
        return int((await self.tables.sql(statement, **values))[0]["id"])

    async def kill_mails(self, count: int, error: str = "invalid_recipient: nobody") -> None:
        for _ in range(count):
            id = await self.mail()
            await self.tables.change("mail_outbox", {"status": "failed", "last_error": error}, id=id)

    async def job(self, url: str, **columns: Any) -> int:
        values: dict[str, Any] = {"source": "shop", "type": "order.created", "payload": "{}", **columns}
        job = NewJob(target_url=url, target=target_of(url, values.get("credentials_id")), **values)
        return (await self.homing.jobs.enqueue([job]))[0].id

    async def deliver(self) -> None:
        """All that is due, mails and webhooks, to the end of one attempt."""
        for line in (self.homing.mail, self.homing.webhooks):
            await line.deliverer.settled(await line.deliverer.run_batch(100))
        await self.homing.jobs.judged()

    async def deliver_until_idle(self, rounds: int = 30) -> None:
        """Due or not, until nothing is open."""
        for _ in range(rounds):
            await self.deliver()
            mails, jobs = await self.homing.outbox.counts(), await self.homing.jobs.counts()
            if not mails["queued"] + mails["dispatching"] + jobs["PENDING"] + jobs["FAILED"]:
                return
            await self._make_due()
        raise AssertionError("messages are still open")

    async def _make_due(self) -> None:
        now = await self.tables.now()
        await self.tables.change("mail_outbox", {"next_attempt_at": now}, status="queued")
        for status in ("PENDING", "FAILED"):
            await self.jobs.change("dispatch_job", {"next_attempt_at": now}, status=status)
        await self.jobs.change("homing_target", {"open_until": None})
        for gate in self.homing.jobs_lane._targets._gates.values():
            gate.closed_until = 0.0

    async def alert_mails(self) -> list[dict[str, Any]]:
        return await self.tables.sql(
            "SELECT * FROM mail_outbox WHERE idempotency_key LIKE 'homing-alert:%' ORDER BY id"
        )

    async def alert_jobs(self) -> list[dict[str, Any]]:
        return await self.jobs.rows("dispatch_job", source="homing", type="homing.alert")


def _earlier(text: str, seconds: float) -> str:
    moment = instant(text)
    assert moment is not None
    return datetime.fromtimestamp(moment.timestamp() - seconds, moment.tzinfo).isoformat()


def parsed(data: bytes) -> EmailMessage:
    message = email.message_from_bytes(data, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return message


@asynccontextmanager
async def alert_bench(database_url: str, **settings: Any) -> AsyncIterator[AlertBench]:
    log = LogLines()
    telemetry = Telemetry(make_logger("json", 10, log.stream), CollectorRegistry())
    flags = {
        "encryption_key": "A" * 43 + "=",
        "mail_url": "memory://",
        "mail_from": "homing@example.com",
        "template_dir": "nowhere",
        "base_url": "http://127.0.0.1:8080",
        "alert_mail_to": PEOPLE,
        "alert_cooldown_seconds": 600,
        **settings,
    }
    homing = Homing(load_settings({**flags, "database_url": database_url}, environ={}), telemetry)
    try:
        await homing.migrate()
        yield AlertBench(homing, log)
    finally:
        for line in (homing.mail, homing.webhooks):
            await line.deliverer.drain(5)
        await homing.close()
