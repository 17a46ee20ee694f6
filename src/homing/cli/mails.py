"""What `list`, `show`, `requeue` and `cancel` do with mails; and dispatch, which sends one batch of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from homing.cli.history import Story, story_of, story_table
from homing.cli.jobs import JobFlags, Verb
from homing.cli.operator import confirm
from homing.cli.options import (
    Config,
    DatabaseUrl,
    Json,
    MailUrl,
    print_json,
    print_table,
    run_async,
    settings_from,
)
from homing.cli.tables import Column, fields, listing
from homing.errors import InvalidRequest, NotAllowed, NotFound

if TYPE_CHECKING:
    from homing.app import Homing
    from homing.lanes.mail_outbox.view import MailSummary, OutboxMail
    from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)

FROM_STATES: Mapping[Verb, tuple[str, ...]] = {
    "requeue": ("failed", "cancelled", "expired"),
    "cancel": ("queued",),
}
_BULK = 1000


def add_to(app: typer.Typer) -> None:
    app.command()(dispatch)


# ── list ─────────────────────────────────────────────────────────────────────────────────────────


def print_list(
    settings: Settings, status: str | None, _flags: JobFlags, *, limit: int, before: str | None, json: bool
) -> None:
    rows = run_async(_list(settings, status, limit, before))
    if json:
        print_json(rows)
        return
    print_table(_listing(rows) if rows else "no mails")
    if len(rows) == limit:
        _err.print(f"there may be more: --before {rows[-1].id}", style="dim")


async def _list(settings: Settings, status: str | None, limit: int, before: str | None) -> list[MailSummary]:
    from homing.app import opened
    from homing.lanes.mail_outbox.view import listed, row_number

    async with opened(settings) as homing:
        cursor = row_number(before) if before else None
        return [listed(row) for row in await homing.outbox.page(status=status, before=cursor, limit=limit)]


_COLUMNS = (
    Column("mail", whole=True),
    Column("state", whole=True),
    Column("retries", rank=3, right=True),
    Column("to"),
    Column("subject", rank=2),
    Column("next attempt", rank=4, whole=True),
    Column("last error", rank=1),
)


def _listing(rows: Sequence[MailSummary]) -> Table:
    return listing(
        _COLUMNS,
        [
            (
                row.id, row.status, str(row.retry_count), row.to or "",
                row.subject or row.template or "", row.next_attempt_at or "", row.last_error or "",
            )
            for row in rows
        ],
    )  # fmt: skip


# ── show ─────────────────────────────────────────────────────────────────────────────────────────


def print_one(settings: Settings, id: str, *, json: bool) -> None:
    mail, story = run_async(_look(settings, id))
    values: dict[str, Any] = msgspec.to_builtins(mail)
    if json:
        print_json({**values, **msgspec.to_builtins(story)})
        return
    verdicts = values.pop("recipients")
    print_table(fields(values))
    if verdicts:
        print_table(verdicts_table(verdicts))
    if (table := story_table(story)) is not None:
        print_table(table)


async def _look(settings: Settings, id: str) -> tuple[OutboxMail, Story]:
    from homing.app import opened
    from homing.lanes.mail_outbox.view import row_number, shown

    async with opened(settings) as homing:
        number = row_number(id)
        row = await homing.outbox.get(number)
        if row is None:
            raise NotFound(f"there is no mail {id}; `homing list` shows those there are")
        return shown(row), await story_of(homing, f"outbox_{number}")


_VERDICT_COLUMNS = (
    Column("recipient"),
    Column("verdict", whole=True),
    Column("code", whole=True),
    Column("what the server said", rank=1),
)


def verdicts_table(verdicts: Mapping[str, Any]) -> Table:
    return listing(_VERDICT_COLUMNS, [_verdict(address, said) for address, said in verdicts.items()])


def _verdict(address: str, said: Any) -> tuple[str, ...]:
    """Another program may have written the column, so it may hold any JSON."""
    if not isinstance(said, Mapping):
        return address, str(said), "", ""
    codes = [str(said[name]) for name in ("code", "enhanced") if said.get(name)]
    return address, str(said.get("status", "")), " ".join(codes), str(said.get("text") or "")


# ── act ──────────────────────────────────────────────────────────────────────────────────────────


def number(id: str) -> int:
    from homing.lanes.mail_outbox.view import row_number

    return row_number(id)


async def check(homing: Homing, verb: Verb, numbers: Sequence[int]) -> None:
    """Raise unless the verb suits all of them, before anything is changed."""
    for number in numbers:
        row = await homing.outbox.get(number)
        if row is None:
            raise NotFound(f"there is no mail outbox_{number}; nothing was changed")
        if row["status"] not in FROM_STATES[verb]:
            raise NotAllowed(
                f"outbox_{number} is {row['status']}; {verb} takes {', '.join(FROM_STATES[verb])}; "
                "nothing was changed"
            )


async def act_on_ids(homing: Homing, verb: Verb, numbers: Sequence[int]) -> int:
    outbox = homing.outbox
    act = outbox.requeue if verb == "requeue" else outbox.cancel
    return len(await act(numbers))


def act_on_all(
    verb: Verb, settings: Settings, state: str, _flags: JobFlags, *, dry_run: bool, yes: bool, json: bool
) -> None:
    if state not in FROM_STATES[verb]:
        raise InvalidRequest(
            f"mails that are {state} cannot be used with {verb}: only {', '.join(FROM_STATES[verb])}; "
            "for jobs add --lane dispatch_jobs"
        )
    total = 0 if dry_run or yes else run_async(_count(settings, state))
    if total:
        confirm(f"{verb} {in_words(total)} that {'is' if total == 1 else 'are'} {state}?")
    done = run_async(_count(settings, state) if dry_run else _act_on_state(verb, settings, state))
    if json:
        print_json({"dryRun": dry_run, verb: done})
    else:
        print_table(f"{verb}: {in_words(done)}{' would be changed' if dry_run else ''}")


def in_words(count: int) -> str:
    return f"{count:,} {'mail' if count == 1 else 'mails'}"


async def _count(settings: Settings, state: str) -> int:
    from homing.app import opened

    async with opened(settings) as homing:
        return (await homing.outbox.counts())[state]


async def _act_on_state(verb: Verb, settings: Settings, state: str) -> int:
    from homing.app import opened

    done = after = 0
    async with opened(settings) as homing:
        outbox = homing.outbox
        with Progress(console=_err, transient=True) as progress:
            task = progress.add_task(verb, total=(await outbox.counts())[state])
            while ids := await outbox.ids_by_status(state, _BULK, after):
                done += await act_on_ids(homing, verb, ids)
                after = 0 if state == "queued" else ids[-1]
                progress.update(task, completed=done)
    return done


# ── dispatch ─────────────────────────────────────────────────────────────────────────────────────


def dispatch(
    batch_size: Annotated[int, typer.Option("--batch-size", "-n", min=1, max=1000)] = 50,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be claimed.")] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    mail_url: MailUrl = None,
    config: Config = None,
) -> None:
    """Claim one batch of mails, send it, and tell how each ended; for a cron line."""
    settings = settings_from(config, database_url=database_url, mail_url=mail_url)
    reply = run_async(_dispatch(settings, batch_size, dry_run=dry_run))
    if json:
        print_json(reply)
        return
    rows = [
        (item.id, str(item.retry_count), item.next_attempt_at, item.status or "would be claimed")
        for item in reply.items
    ]
    empty = f"{reply.held.due} due, none sent: {reply.held.reason}" if reply.held else "nothing is due"
    print_table(listing(_DISPATCH_COLUMNS, rows) if rows else empty)


_DISPATCH_COLUMNS = (
    Column("mail", whole=True),
    Column("retries", rank=1, right=True),
    Column("due", rank=2, whole=True),
    Column("state", whole=True),
)


async def _dispatch(settings: Settings, batch_size: int, *, dry_run: bool) -> Any:
    from homing.app import opened
    from homing.lanes.mail_outbox.dispatching import DispatchRequest
    from homing.service import Stop, dispatch_once

    async with opened(settings) as homing:
        await homing.require_schema()
        stop = Stop()
        stop.install()
        return await dispatch_once(homing, stop, DispatchRequest(batch_size, dry_run, wait=True))
