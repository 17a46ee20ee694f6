"""People: logging in, what another site cannot make their browser do, and logging out."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.access.desk import CHEAP, PASSWORD
from tests.http.door import Door, opened_door, url_with_tables

from homing.access.login import LoggedIn
from homing.access.passwords import Passwords
from homing.access.sessions import csrf_of

OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return url_with_tables(tmp_path)


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    async with opened_door(sqlite_url) as door:
        await with_people(door)
        yield door


async def with_people(door: Door) -> None:
    access = door.homing.access
    access.users._passwords = access.log_in._passwords = Passwords(CHEAP)
    for role in ("viewer", "operator", "admin"):
        await access.users.add(role, PASSWORD, role, by="cli:test")
    access._looked = -100.0


async def log_in(
    door: Door, name: str = "operator", password: str = PASSWORD, **options: Any
) -> httpx.Response:
    form = {"name": name, "password": password, "next": options.pop("next", "/")}
    return await door.client.post("/login", data=form, headers={**OWN, **options})


def token_of(door: Door) -> str:
    return str(door.client.cookies["homing_session"])


async def mail_of(door: Door) -> int:
    (id,) = await door.insert()
    return id


# ── in ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_browser_is_shown_the_login_and_led_on(door: Door) -> None:
    asked = await door.client.get("/docs", headers={"Accept": "text/html,*/*"})
    assert asked.status_code == 401
    assert '<input type="hidden" name="next" value="/docs">' in asked.text
    assert "<script" not in asked.text
    assert "default-src 'none'" in asked.headers["content-security-policy"]
    assert asked.headers["cache-control"] == "no-store"
    for name in re.findall(r'(?:href|src)="(/[^"]+)"', asked.text):
        assert (await door.client.get(name)).status_code == 200, name
    answer = await log_in(door, next="/docs")
    assert (answer.status_code, answer.headers["location"]) == (303, "/docs")
    shown = await door.client.get("/docs")
    assert (shown.status_code, shown.headers["cache-control"]) == (200, "no-store")
    me = (await door.client.get("/api/access/me")).json()
    assert (me["kind"], me["name"], me["role"]) == ("user", "operator", "operator")


async def test_the_cookie_on_plain_http_is_what_it_can_be(door: Door) -> None:
    cookie = (await log_in(door)).headers["set-cookie"]
    name, _, rest = cookie.partition("=")
    assert name == "homing_session"
    assert rest.split("; ", 1)[1] == "HttpOnly; Path=/; SameSite=strict"


async def test_behind_tls_the_cookie_is_bound_to_host_and_https(sqlite_url: str) -> None:
    async with opened_door(sqlite_url, base_url="https://homing.example") as door:
        await with_people(door)
        there = {"Host": "homing.example"}
        wrong_scheme = await log_in(door, **there, Origin="http://homing.example")
        assert wrong_scheme.status_code == 403
        cookie = (await log_in(door, **there, Origin="https://homing.example")).headers["set-cookie"]
        assert re.fullmatch(r"__Host-homing=[\w-]{43}; HttpOnly; Path=/; SameSite=strict; Secure", cookie)
        given = {**there, "Cookie": cookie.partition(";")[0]}
        assert (await door.client.get("/docs", headers=given)).status_code == 200


async def test_over_plain_http_from_elsewhere_no_password_is_taken(sqlite_url: str) -> None:
    async with opened_door(sqlite_url, host="0.0.0.0") as door:
        await with_people(door)
        answer = await log_in(door, Host="homing.internal:8080")
        assert answer.status_code == 403
        assert "https" in answer.json()["error"]["message"]


async def test_a_wrong_login_is_a_401_that_does_not_say_what_was_wrong(door: Door) -> None:
    for name, password in (("operator", "wrong password"), ("nobody", PASSWORD), ("", ""), ("operator", "")):
        answer = await log_in(door, name, password)
        assert answer.status_code == 401
        assert "do not belong together" in answer.text
        assert "set-cookie" not in answer.headers


async def test_who_guesses_has_to_wait(door: Door) -> None:
    statuses = [(await log_in(door, password="wrong password")).status_code for _ in range(5)]
    assert statuses == [401] * 5
    for _ in range(20):
        answer = await log_in(door, password="wrong password")
        if answer.status_code == 429:
            break
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert "Too many attempts" in answer.text


async def test_a_login_leads_nowhere_else(door: Door) -> None:
    elsewhere = (
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "",
        "/a\nb",
        "/日本",
    )
    for next in elsewhere:
        assert (await log_in(door, next=next)).headers["location"] == "/", next


@pytest.mark.parametrize(
    "path", ["/messages/%E6%97%A5%E6%9C%AC", "/messages?q=to%3A%C3%BC*+%26", "/messages/a%3Fb%23%22"]
)
async def test_a_login_leads_on_to_what_had_to_be_quoted(door: Door, path: str) -> None:
    asked = await door.client.get(path, headers={"Accept": "text/html"})
    assert asked.status_code == 401
    (next,) = re.findall(r'name="next" value="([^"]*)"', asked.text)
    assert unescape(next) == path
    assert (await log_in(door, next=unescape(next))).headers["location"] == path
    chosen = await door.client.post(
        "/theme", data={"csrf": csrf_of(token_of(door)), "next": path}, headers=OWN
    )
    assert chosen.headers["location"] == path


async def test_a_login_makes_a_new_session_of_what_was_there(door: Door) -> None:
    await log_in(door)
    first = token_of(door)
    await log_in(door)
    assert token_of(door) != first
    assert len(await door.sql("SELECT hash FROM homing_session")) == 1


async def test_a_cookie_that_nobody_gave_is_none(door: Door) -> None:
    for cookie in ("x", "A" * 43, "A" * 5000, '"; DROP TABLE'):
        response = await door.client.get("/api/mail", headers={"Cookie": f"homing_session={cookie}"})
        assert response.status_code == 401


# ── roles ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-15")
async def test_a_role_opens_what_is_its_business(door: Door) -> None:
    for role, statuses in (
        ("viewer", (200, 403, 403)),
        ("operator", (200, 200, 403)),
        ("admin", (200, 200, 201)),
    ):
        id = await mail_of(door)
        await log_in(door, role)
        headers = {**OWN, "X-CSRF-Token": csrf_of(token_of(door))}
        given = (
            (await door.client.get(f"/api/mail/outbox_{id}")).status_code,
            (await door.client.post(f"/api/mail/outbox_{id}/cancel", headers=headers)).status_code,
            (await door.client.post("/api/admin/dispatch/credentials", json={}, headers=headers)).status_code,
        )
        assert given == statuses, role


# ── other sites ──────────────────────────────────────────────────────────────────────────────────


FORGED: tuple[Mapping[str, str], ...] = (
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1"},
    {},
)


async def test_a_forged_or_missing_origin_changes_nothing(door: Door) -> None:
    """Even with the cookie and the token of the form."""
    id = await mail_of(door)
    await log_in(door)
    csrf = csrf_of(token_of(door))
    for headers in FORGED:
        calls = (
            door.client.post(f"/api/mail/outbox_{id}/cancel", headers={**headers, "X-CSRF-Token": csrf}),
            door.client.post("/logout", headers=headers, data={"csrf": csrf}),
            door.client.post("/login", headers=headers, data={"name": "admin", "password": PASSWORD}),
        )
        assert [(await call).status_code for call in calls] == [403, 403, 403], headers
    assert (await door.row(id))["status"] == "queued"
    assert (await door.client.get("/docs")).status_code == 200, "still logged in"


async def test_a_missing_or_wrong_token_changes_nothing(door: Door) -> None:
    id = await mail_of(door)
    await log_in(door)
    own = {**OWN, "Origin": door.address}
    for token in (None, "", "x", "A" * 43, "%C3%A9"):
        given = {**own, **({"X-CSRF-Token": token} if token is not None else {})}
        response = await door.client.post(f"/api/mail/outbox_{id}/cancel", headers=given)
        assert response.status_code == 403
        form = {"csrf": token} if token is not None else {}
        assert (await door.client.post("/logout", headers=own, data=form)).status_code == 403
    assert (await door.row(id))["status"] == "queued"
    refused = [one for one in await door.audit() if one["action"] == "mail.cancel"]
    assert [(one["who"], one["outcome"]) for one in refused] == [("user:operator", "refused")] * 5


async def test_the_token_of_another_session_is_no_good(door: Door) -> None:
    id = await mail_of(door)
    other = await door.homing.access.log_in("admin", PASSWORD, None)
    assert isinstance(other, LoggedIn)
    await log_in(door)
    headers = {**OWN, "X-CSRF-Token": csrf_of(other.token)}
    assert (await door.client.post(f"/api/mail/outbox_{id}/cancel", headers=headers)).status_code == 403


async def test_a_page_of_ours_may_act(door: Door) -> None:
    """By a header, as scripts do; a page without a referrer says null for its origin."""
    await log_in(door)
    for headers in (OWN, {"Origin": door.address}, {**OWN, "Origin": "null"}):
        id = await mail_of(door)
        given = {**headers, "X-CSRF-Token": csrf_of(token_of(door))}
        response = await door.client.post(f"/api/mail/outbox_{id}/cancel", headers=given)
        assert response.status_code == 200, headers
        entry = (await door.audit())[-1]
        assert (entry["who"], entry["object"], entry["outcome"]) == ("user:operator", f"outbox_{id}", "done")


# ── out ──────────────────────────────────────────────────────────────────────────────────────────


async def test_who_logs_out_is_out_everywhere(door: Door) -> None:
    await log_in(door)
    token = token_of(door)
    answer = await door.client.post("/logout", headers=OWN, data={"csrf": csrf_of(token)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    stolen = {"Cookie": f"homing_session={token}"}
    assert (await door.client.get("/docs", headers=stolen)).status_code == 401
    told = [(one["who"], one["action"]) for one in await door.audit()]
    assert told == [("user:operator", "session.open"), ("user:operator", "session.close")]


ENDED: tuple[tuple[str, str, str], ...] = (
    # Where the form goes, where the browser says that it was, and where one is after the login.
    ("/workers/pause", "/workers", "/workers"),
    ("/bulk", "/bulk/new?q=status%3Adead&verb=requeue", "/bulk/new?q=status%3Adead&verb=requeue"),
    ("/messages/act", "/messages?q=to%3A%C3%BC", "/messages?q=to%3A%C3%BC"),
    # A form that was refused is shown where only forms go.
    ("/workers/pause", "/workers/pause", "/workers"),
    ("/messages/act", "/messages/act", "/messages"),
    ("/targets/limits", "/targets/one?id=1", "/targets/one?id=1"),
    ("/targets/limits", "", "/targets"),
    ("/bulk", "", "/bulk"),
    ("/bulk/7/cancel", "", "/bulk/7"),
    ("/workers/pause", "//evil.example/x", "/workers"),
)


async def test_a_form_of_a_session_that_ended_gets_the_login_and_does_nothing(door: Door) -> None:
    await log_in(door)
    await door.homing.access.users.end_sessions("operator", by="user:admin")
    page = {**OWN, "Accept": "text/html", "Origin": door.address}
    form = {"csrf": csrf_of(token_of(door)), "reason": "canary-typed", "password": "canary-secret"}
    for action, place, expected in ENDED:
        came = {"Referer": f"{door.address}{place}"} if place else {}
        answer = await door.client.post(action, data=form, headers={**page, **came})
        assert answer.status_code == 401
        assert "Your session has ended. Nothing was done" in answer.text
        assert "hom_" not in answer.text, "a key is for programs"
        assert "canary" not in answer.text
        (next,) = re.findall(r'name="next" value="([^"]*)"', answer.text)
        assert unescape(next) == expected, (action, place)
    assert [one["who"] for one in await door.audit()] == ["user:operator", "user:admin"], "nothing else"


async def test_only_a_page_of_ours_is_come_back_to(door: Door) -> None:
    elsewhere = ("https://evil.example/workers", f"{door.address}.evil.example/targets", "x", "http://")
    for place in elsewhere:
        headers = {**OWN, "Accept": "text/html", "Referer": place}
        answer = await door.client.post("/workers/pause", headers=headers)
        assert 'name="next" value="/workers"' in answer.text, place
    foreign = {"Sec-Fetch-Site": "cross-site", "Accept": "text/html"}
    assert (await door.client.post("/workers/pause", headers=foreign)).status_code == 403


async def test_a_program_without_a_session_is_told_of_keys(door: Door) -> None:
    for path, accept in (("/api/mail", "text/html"), ("/workers/pause", "*/*")):
        answer = await door.client.post(path, headers={**OWN, "Accept": accept})
        assert answer.status_code == 401
        assert "Authorization: Bearer hom_" in answer.json()["error"]["message"]


async def test_pages_tell_their_own_site_where_a_form_was_and_no_other(door: Door) -> None:
    await log_in(door)
    assert (await door.client.get("/workers")).headers["referrer-policy"] == "same-origin"


async def test_no_password_and_no_cookie_is_in_any_log(door: Door) -> None:
    await log_in(door, password="canary-password-wrong")
    await log_in(door)
    token = token_of(door)
    await door.sql("ALTER TABLE mail_outbox RENAME TO elsewhere")
    assert (await door.client.get("/api/mail")).status_code == 500
    kept = [await door.sql(f"SELECT * FROM homing_{table}") for table in ("audit", "session", "user")]
    for canary in ("canary", PASSWORD, token, csrf_of(token)):
        assert canary not in door.log.text
        assert canary not in str(kept)
