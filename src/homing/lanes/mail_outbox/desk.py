"""Mails of the outbox on the operator's desk: found, shown, and set as they would be sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from homing.db import Dialect, Row
from homing.db.conditions import Conditions, is_one_of, readable, readable_or_never
from homing.db.looking import Stream, first_after, look
from homing.lanes.mail_outbox.desk_conditions import (
    ORDERED,
    PHASES,
    TABLE,
    in_order,
    number_of,
    other_conditions,
    states_of,
)
from homing.lanes.mail_outbox.desk_dead import MailDeadDesk
from homing.lanes.mail_outbox.outbox import MailOutbox
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

_ENDED_BADLY = frozenset({"failed", "expired"})


class MailDesk(MailDeadDesk):
    name: LaneName = "mail_outbox"
    phases: Mapping[str, Phase] = PHASES
    scope = "mail"

    def __init__(self, outbox: MailOutbox, templates: Templates, default_sender: str) -> None:
        super().__init__(outbox)
        self._outbox = outbox
        self._templates = templates
        self._default_sender = default_sender

    def number(self, id: str) -> int | None:
        return number_of(id)

    async def counts(self) -> Mapping[str, int]:
        return await self._outbox.counts()

    async def oldest_due(self) -> float:
        return await self._outbox.oldest_due()

    # ── many ─────────────────────────────────────────────────────────────────────────────────────

    async def find(self, wanted: Wanted, *, before: int | None, limit: int) -> Seen:
        database = self._outbox.database
        states = states_of(wanted)
        others = other_conditions(wanted, database.dialect)
        if not states or others is None:
            return Seen((), None)
        if wanted.until is not None and before is None:
            before = await first_after(database, TABLE, wanted.until)
        stream, also = _stream(database.dialect, wanted, states, others)
        seen = await look(database, TABLE, stream, also, before=before, limit=limit, since=wanted.since)
        return Seen([_summary(row) for row in seen.rows], seen.next, seen.looked_at)

    # ── one ──────────────────────────────────────────────────────────────────────────────────────

    async def show(self, number: int) -> Detail | None:
        row = await self._outbox.get(number)
        if row is None:
            return None
        summary = _summary(row)
        return Detail(
            summary,
            _fields(row),
            _timeline(row, summary),
            json_body({"variables": _harmless(row["variables"]), "metadata": row["metadata"]}),
            has_mail=True,
            verbs=possible(self.from_states, summary.state),
            waits=_waits(row, summary, datetime.now(UTC)),
        )

    async def mail(self, number: int) -> MailParts | None:
        row = await self._outbox.get(number)
        if row is None:
            return None
        found = preview_of(shown(row), self._templates, self._default_sender, row["attachments"])
        return MailParts(found.headers, found.text, found.html, found.source, found.trouble)


def _stream(
    dialect: Dialect, wanted: Wanted, states: tuple[str, ...], others: Conditions
) -> tuple[Stream, Conditions]:
    """By which index the rows are read, and what is left to be looked for among them."""
    if wanted.id is not None:
        # At most one row, by its key; what else is asked for is asked of this one.
        by_key = next(text for text in others.texts if text.startswith(("o.id =", "o.idempotency_key =")))
        state = () if len(states) == len(PHASES) else (is_one_of("o.status", states),)
        return Stream((by_key,)), Conditions(
            (*state, *(t for t in others.texts if t != by_key)), others.values
        )
    if len(states) == len(PHASES):
        return Stream(), others
    asked = Conditions((is_one_of("o.status", states),))
    if "sent" in states:
        # Nearly all of them: the newest are soon found among all.
        return Stream(), asked + others
    ordered = tuple(in_order(dialect, state) for state in states if state in ORDERED)
    queued = ("o.status = 'queued'",) if "queued" in states else ()
    return Stream(ordered, queued, asked.texts[0]), others


def _summary(row: Row) -> Summary:
    state = row["status"]
    phase = PHASES.get(state, "waiting")
    return Summary(
        lane="mail_outbox",
        id=f"outbox_{row['id']}",
        number=row["id"],
        state=state,
        phase=phase,
        title=str(row["subject"] or row["template"] or ""),
        to=str(row["to_address"]),
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


def _harmless(variables: str | None) -> str | None:
    """A link in them may be one that only its receiver should follow, and a code one that only he knows."""
    return hide_in_json(str(variables)) if variables else None


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
            ("Provider", row["provider"]),
            ("Provider's id", row["provider_message_id"]),
            ("Idempotency key", row["idempotency_key"]),
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


def _timeline(row: Row, summary: Summary) -> list[Step]:
    steps = [Step(summary.created_at, "created", "Put into the outbox")]
    tried = readable(row["last_attempt_at"])
    error, code = message_of(row["last_error"]), code_of(row["last_error"])
    if tried is not None and summary.phase == "running":
        steps.append(Step(tried, "claimed", f"Claim {row['claim_seq']}", worker=row["locked_by"]))
    elif tried is not None:
        well = summary.state == "sent"
        attempt = Step(
            tried,
            "attempt",
            f"Last attempt, of {max(_attempts(row), 1)}",
            well=well,
            worker=row["locked_by"],
        )
        steps.append(_failed(attempt, None if well else code, None if well else error))
    sent = readable(row["sent_at"])
    if summary.state == "sent":
        steps.append(
            Step(sent or tried or summary.created_at, "delivered", "Taken by the provider", well=True)
        )
    elif summary.phase in {"dead", "stopped"}:
        ended = readable(row["expires_at"]) if summary.state == "expired" else None
        step = Step(
            ended or tried or summary.created_at, summary.phase, summary.state.capitalize(), well=False
        )
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
