"""Emails on the operator's desk: found, shown, and set as they would be sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from homing.db import Dialect, Row
from homing.db.conditions import Conditions, is_one_of, readable, readable_or_never
from homing.db.looking import Stream, first_after, look
from homing.lanes.email_log.desk_conditions import (
    CANCELLED,
    ORDERED,
    PHASES,
    STATE,
    TABLE,
    in_order,
    number_of,
    other_conditions,
    states_of,
)
from homing.lanes.email_log.desk_dead import EmailDeadDesk
from homing.lanes.email_log.log import EmailLog
from homing.lanes.email_log.view import email_id
from homing.messages.facts import (
    DUE,
    code_of,
    facts,
    filenames,
    json_body,
    message_of,
    moment_fact,
    possible,
    trace_of,
    verdicts,
)
from homing.messages.model import Detail, LaneName, MailParts, Phase, Seen, Step, Summary, Wanted
from homing.senders.hiding import hide_in_json
from homing.senders.preview import preview_of, shown
from homing.senders.templates import Templates

#: In other states the column says when the scheduler looks at the row again, which is nobody's attempt.
_TRIED_AGAIN = frozenset({"Failed", "RetryQueued"})


class EmailDesk(EmailDeadDesk):
    name: LaneName = "email_log"
    phases: Mapping[str, Phase] = PHASES
    scope = "emails"

    def __init__(self, log: EmailLog, templates: Templates, default_sender: str) -> None:
        super().__init__(log)
        self._log = log
        self._templates = templates
        self._default_sender = default_sender

    def number(self, id: str) -> int | None:
        return number_of(id)

    async def counts(self) -> Mapping[str, int]:
        return await self._log.counts()

    async def oldest_due(self) -> float:
        return await self._log.oldest_due()

    async def find(self, wanted: Wanted, *, before: int | None, limit: int) -> Seen:
        database = self._log.database
        states = states_of(wanted)
        others = other_conditions(wanted, database.dialect)
        if not states or others is None:
            return Seen((), None)
        if wanted.until is not None and before is None:
            before = await first_after(database, TABLE, wanted.until)
        stream, also = _stream(database.dialect, wanted, states, others)
        seen = await look(database, TABLE, stream, also, before=before, limit=limit, since=wanted.since)
        return Seen([_summary(row) for row in seen.rows], seen.next, seen.looked_at)

    async def show(self, number: int) -> Detail | None:
        row = await self._log.get(number)
        if row is None:
            return None
        summary = _summary(row)
        variables = hide_in_json(str(row["variables"])) if row["variables"] else None
        return Detail(
            summary,
            _fields(row),
            _timeline(row, summary),
            json_body({"variables": variables}),
            has_mail=True,
            verbs=possible(self.from_states, summary.state),
            waits=_waits(row, summary, datetime.now(UTC)),
        )

    async def mail(self, number: int) -> MailParts | None:
        row = await self._log.get(number)
        if row is None:
            return None
        mail = shown(row, text_body=row["body"])
        found = preview_of(mail, self._templates, self._default_sender, row["attachments"])
        return MailParts(found.headers, found.text, found.html, found.source, found.trouble)


def _stream(
    dialect: Dialect, wanted: Wanted, states: tuple[str, ...], others: Conditions
) -> tuple[Stream, Conditions]:
    """By which index the rows are read, and what is left to be looked for among them."""
    every = len(states) == len(PHASES)
    asked = Conditions(() if every else (is_one_of(STATE, states),))
    if wanted.id is not None:
        by_key = next(text for text in others.texts if text.startswith(("o.id =", "o.message_key =")))
        rest = tuple(text for text in others.texts if text != by_key)
        return Stream((by_key,)), asked + Conditions(rest, others.values)
    if every or "Sent" in states:
        # Nearly all of them: the newest are soon found among all.
        return Stream(), asked + others
    ordered = tuple(in_order(dialect, state) for state in states if state in ORDERED)
    pending = ("o.status = 'Pending'",) if "Pending" in states else ()
    return Stream(ordered, pending, asked.texts[0]), others


def _attempts(row: Row) -> int:
    """The column has those that failed; the last one of an email that was sent did not."""
    return int(row["attempt_count"]) + int(row["status"] == "Sent")


def _state(row: Row) -> str:
    """As the desk tells it: what a person cancelled is apart from the dead."""
    is_cancelled = row["status"] == "Dead" and row["dead_reason"] == CANCELLED
    return CANCELLED if is_cancelled else str(row["status"])


def _summary(row: Row) -> Summary:
    state = _state(row)
    return Summary(
        lane="email_log",
        id=email_id(row["id"]),
        number=row["id"],
        state=state,
        phase=PHASES.get(state, "waiting"),
        title=str(row["subject"] or row["template"] or ""),
        to=str(row["to_address"]),
        attempts=_attempts(row),
        error=_error(row),
        created_at=readable_or_never(row["created_at"]),
        due_at=readable(row["next_attempt_at"]) if state in _TRIED_AGAIN else None,
    )


def _error(row: Row) -> str | None:
    if row["status"] == "Sent":
        return None
    return row["dead_reason"] or code_of(row["last_error"])


def _fields(row: Row) -> list[tuple[str, str]]:
    return facts(
        [
            ("From", row["from_address"]),
            ("To", row["to_address"]),
            ("Cc", row["cc_address"]),
            ("Bcc", row["bcc_address"]),
            ("Reply to", row["reply_to"]),
            ("Subject", row["subject"]),
            ("Template", row["template"]),
            ("Locale", row["locale"]),
            ("Attachments", filenames(row["attachments"])),
            *verdicts(row["recipients"]),
            ("Message key", row["message_key"]),
            ("Dead reason", row["dead_reason"]),
            ("Provider", row["provider"]),
            ("Provider's id", row["provider_message_id"]),
            ("Attempts", _attempts(row)),
            ("Claims", row["claim_seq"]),
            ("Deferred", row["defer_count"] or None),
            ("Taken from lost workers", row["rescue_count"] or None),
            ("Failed publishes in a row", row["publish_failures"] or None),
            ("Held by", row["locked_by"]),
            ("Held until", moment_fact(row["locked_until"])),
            ("Trace", trace_of(row["traceparent"])),
        ]
    )


def _timeline(row: Row, summary: Summary) -> list[Step]:
    steps = [Step(summary.created_at, "created", "Ordered")]
    queued, tried, sent = (readable(row[name]) for name in ("last_queued_at", "last_attempt_at", "sent_at"))
    if queued is not None:
        steps.append(Step(queued, "queued", "Last put into the queue"))
    if tried is not None:
        steps.append(_attempt(row, summary, tried))
    if summary.state == "Sent":
        steps.append(
            Step(sent or tried or summary.created_at, "delivered", "Taken by the provider", well=True)
        )
    elif summary.state == CANCELLED:
        at = readable(row["announced_at"]) or tried or queued or summary.created_at
        steps.append(Step(at, "stopped", "Cancelled", well=False))
    elif summary.state == "Dead":
        at = tried or queued or summary.created_at
        told = message_of(row["last_error"])
        title = f"Given up: {row['dead_reason'] or 'without a reason'}"
        steps.append(Step(at, "dead", title, well=False, error_class=summary.error, error=told))
    elif summary.due_at is not None:
        steps.append(Step(summary.due_at, "waits", "Next attempt"))
    return sorted(steps, key=lambda step: step.at)


def _attempt(row: Row, summary: Summary, at: datetime) -> Step:
    if row["locked_by"] is not None:
        return Step(at, "claimed", f"Claim {row['claim_seq']}", worker=row["locked_by"])
    well = summary.state == "Sent"
    title = f"Last attempt, of {max(_attempts(row), 1)}"
    if well or row["last_error"] is None:
        return Step(at, "attempt", title, well=well or None)
    code, told = code_of(row["last_error"]), message_of(row["last_error"])
    return Step(at, "attempt", title, well=False, error_class=code, error=told)


def _waits(row: Row, summary: Summary, now: datetime) -> str | None:
    if summary.phase != "waiting":
        return None
    if row["locked_by"] is not None:
        return f"{row['locked_by']} has it"
    if summary.state == "Failed" and summary.due_at is not None and summary.due_at > now:
        return f"it is tried again after: {row['last_error'] or 'a failure'}"
    if readable(row["last_queued_at"]) is None or summary.state == "Failed":
        return f"{DUE}the scheduler puts it into the queue"
    return f"{DUE}its message is in the queue: the next free sender takes it"
