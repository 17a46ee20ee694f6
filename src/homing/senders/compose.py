"""From a row to a mail that can be sent: addresses, template, attachments. For all lanes of mails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from homing.db import instant
from homing.engine.aside import LARGE
from homing.senders.addresses import (
    Address,
    InvalidAddress,
    is_plain_address,
    parse_address,
    split_address_list,
)
from homing.senders.mail import Attachment, MailMessage, SendErrorCode, Verdict
from homing.senders.templates import TakesLong, TemplateProblem, Templates, text_from_html


class StoredMail(Protocol):
    """What a row must say to become a mail. JSON columns stay text until they are wanted."""

    @property
    def from_address(self) -> str | None: ...
    @property
    def to_address(self) -> str: ...
    @property
    def cc_address(self) -> str | None: ...
    @property
    def bcc_address(self) -> str | None: ...
    @property
    def reply_to(self) -> str | None: ...
    @property
    def subject(self) -> str: ...
    @property
    def text_body(self) -> str | None: ...
    @property
    def html_body(self) -> str | None: ...
    @property
    def template(self) -> str | None: ...
    @property
    def variables(self) -> str | None: ...
    @property
    def locale(self) -> str | None: ...
    @property
    def headers(self) -> str | None: ...
    @property
    def has_attachments(self) -> bool | int: ...
    @property
    def unsubscribe_url(self) -> str | None: ...
    @property
    def token(self) -> str:
        """The left part of the Message-ID: the same for every attempt."""

    @property
    def recipients(self) -> str | None:
        """What earlier attempts have learnt of each recipient."""

    @property
    def last_attempt_at(self) -> datetime | str: ...


class StoredAttachment(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """An attachment as the `attachments` column and the API have it; `content` is base64."""

    filename: str
    content: bytes
    content_type: str = "application/octet-stream"
    content_id: str | None = None

    def attachment(self) -> Attachment:
        return Attachment(self.filename, self.content, self.content_type, self.content_id)


_read_attachments = msgspec.json.Decoder(tuple[StoredAttachment, ...]).decode
_read_headers = msgspec.json.Decoder(dict[str, str]).decode
_read_object = msgspec.json.Decoder(dict[str, Any]).decode
_read_verdicts = msgspec.json.Decoder(dict[str, Verdict]).decode


class Problem(Struct, frozen=True):
    """Why a row can never become a mail."""

    code: SendErrorCode
    message: str


class Content(Struct, frozen=True, gc=False):
    subject: str
    text: str | None
    html: str | None


class Envelope(Struct, frozen=True, gc=False):
    """Who gets the mail. An address that cannot be one is refused on its own, not with the others."""

    to: tuple[str, ...]
    cc: tuple[str, ...]
    #: Bare addresses of everybody, each once.
    everybody: tuple[str, ...]
    #: Those that are still to get it.
    open: tuple[str, ...]
    #: What is already known about the others, from earlier attempts or because they are malformed.
    verdicts: Mapping[str, Verdict]


def envelope_of(mail: StoredMail) -> Envelope | Problem:
    if is_plain_address(mail.to_address) and not (mail.cc_address or mail.bcc_address or mail.recipients):
        # One recipient, for the first time: nearly every mail, so it is worth a way of its own.
        one = (mail.to_address,)
        return Envelope(one, (), one, one, {})
    return _envelope_of_several(mail)


def _envelope_of_several(mail: StoredMail) -> Envelope | Problem:
    try:
        lists = [
            split_address_list(text or "") for text in (mail.to_address, mail.cc_address, mail.bcc_address)
        ]
    except InvalidAddress as error:
        return Problem(SendErrorCode.INVALID_RECIPIENT, str(error))
    refused: dict[str, Verdict] = {}
    to, cc, bcc = ([a for text in texts if (a := _read(text, refused))] for texts in lists)
    everybody = tuple(dict.fromkeys([*(a.address for a in (*to, *cc, *bcc)), *refused]))
    if not everybody:
        return Problem(SendErrorCode.INVALID_RECIPIENT, "there is no recipient")
    ended = {address: v for address, v in _earlier(mail).items() if v.status != "deferred"}
    verdicts = {**refused, **ended}
    still_open = tuple(address for address in everybody if address not in verdicts)
    return Envelope(_written(to), _written(cc), everybody, still_open, verdicts)


def _read(text: str, refused: dict[str, Verdict]) -> Address | None:
    try:
        return parse_address(text)
    except InvalidAddress as error:
        refused[text] = Verdict("rejected", text=str(error))
        return None


def _written(addresses: Iterable[Address]) -> tuple[str, ...]:
    return tuple(_quoted(a.name) + f" <{a.address}>" if a.name else a.address for a in addresses)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _earlier(mail: StoredMail) -> dict[str, Verdict]:
    return _read_verdicts(mail.recipients) if mail.recipients else {}


def compose(
    mail: StoredMail,
    envelope: Envelope,
    templates: Templates,
    default_sender: str,
    attachments: str | None,
    *,
    hurried: bool = False,
) -> MailMessage | Problem:
    """The mail for those recipients that are still open. When `hurried` it may raise `TakesLong`."""
    if hurried and _is_large(mail, attachments):
        raise TakesLong
    content = _content(mail, templates, hurried=hurried)
    if isinstance(content, Problem):
        return content
    try:
        return _message(mail, envelope, content, mail.from_address or default_sender, attachments)
    except InvalidAddress as error:
        return Problem(SendErrorCode.VALIDATION_ERROR, f"the sender or reply-to cannot be used: {error}")
    except msgspec.DecodeError as error:
        return Problem(SendErrorCode.VALIDATION_ERROR, f"a JSON column of the row cannot be read: {error}")


def _is_large(mail: StoredMail, attachments: str | None) -> bool:
    given = (mail.text_body, mail.html_body, mail.variables, attachments)
    return sum(len(text) for text in given if text) > LARGE


def _content(mail: StoredMail, templates: Templates, *, hurried: bool) -> Content | Problem:
    if mail.template is not None:
        return _rendered(mail, mail.template, templates, hurried=hurried)
    text = mail.text_body
    if text is None and mail.html_body is not None:
        text = text_from_html(mail.html_body)
    return Content(mail.subject, text, mail.html_body)


def _rendered(mail: StoredMail, template: str, templates: Templates, *, hurried: bool) -> Content | Problem:
    try:
        variables: dict[str, Any] = _read_object(mail.variables) if mail.variables else {}
    except msgspec.DecodeError as error:
        return Problem(SendErrorCode.VALIDATION_ERROR, f"variables cannot be read: {error}")
    rendered = templates.render(template, variables, mail.locale, hurried=hurried)
    if isinstance(rendered, TemplateProblem):
        return Problem(rendered.code, rendered.message)
    # A subject in the row goes before the template's.
    return Content(mail.subject or rendered.subject, rendered.text, rendered.html)


def _message(
    mail: StoredMail, envelope: Envelope, content: Content, sender: str, attachments: str | None
) -> MailMessage:
    return MailMessage(
        message_id=f"<{mail.token}@{_domain(sender)}>",
        date=_date(mail),
        sender=sender,
        recipients=envelope.open,
        to=envelope.to,
        cc=envelope.cc,
        reply_to=tuple(split_address_list(mail.reply_to)) if mail.reply_to else (),
        subject=content.subject,
        text=content.text,
        html=content.html,
        headers=tuple(_read_headers(mail.headers).items()) if mail.headers else (),
        attachments=tuple(a.attachment() for a in _read_attachments(attachments)) if attachments else (),
        unsubscribe_url=mail.unsubscribe_url,
        dedupe_key=mail.token,
    )


def _domain(sender: str) -> str:
    return parse_address(sender).address.rpartition("@")[2]


def _date(mail: StoredMail) -> datetime:
    moment = instant(mail.last_attempt_at)
    assert moment is not None, "a claimed row has a last attempt"
    return moment
