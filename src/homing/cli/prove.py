"""bench: the speed that the README claims, to be measured on your machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from homing.cli.options import Json, print_json, run_async

_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)

Rounds = Annotated[int, typer.Option("--rounds", min=1, max=100, help="Everybody runs this often, in turns.")]
PostgresUrl = Annotated[
    str | None,
    typer.Option(
        "--postgres-url",
        metavar="URL",
        help="A server in which databases may be made; else a private one is started.",
    ),
]
Step = Callable[[str], None]


class BenchedLane(StrEnum):
    MAIL_OUTBOX = "mail_outbox"
    DISPATCH_JOBS = "dispatch_jobs"


#: Above this much load per core before we start, the results are rough.
_QUIET_LOAD = 0.25
QUICK_SIZES = [10_000, 1_000_000]


def add_to(app: typer.Typer) -> None:
    bench = typer.Typer(
        no_args_is_help=True, help="Measure, and compare with the budgets. Exit 1 when one is missed."
    )
    for command in (
        mail,
        webhook,
        emails,
        notifications,
        router,
        mongo,
        fairness,
        scale,
        search,
        latency,
        memory,
        create,
        storage,
        desk,
    ):
        bench.command()(command)
    app.add_typer(bench, name="bench")


def mail(
    mails: Annotated[
        int, typer.Option("--mails", min=100, help="Mails per round of Homing; peers get fewer.")
    ] = 20000,
    rounds: Rounds = 5,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """The limit, Homing, and peers that do the same work: mails per second, in turns."""
    from homing.proof.bench import show
    from homing.proof.bench.race import entrants_here, race

    with _steps(rounds * len(entrants_here()[0])) as step:
        _report(race(mails, rounds, step, postgres_url=postgres_url), show.mail_table, json=json)


def webhook(
    jobs: Annotated[
        int, typer.Option("--jobs", min=100, help="POSTs per round; each path gets its share of them.")
    ] = 5000,
    rounds: Rounds = 5,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """A bare aiohttp loop, Homing, and peers that send the same webhooks: POSTs per second, in turns."""
    from homing.proof.bench import show
    from homing.proof.bench.race import entrants_here
    from homing.proof.bench.webhook_race import ENTRANTS, webhook_race

    with _steps(rounds * len(entrants_here(ENTRANTS)[0])) as step:
        _report(webhook_race(jobs, rounds, step, postgres_url=postgres_url), show.webhook_table, json=json)


def emails(
    count: Annotated[
        int, typer.Option("--emails", min=100, help="Emails per round of Homing; peers get fewer.")
    ] = 10000,
    rounds: Rounds = 5,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """Emails per second through RabbitMQ, beside Celery doing the same work, and beside no broker at all."""
    from homing.proof.bench import show
    from homing.proof.bench.email_race import email_race, turns

    with _steps(rounds * turns()) as step:
        _report(email_race(count, rounds, step, postgres_url=postgres_url), show.email_table, json=json)


def notifications(
    count: Annotated[
        int, typer.Option("--notifications", min=100, help="Per round, and mails as many.")
    ] = 50000,
    subscribers: Annotated[
        int, typer.Option("--subscribers", min=100, help="Of the one section of the fan-out.")
    ] = 50000,
    rounds: Rounds = 5,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """Open-seat notifications per second beside mails, on PostgreSQL and SQLite; and what a fan-out costs."""
    from homing.proof.bench import show
    from homing.proof.bench.notifications import notification_race, turns

    with _steps(rounds * turns()) as step:
        work = notification_race(count, subscribers, rounds, step, postgres_url=postgres_url)
        _report(work, show.notification_table, json=json)


def router(
    jobs: Annotated[
        int, typer.Option("--jobs", min=100, help="Jobs per round; each path gets its share of them.")
    ] = 4000,
    rounds: Rounds = 5,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """Dispatch jobs per second through SQS and RabbitMQ, beside the worker that polls the database."""
    from homing.proof.bench import show
    from homing.proof.bench.router_race import ENTRANTS, router_race

    with _steps(rounds * len(ENTRANTS)) as step:
        _report(router_race(jobs, rounds, step, postgres_url=postgres_url), show.router_table, json=json)


def mongo(
    jobs: Annotated[int, typer.Option("--jobs", min=100, help="Dispatch jobs per round.")] = 5000,
    rounds: Rounds = 5,
    json: Json = False,
) -> None:
    """Dispatch jobs put in, claimed and settled per second on MongoDB, beside PostgreSQL."""
    from homing.proof.bench import show
    from homing.proof.bench.mongo_race import mongo_race

    with _steps(1) as step:
        _report(mongo_race(jobs, rounds, step), show.mongo_table, json=json)


def fairness(
    targets: Annotated[int, typer.Option("--targets", min=1, max=200, help="Of each kind.")] = 200,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="For each target.")] = 25,
    rounds: Rounds = 5,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """How long webhooks to healthy targets wait beside as many targets that drip a byte a second."""
    from homing.proof.bench import fairness as bench
    from homing.proof.bench import show

    plan = bench.FairnessPlan(targets, jobs)
    with _steps(2 * rounds * len(bench.ARRIVALS)) as step:
        _report(bench.fairness(plan, rounds, step, postgres_url=postgres_url), show.fairness_table, json=json)


def scale(
    lane: Annotated[BenchedLane, typer.Option("--lane", help="Whose table.")] = BenchedLane.MAIL_OUTBOX,
    rows: Annotated[
        list[int] | None, typer.Option("--rows", min=1000, help="A table size; several are allowed.")
    ] = None,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """What a claim costs in a table of 10,000 and 1,000,000 rows (or those named with --rows)."""
    from homing.proof.bench import jobs_scale, show
    from homing.proof.bench import scale as mail_scale

    sizes = rows or QUICK_SIZES
    measure = mail_scale.scale if lane == BenchedLane.MAIL_OUTBOX else jobs_scale.jobs_scale
    with _steps(len(sizes) + 3) as step:
        _report(measure(sizes, step, postgres_url=postgres_url), show.scale_table, json=json)


def search(
    rows: Annotated[int, typer.Option("--rows", min=1000, help="Jobs in the table.")] = 1_000_000,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """How long a search of dispatch jobs takes, for each filter and for frequent, rare and old values."""
    from homing.proof.bench import search as bench
    from homing.proof.bench import show

    with _steps(2) as step:
        _report(bench.search(rows, step, postgres_url=postgres_url), show.search_table, json=json)


def latency(
    samples: Annotated[int, typer.Option("--samples", min=10, help="Mails, one at a time.")] = 300,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """From the order to the mail at the peer, while nothing else is going on."""
    from homing.proof.bench import latency as bench
    from homing.proof.bench import show

    with _steps(2) as step:
        _report(bench.latency(samples, step, postgres_url=postgres_url), show.latency_table, json=json)


def memory(
    backlog: Annotated[int, typer.Option("--backlog", min=1000, help="Mails that wait.")] = 1_000_000,
    delivered: Annotated[
        int, typer.Option("--delivered", min=500, help="Of these, delivered meanwhile.")
    ] = 50_000,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """How much a worker grows when a million mails are waiting."""
    from homing.proof.bench import memory as bench
    from homing.proof.bench import show

    if delivered > backlog:
        raise typer.BadParameter("no more can be delivered than are waiting", param_hint="--delivered")
    with _steps(1) as step:
        _report(
            bench.memory(backlog, delivered, step, postgres_url=postgres_url), show.memory_table, json=json
        )


def storage(
    messages: Annotated[int, typer.Option("--messages", min=1000, help="Of each lane.")] = 20_000,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """How many bytes of log, table and indexes PostgreSQL writes for each message."""
    from homing.proof.bench import show
    from homing.proof.bench import storage as bench

    with _steps(2) as step:
        _report(bench.storage(messages, step, postgres_url=postgres_url), show.storage_table, json=json)


def desk(
    messages: Annotated[
        int, typer.Option("--messages", min=0, help="In all lanes, on PostgreSQL; 0 leaves it out.")
    ] = 5_000_000,
    in_file: Annotated[
        int, typer.Option("--in-file", min=0, help="In all lanes, on SQLite; 0 leaves it out.")
    ] = 1_000_000,
    waiting: Annotated[
        list[int] | None,
        typer.Option("--waiting", min=0, max=100, help="Percent that wait; 1 and 50, in turns, unless said."),
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=1, help="For each page.")] = 40,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """How fast every page of the desk answers, and typical query lines; a look of the alerts, a bulk run."""
    from homing.proof.bench import desk as bench
    from homing.proof.bench import show

    shapes = tuple(waiting or bench.SHAPES)
    with _steps(3 * len(shapes) * ((messages > 0) + (in_file > 0))) as step:
        plan = bench.DeskPlan(messages, in_file, shapes, requests)
        _report(bench.desk(plan, step, postgres_url=postgres_url), show.desk_table, json=json)


def create(
    lane: Annotated[
        list[BenchedLane] | None, typer.Option("--lane", help="One of them; else both, in turns.")
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=100, help="Requests per round.")] = 20000,
    connections: Annotated[int, typer.Option("--connections", min=1, max=1000, help="Open at once.")] = 64,
    rounds: Rounds = 5,
    postgres_url: PostgresUrl = None,
    json: Json = False,
) -> None:
    """POST /api/mail and /api/dispatch/jobs, each against the same endpoint without a database."""
    from homing.proof.bench import create as bench
    from homing.proof.bench import show

    lanes = [one.value for one in lane or BenchedLane]
    with _steps(2 * rounds * len(lanes)) as step:
        work = bench.create(lanes, requests, connections, rounds, step, postgres_url=postgres_url)
        _report(work, show.create_table, json=json)


@contextmanager
def _steps(total: int) -> Iterator[Step]:
    """A progress bar, on standard error; each step names what runs from now on."""
    _warn_of_company()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=_err, transient=True) as progress:
        task = progress.add_task("starting the servers", total=total)
        begun = iter(range(total))

        def step(description: str) -> None:
            progress.update(task, description=description, completed=next(begun, total))

        yield step


def _warn_of_company() -> None:
    """Two runnable programs per core halve a rate, and not everybody's alike."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores * _QUIET_LOAD:
        advice = "others are at work here, so expect wide spreads and trust no single ratio"
        _err.print(f"[yellow]warning:[/] the load average is {load:.1f} on {cores} cores: {advice}")


def _report(work: Coroutine[Any, Any, Any], show: Callable[[Any], RenderableType], *, json: bool) -> None:
    result = run_async(work)
    if json:
        print_json(result)
    else:
        _out.print(show(result))
    if not all(budget.met for budget in result.budgets):
        raise typer.Exit(1)
