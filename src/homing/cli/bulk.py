"""bulk: requeue, cancel or send now all messages that a query line means; count first, then watch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from homing.cli.find import QueryCommand, wanted_in
from homing.cli.operator import confirm, typist
from homing.cli.options import Config, DatabaseUrl, Json, print_json, print_table, run_async, settings_from
from homing.cli.tables import Column, listing

if TYPE_CHECKING:
    from homing.app import Homing
    from homing.desk.bulk import Asker, BulkRun, Counted
    from homing.messages.model import Verb
    from homing.settings import Settings

Result = TypeVar("Result")

_err = Console(stderr=True, highlight=False, soft_wrap=True)
_BETWEEN_LOOKS = 0.1
#: Seconds that an interrupt waits for the batch that is under way.
_LAST_BATCH = 5.0

Query = Annotated[
    list[str],
    typer.Argument(metavar="QUERY", help="Which, as in 'status:dead lane:dispatch_jobs error:timeout'."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell how many.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def add_to(app: typer.Typer) -> None:
    bulk = typer.Typer(no_args_is_help=True, help="Act on all messages that a query line means.")
    app.add_typer(bulk, name="bulk")
    for verb, does in _VERBS.items():
        bulk.command(name=verb.replace("_", "-"), help=does, cls=QueryCommand)(_command(verb))
    bulk.command(name="list")(list_runs)
    bulk.command()(stop)


_VERBS: Mapping[Verb, str] = {
    "requeue": "Deliver ended messages again, with all attempts.",
    "cancel": "End messages that wait.",
    "send_now": "Make messages due that wait. A pause, a limit, an order, somebody's hours hold them back as "
    "before.",
}


_CAN_BE: Mapping[Verb, str] = {
    "requeue": "those that have ended and were not delivered can",
    "cancel": "those that wait can",
    "send_now": "those that wait can",
}


def _command(verb: Verb) -> Callable[..., None]:
    def act(
        query: Query,
        dry_run: DryRun = False,
        yes: Yes = False,
        json: Json = False,
        database_url: DatabaseUrl = None,
        config: Config = None,
    ) -> None:
        settings = settings_from(config, database_url=database_url)
        _act(settings, verb, " ".join(query), dry_run=dry_run, yes=yes, json=json)

    return act


def _act(settings: Settings, verb: Verb, query: str, *, dry_run: bool, yes: bool, json: bool) -> None:
    wanted_in(query, f"bulk {verb.replace('_', '-')}", datetime.now(UTC))
    counted = run_async(_with_homing(settings, lambda homing: _count(homing, verb, query)))
    if dry_run or not counted.total:
        _tell_count(counted, verb, json=json, dry_run=dry_run)
        return
    if not yes:
        _err.print(_counts(counted))
        confirm(f"{verb.replace('_', ' ')} {_many(counted)}?")
    run = run_async(_with_homing(settings, lambda homing: _run(homing, verb, query)))
    _tell(run, json=json)
    if run.state != "done":
        raise typer.Exit(1)


async def _with_homing(settings: Settings, work: Callable[[Homing], Awaitable[Result]]) -> Result:
    from homing.app import opened

    async with opened(settings) as homing:
        await homing.require_schema()
        return await work(homing)


async def _count(homing: Homing, verb: Verb, query: str) -> Counted:
    runs = homing.bulk.runs
    return await runs.count(runs.read(query), verb, _typist().may)


def _typist() -> Asker:
    """Whoever has the database has everything."""
    from homing.desk.bulk import Asker

    return Asker(typist(), lambda _scope: True)


async def _run(homing: Homing, verb: Verb, query: str) -> BulkRun:
    """Done here unless another process is quicker; when this one is interrupted, another goes on."""
    run = await homing.bulk.runs.start(query, verb, _typist())
    runner = homing.bulk.runner()
    doing = asyncio.create_task(runner.see_through(run.id))
    try:
        return await _watch(homing, run.id)
    except asyncio.CancelledError:
        _err.print(
            f"run {run.id} is left to `homing serve` or `homing work`; `homing bulk stop {run.id}` ends it"
        )
        raise
    finally:
        runner.stop()
        await asyncio.wait({doing}, timeout=_LAST_BATCH)
        doing.cancel()


async def _watch(homing: Homing, id: int) -> BulkRun:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_err, transient=True) as progress:
        task = progress.add_task("counting", total=None)
        while True:
            run = await homing.bulk.runs.existing(id)
            progress.update(task, description=run.state, completed=run.processed, total=run.total)
            if run.finished_at is not None:
                return run
            await asyncio.sleep(_BETWEEN_LOOKS)


# ── look and stop ────────────────────────────────────────────────────────────────────────────────


def list_runs(
    limit: Annotated[int, typer.Option("--limit", "-l", "-n", min=1, max=500, help="At most so many.")] = 20,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Bulk runs, newest first."""
    settings = settings_from(config, database_url=database_url)
    runs = run_async(_with_homing(settings, lambda homing: homing.bulk.runs.page(limit=limit)))
    if json:
        print_json([_shown(run) for run in runs])
        return
    print_table(listing(_COLUMNS, [_cells(run) for run in runs]) if runs else "no bulk runs")


def stop(
    id: Annotated[
        int,
        typer.Argument(min=1, max=2**63 - 1, metavar="ID", help="Of a run, as `homing bulk list` has it."),
    ],
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Stop a bulk run after the batch that is under way. What was done stays done."""
    settings = settings_from(config, database_url=database_url)
    run = run_async(_with_homing(settings, lambda homing: homing.bulk.runs.cancel(id, _typist())))
    _tell(run, json=json)


# ── told ─────────────────────────────────────────────────────────────────────────────────────────

_COLUMNS = (
    Column("id", whole=True, right=True),
    Column("verb", whole=True),
    Column("state", whole=True),
    Column("done", right=True),
    Column("skipped", rank=2, right=True),
    Column("failed", rank=2, right=True),
    Column("of", rank=1, right=True),
    Column("by", rank=3),
    Column("at", rank=4, whole=True),
    Column("query"),
)


def _cells(run: BulkRun) -> Sequence[str]:
    from homing.db import iso

    total = "" if run.total is None else f"{run.total:,}{'+' if run.is_estimate else ''}"
    figures = (f"{run.done:,}", f"{run.skipped:,}", f"{run.failed:,}", total)
    return (str(run.id), run.verb, run.state, *figures, run.created_by, iso(run.created_at) or "", run.query)


def _shown(run: BulkRun) -> Any:
    from homing.desk.bulk_view import bulk_view

    return bulk_view(run)


def _tell(run: BulkRun, *, json: bool) -> None:
    if json:
        print_json(_shown(run))
        return
    more = "".join(
        f", {count:,} {word}" for count, word in ((run.skipped, "skipped"), (run.failed, "failed")) if count
    )
    why = f": {run.last_error}" if run.last_error and run.state == "failed" else ""
    print_table(f"run {run.id}: {run.state}, {run.done:,} done{more} in {run.seconds:.1f} s{why}")


def _tell_count(counted: Counted, verb: Verb, *, json: bool, dry_run: bool) -> None:
    from homing.desk.bulk import PARTICIPLES

    if json:
        from homing.desk.bulk_view import count_view

        print_json(count_view(counted))
        return
    if not dry_run:
        print_table(f"nothing was done: no message that is meant can be {PARTICIPLES[verb]}; {_CAN_BE[verb]}")
        return
    print_table(_counts(counted))
    print_table(f"bulk: {_many(counted)} would be {PARTICIPLES[verb]}")


def _counts(counted: Counted) -> Any:
    rows = [(name, f"{count:,}") for name, count in counted.lanes.items()]
    return listing((Column("lane", whole=True), Column("messages", right=True)), rows)


def _many(counted: Counted) -> str:
    number = f"{'at least ' if counted.is_estimate else ''}{counted.total:,}"
    return f"{number} {'message' if counted.total == 1 else 'messages'}"
