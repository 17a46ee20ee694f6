"""A desk with something of everything: each state of each lane, trouble of each kind, hostile words."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from tests.access.desk import CHEAP, PASSWORD
from tests.emails import EmailBench
from tests.http.door import Door
from tests.jobs import JobBench

from homing.access.keys import KeyOrder
from homing.access.login import LoggedIn
from homing.access.passwords import Passwords
from homing.access.scopes import ROLES
from homing.access.sessions import csrf_of
from homing.db import iso
from homing.desk.bulk import Asker
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.lanes.mail_outbox.outbox import new_token
from homing.lanes.open_events.fanout import FlipRequest, flip_of
from homing.lanes.open_events.wishes import SubscriptionRequest
from homing.lanes.open_events.wishes import order_of as subscription_of
from homing.senders.caught_mail import CaughtMail
from homing.senders.mail import Verdict
from homing.testing.http_sink import Answer
from homing.workers.model import Identity, LaneReport, Own, Report

HOSTILE = '<script>document.title="owned"</script>"><img src=x onerror=alert(1)>'
#: A browser breaks a line at spaces, hyphens and slashes: there is none in these.
LONG = "averylongwordwithoutanyplacetobreakit" * 8
LONG_ADDRESS = f"{'long' * 15}@{'sub.' * 20}example.org"
LONG_HOST = f"{'sub' * 20}.{'sub' * 20}.example.org"
LONG_PATH = f"/shop/{LONG[:200]}"
CHINESE = "您关注的课程有名额了 计算机科学导论"
#: Attempts of a job before it is given up, of a mail, and failures in a row that open a breaker.
SETTINGS: Mapping[str, Any] = {
    "jobs_breaker_failures": 6,
    "jobs_breaker_seconds": 3600,
    "jobs_breaker_max_seconds": 7200,
    "dispatch_max_attempts": 3,
    "email_max_attempts": 2,
    "alert_mail_to": "oncall@example.org",
    "egress_allow": "127.0.0.0/8",
    "allow_http": True,
}
ANSWERS: Mapping[str, Answer] = {
    "/shop/broken": Answer(status=500, body=HOSTILE.encode(), headers=(("Content-Type", "text/html"),)),
    "/shop/gone": Answer(status=410, body=b"nobody subscribes here any more"),
    "/shop/picky": Answer(status=422, body='{"error":"不能处理"}'.encode()),
    LONG_PATH: Answer(status=500, body=LONG.encode(), headers=(("X-Reason", LONG),)),
    "/down/hooks": Answer(status=503, body=b"down for the night"),
}
ADMIN = Asker(f"user:{LONG[:100]}", lambda _scope: True)
WORKER = "worker-1.example:812"
DESERTER = "worker-2.example:4711"
LONG_WORKER = f"{LONG[:100]}.example:9"
_MAIL_HTML = (
    "<h1>Your order has shipped</h1><p>Hello <b>Ann</b>, it is on its way.</p>"
    '<script>top.document.title = "owned"</script>'
    '<p><a href="https://shop.example.com/orders/7">Track it</a></p>'
)


class Seeded(Struct, frozen=True):
    """What is there, by a name for each."""

    #: Messages: `job.dead`, `mail.waiting`, …
    ids: Mapping[str, str]
    #: Session cookies by role.
    cookies: Mapping[str, str]
    target: str
    down: str
    paused: str
    credentials: str
    subscription: int
    caught: int
    run: int
    key: str

    def csrf(self, role: str) -> str:
        return csrf_of(self.cookies[role])


class Seed:
    def __init__(self, door: Door, receiver: str) -> None:
        self._door = door
        self._jobs = JobBench(door.homing, door.log)
        self._emails = EmailBench(door.homing, door.log)
        self._receiver = receiver
        self._down = receiver.replace("127.0.0.1", "127.0.0.2")
        self._paused = receiver.replace("127.0.0.1", "127.0.0.3")
        self._ids: dict[str, str] = {}

    async def sow(self) -> Seeded:
        cookies = await self._people()
        credentials = await self._door.homing.credentials.create(
            CreateCredentials(name=f"shop, {LONG[:90]}", allowed_targets=("*",))
        )
        await self._webhooks(credentials.row["id"])
        await self._mails()
        await self._emails_by_queue()
        subscription = await self._open_seats()
        await self._workers()
        await self._door.homing.alerts_part.watch.round()
        run = await self._door.homing.bulk.runs.start(f"status:dead type:{LONG[:150]}*", "requeue", ADMIN)
        return Seeded(
            ids=self._ids,
            cookies=cookies,
            target=self._receiver,
            down=self._down,
            paused=self._paused,
            credentials=text_of(credentials.row["id"]),
            subscription=subscription,
            caught=await self._caught(),
            run=run.id,
            key=await self._key(),
        )

    # ── people ───────────────────────────────────────────────────────────────────────────────────

    async def _people(self) -> dict[str, str]:
        access = self._door.homing.access
        make_quick(self._door)
        cookies: dict[str, str] = {}
        for role in ROLES:
            await access.users.add(role, PASSWORD, role, by="cli:seed")
            opened = await access.log_in(role, PASSWORD, "127.0.0.1")
            assert isinstance(opened, LoggedIn)
            cookies[role] = opened.token
        await access.users.add(LONG[:100], PASSWORD, "viewer", by="cli:seed")
        await access.log_in(LONG[100:200], PASSWORD, "127.0.0.1")
        return cookies

    async def _key(self) -> str:
        order = KeyOrder(LONG[:100], ("mail:write", "jobs:read"), 3600.0, None)
        issued = await self._door.homing.access.keys.create(order, by="cli:seed")
        return str(issued.row["id"])

    # ── webhooks ─────────────────────────────────────────────────────────────────────────────────

    async def _webhooks(self, credentials: int) -> None:
        shop = f"{self._receiver}/shop"
        signed = {"credentials_id": credentials, "metadata": {"tenantId": "acme"}}
        await self._job("delivered", f"{shop}/orders", **signed)
        await self._job("dead", f"{shop}/gone?token=canary-query", type="newsletter.sent", max_retries=1)
        for number in range(3):
            await self._job(f"gone.{number}", f"{shop}/gone", type="newsletter.sent", max_retries=1)
        await self._job("picky", f"{shop}/picky", type="invoice.issued", max_retries=1)
        await self._job("hostile", f"{shop}/broken", type=HOSTILE[:100], max_retries=1, payload=_payload())
        await self._long_job(self._receiver)
        await self._jobs.run_batch()
        await self._job("retried", f"{shop}/broken", type="report.ready", **signed)
        await self._jobs.run_batch()
        await self._down_target()
        await self._ordered(f"{shop}/broken")
        await self._job("scheduled", f"{shop}/orders", scheduled_for=iso(_later(hours=5)))
        await self._job("cancelled", f"{shop}/orders", scheduled_for=iso(_later(hours=6)))
        await self._door.homing.jobs.cancel([await self._number("job.cancelled")])
        await self._paused_target()
        await self._job("running", f"{shop}/orders", type="order.paid")
        await self._jobs.claim(1)
        await self._job("waiting", f"{shop}/orders", type="order.shipped", external_id="a-4711")

    async def _long_job(self, receiver: str) -> None:
        """Words without a break in all that whoever orders a job writes, and in what a receiver answers."""
        await self._job(
            "long", f"{receiver}{LONG_PATH}", max_retries=1, type=LONG[:100], source=LONG[:100],
            external_id=LONG[:32], group_id=LONG[:100], metadata={LONG[:50]: LONG},
            headers={f"X-{LONG[:50]}": LONG},
        )  # fmt: skip
        await self._job("far", f"http://{LONG_HOST}/{LONG}", scheduled_for=iso(_later(hours=7)))

    async def _down_target(self) -> None:
        """As often as its breaker needs to open."""
        for number in range(6):
            await self._job(f"down.{number}", f"{self._down}/down/hooks", type="stock.low", max_retries=4)
        await self._jobs.run_batch()

    async def _ordered(self, url: str) -> None:
        """The first of a group fails, so the others wait for it."""
        for number in range(3):
            await self._job(
                f"ordered.{number}", url, group_id="order-7", ordering="group", type="order.created"
            )
        await self._jobs.run_batch()

    async def _paused_target(self) -> None:
        await self._job("paused", f"{self._paused}/hooks", type="order.created")
        until = self._jobs.time(_later(days=1))
        await self._jobs.jobs.run("pause_target", target=self._paused, until=until, reason=LONG)

    async def _job(self, name: str, url: str, **columns: Any) -> None:
        (id,) = await self._jobs.create(url, **columns)
        self._ids[f"job.{name}"] = text_of(id)

    async def _number(self, name: str) -> int:
        lane, number = self._door.homing.desk.place(self._ids[name]) or (None, 0)
        assert lane is not None
        return number

    # ── mails ────────────────────────────────────────────────────────────────────────────────────

    async def _mails(self) -> None:
        sender = self._door.sender
        sender.answer(
            "bounced@example.org", Verdict(status="rejected", code=550, text=f"no such user {HOSTILE}")
        )
        sender.answer(LONG_ADDRESS, Verdict(status="deferred", code=451, text=f"<{LONG_ADDRESS}>: {LONG}"))
        sender.answer("busy@example.org", Verdict(status="deferred", code=451, text="greylisted, come back"))
        shipped = {"subject": "Your order has shipped", "text_body": "Hello Ann,\n\nit is on its way.\n"}
        await self._mail("delivered", **shipped, html_body=_MAIL_HTML, metadata='{"tenantId": "acme"}')
        await self._mail("chinese", subject=CHINESE, text_body=f"{CHINESE}\n")
        await self._mail("dead", subject="Reset your password", to_address="bounced@example.org")
        await self._mail("dead2", subject="Invoice for November", to_address="bounced@example.org")
        await self._mail("untemplated", template="no-such-template")
        await self._door.deliver()
        # Whoever fails in another program writes what they like.
        await self._mail("foreign", subject="Not ours", status="failed", last_error=LONG)
        await self._mail("retried", subject="Invoice for November", to_address="busy@example.org")
        await self._mail("long", subject=LONG, to_address=LONG_ADDRESS)
        await self._door.deliver()
        await self._mail("running", subject="A mail that is being sent")
        await self._door.outbox.claim(1)
        await self._door.sql(
            # A lease that lasts for longer than all of these tests: what is over is rescued, not released.
            "UPDATE mail_outbox SET locked_by = :by, lease_expires_at = '2099-01-01T00:00:00.000Z'"
            " WHERE status = 'dispatching' RETURNING id",
            by=DESERTER,
        )
        await self._mail(
            "hostile", subject=HOSTILE, html_body=f"<p>{HOSTILE}</p>", next_attempt_at=_later(hours=2)
        )
        for state in ("cancelled", "expired"):
            await self._mail(state, subject=f"A mail that was {state}", status=state)
        await self._mail("waiting", subject="Welcome", next_attempt_at=_later(hours=1))

    async def _mail(self, name: str, **columns: Any) -> None:
        given = {name: self._jobs.time(value) for name, value in columns.items()}
        (id,) = await self._door.insert(1, **given)
        self._ids[f"mail.{name}"] = f"outbox_{id}"

    # ── emails by way of a broker ────────────────────────────────────────────────────────────────

    async def _emails_by_queue(self) -> None:
        await self._email("delivered", subject="Receipt 1")
        await self._email("failed", to="busy@example.org", subject="Receipt 2")
        await self._email("dead", to="bounced@example.org", subject=LONG)
        await self._email("hostile", subject="Receipt", body=HOSTILE)
        await self._emails.deliver()
        await self._email("cancelled", subject="Receipt 5")
        await self._door.homing.emails.cancel([await self._number("email.cancelled")])
        await self._email("queued", subject="Receipt 6")
        await self._emails.schedule()
        await self._email("waiting", subject="Receipt 7")
        await self._email("again", subject="Receipt 8")
        await self._emails.set(await self._number("email.again"), status="RetryQueued", attempt_count=1)

    async def _email(self, name: str, **fields: Any) -> None:
        ordered = await self._emails.order(**fields)
        self._ids[f"email.{name}"] = f"email_{ordered.id}"

    # ── open seats ───────────────────────────────────────────────────────────────────────────────

    async def _open_seats(self) -> int:
        """Four students; one mail arrives, one bounces, one is skipped, one waits for the next flip."""
        names = ("ann", "bounced", "hana", "busy")
        for name in names:
            await self._subscribe(name)
        await self._flip("09214", "Introduction to Computer Science")
        subscriptions = self._door.homing.notifications_part.subscriptions
        await subscriptions.pause(5, "api")
        line = self._door.homing.notifications_part.line
        await line.deliverer.settled(await line.deliverer.run_batch(100))
        await self._flip("09215", f"{CHINESE} {LONG[:150]}")
        for id, state in ((8, "expired"), (7, "failed")):
            await self._door.sql(
                "UPDATE open_event_notifications SET fanout_status = :state, error = :error "
                "WHERE notification_id = :id RETURNING 1 AS one",
                id=id, state=state, error=f'{{"code": "timeout", "message": "no answer to {LONG}"}}',
            )  # fmt: skip
        rows = await self._door.sql(
            "SELECT notification_id, fanout_status FROM open_event_notifications ORDER BY 1"
        )
        for row in rows:
            self._ids[f"notification.{row['fanout_status']}"] = f"notification_{row['notification_id']}"
        return 1

    async def _subscribe(self, name: str) -> None:
        subscriptions = self._door.homing.notifications_part.subscriptions
        for index in ("09214", "09215"):
            request = SubscriptionRequest(
                term_id="20269", campus_code="NB", index_number=index, email=f"{name}@example.org",
                locale="zh-CN" if name == "hana" else "en-US",
            )  # fmt: skip
            order = subscription_of(request, new_token())
            await subscriptions.subscribe(order)
            waiting = await subscriptions.waiting_for(order.contact_value)
            await subscriptions.confirm([row["subscription_id"] for row in waiting], order.contact_value)

    async def _flip(self, index: str, title: str) -> None:
        request = FlipRequest(
            term_id="20269", campus_code="NB", index_number=index, status_before="CLOSED",
            status_after="OPEN", detected_by="poller",
            payload={"courseTitle": title, "sectionNumber": "03"},
        )  # fmt: skip
        await self._door.homing.notifications_part.fanout.record(flip_of(request, now=datetime.now(UTC)))

    # ── what runs ────────────────────────────────────────────────────────────────────────────────

    async def _workers(self) -> None:
        states: Mapping[str, Own] = {WORKER: "running", DESERTER: "running", LONG_WORKER: "stopped"}
        for name, state in states.items():
            await self._door.homing.fleet.beat(*beat_of(name, state), up_seconds=3600.0)
        # One is heard of for longer than all of these tests last, the other was lost before they began.
        for name, at in ((WORKER, _later(days=365)), (DESERTER, _later(hours=-1))):
            await self._door.sql(
                "UPDATE homing_worker SET seen_at = :at WHERE name = :name RETURNING name",
                at=self._jobs.time(at),
                name=name,
            )

    async def _caught(self) -> int:
        source = (
            f"From: a@example.org\r\nTo: b@example.org\r\nSubject: {CHINESE} {LONG}\r\nMIME-Version: 1.0\r\n"
            f"Content-Type: text/html; charset=utf-8\r\n\r\n<p>Hello</p>{HOSTILE}\r\n"
        )
        mail = CaughtMail(
            "<1@x>",
            LONG_ADDRESS,
            ("b@example.org", LONG_ADDRESS),
            f"{CHINESE} {LONG}",
            b64encode(source.encode()).decode(),
        )
        return (await self._door.homing.shelf.keep([mail]))[0]


def beat_of(name: str, state: Own) -> tuple[Identity, Own, Report]:
    """What a process says of itself every few seconds."""
    lanes = ("mail_outbox", "dispatch_jobs")
    report = Report(tuple(LaneReport(lane, 3, 100, 1234, 1200) for lane in lanes))
    return Identity(name, name.partition(":")[0], 1, "1.0", name, lanes, serves=False), state, report


def make_quick(door: Door) -> None:
    """Passwords are hashed weakly here: nobody attacks them."""
    access = door.homing.access
    access.users._passwords = access.log_in._passwords = Passwords(CHEAP)


def _payload() -> str:
    deep: Any = [HOSTILE]
    for _ in range(6):
        deep = {"inner": deep, "数": 12345678901234567890}
    return msgspec.json.encode({"text": HOSTILE, "long": LONG, "chinese": CHINESE, "deep": deep}).decode()


def _later(**span: float) -> datetime:
    return datetime.now(UTC) + timedelta(**span)
