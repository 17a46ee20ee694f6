"""What lanes that send mails do alike: which mails a line asks for, and a mail as it would be sent."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from litestar import Request
from msgspec import Struct

from homing.db import Dialect, Row
from homing.db.conditions import (
    Conditions,
    created,
    either,
    every_word,
    has_recipient,
    is_like,
    is_pattern,
    like,
    matches,
    written,
)
from homing.engine.aside import aside
from homing.messages.facts import json_body
from homing.messages.model import Body, MailParts, Wanted, sees_whole
from homing.senders.hiding import hide_in_json, hide_tokens, is_secret_name
from homing.senders.preview import Preview, dead_link, preview_of, shown, without_links
from homing.senders.templates import Templates

_RECIPIENTS = ("o.to_address", "o.cc_address", "o.bcc_address")
#: `last_error` is `code: message`. The queries of `desk_dead` have the same.
CODE_OF_ERROR: Final[Mapping[Dialect, str]] = {
    "postgres": "split_part(o.last_error, ':', 1)",
    "sqlite": "substr(CAST(o.last_error AS TEXT), 1, instr(CAST(o.last_error AS TEXT) || ':', ':') - 1)",
}


View = TypeVar("View", bound=Struct)

#: Of a row as the API shows it, what a link or a code may stand in; the second are JSON.
_TEXTS: Final = frozenset(
    {"subject", "text", "body", "html", "sender", "reply_to", "idempotency_key", "message_key"}
)
_VALUES: Final = frozenset({"variables", "headers", "metadata", "attachments"})


def mail_conditions(dialect: Dialect, wanted: Wanted) -> Conditions:
    """By times, template, recipients and words."""
    found = created(dialect, "o.created_at", wanted.since, wanted.until)
    if wanted.type is not None:
        found += matches(dialect, "o.template", "type", wanted.type)
    if wanted.to is not None:
        found += has_recipient(dialect, _RECIPIENTS, wanted.to)
    return found + every_word(dialect, ("o.subject", "o.template"), wanted.words)


def spelling_out(wanted: Wanted) -> str | None:
    """What of it would tell bit by bit, by what is found, what is hidden of a mail; None when nothing would.

    Whole values stay, unless they would be hidden themselves: a code of six digits is soon guessed.
    """
    if wanted.words:
        return "words of subjects"
    if any(is_pattern(value) for value in wanted.meta.values()):
        return "a pattern of metadata"
    if any(is_secret_name(key) or hide_in_json(value) != value for key, value in wanted.meta.items()):
        return "metadata that is hidden"
    return "a key that is hidden" if harmless_text(wanted.id) != (wanted.id or "") else None


def has_error(dialect: Dialect, error: str) -> Conditions:
    """As `last_error` has it, with a message or without."""
    alone = is_like(dialect, "o.last_error", "error", like(error))
    return either(alone, is_like(dialect, "o.last_error", "errors", f"{like(error)}:%"))


async def harmless_body(row: Row, *columns: str) -> Body | None:
    """A link in them may be one that only its receiver should follow, and a code one that only he knows."""
    return await aside(_size_of(row), _harmless_body, {name: row[name] for name in columns})


def _harmless_body(given: Mapping[str, object]) -> Body | None:
    return json_body({name: hide_in_json(written(value)) for name, value in given.items() if value})


def harmless_text(text: object) -> str:
    """A name or a key may have a link or a code in it, too."""
    return hide_tokens(written(text or ""))


async def mail_of(row: Row, templates: Templates, default_sender: str, **columns: Any) -> MailParts:
    """The mail of a row, which may be large; what a lane calls differently is given."""
    return await to_thread(_mail_of, row, templates, default_sender, columns)


def _mail_of(row: Row, templates: Templates, default_sender: str, columns: Mapping[str, Any]) -> MailParts:
    mail = shown(row, **columns)
    return parts_of(preview_of(mail, templates, default_sender, row["attachments"]))


def parts_of(preview: Preview) -> MailParts:
    return MailParts(preview.headers, preview.text, preview.html, preview.source, preview.trouble)


def mail_sight_of(request: Request[Any, Any, Any], area: str) -> Callable[[View], View]:
    """What to do with a row before it is answered."""
    return _whole if sees_mails_whole(request, area) else _redacted


def sees_mails_whole(request: Request[Any, Any, Any], area: str) -> bool:
    """Without a door nobody is asked: for tests of routes."""
    user = request.scope.get("user")
    return user is None or sees_whole(user.may, area)


async def seen_mail(
    request: Request[Any, Any, Any], area: str, shown: Callable[[Row], View], row: Row
) -> View:
    """One row, which may be large, as this one may see it."""
    sight = mail_sight_of(request, area)
    return await aside(_size_of(row), lambda: sight(shown(row)))


def _size_of(row: Row) -> int:
    return sum(len(value) for value in row if isinstance(value, str | bytes))


def _whole(row: View) -> View:
    return row


def _redacted(row: View) -> View:
    """Another program may have written it, so it may hold anything."""
    link = getattr(row, "unsubscribe_url", None)
    links = [written(link)] if link else []
    given = {name: getattr(row, name) for name in row.__struct_fields__}
    hidden: dict[str, Any] = {
        name: without_links(written(value), links) if name in _TEXTS else _hidden_value(value)
        for name, value in given.items()
        if value is not None and name in _TEXTS | _VALUES
    }
    if links:
        hidden["unsubscribe_url"] = dead_link(links[0])
    return msgspec.structs.replace(row, **hidden)


def _hidden_value(value: Any) -> Any:
    return msgspec.json.decode(hide_in_json(msgspec.json.encode(value).decode()))
