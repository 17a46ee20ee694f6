"""What `list`, `show`, `requeue` and `cancel` do with notifications of open seats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from homing.cli.history import Story, story_of, story_table
from homing.cli.jobs import JobFlags, Verb
from homing.cli.operator import confirm
from homing.cli.options import print_json, print_table, run_async
from homing.cli.tables import Column, fields, listing
from homing.errors import InvalidRequest, NotAllowed, NotFound

if TYPE_CHECKING:
    from homing.app import Homing
    from homing.lanes.open_events.view import NotificationSummary, NotificationView
    from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)

FROM_STATES: Mapping[Verb, tuple[str, ...]] = {
    "requeue": ("failed", "skipped", "expired"),
    "cancel": ("pending",),
}
_BULK = 500


# ── list ─────────────────────────────────────────────────────────────────────────────────────────


def print_list(
    settings: Settings, status: str | None, _flags: JobFlags, *, limit: int, before: str | None, json: bool
) -> None:
    found = run_async(_list(settings, status, limit, before))
    if json:
        print_json(found)
        return
    print_table(_listing(found) if found else "no notifications")
    if len(found) == limit:
        _err.print(f"there may be more: --before {found[-1].id}", style="dim")


async def _list(
    settings: Settings, status: str | None, limit: int, before: str | None
) -> list[NotificationSummary]:
    from homing.app import opened
    from homing.lanes.open_events.view import listed

    async with opened(settings) as homing:
        cursor = number(before) if before else None
        rows = await homing.notifications.page(status=status, before=cursor, limit=limit)
        return [listed(row) for row in rows]


_COLUMNS = (
    Column("notification", whole=True),
    Column("state", whole=True),
    Column("attempts", rank=3, right=True),
    Column("section"),
    Column("to", rank=2),
    Column("why", rank=1),
    Column("due", rank=4, whole=True),
    Column("locked by", rank=5),
)


def _listing(found: Sequence[NotificationSummary]) -> Table:
    return listing(
        _COLUMNS,
        [
            (
                one.id, one.status, str(one.attempts), _section(one), one.to or "", one.error_code or "",
                one.due_at or "", one.locked_by or "",
            )
            for one in found
        ],
    )  # fmt: skip


def _section(one: NotificationSummary) -> str:
    return " ".join(part for part in (one.term_id, one.campus_code, one.index_number) if part)


# ── show ─────────────────────────────────────────────────────────────────────────────────────────


def print_one(settings: Settings, id: str, *, json: bool) -> None:
    found, story = run_async(_look(settings, id))
    values: dict[str, Any] = msgspec.to_builtins(found)
    if json:
        print_json({**values, **msgspec.to_builtins(story)})
        return
    print_table(fields({_named(name, found): value for name, value in values.items()}))
    if (table := story_table(story)) is not None:
        print_table(table)


def _named(field: str, found: NotificationView) -> str:
    """The column `error` also has how one was sent."""
    return "result" if field == "error" and found.status == "sent" else field


async def _look(settings: Settings, id: str) -> tuple[NotificationView, Story]:
    from homing.app import opened
    from homing.lanes.open_events.view import shown

    async with opened(settings) as homing:
        row = await homing.notifications.get(number(id))
        if row is None:
            raise NotFound(
                f"there is no notification {id}; `homing list --lane open_events` shows those there are"
            )
        return shown(row), await story_of(homing, f"notification_{number(id)}")


# ── the runbook's questions ──────────────────────────────────────────────────────────────────────


async def questions(homing: Homing) -> dict[str, list[dict[str, Any]]]:
    """Why some ended badly, who holds how many, and which are tried again and again."""
    rows = homing.notifications
    return {
        "reasons": [dict(row) for row in await rows.reasons()],
        "locks": [dict(row) for row in await rows.locks()],
        "churn": [dict(row) for row in await rows.churn()],
    }


_TITLES = {
    "reasons": "why notifications ended badly",
    "locks": "who holds notifications, and how many of the locks are over",
    "churn": "pending though tried before",
}


def answer(question: str, rows: Sequence[Mapping[str, Any]]) -> Table | str:
    if not rows:
        return f"{_TITLES[question]}: none"
    columns = [Column(name, right=name in {"count", "over", "attempts"}) for name in rows[0]]
    cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
    return listing(columns, cells, title=_TITLES[question])


# ── act ──────────────────────────────────────────────────────────────────────────────────────────


def number(id: str) -> int:
    from homing.lanes.open_events.view import notification_number

    return notification_number(id)


async def check(homing: Homing, verb: Verb, numbers: Sequence[int]) -> None:
    """Raise unless the verb suits all of them, before anything is changed."""
    for number in numbers:
        row = await homing.notifications.get(number)
        if row is None:
            raise NotFound(f"there is no notification notification_{number}; nothing was changed")
        if row["status"] not in FROM_STATES[verb]:
            raise NotAllowed(
                f"notification_{number} is {row['status']}; {verb} takes {', '.join(FROM_STATES[verb])}; "
                "nothing was changed"
            )


async def act_on_ids(homing: Homing, verb: Verb, numbers: Sequence[int]) -> int:
    act = homing.notifications.requeue if verb == "requeue" else homing.notifications.cancel
    return len(await act(numbers))


def act_on_all(
    verb: Verb, settings: Settings, state: str, _flags: JobFlags, *, dry_run: bool, yes: bool, json: bool
) -> None:
    if state not in FROM_STATES[verb]:
        raise InvalidRequest(
            f"notifications that are {state} cannot be used with {verb}: only {', '.join(FROM_STATES[verb])}"
        )
    total = run_async(_count(settings, state))
    if total and not (dry_run or yes):
        verb_form = "is" if total == 1 else "are"
        confirm(f"{verb} {in_words(total)} that {verb_form} {state}?")
    done = total if dry_run else run_async(_act_on_state(verb, settings, state, total))
    if json:
        print_json({"dryRun": dry_run, verb: done})
    else:
        print_table(f"{verb}: {in_words(done)}{' would be changed' if dry_run else ''}")


def in_words(count: int) -> str:
    return f"{count:,} {'notification' if count == 1 else 'notifications'}"


async def _count(settings: Settings, state: str) -> int:
    from homing.app import opened

    async with opened(settings) as homing:
        return (await homing.notifications.counts())[state]


async def _act_on_state(verb: Verb, settings: Settings, state: str, total: int) -> int:
    from homing.app import opened

    done = after = 0
    async with opened(settings) as homing:
        with Progress(console=_err, transient=True) as progress:
            task = progress.add_task(verb, total=total)
            while ids := await homing.notifications.ids_by_status(state, after=after, limit=_BULK):
                done, after = done + await act_on_ids(homing, verb, ids), ids[-1]
                progress.update(task, completed=done)
    return done
