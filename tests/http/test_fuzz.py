"""Requests that nobody would send on purpose: none holds the loop, ends in a 5xx or is kept.

A few hundred each time; with HOMING_TEST_FULL=1 they are 30,000 on each database. It tells the figures:

    HOMING_TEST_FULL=1 python -m pytest -rP tests/http/test_fuzz.py

Paths, queries and bodies are made of what the application says of itself: its routes, their parameters, the
schemas of its document and the fields of its forms. Schemathesis reads the same document and finds other
mistakes, but takes ten times as long for a request, and knows no pages.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from litestar.routes import HTTPRoute
from tests.conftest import IN_FULL
from tests.http.door import Door
from tests.http.pages.visitor import door_with_people

SEED = 20261119
REQUESTS = 30_000 if IN_FULL else 500
#: MiB by which the process may grow. One that was just started has caches to fill: that is the first part.
MOST_GROWN, WARMING_UP = 32, REQUESTS // 10
#: Nothing here leaves this machine: no name is looked up, and no port but the one that nobody listens on.
URLS = (
    "http://127.0.0.1:9/hooks",
    "https://127.0.0.1:9/",
    "http://[::1]:9/",
    "ftp://a",
    "//",
    "http://127.1/",
    "http://\u0661/",
)
WORDS: Sequence[Any] = (
    "", " ", "a", "1", "-1", "0", "null", "true", "ann@example.org", "a@" + "\u0661" * 60, "\u0301" * 300,
    "\u202e", "\0", "%00", "'", '"', "<script>", "{{ 7 * 7 }}", "../../etc/passwd", "outbox_1", "email_1",
    "notification_1", "0ARYZVZXW372S", "9" * 30, "2026-01-01T00:00:00Z", "2026-13-99", "status:dead",
    "a " * 900, 'lane:x "', "meta.a:b", "since:99999999w", "x" * 5_000, "*" * 200, "%", "\\", "\r\nX: y",
    "\ufffe", "\U0001f600" * 50, "e\u0301", "requeue", "cancel", "viewer",
)  # fmt: skip
#: What gets past the first check, by the name of a field.
LIKELY: Mapping[str, Any] = {
    "to": "ann@example.org", "cc": "bob@example.org", "from": "shop@example.org", "email": "ann@example.org",
    "replyTo": "help@example.org", "source": "shop", "type": "order.created", "payload": "{}",
    "body": "Hello.", "text": "Hello.", "html": "<p>Hello.</p>", "subject": "Hi", "termId": "20269",
    "campusCode": "NB", "indexNumber": "09214", "statusBefore": "Closed", "statusAfter": "Open",
    "query": "status:dead", "verb": "requeue", "sendAt": None, "expiresAt": None, "scheduledFor": None,
    "credentialsId": None, "queueUrl": None, "eventAt": None, "locale": None, "template": None,
    "protocol": None, "name": "a name",
}  # fmt: skip
VALUES: Sequence[Any] = (
    *WORDS, None, True, False, 0, 1, -1, 1.5, 1e308, 2**63, -(2**63) - 1, [], {}, [None], {"": ""}, [[[[]]]],
    {"a": {"b": 1}}, ["a"] * 300, {f"k{n}": "v" for n in range(200)},
)  # fmt: skip


@pytest.fixture
async def door(database_url: str) -> AsyncIterator[Door]:
    async with door_with_people(database_url) as door:
        yield door


class Corpus:
    """One request after the other, the same for each run."""

    def __init__(self, door: Door, document: Mapping[str, Any], key: str) -> None:
        self._random = random.Random(SEED)
        self._document, self._key = document, key
        self._routes = [
            (method, route, handler)
            for route in door.app.routes
            if isinstance(route, HTTPRoute)
            for method, (handler, _) in route.route_handler_map.items()
            if method != "OPTIONS"
        ]
        folder = files("homing.http").joinpath("templates")
        forms = "".join(page.read_text() for page in folder.iterdir() if page.name.endswith(".html"))
        self._fields = sorted({*re.findall(r'name="(\w+)"', forms)})
        self._names = [
            *self._fields,
            *{name for one in self._schemas.values() for name in one.get("properties", ())},
        ]

    @property
    def _schemas(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._document["components"]["schemas"]
        return found

    def next(self) -> tuple[str, str, str, bytes, list[tuple[bytes, bytes]]]:
        """Method, path, query, body and headers."""
        method, route, handler = self._random.choice(self._routes)
        told = self._document["paths"].get(route.path_format, {}).get(method.lower(), {})
        path = re.sub(r"\{\w+\}", lambda _: self._in_path(), route.path_format)
        model = handler.create_kwargs_model(route.path_parameters)
        known = sorted({one.field_alias for one in model.expected_query_params})
        chosen = [name for name in known if self._random.random() < 0.5]
        if self._random.random() < 0.05:
            chosen.append(self._random.choice(self._names))
        query = urlencode([(name, self._word()) for name in chosen], errors="replace")
        body, kind = (b"", "") if method in {"GET", "HEAD", "OPTIONS"} else self._body(told)
        headers = [(b"host", b"127.0.0.1"), (b"accept", self._random.choice((b"*/*", b"text/html")))]
        if kind:
            headers += [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        if self._random.random() < 0.95:
            headers.append((b"authorization", f"Bearer {self._key}".encode()))
        return method, path, query, body, headers

    def _word(self) -> str:
        return str(self._random.choice(WORDS))

    def _in_path(self) -> str:
        return self._word().replace("/", "") or "1"

    def _body(self, told: Mapping[str, Any]) -> tuple[bytes, str]:
        schema = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        if schema is None or self._random.random() < 0.03:
            names = self._random.sample(self._fields, 6)
            form = urlencode([(name, self._word()) for name in names], errors="replace")
            return form.encode(), "application/x-www-form-urlencoded"
        text = json.dumps(self._sample(schema, 0))
        cut = self._random.randrange(len(text) + 1) if self._random.random() < 0.03 else len(text)
        return text[:cut].encode(), "application/json"

    def _sample(self, schema: Mapping[str, Any], depth: int) -> Any:
        """What fits the schema, for the most part."""
        if depth > 6 or self._random.random() < 0.02:
            return self._random.choice(VALUES)
        if "$ref" in schema:
            return self._sample(self._schemas[schema["$ref"].rpartition("/")[2]], depth + 1)
        if choices := schema.get("oneOf", schema.get("anyOf")):
            return self._sample(self._random.choice(choices), depth + 1)
        if "const" in schema or "enum" in schema:
            return self._random.choice(schema.get("enum", [schema.get("const")]))
        if examples := schema.get("examples"):
            return self._random.choice(examples)
        return self._of_type(schema, depth)

    def _field(self, name: str, schema: Mapping[str, Any], depth: int) -> Any:
        if name.endswith("Url"):
            return self._random.choice(URLS)
        likely = name in LIKELY and self._random.random() < 0.9
        return LIKELY[name] if likely else self._sample(schema, depth)

    def _of_type(self, schema: Mapping[str, Any], depth: int) -> Any:
        match schema.get("type"):
            case "object":
                required = schema.get("required", ())
                found = {
                    name: self._field(name, one, depth + 1)
                    for name, one in schema.get("properties", {}).items()
                    if name in required or self._random.random() < 0.3
                }
                return found if self._random.random() < 0.95 else {**found, self._word(): self._word()}
            case "array":
                # Seldom a long one, which is a long body.
                most = 3 if self._random.random() < 0.98 else 400
                return [
                    self._sample(schema.get("items", {}), depth + 1)
                    for _ in range(self._random.randint(0, most))
                ]
            case "integer" | "number":
                return self._random.choice((0, 1, 5, 100, 10**6))
            case "boolean":
                return self._random.random() < 0.5
            case _:
                return self._word()


async def ask(
    app: Any, method: str, path: str, query: str, body: bytes, headers: list[tuple[bytes, bytes]]
) -> int:
    """The status. Whoever asks goes away as soon as the answer begins, which ends a stream."""
    statuses: list[int] = []
    unread = [body]

    async def receive() -> dict[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        if not statuses:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "root_path": "", "raw_path": quote(path, errors="replace").encode(), "query_string": query.encode(),
        "headers": headers, "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await app(scope, receive, send)
    return statuses[0]


def resident() -> float:
    """MiB of this process, without garbage."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def forget_what_tests_keep(door: Door) -> None:
    """A real process writes its log away, and sends its mails."""
    door.log._buffer.seek(0)
    door.log._buffer.truncate()
    door.sender.messages.clear()


@pytest.mark.slow
@pytest.mark.timeout(3600 if IN_FULL else 120)
async def test_no_request_of_a_corpus_does_harm(door: Door, holds: list[str]) -> None:
    key = await door.key()
    document = (await door.ask("GET", "/openapi.json", key)).json()
    corpus = Corpus(door, document, key)
    statuses: Counter[int] = Counter()
    began, before = time.monotonic(), 0.0
    for number in range(REQUESTS):
        if number == WARMING_UP:
            forget_what_tests_keep(door)
            before = resident()
        asked = corpus.next()
        status = await ask(door.app, *asked)
        assert status < 500, (status, asked, door.log.all("http.failed")[-1:])
        assert not holds, (holds, asked)
        statuses[status] += 1
    forget_what_tests_keep(door)
    grown = resident() - before
    print(  # noqa: T201 - the figures are what the full form is for
        f"\n{REQUESTS:,} requests in {time.monotonic() - began:.0f} s on {door.homing.database.dialect}: "
        f"{dict(sorted(statuses.items()))}, "
        f"none held the loop for 50 ms, {grown:+.1f} MiB after the first {WARMING_UP:,}"
    )
    assert statuses[200] > REQUESTS / 20, "it gets somewhere"
    assert grown < MOST_GROWN
