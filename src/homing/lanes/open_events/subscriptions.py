"""Subscriptions: asked for, confirmed by mail, changed, paused, and ended for good.

    (asked for) → pending ── confirm → active ⇄ paused
         ↑                     any state ── unsubscribe → unsubscribed
         └──────────── asked for again ────────────────────────┘

Only the owner of an address can make a subscription active. One that is suppressed stays so: by an
unsubscription and by asking again it comes back as suppressed. Whoever asks for one learns nothing about the
address: the answer is the same whether it is subscribed, was once, or never.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from homing.db import Database, Row, instant, load_queries
from homing.db.patience import patiently
from homing.errors import NotAllowed
from homing.lanes.open_events.history import History
from homing.lanes.open_events.links import CONFIRM_WITHIN, Links, contact_hash
from homing.lanes.open_events.notification import CHANNEL
from homing.lanes.open_events.preferences import with_preferences
from homing.lanes.open_events.wishes import Order

STATES = ("pending", "active", "paused", "suppressed", "unsubscribed")
Via = Literal["api", "one-click", "page", "link"]

#: One confirmation mail per address in this time.
CONFIRMATION_PAUSE_SECONDS = 600.0
#: How many subscriptions one confirmation confirms at most.
MOST_AT_ONCE = 50

_HISTORY = 50
_TRIES = 5

_encode = msgspec.json.Encoder().encode


class Confirmation(Struct, frozen=True):
    """A confirmation mail to be sent."""

    subscription_id: int
    email: str
    locale: str | None
    url: str
    expiration_minutes: int
    #: Not before then; None is now.
    send_at: datetime | None
    #: The same mail has the same one.
    key: str


SendConfirmation = Callable[[Confirmation], Awaitable[None]]


class Subscriptions:
    def __init__(
        self,
        database: Database,
        links: Links,
        *,
        send_confirmation: SendConfirmation,
        clock: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._queries = load_queries(__package__ or "", database.dialect, "subscriptions")
        self._history = History(database)
        self._send_confirmation = send_confirmation
        self.links = links
        self.clock = clock

    # ── asked for, confirmed ─────────────────────────────────────────────────────────────────────

    async def subscribe(self, order: Order) -> None:
        """Make it, unless it is there; and let the owner of the address confirm it."""
        if "verification_sent" not in await self._history.kept():
            raise NotAllowed(
                "a CHECK of subscription_events forbids verification_sent, by which confirmation mails are "
                "limited; create subscriptions in the program that owns the table"
            )
        section = (await self._run("section_id", **order.section))[0]["section_id"]
        given = {"section_id": section, "locale": order.locale, "metadata": order.metadata}
        found = await self._run_together(
            ("lock_contact", "subscribe", "reserve_confirmation"),
            frozenset(name for name, value in given.items() if value is None),
            order=_encode(order).decode(),
            section_id=section,
            contact=order.contact_value,
            contact_hash=order.contact_hash,
            pause_seconds=CONFIRMATION_PAUSE_SECONDS,
        )
        for reserved in found["reserve_confirmation"]:
            await self._confirm_by_mail(order, reserved)

    async def _confirm_by_mail(self, order: Order, reserved: Row) -> None:
        try:
            await self._send_confirmation(await self._confirmation(order, reserved))
        except BaseException:
            # It was not sent, so the next request may.
            await self._run("forget_confirmation", event_id=reserved["event_id"])
            raise

    async def _confirmation(self, order: Order, reserved: Row) -> Confirmation:
        id = reserved["subscription_id"]
        row = await self.get(id)
        since = row["last_ending"] if row is not None else 0
        url = self.links.confirm_url(id, order.contact_value, now=self.clock(), since=since)
        return Confirmation(
            id,
            order.contact_value,
            order.locale,
            url,
            int(CONFIRM_WITHIN.total_seconds() // 60),
            instant(reserved["created_at"]) if reserved["later"] else None,
            # Not by the event's id: a table of another program may give one out twice.
            f"confirmation-{hashlib.sha256(url.encode()).hexdigest()[:32]}",
        )

    async def waiting_for(self, contact: str) -> Sequence[Row]:
        """What one confirmation of an address confirms."""
        who = {"contact": contact, "contact_hash": contact_hash(contact)}
        return await self._run("waiting_of_contact", **who, limit=MOST_AT_ONCE)

    async def confirm(self, ids: Sequence[int], contact: str) -> list[int]:
        """Those that became active; all must be this contact's."""
        rows = await self._run("confirm", ids=_encode(ids).decode(), contact=contact)
        return sorted(row["subscription_id"] for row in rows)

    # ── looked at ────────────────────────────────────────────────────────────────────────────────

    async def get(self, id: int) -> Row | None:
        rows = await self._run("get", id=id)
        return rows[0] if rows else None

    async def by_foreign_token(self, token: str) -> Row | None:
        """The row into which another program wrote this token."""
        rows = await self._run("by_token", token=token)
        return rows[0] if rows else None

    async def history(self, id: int) -> Sequence[Row]:
        """The last things that happened to it, newest first."""
        return await self._run("history", id=id, limit=_HISTORY)

    async def page(
        self,
        *,
        section: Mapping[str, str] | None = None,
        email: str | None = None,
        status: str | None = None,
        before: int | None = None,
        limit: int = 20,
    ) -> Sequence[Row]:
        """Newest first; `before` is the id that the last page ended with."""
        name = "page_of_contact" if email is not None else "page_of_section" if section else "page"
        where: Mapping[str, Any] = section or dict.fromkeys(("term_id", "campus_code", "index_number"))
        who = {"contact": email or "", "contact_hash": contact_hash(email or "")}
        return await self._run(name, **where, **who, status=status, before=before, limit=limit)

    # ── changed ──────────────────────────────────────────────────────────────────────────────────

    async def change(self, id: int, changes: Mapping[str, Any], locale: str | None) -> Row | None:
        """Change preferences, and the locale if one is given; the row as it is then, or None."""
        for _ in range(_TRIES):
            row = await self.get(id)
            if row is None or await self._changed(row, changes, locale):
                return await self.get(id)
        raise NotAllowed("somebody else is changing this subscription; try again")

    async def _changed(self, row: Row, changes: Mapping[str, Any], locale: str | None) -> bool:
        metadata: str | None = row["metadata"]
        found = await self._run_together(
            ("change", "look_again"),
            id=row["subscription_id"],
            metadata=with_preferences(metadata, changes) if changes else metadata,
            old_metadata=metadata,
            locale=locale or row["locale"],
            old_locale=row["locale"],
        )
        if found["change"]:
            self._database.announce(CHANNEL)
        return bool(found["change"])

    async def pause(self, id: int, via: Via) -> bool:
        return await self._move(id, "active", "paused", via)

    async def resume(self, id: int, via: Via) -> bool:
        """How often it may be notified is counted anew from here."""
        return await self._move(id, "paused", "active", via)

    async def _move(self, id: int, old: str, new: str, via: Via) -> bool:
        payload = _encode({"from": old, "to": new, "via": via}).decode()
        return bool(await self._run("change_status", id=id, old=old, new=new, payload=payload))

    async def unsubscribe(self, id: int, via: Via) -> None:
        """For good, with all that is queued; a second time changes nothing."""
        await self._run("unsubscribe", id=id, via=via)

    # ── queries ──────────────────────────────────────────────────────────────────────────────────

    async def _run(self, name: str, **parameters: Any) -> Sequence[Row]:
        given = {**parameters, "kept": await self._kept()}
        return await patiently(lambda: self._database.fetch(self._queries[name], given))

    async def _kept(self) -> str:
        return _encode(sorted(await self._history.kept())).decode()

    async def _run_together(
        self, names: Sequence[str], absent: frozenset[str] = frozenset(), /, **parameters: Any
    ) -> Mapping[str, Sequence[Row]]:
        known = load_queries(__package__ or "", self._database.dialect, "subscriptions", absent)
        present = [name for name in names if name in known]
        queries = [known[name] for name in present]
        given = {**parameters, "kept": await self._kept()}
        rows = await patiently(lambda: self._database.fetch_all(queries, given))
        return dict(zip(present, rows, strict=True))


def new_token() -> str:
    """For the column `unsubscribe_token`: links of the other program's own use it."""
    return secrets.token_urlsafe(24)
