"""The composition root: from settings to everything that one process needs, and back down again."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cached_property
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from homing.db import connect
from homing.db.migrate import Migration, check, load_migrations, migrate
from homing.engine.policy import Exponential, Policy
from homing.errors import SettingsError
from homing.lanes.dispatch_jobs.credentials.signing import Secrets, UnreadableSecrets
from homing.lanes.dispatch_jobs.credentials.store import Credentials
from homing.lanes.dispatch_jobs.dead_letters import make_dead_letters
from homing.lanes.dispatch_jobs.jobs import CHANNEL as JOBS_CHANNEL
from homing.lanes.dispatch_jobs.jobs import Breaking, DispatchJobs
from homing.lanes.dispatch_jobs.lane import DispatchJobsLane, Strategies
from homing.lanes.dispatch_jobs.target import Targets
from homing.lanes.mail_outbox.dispatching import Dispatching
from homing.lanes.mail_outbox.lane import MailOutboxLane, transition
from homing.lanes.mail_outbox.outbox import CHANNEL as MAIL_CHANNEL
from homing.lanes.mail_outbox.outbox import MailOutbox
from homing.lines import Line
from homing.senders.addresses import InvalidAddress, parse_address
from homing.senders.caught_mail import Shelf
from homing.senders.egress import EgressGuard, parse_networks
from homing.senders.open import open_sender
from homing.senders.templates import Templates
from homing.senders.webhook import WebhookSender
from homing.settings import Settings, is_loopback
from homing.telemetry import Telemetry, make_logger
from homing.vault import open_vault

if TYPE_CHECKING:
    from litestar import Litestar

#: In the order in which their migrations are applied.
MIGRATED = ("homing.senders.caught_mail", "homing.lanes.mail_outbox", "homing.lanes.dispatch_jobs")
LANES = ("mail_outbox", "dispatch_jobs")

#: Attempts under way per connection: one that is sent, one whose envelope goes along, two being composed.
_ATTEMPTS_PER_CONNECTION = 4
#: Seconds that a stop waits until what attempts said of targets is written.
_LAST_VERDICTS = 2.0
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


class Homing:
    """One process of Homing. Nothing is opened before it is used; `close` undoes what was."""

    def __init__(
        self, settings: Settings, telemetry: Telemetry | None = None, *, makes_file: bool = True
    ) -> None:
        self.settings = settings
        self.telemetry = telemetry or make_telemetry(settings)
        self.database = connect(settings.database_url, makes_file=makes_file)
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._compose_mail(settings)
        self._compose_webhooks(settings)

    def _compose_mail(self, settings: Settings) -> None:
        self.shelf = Shelf(self.database)
        _check_sender(settings.mail_from)
        self.sender = open_sender(settings.mail_url, self.database, connections=settings.mail_connections)
        self.outbox = MailOutbox(
            self.database,
            transition,
            owner=self._owner,
            lease_seconds=settings.dispatch_lease_seconds,
            max_attempts=settings.dispatch_max_attempts,
        )
        lane = MailOutboxLane(
            self.outbox,
            self.sender,
            Templates(Path(settings.template_dir), default_locale=settings.default_locale),
            policy=mail_policy(settings),
            lease_seconds=settings.dispatch_lease_seconds,
            default_sender=settings.mail_from,
        )
        concurrency = settings.mail_connections * _ATTEMPTS_PER_CONNECTION
        self.mail = self._line(lane, self.outbox, MAIL_CHANNEL, concurrency, settings.mail_batch)
        self.dispatching = Dispatching(
            self.mail.deliverer,
            self.outbox,
            max_attempts=settings.dispatch_max_attempts,
            calls_per_minute=settings.dispatch_rate_limit_per_minute,
        )

    def _compose_webhooks(self, settings: Settings) -> None:
        self.egress = egress_guard(settings)
        self.webhook_sender = WebhookSender(
            self.egress, connections=settings.jobs_batch, connections_per_host=settings.jobs_batch
        )
        targets = Targets(slots=settings.jobs_batch, connections=settings.jobs_connections_per_target)
        self.jobs = DispatchJobs(
            self.database,
            targets,
            owner=self._owner,
            lease_seconds=settings.jobs_lease_seconds,
            breaking=Breaking(
                settings.jobs_breaker_failures,
                settings.jobs_breaker_seconds,
                settings.jobs_breaker_max_seconds,
            ),
            telemetry=self.telemetry,
            dead_letter=make_dead_letters(
                settings.jobs_dead_letter_url,
                settings.jobs_dead_letter_credentials_id,
                self.egress.url_refusal,
            ),
        )
        self.jobs_lane = DispatchJobsLane(
            self.jobs,
            targets,
            self._secrets,
            self.webhook_sender,
            strategies=Strategies(settings.jobs_backoff_base_seconds, settings.jobs_backoff_max_seconds),
            lease_seconds=settings.jobs_lease_seconds,
            timeout_seconds=settings.jobs_timeout_seconds,
            reject_4xx=settings.reject_4xx,
            header_prefix=f"{settings.jobs_header_prefix}-",
        )
        # All that is held is under way or waits for its turn at its target: none waits behind another target.
        slots = settings.jobs_batch
        self.webhooks = self._line(self.jobs_lane, self.jobs, JOBS_CHANNEL, slots, slots)

    def _line(self, lane: Any, rows: Any, channel: str, concurrency: int, slots: int) -> Line:
        return Line(
            lane, rows, self.database, self.telemetry, channel=channel, concurrency=concurrency, slots=slots
        )

    @property
    def lines(self) -> dict[str, Line]:
        return {line.lane.name: line for line in (self.mail, self.webhooks)}

    @cached_property
    def credentials(self) -> Credentials:
        """Made when it is first asked for: who sends no webhooks needs no key."""
        vault = open_vault(self.settings.encryption_key, self.settings.database_url)
        return Credentials(self.database, vault, header_prefix=self.settings.jobs_header_prefix)

    @property
    def migrations(self) -> list[Migration]:
        return load_migrations(MIGRATED, self.database.dialect)

    async def migrate(self) -> list[Migration]:
        return await migrate(self.database, self.migrations)

    async def require_schema(self) -> None:
        """Raise unless the database can be reached and has the tables of this version."""
        (await check(self.database, self.migrations)).require_none()

    def asgi(self) -> Litestar:
        """The API and the page. Imported late: a worker or a look at the status needs no web framework."""
        from homing.http.app import build_app
        from homing.http.dashboard import Dashboard
        from homing.lanes.dispatch_jobs.api import ROUTES, job_dependencies
        from homing.lanes.dispatch_jobs.credentials.api import CredentialsApi
        from homing.lanes.dispatch_jobs.orders import Rules
        from homing.lanes.mail_outbox.api import InternalDispatch, Mails
        from homing.lanes.mail_outbox.orders import MailOrders

        return build_app(
            [InternalDispatch, Mails, *ROUTES, CredentialsApi, Dashboard],
            {
                **job_dependencies(
                    self.jobs,
                    self.telemetry,
                    Rules(self.egress.url_refusal, f"{self.settings.jobs_header_prefix}-"),
                    known_credentials=self._knows_credentials,
                    probe=self.jobs_lane.probe,
                ),
                "credentials": self.credentials,
                "dispatching": self.dispatching,
                "mail_orders": MailOrders(self.outbox, self.telemetry),
                "outbox": self.outbox,
                "backlog": self.mail.backlog,
                "jobs_backlog": self.webhooks.backlog,
                "shelf": self.shelf,
                "provider": self.sender.name,
                **self._health(),
            },
            self.telemetry,
            base_url=self.settings.base_url,
        )

    def _secrets(self, id: int) -> Awaitable[Secrets | UnreadableSecrets | None]:
        return self.credentials.get(id)

    async def _knows_credentials(self, id: int) -> bool:
        return await self.credentials.get(id) is not None

    def metrics_asgi(self) -> Litestar:
        """For workers, which serve nothing else."""
        from homing.http.app import build_app

        return build_app([], self._health(), self.telemetry, base_url=self.settings.base_url, static=False)

    def _health(self) -> dict[str, Any]:
        return {
            "telemetry": self.telemetry,
            "check_ready": self.require_schema,
            "refresh_gauges": self._refresh_gauges,
        }

    async def _refresh_gauges(self) -> None:
        for line in self.lines.values():
            await line.backlog.refresh()

    async def close(self) -> None:
        await self.sender.close()
        await self.webhook_sender.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_VERDICTS):
                await self.jobs.judged()
        await self.database.close()


@asynccontextmanager
async def opened(settings: Settings, *, makes_file: bool = False) -> AsyncIterator[Homing]:
    """A `Homing` that is closed again. Only who migrates may make an SQLite file: a typo must not."""
    async with AsyncExitStack() as stack:
        homing = Homing(settings, makes_file=makes_file)
        stack.push_async_callback(homing.close)
        yield homing


def egress_guard(settings: Settings) -> EgressGuard:
    """Who serves only loopback may be trying things out: http and loopback are allowed, unless forbidden."""
    public = settings.base_url is not None and not is_loopback(urlsplit(settings.base_url).hostname or "")
    local = is_loopback(settings.host) and settings.allow_http is not False and not public
    allowed = parse_networks(settings.egress_allow)
    networks = [*allowed, *(_LOOPBACK if local else ())]
    return EgressGuard(networks, allow_http=bool(settings.allow_http) or local)


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
    if settings.encryption_key is None and settings.database_url.startswith("postgres"):
        found.append(
            "HOMING_ENCRYPTION_KEY is not set: credentials are sealed with homing.key in this folder, which "
            "processes elsewhere do not have; make one for all with `openssl rand -base64 32`"
        )
    if "memory://" in settings.mail_url:
        found.append("HOMING_MAIL_URL is memory://: mails are forgotten when the process ends")
    return found
