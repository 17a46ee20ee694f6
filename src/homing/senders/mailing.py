"""One attempt at a mail, whichever lane it comes from, and what it says of each recipient."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from homing.db import Row
from homing.db.plain import plain
from homing.engine.model import Delivered, Failure, Outcome, Reject, Retry, Skip
from homing.senders.compose import Envelope, Problem, StoredMail, compose, envelope_of
from homing.senders.mail import MailSender, SendErrorCode, SendResult, Verdict
from homing.senders.templates import TakesLong, Templates

_ACCEPTED = Verdict("accepted")
_DELETED = Skip(Failure("deleted", "the mail was deleted"))
#: What does not come with the claim of a large mail.
_APART = (
    "from_address", "to_address", "cc_address", "bcc_address", "reply_to", "subject",
    "text_body", "html_body", "variables", "headers", "recipients",
)  # fmt: skip


class Report(Struct, frozen=True, gc=False):
    """What a settlement writes beside the state."""

    provider: str | None = None
    provider_message_id: str | None = None
    recipients: Mapping[str, Verdict] = {}


class ClaimedMail(StoredMail, Protocol):
    @property
    def size(self) -> int:
        """Other than 0 where something did not come with the claim."""


class Mailing:
    """Composes a row and sends it to those who do not have it yet."""

    def __init__(self, sender: MailSender, templates: Templates, default_sender: str) -> None:
        self._sender = sender
        self._templates = templates
        self._default_sender = default_sender

    async def available(self) -> bool:
        return await self._sender.available()

    def usable(self) -> bool:
        return self._sender.usable()

    async def attempt(self, mail: ClaimedMail, read_parts: Callable[[], Awaitable[Row | None]]) -> Outcome:
        whole, attachments = mail, None
        if mail.size or mail.has_attachments:
            if (parts := await read_parts()) is None:
                return _DELETED
            attachments = parts["attachments"]
            apart = {name: parts[name] for name in _APART}
            whole = replace(mail, **apart)  # type: ignore[type-var]  # both lanes have a Struct
        envelope = envelope_of(whole)
        if isinstance(envelope, Problem):
            return _refusal(envelope)
        if not envelope.open:
            return conclude(envelope, envelope.verdicts, None)
        given = (whole, envelope, self._templates, self._default_sender, attachments)
        try:
            message = compose(*given, hurried=True)
        except TakesLong:
            message = await to_thread(compose, *given)
        if isinstance(message, Problem):
            return _refusal(message)
        result = await self._sender.send(message)
        return conclude(envelope, _verdicts(envelope, result), result)


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


#: `last_error` is for reading in a list.
_LONGEST_ERROR = 500


def compact(failure: Failure) -> str:
    text = f"{failure.code}: {failure.message}" if failure.message else failure.code
    return plain(text, _LONGEST_ERROR)
