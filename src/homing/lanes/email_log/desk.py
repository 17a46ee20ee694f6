"""Emails on the operator's desk: found, shown, and set as they would be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from homing.db import Row
from homing.db.conditions import readable, readable_or_never, written
from homing.lanes.email_log.desk_conditions import CANCELLED, LAYOUT, PHASES
from homing.lanes.email_log.log import EmailLog, attempts_of_emails
from homing.lanes.email_log.view import email_id
from homing.messages.attempts import delivered_attempt, ended_after, failed_attempts, last_claim, own_attempts
from homing.messages.facts import (
    DUE,
    code_of,
    facts,
    filenames,
    message_of,
    moment_fact,
    possible,
    trace_of,
    verdicts,
)
from homing.messages.mails import harmless_body, harmless_text, mail_of
from homing.messages.model import Detail, LaneName, MailParts, Phase, Step, Summary, Verb
from homing.messages.table_desk import TableDesk
from homing.senders.templates import Templates

#: In other states the column says when the scheduler looks at the row again, which is nobody's attempt.
_TRIED_AGAIN = frozenset({"Failed", "RetryQueued"})


class EmailDesk(TableDesk[EmailLog]):
    name: LaneName = "email_log"
    phases: Mapping[str, Phase] = PHASES
    scope = "emails"
    from_states: Mapping[Verb, tuple[str, ...]] = {
        "requeue": ("Dead", "Failed", "Cancelled"),
        "cancel": ("Pending", "Failed"),
        "send_now": ("Pending", "Failed"),
    }
    _layout = LAYOUT

    def __init__(self, log: EmailLog, templates: Templates, default_sender: str) -> None:
        super().__init__(log, __package__ or "")
        self._kept = attempts_of_emails(log.database)
        self._templates = templates
        self._default_sender = default_sender

    # ── many ─────────────────────────────────────────────────────────────────────────────────────

    async def _summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        return [_summary(row) for row in rows]

    # ── one ──────────────────────────────────────────────────────────────────────────────────────

    async def show(self, number: int, *, whole: bool = False) -> Detail | None:  # noqa: ARG002 - nobody sees it whole here
        row = await self._rows.get(number)
        if row is None:
            return None
        summary = _summary(row)
        return Detail(
            summary,
            _fields(row),
            _timeline(row, summary, await self._kept.of(number)),
            await harmless_body(row, "variables"),
            has_mail=True,
            verbs=possible(self.from_states, summary.state),
            waits=_waits(row, summary, datetime.now(UTC)),
        )

    async def mail(self, number: int) -> MailParts | None:
        row = await self._rows.get(number)
        if row is None:
            return None
        return await mail_of(row, self._templates, self._default_sender, text_body=row["body"])


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
        title=harmless_text(row["subject"] or row["template"]),
        to=written(row["to_address"]),
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
            ("From", harmless_text(row["from_address"])),
            ("To", row["to_address"]),
            ("Cc", row["cc_address"]),
            ("Bcc", row["bcc_address"]),
            ("Reply to", harmless_text(row["reply_to"])),
            ("Subject", harmless_text(row["subject"])),
            ("Template", row["template"]),
            ("Locale", row["locale"]),
            ("Attachments", harmless_text(filenames(row["attachments"]))),
            *verdicts(row["recipients"]),
            ("Message key", harmless_text(row["message_key"])),
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


def _timeline(row: Row, summary: Summary, kept: Sequence[Row]) -> list[Step]:
    kept = own_attempts(kept, summary.created_at)
    steps = [Step(summary.created_at, "created", "Ordered"), *failed_attempts(kept)]
    queued, tried, sent = (readable(row[name]) for name in ("last_queued_at", "last_attempt_at", "sent_at"))
    if queued is not None:
        steps.append(Step(queued, "queued", "Last put into the queue"))
    if row["locked_by"] is not None and tried is not None:
        steps.append(Step(tried, "claimed", f"Claim {row['claim_seq']}", worker=row["locked_by"]))
    elif summary.state != "Sent" and (last := last_claim(row, kept, row["attempt_count"])) is not None:
        steps.append(last)
    if summary.state == "Sent":
        arrived = sent or tried or summary.created_at
        steps.append(delivered_attempt(row, kept, _attempts(row), arrived))
        steps.append(Step(arrived, "delivered", "Taken by the provider", well=True))
    elif summary.state == CANCELLED:
        at = readable(row["announced_at"]) or tried or queued or summary.created_at
        steps.append(Step(at, "stopped", "Cancelled", well=False))
    elif summary.state == "Dead":
        at = ended_after(kept, tried or queued or summary.created_at)
        told = message_of(row["last_error"])
        title = f"Given up: {row['dead_reason'] or 'without a reason'}"
        steps.append(Step(at, "dead", title, well=False, error_class=summary.error, error=told))
    elif summary.due_at is not None:
        steps.append(Step(summary.due_at, "waits", "Next attempt"))
    return sorted(steps, key=lambda step: step.at)


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
