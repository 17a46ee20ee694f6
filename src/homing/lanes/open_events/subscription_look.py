"""Subscriptions as an operator looks for them: by address, its hash, section or state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from homing.db import Database, Row, load_queries
from homing.db.patience import patiently
from homing.errors import InvalidRequest
from homing.lanes.open_events.subscriptions import STATES, Subscriptions
from homing.lanes.open_events.wishes import checked_email

#: Rows that one look for a state goes through.
_WINDOW = 10_000
_MOST_WAITING = 20
_LARGEST_ID = 2**63 - 1
_HASH = re.compile(r"[0-9a-f]{40}")
_NUMBER = re.compile(r"#?(\d{1,18})")
_BETWEEN = re.compile(r"[\s/,]+")
_SECTION = ("term_id", "campus_code", "index_number")


class SubscriptionFilter(Struct, frozen=True):
    """Whose or of what; at most one of the first three."""

    email: str | None = None
    contact_hash: str | None = None
    section: Mapping[str, str] | None = None
    status: str | None = None


class FoundSubscriptions(Struct, frozen=True):
    """Newest first."""

    rows: Sequence[Row]
    #: What to give as `before` to go on; None at the end.
    next: int | None
    #: How many were looked through when it was not all there is.
    looked_at: int | None = None


def number_in(text: str) -> int | None:
    """Of a text that is nothing but the number of a subscription."""
    match = _NUMBER.fullmatch(text.strip())
    return int(match[1]) if match is not None else None


def filter_of(text: str, status: str) -> SubscriptionFilter:
    """What somebody typed: an address, the hash of one, or a section; raises `InvalidRequest`.

    By a number one comes to its subscription, so what is asked for here by a number is not there.
    """
    if status and status not in STATES:
        raise InvalidRequest(f"a state is one of {', '.join(STATES)}", "status")
    text, wanted = text.strip(), status or None
    if "\x00" in text:
        raise InvalidRequest("no NUL character is possible", "q")
    if not text:
        return SubscriptionFilter(status=wanted)
    if "@" in text:
        return SubscriptionFilter(email=checked_email(text), status=wanted)
    if _HASH.fullmatch(text.lower()):
        return SubscriptionFilter(contact_hash=text.lower(), status=wanted)
    if (number := number_in(text)) is not None:
        raise InvalidRequest(f"there is no subscription {number}", "q")
    parts = _BETWEEN.split(text)
    if len(parts) != len(_SECTION):
        raise InvalidRequest(
            "write a whole address, the hash of one, a number, or a section as term/campus/index: "
            "20269/NB/01234",
            "q",
        )
    return SubscriptionFilter(section=dict(zip(_SECTION, parts, strict=True)), status=wanted)


class SubscriptionLook:
    def __init__(self, database: Database, subscriptions: Subscriptions) -> None:
        self._database, self._subscriptions = database, subscriptions
        self._queries = load_queries(__package__ or "", database.dialect, "subscription_desk")

    async def page(
        self, wanted: SubscriptionFilter, *, before: int | None = None, limit: int = 50
    ) -> FoundSubscriptions:
        if wanted.email is None and wanted.section is None and wanted.contact_hash is None:
            return await self._look(wanted.status, before, limit)
        if wanted.contact_hash is not None:
            given = {"contact_hash": wanted.contact_hash, "status": wanted.status, "before": before}
            rows = await self._run("page_of_hash", **given, limit=limit)
        else:
            rows = await self._subscriptions.page(
                section=wanted.section, email=wanted.email, status=wanted.status, before=before, limit=limit
            )
        return FoundSubscriptions(rows, rows[-1]["subscription_id"] if len(rows) == limit else None)

    async def _look(self, status: str | None, before: int | None, limit: int) -> FoundSubscriptions:
        found = await self._run("look", status=status, before=before, limit=limit, window=_WINDOW)
        rows = [row for row in found if row["subscription_id"] is not None]
        if len(rows) == limit:
            return FoundSubscriptions(rows, rows[-1]["subscription_id"])
        if found[0]["looked_at"] < _WINDOW:
            return FoundSubscriptions(rows, None)
        return FoundSubscriptions(rows, found[0]["looked_until"], _WINDOW)

    async def get(self, id: int) -> Row | None:
        return await self._subscriptions.get(id) if 0 < id <= _LARGEST_ID else None

    async def waiting(self, id: int) -> Sequence[Row]:
        """Its notifications that are still to be sent."""
        return await self._run("waiting_of", id=id, limit=_MOST_WAITING)

    async def tallies(self, id: int) -> Mapping[str, int]:
        """How often what happened to it."""
        return {row["event_type"]: row["count"] for row in await self._run("tallies_of", id=id)}

    async def _run(self, query: str, /, **parameters: Any) -> Sequence[Row]:
        return await patiently(lambda: self._database.fetch(self._queries[query], parameters))
