"""The lane: one attempt is one mail to those who do not have it yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homing.engine.model import (
    Bury,
    Claim,
    Complete,
    Delivered,
    Discard,
    Failure,
    Outcome,
    Reject,
    Retry,
    RetryIn,
    Settlement,
    Skip,
)
from homing.engine.policy import Policy
from homing.lanes.mail_outbox.compose import Envelope, Problem, compose, envelope_of
from homing.lanes.mail_outbox.mail import Mail, Report
from homing.lanes.mail_outbox.outbox import MailOutbox
from homing.senders.mail import MailSender, SendErrorCode, SendResult, Verdict
from homing.senders.templates import Templates

_EXPIRED = Failure("expired", "expired before it could be sent")
_ACCEPTED = Verdict("accepted")


class MailOutboxLane:
    name = "mail_outbox"

    def __init__(
        self,
        outbox: MailOutbox,
        sender: MailSender,
        templates: Templates,
        *,
        policy: Policy,
        lease_seconds: float,
        default_sender: str,
    ) -> None:
        self.store = outbox
        self.policy = policy
        self.lease_seconds = lease_seconds
        self._sender = sender
        self._templates = templates
        self._default_sender = default_sender

    def policy_of(self, _claim: Claim[Mail]) -> Policy:
        return self.policy

    async def attempt(self, claim: Claim[Mail]) -> Outcome:
        mail = claim.item
        if mail.expired:
            return Skip(_EXPIRED)
        envelope = envelope_of(mail)
        if isinstance(envelope, Problem):
            return _refusal(envelope)
        if not envelope.open:
            return conclude(envelope, envelope.verdicts, None)
        attachments = await self.store.attachments(claim.id) if mail.has_attachments else None
        message = compose(mail, envelope, self._templates, self._default_sender, attachments)
        if isinstance(message, Problem):
            return _refusal(message)
        result = await self._sender.send(message)
        return conclude(envelope, _verdicts(envelope, result), result)

    async def available(self) -> bool:
        return await self._sender.available()

    def describe(self, claim: Claim[Mail], settlement: Settlement | None) -> Mapping[str, Any]:
        report = getattr(settlement, "report", None)
        if report is None:
            return {"token": claim.item.token}
        return {"token": claim.item.token, "provider": report.provider, "recipients": len(report.recipients)}


def _refusal(problem: Problem) -> Reject:
    return Reject(Failure(problem.code.value, problem.message))


def _verdicts(envelope: Envelope, result: SendResult) -> Mapping[str, Verdict]:
    """What is known of everybody after an attempt."""
    verdicts = {**envelope.verdicts, **result.verdicts}
    if result.status == "sent":
        for address in envelope.open:
            verdicts.setdefault(address, _ACCEPTED)
    return verdicts


def conclude(envelope: Envelope, verdicts: Mapping[str, Verdict], result: SendResult | None) -> Outcome:
    """Sent when all accepted; failed when none is open any more; else the open ones are tried again."""
    report = (
        Report(result.provider, result.provider_message_id, verdicts)
        if result
        else Report(recipients=verdicts)
    )
    failed_whole = result is not None and result.status == "failed"
    still_open = [a for a in envelope.everybody if a not in verdicts or verdicts[a].status == "deferred"]
    if still_open and not failed_whole:
        assert result is not None, "only an attempt leaves a recipient open"
        return Retry(_failure(verdicts, result), result.retry_after, result.attempted, report)
    if failed_whole or any(v.status == "rejected" for v in verdicts.values()):
        return Reject(_failure(verdicts, result), report)
    return Delivered(report)


def _failure(verdicts: Mapping[str, Verdict], result: SendResult | None) -> Failure:
    if result is not None and result.error is not None:
        return Failure(result.error.code.value, result.error.message)
    refused = next((v for v in verdicts.values() if v.status != "accepted"), _ACCEPTED)
    return Failure(SendErrorCode.INVALID_RECIPIENT.value, refused.text or "a recipient was refused")


def transition(_claim: Claim[Mail], settlement: Settlement) -> Mapping[str, Any]:
    """The columns that each settlement writes."""
    match settlement:
        case Complete(report=report):
            return _columns("sent", report)
        case RetryIn(delay=delay, failure=failure, charged=charged, report=report):
            return _columns("queued", report, charged=charged, error=failure, delay=delay)
        case Bury(failure=failure, charged=charged, report=report):
            return _columns("failed", report, charged=charged, error=failure)
        case Discard(failure=failure, report=report):
            return _columns("expired", report, error=failure)


def _columns(
    status: str,
    report: Report | None,
    *,
    charged: bool = False,
    error: Failure | None = None,
    delay: float = 0.0,
) -> Mapping[str, Any]:
    return {
        "status": status,
        "charged": int(charged),
        "delay": delay,
        "error": compact(error) if error else None,
        "recipients": report.recipients or None if report else None,
        "provider": report.provider if report else None,
        "provider_message_id": report.provider_message_id if report else None,
    }


#: `last_error` is for reading in a list.
_LONGEST_ERROR = 500


def compact(failure: Failure) -> str:
    text = f"{failure.code}: {failure.message}" if failure.message else failure.code
    # PostgreSQL's text holds everything but NUL.
    return " ".join(text.replace("\x00", " ").split())[:_LONGEST_ERROR]
