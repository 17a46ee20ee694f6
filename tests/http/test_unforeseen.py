"""A database that fails in a way that nobody has foreseen: the answer keeps to the format, whoever asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx
import pytest
from tests.http.door import Door, opened_door

from homing.db import Query, Row

VALIDATE = "/api/dispatch/targets/validate"
MAIL = {"to": "ann@example.org", "subject": "Hi", "text": "Hello."}
CALLS: Sequence[tuple[str, str, dict[str, Any]]] = (
    ("POST", VALIDATE, {"json": {"targetUrl": "https://a.example/hook"}}),
    ("POST", "/api/mail", {"json": MAIL}),
    ("POST", "/api/mail/outbox_1/cancel", {}),
    ("GET", "/api/mail/outbox_1", {}),
)


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    async with opened_door(sqlite_url) as door:
        yield door


def fail(door: Door, monkeypatch: pytest.MonkeyPatch, fails: Callable[[Query], bool]) -> None:
    """No real server raises what no driver translates: this stands in for a bug of ours or of a driver's."""
    database = door.homing.database
    fetch = database.fetch

    async def failing(query: Query, parameters: Mapping[str, Any]) -> Sequence[Row]:
        if fails(query):
            raise AssertionError("the address ann@example.org is in this message")
        return await fetch(query, parameters)

    monkeypatch.setattr(database, "fetch", failing)


def require_format(answer: httpx.Response) -> None:
    assert answer.status_code == 500
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()["error"]["code"] == "INTERNAL_ERROR"
    assert "ann@" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("call", CALLS, ids=[f"{method} {path}" for method, path, _ in CALLS])
@pytest.mark.parametrize("who", ["nobody", "a key"])
async def test_before_anybody_is_known(
    door: Door, monkeypatch: pytest.MonkeyPatch, call: tuple[str, str, dict[str, Any]], who: str
) -> None:
    key = await door.key() if who == "a key" else None
    fail(door, monkeypatch, lambda _query: True)
    method, path, body = call
    require_format(await door.ask(method, path, key, **body))


@pytest.mark.parametrize("who", ["nobody", "a key"])
async def test_when_the_handler_is_at_work(door: Door, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    key = await door.key() if who == "a key" else None
    fail(door, monkeypatch, lambda query: "mail_outbox" in query.sql)
    require_format(await door.ask("POST", "/api/mail", key, json=MAIL))
    require_format(await door.ask("POST", "/api/mail/outbox_1/cancel", key))
    require_format(await door.ask("GET", "/api/mail/outbox_1", key))


@pytest.mark.parametrize("call", CALLS, ids=[f"{method} {path}" for method, path, _ in CALLS])
@pytest.mark.parametrize("who", ["nobody", "a key"])
async def test_when_nothing_works_any_more(
    door: Door, monkeypatch: pytest.MonkeyPatch, call: tuple[str, str, dict[str, Any]], who: str
) -> None:
    """Whoever asks is remembered from a call before; neither the handler nor the audit log gets through."""
    key = await door.key() if who == "a key" else None
    assert (await door.ask("GET", "/api/mail", key)).status_code == 200
    fail(door, monkeypatch, lambda _query: True)
    method, path, body = call
    answer = await door.ask(method, path, key, **body)
    if path == VALIDATE:
        assert answer.status_code == 200, "it asks no database"
    else:
        require_format(answer)


@pytest.mark.parametrize("who", ["nobody", "a key"])
async def test_when_the_audit_log_is_written(door: Door, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """What was done is done, and is told; the entry is in the log."""
    key = await door.key() if who == "a key" else None
    fail(door, monkeypatch, lambda query: query.name == "write_audit")
    answer = await door.ask("POST", VALIDATE, key, json={"targetUrl": "https://a.example/hook"})
    assert answer.status_code == 200, answer.text
    (line,) = door.log.all("audit.failed")
    assert line["error"] == "AssertionError"
    assert "ann@" not in door.log.text
