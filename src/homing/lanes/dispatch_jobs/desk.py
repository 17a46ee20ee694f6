"""Dispatch jobs on the operator's desk: found, and shown with every attempt and what they wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from homing.db import Row
from homing.db.conditions import readable, readable_or_never
from homing.engine.model import WORKER_LOST
from homing.lanes.dispatch_jobs.curl import curl_of
from homing.lanes.dispatch_jobs.dead_letters import SOURCE
from homing.lanes.dispatch_jobs.desk_conditions import PHASES
from homing.lanes.dispatch_jobs.desk_dead import JobDeadDesk
from homing.lanes.dispatch_jobs.desk_find import open_finder
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.look import host_of
from homing.lanes.dispatch_jobs.masking import shown_url
from homing.lanes.dispatch_jobs.tsid import number_of, text_of
from homing.lanes.dispatch_jobs.view import Waiting, attempted, pairs_of, waiting_for
from homing.messages.facts import DUE, body_of, facts, moment_fact, possible, trace_of
from homing.messages.model import Detail, LaneName, MailParts, Phase, Seen, Step, Summary, Wanted

_ENDS: Final[Mapping[str, str]] = {
    "COMPLETED": "Delivered",
    "ERROR": "Given up",
    "CANCELLED": "Cancelled",
}
#: As many targets as a claim may look at.
_MOST_TARGETS: Final = 100_000


class JobDesk(JobDeadDesk):
    name: LaneName = "dispatch_jobs"
    phases: Mapping[str, Phase] = PHASES
    scope = "jobs"

    def __init__(self, jobs: DispatchJobs, header_prefix: str) -> None:
        super().__init__(jobs)
        self._jobs = jobs
        self._finder = open_finder(jobs)
        self._header_prefix = header_prefix

    def number(self, id: str) -> int | None:
        return number_of(id)

    async def counts(self) -> Mapping[str, int]:
        return await self._jobs.counts()

    async def oldest_due(self) -> float:
        """Of what could be sent now: who waits for a target that is held back is not late."""
        rows = await self._jobs.run("oldest_claimable", after="", most=_MOST_TARGETS)
        return max(0.0, rows[0]["age"] or 0.0) if rows else 0.0

    async def _find(self, wanted: Wanted, *, before: int | None, limit: int) -> Seen:
        found = await self._finder.find(wanted, before=before, limit=limit)
        return Seen([_summary(row) for row in found.rows], found.next, found.looked_at)

    async def mail(self, number: int) -> MailParts | None:  # noqa: ARG002 - as every lane is asked
        """A job is no mail."""
        return None

    async def show(self, number: int, *, whole: bool = False) -> Detail | None:
        row = await self._jobs.get(number)
        if row is None:
            return None
        heads = [] if row["ready"] else await self._jobs.run("group_head", group_id=row["group_id"])
        url = shown_url(row["source"], row["target_url"], with_path=whole)
        summary, waiting = _summary(row), waiting_for(row, heads[0] if heads else None)
        return Detail(
            summary,
            _fields(row, url),
            _timeline(row, summary, await self._jobs.attempts(number), waiting, url),
            body_of(row["payload"], row["payload_content_type"]),
            verbs=possible(self.from_states, summary.state),
            # Where our own go is a setting, which is nobody's to copy.
            curl=curl_of(row, self._header_prefix) if whole and row["source"] != SOURCE else None,
            waits=_waits(row, waiting),
        )


def _summary(row: Row) -> Summary:
    state = row["status"]
    phase = PHASES.get(state, "waiting")
    return Summary(
        lane="dispatch_jobs",
        id=text_of(row["id"]),
        number=row["id"],
        state=state,
        phase=phase,
        title=row["type"],
        to=host_of(row["target_url"]),
        attempts=row["attempt_count"],
        error=row["error_class"] if state != "COMPLETED" else None,
        created_at=readable_or_never(row["created_at"]),
        due_at=readable(row["next_attempt_at"]) if phase == "waiting" else None,
    )


def _fields(row: Row, url: str) -> list[tuple[str, str]]:
    held = row["status"] == "IN_PROGRESS"
    return facts(
        [
            ("Source", row["source"]),
            ("Type", row["type"]),
            ("URL", url),
            ("Target", str(row["target"] or "").partition("#")[0]),
            ("Group", row["group_id"]),
            ("Ordering", row["ordering"] if row["ordering"] != "none" else None),
            ("External id", row["external_id"]),
            ("Idempotency key", row["idempotency_key"]),
            ("Credentials", text_of(row["credentials_id"]) if row["credentials_id"] is not None else None),
            *((f"Metadata {key}", value) for key, value in pairs_of(row["metadata"]).items()),
            ("Attempts", f"{row['attempt_count']} of {row['attempts_before'] + row['max_retries']}"),
            ("Retry strategy", row["retry_strategy"]),
            ("Timeout", f"{row['timeout_seconds']:g} s" if row["timeout_seconds"] is not None else None),
            ("Scheduled for", moment_fact(row["scheduled_for"])),
            ("Expires", moment_fact(row["expires_at"])),
            ("Claims", row["claim_seq"]),
            ("Deferred", row["defer_count"] or None),
            ("Taken from lost workers", row["rescue_count"] or None),
            ("Held by", row["locked_by"] if held else None),
            ("Held until", moment_fact(row["lease_expires_at"]) if held else None),
            ("Queue", row["queue_url"]),
            ("Trace", trace_of(row["traceparent"])),
        ]
    )


def _timeline(
    row: Row, summary: Summary, attempts: Sequence[Row], waiting: Waiting | None, url: str
) -> list[Step]:
    steps = [Step(summary.created_at, "created", f"Created by {row['source']}")]
    request = _request(row, url)
    again = _first_after_requeue(row["attempts_before"], attempts)
    steps += [_attempt(attempt, request, again) for attempt in attempts]
    tried = readable(row["last_attempt_at"])
    if summary.phase == "running" and tried is not None:
        title = f"Claim {row['claim_seq']}"
        steps.append(Step(tried, "claimed", title, worker=row["locked_by"], request=request))
    elif summary.state in _ENDS:
        at = readable(row["completed_at"]) or readable(row["updated_at"]) or tried or summary.created_at
        steps.append(_end(row, summary, at))
    elif summary.due_at is not None:
        # Its target may be paused for longer than until it is due.
        until = readable(waiting.until) if waiting is not None else None
        due = max(summary.due_at, until or summary.due_at)
        steps.append(Step(due, "waits", "Next attempt" if attempts else "First attempt"))
    return sorted(steps, key=lambda step: step.at)


def _end(row: Row, summary: Summary, at: datetime) -> Step:
    well = summary.state == "COMPLETED"
    error = None if well else row["last_error"]
    return Step(at, summary.phase, _ENDS[summary.state], well=well, error_class=summary.error, error=error)


def _request(row: Row, url: str) -> str:
    """What every attempt asks: the same, but for the time and the signature."""
    size = len(str(row["payload"]).encode())
    signed = ", signed" if row["credentials_id"] is not None else ""
    return f"POST {url}, {row['payload_content_type']}, {size:,} bytes{signed}"


def _first_after_requeue(before: int, attempts: Sequence[Row]) -> int | None:
    """Attempts of lost workers do not count either; where there are none but these, it was not requeued."""
    lost = {one["attempt_number"] for one in attempts if one["error_class"] == WORKER_LOST.code}
    while before in lost:
        before -= 1
    return before + 1 if before else None


def _attempt(row: Row, request: str, again: int | None) -> Step:
    told = attempted(row)
    started = readable_or_never(row["attempted_at"])
    code = told.response_code
    return Step(
        at=started,
        kind="attempt",
        title=f"Attempt {told.attempt_number}"
        + (", after a requeue" if told.attempt_number == again else "")
        + (f": answered {code}" if code is not None else ""),
        well=told.status == "SUCCESS",
        seconds=told.duration_millis / 1000 if told.duration_millis is not None else None,
        error_class=told.error_class,
        error=told.error_message,
        worker=told.worker,
        request=request,
        response_code=code,
        response_headers=told.response_headers,
        response_body=told.response_body,
        unknown=told.unknown,
    )


def _waits(row: Row, found: Waiting | None) -> str | None:
    if row["status"] == "IN_PROGRESS":
        return f"{row['locked_by'] or 'a worker'} has it"
    if found is None:
        return None if PHASES.get(row["status"]) != "waiting" else f"{DUE}the next free slot is its own"
    return f"{found.message} (until {found.until})" if found.until else found.message
