"""A mail in the fields of a JSON API: who is shown to whom, which headers go along, what is told beside it.

Such an API makes the headers To and Cc of the addresses that it sends to. So those whom the mail has
reached already are left out of both, and who stands in neither goes into Bcc.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from homing.senders.addresses import CONTROL, Address, envelope_address, parse_address, parse_address_list
from homing.senders.mail import MailMessage
from homing.senders.mime import assemble

TRACE_HEADER = "X-Trace-Id"
#: What the key against doubles is called on the provider's side.
DEDUPE = "dedupeKey"


class Shown(Struct, frozen=True):
    """The recipients of one request, with their domains in ASCII."""

    to: tuple[Address, ...]
    cc: tuple[Address, ...] = ()
    bcc: tuple[str, ...] = ()


def shown(message: MailMessage, recipients: Sequence[str]) -> Shown:
    left = dict.fromkeys(recipients)
    to = _take(message.to, left)
    cc = _take(message.cc, left)
    hidden = tuple(envelope_address(address) for address in left)
    if to or cc:
        # Somebody has to be in To.
        return Shown(to, cc, hidden) if to else Shown(cc, (), hidden)
    return Shown(tuple(Address("", address) for address in hidden))


def hides_all(message: MailMessage, recipients: Sequence[str]) -> bool:
    """Whether none of them may be shown to the others."""
    visible = {parse_address(text).address for text in (*message.to, *message.cc)}
    return visible.isdisjoint(recipients)


def _take(written: Iterable[str], left: dict[str, None]) -> tuple[Address, ...]:
    """Those among the written mailboxes that are still to be sent to, each once."""
    taken = []
    for text in written:
        name, address = parse_address(text)
        if address in left:
            del left[address]
            taken.append(Address(name, envelope_address(address)))
    return tuple(taken)


def check(message: MailMessage) -> None:
    """Raise `Unassemblable` for what could not be a mail anywhere, be it that the API would not mind."""
    assemble(replace(message, attachments=()) if message.attachments else message)


def reply_to(message: MailMessage) -> tuple[Address, ...]:
    given = [value for name, value in message.headers if name.lower() == "reply-to"]
    mailboxes = [mailbox for text in (*message.reply_to, *given) for mailbox in parse_address_list(text)]
    return tuple(Address(name, envelope_address(address)) for name, address in mailboxes)


def sender(message: MailMessage) -> Address:
    name, address = parse_address(message.sender)
    return Address(name, envelope_address(address))


def headers(message: MailMessage) -> list[tuple[str, str]]:
    """What the API has no field for, the Message-ID among it."""
    pairs = [(name, value) for name, value in message.headers if name.lower() != "reply-to"]
    pairs.append(("Message-ID", message.message_id))
    if message.unsubscribe_url is not None:
        pairs.append(("List-Unsubscribe", f"<{message.unsubscribe_url}>"))
        if message.unsubscribe_url.lower().startswith("https:"):
            # RFC 8058 is about https only; by plain http anybody on the way could read the token.
            pairs.append(("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"))
    if _traces(message):
        pairs.append((TRACE_HEADER, message.trace_id or ""))
    return pairs


def with_trace(message: MailMessage) -> MailMessage:
    """The mail with its trace id among the headers, for those who take it as it is written."""
    if not _traces(message):
        return message
    return replace(message, headers=(*message.headers, (TRACE_HEADER, message.trace_id or "")))


def _traces(message: MailMessage) -> bool:
    """Whether a trace header is to be added; a trace id that fits into none is no reason to fail a mail."""
    trace = message.trace_id
    if not trace or len(trace) > 200 or not trace.isascii() or not trace.isprintable():
        return False
    return all(name.lower() != TRACE_HEADER.lower() for name, _ in message.headers)


def metadata(message: MailMessage, *, name: int, value: int, entries: int) -> dict[str, str]:
    """What the provider keeps beside the mail: our key against doubles, then the caller's own.

    The key has the subscription in it (`MailMessage.merge_key`). The limits are the provider's: longer
    text is cut, but a key that does not fit becomes its hash, for no two may become the same.
    """
    told: dict[str, str] = {}
    if (key := message.merge_key) is not None:
        fits = len(key) <= value and key.isprintable()
        told[DEDUPE] = key if fits else blake2b(key.encode(errors="replace"), digest_size=20).hexdigest()
    for given, content in (message.metadata or {}).items():
        if content is not None and len(told) < entries:
            told.setdefault(_one_line(given)[:name], _one_line(str(content))[:value])
    return told


def _one_line(text: str) -> str:
    """A line end could end a form's field, and begin another one."""
    return text if text.isprintable() else CONTROL.sub(" ", text)
