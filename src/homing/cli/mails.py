"""status · list · show · requeue · cancel · dispatch: looking at mails and acting on them."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

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
from homing.errors import InvalidRequest, NotAllowed, NotFound
from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)

MailId = Annotated[str, typer.Argument(help="outbox_123, or just 123.")]
MailIds = Annotated[list[str] | None, typer.Argument(help="outbox_123, or just 123; several are allowed.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell how many.")]

_BULK = 1000


def add_to(app: typer.Typer) -> None:
    app.command()(status)
    app.command(name="list")(list_mails)
    app.command()(show)
    app.command()(requeue)
    app.command()(cancel)
    app.command()(dispatch)


def status(json: Json = False, database_url: DatabaseUrl = None, config: Config = None) -> None:
    """How many mails are in which state, and how long the oldest has been due."""
    counts, oldest = run_async(_status(settings_from(config, database_url=database_url)))
    if json:
        print_json({"mail_outbox": {**counts, "oldestDueSeconds": round(oldest, 3)}})
        return
    table = Table("lane", *counts, "oldest due")
    table.add_row("mail_outbox", *(f"{count:,}" for count in counts.values()), f"{oldest:.1f} s")
    print_table(table)


async def _status(settings: Settings) -> tuple[dict[str, int], float]:
    from homing.app import opened

    async with opened(settings) as homing:
        return await homing.outbox.counts(), await homing.outbox.oldest_due()


def list_mails(
    status: Annotated[str | None, typer.Option("--status", "-s", help="queued, sent, failed, …")] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=10000)] = 20,
    before: Annotated[str | None, typer.Option("--before", help="Go on after this mail.")] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Mails, newest first."""
    settings = settings_from(config, database_url=database_url)
    rows = run_async(_list(settings, status, limit, before))
    if json:
        print_json(rows)
        return
    table = Table("mail", "state", "retries", "to", "subject", "next attempt", "last error")
    for row in rows:
        table.add_row(
            row["id"], row["status"], str(row["retryCount"]), escape(row["to"]),
            escape(row["subject"] or row["template"] or ""), row["nextAttemptAt"],
            escape(row["lastError"] or ""),
        )  # fmt: skip
    print_table(table if rows else "no mails")


async def _list(
    settings: Settings, status: str | None, limit: int, before: str | None
) -> list[dict[str, Any]]:
    from homing.app import opened
    from homing.lanes.mail_outbox.outbox import STATES
    from homing.lanes.mail_outbox.view import listed, row_number

    if status is not None and status not in STATES:
        raise InvalidRequest(f"there is no state {status!r}; there is {', '.join(STATES)}")
    async with opened(settings) as homing:
        cursor = row_number(before) if before else None
        return [listed(row) for row in await homing.outbox.page(status=status, before=cursor, limit=limit)]


def show(id: MailId, json: Json = False, database_url: DatabaseUrl = None, config: Config = None) -> None:
    """Everything about one mail."""
    mail = run_async(_show(settings_from(config, database_url=database_url), id))
    if json:
        print_json(mail)
        return
    table = Table(show_header=False, box=None)
    for name, value in mail.items():
        if value not in (None, "", [], {}):
            table.add_row(name, escape(str(value)))
    print_table(table)


async def _show(settings: Settings, id: str) -> dict[str, Any]:
    from homing.app import opened
    from homing.lanes.mail_outbox.view import row_number, shown

    async with opened(settings) as homing:
        row = await homing.outbox.get(row_number(id))
        if row is None:
            raise NotFound(f"there is no mail {id}; `homing list` shows those there are")
        return shown(row)


def requeue(
    ids: MailIds = None,
    all_: Annotated[
        str | None, typer.Option("--all", metavar="STATE", help="All mails that are failed, …")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Send mails again that failed, were cancelled or expired: to those who did not get them."""
    settings = settings_from(config, database_url=database_url)
    _act("requeue", settings, ids, all_, dry_run=dry_run, yes=yes, json=json)


def cancel(
    ids: MailIds = None,
    all_: Annotated[str | None, typer.Option("--all", metavar="STATE", help="queued: all that wait.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Take mails out of the queue."""
    settings = settings_from(config, database_url=database_url)
    _act("cancel", settings, ids, all_, dry_run=dry_run, yes=yes, json=json)


_FROM_STATES = {"requeue": ("failed", "cancelled", "expired"), "cancel": ("queued",)}


def _act(
    verb: str,
    settings: Settings,
    ids: list[str] | None,
    state: str | None,
    *,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> None:
    if bool(ids) == bool(state):
        raise InvalidRequest(
            f"name the mails to {verb}, or --all with one of {', '.join(_FROM_STATES[verb])}"
        )
    if state and state not in _FROM_STATES[verb]:
        raise InvalidRequest(
            f"mails that are {state} cannot be used with {verb}: only {', '.join(_FROM_STATES[verb])}"
        )
    if state and not (dry_run or yes):
        # Asked outside of the event loop, which would keep Ctrl-C from a question.
        total = run_async(_status(settings))[0][state]
        typer.confirm(
            f"{verb} {_mails(total)} that {'is' if total == 1 else 'are'} {state}?", abort=True, err=True
        )
    done = run_async(_act_on(verb, settings, ids or [], state, dry_run=dry_run))
    if json:
        print_json({"dryRun": dry_run, verb: done})
    else:
        print_table(f"{verb}: {_mails(done)}{' would be changed' if dry_run else ''}")


def _mails(count: int) -> str:
    return f"{count:,} {'mail' if count == 1 else 'mails'}"


async def _act_on(verb: str, settings: Settings, ids: list[str], state: str | None, *, dry_run: bool) -> int:
    from homing.app import opened
    from homing.lanes.mail_outbox.view import row_number

    async with opened(settings) as homing:
        if state is None:
            return await _act_on_ids(verb, homing.outbox, [row_number(one) for one in ids], dry_run=dry_run)
        total = (await homing.outbox.counts())[state]
        if dry_run or not total:
            return total
        return await _act_on_state(verb, homing.outbox, state, total)


async def _act_on_ids(verb: str, outbox: Any, numbers: list[int], *, dry_run: bool) -> int:
    rows = {number: await outbox.get(number) for number in numbers}
    if missing := [number for number, row in rows.items() if row is None]:
        raise NotFound(f"there is no mail outbox_{missing[0]}; nothing was changed")
    wrong = [(n, r["status"]) for n, r in rows.items() if r["status"] not in _FROM_STATES[verb]]
    if wrong:
        number, state = wrong[0]
        raise NotAllowed(
            f"outbox_{number} is {state}; {verb} takes {', '.join(_FROM_STATES[verb])}; nothing was changed"
        )
    return len(numbers) if dry_run else len(await getattr(outbox, verb)(numbers))


async def _act_on_state(verb: str, outbox: Any, state: str, total: int) -> int:
    done = 0
    with Progress(console=_err, transient=True) as progress:
        task = progress.add_task(verb, total=total)
        after = 0
        while ids := await outbox.ids_by_status(state, _BULK, after):
            done += len(await getattr(outbox, verb)(ids))
            after = 0 if state == "queued" else ids[-1]
            progress.update(task, completed=done)
    return done


def dispatch(
    batch_size: Annotated[int, typer.Option("--batch-size", "-n", min=1, max=1000)] = 50,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be claimed.")] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    mail_url: MailUrl = None,
    config: Config = None,
) -> None:
    """Claim one batch, send it, and tell how each mail ended; for a cron line."""
    settings = settings_from(config, database_url=database_url, mail_url=mail_url)
    reply = run_async(_dispatch(settings, batch_size, dry_run=dry_run))
    if json:
        print_json(reply)
        return
    table = Table("mail", "retries before", "due since", "state")
    for item in reply.items:
        table.add_row(item.id, str(item.retry_count), item.next_attempt_at, item.status or "would be claimed")
    print_table(table if reply.items else "nothing is due")


async def _dispatch(settings: Settings, batch_size: int, *, dry_run: bool) -> Any:
    from homing.app import opened
    from homing.lanes.mail_outbox.dispatching import DispatchRequest
    from homing.service import Stop, dispatch_once

    async with opened(settings) as homing:
        await homing.require_schema()
        stop = Stop()
        stop.install()
        return await dispatch_once(homing, stop, DispatchRequest(batch_size, dry_run, wait=True))
