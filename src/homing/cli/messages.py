"""status · list · show · requeue · cancel: looking at messages of all lanes and acting on them.

An id says by its form what it is: `outbox_123`, or just a number, is a mail; `email_123` an email that goes
through a queue; `notification_123` a notification of an open seat; 13 characters are a job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec
import typer

from homing.cli import emails, jobs, mails, notifications, workers
from homing.cli.jobs import (
    ErrorClass,
    ExternalId,
    Group,
    JobFlags,
    Metadata,
    Since,
    Source,
    Type,
    Verb,
)
from homing.cli.options import (
    Config,
    DatabaseUrl,
    Json,
    print_json,
    print_table,
    run_async,
    settings_from,
    tell_database,
)
from homing.cli.tables import Column, listing
from homing.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from homing.app import Homing
    from homing.db.backlog import HeldBack, Snapshot
    from homing.lanes.dispatch_jobs.target_desk import TargetView
    from homing.settings import Settings
    from homing.workers.model import Pause

LaneName = Literal["mail_outbox", "dispatch_jobs", "email_log", "open_events"]


class Messages(Protocol):
    """What each lane's module can do with its messages."""

    FROM_STATES: Mapping[Verb, tuple[str, ...]]

    def print_list(
        self, settings: Settings, status: str | None, flags: JobFlags, /, *, limit: int, before: str | None,
        json: bool,
    ) -> None: ...  # fmt: skip

    def print_one(self, settings: Settings, id: str, *, json: bool) -> None: ...

    def number(self, id: str) -> int: ...

    async def check(self, homing: Homing, verb: Verb, numbers: Sequence[int]) -> None: ...

    async def act_on_ids(self, homing: Homing, verb: Verb, numbers: Sequence[int], /) -> int: ...

    def act_on_all(
        self, verb: Verb, settings: Settings, state: str, flags: JobFlags, /, *, dry_run: bool, yes: bool,
        json: bool,
    ) -> None: ...  # fmt: skip

    def in_words(self, count: int) -> str: ...


_MESSAGES: Mapping[LaneName, Messages] = {
    "mail_outbox": mails,
    "email_log": emails,
    "open_events": notifications,
    "dispatch_jobs": jobs,
}

MessageId = Annotated[
    str,
    typer.Argument(
        help="A mail (outbox_123, or just 123), an email (email_123), a notification (notification_123) or a "
        "job (0ARYZVZXW372S)."
    ),
]
MessageIds = Annotated[
    list[str] | None,
    typer.Argument(
        help="Mails (outbox_123, or just 123), emails (email_123), notifications (notification_123) and jobs "
        "(0ARYZVZXW372S)."
    ),
]
Lane = Annotated[
    LaneName | None, typer.Option("--lane", help="Which messages; else the other flags tell, or mails.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell how many.")]


def add_to(app: typer.Typer) -> None:
    app.command()(status)
    app.command(name="list")(list_messages)
    app.command()(show)
    app.command()(requeue)
    app.command()(cancel)


# ── status ───────────────────────────────────────────────────────────────────────────────────────


class _Status(msgspec.Struct, frozen=True):
    lanes: Mapping[str, Snapshot]
    targets: Sequence[TargetView]
    #: Of notifications, when they are asked for: why they ended, who holds them, how often they were tried.
    questions: Mapping[str, Sequence[Mapping[str, Any]]]
    pauses: Sequence[Pause]


def status(
    lane: Annotated[
        LaneName | None,
        typer.Option("--lane", help="Only this one; open_events also with locks and reasons."),
    ] = None,
    recount: Annotated[
        bool,
        typer.Option("--recount", help="Count every row first: after a restore the tallies may be wrong."),
    ] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """How much is in which state, how long the oldest has been due, and what is held back."""
    settings = settings_from(config, database_url=database_url)
    found = run_async(_status(settings, lane, recount=recount))
    if json:
        print_json(_status_json(found))
        return
    tell_database(settings)
    workers.print_pauses(found.pauses)
    for name, snapshot in found.lanes.items():
        figures = {
            **{state: f"{count:,}" for state, count in snapshot.counts.items()},
            "oldest due": f"{snapshot.oldest_due:.1f} s",
            **_held_back(snapshot.held_back),
        }
        columns = [Column(title, right=True) for title in figures]
        print_table(listing(columns, [list(figures.values())], title=name))
    if found.targets:
        print_table(jobs.targets_table(found.targets))
    for title, rows in found.questions.items():
        print_table(notifications.answer(title, rows))


def _held_back(held: HeldBack) -> dict[str, str]:
    if not held.targets:
        return {}
    more = " or more" if held.is_lower_bound else ""
    return {"held back": f"{held.count:,}{more} since {held.since}"}


async def _status(settings: Settings, lane: LaneName | None, *, recount: bool) -> _Status:
    from homing.app import opened
    from homing.db.backlog import Counted, look
    from homing.lanes.dispatch_jobs.look import held_targets

    async with opened(settings) as homing:
        if recount:
            await homing.figures.recount()
        rows: Mapping[LaneName, Counted] = {
            "mail_outbox": homing.outbox,
            "dispatch_jobs": homing.jobs,
            "email_log": homing.emails,
            "open_events": homing.notifications,
        }
        lanes: dict[str, Snapshot] = {
            name: await look(own) for name, own in rows.items() if lane in {None, name}
        }
        targets = await held_targets(homing.jobs) if "dispatch_jobs" in lanes else []
        questions = await notifications.questions(homing) if lane == "open_events" else {}
        pauses = [one for one in await homing.fleet.pauses() if _concerns(one, lane)]
        return _Status(lanes, targets, questions, pauses)


def _concerns(pause: Pause, lane: str | None) -> bool:
    return lane is None or pause.scope == "worker" or pause.name.partition(":")[0] == lane


def _status_json(found: _Status) -> dict[str, Any]:
    told: dict[str, Any] = {
        lane: {
            **snapshot.counts,
            "oldestDueSeconds": round(snapshot.oldest_due, 3),
            "heldBack": _held_back_json(snapshot.held_back),
        }
        for lane, snapshot in found.lanes.items()
    }
    if "dispatch_jobs" in told:
        told["dispatch_jobs"]["targetsHeldBack"] = found.targets
    if "open_events" in told:
        told["open_events"].update(found.questions)
    for pause in found.pauses:
        if pause.scope == "lane":
            told[pause.name.partition(":")[0]].setdefault("paused", []).append(pause)
    return told


def _held_back_json(held: HeldBack) -> dict[str, Any]:
    return {
        "count": held.count,
        "orMore": held.is_lower_bound,
        "since": held.since,
        "targets": held.places,
    }


# ── list and show ────────────────────────────────────────────────────────────────────────────────


def list_messages(
    lane: Lane = None,
    status: Annotated[
        str | None,
        typer.Option("--status", "-s", help="queued, sent, …; of emails Sent, Dead, …; of jobs PENDING, …"),
    ] = None,
    source: Source = None,
    type: Type = None,
    group: Group = None,
    external_id: ExternalId = None,
    error_class: ErrorClass = None,
    metadata: Metadata = None,
    since: Since = None,
    limit: Annotated[int, typer.Option("--limit", "-l", "-n", min=1, max=10000)] = 20,
    before: Annotated[str | None, typer.Option("--before", help="Go on after this one.")] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Mails, emails, notifications or jobs, newest first."""
    flags = _flags(source, type, group, external_id, error_class, metadata, since)
    chosen = _lane(lane, _lane_of_state(status), flags, before)
    _require_state(lane, chosen, status)
    settings = settings_from(config, database_url=database_url)
    _MESSAGES[chosen].print_list(settings, status, flags, limit=limit, before=before, json=json)


def show(id: MessageId, json: Json = False, database_url: DatabaseUrl = None, config: Config = None) -> None:
    """Everything about one mail, with its verdicts, or one job, with its attempts and what it waits for.

    Attempts, claims that left none and bulk runs stand in one table, in the order of time.
    """
    settings = settings_from(config, database_url=database_url)
    lane = _lane_of_id(id)
    _MESSAGES[lane].print_one(settings, id, json=json)
    if not json:
        workers.print_pauses(run_async(_pauses(settings, lane, id)))


async def _pauses(settings: Settings, lane: LaneName, id: str) -> Sequence[Pause]:
    """Those for which a message waits."""
    from homing.app import opened

    async with opened(settings) as homing:
        detail = await homing.desk.show(id, may=lambda _scope: True)
        if detail is None or detail.summary.phase != "waiting":
            return []
        return [one for one in await homing.fleet.pauses() if one.scope == "lane" and _concerns(one, lane)]


def _flags(
    source: str | None,
    type: str | None,
    group: str | None,
    external_id: str | None,
    error_class: str | None,
    metadata: list[str] | None,
    since: str | None,
) -> JobFlags:
    return JobFlags(
        source=source, type=type, group=group, external_id=external_id, error_class=error_class,
        metadata=tuple(metadata or ()), since=since,
    )  # fmt: skip


# ── requeue and cancel ───────────────────────────────────────────────────────────────────────────


def requeue(
    ids: MessageIds = None,
    all_: Annotated[
        str | None,
        typer.Option(
            "--all",
            metavar="STATE",
            help="All mails that are failed, …; emails that are Dead; jobs in ERROR, …",
        ),
    ] = None,
    lane: Lane = None,
    source: Source = None,
    type: Type = None,
    group: Group = None,
    external_id: ExternalId = None,
    error_class: ErrorClass = None,
    metadata: Metadata = None,
    since: Since = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Send again what failed, was cancelled or expired; a mail only to those who did not get it."""
    flags = _flags(source, type, group, external_id, error_class, metadata, since)
    settings = settings_from(config, database_url=database_url)
    _act("requeue", settings, ids, all_, lane, flags, dry_run=dry_run, yes=yes, json=json)


def cancel(
    ids: MessageIds = None,
    all_: Annotated[
        str | None,
        typer.Option("--all", metavar="STATE", help="All mails that are queued; jobs PENDING, …, or any."),
    ] = None,
    lane: Lane = None,
    source: Source = None,
    type: Type = None,
    group: Group = None,
    external_id: ExternalId = None,
    metadata: Metadata = None,
    since: Since = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """End what waits to be sent."""
    flags = _flags(source, type, group, external_id, None, metadata, since)
    settings = settings_from(config, database_url=database_url)
    _act("cancel", settings, ids, all_, lane, flags, dry_run=dry_run, yes=yes, json=json)


def _act(
    verb: Verb,
    settings: Settings,
    ids: list[str] | None,
    state: str | None,
    lane: LaneName | None,
    flags: JobFlags,
    *,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> None:
    if bool(ids) == bool(state) or (ids and flags.given):
        states = dict.fromkeys(state for lane in _MESSAGES.values() for state in lane.FROM_STATES[verb])
        raise InvalidRequest(f"name the messages to {verb}, or --all with one of {', '.join(states)}")
    if state is None:
        _act_on_ids(verb, settings, ids or [], dry_run=dry_run, json=json)
        return
    chosen = _MESSAGES[_lane(lane, _lane_of_state(state), flags, None)]
    chosen.act_on_all(verb, settings, state, flags, dry_run=dry_run, yes=yes, json=json)


def _act_on_ids(verb: Verb, settings: Settings, ids: Sequence[str], *, dry_run: bool, json: bool) -> None:
    done = run_async(_act_on_each(verb, settings, ids, dry_run=dry_run))
    if json:
        print_json({"dryRun": dry_run, verb: sum(done.values())})
        return
    told = [_MESSAGES[lane].in_words(count) for lane, count in done.items()]
    print_table(f"{verb}: {' and '.join(told) or 'nothing'}{' would be changed' if dry_run else ''}")


async def _act_on_each(
    verb: Verb, settings: Settings, ids: Sequence[str], *, dry_run: bool
) -> dict[LaneName, int]:
    from homing.app import opened

    numbers: dict[LaneName, list[int]] = {}
    for id in dict.fromkeys(ids):
        lane = _lane_of_id(id)
        numbers.setdefault(lane, []).append(_MESSAGES[lane].number(id))
    async with opened(settings) as homing:
        # All are looked at before the first is changed.
        for lane, some in numbers.items():
            await _MESSAGES[lane].check(homing, verb, some)
        if dry_run:
            return {lane: len(some) for lane, some in numbers.items()}
        return {
            lane: await _MESSAGES[lane].act_on_ids(homing, verb, list(dict.fromkeys(some)))
            for lane, some in numbers.items()
        }


# ── which lane ───────────────────────────────────────────────────────────────────────────────────


_PREFIXES: Mapping[str, LaneName] = {
    "outbox_": "mail_outbox",
    "email_": "email_log",
    "notification_": "open_events",
}


def _lane_of_id(id: str) -> LaneName:
    """A number of 13 digits is a job too: no outbox has a million million mails."""
    from homing.lanes.dispatch_jobs.tsid import number_of

    if number_of(id) is not None:
        return "dispatch_jobs"
    for prefix, lane in _PREFIXES.items():
        if id.startswith(prefix) and id.removeprefix(prefix).isdecimal():
            return lane
    if not id.isdecimal():
        raise NotFound(
            f"there is nothing with the id {id[:40]!r}; ids look like outbox_123 (a mail), email_123, "
            "notification_123 or 0ARYZVZXW372S (a job)"
        )
    return "mail_outbox"


def _states() -> Mapping[LaneName, Sequence[str]]:
    """Mails and notifications have theirs small, emails Capitalised, jobs in CAPITALS."""
    from homing.lanes.dispatch_jobs.job import STATES as OF_JOBS
    from homing.lanes.email_log.email import STATES as OF_EMAILS
    from homing.lanes.mail_outbox.outbox import STATES as OF_MAILS
    from homing.lanes.open_events.notification import STATES as OF_NOTIFICATIONS

    return {
        "mail_outbox": OF_MAILS,
        "email_log": OF_EMAILS,
        "dispatch_jobs": OF_JOBS,
        "open_events": OF_NOTIFICATIONS,
    }


def _lane_of_state(text: str | None) -> LaneName | None:
    """The first lane that has such a state; jobs' may be written small."""
    for lane, states in _states().items():
        if text is not None and (text.upper() if lane == "dispatch_jobs" else text) in states:
            return lane
    return None


def _lane(named: LaneName | None, of_state: LaneName | None, flags: JobFlags, before: str | None) -> LaneName:
    if named not in {None, "dispatch_jobs"} and flags.given:
        raise InvalidRequest(f"{flags.given[0]} chooses jobs: leave it out, or --lane {named}")
    if named is not None:
        return named
    if flags.given:
        return "dispatch_jobs"
    return of_state or (_lane_of_id(before) if before else "mail_outbox")


def _require_state(named: LaneName | None, lane: LaneName, text: str | None) -> None:
    states = _states()
    if text is None or text in states[lane] or text.upper() in states[lane]:
        return
    told = {named: states[named]} if named is not None else states
    known = "; ".join(f"{lane} has {', '.join(words)}" for lane, words in told.items())
    raise InvalidRequest(f"there is no state {text!r}: {known}")
