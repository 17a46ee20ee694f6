"""A plain page: how many mails are in which state, the latest of them, and those that were caught."""

from __future__ import annotations

import email
import email.message
import email.policy
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader
from litestar import Controller, MediaType, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from homing import __version__
from homing.db import iso
from homing.db.backlog import Backlog
from homing.errors import NotFound
from homing.lanes.mail_outbox.outbox import MailOutbox
from homing.senders.caught_mail import Shelf

_pages = Environment(
    loader=PackageLoader("homing.http"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
#: A caught mail is somebody's html: it may show itself and nothing more.
_MAIL_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"


class Dashboard(Controller):
    include_in_schema = False

    @get("/", media_type=MediaType.HTML)
    async def overview(
        self,
        outbox: NamedDependency[MailOutbox],
        backlog: NamedDependency[Backlog],
        shelf: NamedDependency[Shelf],
        provider: NamedDependency[str],
    ) -> str:
        snapshot = await backlog.look()
        return _pages.get_template("overview.html").render(
            version=__version__,
            provider=provider,
            counts=snapshot.counts,
            oldest=snapshot.oldest_due,
            mails=[{**row, "created": iso(row["created_at"])} for row in await outbox.page(limit=20)],
            caught=[_listed(row) for row in await shelf.list(30)],
        )

    @get("/docs", media_type=MediaType.HTML)
    async def docs(self, request: Request[Any, Any, Any]) -> str:
        schema = request.app.openapi_schema.to_schema()
        return _pages.get_template("docs.html").render(
            version=__version__, operations=list(_operations(schema)), schemas=schema["components"]["schemas"]
        )

    @get("/caught/{id:int}", media_type=MediaType.HTML)
    async def caught(self, shelf: NamedDependency[Shelf], id: FromPath[int]) -> str:
        row, source = await _found(shelf, id)
        message = email.message_from_bytes(source, policy=email.policy.default)
        return _pages.get_template("caught.html").render(
            version=__version__,
            mail=_listed(row),
            headers=[(k, str(v)) for k, v in message.items()],
            text=_part(message, "plain"),
            has_html=_part(message, "html") is not None,
            source=source.decode("utf-8", "replace"),
            files=[part.get_filename() or part.get_content_type() for part in message.iter_attachments()],
        )

    @get("/caught/{id:int}/html", media_type=MediaType.HTML)
    async def caught_html(self, shelf: NamedDependency[Shelf], id: FromPath[int]) -> Response[str]:
        _row, source = await _found(shelf, id)
        message = email.message_from_bytes(source, policy=email.policy.default)
        return Response(
            _part(message, "html") or "",
            media_type=MediaType.HTML,
            headers={"Content-Security-Policy": _MAIL_POLICY},
        )


async def _found(shelf: Shelf, id: int) -> tuple[Any, bytes]:
    found = await shelf.get(id) if id < 2**63 else None
    if found is None:
        raise NotFound(f"there is no caught mail {id}")
    return found


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The API, one call at a time, in the words of its OpenAPI description."""
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            body = (
                operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            )
            names = re.findall(r"#/components/schemas/(\w+)", str(body)) if body else []
            yield {"path": path, "method": method.upper(), "body": names[0] if names else None, **operation}


def _listed(row: Any) -> dict[str, Any]:
    recipients: list[str] = msgspec.json.decode(row["recipients"])
    return {**row, "recipients": ", ".join(recipients), "caught": iso(row["caught_at"])}


def _part(message: email.message.EmailMessage, kind: str) -> str | None:
    body = message.get_body((kind,))
    return body.get_content() if body is not None else None
