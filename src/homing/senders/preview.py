"""A mail as it would be sent, to look at. Nothing is sent.

Whoever looks at a mail is not the one it is for. So what links work by is taken out before the mail is
assembled (`?token=hidden-in-preview`), and so are variables that are named like secrets, and the link to
unsubscribe: a click in a preview confirms nothing and ends no subscription. The source shows the same.
How that is recognised, and what is not, says `homing.senders.hiding`; recipients stay, and what
is in attachments.
"""

from __future__ import annotations

import email
import email.policy
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from markupsafe import escape
from msgspec import Struct
from msgspec.structs import replace

from homing.db import Row
from homing.db.conditions import written
from homing.senders.compose import Problem, compose, envelope_of
from homing.senders.hiding import HIDDEN, hide_in_header, hide_in_json, hide_tokens
from homing.senders.mail import MailMessage
from homing.senders.mime import Unassemblable, assemble
from homing.senders.templates import Templates

#: Larger attachments are left out: a person wants to see the mail soon.
_MOST_ATTACHED = 2 * 1024 * 1024


class Preview(Struct, frozen=True):
    headers: Sequence[tuple[str, str]] = ()
    text: str | None = None
    html: str | None = None
    source: str = ""
    #: Why there is nothing to see, or less than there is.
    trouble: str | None = None


class Shown(Struct, frozen=True):
    """A row of a mail as `compose` asks for it, whatever its lane calls the columns."""

    from_address: str | None
    to_address: str
    cc_address: str | None
    bcc_address: str | None
    reply_to: str | None
    subject: str
    text_body: str | None
    html_body: str | None
    template: str | None
    variables: str | None
    locale: str | None
    headers: str | None
    unsubscribe_url: str | None
    token: str
    last_attempt_at: datetime | str
    has_attachments: bool = False
    #: Of nobody: the mail is shown whole, though some may have it already.
    recipients: str | None = None


_COLUMNS = tuple(name for name in Shown.__struct_fields__ if name not in {"has_attachments", "recipients"})


def shown(row: Row, **columns: Any) -> Shown:
    """By the names of the columns; what a lane calls differently is given."""
    named = {name: columns[name] if name in columns else row[name] for name in _COLUMNS}
    named["variables"] = hide_in_json(written(named["variables"])) if named["variables"] else None
    named["last_attempt_at"] = named["last_attempt_at"] or datetime.now(UTC)
    return Shown(**named)


def preview_of(
    mail: Shown, templates: Templates, default_sender: str, attachments: str | None = None
) -> Preview:
    """The mail, or why it can be none. Another program wrote the row, so it may hold anything."""
    too_large = attachments is not None and len(attachments) > _MOST_ATTACHED
    try:
        found = _composed(mail, templates, default_sender, None if too_large else attachments)
    except (msgspec.MsgspecError, ValueError, AttributeError, TypeError) as error:
        return Preview(trouble=f"the row cannot be read as a mail ({type(error).__name__})")
    return replace(found, trouble="its attachments are too large to show here") if too_large else found


def _composed(mail: Shown, templates: Templates, default_sender: str, attachments: str | None) -> Preview:
    envelope = envelope_of(mail)
    if isinstance(envelope, Problem):
        return Preview(trouble=envelope.message)
    composed = compose(mail, envelope, templates, default_sender, attachments)
    if isinstance(composed, Problem):
        return Preview(trouble=f"it cannot be composed: {composed.message}")
    found = assembled(composed)
    refused = [verdict.text for verdict in envelope.verdicts.values()]
    if not refused:
        return found
    told = f"{len(refused)} of {len(envelope.everybody)} recipients can never get it: {refused[0]}"
    return replace(found, trouble=told)


def assembled(message: MailMessage) -> Preview:
    """A message as it goes out, without what would work in it."""
    harmless = _harmless(message)
    shown = Preview(text=harmless.whole_text, html=harmless.whole_html)
    try:
        source = assemble(harmless)
    except Unassemblable as error:
        return replace(shown, trouble=str(error))
    except ValueError as error:
        return replace(shown, trouble=f"it cannot be assembled ({type(error).__name__})")
    return replace(shown, headers=_headers_of(source), source=source.decode("utf-8", "replace"))


def _harmless(message: MailMessage) -> MailMessage:
    links = [link for link in (message.unsubscribe_url, message.manage_url) if link]
    return replace(
        message,
        sender=hide_tokens(message.sender),
        reply_to=tuple(map(hide_tokens, message.reply_to)),
        subject=hide_tokens(message.subject),
        text=without_links(message.whole_text, links),
        html=without_links(message.whole_html, links),
        headers=tuple((name, hide_in_header(name, value)) for name, value in message.headers),
        attachments=tuple(replace(one, filename=hide_tokens(one.filename)) for one in message.attachments),
        unsubscribe_url=dead_link(message.unsubscribe_url) if message.unsubscribe_url else None,
        manage_url=dead_link(message.manage_url) if message.manage_url else None,
    )


def without_links(text: str | None, links: Sequence[str]) -> str | None:
    """Without what works in it, and these links, which are known to."""
    if text is None:
        return None
    for link in links:
        dead = dead_link(link)
        text = text.replace(link, dead).replace(str(escape(link)), str(escape(dead)))
    return hide_tokens(text)


def dead_link(link: str) -> str:
    """Where it leads, and nothing that works."""
    try:
        parts = urlsplit(link)
    except ValueError:
        return f"https://{HIDDEN}.invalid/"
    # A path may be a token as well; where it leads is enough to know.
    return urlunsplit((parts.scheme or "https", parts.netloc, f"/{HIDDEN}", "", ""))


def _headers_of(source: bytes) -> list[tuple[str, str]]:
    parsed = email.message_from_bytes(source.partition(b"\r\n\r\n")[0], policy=email.policy.default)
    return [(name, str(value)) for name, value in parsed.items()]
