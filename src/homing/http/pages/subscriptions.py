"""`/subscriptions`: who wants to know of which section; looked for, looked at, paused, resumed and ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery
from msgspec import Struct

from homing.access.desk import Access
from homing.db import Row, instant
from homing.errors import InvalidRequest, NotAllowed, NotFound
from homing.http.asking import AnyRequest
from homing.http.numbers import id_in, page_before
from homing.http.pages.deeds import OWN_AUDIT, Deed, tried
from homing.http.pages.forms import NOTHING_SENT, Form, Refused, Sent, refusal
from homing.http.pages.shell import gone_to, link, read_form, render
from homing.lanes.open_events.subscription_look import (
    FoundSubscriptions,
    SubscriptionLook,
    filter_of,
    number_in,
)
from homing.lanes.open_events.subscriptions import STATES, Subscriptions
from homing.lanes.open_events.subscriptions_view import (
    SubscriptionEvent,
    SubscriptionView,
    listed_subscription,
    shown_subscription,
)
from homing.lanes.open_events.view import notification_id

_OPERATES = {"scope": "notifications:operate", **OWN_AUDIT}
_LARGEST_FORM = 16 * 1024
#: It has one field; an address of a mail is refused by another name.
_FIND = Form("/subscriptions", {"email": "q"}, about="q")
_END = Form("/subscriptions/end")
_TONES: Mapping[str, str] = {"active": "good", "pending": "wait", "paused": "wait", "suppressed": "bad"}
#: What happened to a subscription, as people say it.
_EVENTS: Mapping[str, str] = {
    "created": "asked for",
    "verification_sent": "mail to confirm it sent",
    "verified": "address confirmed",
    "status_changed": "state changed",
    "notify_sent": "notified",
    "notify_failed": "not notified",
    "unsubscribed": "ended",
}
_NOTHING = FoundSubscriptions((), None)


class SubscriptionPages(Controller):
    path = "/subscriptions"
    include_in_schema = False
    opt: Mapping[str, Any] = {"scope": "notifications:read"}
    request_max_body_size = _LARGEST_FORM

    @get("/", media_type=MediaType.HTML)
    async def list(
        self,
        *,
        request: AnyRequest,
        subscription_look: NamedDependency[SubscriptionLook],
        q: FromQuery[str] = "",
        status: FromQuery[str] = "",
        before: FromQuery[int | None] = None,
    ) -> Response[str]:
        """By a number one comes to that subscription at once."""
        number = number_in(q)
        if number is not None and await subscription_look.get(number) is not None:
            return gone_to(_path(number))
        found, sent = _NOTHING, NOTHING_SENT
        try:
            wanted = filter_of(q, status)
            found = await subscription_look.page(wanted, before=page_before(before))
        except InvalidRequest as error:
            sent = _FIND.sent({"q": q}, refusal(error))
        chips = [("", "All"), *((one, one) for one in STATES)]
        return render(
            request,
            "subscriptions.html",
            sent=sent,
            subscriptions=[_listed(row) for row in found.rows],
            chips=[(label, link("/subscriptions", q=q, status=one), one == status) for one, label in chips],
            q=q,
            status=status,
            looked_at=found.looked_at,
            newest=link("/subscriptions", q=q, status=status) if before is not None else "",
            older=link("/subscriptions", q=q, status=status, before=found.next) if found.next else "",
        )

    @get("/one", media_type=MediaType.HTML)
    async def one(
        self,
        *,
        request: AnyRequest,
        subscriptions: NamedDependency[Subscriptions],
        subscription_look: NamedDependency[SubscriptionLook],
        id: FromQuery[int],
    ) -> Response[str]:
        return await _page_of(request, subscriptions, subscription_look, id)

    @post("/pause", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def pause(
        self,
        request: AnyRequest,
        subscriptions: NamedDependency[Subscriptions],
        access: NamedDependency[Access],
    ) -> Response[str]:
        async def pause(id: int, status: str) -> None:
            if not await subscriptions.pause(id, "api"):
                raise NotAllowed(f"a subscription that is {status} cannot be paused: only an active one")

        told = "Paused: it gets no mails for now."
        return await _changed(request, access, subscriptions, _Change("pause", pause), told)

    @post("/resume", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def resume(
        self,
        request: AnyRequest,
        subscriptions: NamedDependency[Subscriptions],
        access: NamedDependency[Access],
    ) -> Response[str]:
        async def resume(id: int, status: str) -> None:
            if not await subscriptions.resume(id, "api"):
                raise NotAllowed(f"a subscription that is {status} cannot be resumed: only a paused one")

        told = "Resumed. How often it may be notified is counted anew."
        return await _changed(request, access, subscriptions, _Change("resume", resume), told)

    @post("/end", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def end(
        self,
        request: AnyRequest,
        subscriptions: NamedDependency[Subscriptions],
        subscription_look: NamedDependency[SubscriptionLook],
        access: NamedDependency[Access],
    ) -> Response[str]:
        form = await read_form(request)

        async def end(id: int, _status: str) -> None:
            if form.get("sure") != "yes":
                raise InvalidRequest("tick that you are sure: only its owner can bring it back", "sure")
            await subscriptions.unsubscribe(id, "api")

        id, done = await _tried(request, access, subscriptions, _Change("end", end))
        if isinstance(done, Refused):
            sent = _END.sent(form, done)
            return await _page_of(request, subscriptions, subscription_look, id, sent=sent)
        return gone_to(_path(id), "Ended for good; what was queued for it is not sent.")


class _Change(Struct, frozen=True):
    """What a form wants of one subscription, given its number and its state."""

    verb: str
    work: Callable[[int, str], Awaitable[None]]


async def _tried(
    request: AnyRequest, access: Access, subscriptions: Subscriptions, change: _Change
) -> tuple[int, Refused | None]:
    """The number that the form names, too; 0 where it names none."""
    text = (await read_form(request)).get("id", "")[:20]
    id = id_in(text)

    async def work() -> None:
        row = await subscriptions.get(id)
        if row is None:
            raise NotFound(f"there is no subscription {text}")
        await change.work(id, row["status"])

    deed = Deed(f"notifications.subscriptions.{change.verb}", text)
    return id, await tried(request, access, deed, work)


async def _changed(
    request: AnyRequest, access: Access, subscriptions: Subscriptions, change: _Change, told: str
) -> Response[str]:
    """By a button, which nobody has written anything into."""
    id, done = await _tried(request, access, subscriptions, change)
    if isinstance(done, Refused):
        return gone_to(_path(id) if id else "/subscriptions", done.text, is_good=False)
    return gone_to(_path(id), told)


async def _page_of(
    request: AnyRequest,
    subscriptions: Subscriptions,
    look: SubscriptionLook,
    id: int,
    *,
    sent: Sent = NOTHING_SENT,
) -> Response[str]:
    row = await look.get(id)
    if row is None:
        raise NotFound(f"there is no subscription {id}")
    view = shown_subscription(row, await subscriptions.history(id))
    tallies = await look.tallies(id)
    return render(
        request,
        "subscription.html",
        sent=sent,
        one=_listed(row),
        facts=_facts(view),
        preferences=_preferences(view.preferences),
        events=[_event(event) for event in view.events],
        tallies=[(_EVENTS.get(kind, kind), count) for kind, count in tallies.items()],
        waiting=[_waiting(one) for one in await look.waiting(id)],
    )


def _path(id: int) -> str:
    return link("/subscriptions/one", id=id)


def _listed(row: Row) -> dict[str, Any]:
    view = listed_subscription(row)
    return {
        "id": view.subscription_id,
        "path": _path(view.subscription_id),
        "section": view.section or "unknown",
        "section_path": link("/subscriptions", q="/".join(view.section_parts)),
        "contact": view.contact,
        "status": view.status,
        "tone": _TONES.get(view.status, "quiet"),
        "verified": view.verified,
        "last_notified_at": _instant(view.last_notified_at),
        "created_at": _instant(view.created_at),
    }


def _facts(view: SubscriptionView) -> list[tuple[str, Any]]:
    course = " · ".join(part for part in (view.course_string, view.course_title) if part)
    return [
        ("Contact", f"{view.contact} ({view.contact_type})"),
        ("Address confirmed", "yes" if view.verified else "no"),
        ("Section", view.section),
        ("Course", course),
        ("Section number", view.section_number),
        ("Last known status of the section", view.last_known_section_status),
        ("Locale", view.locale),
        ("Last notified", view.last_notified_at),
        ("Created", view.created_at),
        ("Changed", view.updated_at),
    ]


def _preferences(given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    window = given.get("deliveryWindow")
    return [
        ("Told when a section opens", "yes" if given.get("notifyOn") else "no"),
        ("At most so many mails", given.get("maxNotifications", "no limit")),
        ("Snoozed until", given.get("snoozeUntil")),
        ("Only between", _window(window) if window else "any time"),
    ]


def _window(window: Mapping[str, Any]) -> str:
    start, end = (divmod(window[name], 60) for name in ("startMinutes", "endMinutes"))
    zone = window.get("timeZone") or "the time zone of this installation"
    return f"{start[0]:02}:{start[1]:02} and {end[0]:02}:{end[1]:02}, {zone}"


def _event(event: SubscriptionEvent) -> dict[str, Any]:
    details = event.details if isinstance(event.details, dict) else {}
    number = details.get("notificationId")
    said = [
        f"{key}: {value}" for key, value in details.items() if key not in {"notificationId", "openEventId"}
    ]
    return {
        "word": _EVENTS.get(event.type, event.type),
        "at": _instant(event.created_at),
        "detail": ", ".join(said),
        "message": notification_id(number) if isinstance(number, int) else None,
    }


def _waiting(row: Row) -> dict[str, Any]:
    return {
        "id": notification_id(row["id"]),
        "attempts": row["attempts"],
        "due_at": _instant(row["due_at"]),
        "created_at": _instant(row["created_at"]),
    }


def _instant(value: Any) -> Any:
    """Another program's time may be no time."""
    try:
        return instant(value)
    except (ValueError, TypeError):
        return None
