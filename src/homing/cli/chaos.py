"""chaos: kill, stop and restart what is at work, and count what became of every message."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from uuid import uuid4

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from homing.cli.options import Json, print_json, run_async
from homing.errors import HomingError, SettingsError

if TYPE_CHECKING:
    from homing.proof.chaos.emails import EmailProgress, EmailReport
    from homing.proof.chaos.emails import Tell as TellEmails
    from homing.proof.chaos.notifications import NotificationProgress, NotificationReport
    from homing.proof.chaos.notifications import Tell as TellNotifications
    from homing.proof.chaos.run import ChaosReport, Progress, Restart, Tell
    from homing.testing.components.rabbitmq import RabbitMqServer

_out = Console(highlight=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, soft_wrap=True)

_FAULTS = ("kill", "stop", "restart-postgres")
_EMAIL_FAULTS = ("broker", "kill")
#: One stop takes as long as a lease, so there are fewer of them.
_KILLS_PER_STOP = 10
_KILLS_PER_RESTART = 5
_JOBS_PER_GROUP = 20

Workers = Annotated[int, typer.Option("--workers", min=1, max=64, help="Worker processes.")]
Kills = Annotated[
    int, typer.Option("--kills", min=1, help="Kills that must hit a worker with something in flight.")
]
Lease = Annotated[float, typer.Option("--lease", min=1, max=600, help="Seconds of a lease.")]
FaultNames = Annotated[str, typer.Option("--faults", help="By commas: kill, stop, restart-postgres.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Whom to hit, and when; else by chance.")]
DatabaseKind = Annotated[Literal["postgres", "sqlite"], typer.Option("--database")]
PostgresUrl = Annotated[
    str | None,
    typer.Option(
        "--postgres-url",
        metavar="URL",
        help="A server in which a database may be made; else a private one is started, with fsync on.",
    ),
]


def add_to(app: typer.Typer) -> None:
    chaos = typer.Typer(no_args_is_help=True, help="Faults on purpose. Exit 1 when a promise was broken.")
    chaos.command()(mail)
    chaos.command()(jobs)
    chaos.command()(emails)
    chaos.command()(router)
    chaos.command()(notifications)
    app.add_typer(chaos, name="chaos")


def mail(
    mails: Annotated[int, typer.Option("--mails", min=10, help="Mails to deliver.")] = 10_000,
    workers: Workers = 4,
    kills: Kills = 50,
    lease: Lease = 5.0,
    faults: FaultNames = "kill,stop",
    seed: Seed = None,
    database: DatabaseKind = "postgres",
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """Deliver mails with workers that are killed and stopped all the time; then check what arrived."""
    from homing.proof.chaos.mail import Plan, run_mail

    plan = Plan(
        mails=mails, workers=workers, lease=lease, seed=_seed(seed),
        **_counts(kills, _chosen(faults, database, postgres_url)),
    )  # fmt: skip
    _err.print(f"seed {plan.seed} · {plan.mails} mails · {plan.workers} workers · lease {plan.lease:g} s")

    def run(url: str, folder: Path, tell: Tell, restart: Restart | None) -> Awaitable[ChaosReport]:
        return run_mail(plan, url, folder, tell=tell, restart=restart)

    _tell(_run(run, plan.mails, database, postgres_url), json=json)


def jobs(
    count: Annotated[int, typer.Option("--jobs", min=10, help="Webhooks to deliver.")] = 10_000,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Jobs of ordered groups, 20 each; no stops unless named.")
    ] = False,
    fail: Annotated[
        float, typer.Option("--fail", min=0, max=0.5, help="How many requests the receiver answers with 500.")
    ] = 0.1,
    workers: Workers = 4,
    kills: Kills = 30,
    lease: Lease = 2.0,
    faults: Annotated[
        str | None,
        typer.Option("--faults", help="By commas: kill, stop, restart-postgres; else kill,stop."),
    ] = None,
    seed: Seed = None,
    database: DatabaseKind = "postgres",
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """Deliver signed webhooks in the same way, to a receiver that fails now and then; then check."""
    from homing.proof.chaos.jobs import JobPlan, run_jobs

    named = faults or ("kill" if ordered else "kill,stop")
    plan = JobPlan(
        jobs=count, groups=-(-count // _JOBS_PER_GROUP) if ordered else 0, fail=fail,
        workers=workers, lease=lease, seed=_seed(seed),
        **_counts(kills, _chosen(named, database, postgres_url)),
    )  # fmt: skip
    groups = f" in {plan.groups} groups" if plan.groups else ""
    _err.print(
        f"seed {plan.seed} · {plan.jobs} jobs{groups} · {plan.workers} workers · lease {plan.lease:g} s"
    )

    def run(url: str, folder: Path, tell: Tell, restart: Restart | None) -> Awaitable[ChaosReport]:
        return run_jobs(plan, url, folder, tell=tell, restart=restart)

    _tell(_run(run, plan.jobs, database, postgres_url), json=json)


def emails(
    count: Annotated[int, typer.Option("--emails", min=10, help="Emails to deliver.")] = 10_000,
    schedulers: Annotated[int, typer.Option("--schedulers", min=1, max=16)] = 2,
    senders: Annotated[int, typer.Option("--senders", min=1, max=32)] = 4,
    stops: Annotated[int, typer.Option("--stops", min=0, help="How often the broker is stopped.")] = 3,
    outage: Annotated[float, typer.Option("--outage", min=0, max=300, help="Seconds of each stop.")] = 10.0,
    broker_kills: Annotated[
        int, typer.Option("--broker-kills", min=0, help="How often the broker is killed.")
    ] = 1,
    deletions: Annotated[
        int, typer.Option("--deletions", min=0, help="How often the queue is deleted with all that is in it.")
    ] = 1,
    kills: Annotated[
        int, typer.Option("--kills", min=1, help="SIGKILLs of schedulers and senders, with the fault kill.")
    ] = 20,
    refuse: Annotated[
        float, typer.Option("--refuse", min=0, max=0.9, help="How many addresses are refused at first.")
    ] = 0.1,
    lease: Lease = 5.0,
    faults: Annotated[str, typer.Option("--faults", help="By commas: broker, kill.")] = "broker",
    seed: Seed = None,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """Deliver emails through a private RabbitMQ that is stopped, killed and loses its queue; then check."""
    if find_spec("aio_pika") is None:
        raise HomingError("aio-pika is missing: pip install 'homing[rabbitmq]'")
    from homing.proof.chaos.emails import EmailPlan, run_emails

    chosen = _named(faults, _EMAIL_FAULTS)
    plan = EmailPlan(
        emails=count, schedulers=schedulers, senders=senders, outage=outage, refuse=refuse, lease=lease,
        stops=stops if "broker" in chosen else 0, broker_kills=broker_kills if "broker" in chosen else 0,
        deletions=deletions if "broker" in chosen else 0, kills=kills if "kill" in chosen else 0,
        seed=_seed(seed),
    )  # fmt: skip
    _err.print(
        f"seed {plan.seed} · {plan.emails} emails · {plan.schedulers} schedulers · {plan.senders} senders · "
        f"lease {plan.lease:g} s · about {plan.duration + plan.sweep:.0f} s"
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="homing-chaos-")))
        url, _ = stack.enter_context(_database("postgres", folder, postgres_url))
        broker = stack.enter_context(_rabbitmq())
        tell = stack.enter_context(_email_progress(plan.emails))
        report = run_async(run_emails(plan, url, broker, folder, tell=tell))
    _tell(report, json=json)


def _rabbitmq() -> RabbitMqServer:
    """Ours alone, for it is going to be killed."""
    from homing.testing.components.obtain import Missing
    from homing.testing.components.rabbitmq import start_rabbitmq

    server = start_rabbitmq()
    if isinstance(server, Missing):
        raise HomingError(str(server))
    return server


def router(
    count: Annotated[int, typer.Option("--jobs", min=10, help="Webhooks to deliver.")] = 5_000,
    groups: Annotated[int, typer.Option("--groups", min=1, help="Ordered groups of them.")] = 100,
    routers: Annotated[int, typer.Option("--routers", min=1, max=16)] = 2,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Of DISPATCH-POOL.")] = 5,
    duplicates: Annotated[
        float, typer.Option("--duplicates", min=0, max=0.5, help="How many messages are handed out twice.")
    ] = 0.05,
    expiries: Annotated[
        float, typer.Option("--expiries", min=0, max=0.5, help="How many are seen again while they are held.")
    ] = 0.05,
    fail: Annotated[
        float, typer.Option("--fail", min=0, max=0.5, help="How many requests the receiver answers with 500.")
    ] = 0.02,
    seed: Seed = None,
    database: DatabaseKind = "postgres",
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """Deliver ordered webhooks through a private SQS FIFO queue that hands out messages twice; then check."""
    from homing.proof.chaos.router import RouterPlan, run_router
    from homing.testing.components.obtain import Missing
    from homing.testing.components.sqs import start_sqs

    plan = RouterPlan(
        jobs=count, groups=groups, workers=routers, concurrency=concurrency, duplicates=duplicates,
        expiries=expiries, fail=fail, seed=_seed(seed),
    )  # fmt: skip
    _err.print(f"seed {plan.seed} · {plan.jobs} jobs in {plan.groups} groups · {plan.workers} routers")
    sqs = start_sqs()
    if isinstance(sqs, Missing):
        raise HomingError(str(sqs))

    def run(url: str, folder: Path, tell: Tell, _restart: Restart | None) -> Awaitable[ChaosReport]:
        return run_router(plan, url, folder, sqs_url=sqs.url, tell=tell)

    with sqs:
        _tell(_run(run, plan.jobs, database, postgres_url), json=json)


def notifications(
    count: Annotated[
        int, typer.Option("--notifications", min=100, help="Notifications that the other program makes.")
    ] = 20_000,
    workers: Annotated[int, typer.Option("--workers", min=1, max=16, help="Worker processes.")] = 2,
    kills: Kills = 12,
    stops: Annotated[
        int, typer.Option("--stops", min=0, help="How often a worker is told to stop, with SIGTERM.")
    ] = 4,
    holds: Annotated[
        int, typer.Option("--holds", min=0, help="How often the other program holds its lock for 1 to 3 s.")
    ] = 8,
    refuse: Annotated[
        float, typer.Option("--refuse", min=0, max=0.9, help="How many addresses are refused at first.")
    ] = 0.15,
    wait_limit: Annotated[
        float, typer.Option("--wait-limit", min=0, help="Seconds that the other program may wait for us.")
    ] = 5.0,
    clear_locks: Annotated[
        bool,
        typer.Option("--clear-locks", help="Clear all locks of the dead by hand; else half wait for 30 s."),
    ] = False,
    journal: Annotated[
        Literal["wal", "delete"], typer.Option("--journal", help="How the other program has made the file.")
    ] = "wal",
    seed: Seed = None,
    database: DatabaseKind = "sqlite",
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """Workers that die beside another program that writes to their tables and holds locks; then check."""
    from homing.proof.chaos.notifications import NotificationPlan, run_notifications

    plan = NotificationPlan(
        notifications=count, workers=workers, kills=kills, stops=stops, holds=holds, refuse=refuse,
        wait_limit=wait_limit, waits_for_locks=not clear_locks, journal=journal, seed=_seed(seed),
    )  # fmt: skip
    _err.print(
        f"seed {plan.seed} · {plan.notifications} notifications · {plan.workers} workers · "
        f"{plan.kills} kills · about {plan.seconds + plan.lock_ttl:.0f} s"
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="homing-chaos-")))
        url, _ = stack.enter_context(_database(database, folder, postgres_url))
        tell = stack.enter_context(_notification_progress(plan.notifications))
        report = run_async(run_notifications(plan, url, folder, tell=tell))
    _tell(report, json=json)


def _seed(given: int | None) -> int:
    return secrets.randbelow(1_000_000) if given is None else given


def _counts(kills: int, chosen: set[str]) -> dict[str, int]:
    """How often each fault comes."""
    return {
        "kills": kills if "kill" in chosen else 0,
        "stops": -(-kills // _KILLS_PER_STOP) if "stop" in chosen else 0,
        "restarts": -(-kills // _KILLS_PER_RESTART) if "restart-postgres" in chosen else 0,
    }


def _chosen(faults: str, database: str, postgres_url: str | None) -> set[str]:
    chosen = _named(faults, _FAULTS)
    if "restart-postgres" in chosen and (database != "postgres" or postgres_url):
        raise SettingsError("restart-postgres needs a PostgreSQL of its own: leave out --postgres-url")
    return chosen


def _named(faults: str, known: tuple[str, ...]) -> set[str]:
    chosen = {word.strip() for word in faults.split(",") if word.strip()}
    if unknown := sorted(chosen - set(known)):
        raise SettingsError(f"there is no fault {unknown[0]!r}; there are {', '.join(known)}")
    if not chosen:
        raise SettingsError(f"name at least one fault: {', '.join(known)}")
    return chosen


def _run(
    run: Callable[[str, Path, Tell, Restart | None], Awaitable[ChaosReport]],
    total: int,
    database: str,
    postgres_url: str | None,
) -> ChaosReport:
    async def under_way() -> ChaosReport:
        return await run(url, folder, tell, restart)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="homing-chaos-")))
        url, restart = stack.enter_context(_database(database, folder, postgres_url))
        tell = stack.enter_context(_progress(total))
        return run_async(under_way())


@contextmanager
def _database(kind: str, folder: Path, postgres_url: str | None) -> Iterator[tuple[str, Restart | None]]:
    """An empty database, and how to crash its server if that is ours."""
    from homing.testing.components.obtain import Missing
    from homing.testing.components.postgres import Postgres, start_postgres

    if kind == "sqlite":
        yield f"sqlite:///{folder / 'homing.db'}", None
    elif postgres_url is not None:
        server = Postgres(postgres_url)
        url = server.create_database(f"homing_chaos_{uuid4().hex}")
        try:
            yield url, None
        finally:
            server.drop_database(url)
    else:
        private = start_postgres()
        if isinstance(private, Missing):
            raise HomingError(f"{private}; name a server with --postgres-url, or use --database sqlite")
        with private:
            yield private.create_database("homing_chaos"), private.restart


@contextmanager
def _progress(total: int) -> Iterator[Tell]:
    with _bar(total) as show:
        yield lambda progress: show(progress.ended, _in_words(progress))


@contextmanager
def _email_progress(total: int) -> Iterator[TellEmails]:
    def tell(progress: EmailProgress) -> None:
        show(progress.ended, progress.now)

    with _bar(total) as show:
        yield tell


@contextmanager
def _notification_progress(total: int) -> Iterator[TellNotifications]:
    def tell(progress: NotificationProgress) -> None:
        show(progress.ended, progress.now)

    with _bar(total) as show:
        yield tell


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int, str], None]]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with ProgressBar(*columns, console=_err, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, words: bar.update(task, completed=done, description=words)


def _in_words(progress: Progress) -> str:
    words = [f"{progress.hits} of {progress.kills} kills hit", f"{progress.stops} stops"]
    return " · ".join([*words, f"{progress.restarts} restarts"] if progress.restarts else words)


def _tell(report: ChaosReport | EmailReport | NotificationReport, *, json: bool) -> None:
    if json:
        print_json({**msgspec.to_builtins(report), "passed": report.verdict.passed})
    else:
        _show(report)
    if not report.verdict.passed:
        raise typer.Exit(1)


def _show(report: ChaosReport | EmailReport | NotificationReport) -> None:
    width = max(map(len, report.verdict.figures)) + 2
    for name, value in report.verdict.figures.items():
        _out.print(f"{name.replace('_', ' '):<{max(width, 28)}}{value:>10,}")
    _out.print()
    for check in report.verdict.checks:
        word = "[green]PASS[/]" if check.passed else "[red]FAIL[/]"
        _out.print(f"{word}  {check.name}: ", check.detail, sep="", markup=True)
    end = "Every promise was kept." if report.verdict.passed else "[red]A promise was broken.[/]"
    _out.print(f"\n{end} {report.seconds:g} s, seed {report.plan.seed}.")
