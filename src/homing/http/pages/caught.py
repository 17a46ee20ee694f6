"""Mails that `catch://` kept instead of sending: the list, and one of them as it would have arrived."""

from __future__ import annotations

import email
import email.message
import email.policy
from typing import Any

import msgspec
from litestar import Controller, MediaType, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from homing.db import instant
from homing.engine.aside import aside
from homing.errors import NotFound
from homing.http.asking import AnyRequest, who_of
from homing.http.numbers import row_id
from homing.http.pages.shell import PAGE, render
from homing.messages.model import sees_whole
from homing.senders.caught_mail import Shelf
from homing.senders.hiding import hide_in_header, hide_tokens

#: A mail is somebody's html: it may show itself, and its links may be followed in a tab of their own.
MAIL_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "sandbox allow-popups allow-popups-to-escape-sandbox"
)
_AREA = "mail"
#: Of whoever looks at what was caught, beside that for pages. Who may only look gets no link that works.
MAIL_SCOPE = f"{_AREA}:read"
_LISTED = 100


class CaughtPages(Controller):
    include_in_schema = False
    opt = PAGE

    @get("/caught", media_type=MediaType.HTML)
    async def caught_mails(self, request: AnyRequest, shelf: NamedDependency[Shelf]) -> Response[str]:
        who_of(request).require(MAIL_SCOPE)
        mails = [listed_mail(row) for row in await shelf.list(_LISTED)]
        return render(request, "caught_list.html", mails=mails)

    @get("/caught/{id:int}", media_type=MediaType.HTML)
    async def caught(
        self, request: AnyRequest, shelf: NamedDependency[Shelf], id: FromPath[int]
    ) -> Response[str]:
        who_of(request).require(MAIL_SCOPE)
        row, source = await _found(shelf, id)
        return await aside(len(source), _page, request, row, source)

    @get("/caught/{id:int}/html", media_type=MediaType.HTML)
    async def caught_html(
        self, request: AnyRequest, shelf: NamedDependency[Shelf], id: FromPath[int]
    ) -> Response[str]:
        who_of(request).require(MAIL_SCOPE)
        _row, source = await _found(shelf, id)
        return foreign_html(await aside(len(source), _html, source, whole=_sees_whole(request)))


def _page(request: AnyRequest, row: Any, source: bytes) -> Response[str]:
    message = email.message_from_bytes(source, policy=email.policy.default)
    whole = _sees_whole(request)
    return render(
        request,
        "caught.html",
        mail=listed_mail(row),
        mail_headers=[(k, str(v) if whole else hide_in_header(k, str(v))) for k, v in message.items()],
        text=_part(message, "plain", whole=whole),
        has_html=message.get_body(("html",)) is not None,
        source=source.decode("utf-8", "replace") if whole else None,
        files=[name if whole else hide_tokens(name) for name in _files(message)],
    )


def _html(source: bytes, *, whole: bool) -> str:
    message = email.message_from_bytes(source, policy=email.policy.default)
    return _part(message, "html", whole=whole) or ""


def foreign_html(text: str) -> Response[str]:
    """Somebody else's html, which can do nothing here but be looked at."""
    return Response(text, media_type=MediaType.HTML, headers={"Content-Security-Policy": MAIL_POLICY})


async def _found(shelf: Shelf, id: int) -> tuple[Any, bytes]:
    found = await shelf.get(row_id(id))
    if found is None:
        raise NotFound("there is no such caught mail")
    return found


def listed_mail(row: Any) -> dict[str, Any]:
    recipients: list[str] = msgspec.json.decode(row["recipients"])
    return {
        **row,
        "subject": hide_tokens(row["subject"]),
        "sender": hide_tokens(row["sender"]),
        "recipients": ", ".join(recipients),
        "caught_at": instant(row["caught_at"]),
    }


def _files(message: email.message.EmailMessage) -> list[str]:
    return [part.get_filename() or part.get_content_type() for part in message.iter_attachments()]


def _sees_whole(request: AnyRequest) -> bool:
    return sees_whole(who_of(request).may, _AREA)


def _part(message: email.message.EmailMessage, kind: str, *, whole: bool) -> str | None:
    body = message.get_body((kind,))
    if body is None:
        return None
    text: str = body.get_content()
    return text if whole else hide_tokens(text)
