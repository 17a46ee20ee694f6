"""What all pages have: the menu by rights, the theme, what is told once, and errors in words."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from tests.http.door import Door, url_with_tables
from tests.http.pages.visitor import OWN, Visitor, door_with_people, visiting

from homing.http.pages import shell

PAGES = ("/", "/messages", "/dead", "/bulk", "/caught", "/docs")


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    """One for all: nothing that these tests do is in the way of another."""
    async with door_with_people(url_with_tables(tmp_path_factory.mktemp("shell"))) as door:
        yield door


@pytest_asyncio.fixture(loop_scope="module")
async def viewer(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "viewer") as visitor:
        yield visitor


def menu_of(page: str) -> list[str]:
    return re.findall(r'<li><a href="([^"]+)"', page.partition('<nav id="menu"')[2].partition("</nav>")[0])


async def test_every_page_opens_empty_and_names_its_place(viewer: Visitor) -> None:
    for path in PAGES:
        page = await viewer.read(path)
        assert page.count("<h1") == 1
        if path != "/caught":
            assert f'href="{path}" aria-current="page"' in page


async def test_the_menu_leaves_out_what_somebody_may_not_open(door: Door, viewer: Visitor) -> None:
    seen = menu_of(await viewer.read("/"))
    assert "/messages" in seen
    assert "/audit" not in seen
    async with visiting(door, "operator") as operator:
        assert "/audit" in menu_of(await operator.read("/"))
    for path in seen:
        await viewer.read(path)


async def test_a_theme_is_chosen_without_script(viewer: Visitor) -> None:
    assert 'data-theme="auto"' in await viewer.read("/dead")
    answer = await viewer.send("/theme", {"theme": "dark", "next": "/dead"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/dead")
    assert 'data-theme="dark"' in await viewer.read("/dead")
    answer = await viewer.send("/theme", {"theme": '"><script>', "next": "//elsewhere.example"})
    assert answer.headers["location"] == "/"
    assert 'data-theme="dark"' in await viewer.read("/dead")


async def test_what_came_of_an_action_is_told_once_and_escaped() -> None:
    response = shell.gone_to("/dead", "<b>done</b>; ümlaut")
    cookie = response.cookies[0]
    assert cookie.httponly
    assert cookie.samesite == "strict"
    assert cookie.value is not None
    assert cookie.value.isascii()
    assert ";" not in cookie.value


async def test_a_flash_is_shown_once(viewer: Visitor) -> None:
    answer = await viewer.send("/messages/act", {"verb": "requeue", "next": "/dead"})
    assert answer.status_code == 303
    assert "Nothing was selected." in await viewer.read("/dead")
    assert "Nothing was selected." not in await viewer.read("/dead")


async def test_errors_are_pages_for_people_and_json_for_programs(door: Door, viewer: Visitor) -> None:
    page = await viewer.read("/messages/outbox_999", 404)
    assert "There is no message outbox_999." in page
    assert 'href="/messages"' in page
    assert "No page has this address." in await viewer.read("/nowhere", 404)
    assert "You may not do this" in await viewer.read("/audit", 403)
    answer = await viewer.client.get("/messages/outbox_999", headers={"Accept": "application/json"})
    assert answer.json()["error"]["code"] == "NOT_FOUND"
    answer = await viewer.client.get("/api/mail/outbox_999", headers={"Accept": "text/html"})
    assert answer.json()["error"]["code"] == "NOT_FOUND"
    key = await door.key("mail:read")
    refused = await door.ask("GET", "/messages", key, headers={"Accept": "text/html"})
    assert refused.status_code == 403
    assert "<h1>You may not do this</h1>" in refused.text


async def test_who_logs_in_goes_on_to_the_filter_they_came_for(door: Door) -> None:
    async with httpx.AsyncClient(base_url=door.address) as client:
        asked = await client.get("/messages?q=status%3Adead", headers={"Accept": "text/html"})
        assert asked.status_code == 401
        assert 'name="next" value="/messages?q=status%3Adead"' in asked.text
        assert "frame-ancestors 'none'" in asked.headers["content-security-policy"]
        stream = await client.get("/events?topic=overview", headers={"Accept": "text/event-stream"})
        assert stream.status_code == 401
        assert stream.headers["content-type"] == "application/json"


async def test_a_form_of_another_site_or_session_changes_nothing(door: Door, viewer: Visitor) -> None:
    for path in (
        "/messages/act",
        "/messages/outbox_1/requeue",
        "/bulk",
        "/bulk/1/cancel",
        "/theme",
        "/logout",
    ):
        forged = await viewer.client.post(
            path, data={"csrf": viewer.csrf}, headers={"Sec-Fetch-Site": "cross-site"}
        )
        assert forged.status_code == 403, path
        bare = await viewer.client.post(path, data={"verb": "requeue"}, headers=OWN)
        assert bare.status_code == 403, path
    async with visiting(door, "operator") as other:
        stolen = await viewer.client.post("/theme", data={"csrf": other.csrf}, headers=OWN)
        assert stolen.status_code == 403


async def test_what_pages_are_made_of_is_kept_by_browsers(viewer: Visitor) -> None:
    page = await viewer.read("/")
    assets = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    assert {name.partition("?")[0] for name in assets} >= {"/static/homing.css", "/static/desk.js"}
    size = 0
    for name in set(assets):
        answer = await viewer.client.get(name)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        size += len(answer.content)
        if name.endswith(".js"):
            assert len(answer.content) < 15_000
    assert size < 60_000
    policy = (await viewer.client.get("/")).headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
