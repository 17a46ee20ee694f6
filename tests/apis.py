"""The API of some parts of Homing, behind the door that the whole has."""

from __future__ import annotations

from typing import Any, Protocol

from litestar import Litestar

from homing.app import Homing
from homing.http.app import build_app


class Part(Protocol):
    def api(self) -> tuple[list[Any], dict[str, Any]]: ...


def api_of(homing: Homing, *parts: Part) -> Litestar:
    """The whole takes a fifth of a second to build, and hundreds of tests ask for a few routes."""
    routes: list[Any] = []
    given = homing._health()
    for part in parts:
        more, needed = part.api()
        routes += more
        given |= needed
    return build_app(routes, given, homing.telemetry, door=homing._door(), static=False)
