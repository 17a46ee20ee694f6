"""Every route that there is, walked: nothing here is listed by hand but what is meant to be open."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from litestar.routes import HTTPRoute
from tests.access.desk import PASSWORD
from tests.http.door import Door, opened_door, url_with_tables
from tests.http.pages.visitor import OWN, door_with_people

from homing.access.scopes import EVERYTHING
from homing.access.sessions import csrf_of
from homing.http.access import OPEN

ROOT = Path(__file__).parent.parent.parent
READING = {"GET", "HEAD", "OPTIONS"}
#: What a page elsewhere makes a browser say.
FORGED: tuple[Mapping[str, str], ...] = (
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "same-site", "Origin": "https://other.homing.example"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
)
#: What proves nothing: a program says it as well, so a cookie is not enough with it.
SILENT: tuple[Mapping[str, str], ...] = ({}, {"Sec-Fetch-Site": "none"})
#: Whoever comes by a link in a mail comes from anywhere; the token in it is asked for.
BY_MAIL = {"/unsubscribe", "/confirm", "/subscriptions/{id}"}
#: Changes for which the door asks only who it is. What they are about is known when they are read: then the
#: scope of each lane is asked for.
ASKS_LATER = {
    "/messages/act": "the lanes of the messages that are named",
    "/messages/{id}/{verb}": "the lane of the message",
    "/api/messages/{message_id}/requeue": "the lane of the message",
    "/api/messages/{message_id}/cancel": "the lane of the message",
    "/api/messages/{message_id}/send-now": "the lane of the message",
    "/bulk": "the lanes that the line means",
    "/api/bulk": "the lanes that the line means",
    "/bulk/{id}/cancel": "the lanes of the run",
    "/api/bulk/{run_id}/cancel": "the lanes of the run",
}
#: Changes that concern only who makes them.
ONE_S_OWN = {"/theme", "/logout"}
#: Tables that say who asked, which every request may change.
OF_ASKING = {"sqlite_sequence", "homing_audit", "homing_session", "homing_api_key", "homing_login_failure"}


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return url_with_tables(tmp_path)


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    """With people, and with something of each lane that could be changed."""
    async with door_with_people(sqlite_url) as door:
        await door.insert(status="failed")
        await door.sql(
            "INSERT INTO dispatch_job (source, type, target_url, payload, status)"
            " VALUES ('shop', 'order.paid', 'https://example.org/hooks', '{}', 'ERROR') RETURNING id"
        )
        yield door


def routes(door: Door) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Method, path and options of everything that the application answers to."""
    for route in door.app.routes:
        assert isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items():
            yield method, route.path_format, handler.opt


def changes(door: Door) -> Iterator[tuple[str, str]]:
    return ((method, path) for method, path, _ in routes(door) if method not in READING)


def filled_in(path: str) -> str:
    """With a message that there is, where one is named."""
    for parameter, value in (("{verb}", "requeue"), ("{message_id}", "outbox_1")):
        path = path.replace(parameter, value)
    return re.sub(r"\{\w+\}", "1", path.replace("/messages/{id}", "/messages/outbox_1"))


async def contents(door: Door) -> dict[str, list[dict[str, Any]]]:
    """Everything that is stored, but who asked."""
    tables = await door.sql("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    names = {str(row["name"]) for row in tables} - OF_ASKING
    return {name: await door.sql(f'SELECT * FROM "{name}"') for name in sorted(names)}


async def log_in(door: Door, role: str) -> str:
    """The token of the forms; the cookie is the client's."""
    form = {"name": role, "password": PASSWORD, "next": "/"}
    assert (await door.client.post("/login", data=form, headers=OWN)).status_code == 303
    return csrf_of(str(door.client.cookies["homing_session"]))


# ── what is walked ───────────────────────────────────────────────────────────────────────────────


async def test_the_walk_comes_to_all_that_the_desk_offers(door: Door) -> None:
    """By where the menu and the documents lead; whatever else there is, is walked as well."""
    walked = {path for _, path, _ in routes(door)}
    await log_in(door, "admin")
    page = (await door.client.get("/", headers={"Accept": "text/html"})).text
    menu = set(re.findall(r'<li><a href="(/[a-z]*)"', page))
    assert len(menu) >= 15
    assert menu <= walked
    answered = {"/events", "/static/{file_path}", "/metrics", "/openapi.json", "/api/messages", "/api/bulk"}
    assert answered | {"/api/overview", "/api/alerts", "/api/audit", "/api/access/me"} <= walked


def test_the_short_list_of_open_routes_is_the_one_that_is_written_down() -> None:
    assert listed_after("Open to everybody are, and nothing else") == {
        path.replace("{file_path}", "…") for path in OPEN
    }
    assert len(OPEN) <= 8, "a short list"


def listed_after(words: str) -> set[str]:
    """The paths in a paragraph of the document about access."""
    paragraph = (ROOT / "docs/access.md").read_text().split(words, 1)[1].split("\n\n")[0]
    return set(re.findall(r"`(/[^`]+)`", paragraph))


async def test_what_any_key_may_call_is_written_down(door: Door) -> None:
    known = {(method, path) for method, path, opt in routes(door) if opt.get("scope") == "known"}
    # The document is served under three addresses.
    called = {re.sub(r"^/openapi.json/.*", "/openapi.json", path) for _, path in known}
    assert called == listed_after("Any key or login that counts")
    assert {path for method, path in known if method not in READING} == {*ASKS_LATER, *ONE_S_OWN}


# ── keys and sessions ────────────────────────────────────────────────────────────────────────────


async def test_a_session_that_does_not_count_opens_nothing(door: Door) -> None:
    """One that nobody gave, one that was ended, one whose time is over."""
    await log_in(door, "admin")
    closed = str(door.client.cookies["homing_session"])
    await door.client.post("/logout", data={"csrf": csrf_of(closed)}, headers=OWN)
    await log_in(door, "admin")
    late = str(door.client.cookies["homing_session"])
    door.client.cookies.clear()
    await door.sql("UPDATE homing_session SET created_at = '2020-01-01T00:00:00.000Z' RETURNING hash")
    before = await contents(door)
    for token in ("A" * 43, closed, late):
        # A form's token that fits, too: whoever stole a session may have stolen that with it.
        headers = {**OWN, "Cookie": f"homing_session={token}", "X-CSRF-Token": csrf_of(token)}
        for method, path, opt in routes(door):
            # What this machine itself may read without anything, it may read with anything.
            if path not in OPEN and not opt.get("local"):
                answer = await door.client.request(method, filled_in(path), headers=headers)
                assert answer.status_code == 401, (method, path, answer.text)
    assert await contents(door) == before


async def test_a_viewer_changes_nothing(door: Door) -> None:
    csrf = await log_in(door, "viewer")
    before = await contents(door)
    for method, path in changes(door):
        if path in {*OPEN, *ONE_S_OWN, *ASKS_LATER}:
            continue
        headers = {**OWN, "X-CSRF-Token": csrf}
        answer = await door.client.request(method, filled_in(path), headers=headers, json={})
        assert answer.status_code == 403, (method, path, answer.text)
        assert "needs the scope" in answer.json()["error"]["message"]
    assert await contents(door) == before


async def test_what_asks_for_a_scope_later_does_ask(door: Door) -> None:
    """A key that may do everything but change mails changes no mail, by whatever way."""
    key = await door.key(*(EVERYTHING - {"mail:operate"}))
    allowed = await door.key("desk:read", "mail:read", "mail:operate")
    verbs = ("requeue", "cancel", "send-now")
    line = "status:dead lane:mail_outbox"
    ordered = await door.ask(
        "POST", "/api/bulk", allowed, json={"verb": "requeue", "query": line, "dryRun": False}
    )
    assert ordered.status_code == 202, ordered.text
    run = ordered.json()["id"]
    before = await contents(door)
    calls: list[tuple[str, dict[str, Any]]] = [
        *((f"/api/messages/outbox_1/{verb}", {}) for verb in verbs),
        *((f"/messages/outbox_1/{verb.replace('-', '_')}", {"data": {}}) for verb in verbs),
        ("/messages/act", {"data": {"verb": "requeue", "id": "outbox_1"}}),
        ("/bulk", {"data": {"verb": "requeue", "q": line}}),
        ("/api/bulk", {"json": {"verb": "requeue", "query": line, "dryRun": False}}),
        (f"/bulk/{run}/cancel", {"data": {}}),
        (f"/api/bulk/{run}/cancel", {}),
    ]
    for path, body in calls:
        answer = await door.ask("POST", path, key, **body)
        assert answer.status_code == 403, (path, answer.text)
        assert "mail:operate" in answer.text, path
    assert await contents(door) == before
    walked = {re.sub(r"outbox_1|\b\d+\b", "ID", path) for path, _ in calls}
    meant = {re.sub(r"\{verb\}", "requeue", re.sub(r"\{\w*id\}", "ID", path)) for path in ASKS_LATER}
    assert meant <= walked


# ── other sites ──────────────────────────────────────────────────────────────────────────────────


async def test_a_forged_origin_changes_nothing_anywhere(door: Door) -> None:
    """With the cookie and the token of the form, and with a key: on every route that changes something."""
    csrf, key = await log_in(door, "admin"), await door.key()
    silent = [{**headers, "X-CSRF-Token": csrf} for headers in SILENT]
    told_by_cookie = [*silent, *({**forged, "X-CSRF-Token": csrf} for forged in FORGED)]
    told_by_key = [{**forged, "Authorization": f"Bearer {key}"} for forged in FORGED]
    before = await contents(door)
    for method, path in changes(door):
        if path in BY_MAIL:
            continue
        for headers in (*told_by_cookie, *told_by_key):
            if path not in OPEN or headers not in silent:
                answer = await door.client.request(method, filled_in(path), headers=headers)
                assert answer.status_code == 403, (method, path, headers, answer.text)
    assert await contents(door) == before
    assert (await door.client.get("/api/access/me")).status_code == 200, "and nobody was logged out"


async def test_a_missing_token_changes_nothing_anywhere(door: Door) -> None:
    """From a page of ours, as far as the browser says; as a form and as JSON."""
    await log_in(door, "admin")
    bodies: tuple[dict[str, Any], ...] = ({"data": {"csrf": ""}}, {"data": {"csrf": "A" * 43}}, {"json": {}})
    before = await contents(door)
    for method, path in changes(door):
        if path in OPEN:
            continue
        for body in bodies:
            answer = await door.client.request(method, filled_in(path), headers=OWN, **body)
            assert answer.status_code == 403, (method, path, body, answer.text)
            assert "form is too old" in answer.text
    assert await contents(door) == before


async def test_without_keys_another_site_reaches_nothing_of_a_loopback(sqlite_url: str) -> None:
    """Neither by a form nor by a name of its own that leads to 127.0.0.1."""
    async with opened_door(sqlite_url) as door:
        before = await contents(door)
        for method, path, _ in routes(door):
            if path in BY_MAIL:
                continue
            rebound = await door.client.request(method, filled_in(path), headers={"Host": "evil.example"})
            assert rebound.status_code == 403, (method, path, rebound.text)
            if method not in READING:
                for forged in FORGED:
                    answer = await door.client.request(method, filled_in(path), headers=forged)
                    assert answer.status_code == 403, (method, path, forged, answer.text)
        assert await contents(door) == before


async def test_what_comes_by_mail_changes_nothing_without_its_token(door: Door) -> None:
    before = await contents(door)
    for method, path in changes(door):
        if path in BY_MAIL:
            for forged in FORGED:
                answer = await door.client.request(method, filled_in(path), headers=forged)
                assert 400 <= answer.status_code < 500, (method, path, answer.text)
    assert await contents(door) == before
