"""No request holds the event loop: what was found to do so, and the watch that finds it."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import AsyncIterator, Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from litestar import get
from litestar.params import FromPath
from litestar.routes import HTTPRoute
from tests.http.door import Door, opened_door, url_with_tables
from tests.http.pages.visitor import door_with_people
from tests.http.test_access_walk import filled_in
from tests.outbox import bench

from homing.desk.query import LONGEST_LINE
from homing.http.app import build_app
from homing.senders.caught_mail import CaughtMail

#: What a parameter is filled with, again and again.
SHAPES = ("a ", "1", "\u0661", '"\\', "a,-", "meta.a:b ", "status:dead OR ", "\u0301")
LONG = 64 * 1024
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return url_with_tables(tmp_path)


# ── the watch ────────────────────────────────────────────────────────────────────────────────────


@get("/busy/{seconds:float}")
async def busy(seconds: FromPath[float]) -> None:
    await asyncio.sleep(0)
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    await asyncio.sleep(0)


@get("/waits")
async def waits() -> None:
    await asyncio.sleep(0.2)
    time.sleep(0.1)  # noqa: ASYNC251 - takes time, and no CPU


@get("/endless")
async def endless() -> None:
    await asyncio.sleep(600)


@pytest.fixture
async def watched(sqlite_url: str) -> AsyncIterator[Door]:
    """An application of the routes above, without a server."""
    async with bench(sqlite_url) as lane:
        door = Door(lane.homing, lane.log)
        door.app = build_app(
            [busy, waits, endless], lane.homing._health(), lane.homing.telemetry, static=False
        )
        transport = httpx.ASGITransport(app=door.app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as door.client:
            yield door


async def test_a_request_that_holds_the_loop_is_named_by_its_route(watched: Door, holds: list[str]) -> None:
    for seconds in (0.0, 0.12, 0.06, 0.06):
        assert (await watched.client.get(f"/busy/{seconds}")).is_success
    route = {"route": "GET /busy/{seconds}"}
    value = watched.homing.telemetry.registry.get_sample_value
    assert value("homing_loop_held_total", route) == 3
    # Five milliseconds before it may be taken off, which were perhaps spent on something else.
    assert (value("homing_loop_longest_hold_seconds", route) or 0) >= 0.115
    lines = watched.log.all("loop.held")
    assert [line["route"] for line in lines] == ["GET /busy/{seconds}"], "once a minute, or for a record"
    assert lines[0]["cpu_ms"] >= 115
    assert len(holds) == 3, "and a test would fail"
    holds.clear()


async def test_a_request_that_waits_holds_nothing(watched: Door, holds: list[str]) -> None:
    assert (await watched.client.get("/waits")).is_success
    assert not holds


async def test_a_request_is_answered_and_called_off_as_without_the_watch(watched: Door) -> None:
    assert (await watched.client.get("/nowhere")).status_code == 404
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watched.client.get("/endless"), 0.05)


# ── queries and paths ────────────────────────────────────────────────────────────────────────────


async def answered(app: Any, method: str, path: str, query: str = "") -> int:
    """Past the server, which takes no address as long as these; a stream ends as soon as it has begun."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return (
            {"type": "http.disconnect"}
            if statuses
            else {"type": "http.request", "body": b"", "more_body": False}
        )

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "root_path": "", "raw_path": quote(path).encode(), "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1"), (b"accept", b"text/html")],
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await app(scope, receive, send)
    return statuses[0]


def parameters(door: Door, document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Method, path and name of every query parameter: as handlers name them, and as the document does."""
    for route in door.app.routes:
        assert isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items():
            model = handler.create_kwargs_model(route.path_parameters)
            told = document["paths"].get(route.path_format, {}).get(method.lower(), {}).get("parameters", ())
            names = {one.field_alias for one in model.expected_query_params}
            names |= {one["name"] for one in told if one["in"] == "query"}
            for name in sorted(names):
                yield method, route.path_format, name


async def test_64_kilobytes_in_any_parameter_hold_nothing(sqlite_url: str) -> None:
    async with opened_door(sqlite_url) as door:
        await door.insert(3)
        document = (await door.client.get("/openapi.json")).json()
        found = list(parameters(door, document))
        assert {("GET", "/messages", "q"), ("GET", "/events", "topic"), ("GET", "/api/messages", "q")} <= set(
            found
        )
        assert len(found) > 80
        for method, path, name in found:
            for shape in SHAPES:
                for length in (LONGEST_LINE, LONG):
                    value = (shape * length)[:length]
                    status = await answered(door.app, method, filled_in(path), f"{name}={quote(value)}")
                    assert status < 500, (method, path, name, shape)


async def test_64_kilobytes_in_any_path_hold_nothing(sqlite_url: str) -> None:
    async with opened_door(sqlite_url) as door:
        walked = [route for route in door.app.routes if "{" in route.path_format]
        assert len(walked) > 30
        for route in walked:
            assert isinstance(route, HTTPRoute)
            for method in route.route_handler_map:
                for shape in SHAPES:
                    path = re.sub(r"\{\w+\}", lambda _: (shape * LONG)[:LONG], route.path_format)  # noqa: B023
                    assert await answered(door.app, method, path) < 500, (method, route.path_format, shape)


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────

MAIL = {"to": "ann@example.org", "subject": "Hi", "text": "Hello."}
JOB = {"source": "shop", "type": "paid", "targetUrl": "http://127.0.0.1:9/hooks", "payload": "{}"}
FLIP = {
    "termId": "1",
    "campusCode": "NB",
    "indexNumber": "1",
    "statusBefore": "Closed",
    "statusAfter": "Open",
}
FILE = {"filename": "f.bin", "content": base64.b64encode(bytes(range(256)) * 44_000).decode()}
ARABIC = "\u0661" * 245
LABELS = ".".join(["\u00fc"] * 120)
MANY = {str(number): number for number in range(700_000)}
FIFTY = {f"k{number}": "v" for number in range(50)}
HTML = "<p>Some words, and <a href='https://example.org/?token=abc'>a link</a>.</p>" * 40_000
LARGE: dict[str, list[tuple[str, Any]]] = {
    "/api/mail": [
        ("recipients of long labels", [{**MAIL, "to": f"a{n}@{ARABIC}"} for n in range(1000)]),
        ("recipients of many labels", [{**MAIL, "to": f"a{n}@{LABELS}"} for n in range(1000)]),
        ("one with a thousand of them", {**MAIL, "to": [f"a{n}@{LABELS}" for n in range(1000)]}),
        ("one with too many", {**MAIL, "to": [f"a{n}@{LABELS}" for n in range(20_000)]}),
        ("fields that do not exist", [{**MAIL, "y" * 100: 1}] * 1000),
        ("a file", {**MAIL, "attachments": [FILE], "idempotencyKey": "k"}),
        ("the same file", {**MAIL, "attachments": [FILE], "idempotencyKey": "k"}),
        ("files", [{**MAIL, "attachments": [FILE]}]),
        ("metadata", {**MAIL, "metadata": MANY}),
        ("html", {"to": "ann@example.org", "html": HTML}),
        ("a name that is no field", {**MAIL, "y" * (15 << 20): 1}),
        ("small ones", [MAIL] * 1000),
    ],
    "/api/emails": [
        ("a file and a field that does not exist", {**MAIL, "attachments": [FILE], "messageKey": "k"}),
        ("a file again", {"to": "ann@example.org", "body": "x", "attachments": [FILE], "messageKey": "k"}),
        ("variables", {"to": "ann@example.org", "template": "x", "variables": MANY}),
        ("one with a thousand recipients", {"to": [f"a{n}@{LABELS}" for n in range(1000)], "body": "x"}),
    ],
    "/api/dispatch/jobs": [
        ("a name that is no field", {**JOB, "y" * (15 << 20): 1}),
        ("metadata", {**JOB, "metadata": MANY}),
        ("a payload", {**JOB, "payload": "\u00fc" * (1 << 19)}),
    ],
    "/api/dispatch/jobs/batch": [
        ("fields that do not exist", [{**JOB, "y" * 100: 1}] * 1000),
        ("hosts of many labels", [{**JOB, "targetUrl": f"https://{LABELS}/"}] * 1000),
        ("payloads", [{**JOB, "payload": "x" * 15_000}] * 1000),
        ("all or none", {"jobs": [{**JOB, "payload": "x" * 15_000}] * 1000, "atomic": True}),
        ("headers and metadata", [{**JOB, "metadata": FIFTY, "headers": FIFTY}] * 1000),
    ],
    "/api/notifications/events/batch": [
        ("payloads", [{**FLIP, "indexNumber": str(n), "payload": {"a": "x" * 15_000}} for n in range(100)]),
        ("what is none", [{"y" * 100: 1}] * 500),
    ],
    "/api/bulk": [("a line", {"verb": "requeue", "query": "a " * (7 << 20)})],
}  # fmt: skip
#: Of these the ones that are taken, at least in part.
STORED = frozenset(
    ("a file", "the same file", "files", "html", "small ones", "a file again", "a payload", "payloads")
)
#: Bodies that are no JSON, or such that readers fear.
ODD = {
    "brackets": b"[" * (15 << 20),
    "brackets in strings": b'["[",' * (3 << 20),
    "shallow brackets": b"[" + b"[]," * (5 << 20) + b"[]]",
    "a string without end": b'"' + b"\\" * (15 << 20),
    "digits": b"1" * (15 << 20),
}


async def test_the_largest_bodies_hold_nothing(database_url: str) -> None:
    async with opened_door(database_url) as door:
        is_first = database_url.startswith("sqlite")
        for path, bodies in LARGE.items():
            for name, body in bodies:
                # What is refused comes to no database.
                if is_first or name in STORED:
                    answer = await door.ask("POST", path, content=msgspec.json.encode(body), headers=JSON)
                    assert answer.status_code < 500, (path, name, answer.text)
                    assert answer.is_success or name not in STORED, (path, name, answer.text)
        for name, text in ODD.items() if is_first else ():
            for path in ("/api/mail", "/api/dispatch/jobs/batch"):
                answer = await door.ask("POST", path, content=text, headers=JSON)
                assert 400 <= answer.status_code < 500, (path, name, answer.text)
        for row in await door.sql("SELECT id FROM mail_outbox WHERE subject = '' OR attachments IS NOT NULL"):
            for path in (
                f"/api/mail/outbox_{row['id']}",
                f"/api/messages/outbox_{row['id']}",
                f"/messages/outbox_{row['id']}",
            ):
                assert (await door.ask("GET", path, headers={"Accept": "text/html"})).status_code == 200
        for path in ("/messages", "/", "/api/messages", "/api/mail", "/api/overview", "/api/dispatch/jobs"):
            assert (await door.ask("GET", path, headers={"Accept": "text/html"})).is_success


#: Of half a million characters, in which everything may be a code.
LINK = f"https://a.example{'/ab1c2d3' * 60_000}"


async def keep_caught(door: Door) -> None:
    message = EmailMessage()
    message["Subject"] = "Hi"
    message.set_content(LINK, cte="8bit")
    message.add_alternative(f'<a href="{LINK}">x</a>', subtype="html", cte="8bit")
    source = base64.b64encode(message.as_bytes()).decode()
    await door.homing.shelf.keep([CaughtMail("<1@a.example>", "a@a.example", ("b@a.example",), "Hi", source)])


async def test_large_mails_are_looked_at_and_hold_nothing(sqlite_url: str) -> None:
    async with door_with_people(sqlite_url) as door:
        writer = await door.key("*")
        values = {"variables": {"link": LINK}}
        paths = ["/caught/1", "/caught/1/html"]
        await keep_caught(door)
        for lane, body in (
            ("mail", {**MAIL, "text": LINK}),
            ("emails", {"to": "ann@example.org", "subject": "Hi", "body": LINK}),
            ("mail", {"to": "ann@example.org", "template": "open-seat", **values}),
            ("emails", {"to": "ann@example.org", "template": "open-seat", **values}),
        ):
            answer = await door.ask("POST", f"/api/{lane}", writer, json=body)
            assert answer.is_success, answer.text
            id = answer.json()["id"]
            paths += [f"/api/{lane}/{id}", f"/api/messages/{id}", f"/messages/{id}"]
            paths += [f"/messages/{id}/mail.{kind}" for kind in ("html", "txt", "eml")]
        key = await door.key("desk:read", "mail:read", "emails:read")
        for path in paths:
            answer = await door.ask("GET", path, key, headers={"Accept": "text/html"})
            assert answer.status_code == 200, (path, answer.text[:200])
            assert "ab1c2d3" not in answer.text, path


async def test_others_are_served_while_a_batch_is_read(sqlite_url: str) -> None:
    """A batch of small items stays in the loop, and gives others their turn."""
    async with opened_door(sqlite_url) as door:
        batch = asyncio.create_task(door.ask("POST", "/api/mail", json=LARGE["/api/mail"][1][1]))
        served = 0
        while not batch.done():
            assert (await door.client.get("/health/live")).is_success
            served += 1
        assert (await batch).json()["created"] == 0
        assert served > 5
