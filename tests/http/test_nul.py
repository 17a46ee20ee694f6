"""NUL is no text for PostgreSQL: wherever it stands in a request, it is answered, and by no crash."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from litestar.routes import HTTPRoute
from tests.http.door import Door
from tests.http.pages.visitor import OWN, Visitor, door_with_people, visiting

from homing.desk import query
from homing.http.pages.shell import MENU
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.workers.model import Identity, LaneReport, Report

NUL = "a\x00b"
JOB = {"source": "shop", "type": "order.paid", "targetUrl": "http://127.0.0.1:9/hooks", "payload": "{}"}
SEAT = {"termId": "20269", "campusCode": "NB", "indexNumber": "09214"}
EVENT = {**SEAT, "statusBefore": "Closed", "statusAfter": "Open"}
FORM = re.compile(r'<form[^>]*method="post"[^>]*action="([^"]+)"[^>]*>(.*?)</form>', re.DOTALL)
GUESS = {"id": "1", "name": "x", "target": "http://127.0.0.1:9", "scope": "lane", "sure": "yes", "token": "x"}
#: Something that each call takes, so that what is wrong in it is nothing but the one text.
BODIES: Mapping[str, tuple[dict[str, Any], ...]] = {
    "POST /api/mail": ({"to": "ann@example.org", "subject": "Hi", "text": "Hello."},),
    "POST /api/emails": ({"to": "ann@example.org", "subject": "Hi", "body": "Hello.", "messageKey": "k"},),
    "POST /api/emails/requeue": ({"reason": "timeout", "dryRun": True},),
    "POST /api/dispatch/jobs": (
        {**JOB, "metadata": {"k": "v"}, "headers": {"X-A": "1"}, "credentialsId": "0ARYZVZXW372S"},
        {**JOB, "groupId": "g", "ordering": "group", "idempotencyKey": "i", "subject": "s"},
    ),
    "POST /api/dispatch/jobs/batch": ({"jobs": [JOB]},),
    "POST /api/dispatch/jobs/cancel": ({"filter": {"source": "s", "type": "t", "groupId": "g"}},),
    "POST /api/dispatch/jobs/requeue": ({"filter": {"source": "s", "type": "t", "errorClass": "timeout"}},),
    "PUT /api/dispatch/targets": ({"targetUrl": JOB["targetUrl"], "maxConcurrency": 1},),
    "POST /api/dispatch/targets/pause": ({"targetUrl": JOB["targetUrl"], "reason": "r"},),
    "POST /api/dispatch/targets/resume": ({"targetUrl": JOB["targetUrl"], "credentialsId": "0ARYZVZXW372S"},),
    "POST /api/dispatch/targets/validate": ({"targetUrl": JOB["targetUrl"]},),
    "POST /api/dispatch/process": ({"id": "0ARYZVZXW372S", "token": "t"},),
    "PUT /api/config": (
        {
            "queues": [{"queueUri": "q", "queueName": "n"}],
            "processingPools": [{"code": "P", "concurrency": 1}],
        },
    ),
    "POST /api/admin/dispatch/credentials": ({"name": "n", "bearerToken": "t", "signingSecret": "a secret"},),
    "PUT /api/admin/dispatch/credentials/{credentials_id}/allowed-targets": (
        {"allowedTargets": ["https://a.example"]},
    ),
    "POST /api/admin/dispatch/credentials/{credentials_id}/rotate": ({"bearerToken": "t"},),
    "POST /api/notifications/events": (EVENT,),
    "POST /api/notifications/events/batch": ({"events": [EVENT]},),
    "POST /api/notifications/subscriptions": ({**SEAT, "email": "ann@example.org", "locale": "en"},),
    "PATCH /api/notifications/subscriptions/{id}": ({"locale": "en"},),
    "POST /api/notifications/requeue": ({"filter": {"status": "failed"}, "dryRun": True},),
    "POST /api/bulk": ({"verb": "requeue", "query": "status:dead to:a@b.org", "dryRun": True},),
    "POST /api/alerts/{id}/silence": ({"seconds": 1},),
    "POST /internal/dispatch": ({},),
}


@pytest.fixture
async def door(postgres_url: str) -> AsyncIterator[Door]:
    """With something on every page that has a form."""
    async with door_with_people(postgres_url) as door:
        await door.insert(status="failed")
        await door.sql(
            "INSERT INTO dispatch_job (source, type, target_url, target, payload, status)"
            " VALUES ('shop', 'order.paid', 'http://127.0.0.1:9/h', 'http://127.0.0.1:9', '{}', 'ERROR')"
            " RETURNING id"
        )
        await door.homing.credentials.create(CreateCredentials(name="shop"))
        worker = Identity("ann:1", "ann", 1, "1.0", "first", ("mail_outbox",), serves=False)
        report = Report((LaneReport("mail_outbox", 3, 100, 1234, 1200),))
        await door.homing.fleet.beat(worker, "running", report, up_seconds=10.0)
        await door.key("ops")
        await door.homing.alerts.look()
        subscribed = await door.ask(
            "POST", "/api/notifications/subscriptions", await door.key(), json={**SEAT, "email": "a@b.org"}
        )
        assert subscribed.is_success, subscribed.text
        yield door


@pytest.fixture
async def admin(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "admin") as visitor:
        yield visitor


def addresses(door: Door) -> Iterator[tuple[str, str]]:
    """Method and path of every route, with NUL in each of its parameters in turn."""
    documented = door.app.openapi_schema.to_schema()["paths"]
    for route in door.app.routes:
        assert isinstance(route, HTTPRoute)
        path = route.path_format
        for method, (_, model) in route.route_handler_map.items():
            if method == "OPTIONS":
                continue
            told = documented.get(path, {}).get(method.lower(), {}).get("parameters", [])
            in_query = {one["name"] for one in told if one["in"] == "query"}
            in_query |= {one.field_alias for one in model.expected_query_params}
            for name in re.findall(r"\{(\w+)\}", path):
                yield method, filled_in(path.replace(f"{{{name}}}", quote(NUL)))
            for name in sorted(in_query):
                others = "&topic=messages" if path == "/events" and name != "topic" else ""
                yield method, f"{filled_in(path)}?{name}={quote(NUL)}{others}"


def filled_in(path: str) -> str:
    for parameter, value in (("{verb}", "requeue"), ("{message_id}", "outbox_1")):
        path = path.replace(parameter, value)
    return re.sub(r"\{\w+\}", "1", path.replace("/messages/{id}", "/messages/outbox_1"))


async def status_of(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> int:
    """Of the answer's head: a stream goes on."""
    async with client.stream(method, path, **options) as answer:
        return answer.status_code


def assert_none_crashed(door: Door, asked: Mapping[str, int], at_least: int) -> None:
    crashed = {what for what, status in asked.items() if status >= 500}
    assert not crashed, (crashed, [line for line in door.log.all() if line["level"] == "error"])
    assert len(asked) >= at_least


async def test_in_an_address(door: Door, admin: Visitor) -> None:
    asked = {}
    for method, path in addresses(door):
        headers = {**OWN, "X-CSRF-Token": admin.csrf}
        options: dict[str, Any] = {"json": {}} if "/api/" in path and method not in {"GET", "HEAD"} else {}
        asked[f"{method} {path}"] = await status_of(admin.client, method, path, headers=headers, **options)
    assert_none_crashed(door, asked, 100)


async def test_in_a_query_line(door: Door, admin: Visitor) -> None:
    asked = {}
    for example in (field.example for field in query.FIELDS):
        name, _, value = example.partition(":")
        for line in (f"{name}:{NUL}", f"{name}:{value}{NUL}", f"{name}:{NUL}*", f"{name}\x00:{value}"):
            for path in ("/messages", "/api/messages", "/bulk/new", "/events?topic=messages"):
                address = f"{path}{'&' if '?' in path else '?'}q={quote(line)}"
                asked[address] = await status_of(admin.client, "GET", address)
    assert_none_crashed(door, asked, 150)


async def test_in_the_name_of_a_file(door: Door) -> None:
    for path in ("/static/a%00b", "/static/" + "a" * 5000, "/static/homing.css%00"):
        assert (await door.client.get(path)).status_code == 404


async def test_in_a_form(door: Door, admin: Visitor) -> None:
    asked = {}
    for action, fields in (await forms(door, admin)).items():
        for name in fields:
            asked[f"{action} {name}"] = (await admin.send(action, {**fields, name: NUL})).status_code
    assert_none_crashed(door, asked, 60)
    login = {"name": NUL, "password": NUL, "next": NUL}
    assert (await admin.client.post("/login", data=login, headers=OWN)).status_code == 401


async def test_in_a_body(door: Door) -> None:
    key, asked = await door.key(), {}
    for call, bodies in BODIES.items():
        method, _, path = call.partition(" ")
        for body in bodies:
            for place, wrong in each_wrong(body):
                answer = await door.ask(method, filled_in(path), key, json=wrong)
                asked[f"{call} {place}"] = answer.status_code
    assert_none_crashed(door, asked, 50)
    assert {f"{method} {path}" for method, path in with_body(door)} == set(BODIES)


async def forms(door: Door, admin: Visitor) -> dict[str, dict[str, str]]:
    """Every form of the desk, with what stands in its fields; one that no page shows now, with a guess."""
    (credentials,) = await door.homing.credentials.page()
    pages = [
        *(path for _, entries in MENU for path, _ in entries),
        f"/credentials/one?id={text_of(credentials['id'])}",
        "/targets/one?target=http://127.0.0.1:9/h",
        "/subscriptions/one?id=1",
        "/messages/outbox_1",
        "/bulk/new?q=status:dead",
    ]
    found: dict[str, dict[str, str]] = {}
    for path in pages:
        for action, inside in FORM.findall(await admin.read(path)):
            found.setdefault(action.partition("#")[0], fields_in(inside))
    hidden = {path for path in posted(door) if path not in found and not path.startswith(("/api/", "/log"))}
    return found | {filled_in(path): GUESS for path in hidden}


def fields_in(form: str) -> dict[str, str]:
    named = dict.fromkeys(re.findall(r'name="(\w+)"', form), "")
    given = {name: unescape(value) for name, value in re.findall(r'name="(\w+)"[^>]* value="([^"]*)"', form)}
    return {name: value for name, value in (named | given).items() if name != "csrf"}


def posted(door: Door) -> set[str]:
    return {route.path_format for route in door.app.routes if "POST" in route.methods}


def with_body(door: Door) -> Iterator[tuple[str, str]]:
    for path, methods in door.app.openapi_schema.to_schema()["paths"].items():
        yield from ((method.upper(), path) for method, told in methods.items() if "requestBody" in told)


def each_wrong(body: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The body with NUL in each of its texts in turn, and where that is."""
    if isinstance(body, str):
        yield place, NUL
    pairs = list(
        body.items() if isinstance(body, dict) else enumerate(body if isinstance(body, list) else ())
    )
    for key, value in pairs:
        for within, wrong in each_wrong(value, f"{place}/{key}"):
            others = dict(pairs) | {key: wrong}
            yield within, others if isinstance(body, dict) else list(others.values())
