"""Forms of pages that come from elsewhere, or from who may not, change nothing; each is tried."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from msgspec import Struct
from tests.browser.places import routes_of
from tests.browser.seed import DESERTER, WORKER, Seeded
from tests.browser.tab import Desk

from homing.access.scopes import Role

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

#: Those that need no login. The token in their link is asked for, or they are the login.
OPEN = {"/login", "/confirm", "/unsubscribe", "/subscriptions/{id:int}"}
#: What a look leaves behind, and what is written about those who are refused.
NOT_COMPARED = {"homing_audit", "homing_session", "homing_key", "homing_login_failure", "sqlite_sequence"}
OWN = {"Sec-Fetch-Site": "same-origin"}


class Form(Struct, frozen=True):
    """One that changes something when the right person sends it."""

    path: str
    fields: Mapping[str, Any] = {}
    #: Who may least of those who may.
    role: Role = "operator"
    #: Whether what it changes is to be seen in the database, outside of sessions.
    is_stored: bool = True


def forms(seeded: Seeded) -> Mapping[str, Form]:
    target = {"target": seeded.paused, "credentials": ""}
    credentials = {"id": seeded.credentials}
    subscription = {"id": seeded.subscription}
    return {
        "/messages/act": Form("/messages/act", {"verb": "requeue", "id": seeded.ids["job.gone.0"]}),
        "/messages/{id:str}/{verb:str}": Form(f"/messages/{seeded.ids['job.dead']}/requeue"),
        "/bulk": Form("/bulk", {"q": "status:dead", "verb": "requeue"}),
        "/bulk/{id:int}/cancel": Form(f"/bulk/{seeded.run}/cancel"),
        "/targets/resume": Form("/targets/resume", target),
        "/targets/pause": Form("/targets/pause", {**target, "span": "1h", "reason": "x"}),
        "/targets/limits": Form("/targets/limits", {**target, "max_concurrency": "3"}),
        "/targets/test": Form(
            "/targets/test", {**target, "url": f"{seeded.paused}/shop/orders"}, is_stored=False
        ),
        "/credentials/create": Form("/credentials/create", {"name": "x", "secret": "yes"}, "admin"),
        "/credentials/rotate": Form("/credentials/rotate", {**credentials, "grace": "1 day"}, "admin"),
        "/credentials/allow": Form(
            "/credentials/allow", {**credentials, "targets": "https://partner.example"}, "admin"
        ),
        "/credentials/end-grace": Form("/credentials/end-grace", credentials, "admin"),
        "/credentials/delete": Form(
            "/credentials/delete", {**credentials, "sure": "yes", "force": "yes"}, "admin"
        ),
        "/subscriptions/pause": Form("/subscriptions/pause", subscription),
        "/subscriptions/resume": Form("/subscriptions/resume", subscription),
        "/subscriptions/end": Form("/subscriptions/end", {**subscription, "sure": "yes"}),
        "/workers/pause": Form("/workers/pause", {"scope": "worker", "name": WORKER}),
        "/workers/resume": Form("/workers/resume", {"scope": "worker", "name": WORKER}),
        "/workers/release": Form("/workers/release", {"name": DESERTER}),
        "/router": Form(
            "/router", {"version": "0", "connections": "1", "pool_a_0": "x", "pool_b_0": "3"}, "admin"
        ),
        "/alerts/silence": Form("/alerts/silence", {"cause": "dead:dispatch_jobs:http_410", "span": "1h"}),
        "/alerts/test": Form("/alerts/test"),
        "/health/run": Form("/health/run", is_stored=False),
        "/access/users": Form("/access/users", {"name": "new", "role": "admin"}, "admin"),
        "/access/users/role": Form("/access/users/role", {"name": "new", "role": "viewer"}, "admin"),
        "/access/users/password": Form("/access/users/password", {"name": "new"}, "admin"),
        "/access/users/end-sessions": Form(
            "/access/users/end-sessions", {"name": "new"}, "admin", is_stored=False
        ),
        "/access/users/remove": Form("/access/users/remove", {"name": "new"}, "admin"),
        "/access/keys": Form("/access/keys", {"name": "x", "scope": "ops", "life": "90 days"}, "admin"),
        "/access/keys/revoke": Form("/access/keys/revoke", {"id": seeded.key}, "admin"),
        "/theme": Form("/theme", {"theme": "dark", "next": "/"}, "viewer", is_stored=False),
        "/logout": Form("/logout", {}, "viewer", is_stored=False),
    }


def stored(desk: Desk) -> dict[str, list[Any]]:
    """Everything in the database, but what is written of those who are refused."""
    path = urlsplit(desk.door.homing.settings.database_url).path[1:]
    with closing(sqlite3.connect(path)) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: sorted(map(repr, database.execute(f"SELECT * FROM {name}")))
            for name in tables
            if name not in NOT_COMPARED
        }


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


class Sender:
    def __init__(self, client: httpx.AsyncClient, desk: Desk) -> None:
        self._client, self._desk = client, desk

    async def send(self, role: Role, form: Form, csrf: str | None, headers: Mapping[str, str]) -> int:
        fields = {**form.fields, **({"csrf": csrf} if csrf is not None else {})}
        cookie = {"Cookie": f"homing_session={self._desk.seeded.cookies[role]}"}
        answer = await self._client.post(form.path, data=fields, headers={**cookie, **headers})
        return answer.status_code

    def forgeries(self, role: Role) -> Iterator[tuple[str, str | None, Mapping[str, str]]]:
        """What a page elsewhere could have a browser send."""
        seeded, elsewhere = self._desk.seeded, {"Origin": "https://evil.example"}
        own = seeded.csrf(role)
        others = seeded.csrf("viewer" if role != "viewer" else "admin")
        yield "no token", None, OWN
        yield "an empty token", "", OWN
        yield "somebody else's token", others, OWN
        yield "from elsewhere", own, {"Sec-Fetch-Site": "cross-site", **elsewhere}
        yield "from elsewhere, an old browser", own, elsewhere
        yield "from a sister of our host", own, {"Sec-Fetch-Site": "same-site"}
        yield "from nobody knows where", own, {"Origin": "null"}
        yield "all of it", None, elsewhere


async def test_no_form_is_forgotten(desk: Desk) -> None:
    served = {path for path, _ in routes_of(desk.door.app, "POST")}
    assert served - OPEN == set(forms(desk.seeded)), "give this file an example of each form"


async def test_forged_forms_and_those_of_viewers_change_nothing(desk: Desk) -> None:
    before = stored(desk)
    async with httpx.AsyncClient(base_url=desk.door.address, timeout=30) as client:
        sender = Sender(client, desk)
        for route, form in forms(desk.seeded).items():
            for how, csrf, headers in sender.forgeries(form.role):
                assert await sender.send(form.role, form, csrf, headers) == 403, (route, how)
            if form.role != "viewer":
                status = await sender.send("viewer", form, desk.seeded.csrf("viewer"), OWN)
                assert status == 403, (route, "a viewer")
            if form.role == "admin":
                status = await sender.send("operator", form, desk.seeded.csrf("operator"), OWN)
                assert status == 403, (route, "an operator")
    assert changed(before, stored(desk)) == set()


async def test_the_same_forms_do_something_when_they_are_right(desk: Desk) -> None:
    """So it was not for something else that they were refused. Runs last: it changes all."""
    async with httpx.AsyncClient(base_url=desk.door.address, timeout=30) as client:
        sender = Sender(client, desk)
        for route, form in forms(desk.seeded).items():
            before = stored(desk) if form.is_stored else {}
            status = await sender.send(form.role, form, desk.seeded.csrf(form.role), OWN)
            assert status in {200, 303}, (route, status)
            if form.is_stored:
                assert changed(before, stored(desk)), route
