"""What every page has: the menu, who is logged in, the token of the forms, and how things are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import Litestar, MediaType, Response
from litestar.datastructures import Cookie
from litestar.exceptions import HTTPException
from litestar.routes import HTTPRoute
from msgspec import Struct

from homing import __version__
from homing.access.principal import Principal
from homing.http.asking import AnyRequest
from homing.http.pages.forms import NOTHING_SENT, Sent
from homing.http.pages.writing import (
    ago,
    at_most,
    clock,
    compact,
    duration,
    iso_text,
    kind_of,
    number,
    percent,
    short,
    ticks,
)

#: Groups of the menu, with their pages. One that is not served, or that a person may not open, is left out.
MENU: Final = (
    (
        "Deliver",
        (("/", "Overview"), ("/messages", "Messages"), ("/dead", "Dead letters"), ("/bulk", "Bulk runs")),
    ),
    (
        "Connect",
        (("/targets", "Targets"), ("/credentials", "Credentials"), ("/subscriptions", "Subscriptions")),
    ),
    ("Run", (("/queues", "Queues"), ("/workers", "Workers"), ("/router", "Router"))),
    (
        "Check",
        (
            ("/alerts", "Alerts"),
            ("/audit", "Audit"),
            ("/access", "Access"),
            ("/health", "Health"),
            ("/docs", "API"),
        ),
    ),
)
#: What a page that everybody at the desk may open says of itself.
PAGE: Final = {"scope": "desk:read"}
LANE_NAMES: Final = {
    "mail_outbox": "Mails",
    "dispatch_jobs": "Webhooks",
    "email_log": "Emails by queue",
    "open_events": "Open seats",
}
VERB_NAMES: Final = {"requeue": "Requeue", "send_now": "Send now", "cancel": "Cancel"}
#: How a bulk run that is in this state is coloured.
RUN_TONES: Final = {
    "counting": "busy",
    "running": "busy",
    "done": "good",
    "cancelled": "quiet",
    "failed": "bad",
}
#: Bytes of a form; 500 selected messages fit in.
LARGEST_FORM: Final = 64 * 1024
THEMES: Final = ("auto", "light", "dark")
THEME_COOKIE: Final = "homing_theme"
_FLASH_COOKIE: Final = "homing_flash"
_LONGEST_FLASH = 400
#: The status of a page whose form was refused.
_REFUSED = 422


class MenuEntry(Struct, frozen=True):
    path: str
    label: str
    is_here: bool


class Flash(Struct, frozen=True):
    """What came of the action before, told once."""

    text: str
    is_good: bool = True


def render(
    request: AnyRequest,
    template: str,
    *,
    status_code: int = 200,
    headers: Mapping[str, str] | None = None,
    sent: Sent = NOTHING_SENT,
    **values: Any,
) -> Response[str]:
    """A page. Its template extends `base.html`, which gets the menu, `user` and `csrf` from here.

    With what was `sent` it is the answer to a form that was refused.
    """
    flash = _told(request)
    text = environment().get_template(template).render(**_frame(request), flash=flash, sent=sent, **values)
    gone = [_flash_cookie("", 0)] if flash is not None else []
    status = _REFUSED if sent.why else status_code
    return Response(
        text, status_code=status, media_type=MediaType.HTML, headers=dict(headers or {}), cookies=gone
    )


def render_part(template: str, **values: Any) -> str:
    """A piece of a page, for whoever has the rest."""
    return environment().get_template(template).render(**values)


def gone_to(path: str, told: str = "", *, is_good: bool = True) -> Response[str]:
    """After an action: to a page, which tells what came of it."""
    cookies = [_flash_cookie(("+" if is_good else "-") + told[:_LONGEST_FLASH], 30)] if told else []
    return Response("", status_code=303, headers={"Location": path}, cookies=cookies)


async def read_form(request: AnyRequest) -> dict[str, str]:
    """The fields of a form, each once; of a body that is none, nothing."""
    try:
        given = await request.form()
    except HTTPException:
        raise
    except ValueError:
        return {}
    return {name: value for name, value in given.items() if isinstance(value, str)}


def user_of(request: AnyRequest) -> Principal | None:
    """Who asks; None on a page that is open to everybody, and before anybody was asked."""
    user = request.scope.get("user")
    return user if isinstance(user, Principal) else None


def link(path: str, **parameters: object) -> str:
    """A path with a query of those parameters that have a value."""
    given = {name: str(value) for name, value in parameters.items() if value not in {None, ""}}
    return f"{path}?{urlencode(given)}" if given else path


def own_path(path: str) -> str:
    """Only a path of this site: whoever sends a link must not choose where a form leads.

    One that is not quoted is none of ours, and no header could hold it.
    """
    is_own = path.startswith("/") and not path.startswith("//")
    return path if is_own and path.isascii() and path.isprintable() and "\\" not in path else "/"


def form_page(request: AnyRequest, came_from: str) -> str:
    """Where a form was that was sent: where it came from, if that can be asked for; otherwise near it.

    A form that was refused is shown at an address which only takes forms.
    """
    own, pages = request.url.path, _page_scopes(request.app)
    place = came_from.partition("?")[0]
    if place not in {"/", own} and _is_among(pages, place):
        return came_from
    if own in pages:
        return own
    parts = own.split("/")
    above = ("/".join(parts[:length]) for length in range(len(parts) - 1, 1, -1))
    return next((path for path in above if _is_among(pages, path)), "/")


def _is_among(pages: Iterable[str], path: str) -> bool:
    here = path.split("/")
    known = (page.split("/") for page in pages)
    return any(len(page) == len(here) and all(map(_fits, page, here)) for page in known)


def _fits(part: str, here: str) -> bool:
    return here != "" if part.startswith("{") else part == here


def wants_page(request: AnyRequest) -> bool:
    """Whether a browser asks, for a person; programs get JSON."""
    is_api = request.url.path.startswith(("/api/", "/metrics", "/internal/", "/events", "/openapi"))
    return "text/html" in request.headers.get("accept", "") and not is_api


def asset(name: str) -> str:
    """The path of a static file, which changes with its content: it may be kept for ever."""
    return f"/static/{name}?v={_digest(name)}"


def theme_of(request: AnyRequest) -> str:
    chosen = request.cookies.get(THEME_COOKIE, "auto")
    return chosen if chosen in THEMES else "auto"


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("homing.http"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"at_most": at_most}
    made.filters |= {"ago": _ago, "iso": iso_text, "number": number, "duration": duration, "percent": percent}
    made.filters |= {"short": short, "kind": kind_of, "compact": compact, "clock": clock, "ticks": ticks}
    made.tests["ahead"] = lambda at: at > datetime.now(UTC)
    made.globals |= {"verb_names": VERB_NAMES, "run_tones": RUN_TONES}
    made.globals |= {"asset": asset, "link": link, "version": __version__, "lane_names": LANE_NAMES}
    made.globals["parts"] = made.get_template("parts.html").module
    return made


def _frame(request: AnyRequest) -> dict[str, Any]:
    user = user_of(request)
    return {
        "menu": _menu(request, user),
        "user": user,
        "csrf": user.csrf if user is not None else "",
        "theme": theme_of(request),
        "here": _place(request),
        "now": datetime.now(UTC),
    }


def _place(request: AnyRequest) -> str:
    """The page that is shown; of one that answers a form that of the menu, which can be asked for again."""
    path = request.url.path
    if request.method in {"GET", "HEAD"}:
        return path
    pages = [page for _, entries in MENU for page, _ in entries if _is_here(page, path)]
    return pages[0] if pages else "/"


def _menu(request: AnyRequest, user: Principal | None) -> list[tuple[str, list[MenuEntry]]]:
    scopes, here = _page_scopes(request.app), request.url.path
    found = []
    for group, entries in MENU:
        shown = [
            MenuEntry(path, label, _is_here(path, here))
            for path, label in entries
            if user is not None and path in scopes and user.may(scopes[path])
        ]
        found += [(group, shown)] if shown else []
    return found


def _is_here(path: str, here: str) -> bool:
    return here == path or (path != "/" and here.startswith(f"{path}/"))


def _page_scopes(app: Litestar) -> dict[str, str]:
    """What opens a page, as its route says. Routes do not change, so they are read once."""
    if "page_scopes" not in app.state:
        app.state.page_scopes = {
            route.path: str(route.route_handler_map["GET"][0].opt.get("scope", ""))
            for route in app.routes
            if isinstance(route, HTTPRoute) and "GET" in route.route_handler_map
        }
    found: dict[str, str] = app.state.page_scopes
    return found


def _told(request: AnyRequest) -> Flash | None:
    given = unquote(request.cookies.get(_FLASH_COOKIE, ""))
    return Flash(given[1:], is_good=given[0] == "+") if len(given) > 1 else None


def _flash_cookie(text: str, seconds: int) -> Cookie:
    return Cookie(
        key=_FLASH_COOKIE,
        value=quote(text, safe=""),
        path="/",
        max_age=seconds,
        httponly=True,
        samesite="strict",
    )


def _ago(at: datetime) -> str:
    return ago(at, datetime.now(UTC))


@cache
def _digest(name: str) -> str:
    return sha256(files("homing.http").joinpath("static", name).read_bytes()).hexdigest()[:12]
