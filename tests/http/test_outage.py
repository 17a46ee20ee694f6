"""A database that is away is nobody's mistake: callers are told to come back."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from litestar import get, post

from homing.errors import Refused, Unreachable
from homing.http.app import build_app
from homing.telemetry import Telemetry, make_logger


@get("/away")
async def _away() -> None:
    raise Unreachable("no answer from db.internal:5432")


@post("/internal/dispatch")
async def _dispatch() -> None:
    raise Unreachable("no answer from db.internal:5432")


@get("/bug")
async def _bug() -> None:
    raise Refused("a value is too long")


async def _nothing() -> None:
    """There is nothing to check."""


@pytest.fixture
async def client() -> httpx.AsyncClient:
    telemetry = Telemetry(make_logger("json", logging.CRITICAL))
    health = {"telemetry": telemetry, "check_ready": _nothing, "refresh_gauges": _nothing}
    app: Any = build_app([_away, _dispatch, _bug], health, telemetry, static=False)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


async def test_the_answer_is_503_with_a_time_to_come_back(client: httpx.AsyncClient) -> None:
    answer = await client.get("/away")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "INTERNAL_ERROR"
    assert "db.internal" not in answer.text, "where the database is, is nobody's business"


async def test_the_dispatch_endpoint_keeps_to_its_four_codes(client: httpx.AsyncClient) -> None:
    answer = await client.post("/internal/dispatch")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "DISPATCH_INTERNAL_ERROR")


async def test_what_is_our_own_fault_stays_a_500(client: httpx.AsyncClient) -> None:
    assert (await client.get("/bug")).status_code == 500
