"""`/api/alerts`: what people were told, and what is wrong now."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Controller, Request, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta, Struct

from homing.alerts.desk import Alerts, AlertView, CauseView
from homing.db import iso
from homing.errors import InvalidRequest, NotFound

_MOST_LISTED = 200
_LARGEST_ID = 2**63 - 1


class AlertItem(Struct, frozen=True, rename="camel"):
    id: int
    cause: str
    #: dead, target, backlog, idle, worker or test
    kind: str
    #: fired, again, level, resolved or test
    event: str
    title: str
    #: A path of the dashboard.
    link: str
    at: str | None
    #: By which ways it went, or is to go: mail, webhook.
    ways: list[str]
    silenced_until: str | None


class CauseItem(Struct, frozen=True, rename="camel"):
    cause: str
    kind: str
    title: str
    link: str
    since: str | None
    silenced_until: str | None


class AlertPage(Struct, frozen=True):
    #: What is wrong now, the oldest first.
    firing: list[CauseItem]
    #: What people were told, newest first.
    items: list[AlertItem]


class SilenceRequest(Struct, frozen=True, forbid_unknown_fields=True):
    #: For how long; 0 ends a silence.
    seconds: Annotated[float, Meta(ge=0, le=365 * 86400)]


class AlertsApi(Controller):
    path = "/api/alerts"
    tags = ("alerts",)

    @get(
        summary="What is wrong, and what people were told of",
        opt={"scope": "ops"},
    )
    async def list_alerts(self, alerts: NamedDependency[Alerts], limit: FromQuery[int] = 50) -> AlertPage:
        if not 1 <= limit <= _MOST_LISTED:
            raise InvalidRequest(f"limit must be from 1 to {_MOST_LISTED}", "limit")
        firing = [_cause(one) for one in await alerts.firing()]
        return AlertPage(firing, [_item(one) for one in await alerts.recent(limit)])

    @post(
        "/{id:int}/silence",
        summary="Tell nobody of an alert's cause for a while",
        status_code=200,
        opt={"scope": "alerts:operate", "audit_body": ("seconds",), "audit_reply": ("cause",)},
    )
    async def silence(
        self,
        request: Request[Any, Any, Any],
        alerts: NamedDependency[Alerts],
        id: FromPath[int],
        data: JSONBody[SilenceRequest],
    ) -> CauseItem:
        alert = await alerts.get(id) if 0 <= id <= _LARGEST_ID else None
        if alert is None:
            raise NotFound(f"there is no alert {id}")
        by = getattr(request.scope.get("user"), "who", "loopback")
        return _cause(await alerts.silence(alert.cause, data.seconds, by=by))


def _item(one: AlertView) -> AlertItem:
    return AlertItem(
        one.id, one.cause, one.kind, one.event, one.title, one.link, iso(one.at), list(one.ways),
        iso(one.silenced_until),
    )  # fmt: skip


def _cause(one: CauseView) -> CauseItem:
    return CauseItem(one.cause, one.kind, one.title, one.link, iso(one.since), iso(one.silenced_until))
