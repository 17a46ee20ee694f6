"""prune: delete what ended long ago, after a look at how much that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from homing.cli.operator import confirm
from homing.cli.options import Config, DatabaseUrl, Json, print_json, print_table, run_async, settings_from
from homing.cli.tables import Column, listing
from homing.errors import InvalidRequest

if TYPE_CHECKING:
    from homing.app import Homing
    from homing.engine.prune import Retention, Step
    from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)
#: Of the time: whoever delivers beside it has the rest of the disk, and of an SQLite file's only lock.
_SHARE = 0.5


class Finding(Struct, frozen=True, rename="camel"):
    """Of one lane and state: how many may go, and since when the first of them has ended."""

    lane: str
    state: str
    older_than: str
    count: int
    oldest: datetime | None


def add_to(app: typer.Typer) -> None:
    app.command()(prune)


def prune(
    lane: Annotated[str | None, typer.Option("--lane", metavar="LANE", help="Only this lane.")] = None,
    state: Annotated[str | None, typer.Option("--state", metavar="STATE", help="Only this state.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="Ended so long ago: 30d, 36h, 4w. Left out: HOMING_RETENTION."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell how much there is.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Delete messages that ended long ago, with all that is theirs; and bulk runs and alerts that are over.

    Only what has ended, and never before 24 hours. In small batches, beside workers that go on; it may be
    stopped and begun again. The audit log is left alone, unless it is named: by --lane audit, or in
    HOMING_RETENTION.
    """
    settings = settings_from(config, database_url=database_url)
    findings = run_async(_look(settings, lane, state, older_than))
    total = sum(one.count for one in findings)
    if dry_run or not total:
        _tell(findings, dry_run=dry_run, json=json)
        return
    if not yes:
        _err.print(_told(findings))
        confirm(f"delete {_rows(total)} for good?")
    _tell(run_async(_prune(settings, lane, state, older_than, findings)), dry_run=False, json=json)


def _tell(findings: Sequence[Finding], *, dry_run: bool, json: bool) -> None:
    if json:
        print_json({"dryRun": dry_run, "pruned": findings})
        return
    total = sum(one.count for one in findings)
    if not total:
        print_table("prune: 0 rows; nothing that has ended is old enough")
        return
    print_table(_told(findings))
    print_table(f"prune: {_rows(total)}{' would be deleted' if dry_run else ''}")


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


_COLUMNS = (
    Column("lane", whole=True),
    Column("state", whole=True),
    Column("older than", rank=1, whole=True),
    Column("rows", right=True),
    Column("ended since", rank=2, whole=True),
)


def _told(findings: Sequence[Finding]) -> Table:
    """Those that there is something of."""
    from homing.db import iso

    shown = [one for one in findings if one.count]
    cells = [(one.lane, one.state, one.older_than, f"{one.count:,}", iso(one.oldest) or "") for one in shown]
    return listing(_COLUMNS, cells)


# ── which ────────────────────────────────────────────────────────────────────────────────────────


def _steps(homing: Homing, lane: str | None, state: str | None, older_than: str | None) -> list[Step]:
    from homing.engine.prune import Step, plan
    from homing.parts.retention import AUDIT, prunable_tables

    tables = prunable_tables(homing.database, homing.jobs_database, homing.notify_database)
    lanes = {
        table.lane: [s for other in tables if other.lane == table.lane for s in other.states]
        for table in tables
    }
    _require_known(lanes, lane, state)
    chosen_lanes = [name for name in lanes if name != AUDIT] if lane is None else [lane]
    retention = _retention(homing.settings, chosen_lanes, older_than)
    chosen = [step for step in plan(retention, tables) if lane in {None, step.table.lane}]
    if state is None:
        return chosen
    only = [Step(step.table, {state: step.ages[state]}) for step in chosen if state in step.ages]
    return [step for step in only if state in step.table.states]


def _require_known(lanes: Mapping[str, Sequence[str]], lane: str | None, state: str | None) -> None:
    if lane is not None and lane not in lanes:
        raise InvalidRequest(f"there is no lane {lane!r}; there are {', '.join(lanes)}")
    states = list(dict.fromkeys(s for name in lanes if lane in {None, name} for s in lanes[name]))
    if state is not None and state not in states:
        raise InvalidRequest(f"nothing ends as {state!r}; {lane or 'messages'} can be {', '.join(states)}")


def _retention(settings: Settings, lanes: Sequence[str], older_than: str | None) -> Retention:
    from homing.engine.prune import Retention, read_age, read_retention

    if older_than is None:
        retention = read_retention(settings.retention)
        if not retention.ages:
            raise InvalidRequest("everything is kept: set HOMING_RETENTION, or say --older-than 30d")
        return retention
    try:
        return Retention(dict.fromkeys(lanes, read_age(older_than)))
    except ValueError as error:
        raise InvalidRequest(f"--older-than: {error}") from None


# ── look and delete ──────────────────────────────────────────────────────────────────────────────


async def _look(
    settings: Settings, lane: str | None, state: str | None, older_than: str | None
) -> list[Finding]:
    from homing.app import opened
    from homing.engine.prune import survey

    found = _Sums()
    async with opened(settings) as homing:
        await homing.require_schema()
        for step in _steps(homing, lane, state, older_than):
            found.expect(step)
            async for some in survey(step):
                for one in some:
                    found.add(step.table.lane, one.state, one.count, one.oldest)
    return found.findings()


async def _prune(
    settings: Settings, lane: str | None, state: str | None, older_than: str | None, seen: Sequence[Finding]
) -> list[Finding]:
    from homing.app import opened
    from homing.engine.prune import Pace, prune

    oldest = {(one.lane, one.state): one.oldest for one in seen}
    done = _Sums()
    async with opened(settings) as homing:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=_err, transient=True) as progress:
            task = progress.add_task("prune", total=sum(one.count for one in seen))
            for step in _steps(homing, lane, state, older_than):
                done.expect(step)
                progress.update(task, description=step.table.lane)
                async for counts in prune(step, Pace(_SHARE)):
                    for state_, count in counts.items():
                        done.add(step.table.lane, state_, count, oldest.get((step.table.lane, state_)))
                    progress.advance(task, sum(counts.values()))
    return done.findings()


class _Sums:
    """By lane and state, in the order in which they came up."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}

    def expect(self, step: Step) -> None:
        from homing.engine.prune import age_in_words

        for state in step.table.states:
            if state in step.ages:
                key = (step.table.lane, state)
                self._found.setdefault(key, Finding(*key, age_in_words(step.ages[state]), 0, None))

    def add(self, lane: str, state: str, count: int, oldest: datetime | None) -> None:
        known = self._found[lane, state]
        moments = [moment for moment in (known.oldest, oldest) if moment is not None]
        self._found[lane, state] = Finding(
            lane, state, known.older_than, known.count + count, min(moments, default=None)
        )

    def findings(self) -> list[Finding]:
        return list(self._found.values())
