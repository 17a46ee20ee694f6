"""What `list`, `show` and `requeue` do with emails of email_log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from homing.cli.history import Story, story_of, story_table
from homing.cli.jobs import JobFlags, Verb
from homing.cli.mails import verdicts_table
from homing.cli.operator import confirm
from homing.cli.options import print_json, print_table, run_async
from homing.cli.tables import Column, fields, listing
from homing.errors import InvalidRequest, NotAllowed, NotFound

if TYPE_CHECKING:
    from homing.app import Homing
    from homing.lanes.email_log.view import EmailSummary, EmailView
    from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)

#: Only requeue knows emails; of many at once only the dead, for the others are tried again anyway.
FROM_STATES: Mapping[Verb, tuple[str, ...]] = {
    "requeue": ("Dead", "Failed"),
    "cancel": ("Pending", "Failed"),
}
_BULK = 1000


# ── list ─────────────────────────────────────────────────────────────────────────────────────────


def print_list(
    settings: Settings, status: str | None, _flags: JobFlags, *, limit: int, before: str | None, json: bool
) -> None:
    emails = run_async(_list(settings, status, limit, before))
    if json:
        print_json(emails)
        return
    print_table(_listing(emails) if emails else "no emails")
    if len(emails) == limit:
        _err.print(f"there may be more: --before {emails[-1].id}", style="dim")


async def _list(settings: Settings, status: str | None, limit: int, before: str | None) -> list[EmailSummary]:
    from homing.app import opened
    from homing.lanes.email_log.view import email_number, listed

    async with opened(settings) as homing:
        cursor = email_number(before) if before else None
        return [listed(row) for row in await homing.emails.page(status=status, before=cursor, limit=limit)]


_COLUMNS = (
    Column("email", whole=True),
    Column("state", whole=True),
    Column("attempts", rank=3, right=True),
    Column("to"),
    Column("subject", rank=2),
    Column("next attempt", rank=4, whole=True),
    Column("reason", rank=3),
    Column("last error", rank=1),
)


def _listing(emails: Sequence[EmailSummary]) -> Table:
    return listing(
        _COLUMNS,
        [
            (
                one.id, one.status, str(one.attempt_count), one.to, one.subject or one.template or "",
                one.next_attempt_at or "", one.dead_reason or "", one.last_error or "",
            )
            for one in emails
        ],
    )  # fmt: skip


# ── show ─────────────────────────────────────────────────────────────────────────────────────────


def print_one(settings: Settings, id: str, *, json: bool) -> None:
    email, story = run_async(_look(settings, id))
    values: dict[str, Any] = msgspec.to_builtins(email)
    if json:
        print_json({**values, **msgspec.to_builtins(story)})
        return
    verdicts = values.pop("recipients")
    print_table(fields(values))
    if verdicts:
        print_table(verdicts_table(verdicts))
    if (table := story_table(story)) is not None:
        print_table(table)


async def _look(settings: Settings, id: str) -> tuple[EmailView, Story]:
    from homing.app import opened
    from homing.lanes.email_log.view import email_number, shown

    async with opened(settings) as homing:
        number = email_number(id)
        row = await homing.emails.get(number)
        if row is None:
            raise NotFound(f"there is no email {id}; `homing list --lane email_log` shows those there are")
        return shown(row), await story_of(homing, f"email_{number}")


# ── requeue ──────────────────────────────────────────────────────────────────────────────────────


def number(id: str) -> int:
    from homing.lanes.email_log.view import email_number

    return email_number(id)


async def check(homing: Homing, verb: Verb, numbers: Sequence[int]) -> None:
    """Raise unless the verb suits all of them, before anything is changed."""
    for number in numbers:
        row = await homing.emails.get(number)
        if row is None:
            raise NotFound(f"there is no email email_{number}; nothing was changed")
        if row["status"] not in FROM_STATES[verb]:
            raise NotAllowed(
                f"email_{number} is {row['status']}; {verb} takes {', '.join(FROM_STATES[verb])}; "
                "nothing was changed"
            )


async def act_on_ids(homing: Homing, verb: Verb, numbers: Sequence[int]) -> int:
    act = homing.emails.requeue if verb == "requeue" else homing.emails.cancel
    return len(await act(numbers))


def act_on_all(
    verb: Verb, settings: Settings, state: str, _flags: JobFlags, *, dry_run: bool, yes: bool, json: bool
) -> None:
    if verb == "cancel" or state != "Dead":
        raise InvalidRequest(
            f"emails that are {state} cannot be used with {verb}: only requeue, with Dead; "
            f"`homing bulk {verb} 'lane:email_log status:{state}'` takes others"
        )
    total = run_async(_count(settings))
    if total and not (dry_run or yes):
        confirm(f"{verb} {in_words(total)} that {'is' if total == 1 else 'are'} Dead?")
    done = total if dry_run else run_async(_requeue_all(settings, total))
    if json:
        print_json({"dryRun": dry_run, verb: done})
    else:
        print_table(f"{verb}: {in_words(done)}{' would be changed' if dry_run else ''}")


def in_words(count: int) -> str:
    return f"{count:,} {'email' if count == 1 else 'emails'}"


async def _count(settings: Settings) -> int:
    from homing.app import opened

    async with opened(settings) as homing:
        return (await homing.emails.counts())["Dead"]


async def _requeue_all(settings: Settings, total: int) -> int:
    from homing.app import opened

    done = after = 0
    async with opened(settings) as homing:
        with Progress(console=_err, transient=True) as progress:
            task = progress.add_task("requeue", total=total)
            while ids := await homing.emails.dead_ids(after=after, limit=_BULK):
                done, after = done + len(await homing.emails.requeue(ids)), ids[-1]
                progress.update(task, completed=done)
    return done
