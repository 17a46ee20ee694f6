"""Mails of the outbox on the operator's desk: found, shown, and set as they would be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from homing.db import Row
from homing.db.conditions import readable, readable_or_never, written
from homing.lanes.mail_outbox.desk_conditions import LAYOUT, PHASES
from homing.lanes.mail_outbox.outbox import MailOutbox, attempts_of_mails
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

_ENDED_BADLY = frozenset({"failed", "expired"})


class MailDesk(TableDesk[MailOutbox]):
    name: LaneName = "mail_outbox"
    phases: Mapping[str, Phase] = PHASES
    scope = "mail"
    from_states: Mapping[Verb, tuple[str, ...]] = {
        "requeue": ("failed", "cancelled", "expired"),
        "cancel": ("queued",),
        "send_now": ("queued",),
    }
    _layout = LAYOUT

    def __init__(self, outbox: MailOutbox, templates: Templates, default_sender: str) -> None:
        super().__init__(outbox, __package__ or "")
        self._kept = attempts_of_mails(outbox.database)
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
            await harmless_body(row, "variables", "metadata"),
            has_mail=True,
            verbs=possible(self.from_states, summary.state),
            waits=_waits(row, summary, datetime.now(UTC)),
        )

    async def mail(self, number: int) -> MailParts | None:
        row = await self._rows.get(number)
        return await mail_of(row, self._templates, self._default_sender) if row is not None else None


def _summary(row: Row) -> Summary:
    state = row["status"]
    phase = PHASES.get(state, "waiting")
    return Summary(
        lane="mail_outbox",
        id=f"outbox_{row['id']}",
        number=row["id"],
        state=state,
        phase=phase,
        title=harmless_text(row["subject"] or row["template"]),
        to=written(row["to_address"]),
        attempts=_attempts(row),
        error=code_of(row["last_error"]) if state != "sent" else None,
        created_at=readable_or_never(row["created_at"]),
        due_at=_due(row) if phase == "waiting" else None,
    )


def _due(row: Row) -> datetime | None:
    """An urgent mail has a time before its order, by which it goes first; it is due since it was ordered."""
    due, created = readable(row["next_attempt_at"]), readable(row["created_at"])
    return max(due, created) if due is not None and created is not None else due


def _attempts(row: Row) -> int:
    """The column has those that failed; the last one of a mail that was sent did not."""
    return int(row["retry_count"]) + int(row["status"] == "sent")


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
            ("Provider", row["provider"]),
            ("Provider's id", row["provider_message_id"]),
            ("Idempotency key", harmless_text(row["idempotency_key"])),
            ("Attempts", _attempts(row)),
            ("Claims", row["claim_seq"]),
            ("Deferred", row["defer_count"] or None),
            ("Taken from lost workers", row["rescue_count"] or None),
            ("Held by", row["locked_by"] if row["status"] == "dispatching" else None),
            ("Held until", moment_fact(row["lease_expires_at"]) if row["status"] == "dispatching" else None),
            ("Expires", moment_fact(row["expires_at"])),
            ("Trace", trace_of(row["traceparent"])),
        ]
    )


def _timeline(row: Row, summary: Summary, kept: Sequence[Row]) -> list[Step]:
    kept = own_attempts(kept, summary.created_at)
    steps = [Step(summary.created_at, "created", "Put into the outbox"), *failed_attempts(kept)]
    tried = readable(row["last_attempt_at"])
    error, code = message_of(row["last_error"]), code_of(row["last_error"])
    if summary.phase == "running" and tried is not None:
        steps.append(Step(tried, "claimed", f"Claim {row['claim_seq']}", worker=row["locked_by"]))
    elif summary.state != "sent" and (last := last_claim(row, kept, row["retry_count"])) is not None:
        steps.append(last)
    if summary.state == "sent":
        sent = readable(row["sent_at"]) or tried or summary.created_at
        steps.append(delivered_attempt(row, kept, _attempts(row), sent))
        steps.append(Step(sent, "delivered", "Taken by the provider", well=True))
    elif summary.phase in {"dead", "stopped"}:
        ended = readable(row["expires_at"]) if summary.state == "expired" else None
        at = ended or ended_after(kept, tried or summary.created_at)
        step = Step(at, summary.phase, summary.state.capitalize(), well=False)
        steps.append(_failed(step, code, error) if summary.state in _ENDED_BADLY else step)
    elif summary.due_at is not None:
        steps.append(Step(summary.due_at, "waits", "Next attempt" if row["retry_count"] else "First attempt"))
    return sorted(steps, key=lambda step: step.at)


def _failed(step: Step, code: str | None, error: str | None) -> Step:
    return replace(step, error_class=code, error=error)


def _waits(row: Row, summary: Summary, now: datetime) -> str | None:
    if summary.phase == "running":
        return f"{row['locked_by'] or 'a worker'} has it"
    if summary.phase != "waiting" or summary.due_at is None:
        return None
    if summary.due_at <= now:
        return f"{DUE}the next free worker takes it"
    if row["retry_count"] or row["defer_count"]:
        return f"it is tried again after: {row['last_error'] or 'a failure'}"
    return "it is scheduled for later"
