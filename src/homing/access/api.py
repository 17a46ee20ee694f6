"""`/api/access/me`, to see what a key may do; `/api/audit`, to see what was done."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from litestar import Controller, Request, get
from litestar.di import NamedDependency
from litestar.params import FromQuery
from msgspec import Struct

from homing.access.audit import AuditFilter
from homing.access.desk import Access
from homing.access.principal import Principal
from homing.db import Row, iso
from homing.errors import InvalidRequest

_MOST_LISTED = 500
_LONGEST_WHO = 200
_LARGEST_ID = 2**63 - 1


class Me(Struct, frozen=True):
    """Whoever asks."""

    #: key, user or loopback
    kind: str
    id: str
    name: str
    role: str | None
    scopes: list[str]


class AuditEntry(Struct, frozen=True, rename="camel"):
    id: int
    at: str | None
    who: str
    #: Of a key, its name.
    who_name: str | None
    address: str | None
    action: str
    object: str | None
    detail: dict[str, Any] | None
    #: done, refused or failed
    outcome: str


class AuditPage(Struct, frozen=True):
    """What was done, newest first. It may be fewer than were asked for, and more follow all the same."""

    items: list[AuditEntry]
    #: What to give as `before` to go on; null at the end.
    next: int | None


class AccessApi(Controller):
    path = "/api"
    tags = ("access",)

    @get(
        "/access/me",
        summary="Who asks, and what they may do",
        opt={"scope": "known"},
    )
    async def me(self, request: Request[Any, Any, Any]) -> Me:
        who: Principal = request.user
        return Me(who.kind, who.id, who.name, who.role, sorted(who.scopes))

    @get(
        "/audit",
        summary="What was done, newest first",
        opt={"scope": "ops"},
    )
    async def audit(
        self,
        access: NamedDependency[Access],
        since: FromQuery[datetime | None] = None,
        who: FromQuery[str | None] = None,
        before: FromQuery[int | None] = None,
        limit: FromQuery[int] = 50,
    ) -> AuditPage:
        """`who` is `key:ID`, `user:NAME`, `cli:NAME@HOST` or `loopback`; or a beginning and `*`: `key:*`."""
        if not 1 <= limit <= _MOST_LISTED:
            raise InvalidRequest(f"limit must be from 1 to {_MOST_LISTED}", "limit")
        if before is not None and not 0 <= before <= _LARGEST_ID:
            raise InvalidRequest("before is the id that the last page ended with", "before")
        if since is not None and (since.tzinfo is None or not 1970 <= since.year < 9999):
            raise InvalidRequest("since is a time with its zone, such as 2026-01-31T12:00:00Z", "since")
        if who is not None and ("\x00" in who or len(who) > _LONGEST_WHO):
            raise InvalidRequest(f"who has at most {_LONGEST_WHO} characters, and none of them is NUL", "who")
        found = await access.audit.search(AuditFilter(since, who), before=before, limit=limit)
        return AuditPage([shown(row) for row in found.rows], found.next)


def shown(row: Row) -> AuditEntry:
    detail = msgspec.json.decode(row["detail"]) if row["detail"] else None
    return AuditEntry(
        row["id"], iso(row["at"]), row["who"], row["who_name"], row["address"], row["action"],
        row["object"], detail, row["outcome"],
    )  # fmt: skip
