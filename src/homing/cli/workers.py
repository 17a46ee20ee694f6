"""workers: who is at work, pause and resume, and what a lost worker holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from homing.cli.operator import typist
from homing.cli.options import (
    Config,
    DatabaseUrl,
    Json,
    ListedByName,
    print_json,
    print_table,
    run_async,
    settings_from,
)
from homing.cli.tables import Column, listing
from homing.errors import InvalidRequest

if TYPE_CHECKING:
    from homing.app import Homing
    from homing.settings import Settings
    from homing.workers.leases import Held
    from homing.workers.model import Pause, Scope, WorkerView

_err = Console(stderr=True, highlight=False, soft_wrap=True)

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="As `homing workers` shows it.")]
LaneOption = Annotated[
    str | None,
    typer.Option("--lane", metavar="LANE", help="A lane, or a stage such as email_log:send, on all workers."),
]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; shown wherever the pause is.")]


class Found(msgspec.Struct, frozen=True, rename="camel"):
    workers: Sequence[WorkerView]
    pauses: Sequence[Pause]
    leases: Sequence[Held]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(cls=ListedByName, help="The processes at work: look, pause, resume, release.")
    group.command(name="list")(list_workers)
    group.command()(pause)
    group.command()(resume)
    group.command()(release)
    app.add_typer(group, name="workers")


def list_workers(json: Json = False, database_url: DatabaseUrl = None, config: Config = None) -> None:
    """Every process that was heard of lately, with what it works on and holds."""
    found = run_async(_look(settings_from(config, database_url=database_url)))
    if json:
        print_json(found)
        return
    print_pauses(found.pauses)
    cells = [_cells(one, found.leases) for one in found.workers]
    nobody = "nobody is at work; start `homing up` or `homing work`"
    print_table(listing(_COLUMNS, cells) if cells else nobody)


async def _look(settings: Settings) -> Found:
    from homing.app import opened

    async with opened(settings) as homing:
        return Found(
            await homing.fleet.workers(), await homing.fleet.pauses(), await homing.operations.leases.held()
        )


_COLUMNS = (
    Column("worker", whole=True),
    Column("state", whole=True),
    Column("works on"),
    Column("in flight", rank=1, right=True),
    Column("claimed", rank=3, right=True),
    Column("delivered", rank=3, right=True),
    Column("otherwise", rank=3, right=True),
    Column("leases", rank=2, right=True),
    Column("heard", rank=1, right=True),
    Column("version", rank=4),
)


def _cells(worker: WorkerView, leases: Sequence[Held]) -> tuple[str, ...]:
    reports = worker.report.lanes
    serves = ["(serves)"] if worker.serves else []
    return (
        worker.name,
        worker.state,
        ", ".join([*worker.lanes, *serves]),
        f"{sum(report.in_flight for report in reports):,}",
        f"{sum(report.claimed for report in reports):,}",
        f"{sum(report.delivered for report in reports):,}",
        f"{sum(report.otherwise for report in reports):,}",
        f"{sum(held.count for held in leases if held.owner == worker.name):,}",
        f"{worker.silent_seconds:.0f} s ago",
        worker.version,
    )


def print_pauses(pauses: Sequence[Pause]) -> None:
    """One line each: why nothing moves is the first that somebody wants to know."""
    for one in pauses:
        why = f": {one.reason}" if one.reason else ""
        since = one.asked_at.isoformat(timespec="seconds").replace("+00:00", "Z")
        # Escaped: a reason may have brackets.
        _err.print(
            f"[yellow]paused:[/] {escape(f'{one.scope} {one.name}, by {one.asked_by} since {since}{why}')}"
        )


# ── pause and resume ─────────────────────────────────────────────────────────────────────────────


def pause(
    name: Name = None,
    lane: LaneOption = None,
    reason: Reason = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Claim nothing more: one worker, or a lane on all of them. What has begun ends; it outlives restarts."""
    _change("pause", name, lane, reason, json=json, settings=settings_from(config, database_url=database_url))


def resume(
    name: Name = None,
    lane: LaneOption = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Go on, within five seconds."""
    _change("resume", name, lane, None, json=json, settings=settings_from(config, database_url=database_url))


Change = Literal["pause", "resume"]


def _change(
    verb: Change, name: str | None, lane: str | None, reason: str | None, *, json: bool, settings: Settings
) -> None:
    if (name is None) == (lane is None):
        raise InvalidRequest(
            f"name a worker, or a lane with --lane: homing workers {verb} --lane mail_outbox"
        )
    scope: Scope = "worker" if name is not None else "lane"
    what = name or lane or ""
    changed = run_async(_changed(settings, verb, scope, what, reason))
    if json:
        print_json({"scope": scope, "name": what, "changed": changed})
    elif changed:
        print_table(f"{verb}d: {scope} {what}; every process follows within five seconds")
    else:
        print_table(f"{scope} {what} was {'paused already' if verb == 'pause' else 'not paused'}")


async def _changed(settings: Settings, verb: Change, scope: Scope, name: str, reason: str | None) -> bool:
    from homing.app import opened

    async with opened(settings) as homing:
        if verb == "pause":
            changed = await homing.fleet.pause(scope, name, by=typist(), reason=reason)
        else:
            changed = await homing.fleet.resume(scope, name)
        detail = {**({"reason": reason} if reason else {}), **({} if changed else {"changed": "nothing"})}
        await _write_down(homing, f"workers.{verb}", f"{scope} {name}", detail or None)
        return changed


async def _write_down(
    homing: Homing, action: str, object: str, detail: Mapping[str, Any] | None = None
) -> None:
    from homing.access.audit import Entry

    await homing.access.audit.write(Entry(typist(), action, object, detail=detail))


# ── release ──────────────────────────────────────────────────────────────────────────────────────


def release(
    name: Annotated[str, typer.Argument(help="A worker that is lost or has stopped.")],
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Take back what a lost worker holds, before its leases end. If it lives, some may go out twice."""
    released = run_async(_release(settings_from(config, database_url=database_url), name))
    if json:
        print_json(released)
    elif released:
        print_table("due again: " + ", ".join(f"{count:,} of {lane}" for lane, count in released.items()))
    else:
        print_table(f"{name} holds nothing")


async def _release(settings: Settings, name: str) -> Mapping[str, int]:
    from homing.app import opened

    async with opened(settings) as homing:
        released = await homing.operations.leases.release(name)
        await _write_down(homing, "workers.release", name, dict(released))
        return released
