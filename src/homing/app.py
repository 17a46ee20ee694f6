"""The composition root: from settings to everything that one process needs, and back down again."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cached_property, partial
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from homing.brokers.base import Broker
from homing.brokers.open import open_broker
from homing.brokers.router import Router
from homing.brokers.router_config import default_config, queue_refusal
from homing.db import Database, Row, connect
from homing.db.migrate import Migration, Pending, check, load_migrations, migrate
from homing.engine.policy import Exponential, Policy, read_schedule
from homing.errors import SettingsError
from homing.lanes.dispatch_jobs.credentials.signing import Secrets, UnreadableSecrets
from homing.lanes.dispatch_jobs.credentials.store import Credentials
from homing.lanes.dispatch_jobs.dead_letters import make_dead_letters, make_queued_letters
from homing.lanes.dispatch_jobs.jobs import CHANNEL as JOBS_CHANNEL
from homing.lanes.dispatch_jobs.jobs import Breaking, DispatchJobs
from homing.lanes.dispatch_jobs.lane import DispatchJobsLane, Strategies
from homing.lanes.dispatch_jobs.mediating import DirectMediator, HttpMediator, Mediator, open_own_sender
from homing.lanes.dispatch_jobs.processing import Processing
from homing.lanes.dispatch_jobs.queueing import QueueingLane, UnsentJobs
from homing.lanes.dispatch_jobs.router_store import RouterConfigs
from homing.lanes.dispatch_jobs.target import Targets
from homing.lanes.dispatch_jobs.tokens import ProcessTokens, open_tokens
from homing.lanes.email_log.consuming import Consuming
from homing.lanes.email_log.email import Terms
from homing.lanes.email_log.lane import SendLane
from homing.lanes.email_log.lane import transition as email_transition
from homing.lanes.email_log.log import CHANNEL as EMAIL_CHANNEL
from homing.lanes.email_log.log import EmailLog
from homing.lanes.email_log.orders import EmailOrders
from homing.lanes.email_log.queues import Queues, queues_of
from homing.lanes.email_log.schedule.due import DueEmails
from homing.lanes.email_log.schedule.lane import Obituaries, ScheduleLane
from homing.lanes.mail_outbox.dispatching import Dispatching
from homing.lanes.mail_outbox.lane import MailOutboxLane, transition
from homing.lanes.mail_outbox.outbox import CHANNEL as MAIL_CHANNEL
from homing.lanes.mail_outbox.outbox import MailOutbox
from homing.lines import Feed, Line
from homing.senders.addresses import InvalidAddress, parse_address
from homing.senders.caught_mail import Shelf
from homing.senders.egress import EgressGuard, parse_networks
from homing.senders.mailing import Mailing
from homing.senders.open import open_sender
from homing.senders.templates import Templates
from homing.senders.webhook import WebhookSender
from homing.settings import Settings, is_loopback
from homing.telemetry import Telemetry, make_logger
from homing.vault import open_vault

if TYPE_CHECKING:
    from litestar import Litestar

#: In the order in which their migrations are applied.
MIGRATED = (
    "homing.senders.caught_mail",
    "homing.lanes.mail_outbox",
    "homing.lanes.dispatch_jobs",
    "homing.lanes.email_log",
)
#: What a database of the dispatch jobs' own needs.
JOBS_MIGRATED = ("homing.lanes.dispatch_jobs",)
LANES = ("mail_outbox", "dispatch_jobs", "email_log")
#: A lane of two stages may be worked on by stage, each in processes of its own.
STAGES = {"email_log": ("email_log:schedule", "email_log:send")}

#: Attempts under way per connection: one that is sent, one whose envelope goes along, two being composed.
_ATTEMPTS_PER_CONNECTION = 4
#: Publishes are confirmed together, so as many wait for it as one statement can settle.
_PUBLISHES_AT_ONCE = 500
_SWEEP_OF_MEMORY = 60.0
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
        if self.database.dialect == "mongodb":
            raise SettingsError(
                "HOMING_DATABASE_URL is SQLite or PostgreSQL; only dispatch jobs can be in MongoDB: "
                "set HOMING_JOBS_DATABASE_URL"
            )
        #: Where dispatch jobs, their credentials and their targets are; the other lanes' unless it is named.
        self.jobs_database = self.database
        if settings.jobs_database_url is not None:
            self.jobs_database = connect(settings.jobs_database_url, makes_file=makes_file)
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        #: Where the API is served, once it is.
        self.address: str | None = None
        self._compose_mail(settings)
        self._compose_webhooks(settings)
        self._compose_router(settings)
        self._compose_emails(settings)

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
            _templates(settings),
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
            self.jobs_database,
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
            queued_letters=self._queued_letters(settings),
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
        self.webhooks = self._line(
            self.jobs_lane, self.jobs, JOBS_CHANNEL, slots, slots, database=self.jobs_database
        )

    def _queued_letters(self, settings: Settings) -> Callable[[Sequence[Row]], Awaitable[list[int]]] | None:
        letters = make_queued_letters(settings.jobs_dead_letter_url, lambda: self.jobs_broker)
        if letters is not None and jobs_broker_url(settings) is None:
            raise SettingsError(
                "HOMING_JOBS_DEAD_LETTER_URL names a queue, and dispatch jobs have no broker; "
                "set HOMING_JOBS_BROKER_URL"
            )
        return letters.send if letters is not None else None

    def _compose_router(self, settings: Settings) -> None:
        """Where no broker is set, jobs are taken from the database, and their messages are sent nowhere."""
        url = jobs_broker_url(settings)
        window = settings.jobs_requeue_seconds
        self.processing = Processing(
            self.jobs, self.webhooks.deliverer, window=None if url is None else window
        )
        self.jobs_broker: Broker | None = None if url is None else open_broker(url, self.telemetry)
        self.router_configs = RouterConfigs(
            self.database,
            default_config(settings.jobs_queue, settings.jobs_pool_concurrency),
            self.jobs_broker.name if self.jobs_broker is not None else None,
        )
        self.queueing: Line | None = None
        if self.jobs_broker is None:
            return
        if why := queue_refusal(settings.jobs_queue, self.jobs_broker.name):
            raise SettingsError(f"HOMING_JOBS_QUEUE: {why}")
        unsent = UnsentJobs(self.jobs, window)
        lane = QueueingLane(
            unsent,
            self.jobs_broker,
            self.router_configs,
            lambda: self.process_tokens,
            default_queue=settings.jobs_queue,
            process_url=lambda: self.process_url,
            visibility=settings.jobs_visibility_seconds,
            window=window,
        )
        slots = settings.jobs_batch
        self.queueing = self._line(lane, unsent, JOBS_CHANNEL, slots, slots, database=self.jobs_database)

    def _compose_emails(self, settings: Settings) -> None:
        self.email_broker = open_broker(settings.email_broker_url or settings.broker_url, self.telemetry)
        in_memory = self.email_broker.name == "memory"
        queues = queues_of(settings.email_queue_prefix, dots=self.email_broker.name != "sqs")
        self.email_queues = queues
        terms = _email_terms(settings, self._owner, in_memory=in_memory)
        self.email_schedule = self._email_schedule(settings, queues, terms, in_memory=in_memory)
        self.emails = EmailLog(
            self.database,
            partial(email_transition, settings.email_max_attempts),
            terms=terms,
            telemetry=self.telemetry,
        )
        self.email_send = self._email_send(settings, queues)
        self.email_orders = EmailOrders(
            self.emails, self.email_schedule.deliverer, self.telemetry, publishes=not in_memory
        )

    def _email_schedule(self, settings: Settings, queues: Queues, terms: Terms, *, in_memory: bool) -> Line:
        broker, interval = self.email_broker, settings.email_retry_interval_seconds
        due = DueEmails(self.database, terms=terms, telemetry=self.telemetry, tell=Obituaries(broker, queues))
        lane = ScheduleLane(due, broker, queues, self.telemetry, lease_seconds=terms.lease_seconds)
        # With a broker in memory, who creates an email leaves it to the scheduler of the process that sends.
        longest_pause = min(interval, 1.0) if in_memory else interval
        at_once = _PUBLISHES_AT_ONCE
        return self._line(lane, due, EMAIL_CHANNEL, at_once, at_once, longest_pause=longest_pause)

    def _email_send(self, settings: Settings, queues: Queues) -> Line:
        lane = SendLane(
            self.emails,
            Mailing(self.sender, _templates(settings), settings.mail_from),
            policy=email_policy(settings),
            lease_seconds=settings.email_lease_seconds,
        )
        prefetch = settings.email_prefetch
        concurrency = settings.mail_connections * _ATTEMPTS_PER_CONNECTION
        line = self._line(lane, self.emails, EMAIL_CHANNEL, concurrency, prefetch, counted_as="email_log")
        consuming = Consuming(lane, line.deliverer, self.telemetry)
        line.open_feed = lambda: Feed(
            self.email_broker, queues.send, consuming, self.telemetry, prefetch=prefetch, may_send=lane.usable
        )
        return line

    @cached_property
    def process_tokens(self) -> ProcessTokens:
        return open_tokens(self.settings.encryption_key, self.settings.database_url)

    @property
    def process_url(self) -> str:
        """Where a router has jobs processed."""
        settings = self.settings
        if settings.jobs_process_url is not None:
            return settings.jobs_process_url
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        base = settings.base_url or self.address or f"http://{host}:{settings.port}"
        return f"{base.rstrip('/')}/api/dispatch/process"

    @cached_property
    def router(self) -> Router | None:
        """What takes jobs from a broker's queues; None where there is no broker."""
        if self.jobs_broker is None:
            return None
        own: DirectMediator | HttpMediator = HttpMediator(self._own_sender)
        if self.settings.jobs_mediation == "direct":
            own = DirectMediator(self.processing, self.process_tokens)
        return Router(
            self.jobs_broker,
            Mediator(lambda: self.process_url, own, HttpMediator(self.webhook_sender)),
            self.router_configs.read,
            self.telemetry,
            visibility=self.settings.jobs_visibility_seconds,
        )

    @cached_property
    def _own_sender(self) -> WebhookSender:
        return open_own_sender(self.settings.jobs_batch)

    def workers(self, lane: str) -> list[Work]:
        """What works on a lane: with a broker, jobs come from its queues and nobody polls for them."""
        if lane == "dispatch_jobs" and self.router is not None:
            self.router_configs.listen(self.router.wake)
            return [self.router]
        return [line.worker() for line in self.lines_of(lane)]

    def brokers_of(self, lanes: Iterable[str]) -> list[Broker]:
        """Those that these lanes cannot do without."""
        used = [self.email_broker] if any(lane.startswith("email_log") for lane in lanes) else []
        jobs = [self.jobs_broker] if self.jobs_broker is not None and "dispatch_jobs" in lanes else []
        return [*used, *jobs]

    def lines_of(self, lane: str) -> list[Line]:
        """Of a lane, all its stages; of a stage, just this one."""
        return [self.lines[name] for name in STAGES.get(lane, (lane,))]

    def publishers(self) -> list[Work]:
        """What sends messages to brokers: beside an API, which creates them, as well as beside a worker."""
        return [] if self.queueing is None else [self.queueing.worker()]

    def _line(self, lane: Any, rows: Any, channel: str, concurrency: int, slots: int, **options: Any) -> Line:
        database = options.pop("database", self.database)
        return Line(
            lane, rows, database, self.telemetry, channel=channel, concurrency=concurrency, slots=slots,
            **options,
        )  # fmt: skip

    @property
    def lines(self) -> dict[str, Line]:
        lines = (self.mail, self.webhooks, self.queueing, self.email_schedule, self.email_send)
        return {line.lane.name: line for line in lines if line is not None}

    @cached_property
    def credentials(self) -> Credentials:
        """Made when it is first asked for: who sends no webhooks needs no key."""
        vault = open_vault(self.settings.encryption_key, self.settings.database_url)
        return Credentials(self.jobs_database, vault, header_prefix=self.settings.jobs_header_prefix)

    @property
    def migrations(self) -> list[Migration]:
        return load_migrations(MIGRATED, self.database.dialect)

    @property
    def schemas(self) -> list[tuple[Database, list[Migration]]]:
        """Each database with the migrations that it needs."""
        schemas = [(self.database, self.migrations)]
        if self.jobs_database is not self.database:
            schemas.append((self.jobs_database, load_migrations(JOBS_MIGRATED, self.jobs_database.dialect)))
        return schemas

    async def migrate(self) -> list[Migration]:
        return [done for database, wanted in self.schemas for done in await migrate(database, wanted)]

    async def pending(self) -> list[Migration]:
        """What the databases lack."""
        found = [await check(database, wanted) for database, wanted in self.schemas]
        return [migration for one in found for migration in one.migrations]

    async def require_schema(self) -> None:
        """Raise unless the database can be reached and has the tables of this version."""
        Pending(tuple(await self.pending())).require_none()
        if self.jobs_database.dialect == "mongodb":
            for _, well, detail in await self.jobs_database.findings():
                if not well:
                    raise SettingsError(f"HOMING_JOBS_DATABASE_URL: {detail}")

    def asgi(self) -> Litestar:
        """The API and the page. Imported late: a worker or a look at the status needs no web framework."""
        from homing.http.app import build_app
        from homing.http.dashboard import Dashboard
        from homing.lanes.dispatch_jobs.api import ROUTES, job_dependencies
        from homing.lanes.dispatch_jobs.credentials.api import CredentialsApi
        from homing.lanes.dispatch_jobs.orders import Rules
        from homing.lanes.dispatch_jobs.router_api import ROUTES as ROUTER_ROUTES
        from homing.lanes.email_log.api import Emails
        from homing.lanes.mail_outbox.api import InternalDispatch, Mails
        from homing.lanes.mail_outbox.orders import MailOrders

        return build_app(
            [InternalDispatch, Mails, Emails, *ROUTES, *ROUTER_ROUTES, CredentialsApi, Dashboard],
            {
                **job_dependencies(
                    self.jobs,
                    self.telemetry,
                    Rules(self.egress.url_refusal, f"{self.settings.jobs_header_prefix}-"),
                    known_credentials=self._knows_credentials,
                    probe=self.jobs_lane.probe,
                    known_queue=self._knows_queue,
                ),
                "job_processing": self.processing,
                "process_tokens": self.process_tokens,
                "router_configs": self.router_configs,
                "credentials": self.credentials,
                "dispatching": self.dispatching,
                "mail_orders": MailOrders(self.outbox, self.telemetry),
                "outbox": self.outbox,
                "emails": self.emails,
                "email_orders": self.email_orders,
                "emails_backlog": self.email_send.backlog,
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

    async def _knows_queue(self, url: str) -> bool:
        if self.jobs_broker is None or url == self.settings.jobs_queue:
            return True
        return url in {queue.queue_uri for queue in (await self.router_configs.recent()).queues}

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
        if "_own_sender" in self.__dict__:
            await self._own_sender.close()
        if self.jobs_broker is not None:
            await self.jobs_broker.close()
        await self.email_broker.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_VERDICTS):
                await self.jobs.judged()
        await self.database.close()
        if self.jobs_database is not self.database:
            await self.jobs_database.close()


class Work(Protocol):
    """Runs until it is told to stop."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


def jobs_broker_url(settings: Settings) -> str | None:
    """`memory://` is the default of all lanes, and means no broker unless it was said of this one."""
    if settings.jobs_broker_url is not None:
        return settings.jobs_broker_url
    return None if settings.broker_url.startswith("memory:") else settings.broker_url


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


def email_policy(settings: Settings) -> Policy:
    return Policy(settings.email_max_attempts, read_schedule(settings.email_backoff_schedule))


def _email_terms(settings: Settings, owner: str, *, in_memory: bool) -> Terms:
    sweep = settings.email_sweep_seconds
    return Terms(
        owner=owner,
        lease_seconds=settings.email_lease_seconds,
        # What waits in memory is gone with its process, and never waits for long.
        sweep_seconds=min(sweep, _SWEEP_OF_MEMORY) if in_memory else sweep,
        max_attempts=settings.email_max_attempts,
    )


def _templates(settings: Settings) -> Templates:
    return Templates(Path(settings.template_dir), default_locale=settings.default_locale)


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
