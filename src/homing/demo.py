"""`homing demo`: a relay that fails on purpose, sample mails, and the page that shows both."""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import tempfile
from base64 import b64encode
from collections.abc import Callable, Mapping
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

from homing.app import LANES, Homing, opened
from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.outbox import new_token
from homing.senders.caught_mail import CaughtMail
from homing.service import Stop, run
from homing.settings import Settings, load_settings, require_loopback
from homing.testing.smtp_sink import Faults, SinkMail, SmtpSink

#: One in five is deferred at first, one in thirty refused for good, and now and then the relay hangs up.
_FAULTS = Faults(defer_rcpt=0.2, reject_rcpt=0.03, drop_before_dot=0.02)
_FIRST_BATCH = 25
_REPORT_EVERY = 2.0
_PEOPLE = ("ann", "bo", "chiara", "deniz", "esra", "femi", "goran", "hana")
_SUBJECTS = (
    "Your order has shipped",
    "Reset your password",
    "Invoice for November",
    "A seat has opened",
    "Grüße",
)


async def run_demo(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    rate: float,
    seconds: float,
    tell: Callable[[str], None],
) -> None:
    accepted: asyncio.Queue[SinkMail] = asyncio.Queue()
    with tempfile.TemporaryDirectory(prefix="homing-demo-") as folder:
        async with SmtpSink(faults=_FAULTS, seed=secrets.randbits(30), on_mail=accepted.put_nowait) as relay:
            settings = _settings(flags, environ, Path(folder), relay.url)
            require_loopback(settings)
            async with opened(settings, makes_file=True) as homing:
                await homing.migrate()
                await _run(homing, accepted, rate=rate, seconds=seconds, tell=tell)


def _settings(flags: Mapping[str, Any], environ: Mapping[str, str], folder: Path, mail_url: str) -> Settings:
    chosen = {
        "database_url": f"sqlite:///{folder}/demo.db",
        "mail_url": mail_url,
        "mail_from": "Homing Demo <demo@homing.example>",
        # Two seconds to the first retry instead of a minute: somebody is watching.
        "dispatch_backoff_base_seconds": 1,
        "log_level": "error",
        **flags,
    }
    return load_settings(chosen, environ=environ)


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


async def _run(
    homing: Homing,
    accepted: asyncio.Queue[SinkMail],
    *,
    rate: float,
    seconds: float,
    tell: Callable[[str], None],
) -> None:
    stop = Stop()
    stop.install()
    if seconds:
        asyncio.get_running_loop().call_later(seconds, stop.ask)
    helpers = [
        asyncio.create_task(_send_samples(homing, rate)),
        asyncio.create_task(_shelve(homing, accepted)),
        asyncio.create_task(_report(homing, tell)),
    ]
    try:
        await run(homing, stop, api=True, work=LANES, ready=lambda address: _welcome(address, tell))
    finally:
        for task in helpers:
            task.cancel()
        tell(f"demo ended: {await _counts(homing)}")


async def _counts(homing: Homing) -> str:
    counts = await homing.outbox.counts()
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "nothing was sent"


async def _report(homing: Homing, tell: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(_REPORT_EVERY)
        tell(await _counts(homing))


def _welcome(address: str, tell: Callable[[str], None]) -> None:
    tell(f"[bold]Homing demo[/]: {address}/ shows mails on their way; API: {address}/docs")
    tell("A relay beside it defers one mail in five, refuses some and hangs up at times. Stop with Ctrl-C.")


async def _send_samples(homing: Homing, rate: float) -> None:
    numbers = itertools.count(1)
    await homing.outbox.enqueue([_sample(next(numbers)) for _ in range(_FIRST_BATCH)])
    while True:
        await asyncio.sleep(1 / rate)
        await homing.outbox.enqueue([_sample(next(numbers))])


def _sample(number: int) -> NewMail:
    name, subject = random.choice(_PEOPLE), random.choice(_SUBJECTS)  # noqa: S311 - sample data
    return NewMail(
        token=new_token(),
        to_address=f"{name.capitalize()} <{name}{number}@example.org>",
        subject=f"{subject} (#{number})",
        text_body=f"Hello {name.capitalize()},\n\nthis is sample mail {number}.\n",
        html_body=f"<h1>{subject}</h1><p>Hello <b>{name.capitalize()}</b>, this is sample mail {number}.</p>",
        urgent=number % 10 == 0,
    )
