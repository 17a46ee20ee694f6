"""What holds for every answer, whichever route gives it: its headers, how much is read, which numbers are taken."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
import pytest
import pytest_asyncio
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from tests.http.door import Door, url_with_tables
from tests.http.pages.visitor import OWN, Visitor, door_with_people, visiting

from homing.http.access import OPEN
from homing.http.app import LARGEST_BODY
from homing.http.pages.shell import LARGEST_FORM
from homing.senders.caught_mail import Shelf

READING = {"GET", "HEAD", "OPTIONS"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
HTML = {"Accept": "text/html"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    """One for all: nothing that these tests do is in the way of another."""
    async with door_with_people(url_with_tables(tmp_path_factory.mktemp("answers"))) as door:
        yield door


@pytest_asyncio.fixture(loop_scope="module")
async def viewer(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "viewer") as visitor:
        yield visitor


@pytest_asyncio.fixture(loop_scope="module")
async def admin(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "admin") as visitor:
        yield visitor


def routes(door: Door) -> Iterator[tuple[str, HTTPRoute, HTTPRouteHandler]]:
    for route in door.app.routes:
        assert isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items():
            yield method, route, handler


def filled_in(route: HTTPRoute, value: str = "1") -> str:
    return re.sub(r"\{\w+\}", value, route.path_format)


# ── headers ──────────────────────────────────────────────────────────────────────────────────────


def require_guarded(answer: httpx.Response) -> None:
    asked = (answer.request.method, answer.request.url, answer.status_code)
    told = [name.lower() for name, _ in answer.headers.multi_items()]
    for name in ("content-security-policy", "x-content-type-options", "referrer-policy", "cache-control"):
        assert told.count(name) == 1, (asked, name)
    assert "default-src 'none'" in answer.headers["content-security-policy"], asked
    if not str(answer.request.url.path).startswith("/static/"):
        assert answer.headers["cache-control"] == "no-store", asked


async def test_every_answer_is_guarded_whatever_its_status(door: Door, viewer: Visitor) -> None:
    """Pages, JSON, files, streams and everything that can go wrong."""
    key = await door.key("mail:read", "mail:write")
    slow = await door.key("desk:read", rate=0.01)
    as_key = {"Authorization": f"Bearer {key}"}
    ask = viewer.client.request
    seen = {
        200: [await ask("GET", "/"), await ask("GET", "/static/desk.js"), await ask("GET", "/health/live")],
        303: [await viewer.send("/theme", {"theme": "dark"})],
        308: [await ask("GET", "/jobs/0ARYZVZXW372S")],
        304: [await _unchanged(viewer.client)],
        400: [
            await ask("GET", "/events?topic=nothing"),
            await ask("GET", "/?hours=7", headers=HTML),
            await door.client.post("/api/mail", json={}, headers=as_key),
        ],
        401: [await door.client.get("/messages", headers=HTML), await door.client.get("/api/messages")],
        403: [
            await ask("GET", "/audit", headers=HTML),
            await ask("POST", "/messages/act", headers={**OWN, **HTML}, data={"csrf": "wrong"}),
            await door.client.get("/", headers={"Host": "evil.example"}),
        ],
        404: [
            await ask("GET", "/nowhere", headers=HTML),
            await ask("GET", "/messages/outbox_999", headers=HTML),
            await ask("GET", "/static/none.js"),
            await door.client.get("/api/mail/outbox_999", headers=as_key),
        ],
        405: [await ask("DELETE", "/messages")],
        413: [await viewer.send("/theme", {"theme": "x" * LARGEST_FORM})],
        415: [await door.client.post("/api/mail", content=b"x", headers=as_key)],
        429: [[await door.ask("GET", "/bulk", slow) for _ in range(3)][-1]],
    }
    for status, answers in seen.items():
        for answer in answers:
            assert answer.status_code == status, (answer.request.url, answer.text)
            require_guarded(answer)


async def _unchanged(client: httpx.AsyncClient) -> httpx.Response:
    file = await client.get("/static/desk.js")
    return await client.get("/static/desk.js", headers={"If-None-Match": file.headers["etag"]})


async def test_an_answer_that_is_our_fault_is_guarded(
    viewer: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_given: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(Shelf, "list", broken)
    answer = await viewer.client.get("/caught", headers=HTML)
    assert answer.status_code == 500
    require_guarded(answer)


async def test_files_of_ours_may_be_kept(viewer: Visitor) -> None:
    answer = await viewer.client.get("/static/homing.css")
    assert answer.headers["cache-control"].startswith("max-age=31536000")
    missing = await viewer.client.get("/static/none.css")
    assert missing.headers["cache-control"] == "no-store"


# ── how much is read ─────────────────────────────────────────────────────────────────────────────


async def test_a_long_form_is_refused_before_it_is_parsed(door: Door, viewer: Visitor) -> None:
    """On every route that changes something: with a wrong token, with the right one, and by a key."""
    key = await door.key()
    long = b"csrf=wrong&" + b"id=a&" * 20_000
    asked: tuple[Mapping[str, str], ...] = (
        {**OWN, **FORM},
        {**OWN, **FORM, "X-CSRF-Token": viewer.csrf},
        {**FORM, "Authorization": f"Bearer {key}"},
    )
    walked = 0
    for method, route, _ in routes(door):
        if method in READING or route.path_format in OPEN:
            continue
        for headers in asked:
            answer = await viewer.client.request(method, filled_in(route), content=long, headers=headers)
            assert answer.status_code == 413, (method, route.path, answer.text)
        walked += 1
    assert walked > 50


async def test_a_long_form_without_a_length_is_refused_as_well(viewer: Visitor) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"id=a&" * 1000

    answer = await viewer.client.post("/messages/act", content=pieces(), headers={**OWN, **FORM})
    assert answer.status_code == 413
    many = await viewer.client.post("/router", content=b"a&" * 5000, headers={**OWN, **FORM})
    assert (many.status_code, "fields" in many.text) == (413, True)


async def test_every_page_says_how_much_it_reads(door: Door) -> None:
    """A page that is added reads a form's worth, and no more."""
    larger = {"/router"}
    for method, route, handler in routes(door):
        is_page = not route.path.startswith(("/api/", "/internal/", "/openapi", "/metrics", "/health/"))
        if method not in READING and is_page and route.path not in larger:
            most = handler.resolve_request_max_body_size()
            assert most is not None
            assert most <= LARGEST_FORM < LARGEST_BODY, (method, route.path)


async def test_five_hundred_messages_can_be_selected(viewer: Visitor) -> None:
    ids = [f"notification_{2**62 + number}" for number in range(500)]
    answer = await viewer.send("/messages/act", {"verb": "requeue", "id": ids})
    assert answer.status_code == 403
    assert "notifications:operate" in answer.text
