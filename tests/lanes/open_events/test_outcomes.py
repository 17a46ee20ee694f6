"""Every end and every retry of the specification, in one table, read as the other program reads it.

outcome → fanout_status, fanout_attempts, error, when it is due again, the subscription's history
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from tests.notifications import NotificationBench, notification_bench, read_json

from homing.db import instant
from homing.senders.mail import SendError, SendErrorCode, SendResult, Verdict

Code = SendErrorCode


def sent(id: str | None = "m-1") -> SendResult:
    return SendResult(status="sent", provider="smtp", provider_message_id=id)


def retryable(code: Code, after: float | None = None, *, attempted: bool = True) -> SendResult:
    error = SendError(code, "later")
    return SendResult(
        status="retryable", provider="smtp", error=error, retry_after=after, attempted=attempted
    )


def refused(code: Code) -> SendResult:
    return SendResult(status="failed", provider="smtp", error=SendError(code, "no"))


def told(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "message": message, **more}


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


SENT = {"provider": "smtp", "providerMessageId": "m-1", "status": "sent"}
LATER = {"message": "later", "provider": "smtp"}
NO = {"message": "no", "provider": "smtp"}
EARLIER = '{"code":"network_error","message":"gone"}'
CLOSED_NOW = '{"deliveryWindow": {"startMinutes": %d, "endMinutes": %d}}'


def closed_window() -> str:
    """A window of the day that is not now, and does not open within the quarter of an hour either."""
    minute = datetime.now(UTC).hour * 60 + datetime.now(UTC).minute
    return CLOSED_NOW % ((minute + 300) % 1440, (minute + 301) % 1440)


class Case(Struct, frozen=True, kw_only=True):
    """A line of the table. What is left out is as a producer writes it, or as it was."""

    clause: str
    answer: SendResult | None = None
    event: dict[str, Any] = {}
    subscription: dict[str, Any] = {}
    row: dict[str, Any] = {}
    #: Columns of a table that are taken away: the event or the subscription does not exist.
    missing: str | None = None
    status: str
    attempts: int
    #: None: as it was. A prefix of the message is enough.
    error: dict[str, Any] | None
    #: Seconds until it is due again; None when it ended, or is due at once.
    due_in: float | None = None
    history: tuple[str, ...] = ()
    subscription_status: str = "active"
    mailed: bool = False


TABLE: dict[str, Case] = {
    # ── sent ─────────────────────────────────────────────────────────────────────────────────────
    "sent": Case(
        clause="NTF-11", answer=sent(), mailed=True,
        status="sent", attempts=1, error=SENT, history=("notify_sent",)),
    "sent, provider tells no id": Case(
        clause="NTF-11", answer=sent(None), mailed=True,
        status="sent", attempts=1, error={**SENT, "providerMessageId": None}, history=("notify_sent",)),
    "sent on the last attempt": Case(
        clause="NTF-15", answer=sent(), row={"fanout_attempts": 2, "error": EARLIER}, mailed=True,
        status="sent", attempts=3, error=SENT, history=("notify_sent",)),
    "sent, the last that is wanted": Case(
        clause="NTF-23", answer=sent(), subscription={"metadata": '{"preferences": {"maxNotifications": 1}}'},
        mailed=True, status="sent", attempts=1, error=SENT, history=("notify_sent",)),
    # ── retryable ────────────────────────────────────────────────────────────────────────────────
    "rate limited, first attempt": Case(
        clause="NTF-12", answer=retryable(Code.RATE_LIMITED), mailed=True,
        status="pending", attempts=1, error=told("rate_limited", **LATER)),
    "network error, second attempt": Case(
        clause="NTF-13", answer=retryable(Code.NETWORK_ERROR), row={"fanout_attempts": 1}, mailed=True,
        status="pending", attempts=2, error=told("network_error", **LATER), due_in=2.0),
    "provider 5xx asks for a minute": Case(
        clause="NTF-12", answer=retryable(Code.PROVIDER_ERROR, 60.0), mailed=True,
        status="pending", attempts=1, due_in=60.0,
        error=told("provider_error", **LATER, retryAfterSeconds=60.0)),
    "asked to wait for longer than a lock": Case(
        clause="NTF-13", answer=retryable(Code.RATE_LIMITED, 600.0), mailed=True,
        status="pending", attempts=1, due_in=600.0,
        error=told("rate_limited", **LATER, retryAfterSeconds=600.0)),
    "unknown": Case(
        clause="NTF-12", answer=retryable(Code.UNKNOWN), row={"fanout_attempts": 1}, mailed=True,
        status="pending", attempts=2, error=told("unknown", **LATER), due_in=2.0),
    "never looked at": Case(
        clause="NTF-03", answer=retryable(Code.RATE_LIMITED, 30.0, attempted=False),
        row={"fanout_attempts": 1, "error": EARLIER}, mailed=True,
        status="pending", attempts=1, error=read_json(EARLIER), due_in=30.0),
    "retryable, no attempts left": Case(
        clause="NTF-15", answer=retryable(Code.NETWORK_ERROR), row={"fanout_attempts": 2}, mailed=True,
        status="failed", attempts=3, error=told("network_error", **LATER), history=("notify_failed",)),
    "retryable with a code that is not": Case(
        clause="NTF-12", answer=retryable(Code.UNAUTHORIZED), mailed=True,
        status="failed", attempts=1, error=told("unauthorized", **LATER), history=("notify_failed",)),
    # ── terminal, by the sender ──────────────────────────────────────────────────────────────────
    "the provider refuses the recipient": Case(
        clause="NTF-14", answer=refused(Code.INVALID_RECIPIENT), mailed=True,
        status="skipped", attempts=1, error=told("invalid_recipient", **NO), history=("notify_failed",)),
    "unauthorized": Case(
        clause="NTF-14", answer=refused(Code.UNAUTHORIZED), mailed=True,
        status="failed", attempts=1, error=told("unauthorized", **NO), history=("notify_failed",)),
    "provider 4xx": Case(
        clause="NTF-14", answer=refused(Code.PROVIDER_ERROR), mailed=True,
        status="failed", attempts=1, error=told("provider_error", **NO), history=("notify_failed",)),
    "the provider finds the mail malformed": Case(
        clause="NTF-14", answer=refused(Code.VALIDATION_ERROR), mailed=True,
        status="failed", attempts=1, error=told("validation_error", **NO), history=("notify_failed",)),
    "refused on the last attempt": Case(
        clause="NTF-15", answer=refused(Code.INVALID_RECIPIENT), row={"fanout_attempts": 2}, mailed=True,
        status="skipped", attempts=3, error=told("invalid_recipient", **NO), history=("notify_failed",)),
    # ── terminal, before the send ────────────────────────────────────────────────────────────────
    "no email contact": Case(
        clause="NTF-09", subscription={"contact_type": "sms", "contact_value": "+15551234"},
        status="skipped", attempts=1, error=told("not_email", "the contact is no email address"),
        history=("notify_failed",)),
    "unsubscribed": Case(
        clause="NTF-14", subscription={"status": "Unsubscribed"},
        status="skipped", attempts=1, error=told("unsubscribed", "the subscriber has unsubscribed"),
        history=("notify_failed",), subscription_status="Unsubscribed"),
    "paused": Case(
        clause="NTF-23", subscription={"status": "paused"},
        status="skipped", attempts=1, error=told("ineligible", "the subscription is not active"),
        history=("notify_failed",), subscription_status="paused"),
    "not confirmed": Case(
        clause="NTF-23", subscription={"status": "pending"},
        status="skipped", attempts=1, error=told("ineligible", "the subscription is not active"),
        history=("notify_failed",), subscription_status="pending"),
    "suppressed": Case(
        clause="NTF-23", subscription={"status": "suppressed"},
        status="skipped", attempts=1, error=told("ineligible", "the subscription is not active"),
        history=("notify_failed",), subscription_status="suppressed"),
    "does not want to hear of open seats": Case(
        clause="NTF-23", subscription={"metadata": '{"preferences": {"notifyOn": ["waitlist"]}}'},
        status="skipped", attempts=1, error=told("ineligible", "the subscriber does not want"),
        history=("notify_failed",)),
    "the section did not open": Case(
        clause="NTF-23", event={"status_after": "WAIT"},
        status="skipped", attempts=1, error=told("ineligible", "the section did not open"),
        history=("notify_failed",)),
    "no address": Case(
        clause="NTF-14", subscription={"contact_value": "  "},
        status="skipped", attempts=1, error=told("invalid_recipient", "the address has no @"),
        history=("notify_failed",)),
    "no such address": Case(
        clause="NTF-14", subscription={"contact_value": "ann@@example.org"},
        status="skipped", attempts=1, error=told("invalid_recipient", "the part before the @"),
        history=("notify_failed",)),
    "wants no notifications at all": Case(
        clause="NTF-23", subscription={"metadata": '{"preferences": {"maxNotifications": 0}}'},
        status="skipped", attempts=1, error=told("limit_reached", "the subscription's limit of 0"),
        history=("notify_failed",)),
    "no such event": Case(
        clause="NTF-14", missing="open_events",
        status="failed", attempts=1, error=told("open_event_missing", "there is no such open event"),
        history=("notify_failed",)),
    "no such subscription": Case(
        clause="NTF-14", missing="subscriptions",
        status="failed", attempts=1, error=told("subscription_missing", "there is no such subscription")),
    "a required variable is missing": Case(
        clause="NTF-10", event={"payload": '{"courseTitle": "Algebra"}'},
        status="failed", attempts=1,
        error=told("template_variable_missing", "the job is not what the schema asks for: "
                   "template.variables: sectionNumber is missing"), history=("notify_failed",)),
    # ── uncharged ends ───────────────────────────────────────────────────────────────────────────
    "the event is too old": Case(
        clause="NTF-24", event={"event_at": ago(hours=25)},
        status="expired", attempts=0, error=told("expired", "the event is too old to be news"),
        history=("notify_failed",)),
    "the event is too old, tried before": Case(
        clause="NTF-24", event={"event_at": ago(hours=25)}, row={"fanout_attempts": 1, "error": EARLIER},
        status="expired", attempts=1, error=read_json(EARLIER), history=("notify_failed",)),
    "claimed with its attempts used up": Case(
        clause="NTF-15", row={"fanout_attempts": 3, "error": EARLIER},
        status="failed", attempts=3, error=read_json(EARLIER), history=("notify_failed",)),
    "used up, nobody wrote why": Case(
        clause="NTF-15", row={"fanout_attempts": 7},
        status="failed", attempts=7, error=told("attempts_used_up", "no attempts are left"),
        history=("notify_failed",)),
    "expired after it waited": Case(
        clause="NTF-24", row={"error": '{"code":"outside_window","message":"snoozed"}'},
        event={"event_at": ago(days=2)},
        status="expired", attempts=0, error=told("expired", "the event is too old"),
        history=("notify_failed",)),
    # ── it waits ─────────────────────────────────────────────────────────────────────────────────
    "snoozed for years": Case(
        clause="NTF-23",
        subscription={"metadata": '{"preferences": {"snoozeUntil": "2099-01-01T00:00:00Z"}}'},
        status="pending", attempts=0, error=told("outside_window", "snoozed"), due_in=900.0),
    "outside of the window": Case(
        clause="NTF-23", subscription={"metadata": closed_window()},
        row={"fanout_attempts": 1, "error": EARLIER},
        status="pending", attempts=1, error=read_json(EARLIER), due_in=900.0),
}  # fmt: skip


@pytest.mark.clause("NTF-03", "NTF-09", "NTF-10", "NTF-11", "NTF-12", "NTF-13", "NTF-14", "NTF-15")
@pytest.mark.clause("NTF-20", "NTF-23", "NTF-24")
async def test_each_outcome_is_written_as_the_table_says(database_url: str) -> None:
    """On one database, because a new one for each line would take longer than all lines."""
    wrong = []
    async with notification_bench(database_url) as bench:
        for name, case in TABLE.items():
            try:
                await _check(bench, name, case)
            except AssertionError as difference:
                wrong.append(f"{name} ({case.clause}): {difference}")
    assert not wrong, "\n\n".join(wrong)


async def _check(bench: NotificationBench, name: str, case: Case) -> None:
    event, subscription = await bench.event(**case.event), await bench.subscription(**case.subscription)
    id = await bench.notification(event, subscription, **case.row)
    if case.missing is not None:
        key = "open_event_id" if case.missing == "open_events" else "subscription_id"
        await bench.other.sql(
            f"DELETE FROM {case.missing} WHERE {key} = :id RETURNING 1 AS one",
            id=event if case.missing == "open_events" else subscription,
        )
    if case.answer is not None:
        bench.memory.answer_next(case.answer)
    mails = len(bench.memory.messages)
    await bench.deliver()
    assert len(bench.memory.messages) - mails == case.mailed, (
        f"{name}: a mail went to the sender, or none did"
    )
    await _check_row(bench, name, case, id)
    if case.missing != "subscriptions":
        await _check_subscription(bench, name, case, subscription)
    # Nothing of this line is left for the next one.
    await bench.other.change(id, fanout_status="sent")


async def _check_row(bench: NotificationBench, name: str, case: Case, id: int) -> None:
    row = await bench.other.row(id)
    assert (row["fanout_status"], row["fanout_attempts"]) == (case.status, case.attempts), f"{name}: {row}"
    assert (row["locked_by"], row["locked_at"]) == (None, None), f"{name}: the lock is cleared"
    _check_error(name, read_json(row["error"]), case.error)
    charged = case.attempts - case.row.get("fanout_attempts", 0)
    assert (row["last_attempt_at"] is not None) == bool(charged), f"{name}: set on every attempt"
    due, since = instant(row["due_at"]), instant(row["last_attempt_at"]) or datetime.now(UTC)
    if case.due_in is None:
        assert due is None, f"{name}: {due}"
    else:
        assert due is not None, name
        # From the moment of the attempt; of one that was none only we know when that was, nearly.
        exact = 0.01 if charged else 25.0
        assert (due - since).total_seconds() == pytest.approx(case.due_in, abs=exact), name


def _check_error(name: str, found: Any, wanted: dict[str, Any] | None) -> None:
    if wanted is None or "message" not in wanted:
        assert found == wanted, name
        return
    assert found.pop("message").startswith(wanted["message"]), f"{name}: {found}"
    assert found == {key: value for key, value in wanted.items() if key != "message"}, name


async def _check_subscription(bench: NotificationBench, name: str, case: Case, id: int) -> None:
    row, history = await bench.other.subscription(id), await bench.other.history(id)
    assert tuple(line["event_type"] for line in history) == case.history, f"{name}: {history}"
    assert row["status"] == case.subscription_status, name
    was_sent = case.status == "sent"
    assert (row["last_notified_at"] is not None) == was_sent, name
    assert row["last_known_section_status"] == ("OPEN" if was_sent else None), name
    if was_sent:
        assert history[0]["section_status_snapshot"] == "OPEN", name
        notified = instant(row["last_notified_at"])
        assert notified is not None
        assert abs(datetime.now(UTC) - notified) < timedelta(minutes=2), name


@pytest.mark.clause("NTF-11")
async def test_the_history_says_which_notification_and_why(database_url: str) -> None:
    async with notification_bench(database_url) as bench:
        good, bad = await bench.notification(), await bench.notification()
        bench.memory.answer_next(sent(), refused(Code.UNAUTHORIZED))
        await bench.deliver()
        for id, code in ((good, None), (bad, "unauthorized")):
            row = await bench.other.row(id)
            (line,) = await bench.other.history(row["subscription_id"])
            story = {"notificationId": id, "openEventId": row["open_event_id"]}
            assert read_json(line["payload"]) == ({**story, "code": code} if code else story)
            assert instant(line["created_at"]) is not None


@pytest.mark.clause("NTF-22")
async def test_a_provider_may_say_anything(database_url: str) -> None:
    """`error` stays JSON that older tools can read, whatever the other side said."""
    async with notification_bench(database_url) as bench:
        id, other = await bench.notification(), await bench.notification()
        awful = 'a"b\\c\x00d\n\ud800' + "x" * 5000
        failed = SendResult(status="failed", provider="smtp", error=SendError(Code.PROVIDER_ERROR, awful))
        odd = SendResult(
            status="sent", provider="smtp", provider_message_id='<\x00"\ud800>',
            verdicts={"a": Verdict("accepted")},
        )  # fmt: skip
        bench.memory.answer_next(failed, odd)
        await bench.deliver()
        error = read_json((await bench.other.row(id))["error"])
        assert error["code"] == "provider_error"
        assert error["message"].startswith('a"b\\c d ?x')
        assert len(error["message"]) == 500
        assert msgspec.json.decode((await bench.other.row(other))["error"])["status"] == "sent"
