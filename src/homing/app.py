"""The composition root: from settings to everything that one process needs, and back down again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from msgspec.structs import replace

from homing.access.desk import Access
from homing.access.sessions import SessionTerms
from homing.brokers.base import Broker
from homing.db import Database, connect
from homing.db.adoption import refusals, unfilled
from homing.db.migrate import Migration, applied_at, check, load_migrations, migrate, once_more
from homing.db.patience import Patience, patiently
from homing.db.repair import Loss, losses, repair
from homing.engine.prune import plan, read_retention
from homing.errors import Conflict, SchemaError, SettingsError
from homing.lanes.dispatch_jobs.key_index import former_key_index_until, replace_key_index
from homing.lanes.mail_outbox.adopt import TABLES as MAIL_TABLES
from homing.lanes.open_events.adopt import TABLES as NOTIFY_TABLES
from homing.lines import Line
from homing.parts.alerts import Alerts
from homing.parts.bulk import Bulk
from homing.parts.desk import make_desk
from homing.parts.emails import Emails
from homing.parts.figures import Figures
from homing.parts.ground import Ground
from homing.parts.health import Health
from homing.parts.jobs import Jobs
from homing.parts.mails import Mails
from homing.parts.notifications import Notifications
from homing.parts.operations import Operations
from homing.parts.retention import prunable_tables
from homing.parts.signals import make_telemetry
from homing.settings import Settings, is_loopback
from homing.telemetry import Telemetry

if TYPE_CHECKING:
    from litestar import Litestar

    from homing.brokers.router import Router
    from homing.http.access import AccessMiddleware
    from homing.lanes.dispatch_jobs.credentials.store import Credentials
    from homing.lanes.dispatch_jobs.tokens import ProcessTokens

MAIL_PACKAGE = "homing.lanes.mail_outbox"
#: In the order in which their migrations are applied.
MIGRATED = (
    "homing.db.attempts",
    "homing.access",
    "homing.workers",
    "homing.senders.caught_mail",
    MAIL_PACKAGE,
    "homing.lanes.dispatch_jobs",
    "homing.lanes.email_log",
    "homing.lanes.open_events",
    "homing.alerts",
    "homing.desk",
)
#: What a database of the dispatch jobs' own needs.
JOBS_MIGRATED = ("homing.lanes.dispatch_jobs",)
#: What the database of another program gets, for its notifications.
NOTIFY_MIGRATED = ("homing.db.attempts", "homing.lanes.open_events")
#: They mark what had ended without a mark; applied once more when the last process that ends so has gone.
MARKING = (("mail_outbox", 7), ("email_log", 8), ("open_events", 3))
LANES = ("mail_outbox", "dispatch_jobs", "email_log", "open_events")
#: A lane of two stages may be worked on by stage, each in processes of its own.
STAGES = {"email_log": ("email_log:schedule", "email_log:send")}
#: Seconds that the end waits for a collector of traces.
_LAST_SPANS = 5.0


class Homing:
    """One process of Homing. Nothing is opened before it is used; `close` undoes what was."""

    def __init__(
        self, settings: Settings, telemetry: Telemetry | None = None, *, makes_file: bool = True
    ) -> None:
        self.settings = settings
        self.telemetry = telemetry or make_telemetry(settings)
        self._name_databases(makes_file=makes_file)
        self.ground = Ground(settings, self.telemetry, self.database)
        self._make_lanes()
        #: Who may do what; always in the main database.
        self.access = Access(
            self.database,
            self.telemetry,
            encryption_key=settings.encryption_key,
            sessions=SessionTerms(settings.session_idle_minutes * 60, settings.session_hours * 3600),
        )
        #: What is deleted when; nothing, unless it was said.
        self.pruning = plan(
            read_retention(settings.retention),
            prunable_tables(self.database, self.jobs_database, self.notify_database),
        )
        self._make_desk()

    def _name_databases(self, *, makes_file: bool) -> None:
        settings = self.settings
        self.database = connect(settings.database_url, makes_file=makes_file)
        if self.database.dialect == "mongodb":
            raise SettingsError(
                "HOMING_DATABASE_URL is SQLite or PostgreSQL; only dispatch jobs can be in MongoDB: "
                "set HOMING_JOBS_DATABASE_URL"
            )
        #: Where dispatch jobs, their credentials and their targets are; the other lanes' unless it is named.
        self.jobs_database = self.database
        if settings.jobs_database_url is not None:
            self.jobs_database = _connect(
                "HOMING_JOBS_DATABASE_URL", settings.jobs_database_url, makes_file=makes_file
            )
        #: Where notifications and subscriptions are: the file of another program, where one is named.
        self.notify_database = self.database
        if settings.notify_database_url is not None:
            self.notify_database = _connect(
                "HOMING_NOTIFY_DATABASE_URL", settings.notify_database_url, makes_file=makes_file
            )
        if self.notify_database.dialect == "mongodb":
            raise SettingsError("HOMING_NOTIFY_DATABASE_URL is SQLite or PostgreSQL")

    def _make_lanes(self) -> None:
        self.mails_part = Mails(self.ground)
        self.jobs_part = Jobs(self.ground, self.jobs_database)
        self.emails_part = Emails(self.ground, self.mails_part.sender)
        self.notifications_part = Notifications(
            self.ground, self.notify_database, self.mails_part.sender, self.mails_part.orders
        )
        self._name_parts()

    def _make_desk(self) -> None:
        """What operators look at, and act with."""
        self.operations = Operations(
            self.ground,
            lambda: self.lines,
            self.jobs_part,
            self.emails_part,
            lanes=(*LANES, *(stage for stages in STAGES.values() for stage in stages)),
            databases={
                "mail_outbox": self.database,
                "dispatch_jobs": self.jobs_database,
                "email_log": self.database,
                "open_events": self.notify_database,
            },
        )
        self.fleet = self.operations.fleet
        self.desk = make_desk(
            self.ground, self.mails_part, self.jobs_part, self.emails_part, self.notifications_part,
            why_idle=self.operations.why_idle,
        )  # fmt: skip
        self.alerts_part = Alerts(
            self.ground,
            mails=self.mails_part,
            jobs=self.jobs_part,
            emails=self.emails_part,
            notifications=self.notifications_part,
            fleet=self.fleet,
            desk=self.desk,
        )
        self.alerts = self.alerts_part.desk
        self.bulk = Bulk(self.ground, self.access, self.desk)
        self.figures = Figures(
            self.ground,
            self.jobs_part,
            self.operations,
            desk=lambda: self.desk,
            keeps_everything=not self.pruning,
        )
        self.health = Health(self.ground, self._databases_in_words(), self.pruning)

    def _databases_in_words(self) -> list[tuple[str, Database, str | None]]:
        """What is in each, with the setting that names it."""
        settings = self.settings
        has_others = bool(settings.jobs_database_url or settings.notify_database_url)
        return [
            ("all but these" if has_others else "everything", self.database, settings.database_url),
            ("dispatch jobs", self.jobs_database, settings.jobs_database_url),
            ("open seats", self.notify_database, settings.notify_database_url),
        ]

    def _name_parts(self) -> None:
        """The names by which the others know what the parts hold."""
        mails, jobs, emails = self.mails_part, self.jobs_part, self.emails_part
        self.shelf, self.sender, self.outbox = mails.shelf, mails.sender, mails.outbox
        self.mail, self.dispatching = mails.line, mails.dispatching
        self.jobs, self.jobs_lane, self.webhooks = jobs.store, jobs.lane, jobs.line
        self.egress, self.webhook_sender = jobs.egress, jobs.sender
        self.processing, self.router_configs, self.queueing = (
            jobs.processing,
            jobs.router_configs,
            jobs.queueing,
        )
        self.emails, self.email_orders, self.email_queues = emails.log, emails.orders, emails.queues
        self.email_broker, self.email_schedule, self.email_send = emails.broker, emails.schedule, emails.send

        self.notifications, self.notify = self.notifications_part.rows, self.notifications_part.line

    @property
    def credentials(self) -> Credentials:
        return self.jobs_part.credentials

    @property
    def router(self) -> Router | None:
        return self.jobs_part.router

    @property
    def jobs_broker(self) -> Broker | None:
        return self.jobs_part.broker

    @property
    def process_tokens(self) -> ProcessTokens:
        return self.jobs_part.process_tokens

    @property
    def process_url(self) -> str:
        return self.jobs_part.process_url

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

    @property
    def lines(self) -> dict[str, Line]:
        lines = (self.mail, self.webhooks, self.queueing, self.email_schedule, self.email_send, self.notify)
        return {line.lane.name: line for line in lines if line is not None}

    @property
    def migrations(self) -> list[Migration]:
        return load_migrations(MIGRATED, self.database.dialect)

    @property
    def schemas(self) -> list[tuple[Database, list[Migration]]]:
        """Each database with the migrations that it needs."""
        schemas = [(self.database, self.migrations)]
        if self.jobs_database is not self.database:
            schemas.append((self.jobs_database, load_migrations(JOBS_MIGRATED, self.jobs_database.dialect)))
        if self.notify_database is not self.database:
            schemas.append((self.notify_database, self._notify_migrations))
        return schemas

    async def migrate(self) -> list[Migration]:
        await patiently(self._refuse_unknown_tables)
        patience = Patience(tell=lambda why: self.telemetry.log.warning("migrate.waits", why=why))
        done = [one for database, wanted in self.schemas for one in await migrate(database, wanted, patience)]
        # Another program may have made its tables anew since, without what had been added to them.
        notify, wanted = self.notify_database, self._notify_migrations
        again = await patiently(lambda: repair(notify, wanted, NOTIFY_TABLES, patience))
        undo = (
            files(MAIL_PACKAGE).joinpath("migrations", self.database.dialect, "adopt", "undo.sql").read_text()
        )
        mails = self._mail_migrations
        again += await patiently(lambda: repair(self.database, mails, MAIL_TABLES, patience, undo))
        await self.finish_migration()
        for told in await self.unfilled():
            self.telemetry.log.warning("migrate.unfilled", why=told)
        return [*done, *again]

    async def unfilled(self) -> list[str]:
        """Why only the program that made a table can put something into it; a sentence for each column."""
        found = [told for spec in MAIL_TABLES for told in await unfilled(self.database, spec)]
        return [f"{told}; until then only its own program puts mails in, which are sent" for told in found]

    async def finish_migration(self) -> bool:
        """What processes of the version before need or leave goes with the last of them; if it is gone."""
        index_until = await former_key_index_until(self.jobs_database)
        unmarked = [(one, await self._unmarked(one, wanted)) for one, wanted in self.schemas]
        if index_until is None and not any(marking for _, marking in unmarked):
            return True
        if await self._former_work(index_until):
            return False
        for database, marking in unmarked:
            await migrate(database, marking)
        if index_until is not None:
            # Where another program is in the way: the next time.
            with suppress(Conflict):
                await replace_key_index(self.jobs_database)
        return await former_key_index_until(self.jobs_database) is None

    async def _unmarked(self, database: Database, wanted: Sequence[Migration]) -> tuple[Migration, ...]:
        again = [once_more(one) for one in wanted if (one.component, one.version) in MARKING]
        return (await check(database, again)).migrations if again else ()

    async def _former_work(self, index_until: datetime | None) -> bool:
        """Whether a process that began before the migrations that it does not know is still there."""
        known = (index_until, await applied_at(self.database, *MARKING[1]))
        since = [time for time in known if time is not None]
        workers = [one for one in await self.fleet.workers() if not one.is_gone]
        former = [one for one in workers if any(one.started_at < time for time in since)]
        if former:
            self.telemetry.log.info("migrate.waits", why=f"{former[0].name} runs the version before")
        return bool(former)

    async def _refuse_unknown_tables(self) -> None:
        """Another program may have made some: they are taken as they are, or left alone."""
        found = [*await self._mail_refusals(), *await self._notify_refusals()]
        if found:
            told = "".join(f"\n  - {sentence}" for sentence in found)
            raise SchemaError(f"these tables cannot be worked with, so nothing was changed:{told}")

    async def _mail_refusals(self) -> list[str]:
        """Before the first migration, and where the table was made anew; else it has what it needs."""
        wanted = self._mail_migrations
        pending = (await check(self.database, wanted)).migrations
        if wanted[0] in pending:
            return await refusals(self.database, MAIL_TABLES)
        applied = [migration for migration in wanted if migration not in pending]
        if not await losses(self.database, applied, MAIL_TABLES):
            return []
        # Indexes by these names are our own, if on a table that was put aside.
        return await refusals(self.database, [replace(spec, indexes=()) for spec in MAIL_TABLES])

    async def _notify_refusals(self) -> list[str]:
        wanted = self._notify_migrations
        pending = (await check(self.notify_database, wanted)).migrations
        if not pending and not await losses(self.notify_database, wanted, NOTIFY_TABLES):
            return []
        return await refusals(self.notify_database, NOTIFY_TABLES)

    @property
    def _mail_migrations(self) -> list[Migration]:
        return load_migrations([MAIL_PACKAGE], self.database.dialect)

    @property
    def _notify_migrations(self) -> list[Migration]:
        return load_migrations(NOTIFY_MIGRATED, self.notify_database.dialect)

    async def pending(self) -> list[Migration]:
        """What is to be applied, or to be applied again."""
        unapplied = await self._unapplied()
        return [*unapplied, *await self._losses(unapplied)]

    def _setting_of(self, database: Database) -> str | None:
        if database is self.database:
            return None
        is_jobs = database is self.jobs_database
        return "HOMING_JOBS_DATABASE_URL" if is_jobs else "HOMING_NOTIFY_DATABASE_URL"

    async def _unapplied(self) -> list[Migration]:
        found = [await check(database, wanted) for database, wanted in self.schemas]
        return [migration for one in found for migration in one.migrations]

    async def _losses(self, unapplied: Sequence[Migration] = ()) -> dict[Migration, Loss]:
        """Of what was added to tables that may be another program's, what is there no more."""
        mails, notifications = (
            [migration for migration in wanted if migration not in unapplied]
            for wanted in (self._mail_migrations, self._notify_migrations)
        )
        return {
            **await losses(self.database, mails, MAIL_TABLES),
            **await losses(self.notify_database, notifications, NOTIFY_TABLES),
        }

    async def require_schema(self) -> None:
        """Raise unless the database can be reached and has the tables of this version."""
        for database, wanted in self.schemas:
            (await check(database, wanted)).require_none(self._setting_of(database))
        for loss in (await self._losses()).values():
            raise SchemaError(
                f"another program has made its tables anew, without {loss}; `homing migrate` adds that again"
            )
        if self.jobs_database.dialect == "mongodb":
            for _, well, detail in await self.jobs_database.findings():
                if not well:
                    raise SettingsError(f"HOMING_JOBS_DATABASE_URL: {detail}")

    def asgi(self) -> Litestar:
        """The API and the page. Imported late: a worker or a look at the status needs no web framework."""
        from homing.access.api import AccessApi
        from homing.http.app import build_app
        from homing.http.login import LoginPages
        from homing.http.messages_api import MessagesApi
        from homing.http.pages.routes import page_dependencies, page_router

        routes: list[Any] = [page_router(), LoginPages, AccessApi, MessagesApi]
        dependencies = self._health()
        for part in (self.mails_part, self.jobs_part, self.emails_part, self.notifications_part):
            part_routes, part_dependencies = part.api()
            routes += part_routes
            dependencies |= part_dependencies
        alert_routes, alert_dependencies = self.alerts_part.api()
        routes += alert_routes
        bulk_routes, bulk_dependencies = self.bulk.api()
        routes += bulk_routes
        dependencies |= bulk_dependencies
        figure_routes, figure_dependencies = self.figures.api()
        routes += figure_routes
        dependencies |= figure_dependencies
        dependencies |= self.operations.dependencies() | alert_dependencies
        dependencies |= self.health.dependencies() | {"desk": self.desk}
        dependencies |= page_dependencies(self.telemetry, dependencies["job_statistics"])
        intake = self.settings.api_intake_mib << 20
        return build_app(routes, dependencies, self.telemetry, door=self._door(), intake=intake)

    def metrics_asgi(self) -> Litestar:
        """For workers, which serve nothing else."""
        from homing.http.app import build_app

        return build_app([], self._health(), self.telemetry, door=self._door(), static=False)

    def _door(self) -> AccessMiddleware:
        from homing.http.access import AccessMiddleware
        from homing.http.guard import Site

        settings = self.settings
        site = Site(settings.base_url, is_loopback(settings.host), settings.proxies)
        return AccessMiddleware(self.access, site, rate_per_second=settings.api_rate_per_second)

    def _health(self) -> dict[str, Any]:
        return {
            "telemetry": self.telemetry,
            "check_ready": self.require_schema,
            "refresh_gauges": self._refresh_gauges,
        }

    async def _refresh_gauges(self) -> None:
        for line in self.lines.values():
            await line.backlog.refresh()
        await self.operations.refresh_gauges()

    async def close(self) -> None:
        await self.health.checkup.close()
        await self.operations.close()
        await self.figures.close()
        for part in (self.mails_part, self.jobs_part, self.emails_part):
            await part.close()
        await self.jobs_part.judged()
        await self.access.close()
        await self.database.close()
        for other in (self.jobs_database, self.notify_database):
            if other is not self.database:
                await other.close()
        await self.telemetry.tracing.close(min(self.settings.grace_seconds, _LAST_SPANS))


def _connect(setting: str, url: str, *, makes_file: bool) -> Database:
    """As `connect`; one of several databases says which it is."""
    try:
        return connect(url, makes_file=makes_file)
    except SettingsError as error:
        raise SettingsError(f"{setting}: {error}") from None


class Work(Protocol):
    """Runs until it is told to stop."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


@asynccontextmanager
async def opened(settings: Settings, *, makes_file: bool = False) -> AsyncIterator[Homing]:
    """A `Homing` that is closed again. Only who migrates may make an SQLite file: a typo must not."""
    async with AsyncExitStack() as stack:
        homing = Homing(settings, makes_file=makes_file)
        stack.push_async_callback(homing.close)
        yield homing


def warnings_for(settings: Settings, lanes: Collection[str] = LANES) -> Sequence[str]:
    """What works, but is probably not meant; for a process that works on these lanes."""
    found = settings.removed
    if "catch://" in settings.mail_url and settings.database_url.startswith("postgres"):
        found.append(
            "HOMING_MAIL_URL is catch://: mails are kept to look at and not sent; set smtp://… to send them"
        )
    if settings.encryption_key is None and settings.database_url.startswith("postgres"):
        found.append(
            "HOMING_ENCRYPTION_KEY is not set: credentials are sealed, and the links of subscribers signed, "
            "with homing.key in this folder, which processes elsewhere do not have, so that they can open "
            "neither; make one for all with `openssl rand -base64 32`"
        )
    if "open_events" in lanes and (unusable := unusable_links(settings)) is not None:
        found.append(unusable)
    if "memory://" in settings.mail_url:
        found.append("HOMING_MAIL_URL is memory://: mails are forgotten when the process ends")
    return found


def unusable_links(settings: Settings) -> str | None:
    """Why the links in mails about open seats are of no use to those who get them; None when they are."""
    if all(url.strip().startswith(("catch:", "memory:")) for url in settings.mail_url.split(",")):
        return None
    parts = urlsplit(settings.base_url or "")
    if not parts.hostname or is_loopback(parts.hostname):
        wrong = "is not set" if settings.base_url is None else f"is {settings.base_url}"
        return (
            f"HOMING_BASE_URL {wrong}: links in mails about open seats (confirm, manage, unsubscribe) lead "
            "to this machine's own address, which nobody else can open; set https://… as the world sees it"
        )
    if parts.scheme != "https":
        return (
            "HOMING_BASE_URL is plain http: the links in mails about open seats could be read by anybody on "
            "the way, and mailbox providers want https (RFC 8058), so such mails are refused; set https://…"
        )
    return None
