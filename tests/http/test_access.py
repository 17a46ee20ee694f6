"""Who gets in: every route of the application, with every kind of key that does not count."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from litestar import get, post
from tests.http.door import Door, opened_door, url_with_tables
from tests.outbox import bench

from homing.access.key_text import make_key
from homing.access.scopes import EVERYTHING, SCOPES
from homing.http.access import OPEN, AccessMiddleware, handlers_of
from homing.http.app import build_app
from homing.http.guard import Site
from homing.http.openapi import shown_path
from homing.http.server import serving
from homing.telemetry import Telemetry

MAIL = {"to": "ann@example.org", "subject": "Hi", "text": "Hello."}
PARAMETER = re.compile(r"\{\w+\}")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return url_with_tables(tmp_path)


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    """Listens, as far as it knows, where others can reach it."""
    async with opened_door(sqlite_url, host="0.0.0.0") as door:
        yield door


def operations(door: Door) -> Iterator[tuple[str, str, str | None]]:
    """Method, path and scope of everything that the application answers to."""
    for path, method, handler in handlers_of(door.app):
        yield method, path, handler.opt.get("scope")


# ── every route ──────────────────────────────────────────────────────────────────────────────────


async def test_every_route_but_the_short_list_wants_a_key_that_counts(door: Door) -> None:
    gone, late = await door.key(), await door.key(expires_in=60)
    await door.homing.access.keys.revoke(gone.split("_")[1], by="cli:test")
    await door.sql(
        "UPDATE homing_api_key SET expires_at = created_at WHERE id = :id RETURNING id", id=late.split("_")[1]
    )
    wrong = make_key().text
    answered = set()
    for (method, path, _), key in itertools.product(operations(door), (None, wrong, gone, late)):
        response = await door.ask(method, PARAMETER.sub("1", path), key, json={} if method != "GET" else None)
        if path in OPEN:
            answered.add(path)
            continue
        assert response.status_code == 401, (method, path, response.text)
        assert response.headers["www-authenticate"].startswith('Bearer realm="homing"')
        assert response.json()["error"]["code"] == "UNAUTHORIZED"
    assert answered == set(OPEN)


async def test_every_route_wants_its_scope_and_says_which(door: Door) -> None:
    """A key that may do everything else is refused."""
    but_one = {scope: await door.key(*(EVERYTHING - including(scope))) for scope in SCOPES}
    seen = set()
    for method, path, scope in operations(door):
        if path in OPEN or scope in {None, "known"}:
            continue
        seen.add(scope)
        response = await door.ask(
            method, PARAMETER.sub("1", path), but_one[str(scope)], json={} if method != "GET" else None
        )
        assert response.status_code == 403, (method, path, response.text)
        assert f"needs the scope {scope}," in response.json()["error"]["message"]
    assert seen == set(SCOPES), "a scope that opens nothing"


def including(scope: str) -> set[str]:
    return {scope, scope.replace(":read", ":admin")}


async def test_the_document_lists_nothing_that_was_not_walked(door: Door) -> None:
    walked = {
        (method.lower(), shown_path(path, handler.opt)) for path, method, handler in handlers_of(door.app)
    }
    document = (await door.ask("GET", "/openapi.json", await door.key("mail:read"))).json()
    told = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert told
    assert told <= walked
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


async def test_with_its_scope_a_route_answers(door: Door) -> None:
    key = await door.key("mail:write", "mail:read")
    created = await door.ask("POST", "/api/mail", key, json=MAIL)
    assert created.status_code == 201
    assert (await door.ask("GET", "/api/mail/outbox_1", key)).status_code == 200
    assert (await door.ask("POST", "/api/mail/outbox_1/cancel", key)).status_code == 403
    assert (await door.row(1))["status"] == "queued"
    me = (await door.ask("GET", "/api/access/me", key)).json()
    assert (me["kind"], me["name"], me["scopes"]) == ("key", "test", ["mail:read", "mail:write"])


async def test_a_header_that_is_no_key_is_a_401(door: Door) -> None:
    for header in ("", "Bearer", "Basic YTpi", "bearer x", "Bearer \u00e9", "Token hom_x", "x" * 5000):
        response = await door.client.get("/api/mail", headers=[(b"Authorization", header.encode("latin-1"))])
        assert response.status_code == 401, header


async def test_what_is_not_there_is_no_secret_and_what_is_denied_leaks_nothing(door: Door) -> None:
    assert (await door.ask("GET", "/nonsense")).status_code == 404
    assert (await door.ask("GET", "/api/mail/outbox_1")).text == (
        await door.ask("GET", "/api/mail/outbox_2")
    ).text


# ── a route that was forgotten ───────────────────────────────────────────────────────────────────


@get("/forgotten")
async def forgotten() -> None: ...


@get("/misspelt", opt={"scope": "job:read"})
async def misspelt() -> None: ...


@post("/changes", opt={"scope": "jobs:read"})
async def changes() -> None: ...


async def test_an_application_with_a_route_that_forgot_its_scope_is_not_built(sqlite_url: str) -> None:
    async def well() -> None: ...

    mistakes = (
        (forgotten, "declares no scope"),
        (misspelt, "no scope 'job:read'"),
        (changes, "is not enough"),
    )
    async with bench(sqlite_url) as lane:
        health = {"telemetry": Telemetry(), "check_ready": well, "refresh_gauges": well}
        door = AccessMiddleware(lane.homing.access, Site())
        for route, why in mistakes:
            with pytest.raises(RuntimeError, match=f"/{route.fn.__name__}: .*{why}"):
                build_app([route], health, Telemetry(), door=door, static=False)


# ── without keys ─────────────────────────────────────────────────────────────────────────────────


async def test_without_keys_a_loopback_is_open_until_there_is_one(sqlite_url: str) -> None:
    async with opened_door(sqlite_url) as door:
        assert (await door.ask("POST", "/api/mail", json=MAIL)).status_code == 201
        assert (await door.ask("GET", "/")).status_code == 200
        me = (await door.ask("GET", "/api/access/me")).json()
        assert (me["kind"], me["scopes"]) == ("loopback", sorted(SCOPES))
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
            refused = await door.ask("POST", "/api/mail", json=MAIL, headers=headers)
            assert refused.status_code == 403
        assert (await door.ask("GET", "/api/mail", headers={"Host": "evil.example"})).status_code == 403
        key = await door.key("mail:read")
        door.homing.access._looked = -100.0
        assert (await door.ask("GET", "/api/mail")).status_code == 401
        assert (await door.ask("GET", "/api/mail", key)).status_code == 200
        told = [(one["who"], one["action"], one["outcome"]) for one in await door.audit()]
        assert ("loopback", "mail.create", "done") in told
        assert ("loopback", "mail.create", "refused") in told


async def test_an_address_that_others_reach_is_never_open(door: Door) -> None:
    assert (await door.ask("GET", "/api/mail")).status_code == 401
    assert (await door.ask("GET", "/api/mail", headers={"Host": "homing.internal"})).status_code == 401
    assert (await door.ask("GET", "/health/live", headers={"Host": "10.0.0.7:8080"})).status_code == 200


async def test_metrics_are_for_operators_and_for_the_machine_itself(sqlite_url: str) -> None:
    async with bench(sqlite_url) as lane:
        door = Door(lane.homing, lane.log)
        keys = {None: None, "mail:read": await door.key("mail:read"), "ops": await door.key("ops")}
        for site, expected in (
            (Site(), [200, 403, 200]),
            (Site(bound_to_loopback=False), [401, 403, 200]),
            (Site("http://127.0.0.1:1"), [401, 403, 200]),
        ):
            lane.homing._door = lambda site=site: AccessMiddleware(lane.homing.access, site)  # type: ignore[method-assign,misc] # as other settings would
            async with (
                serving(lane.homing.metrics_asgi(), "127.0.0.1", 0) as address,
                httpx.AsyncClient(base_url=address) as door.client,
            ):
                assert [
                    (await door.ask("GET", "/metrics", key)).status_code for key in keys.values()
                ] == expected
                assert (await door.ask("GET", "/health/ready")).status_code == 200


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_that_asks_too_often_is_told_when_to_come_back(door: Door) -> None:
    slow, other = await door.key("mail:read", rate=0.5), await door.key("mail:read")
    first = await door.ask("GET", "/api/mail", slow)
    assert first.status_code == 200
    assert first.headers["ratelimit-policy"] == '"key";q=1;w=2'
    assert first.headers["ratelimit"].startswith('"key";r=0;')
    refused = await door.ask("GET", "/api/mail", slow)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "RATE_LIMITED"
    assert 1 <= int(refused.headers["retry-after"]) <= 3
    assert (await door.ask("GET", "/api/mail", other)).status_code == 200


async def test_the_rate_of_a_key_without_one_is_the_setting(sqlite_url: str) -> None:
    async with opened_door(sqlite_url, host="0.0.0.0", api_rate_per_second=50.0) as door:
        response = await door.ask("GET", "/api/mail", await door.key("mail:read"))
        assert response.headers["ratelimit-policy"] == '"key";q=100;w=2'


async def test_a_body_may_be_64_levels_deep(door: Door) -> None:
    key, wide = await door.key(), ",".join(['"]][["'] * 100)
    for levels, status in ((3, 201), (64, 201), (65, 400), (5000, 400)):
        # Two are the body itself and its metadata.
        deep = "[" * (levels - 2) + "]" * (levels - 2)
        body = f'{{"to": "ann@example.org", "text": "Hi", "metadata": {{"wide": [{wide}], "deep": {deep}}}}}'
        json = {"Content-Type": "application/json"}
        response = await door.ask("POST", "/api/mail", key, content=body, headers=json)
        assert response.status_code == status, (levels, response.text)
        assert ("64 levels" in response.text) == (status == 400)


async def test_bodies_are_limited_in_size_and_kind_but_only_for_those_who_may_ask(door: Door) -> None:
    key, large = await door.key("mail:write"), b'{"to": "' + b" " * (17 * 1024 * 1024)
    json = {"Content-Type": "application/json"}
    assert (await door.ask("POST", "/api/mail", key, content=large, headers=json)).status_code == 413
    assert (await door.ask("POST", "/api/mail", None, content=b"{}", headers=json)).status_code == 401
    text = {"Content-Type": "text/plain"}
    assert (await door.ask("POST", "/api/mail", key, content=b"{}", headers=text)).status_code == 415


async def test_internal_dispatch_keeps_its_own_errors_beside_401_and_403(door: Door) -> None:
    for key, status, code in (
        (None, 401, "UNAUTHORIZED"),
        (await door.key("ops"), 403, "FORBIDDEN"),
    ):
        response = await door.ask("POST", "/internal/dispatch", key, json={})
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    key = await door.key("internal:dispatch")
    response = await door.ask("POST", "/internal/dispatch", key, json={"batchSize": 0})
    assert response.json()["error"]["code"] == "DISPATCH_INVALID_REQUEST"


# ── what is written down ─────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("RTY-15")
async def test_every_change_leaves_an_entry_and_no_look_does(door: Door) -> None:
    key = await door.key()
    await door.ask("POST", "/api/mail", key, json=[MAIL] * 3)
    await door.ask("GET", "/api/mail", key)
    await door.ask("POST", "/api/mail/outbox_1/cancel", key)
    await door.ask("POST", "/api/mail/outbox_1/cancel", key)
    bulk = {"filter": {"status": "ERROR"}, "dryRun": False}
    await door.ask("POST", "/api/dispatch/jobs/requeue", key, json=bulk)
    pause = {"targetUrl": "https://example.org/hook?token=canary", "seconds": 60, "reason": "repairs"}
    await door.ask("POST", "/api/dispatch/targets/pause", key, json=pause)
    entries = await door.audit()
    assert {entry["who"] for entry in entries} == {f"key:{key.split('_')[1]}"}
    assert [(one["action"], one["object"], one["outcome"], one["detail"]) for one in entries] == [
        ("mail.cancel", "outbox_1", "done", {"status": 200}),
        ("mail.cancel", "outbox_1", "refused", {"status": 409}),
        ("dispatch.jobs.requeue_many", None, "done", {"status": 200, **bulk, "matched": 0, "changed": 0}),
        (
            "dispatch.targets.pause",
            None,
            "done",
            {"status": 200, "seconds": 60, "reason": "repairs", "target": "https://example.org:443"},
        ),
        ("mail.create", None, "done", {"calls": 1}),
    ]


async def test_the_log_is_read_by_the_api(door: Door) -> None:
    key = await door.key()
    for number in (1, 2, 3):
        await door.ask("POST", f"/api/mail/outbox_{number}/cancel", key)
    page = (await door.ask("GET", "/api/audit?limit=2", key)).json()
    assert [item["object"] for item in page["items"]] == ["outbox_3", "outbox_2"]
    assert {item["whoName"] for item in page["items"]} == {"test"}
    assert {item["address"] for item in page["items"]} == {"127.0.0.1"}
    more = (await door.ask("GET", f"/api/audit?before={page['next']}", key)).json()
    assert [item["action"] for item in more["items"]] == ["mail.cancel", "keys.create"]
    assert (await door.ask("GET", "/api/audit?who=cli:test", key)).json()["items"][0][
        "action"
    ] == "keys.create"
    for wrong in (
        "limit=0",
        "limit=501",
        "since=2026-01-01T00:00:00",
        "since=0001-01-01T00:00:00Z",
        "before=-1",
        "who=%00",
    ):
        assert (await door.ask("GET", f"/api/audit?{wrong}", key)).status_code == 400


async def test_no_key_and_no_secret_is_in_any_log(door: Door) -> None:
    key = await door.key()
    secrets = {"bearerToken": "canary-bearer", "signingSecret": "canary-signing-secret-0123456789"}
    made = await door.ask("POST", "/api/admin/dispatch/credentials", key, json=secrets)
    assert made.status_code == 201
    await door.ask("POST", f"/api/admin/dispatch/credentials/{made.json()['id']}/rotate", key, json=secrets)
    await door.ask("GET", "/api/mail", key[:-1] + "!")
    await door.sql("ALTER TABLE mail_outbox RENAME COLUMN token TO tokens")
    assert (await door.ask("POST", "/api/mail", key, json=MAIL)).status_code == 500
    entries = str(await door.audit())
    assert "dispatch.credentials.rotate" in entries
    for canary in ("canary", key.split("_")[2]):
        assert canary not in entries
        assert canary not in door.log.text
    assert door.log.all("http.failed")
