"""jobs copy: all dispatch jobs from one database to another, compared at the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from homing.cli.options import Json, print_json, print_table, run_async
from homing.errors import InvalidRequest

if TYPE_CHECKING:
    from homing.lanes.dispatch_jobs.copying import Copied

_err = Console(stderr=True, highlight=False, soft_wrap=True)
_URLS = "postgresql://…, sqlite:///… or mongodb://…"


def add_to(app: typer.Typer) -> None:
    jobs = typer.Typer(no_args_is_help=True, help="Dispatch jobs as a whole.")
    jobs.command()(copy)
    app.add_typer(jobs, name="jobs")


def copy(
    source: Annotated[str, typer.Option("--from", metavar="URL", help=f"Where they are: {_URLS}.")],
    target: Annotated[str, typer.Option("--to", metavar="URL", help=f"Where they are to be: {_URLS}.")],
    batch: Annotated[int, typer.Option("--batch", min=1, max=10_000, help="Jobs at a time.")] = 200,
    merge: Annotated[
        bool, typer.Option("--merge", help="The target may have other jobs; those there stay as they are.")
    ] = False,
    json: Json = False,
) -> None:
    """Copy all dispatch jobs, their attempts, credentials and targets, and compare them.

    It may be stopped and begun again. Stop workers first: what somebody has claimed is copied as due. Secrets
    stay sealed by the same key. Exit 1 when something is not the same in the end.
    """
    if source == target:
        raise InvalidRequest("--from and --to are the same database")
    done = run_async(_copy(source, target, batch=batch, merge=merge))
    if json:
        print_json(done)
    else:
        print_table(_told(done))
    if done.differing:
        raise typer.Exit(1)


async def _copy(source: str, target: str, *, batch: int, merge: bool) -> Copied:
    from homing.lanes.dispatch_jobs.copying import opened_copy

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_err, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("copy", total=None)
        async with opened_copy(source, target, batch=batch, merge=merge) as copy:
            async for progress in copy:
                bar.update(
                    task, description=progress.step, completed=progress.done, total=progress.total or None
                )
            return copy.copied


def _told(done: Copied) -> str:
    copied = f"{done.jobs:,} jobs, {done.credentials:,} credentials and {done.targets:,} targets copied"
    lines = [f"{copied}, {done.ranges:,} ranges compared"]
    lines += [f"{one.kind} {one.id} {one.what}" for one in done.differences]
    if done.differing > len(done.differences):
        lines.append(f"and {done.differing - len(done.differences):,} more")
    return "\n".join(lines)
