"""Subscriptions and preferences as people ask for them: checked, because nobody reads a metadata column."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from homing.db import iso
from homing.errors import InvalidRequest
from homing.lanes.open_events.links import contact_hash
from homing.lanes.open_events.locales import canonical
from homing.lanes.open_events.preferences import zone_of
from homing.lanes.open_events.words import Word, check_plain
from homing.senders.addresses import InvalidAddress, check_address

Minutes = Annotated[int, Meta(ge=0, le=1439)]
Moment = Annotated[datetime, Meta(tz=True)]

MOST_NOTIFICATIONS = 1000
_FIRST_YEAR, _LAST_YEAR = 1970, 9900


class WindowRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Minutes of the day, both included; one that ends before it starts goes on past midnight."""

    start_minutes: Minutes
    end_minutes: Minutes
    time_zone: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=100,
                description="An IANA name; left out, the installation's",
                examples=["America/New_York"],
            ),
        ]
        | None
    ) = None


class PreferencesRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What is left out stays as it is; null goes back to the default."""

    notify_on: Annotated[list[Literal["open"]], Meta(max_length=10)] | UnsetType | None = UNSET
    max_notifications: Annotated[int, Meta(ge=1, le=MOST_NOTIFICATIONS)] | UnsetType | None = UNSET
    snooze_until: Moment | UnsetType | None = UNSET
    delivery_window: WindowRequest | UnsetType | None = UNSET


class SubscriptionRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    term_id: Annotated[Word, Meta(examples=["92026"])]
    campus_code: Annotated[Word, Meta(examples=["NB"])]
    index_number: Annotated[Word, Meta(examples=["12345"])]
    email: Annotated[
        str,
        Meta(min_length=3, max_length=320, description="One bare address", examples=["ann@example.org"]),
    ]
    locale: Annotated[str, Meta(min_length=2, max_length=35)] | None = None
    preferences: PreferencesRequest | None = None


class ChangeRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    locale: Annotated[str, Meta(min_length=2, max_length=35)] | None = None
    preferences: PreferencesRequest | None = None


class Order(Struct, frozen=True):
    """A subscription that is asked for, by column."""

    term_id: str
    campus_code: str
    index_number: str
    contact_value: str
    contact_hash: str
    locale: str | None
    unsubscribe_token: str
    metadata: str | None

    @property
    def section(self) -> dict[str, str]:
        return {
            "term_id": self.term_id,
            "campus_code": self.campus_code,
            "index_number": self.index_number,
        }


def order_of(request: SubscriptionRequest, token: str) -> Order:
    check_plain(request, "termId", "campusCode", "indexNumber")
    address = checked_email(request.email)
    changes = changes_of(request.preferences)
    wishes = {name: value for name, value in changes.items() if value is not None}
    return Order(
        term_id=request.term_id.strip(),
        campus_code=request.campus_code.strip(),
        index_number=request.index_number.strip(),
        contact_value=address,
        contact_hash=contact_hash(address),
        locale=checked_locale(request.locale),
        unsubscribe_token=token,
        metadata=msgspec.json.encode({"preferences": wishes}).decode() if wishes else None,
    )


def checked_email(given: str) -> str:
    """One bare address: a subscription has no name."""
    try:
        return check_address(given.strip())
    except InvalidAddress as error:
        raise InvalidRequest(f"email: {error}", "email") from None


def checked_locale(given: str | None) -> str | None:
    if given is None:
        return None
    tag = canonical(given)
    if not tag:
        raise InvalidRequest("locale: it is a language tag such as en-US", "locale")
    return tag


def changes_of(request: PreferencesRequest | None) -> dict[str, Any]:
    """By name in the column: the new value, or None to go back to the default."""
    if request is None:
        return {}
    given = {
        "notifyOn": request.notify_on,
        "maxNotifications": request.max_notifications,
        "snoozeUntil": _snooze(request.snooze_until),
        "deliveryWindow": _window(request.delivery_window),
    }
    return {name: value for name, value in given.items() if value is not UNSET}


def _snooze(given: datetime | UnsetType | None) -> str | UnsetType | None:
    if not isinstance(given, datetime):
        return given
    if not _FIRST_YEAR <= given.year <= _LAST_YEAR:
        field = "preferences.snoozeUntil"
        raise InvalidRequest(f"{field}: the year must be from {_FIRST_YEAR} to {_LAST_YEAR}", field)
    return iso(given)


def _window(given: WindowRequest | UnsetType | None) -> Any:
    if not isinstance(given, WindowRequest):
        return given
    if given.time_zone is not None and zone_of(given.time_zone) is None:
        field = "preferences.deliveryWindow.timeZone"
        raise InvalidRequest(f"{field}: there is no such zone; it is a name such as America/New_York", field)
    window = {"startMinutes": given.start_minutes, "endMinutes": given.end_minutes}
    return window if given.time_zone is None else {**window, "timeZone": given.time_zone}
