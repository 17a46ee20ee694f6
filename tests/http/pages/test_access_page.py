"""Keys and users on the desk: shown once, changed by admins, and nobody locks themselves out."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest
from tests.http.door import Door, opened_door
from tests.http.pages.visitor import OWN, Visitor, door_with_people, visiting

from homing.access.scopes import SCOPES

ACTIONS = (
    "/access/keys", "/access/keys/revoke", "/access/users", "/access/users/password", "/access/users/role",
    "/access/users/end-sessions", "/access/users/remove",
)  # fmt: skip


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    async with door_with_people(sqlite_url) as door:
        yield door


@pytest.fixture
async def admin(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "admin") as visitor:
        yield visitor


def secret_in(page: str) -> str:
    found = re.search(r'<pre id="secret"[^>]*>([^<]+)</pre>', page)
    assert found is not None, page
    return unescape(found[1])


async def whence(door: Door, who: str) -> set[str | None]:
    """The addresses of all that somebody did."""
    return {row["address"] for row in await door.homing.access.audit.page(who=who, limit=500)}


async def can_log_in(door: Door, name: str, password: str) -> bool:
    async with httpx.AsyncClient(base_url=door.address) as client:
        answer = await client.post("/login", data={"name": name, "password": password}, headers=OWN)
        return answer.status_code == 303


async def test_a_key_is_shown_once_works_and_is_revoked(door: Door, admin: Visitor) -> None:
    page = await admin.read("/access")
    for scope, meaning in SCOPES.items():
        assert scope in page
        assert meaning in unescape(page)
    form = {"name": "shop <b>", "life": "7 days", "rate": "5", "scope": ["mail:read", "jobs:read"]}
    answer = await admin.send("/access/keys", form)
    assert answer.status_code == 200
    assert "no-store" in answer.headers["cache-control"]
    key = secret_in(answer.text)
    assert (await door.ask("GET", "/api/mail", key)).status_code == 200
    assert (await door.ask("POST", "/api/mail", key, json={})).status_code == 403
    page = await admin.read("/access")
    assert key not in page
    assert "shop &lt;b&gt;" in page
    assert "in 6 d" in page
    id = key.split("_")[1]
    assert "is revoked" in await admin.done("/access/keys/revoke", id=id)
    assert (await door.ask("GET", "/api/mail", key)).status_code == 401
    assert "revoked already" in await admin.done("/access/keys/revoke", id=id)
    told = [(one["who"], one["action"], one["outcome"]) for one in await door.audit()][1:]
    assert [one for one in told if one[0] == "user:admin"] == [
        ("user:admin", "keys.create", "done"),
        ("user:admin", "keys.revoke", "done"),
        ("user:admin", "keys.revoke", "refused"),
    ]
    assert await whence(door, "user:admin") == {"127.0.0.1"}
    for wrong, why in (
        ({"name": "x"}, "needs a scope"),
        ({"name": "", "scope": "ops"}, "needs a name"),
        ({"name": "x", "scope": "nonsense"}, "no scope"),
        ({"name": "x", "scope": "ops", "rate": "many"}, "write a number"),
    ):
        assert why in await admin.refused("/access/keys", **wrong)


async def test_users_are_added_changed_and_removed(door: Door, admin: Visitor) -> None:
    answer = await admin.send("/access/users", {"name": "Ann", "role": "viewer", "password": ""})
    password = secret_in(answer.text)
    assert await can_log_in(door, "ann", password)
    assert "can log in" in await admin.done("/access/users", name="bo", role="operator", password="x" * 12)
    assert "already" in await admin.refused("/access/users", name="bo", role="operator", password="x" * 12)
    assert "12 to" in await admin.refused("/access/users", name="cy", role="viewer", password="short")
    wrong = {"name": "cy", "role": "king", "password": "x" * 12}
    assert "a role is one of" in await admin.refused("/access/users", **wrong)
    assert "is operator now" in await admin.done("/access/users/role", name="ann", role="operator")
    new = secret_in((await admin.send("/access/users/password", {"name": "ann"})).text)
    assert not await can_log_in(door, "ann", password)
    assert await can_log_in(door, "ann", new)
    assert "is removed" in await admin.done("/access/users/remove", name="ann")
    assert not await can_log_in(door, "ann", new)
    assert "no user" in await admin.done("/access/users/remove", name="ann")
    done = {one["action"] for one in await door.audit() if one["who"] == "user:admin"}
    assert done >= {"users.add", "users.role", "users.passwd", "users.remove"}
    assert await whence(door, "user:admin") == {"127.0.0.1"}
    for hidden in (password, new):
        assert hidden not in door.log.text
        assert hidden not in str(await door.audit())


async def test_sessions_are_ended_everywhere_and_nobody_takes_their_own_rights(
    door: Door, admin: Visitor
) -> None:
    async with visiting(door, "operator") as operator:
        await operator.read("/targets")
        assert "logged out everywhere" in await admin.done("/access/users/end-sessions", name="operator")
        assert await whence(door, "user:admin") == {"127.0.0.1"}
        assert await door.sql("SELECT 1 FROM homing_session WHERE user_name = 'operator'") == []
        # Other processes remember a session for two seconds; this one is made to forget it now.
        door.homing.access.sessions._known._entries.clear()
        assert (await operator.client.get("/targets")).status_code == 401
    assert "not to yourself" in await admin.refused("/access/users/role", name="admin", role="viewer")
    assert "not to yourself" in await admin.done("/access/users/remove", name="admin")
    page = await admin.read("/access")
    assert '<span class="tag">you</span>' in page


async def test_only_admins_come_here(door: Door) -> None:
    for role in ("viewer", "operator"):
        async with visiting(door, role) as visitor:
            assert (await visitor.client.get("/access")).status_code == 403
            assert 'href="/access"' not in await visitor.read("/targets")
            for action in ACTIONS:
                answer = await visitor.send(action, {"name": "admin", "role": "viewer", "id": "x"})
                assert answer.status_code == 403
    assert len(await door.homing.access.users.list()) == 3


async def test_before_anybody_is_asked_it_says_whom_to_add_first(sqlite_url: str) -> None:
    async with opened_door(sqlite_url) as door:
        page = (await door.client.get("/access")).text
        assert "add yourself as an admin first" in page
