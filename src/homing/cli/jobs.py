"""What `list`, `show`, `requeue` and `cancel` do with dispatch jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from homing.cli.history import Story, story_of
from homing.cli.operator import confirm, moment_since
from homing.cli.options import print_json, print_table, run_async
from homing.cli.tables import Column, fields, listing
from homing.errors import InvalidRequest, NotAllowed, NotFound

if TYPE_CHECKING:
    from homing.app import Homing
    from homing.lanes.dispatch_jobs.bulk import JobBulkReply
    from homing.lanes.dispatch_jobs.filters import Filter
    from homing.lanes.dispatch_jobs.jobs import DispatchJobs
    from homing.lanes.dispatch_jobs.search import Place
    from homing.lanes.dispatch_jobs.target_desk import TargetView
    from homing.lanes.dispatch_jobs.view import Attempt, JobSummary, JobView, Waiting
    from homing.settings import Settings

Verb = Literal["requeue", "cancel"]

_err = Console(stderr=True, highlight=False, soft_wrap=True)

Source = Annotated[str | None, typer.Option("--source", help="Jobs of this source.")]
Type = Annotated[str | None, typer.Option("--type", help="Jobs of this type.")]
Group = Annotated[str | None, typer.Option("--group", help="Jobs of this groupId.")]
ExternalId = Annotated[str | None, typer.Option("--external-id", help="Jobs with this externalId.")]
ErrorClass = Annotated[
    str | None, typer.Option("--error-class", help="Jobs in ERROR that died of this: http_500, …")
]
Metadata = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata",
        metavar="KEY=VALUE",
        help='Jobs that have it; repeatable. A key with = in it: "KEY"=VALUE.',
    ),
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="2h", help="Jobs created since; s, m, h, d, w, or a time.")
]

#: For `--all`, whatever the state allows.
ANY = "any"
#: The states that a verb takes.
FROM_STATES: Mapping[Verb, tuple[str, ...]] = {
    "requeue": ("ERROR", "CANCELLED"),
    "cancel": ("PENDING", "FAILED"),
}
#: Over HTTP there is a smaller limit, because somebody waits for the answer.
_MOST = 1_000_000
_SHOWN_PAYLOAD = 2000
_SHOWN_BODY = 200


class JobFlags(Struct, frozen=True, kw_only=True):
    """What jobs are chosen by, as it was typed."""

    source: str | None = None
    type: str | None = None
    group: str | None = None
    external_id: str | None = None
    error_class: str | None = None
    metadata: tuple[str, ...] = ()
    since: str | None = None

    @property
    def given(self) -> list[str]:
        """The flags, for a complaint."""
        return [
            f"--{name.replace('_', '-')}" for name, value in msgspec.structs.asdict(self).items() if value
        ]


def filter_of(flags: JobFlags, status: str | None, now: datetime) -> Filter:
    """Checked as a query string is, by the same rules."""
    from homing.lanes.dispatch_jobs.filters import NAMES, Parameters

    given = {
        "status": status,
        "source": flags.source,
        "type": flags.type,
        "groupId": flags.group,
        "externalId": flags.external_id,
        "errorClass": flags.error_class,
        "createdAfter": moment_since(flags.since, now).isoformat() if flags.since else None,
    }
    pairs = [(name, value) for name, value in given.items() if value is not None]
    return Parameters([*pairs, *map(_pair, flags.metadata)], NAMES, metadata=True).filter()


def _pair(text: str) -> tuple[str, str]:
    from homing.desk.query import quoted_key

    if quoted := quoted_key(text, 0, "="):
        return f"metadata.{quoted[0]}", text[quoted[1] :]
    key, sign, value = text.partition("=")
    if not sign:
        raise InvalidRequest(f"--metadata is written KEY=VALUE, and {text[:40]!r} is not")
    return f"metadata.{key}", value


# ── list ─────────────────────────────────────────────────────────────────────────────────────────


def print_list(
    settings: Settings, status: str | None, flags: JobFlags, *, limit: int, before: str | None, json: bool
) -> None:
    named = status.upper() if status else None
    rows = run_async(_list(settings, filter_of(flags, named, datetime.now(UTC)), limit, before))
    if json:
        print_json(rows)
        return
    print_table(_listing(rows) if rows else "no jobs")
    if len(rows) == limit:
        _err.print(f"there may be more: --before {rows[-1].id}", style="dim")


async def _list(settings: Settings, filter: Filter, limit: int, before: str | None) -> list[JobSummary]:
    from homing.app import opened
    from homing.lanes.dispatch_jobs.search import open_search
    from homing.lanes.dispatch_jobs.view import listed

    async with opened(settings) as homing:
        search = open_search(homing.jobs)
        after = await _place(homing.jobs, before) if before else None
        places = await search.places(filter, await search.first(filter), after=after, limit=limit)
        return [listed(row) for row in await search.rows([place.id for place in places])]


async def _place(jobs: DispatchJobs, id: str) -> Place:
    from homing.lanes.dispatch_jobs.search import Place
    from homing.lanes.dispatch_jobs.view import job_number

    row = await jobs.get(job_number(id))
    if row is None:
        raise NotFound(f"there is no job {id}, so nothing comes after it")
    at = row["created_at"]
    return Place(at if isinstance(at, str) else at.isoformat(), row["id"])


_COLUMNS = (
    Column("job", whole=True),
    Column("state", whole=True),
    Column("type"),
    Column("target", rank=1),
    Column("attempts", rank=3, right=True),
    Column("last error", rank=2),
    Column("group", rank=6),
    Column("next attempt", rank=5, whole=True),
    Column("created", rank=4, whole=True),
)


def _listing(rows: Sequence[JobSummary]) -> Table:
    from homing.lanes.dispatch_jobs.look import host_of

    return listing(
        _COLUMNS,
        [
            (
                job.id, job.status, job.type, host_of(job.target_url), str(job.attempt_count),
                job.last_error or "", job.group_id or "", job.next_attempt_at or "", job.created_at,
            )
            for job in rows
        ],
    )  # fmt: skip


# ── show ─────────────────────────────────────────────────────────────────────────────────────────


def print_one(settings: Settings, id: str, *, json: bool) -> None:
    job, attempts, story = run_async(_look(settings, id))
    if json:
        beside = {"claims": story.claims, "bulkRuns": story.bulk_runs}
        print_json({**msgspec.to_builtins(job), "attempts": attempts, **beside})
        return
    print_table(fields(_fields(job)))
    if attempts or story.beside:
        print_table(_attempts(attempts, story))
    if not attempts:
        print_table("no attempt so far")


async def _look(settings: Settings, id: str) -> tuple[JobView, list[Attempt], Story]:
    from homing.app import opened
    from homing.lanes.dispatch_jobs.look import attempts_of, find_job
    from homing.lanes.dispatch_jobs.view import job_number

    async with opened(settings) as homing:
        job = await find_job(homing.jobs, job_number(id))
        if job is None:
            raise NotFound(f"there is no job {id}; `homing list --lane dispatch_jobs` shows those there are")
        return job, await attempts_of(homing.jobs, job_number(id)), await story_of(homing, job.id)


def _fields(job: JobView) -> dict[str, object]:
    values: dict[str, object] = msgspec.to_builtins(job)
    del values["waitingFor"], values["payload"]
    waiting = _waiting_in_words(job.waiting_for) if job.waiting_for else None
    return {**values, "waits for": waiting, "payload": _shortened(job.payload)}


def _waiting_in_words(waiting: Waiting) -> str:
    until = f", until {waiting.until}" if waiting.until else ""
    return f"{waiting.reason}{until}: {waiting.message}"


def _shortened(payload: str) -> str:
    if len(payload) <= _SHOWN_PAYLOAD:
        return payload
    return f"{payload[:_SHOWN_PAYLOAD]}…\n({len(payload):,} characters; --json shows them all)"


_ATTEMPT_COLUMNS = (
    Column("#", right=True),
    Column("at", whole=True),
    Column("result", whole=True, rank=3),
    Column("code", right=True),
    Column("ms", right=True, rank=1),
    Column("what happened"),
    Column("answer", rank=2),
    Column("worker", rank=4),
)


def _attempts(attempts: Sequence[Attempt], story: Story) -> Table:
    """With what is no attempt between them, in the order of time."""
    beside = [("", at, "", "", "", told, "", worker) for at, told, worker in story.beside]
    rows = [*beside, *(_attempt(one) for one in attempts)]
    return listing(_ATTEMPT_COLUMNS, sorted(rows, key=lambda row: row[1]))


def _attempt(one: Attempt) -> tuple[str, ...]:
    doubt = " (it may have been processed)" if one.unknown else ""
    return (
        str(one.attempt_number),
        one.attempted_at,
        one.status,
        str(one.response_code or ""),
        str(one.duration_millis if one.duration_millis is not None else ""),
        f"{one.error_message or one.error_class or ''}{doubt}",
        (one.response_body or "")[:_SHOWN_BODY],
        one.worker or "",
    )


# ── targets ──────────────────────────────────────────────────────────────────────────────────────

_TARGET_COLUMNS = (
    Column("target"),
    Column("state", whole=True),
    Column("until", whole=True, rank=1),
    Column("failures", right=True, rank=3),
    Column("why", rank=2),
    Column("credentials", whole=True, rank=4),
)


def targets_table(targets: Sequence[TargetView]) -> Table:
    """Those that are held back."""
    return listing(
        _TARGET_COLUMNS,
        [
            (
                one.target, one.state, one.until or "", str(one.failures),
                one.last_error if one.state != "paused" and one.last_error else one.reason or "",
                one.credentials_id or "",
            )
            for one in targets
        ],
        title="targets that are held back",
    )  # fmt: skip


# ── act ──────────────────────────────────────────────────────────────────────────────────────────


def number(id: str) -> int:
    from homing.lanes.dispatch_jobs.view import job_number

    return job_number(id)


async def check(homing: Homing, verb: Verb, numbers: Sequence[int]) -> None:
    """Raise unless the verb suits all of them, before anything is changed."""
    from homing.lanes.dispatch_jobs.tsid import text_of

    for number in numbers:
        row = await homing.jobs.get(number)
        if row is None:
            raise NotFound(f"there is no job {text_of(number)}; nothing was changed")
        if row["status"] not in FROM_STATES[verb]:
            raise NotAllowed(
                f"{text_of(number)} is {row['status']}; {verb} takes {', '.join(FROM_STATES[verb])}; "
                "nothing was changed"
            )


async def act_on_ids(homing: Homing, verb: Verb, numbers: Sequence[int]) -> int:
    jobs = homing.jobs
    act = jobs.requeue if verb == "requeue" else jobs.cancel
    return len(await act(numbers))


def act_on_all(
    verb: Verb, settings: Settings, state: str, flags: JobFlags, *, dry_run: bool, yes: bool, json: bool
) -> None:
    """Count first, ask, then act: on one state or, with `any`, on all that the verb takes."""
    filter = filter_of(flags, _state(verb, state), datetime.now(UTC))
    count = run_async(_bulk(verb, settings, filter, dry_run=True)) if dry_run or not yes else None
    if count is not None and count.matched and not dry_run:
        confirm(f"{verb} {_matched(count)}?")
    done = count if dry_run and count is not None else _acted(verb, settings, filter)
    number = done.matched if dry_run else done.changed
    if json:
        print_json({"dryRun": dry_run, verb: number, "more": done.more})
        return
    print_table(f"{verb}: {in_words(number)}{' would be changed' if dry_run else ''}")
    if done.more:
        _err.print("there are more: run it again")


def _state(verb: Verb, text: str) -> str | None:
    if text.lower() == ANY:
        return None
    if text.upper() not in FROM_STATES[verb]:
        states = ", ".join(FROM_STATES[verb])
        raise InvalidRequest(f"jobs that are {text} cannot be used with {verb}: only {states}, or {ANY}")
    return text.upper()


def _acted(verb: Verb, settings: Settings, filter: Filter) -> JobBulkReply:
    with _err.status(verb):
        return run_async(_bulk(verb, settings, filter, dry_run=False))


async def _bulk(verb: Verb, settings: Settings, filter: Filter, *, dry_run: bool) -> JobBulkReply:
    from homing.app import opened
    from homing.lanes.dispatch_jobs.bulk import BulkActions, JobBulkRequest
    from homing.lanes.dispatch_jobs.filters import FilterRequest
    from homing.lanes.dispatch_jobs.search import open_search

    chosen = {**msgspec.structs.asdict(filter), "metadata": dict(filter.metadata)}
    request = JobBulkRequest(
        filter=FilterRequest(**chosen), all=filter.is_empty, dry_run=dry_run, limit=_MOST
    )
    async with opened(settings) as homing:
        return await BulkActions(homing.jobs, open_search(homing.jobs))(verb, request)


def _matched(count: JobBulkReply) -> str:
    return f"{'more than ' if count.more else ''}{in_words(count.matched)}"


def in_words(count: int) -> str:
    return f"{count:,} {'job' if count == 1 else 'jobs'}"
