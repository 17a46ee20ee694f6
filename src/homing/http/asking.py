"""Who asks, and from where."""

from __future__ import annotations

from typing import Any

from litestar import Request

from homing.access.principal import Principal
from homing.desk.bulk import Asker

AnyRequest = Request[Any, Any, Any]


def who_of(request: AnyRequest) -> Principal:
    """On a route that the door guards, where there is always somebody."""
    who: Principal = request.user
    return who


def address_of(request: AnyRequest) -> str | None:
    return request.client.host if request.client is not None else None


def asker_of(request: AnyRequest) -> Asker:
    who = who_of(request)
    return Asker(who.who, who.may, address_of(request))
