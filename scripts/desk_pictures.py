"""Take pictures of the desk in a real browser, for README.md and docs/desk.md: `make pictures`.

    PYTHONPATH=. python scripts/desk_pictures.py docs/images

A day of a shop is played on a database of its own: partners that answer, fail, refuse and are down. Then its
times are spread over some hours, and its receivers get names. Needs Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from playwright.async_api import Browser, async_playwright
from tests.emails import EmailBench
from tests.http.door import Door, opened_door, url_with_tables
from tests.jobs import JobBench, job

from homing.access.login import LoggedIn
from homing.db import iso
from homing.desk.bulk import Asker
from homing.desk.traffic import TrafficTable
from homing.doctor import findings
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.senders.mail import Verdict
from homing.telemetry import ATTEMPT_BOUNDS, WAIT_BOUNDS
from homing.testing.components.chromium import FLAGS, find_chromium
from homing.testing.components.obtain import Missing
from homing.testing.http_sink import Answer, HttpSink
from homing.workers.model import Identity, LaneReport, Own, Report

#: By the address of this machine that plays them: so they are targets of their own.
RECEIVERS = {
    "127.0.0.1": "hooks.shop.example",
    "127.0.0.2": "api.warehouse.example",
    "127.0.0.3": "events.billing.example",
}
SHOP, WAREHOUSE, BILLING = RECEIVERS
ANSWERS: Mapping[str, Answer] = {
    "/reports": Answer(status=500, body=b'{"error":"cannot read property of undefined"}'),
    "/newsletter": Answer(status=410, body=b"nobody subscribes here any more"),
    "/stock": Answer(status=503, body=b"down for maintenance"),
}
SETTINGS: Mapping[str, Any] = {
    "jobs_breaker_failures": 5,
    "jobs_breaker_seconds": 3600,
    "jobs_breaker_max_seconds": 7200,
    "mail_from": "Shop <shop@example.com>",
    "alert_mail_to": "oncall@example.com",
    "egress_allow": "127.0.0.0/8",
    "allow_http": True,
}
PEOPLE = ("ann", "bo", "chiara", "deniz", "esra", "femi", "goran", "hana")
SUBJECTS = (
    "Your order has shipped",
    "Reset your password",
    "Invoice for November",
    "Welcome to the shop",
    "Your order has arrived",
    "订单已发货",
)
TENANTS = ("acme", "globex", "initech")
#: Attempts a minute, about.
PACE = {"mail_outbox": 34, "dispatch_jobs": 58, "email_log": 12, "open_events": 6}
PASSWORD = "a password for pictures"


class Shot(NamedTuple):
    name: str
    path: str
    width: int = 1280
    height: int = 800
    scheme: Literal["light", "dark"] = "light"
    #: What is pressed before.
    press: str = ""


# ── what is on the desk ──────────────────────────────────────────────────────────────────────────


class Shop:
    def __init__(self, door: Door, receiver: HttpSink) -> None:
        self.door = door
        self.jobs = JobBench(door.homing, door.log)
        self.emails = EmailBench(door.homing, door.log)
        self._port = receiver.port
        self._chance = random.Random(7)
        self.told: dict[str, str] = {}

    async def open(self) -> str:
        """Everything; the cookie of somebody who looks at it."""
        self.door.homing.health.examine = lambda: findings(self.door.homing.settings)
        access = self.door.homing.access
        await access.users.add("ann", PASSWORD, "admin", by="cli:ann")
        opened = await access.log_in("ann", PASSWORD, "127.0.0.1")
        assert isinstance(opened, LoggedIn)
        await self._send_webhooks()
        await self._send_mails()
        await self._send_emails()
        await self._work()
        return opened.token

    async def _send_webhooks(self) -> None:
        homing = self.door.homing
        ids = {
            address: (
                await homing.credentials.create(CreateCredentials(name=name, allowed_targets=("*",)))
            ).row["id"]
            for address, name in RECEIVERS.items()
        }
        orders = [one for number in range(20) for one in self._order(number, ids[SHOP])]
        await self.jobs.order(orders)
        await self.jobs.run_batch(200)
        for path, type, address, count, most in (
            ("/newsletter", "newsletter.sent", SHOP, 5, 1),
            ("/reports", "report.ready", SHOP, 3, 1),
            ("/reports", "report.ready", BILLING, 2, 5),
            ("/stock", "stock.low", WAREHOUSE, 7, 5),
        ):
            some = [self._job(n, type, address, path, ids[address], max_retries=most) for n in range(count)]
            made = await self.jobs.order(some)
            await self.jobs.run_batch(200)
            self.told[f"{type}@{RECEIVERS[address]}"] = text_of(made[0].id)
        await self.jobs.order([one for number in range(30, 31) for one in self._order(number, ids[SHOP])])
        until = self.jobs.time(datetime.now(UTC) + timedelta(hours=3))
        target = f"http://{BILLING}:{self._port}#{ids[BILLING]}"
        await self.jobs.jobs.run(
            "pause_target", target=target, until=until, reason="they move their database"
        )

    def _order(self, number: int, credentials: int) -> Iterator[NewJob]:
        for step in ("order.created", "order.paid", "order.shipped"):
            given = {"group_id": f"order-{number}", "ordering": "group"}
            yield self._job(number, step, SHOP, "/orders", credentials, **given)

    def _job(self, number: int, type: str, address: str, path: str, credentials: int, **more: Any) -> NewJob:
        tenant = TENANTS[number % len(TENANTS)]
        body = {
            "type": type,
            "data": {"order": 4700 + number, "tenant": tenant, "amount": 129.5, "items": [3, 8]},
        }
        return job(
            f"http://{address}:{self._port}{path}",
            source="shop",
            type=type,
            payload=msgspec.json.encode(body).decode(),
            credentials_id=credentials,
            metadata={"tenantId": tenant},
            **more,
        )

    async def _send_mails(self) -> None:
        sender = self.door.sender
        sender.answer("bo@nowhere.example", Verdict(status="rejected", code=550, text="5.1.1 no such user"))
        sender.answer("femi@slow.example", Verdict(status="deferred", code=451, text="4.7.1 greylisted"))
        for number in range(34):
            name = PEOPLE[number % len(PEOPLE)]
            host = {11: "nowhere.example", 17: "nowhere.example", 13: "slow.example"}.get(
                number, "example.org"
            )
            who = {"nowhere.example": "bo", "slow.example": "femi"}.get(host, name)
            subject = self._chance.choice(SUBJECTS)
            (id,) = await self.door.insert(
                1, subject=subject, to_address=f"{who}@{host}",
                text_body=f"Hello {who.capitalize()},\n\n{subject}.\n",
                html_body=f"<h1>{subject}</h1><p>Hello <b>{who.capitalize()}</b>, it is on its way.</p>",
            )  # fmt: skip
        await self.door.deliver(200)
        self.told["mail"] = f"outbox_{id}"
        later = self.jobs.time(datetime.now(UTC) + timedelta(hours=20))
        for name in PEOPLE[:3]:
            about = {"subject": "Black Friday begins", "to_address": f"{name}@example.org"}
            await self.door.insert(1, **about, next_attempt_at=later)

    async def _send_emails(self) -> None:
        for number in range(10):
            name = PEOPLE[number % len(PEOPLE)]
            await self.emails.order(to=f"{name}@example.org", subject=f"Receipt {number + 1}")
        await self.emails.deliver()

    async def _work(self) -> None:
        lanes = ("mail_outbox", "dispatch_jobs", "email_log", "open_events")
        states: Mapping[str, Own] = {
            "worker-1:812": "running",
            "worker-2:640": "running",
            "worker-3:77": "running",
        }
        for name, state in states.items():
            who = Identity(
                name, name.partition(":")[0], 1, "0.1.0", name, lanes, serves=name == "worker-1:812"
            )
            report = Report(
                tuple(
                    LaneReport(lane, int(pace / 5), 100, pace * 300, pace * 299)
                    for lane, pace in PACE.items()
                )
            )
            await self.door.homing.fleet.beat(who, state, report, up_seconds=5 * 3600.0)
        await self.door.sql(
            "UPDATE homing_worker SET seen_at = :at WHERE name = 'worker-3:77' RETURNING name",
            at=iso(datetime.now(UTC) - timedelta(minutes=4)),
        )
        await self.door.homing.alerts_part.watch.round()
        await self.door.deliver()
        await self._requeue_some()
        await TrafficTable(self.door.homing.database).write(list(self._traffic()))

    async def _requeue_some(self) -> None:
        """One run that is done, and one that waits."""
        runs = self.door.homing.bulk.runs
        ann = Asker("user:ann", lambda _scope: True)
        done = await runs.start("status:dead lane:mail_outbox error:timeout since:1d", "requeue", ann)
        await self.door.sql(
            "UPDATE homing_bulk_run SET state = 'done', total = 16666, done = 16664, skipped = 2 "
            "WHERE id = :id RETURNING id",
            id=done.id,
        )
        waiting = await runs.start("status:dead lane:dispatch_jobs error:http_410", "requeue", ann)
        await self.door.sql(
            "UPDATE homing_bulk_run SET state = 'running', total = 48210, done = 31400, started_at = :at "
            "WHERE id = :id RETURNING id",
            id=waiting.id, at=iso(datetime.now(UTC) - timedelta(seconds=12)),
        )  # fmt: skip
        self.told["run"] = str(waiting.id)

    def _traffic(self) -> Iterator[Any]:
        """Three hours, with a wave in them and a bad quarter of an hour."""
        now = int(datetime.now(UTC).timestamp()) // 60 * 60
        for lane, pace in PACE.items():
            for minute in range(1, 181):
                wave = 1 + 0.5 * math.sin(minute / 23) + self._chance.uniform(-0.15, 0.15)
                sent = max(1, round(pace * wave))
                bad = lane == "dispatch_jobs" and 40 < minute < 55
                retried, dead = (sent // 4, sent // 20) if bad else (sent // 40, int(minute % 37 == 0))
                yield {
                    "at": now - minute * 60, "lane": lane, "span": 60, "writer": "pictures",
                    "delivered": sent - retried - dead, "retried": retried, "dead": dead, "stopped": 0,
                    "attempts": _spread(sent, len(ATTEMPT_BOUNDS) + 1, 4),
                    "waits": _spread(sent, len(WAIT_BOUNDS) + 1, 3),
                }  # fmt: skip


def _spread(count: int, places: int, middle: int) -> list[int]:
    """So many, around a place of a histogram."""
    shares = [math.exp(-((place - middle) ** 2) / 2) for place in range(places)]
    return [round(count * share / sum(shares)) for share in shares]


def age(path: Path, port: int) -> None:
    """Spread what happened over some hours, and give the receivers their names."""
    with closing(sqlite3.connect(path)) as database, database:
        for table, seconds, columns in (
            ("mail_outbox", 190, ("last_attempt_at", "sent_at")),
            ("dispatch_job", 95, ("completed_at", "updated_at")),
            ("email_log", 600, ("last_attempt_at", "sent_at")),
        ):
            _spread_out(database, table, seconds, columns)
        database.execute(
            "UPDATE dispatch_attempt SET attempted_at = strftime('%Y-%m-%dT%H:%M:%fZ', (SELECT created_at "
            "FROM dispatch_job WHERE id = dispatch_job_id), printf('+%d seconds', attempt_number * 2))"
        )
        for address, name in RECEIVERS.items():
            for table, column in (
                ("dispatch_job", "target_url"),
                ("dispatch_job", "target"),
                ("homing_target", "target"),
            ):
                database.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?, ?)",
                    (f"http://{address}:{port}", f"https://{name}"),
                )


def _spread_out(database: sqlite3.Connection, table: str, seconds: int, columns: Sequence[str]) -> None:
    ids = [row[0] for row in database.execute(f"SELECT id FROM {table} ORDER BY id DESC")]
    now = datetime.now(UTC)
    for place, id in enumerate(ids):
        moment = now - timedelta(seconds=20 + place * seconds + (place * 37) % 60)
        database.execute(f"UPDATE {table} SET created_at = ? WHERE id = ?", (iso(moment), id))
        for column in columns:
            given = (iso(moment + timedelta(seconds=2)), id)
            database.execute(f"UPDATE {table} SET {column} = ? WHERE id = ? AND {column} IS NOT NULL", given)


# ── taking them ──────────────────────────────────────────────────────────────────────────────────


def shots(told: Mapping[str, str]) -> Sequence[Shot]:
    message = f"/messages/{told['report.ready@events.billing.example']}"
    return (
        Shot("desk-overview", "/", height=900),
        Shot("desk-overview-dark", "/", height=900, scheme="dark"),
        Shot("desk-overview-phone", "/", 360, 780),
        Shot("desk-messages", "/messages"),
        Shot("desk-message", message, height=1000),
        Shot("desk-mail", f"/messages/{told['mail']}", height=1000),
        Shot("desk-dead-letters", "/dead", height=640),
        Shot("desk-bulk", f"/bulk/{told['run']}", height=640),
        Shot("desk-targets", "/targets", height=640),
        Shot("desk-workers", "/workers", height=900),
        Shot("desk-health", "/health", height=900),
    )


async def take(browser: Browser, door: Door, shot: Shot, cookie: str, folder: Path) -> None:
    context = await browser.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.scheme,
        device_scale_factor=2 if shot.width < 500 else 1,
        reduced_motion="reduce",
    )
    await context.add_cookies([{"name": "homing_session", "value": cookie, "url": door.address}])
    page = await context.new_page()
    await page.goto(f"{door.address}{shot.path}", wait_until="load")
    await page.locator("#running").wait_for(state="detached")
    await page.screenshot(path=folder / f"{shot.name}.png")
    await context.close()


async def take_all(folder: Path, only: str) -> None:
    with tempfile.TemporaryDirectory(prefix="homing-") as home:
        url = url_with_tables(Path(home))
        async with (
            HttpSink(ANSWERS, host="0.0.0.0") as receiver,
            opened_door(url, **SETTINGS) as door,
            async_playwright() as playwright,
        ):
            program = find_chromium()
            if isinstance(program, Missing):
                raise SystemExit(str(program))
            browser = await playwright.chromium.launch(executable_path=program, args=list(FLAGS))
            shop = Shop(door, receiver)
            cookie = await shop.open()
            age(Path(home) / "homing.db", receiver.port)
            for shot in shots(shop.told):
                if only in shot.name:
                    await take(browser, door, shot, cookie, folder)
            await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="those whose name has this in it")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_all(asked.folder, asked.only))


if __name__ == "__main__":
    main()
