"""Where the links in mails lead: pages for people, which need no script, no cookie and no account.

Programs that scan mail open every link, so a GET shows a page and changes nothing; a POST does. The token in
the link, or in the form, is all that is asked for: there is no cookie that another site could borrow.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import Controller, MediaType, Request, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import FromPath, FromQuery
from markupsafe import Markup
from msgspec import Struct

from homing.db import Row
from homing.lanes.open_events.links import LONGEST_TOKEN, Purpose, Verdict, is_same_token, read_token
from homing.lanes.open_events.locales import choose_locale
from homing.lanes.open_events.manage_form import Form, choices, form_of, read_form
from homing.lanes.open_events.subscriptions import Subscriptions, Via
from homing.senders.addresses import mask

_LARGEST_FORM = 16 * 1024
_LARGEST_ID = 2**63 - 1
_STATUS: dict[Verdict, int] = {"valid": 200, "expired": 410, "invalid": 404}

_pages = Environment(
    loader=PackageLoader(__package__ or "", "pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class PageTerms(Struct, frozen=True):
    """What pages are written in, and the time zone of those who named none."""

    locales: tuple[str, ...]
    default_locale: str | None = None
    default_zone: str = "UTC"


class Visit(Struct, frozen=True):
    """Somebody with a link: a subscription only where the link is good for it."""

    verdict: Verdict
    token: str
    row: Row | None = None


class SubscriberPages(Controller):
    """What people see who follow a link."""

    # ── unsubscribe ──────────────────────────────────────────────────────────────────────────────

    @get("/unsubscribe")
    async def ask_to_unsubscribe(
        self,
        subscriptions: NamedDependency[Subscriptions],
        page_terms: NamedDependency[PageTerms],
        request: Request[Any, Any, Any],
        token: FromQuery[str] = "",
    ) -> Response[str]:
        visit = await _leaving(subscriptions, token)
        if visit.row is None:
            return _problem(visit, page_terms, request)
        if visit.row["status"] == "unsubscribed":
            return _page("unsubscribed.html", visit.row, page_terms, manage_url=None)
        shown = {"action": "/unsubscribe", "token": token, "manage_url": None}
        return _page("unsubscribe.html", visit.row, page_terms, **shown)

    @post("/unsubscribe", status_code=200)
    async def unsubscribe(
        self,
        subscriptions: NamedDependency[Subscriptions],
        page_terms: NamedDependency[PageTerms],
        request: Request[Any, Any, Any],
        token: FromQuery[str] = "",
    ) -> Response[str]:
        """By the button of the page, or by a mailbox provider (RFC 8058): at once, without a question."""
        form = await _form(request)
        visit = await _leaving(subscriptions, token or _text(form, "token"))
        if visit.row is None:
            return _problem(visit, page_terms, request)
        via: Via = "one-click" if "List-Unsubscribe" in form else "link"
        await subscriptions.unsubscribe(visit.row["subscription_id"], via)
        return _page("unsubscribed.html", visit.row, page_terms, manage_url=None)

    # ── confirm ──────────────────────────────────────────────────────────────────────────────────

    @get("/confirm")
    async def ask_to_confirm(
        self,
        subscriptions: NamedDependency[Subscriptions],
        page_terms: NamedDependency[PageTerms],
        request: Request[Any, Any, Any],
        token: FromQuery[str] = "",
    ) -> Response[str]:
        visit = await _visit(subscriptions, token, "confirm")
        if visit.row is None or visit.row["status"] == "unsubscribed":
            return _problem(visit, page_terms, request)
        sections = await _confirmed_by(subscriptions, visit.row)
        if not sections:
            return _as_it_is(subscriptions, visit, visit.row, page_terms)
        shown = {"action": "/confirm", "token": token, "sections": sections, "section": sections[0]}
        return _page("confirm.html", visit.row, page_terms, **shown)

    @post("/confirm", status_code=200)
    async def confirm(
        self,
        subscriptions: NamedDependency[Subscriptions],
        page_terms: NamedDependency[PageTerms],
        request: Request[Any, Any, Any],
        token: FromQuery[str] = "",
    ) -> Response[str]:
        """What was ticked, or the link's own where nothing was. A second time changes nothing."""
        form = await _form(request)
        visit = await _visit(subscriptions, token or _text(form, "token"), "confirm")
        if visit.row is None or visit.row["status"] == "unsubscribed":
            return _problem(visit, page_terms, request)
        own, contact = visit.row["subscription_id"], visit.row["contact_value"]
        waiting = await _confirmed_by(subscriptions, visit.row)
        chosen = _numbers(form, "id") or [own]
        ids = [section["id"] for section in waiting if section["id"] in chosen]
        confirmed = await subscriptions.confirm(ids, contact)
        row = await subscriptions.get(own) or visit.row
        if row["status"] == "active" and own in ids:
            confirmed = [own, *confirmed]
        if not confirmed:
            return _as_it_is(subscriptions, visit, row, page_terms)
        shown = {
            "sections": [section for section in waiting if section["id"] in confirmed],
            "manage_url": subscriptions.links.manage_url_by(own, _behind(subscriptions, visit, row)),
        }
        return _page("confirmed.html", row, page_terms, **shown)

    # ── manage ───────────────────────────────────────────────────────────────────────────────────

    @get("/subscriptions/{id:int}")
    async def manage(
        self,
        *,
        subscriptions: NamedDependency[Subscriptions],
        page_terms: NamedDependency[PageTerms],
        request: Request[Any, Any, Any],
        id: FromPath[int],
        token: FromQuery[str] = "",
    ) -> Response[str]:
        visit = await _visit(subscriptions, token, "manage", id)
        if visit.row is None:
            return _problem(visit, page_terms, request)
        return _manage_page(visit.row, token, page_terms, form_of(visit.row, page_terms.default_zone))

    @post("/subscriptions/{id:int}", status_code=200)
    async def change(
        self,
        *,
        subscriptions: NamedDependency[Subscriptions],
        page_terms: NamedDependency[PageTerms],
        request: Request[Any, Any, Any],
        id: FromPath[int],
        token: FromQuery[str] = "",
    ) -> Response[str]:
        form = await _form(request)
        visit = await _visit(subscriptions, token or _text(form, "token"), "manage", id)
        if visit.row is None:
            return _problem(visit, page_terms, request)
        match _text(form, "do"):
            case "unsubscribe":
                await subscriptions.unsubscribe(id, "page")
                return _page("unsubscribed.html", visit.row, page_terms, manage_url=None)
            case "save" if visit.row["status"] != "unsubscribed":
                return await _save(subscriptions, visit, page_terms, form)
            case "pause":
                await subscriptions.pause(id, "page")
            case "resume":
                await subscriptions.resume(id, "page")
        row = await subscriptions.get(id) or visit.row
        return _manage_page(row, visit.token, page_terms, form_of(row, page_terms.default_zone))


async def _no_fence(_request: Request[Any, Any, Any]) -> None:
    """In place of the one for the desk: mailbox providers and people elsewhere call here, with a token."""


def subscriber_pages() -> Router:
    return Router(
        "/",
        route_handlers=[SubscriberPages],
        before_request=_no_fence,
        include_in_schema=False,
        request_max_body_size=_LARGEST_FORM,
    )


async def _save(
    subscriptions: Subscriptions, visit: Visit, terms: PageTerms, given: Mapping[str, Any]
) -> Response[str]:
    row: Any = visit.row
    fields = {name: _text(given, name) for name in given}
    read = read_form(fields, _words(_locale(row, terms)), terms.locales, terms.default_zone)
    if read.mistakes:
        return _manage_page(row, visit.token, terms, read.form, mistakes=read.mistakes)
    saved = await subscriptions.change(row["subscription_id"], read.changes, read.locale) or row
    return _manage_page(saved, visit.token, terms, form_of(saved, terms.default_zone), saved=True)


# ── who is it ────────────────────────────────────────────────────────────────────────────────────


async def _visit(subscriptions: Subscriptions, text: str, purpose: Purpose, only: int | None = None) -> Visit:
    """What a link is good for. Whatever is wrong with it, the same is done and the same is said."""
    token = read_token(text)
    id = token.subscription_id if token is not None else 0
    row = await subscriptions.get(min(id, _LARGEST_ID))
    contact = row["contact_value"] if row is not None and only in {None, id} else None
    # What expires is a link to confirm, or was got by one.
    expires = token is not None and token.expires is not None
    since = row["last_ending"] if row is not None and expires else 0
    now = subscriptions.clock()
    verdict = subscriptions.links.keys.check(token, purpose, contact, now=now, since=since)
    return Visit(verdict, text, row if verdict == "valid" else None)


async def _leaving(subscriptions: Subscriptions, text: str) -> Visit:
    """Also by a link that another program has sent, with a token of its own."""
    visit = await _visit(subscriptions, text, "unsubscribe")
    if visit.row is not None or not text.isprintable() or len(text) > LONGEST_TOKEN:
        return visit
    row = await subscriptions.by_foreign_token(text)
    known = row is not None and is_same_token(row["unsubscribe_token"], text)
    return Visit("valid", text, row) if known else visit


async def _form(request: Request[Any, Any, Any]) -> Mapping[str, Any]:
    """What was posted, urlencoded or multipart; empty where it is neither."""
    try:
        return (await request.form()).dict()
    except (HTTPException, ValueError) as error:
        if isinstance(error, HTTPException) and error.status_code == 413:
            raise
        return {}


def _text(form: Mapping[str, Any], name: str) -> str:
    """A field's text; a file, or a field that is there twice, is none."""
    values = form.get(name, [])
    return values[0] if len(values) == 1 and isinstance(values[0], str) else ""


def _numbers(form: Mapping[str, Any], name: str) -> list[int]:
    texts = [value for value in form.get(name, []) if isinstance(value, str)]
    return [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 19]


async def _confirmed_by(subscriptions: Subscriptions, row: Row) -> list[dict[str, Any]]:
    """What a confirmation confirms: the link's own first, then whatever else waits for that address.

    Its own not where it is paused or suppressed: that is not for a confirmation to change.
    """
    others = await subscriptions.waiting_for(row["contact_value"])
    own = [row] if row["status"] in {"pending", "active"} else []
    rest = [other for other in others if other["subscription_id"] != row["subscription_id"]]
    return [_section(one) for one in (*own, *rest)]


# ── what they see ────────────────────────────────────────────────────────────────────────────────


def _page(name: str, row: Row, terms: PageTerms, **variables: Any) -> Response[str]:
    shown = {"section": _section(row), "contact": mask(row["contact_value"]), **variables}
    return _rendered(name, _locale(row, terms), **shown)


def _as_it_is(subscriptions: Subscriptions, visit: Visit, row: Row, terms: PageTerms) -> Response[str]:
    """For whom a confirmation has changed nothing: what the subscription is, and what can be done with it."""
    token = _behind(subscriptions, visit, row)
    return _manage_page(row, token, terms, form_of(row, terms.default_zone))


def _behind(subscriptions: Subscriptions, visit: Visit, row: Row) -> str:
    """What leads on from a link to confirm, and ends with it: mails that arrive have lasting ones."""
    confirms = read_token(visit.token)
    expires = confirms.expires if confirms is not None else None
    id, contact = row["subscription_id"], row["contact_value"]
    return subscriptions.links.manage_token(id, contact, expires, since=row["last_ending"])


def _manage_page(
    row: Row,
    token: str,
    terms: PageTerms,
    form: Form,
    *,
    saved: bool = False,
    mistakes: Mapping[str, str] | None = None,
) -> Response[str]:
    return _page(
        "manage.html",
        row,
        terms,
        action=f"/subscriptions/{row['subscription_id']}",
        token=token,
        status=row["status"],
        saved=saved,
        mistakes=mistakes or {},
        form=msgspec.structs.replace(form, locale=form.locale or _locale(row, terms)),
        **choices(terms.locales),
    )


def _problem(visit: Visit, terms: PageTerms, request: Request[Any, Any, Any]) -> Response[str]:
    """A link that was good and is for something that has ended since is no better than a bad one."""
    verdict: Verdict = "invalid" if visit.verdict == "valid" else visit.verdict
    asked = request.headers.get("accept-language", "").split(",")[0].split(";")[0].strip()
    locale = choose_locale(asked[:35] or None, terms.locales, terms.default_locale)
    return _rendered("problem.html", locale, status_code=_STATUS[verdict], reason=verdict)


def _rendered(name: str, locale: str, status_code: int = 200, **variables: Any) -> Response[str]:
    style = _style()
    style_sheet = Markup(style)  # noqa: S704 - a file of this package
    text = _pages.get_template(name).render(
        locale=locale, words=_words(locale), style=style_sheet, **variables
    )
    return Response(text, status_code=status_code, media_type=MediaType.HTML, headers=_headers(style))


@lru_cache(maxsize=1)
def _headers(style: str) -> dict[str, str]:
    known = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return {
        "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{known}'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "X-Robots-Tag": "noindex, nofollow",
    }


@lru_cache(maxsize=1)
def _style() -> str:
    return _file("style.css")


@lru_cache(maxsize=64)
def _words(locale: str) -> Mapping[str, str]:
    """A locale that an operator has added for mails has no pages of its own: they are in English then."""
    folder = files(__package__ or "").joinpath("pages")
    name = f"{locale}.json" if folder.joinpath(f"{locale}.json").is_file() else "en-US.json"
    words: Mapping[str, str] = msgspec.json.decode(_file(name))
    return words


def _file(name: str) -> str:
    return files(__package__ or "").joinpath("pages", name).read_text(encoding="utf-8")


def _locale(row: Row, terms: PageTerms) -> str:
    return choose_locale(row["locale"], terms.locales, terms.default_locale)


def _section(row: Row) -> dict[str, Any]:
    return {
        "id": row["subscription_id"],
        "title": row["title"],
        "course": row["course_string"],
        "number": row["section_number"],
        "index": row["index_number"],
        "term": row["term_id"],
        "campus": row["campus_code"],
    }
