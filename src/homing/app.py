"""The composition root: from settings to everything that one process needs, and back down again."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homing.db import connect
from homing.db.migrate import Migration, check, load_migrations, migrate
from homing.engine.deliver import Deliverer
from homing.engine.maintenance import Maintenance
from homing.engine.policy import Exponential, Policy
from homing.engine.worker import Worker
from homing.errors import SettingsError
from homing.lanes.mail_outbox.backlog import Backlog
from homing.lanes.mail_outbox.dispatching import Dispatching
from homing.lanes.mail_outbox.lane import MailOutboxLane, transition
from homing.lanes.mail_outbox.outbox import CHANNEL, MailOutbox
from homing.senders.addresses import InvalidAddress, parse_address
from homing.senders.caught_mail import Shelf
from homing.senders.open import open_sender
from homing.senders.templates import Templates
from homing.settings import Settings
from homing.telemetry import Telemetry, make_logger

if TYPE_CHECKING:
    from litestar import Litestar

#: In the order in which their migrations are applied.
MIGRATED = ("homing.senders.caught_mail", "homing.lanes.mail_outbox")
LANES = ("mail_outbox",)

#: Attempts under way per connection: one that is sent, one whose envelope goes along, two being composed.
_ATTEMPTS_PER_CONNECTION = 4


class Homing:
    """One process of Homing. Nothing is opened before it is used; `close` undoes what was."""

    def __init__(
        self, settings: Settings, telemetry: Telemetry | None = None, *, makes_file: bool = True
    ) -> None:
        self.settings = settings
        self.telemetry = telemetry or make_telemetry(settings)
        self.database = connect(settings.database_url, makes_file=makes_file)
        self.shelf = Shelf(self.database)
        _check_sender(settings.mail_from)
        self.sender = open_sender(settings.mail_url, self.database, connections=settings.mail_connections)
        self.outbox = MailOutbox(
            self.database,
            transition,
            owner=f"{socket.gethostname()}:{os.getpid()}",
            lease_seconds=settings.dispatch_lease_seconds,
            max_attempts=settings.dispatch_max_attempts,
        )
        self.lane = MailOutboxLane(
            self.outbox,
            self.sender,
            Templates(Path(settings.template_dir), default_locale=settings.default_locale),
            policy=mail_policy(settings),
            lease_seconds=settings.dispatch_lease_seconds,
            default_sender=settings.mail_from,
        )
        self.deliverer = Deliverer(
            self.lane,
            self.telemetry,
            concurrency=settings.mail_connections * _ATTEMPTS_PER_CONNECTION,
            slots=settings.mail_batch,
        )
        self.maintenance = Maintenance(self.lane, self.telemetry)
        self.dispatching = Dispatching(self.deliverer, self.outbox, settings.dispatch_rate_limit_per_minute)
        self.backlog = Backlog(self.outbox, self.telemetry)

    @property
    def migrations(self) -> list[Migration]:
        return load_migrations(MIGRATED, self.database.dialect)

    async def migrate(self) -> list[Migration]:
        return await migrate(self.database, self.migrations)

    async def require_schema(self) -> None:
        """Raise unless the database can be reached and has the tables of this version."""
        (await check(self.database, self.migrations)).require_none()

    def worker(self) -> Worker:
        if self.database.dialect == "sqlite":
            # Its thread asks for the interpreter's lock with every row it reads, and may wait this long for
            # it. Measured: a tenth of the usual interval delivers an eighth more mails; less costs again.
            sys.setswitchinterval(0.0005)
        worker = Worker(self.deliverer, self.telemetry)
        self.database.listen(CHANNEL, worker.wake)
        return worker

    def asgi(self) -> Litestar:
        """The API and the page. Imported late: a worker or a look at the status needs no web framework."""
        from homing.http.app import build_app
        from homing.http.dashboard import Dashboard
        from homing.lanes.mail_outbox.api import InternalDispatch, Mails
        from homing.lanes.mail_outbox.orders import MailOrders

        return build_app(
            [InternalDispatch, Mails, Dashboard],
            {
                "dispatching": self.dispatching,
                "mail_orders": MailOrders(self.outbox, self.telemetry),
                "outbox": self.outbox,
                "backlog": self.backlog,
                "shelf": self.shelf,
                "provider": self.sender.name,
                **self._health(),
            },
            self.telemetry,
            base_url=self.settings.base_url,
        )

    def metrics_asgi(self) -> Litestar:
        """For workers, which serve nothing else."""
        from homing.http.app import build_app

        return build_app([], self._health(), self.telemetry, base_url=self.settings.base_url, static=False)

    def _health(self) -> dict[str, Any]:
        return {
            "telemetry": self.telemetry,
            "check_ready": self.require_schema,
            "refresh_gauges": self.backlog.refresh,
        }

    async def close(self) -> None:
        await self.sender.close()
        await self.database.close()


@asynccontextmanager
async def opened(settings: Settings, *, makes_file: bool = False) -> AsyncIterator[Homing]:
    """A `Homing` that is closed again. Only who migrates may make an SQLite file: a typo must not."""
    async with AsyncExitStack() as stack:
        homing = Homing(settings, makes_file=makes_file)
        stack.push_async_callback(homing.close)
        yield homing


def _check_sender(mail_from: str) -> None:
    """It would fail every mail that names no sender of its own, for good."""
    try:
        parse_address(mail_from)
    except InvalidAddress as error:
        raise SettingsError(f"HOMING_MAIL_FROM={mail_from!r} cannot be used: {error}") from None


def mail_policy(settings: Settings) -> Policy:
    backoff = Exponential(
        settings.dispatch_backoff_base_seconds,
        settings.dispatch_backoff_max_seconds,
        settings.dispatch_backoff_jitter,
    )
    return Policy(settings.dispatch_max_attempts, backoff)


def make_telemetry(settings: Settings) -> Telemetry:
    return Telemetry(
        make_logger(settings.log_format, logging.getLevelNamesMapping()[settings.log_level.upper()])
    )


def warnings_for(settings: Settings) -> Sequence[str]:
    """What works, but is probably not meant."""
    found = []
    if "catch://" in settings.mail_url and settings.database_url.startswith("postgres"):
        found.append(
            "HOMING_MAIL_URL is catch://: mails are kept to look at and not sent; set smtp://… to send them"
        )
    if "memory://" in settings.mail_url:
        found.append("HOMING_MAIL_URL is memory://: mails are forgotten when the process ends")
    return found
