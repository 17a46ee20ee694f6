"""The lane: one attempt is one mail to those who do not have it yet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from homing.engine.model import (
    Bury,
    Claim,
    Complete,
    Discard,
    Failure,
    Outcome,
    RetryIn,
    Settlement,
    Skip,
)
from homing.engine.policy import Policy
from homing.lanes.mail_outbox.mail import Mail
from homing.lanes.mail_outbox.outbox import MailOutbox
from homing.senders.mail import MailSender
from homing.senders.mailing import Mailing, Report, compact
from homing.senders.templates import Templates

_EXPIRED = Failure("expired", "expired before it could be sent")


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
        self._mailing = Mailing(sender, templates, default_sender)

    def policy_of(self, _claim: Claim[Mail]) -> Policy:
        return self.policy

    async def attempt(self, claim: Claim[Mail]) -> Outcome:
        mail = claim.item
        if mail.expired:
            return Skip(_EXPIRED)
        return await self._mailing.attempt(mail, partial(self.store.parts, claim.id))

    async def available(self) -> bool:
        return await self._mailing.available()

    def describe(self, claim: Claim[Mail], settlement: Settlement | None) -> Mapping[str, Any]:
        report = getattr(settlement, "report", None)
        if report is None:
            return {"token": claim.item.token}
        return {"token": claim.item.token, "provider": report.provider, "recipients": len(report.recipients)}


def transition(_claim: Claim[Mail], settlement: Settlement) -> Mapping[str, Any]:
    """The columns that each settlement writes."""
    match settlement:
        case Complete(report=report, millis=millis):
            return _columns("sent", report, millis=millis)
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
    millis: int | None = None,
) -> Mapping[str, Any]:
    return {
        "status": status,
        "charged": int(charged),
        "delay": delay,
        "error": compact(error) if error else None,
        "recipients": report.recipients or None if report else None,
        "provider": report.provider if report else None,
        "provider_message_id": report.provider_message_id if report else None,
        "millis": millis,
    }
