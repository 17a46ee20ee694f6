"""The sending stage: one attempt is one mail to those who do not have it yet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from homing.engine.model import (
    Bury,
    Claim,
    Complete,
    Discard,
    Failure,
    Outcome,
    Reject,
    RetryIn,
    Settlement,
)
from homing.engine.policy import Policy
from homing.lanes.email_log.email import EXHAUSTED, Email, Refusal
from homing.lanes.email_log.log import EmailLog
from homing.senders.mailing import Mailing, Report, compact


class SendLane:
    name = "email_log:send"

    def __init__(self, emails: EmailLog, mailing: Mailing, *, policy: Policy, lease_seconds: float) -> None:
        self.store = emails
        self.policy = policy
        self.lease_seconds = lease_seconds
        self._mailing = mailing

    def policy_of(self, _claim: Claim[Email]) -> Policy:
        return self.policy

    async def attempt(self, claim: Claim[Email]) -> Outcome:
        outcome = await self._mailing.attempt(claim.item, partial(self.store.parts, claim.id))
        return _final(outcome) if isinstance(outcome, Reject) else outcome

    def usable(self) -> bool:
        """What `available` would say without asking anybody."""
        return self._mailing.usable()

    async def available(self) -> bool:
        return await self._mailing.available()

    def describe(self, claim: Claim[Email], settlement: Settlement | None) -> Mapping[str, Any]:
        report = getattr(settlement, "report", None)
        fields = {"EmailId": claim.id, "token": claim.item.token}
        if report is None:
            return fields
        return {**fields, "provider": report.provider, "recipients": len(report.recipients)}


def _final(outcome: Reject) -> Reject:
    """Marked, so that the row can say of what it died: a limit that was reached is another reason."""
    report = outcome.report
    return Reject(outcome.failure, Refusal(*msgspec.structs.astuple(report)) if report else Refusal())


def transition(max_attempts: int, claim: Claim[Email], settlement: Settlement) -> Mapping[str, Any]:
    """The columns that each settlement writes."""
    match settlement:
        case Complete(report=report, millis=millis):
            return _columns("Sent", report, millis=millis)
        case RetryIn(delay=delay, failure=failure, charged=charged, report=report):
            return _columns("Failed", report, charged=charged, error=failure, delay=delay)
        case Bury(failure=failure, charged=charged, report=report):
            exhausted = claim.attempts + charged >= max_attempts and not isinstance(report, Refusal)
            reason = EXHAUSTED if exhausted else reason_of(failure)
            return _columns("Dead", report, charged=charged, error=failure, dead_reason=reason)
        case Discard(failure=failure, report=report):
            return _columns("Dead", report, error=failure, dead_reason=reason_of(failure))


def reason_of(failure: Failure) -> str:
    """In the words of the contract: `invalid_recipient` is `InvalidRecipient`."""
    return "".join(word.capitalize() for word in failure.code.split("_"))


def _columns(
    status: str,
    report: Report | None,
    *,
    charged: bool = False,
    error: Failure | None = None,
    delay: float = 0.0,
    dead_reason: str | None = None,
    millis: int | None = None,
) -> Mapping[str, Any]:
    return {
        "status": status,
        "charged": int(charged),
        "delay": delay,
        "error": compact(error) if error else None,
        "dead_reason": dead_reason,
        "recipients": report.recipients or None if report else None,
        "provider": report.provider if report else None,
        "provider_message_id": report.provider_message_id if report else None,
        "millis": millis,
    }
