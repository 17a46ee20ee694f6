"""What holds for every answer, whichever route gives it: its headers, how much is read, odd numbers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from tests.http.door import Door, url_with_tables
from tests.http.pages.visitor import OWN, Visitor, door_with_people, visiting

from homing.http.access import OPEN
from homing.http.intake import LARGEST_BODY
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


async def test_where_people_come_by_https_they_come_by_nothing_else(door: Door, tmp_path: Path) -> None:
    name, paths = "strict-transport-security", ("/health/live", "/login", "/api/messages", "/nowhere")
    async with door_with_people(url_with_tables(tmp_path), base_url="https://127.0.0.1") as behind_tls:
        for path in paths:
            assert (await behind_tls.client.get(path)).headers.get_list(name) == ["max-age=31536000"], path
    for path in paths:
        assert name not in (await door.client.get(path)).headers, path


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


async def test_a_long_form_is_refused_before_it_is_parsed(door: Door, admin: Visitor) -> None:
    """On every route that changes something: with a wrong token, with the right one, and by a key."""
    key = await door.key()
    long = b"csrf=wrong&" + b"id=a&" * 13_200
    asked: tuple[Mapping[str, str], ...] = (
        {**OWN, **FORM},
        {**OWN, **FORM, "X-CSRF-Token": admin.csrf},
        {**FORM, "Authorization": f"Bearer {key}"},
    )
    walked = 0
    for method, route, _ in routes(door):
        if method in READING or route.path_format in OPEN:
            continue
        for headers in asked:
            answer = await admin.client.request(method, filled_in(route), content=long, headers=headers)
            # That one knows four codes, and this is none of them.
            expected = 400 if route.path == "/internal/dispatch" else 413
            assert answer.status_code == expected, (method, route.path, answer.text)
            assert "form may have" in answer.text
        walked += 1
    assert walked > 50


async def test_a_long_form_without_a_length_is_refused_as_well(admin: Visitor) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"id=a&" * 1000

    answer = await admin.client.post("/messages/act", content=pieces(), headers={**OWN, **FORM})
    assert answer.status_code == 413
    many = await admin.client.post("/router", content=b"a&" * 5000, headers={**OWN, **FORM})
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
    ids = [f"outbox_{10**17 + number}" for number in range(500)]
    answer = await viewer.send("/messages/act", {"verb": "requeue", "id": ids})
    assert answer.status_code == 403
    assert "mail:operate" in answer.text


# ── odd numbers ──────────────────────────────────────────────────────────────────────────────────

HUGE = 10**23
ODD = (str(HUGE), str(-HUGE), str(2**63), "9" * 5000, "nan", "²")
#: Names that some handlers read by themselves.
READ_LATER = ("page", "size", "cursor", "before", "after", "limit")
#: What a route wants besides, so that a number is looked at.
BESIDES = {"/events": {"topic": "bulk"}, "/api/dispatch/dead": {"errorClass": "timeout"}}


def numeric(route: HTTPRoute, handler: HTTPRouteHandler) -> Iterator[str]:
    """Names in the query of a route where a number may stand."""
    for name, field in handler.parsed_fn_signature.parameters.items():
        is_number = field.has_inner_subclass_of(int) or field.is_subclass_of(int)
        if f"{{{name}}}" not in route.path_format and (is_number or "int" in str(field.raw)):
            yield name
    if route.path.startswith("/api/dispatch/") and "{" not in route.path_format:
        yield from READ_LATER


async def status_of(client: httpx.AsyncClient, path: str, query: Mapping[str, str] = {}) -> int:
    """Without waiting for the end: a stream has none."""
    async with client.stream("GET", path, params=query, headers=HTML) as answer:
        return answer.status_code


async def test_an_odd_number_in_an_address_is_nobodys_fault_but_whose_it_is(
    admin: Visitor, door: Door
) -> None:
    """Every number of every address: 404 or 400 where there is none, and never 500."""
    walked: set[str] = set()
    for method, route, handler in routes(door):
        if method != "GET" or route.path.startswith(("/static", "/openapi")):
            continue
        for odd in ODD if "{" in route.path_format else ():
            status = await status_of(admin.client, filled_in(route, odd), BESIDES.get(route.path, {}))
            assert 300 <= status < 500, (route.path, odd[:30])
            walked.add(route.path)
        for name in numeric(route, handler):
            for odd in ODD:
                query = {**BESIDES.get(route.path, {}), name: odd}
                status = await status_of(admin.client, filled_in(route), query)
                assert status < 500, (route.path, name, odd[:30], status)
            walked.add(f"{route.path}?{name}")
    assert {
        "/bulk?before",
        "/audit?before",
        "/subscriptions?before",
        "/caught/{id:int}",
        "/events?id",
    } <= walked
    assert await status_of(admin.client, "/bulk", {"before": str(HUGE)}) == 400
    assert await status_of(admin.client, f"/caught/{-HUGE}") == 404


async def test_a_limit_is_a_number_that_ends(door: Door) -> None:
    """Nothing is changed by one that is none, and the page says so."""
    await door.sql(
        "INSERT INTO dispatch_job (source, type, target_url, payload, status, target)"
        " VALUES ('shop', 'order.paid', 'https://example.org/hooks', '{}', 'PENDING', 'https://example.org')"
        " RETURNING id"
    )
    target = {"target": "https://example.org"}
    async with visiting(door, "operator") as operator:
        told = await operator.done("/targets/limits", **target, max_concurrency="5", rate_per_second="2")
        assert "hold from now on" in told
        for odd in ("nan", "inf", "-inf", "Infinity", "1e999", "9" * 400):
            for field in ("max_concurrency", "rate_per_second"):
                form = {**target, "max_concurrency": "5", "rate_per_second": "2", field: odd}
                assert "write a number" in await operator.refused("/targets/limits", **form)
    (kept,) = await door.sql("SELECT max_concurrency, rate_per_second FROM homing_target")
    assert (kept["max_concurrency"], kept["rate_per_second"]) == (5, 2.0)
