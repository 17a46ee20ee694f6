"""One message: what became of it, what it says, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from homing.access.desk import Access
from homing.access.principal import Principal
from homing.desk.desk import Desk
from homing.errors import NotAllowed, NotFound
from homing.http.asking import AnyRequest
from homing.http.live import Piece
from homing.http.pages.acting import DONE, VERBS, act, verb_of
from homing.http.pages.caught import foreign_html
from homing.http.pages.json_tree import Node, json_tree
from homing.http.pages.shell import PAGE, VERB_NAMES, gone_to, link, render
from homing.messages.model import Body, Detail, MailParts, Verb

#: The scope depends on the lane of the message, so it is asked for where that is known.
_ACT = {"scope": "known", "audit": "own"}


class MessagePage(Controller):
    include_in_schema = False
    opt = PAGE

    @get("/messages/{id:str}", media_type=MediaType.HTML)
    async def message(
        self, request: AnyRequest, desk: NamedDependency[Desk], id: FromPath[str]
    ) -> Response[str]:
        user: Principal = request.user
        detail = await _shown(desk, id, user.may)
        return render(
            request,
            "message.html",
            detail=detail,
            row=detail.summary,
            verbs=_possible(desk, user, detail),
            tree=_tree(detail.payload),
            links=_links(detail),
            mail=await desk.mail(id, may=user.may) if detail.has_mail else None,
        )

    @get("/messages/{id:str}/mail.html", media_type=MediaType.HTML)
    async def mail_html(
        self, request: AnyRequest, desk: NamedDependency[Desk], id: FromPath[str]
    ) -> Response[str]:
        return foreign_html((await _mail(desk, request, id)).html or "")

    @get("/messages/{id:str}/mail.txt", media_type=MediaType.TEXT)
    async def mail_text(
        self, request: AnyRequest, desk: NamedDependency[Desk], id: FromPath[str]
    ) -> Response[str]:
        return Response((await _mail(desk, request, id)).text or "", media_type=MediaType.TEXT)

    @get("/messages/{id:str}/mail.eml", media_type="message/rfc822")
    async def mail_source(
        self, request: AnyRequest, desk: NamedDependency[Desk], id: FromPath[str]
    ) -> Response[bytes]:
        source = (await _mail(desk, request, id)).source
        named = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(id)}.eml"}
        return Response(source.encode("utf-8", "replace"), media_type="message/rfc822", headers=named)

    @get("/jobs/{id:str}", media_type=MediaType.HTML)
    async def job(self, id: FromPath[str]) -> Response[str]:
        """Where the page of a job was."""
        return Response("", status_code=308, headers={"Location": f"/messages/{quote(id, safe='')}"})

    @post("/messages/{id:str}/{verb:str}", status_code=303, media_type=MediaType.HTML, opt=_ACT)
    async def act_on_one(
        self,
        request: AnyRequest,
        desk: NamedDependency[Desk],
        access: NamedDependency[Access],
        id: FromPath[str],
        verb: FromPath[str],
    ) -> Response[str]:
        chosen = verb_of(verb)
        if desk.place(id) is None:
            raise NotFound(f"there is no message {id[:60]}")
        acted = await act(desk, access.audit, request, chosen, [id])
        if not acted.done:
            raise NotAllowed(f"{id[:60]} cannot be {DONE[chosen]}: {acted.why_not}")
        return gone_to(f"/messages/{quote(id, safe='')}", f"{id} is {DONE[chosen]}.")


async def story_pieces(desk: Desk, id: str, may: Callable[[str], bool]) -> list[Piece]:
    """What becomes of a message, for those who watch it."""
    detail = await _shown(desk, id, may)
    return [
        Piece("message-state", "message_state.html", {"detail": detail}),
        Piece("timeline", "message_timeline.html", {"detail": detail}),
    ]


async def _shown(desk: Desk, id: str, may: Callable[[str], bool]) -> Detail:
    detail = await desk.show(id, may=may)
    if detail is None:
        raise NotFound(f"there is no message {id[:60]}")
    return detail


def _possible(desk: Desk, user: Principal, detail: Detail) -> list[tuple[Verb, str]]:
    lane = desk.lanes[detail.summary.lane]
    may = user.may(f"{lane.scope}:operate")
    return [(verb, VERB_NAMES[verb]) for verb in VERBS if may and verb in detail.verbs]


def _links(detail: Detail) -> dict[str, str]:
    """Facts that have a page of their own."""
    return {name: link("/targets", q=value) for name, value in detail.fields if name == "Target"}


def _tree(payload: Body | None) -> Node | None:
    """Of a payload that is JSON; what is something else, or was cut, is shown as the text that it is."""
    return json_tree(payload.text) if payload is not None else None


async def _mail(desk: Desk, request: AnyRequest, id: str) -> MailParts:
    user: Any = request.user
    mail = await desk.mail(id, may=user.may)
    if mail is None:
        raise NotFound(f"there is no mail {id[:60]}")
    return mail
