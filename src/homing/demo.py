"""`homing demo`: a relay and a receiver that fail on purpose, sample messages, a page that shows them."""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from homing.app import LANES, Homing, opened
from homing.desk.checkup import Finding
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.target import target_of
from homing.lanes.email_log.orders import EmailRequest, order_of
from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.outbox import new_token
from homing.lanes.open_events.fanout import FlipRequest, flip_of
from homing.lanes.open_events.wishes import SubscriptionRequest
from homing.lanes.open_events.wishes import order_of as subscription_of
from homing.senders.caught_mail import CaughtMail
from homing.service import Stop, run
from homing.settings import Settings, load_settings, require_loopback
from homing.signatures import VerificationError, verify
from homing.testing import http_sink
from homing.testing.http_sink import Answer, HttpSink, SinkRequest
from homing.testing.smtp_sink import Faults, SinkMail, SmtpSink

Tell = Callable[[str], None]

#: One in five is deferred at first, one in thirty refused for good, and now and then the relay hangs up.
_FAULTS = Faults(defer_rcpt=0.2, reject_rcpt=0.03, drop_before_dot=0.02)
_FIRST_BATCH = 25
_REPORT_EVERY = 2.0
#: One email of the brokered lane for so many mails.
_EMAIL_EVERY = 4
#: One section flips for so many mails.
_FLIP_EVERY = 12
_COURSES = ("Introduction to Computer Science", "Linear Algebra", "Modern Chinese I")
_FIRST_SECTION = 9214
_PEOPLE = ("ann", "bo", "chiara", "deniz", "esra", "femi", "goran", "hana")
_SUBJECTS = (
    "Your order has shipped",
    "Reset your password",
    "Invoice for November",
    "A seat has opened",
    "Grüße",
)

#: Three partners, each with credentials of its own, so that each is a target of its own: one that fails now
#: and then, one that asks for pauses, one that is down.
_SHOP, _BUSY, _DOWN = "/shop", "/busy", "/down"
_PARTNERS = (_SHOP, _BUSY, _DOWN)
_TENANTS = ("acme", "globex", "initech")
_STEPS = ("order.created", "order.paid", "order.shipped")
#: Requests to the shop that get a 500; tried again, nearly all of them succeed.
_SHOP_FAILS = 0.15
_BUSY_ASKS = 0.1
_TOO_MANY = Answer(status=429, headers=(("Retry-After", "2"),), body=b"please wait two seconds")
#: For others, by path.
_ANSWERS: Mapping[str, Answer] = {
    f"{_SHOP}/broken": Answer(status=500, body=b"this path has never worked"),
    f"{_SHOP}/gone": Answer(status=410, body=b"nobody subscribes here any more"),
    f"{_DOWN}/hooks": Answer(status=503, body=b"down for the night"),
    f"{_DOWN}/stock": Answer(status=503, body=b"down for the night"),
}


async def run_demo(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    rate: float,
    seconds: float,
    tell: Tell,
    examine: Callable[[Settings], AsyncIterator[Finding]],
) -> None:
    accepted: asyncio.Queue[SinkMail] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="homing-demo-"))
        sink = SmtpSink(faults=_FAULTS, seed=secrets.randbits(30), on_mail=accepted.put_nowait)
        relay = await stack.enter_async_context(sink)
        settings = _settings(flags, environ, Path(folder), relay.url)
        require_loopback(settings)
        homing = await stack.enter_async_context(opened(settings, makes_file=True))
        homing.health.examine = lambda: examine(settings)
        await homing.migrate()
        partners = await _make_partners(homing)
        receiver = await stack.enter_async_context(HttpSink(_Receiver(partners).answer, keep=False))
        samples = _Samples(homing, {path: partner.id for path, partner in partners.items()}, receiver.url)
        await _run(homing, samples, accepted, rate=rate, seconds=seconds, tell=tell)


def _settings(flags: Mapping[str, Any], environ: Mapping[str, str], folder: Path, mail_url: str) -> Settings:
    chosen = {
        "database_url": f"sqlite:///{folder}/demo.db",
        "mail_url": mail_url,
        "mail_from": "Homing Demo <demo@homing.example>",
        # Two seconds to the first retry instead of a minute: somebody is watching.
        "dispatch_backoff_base_seconds": 1,
        "email_backoff_schedule": "2s,4s,8s",
        "email_retry_interval_seconds": 1,
        "jobs_backoff_base_seconds": 1,
        "jobs_backoff_max_seconds": 5,
        "jobs_breaker_failures": 8,
        "jobs_breaker_seconds": 3,
        "jobs_breaker_max_seconds": 10,
        "grace_seconds": 3,
        "log_level": "error",
        **flags,
    }
    return load_settings(chosen, environ=environ)


async def _run(
    homing: Homing,
    samples: _Samples,
    accepted: asyncio.Queue[SinkMail],
    *,
    rate: float,
    seconds: float,
    tell: Tell,
) -> None:
    stop = Stop()
    stop.install()
    if seconds:
        asyncio.get_running_loop().call_later(seconds, stop.ask)
    beside = [
        asyncio.create_task(samples.send_mails(rate)),
        asyncio.create_task(samples.send_jobs(rate)),
        asyncio.create_task(samples.send_emails(rate)),
        asyncio.create_task(samples.open_seats(rate)),
        asyncio.create_task(_shelve(homing, accepted)),
        asyncio.create_task(_report(homing, tell)),
    ]
    try:
        await run(homing, stop, api=True, work=LANES, ready=lambda address: _welcome(homing, address, tell))
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        tell(f"demo ended: {await _counts(homing)}")


def _welcome(homing: Homing, address: str, tell: Tell) -> None:
    api = f"{address}/api/dispatch"
    for line in (
        f"[bold]Homing demo[/]: {address}/ shows mails and webhooks on their way; API: {address}/docs",
        "Receipts go by way of a broker, here in memory: a scheduler publishes, a sender consumes.",
        "Seats open in courses, and the students who subscribed to them get a mail each.",
        "A relay beside it defers one mail in five, refuses some and hangs up at times.",
        "A receiver beside it verifies each webhook's signature and plays three partners: one fails now and",
        "then, and always on one path; one asks for a pause at times (429); one is down, so its jobs wait.",
        f"  to be tried again   curl '{api}/jobs?status=FAILED'",
        f"  of one tenant       curl '{api}/jobs?metadata.tenantId=acme&size=5'",
        f"  dead letters        curl {api}/dead",
        f"  paused or broken    curl {api}/targets",
        f"  emails by a broker  curl '{address}/api/emails?limit=5'",
        f"  open seats          curl '{address}/api/notifications?limit=5'",
        f"  all lanes           homing status --database-url {homing.settings.database_url}",
        "Stop with Ctrl-C.",
    ):
        tell(line)


async def _report(homing: Homing, tell: Tell) -> None:
    while True:
        await asyncio.sleep(_REPORT_EVERY)
        tell(await _counts(homing))


async def _counts(homing: Homing) -> str:
    mails, jobs = await homing.outbox.counts(), await homing.jobs.counts()
    emails = await homing.emails.counts()
    seats = await homing.notifications.counts()
    return (
        f"mails: {_in_words(mails)} · webhooks: {_in_words(jobs)} · emails: {_in_words(emails)} · "
        f"notifications: {_in_words(seats)}"
    )


def _in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"


# ── what the relay accepted ──────────────────────────────────────────────────────────────────────


async def _shelve(homing: Homing, accepted: asyncio.Queue[SinkMail]) -> None:
    """What the relay accepted is put where the page shows it."""
    while True:
        mails = [await accepted.get()]
        while not accepted.empty():
            mails.append(accepted.get_nowait())
        await homing.shelf.keep([_caught(mail) for mail in mails])


def _caught(mail: SinkMail) -> CaughtMail:
    message = message_from_bytes(mail.data, policy=policy.default)
    return CaughtMail(
        mail.message_id or "",
        str(message["from"]),
        mail.recipients,
        str(message["subject"]),
        b64encode(mail.data).decode(),
    )


# ── what receives webhooks ───────────────────────────────────────────────────────────────────────


class _Partner(Struct, frozen=True):
    """Somebody who subscribes to webhooks, and verifies them with the secret that we share."""

    id: int
    secret: str


async def _make_partners(homing: Homing) -> dict[str, _Partner]:
    partners = {}
    for path in _PARTNERS:
        # The receiver's port is not known yet; everybody is on this machine.
        request = CreateCredentials(name=f"demo {path[1:]}", allowed_targets=("*",))
        issued = await homing.credentials.create(request)
        partners[path] = _Partner(issued.row["id"], issued.made["signing_secret"])
    return partners


class _Receiver:
    def __init__(self, partners: Mapping[str, _Partner]) -> None:
        self._partners = partners
        self._fails = http_sink.Faults(fail=_SHOP_FAILS, seed=secrets.randbits(30)).script()

    def answer(self, request: SinkRequest) -> Answer | None:
        """As a receiver should, the signature comes first."""
        partner = self._partners.get(f"/{request.path.split('/')[1]}")
        if partner is None or not _is_signed(request, partner.secret):
            return Answer(status=401, body=b"this is not signed with our secret")
        if (known := _ANSWERS.get(request.path)) is not None:
            return known
        if request.path.startswith(_BUSY):
            return _TOO_MANY if random.random() < _BUSY_ASKS else None  # noqa: S311 - a fault by chance
        return self._fails(request)


def _is_signed(request: SinkRequest, secret: str) -> bool:
    try:
        verify(request.body, request.headers, secret)
    except VerificationError:
        return False
    return True


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


class _Samples:
    """Mails to people who do not exist, and webhooks to the partners."""

    def __init__(self, homing: Homing, credentials: Mapping[str, int], receiver_url: str) -> None:
        self._homing = homing
        self._credentials = credentials
        self._receiver_url = receiver_url

    async def send_mails(self, rate: float) -> None:
        numbers = itertools.count(1)
        await self._homing.outbox.enqueue([_mail(next(numbers)) for _ in range(_FIRST_BATCH)])
        while True:
            await asyncio.sleep(1 / rate)
            await self._homing.outbox.enqueue([_mail(next(numbers))])

    async def send_jobs(self, rate: float) -> None:
        """An event may be several jobs: they come at the rate of jobs, not of events."""
        jobs = self._jobs()
        await self._homing.jobs.enqueue([next(jobs) for _ in range(_FIRST_BATCH)])
        while True:
            await asyncio.sleep(1 / rate)
            await self._homing.jobs.enqueue([next(jobs)])

    async def send_emails(self, rate: float) -> None:
        """By way of a broker, here one in memory; fewer, since the relay has the mails besides."""
        for number in itertools.count(1):
            await self._homing.email_orders.place(order_of(_email(number)))
            await asyncio.sleep(_EMAIL_EVERY / rate)

    async def open_seats(self, rate: float) -> None:
        """Students subscribe to one section after the other, and each opens soon after."""
        for number in itertools.count():
            index, title = f"{_FIRST_SECTION + number:05}", _COURSES[number % len(_COURSES)]
            await self._subscribe_students(index)
            flip = flip_of(_flip(index, title), now=datetime.now(UTC))
            await self._homing.notifications_part.fanout.record(flip)
            await asyncio.sleep(_FLIP_EVERY / rate)

    async def _subscribe_students(self, index: str) -> None:
        """As if each had followed the link in the confirmation mail."""
        subscriptions = self._homing.notifications_part.subscriptions
        for name in _PEOPLE:
            order = subscription_of(_subscription(index, name), new_token())
            await subscriptions.subscribe(order)
            waiting = await subscriptions.waiting_for(order.contact_value)
            await subscriptions.confirm([row["subscription_id"] for row in waiting], order.contact_value)

    def _jobs(self) -> Iterator[NewJob]:
        for number in itertools.count(1):
            yield from self._order(number)
            if number % 3 == 0:
                yield self._job(number, "invoice.issued", f"{_BUSY}/hooks")
            if number % 8 == 0:
                yield self._job(number, "report.ready", f"{_SHOP}/broken")
            if number % 6 == 0:
                yield self._job(number, "stock.low", f"{_DOWN}/{'hooks' if number % 12 else 'stock'}")
            if number % 15 == 0:
                yield self._job(number, "newsletter.sent", f"{_SHOP}/gone")

    def _order(self, number: int) -> Sequence[NewJob]:
        """What happens to one order arrives in that order."""
        return [self._job(number, step, f"{_SHOP}/orders", group=f"order-{number}") for step in _STEPS]

    def _job(self, number: int, type: str, path: str, *, group: str | None = None) -> NewJob:
        url, tenant = f"{self._receiver_url}{path}", _TENANTS[number % len(_TENANTS)]
        credentials_id = self._credentials[f"/{path.split('/')[1]}"]
        return NewJob(
            source="demo-shop",
            type=type,
            target_url=url,
            target=target_of(url, credentials_id),
            payload=msgspec.json.encode(
                {"type": type, "data": {"number": number, "tenant": tenant}}
            ).decode(),
            credentials_id=credentials_id,
            group_id=group,
            ordering="group" if group else "none",
            metadata={"tenantId": tenant},
        )


def _email(number: int) -> EmailRequest:
    name = random.choice(_PEOPLE)  # noqa: S311 - sample data
    return EmailRequest(
        to=f"{name}{number}@example.org",
        subject=f"Receipt {number}",
        body=f"Hello {name.capitalize()},\n\nthank you for your payment {number}.\n",
        messageKey=f"receipt-{number}",
    )


def _subscription(index: str, name: str) -> SubscriptionRequest:
    return SubscriptionRequest(
        term_id="2027-1", campus_code="NB", index_number=index, email=f"{name}@students.example",
        locale="zh-CN" if name == "hana" else "en-US",
    )  # fmt: skip


def _flip(index: str, title: str) -> FlipRequest:
    return FlipRequest(
        term_id="2027-1", campus_code="NB", index_number=index, status_before="CLOSED", status_after="OPEN",
        detected_by="demo", payload={"courseTitle": title, "sectionNumber": "03"},
    )  # fmt: skip


def _mail(number: int) -> NewMail:
    name, subject = random.choice(_PEOPLE), random.choice(_SUBJECTS)  # noqa: S311 - sample data
    return NewMail(
        token=new_token(),
        to_address=f"{name.capitalize()} <{name}{number}@example.org>",
        subject=f"{subject} (#{number})",
        text_body=f"Hello {name.capitalize()},\n\nthis is sample mail {number}.\n",
        html_body=f"<h1>{subject}</h1><p>Hello <b>{name.capitalize()}</b>, this is sample mail {number}.</p>",
        urgent=number % 10 == 0,
    )
