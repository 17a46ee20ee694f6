"""chaos: kill, stop and restart what is at work, and count what became of every mail."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    from homing.proof.chaos.mail import ChaosReport, Plan, Progress, Restart, Tell

_out = Console(highlight=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, soft_wrap=True)

_FAULTS = ("kill", "stop", "restart-postgres")
#: One stop takes as long as a lease, so there are fewer of them.
_KILLS_PER_STOP = 10
_KILLS_PER_RESTART = 5

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
    chaos.callback()(_chaos)
    chaos.command()(mail)
    app.add_typer(chaos, name="chaos")


def _chaos() -> None:
    """Keeps `mail` a command of its own name while it is the only one."""


def mail(
    mails: Annotated[int, typer.Option("--mails", min=10, help="Mails to deliver.")] = 10_000,
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Worker processes.")] = 4,
    kills: Annotated[
        int, typer.Option("--kills", min=1, help="Kills that must hit a worker with mail in flight.")
    ] = 50,
    lease: Annotated[float, typer.Option("--lease", min=1, max=600, help="Seconds of a lease.")] = 5.0,
    faults: Annotated[
        str, typer.Option("--faults", help="By commas: kill, stop, restart-postgres.")
    ] = "kill,stop",
    seed: Annotated[int | None, typer.Option("--seed", help="Whom to hit, and when; else by chance.")] = None,
    database: Annotated[Literal["postgres", "sqlite"], typer.Option("--database")] = "postgres",
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """Deliver mails with workers that are killed and stopped all the time; then check what arrived."""
    from homing.proof.chaos.mail import Plan

    chosen = _chosen(faults, database, postgres_url)
    plan = Plan(
        mails=mails,
        workers=workers,
        kills=kills if "kill" in chosen else 0,
        stops=-(-kills // _KILLS_PER_STOP) if "stop" in chosen else 0,
        restarts=-(-kills // _KILLS_PER_RESTART) if "restart-postgres" in chosen else 0,
        lease=lease,
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
    )
    _err.print(f"seed {plan.seed} · {plan.mails} mails · {plan.workers} workers · lease {plan.lease:g} s")
    report = _run(plan, database, postgres_url)
    if json:
        print_json({**msgspec.to_builtins(report), "passed": report.verdict.passed})
    else:
        _show(report)
    if not report.verdict.passed:
        raise typer.Exit(1)


def _chosen(faults: str, database: str, postgres_url: str | None) -> set[str]:
    chosen = {word.strip() for word in faults.split(",") if word.strip()}
    if unknown := sorted(chosen - set(_FAULTS)):
        raise SettingsError(f"there is no fault {unknown[0]!r}; there are {', '.join(_FAULTS)}")
    if not chosen:
        raise SettingsError(f"name at least one fault: {', '.join(_FAULTS)}")
    if "restart-postgres" in chosen and (database != "postgres" or postgres_url):
        raise SettingsError("restart-postgres needs a PostgreSQL of its own: leave out --postgres-url")
    return chosen


def _run(plan: Plan, database: str, postgres_url: str | None) -> ChaosReport:
    from homing.proof.chaos.mail import run_mail

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="homing-chaos-")))
        url, restart = stack.enter_context(_database(database, folder, postgres_url))
        tell = stack.enter_context(_progress(plan.mails))
        return run_async(run_mail(plan, url, folder, tell=tell, restart=restart))


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
def _progress(mails: int) -> Iterator[Tell]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with ProgressBar(*columns, console=_err, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=mails)

        def tell(progress: Progress) -> None:
            bar.update(task, completed=progress.ended, description=_in_words(progress))

        yield tell


def _in_words(progress: Progress) -> str:
    words = [f"{progress.hits} of {progress.kills} kills hit", f"{progress.stops} stops"]
    return " · ".join([*words, f"{progress.restarts} restarts"] if progress.restarts else words)


def _show(report: ChaosReport) -> None:
    for name, value in report.verdict.figures.items():
        _out.print(f"{name.replace('_', ' '):<28}{value:>10,}")
    _out.print()
    for check in report.verdict.checks:
        word = "[green]PASS[/]" if check.passed else "[red]FAIL[/]"
        _out.print(f"{word}  {check.name}: ", check.detail, sep="", markup=True)
    end = "Every promise was kept." if report.verdict.passed else "[red]A promise was broken.[/]"
    _out.print(f"\n{end} {report.seconds:g} s, seed {report.plan.seed}.")
