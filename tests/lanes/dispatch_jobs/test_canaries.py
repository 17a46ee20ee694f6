"""Secrets that are planted on purpose must turn up nowhere but at the receiver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.jobs import JobBench, job_bench

from homing.db.mongo import MongoDatabase
from homing.testing.http_sink import Answer, HttpSink, SinkRequest

BEARER = "canary-bearer/5f1d"
SECRET = "canary-secret-0123456789-c0ffee"
NEW_SECRET = "canary-rotated-0123456789-beef"
CUSTOM = "canary-custom-header-77aa"
CANARIES = (BEARER, BEARER.replace("/", r"\/"), SECRET, NEW_SECRET)
ADMIN = "/api/admin/dispatch/credentials"


def echo(request: SinkRequest) -> Answer:
    """A receiver that says back everything it was told, in headers and body, and fails."""
    said = " ".join(f"{name}={value}" for name, value in request.headers)
    # As PHP's json_encode writes it, too.
    said += said.replace("/", r"\/")
    return Answer(
        status=500,
        headers=(("X-Echo", request.header("authorization") or "none"), ("Set-Cookie", f"s={BEARER}")),
        body=said.encode(),
    )


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(database_url, mail_url="memory://", log_level="debug") as opened:
        yield opened


@pytest.mark.clause("JOB-24", "JOB-05")
async def test_planted_secrets_are_in_no_reply_log_metric_page_or_table(
    bench: JobBench, database_url: str
) -> None:
    said: list[str] = []
    async with (
        HttpSink(echo) as sink,
        _client(bench) as api,
    ):
        created = await api.post(ADMIN, json={"bearerToken": BEARER, "signingSecret": SECRET, "name": "c"})
        assert created.status_code == 201
        credentials = created.json()["id"]
        rotated = await api.post(f"{ADMIN}/{credentials}/rotate", json={"signingSecret": NEW_SECRET})
        assert rotated.status_code in {200, 201}
        body = {
            "source": "s", "type": "t", "targetUrl": f"{sink.url}/x", "payload": "{}", "maxRetries": 1,
            "credentialsId": credentials, "headers": {"X-Api-Key": CUSTOM},
        }  # fmt: skip
        job = await api.post("/api/dispatch/jobs", json=body)
        assert job.status_code == 201
        await bench.run_until_idle()
        # The receiver did get them, so there was something to leak.
        assert (await sink.received(1))[0].header("authorization") == f"Bearer {BEARER}"
        said += [created.text, rotated.text]
        said += [await _text(api, path) for path in _places(job.json()["id"], credentials)]
        said += [(await api.post(ADMIN, json=bad)).text for bad in _mistakes()]
        said.append(await _validate(api, sink, credentials))
    said.append(bench.log.text)
    said.append(await _whole_database(bench, database_url))
    for canary in CANARIES:
        assert [text[:200] for text in said if canary in text] == []


def _client(bench: JobBench) -> httpx.AsyncClient:
    application: Any = bench.homing.asgi()
    return httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://127.0.0.1")


async def _text(api: httpx.AsyncClient, path: str) -> str:
    answer = await api.get(path)
    assert answer.status_code == 200, path
    return answer.text


def _places(job: str, credentials: str) -> list[str]:
    return [
        f"/api/dispatch/jobs/{job}", f"/api/dispatch/jobs/{job}/attempts", "/api/dispatch/jobs", "/metrics",
        "/api/dispatch/dead", "/api/dispatch/targets", "/api/dispatch/statistics", "/", "/openapi.json",
        ADMIN, f"{ADMIN}/{credentials}",
    ]  # fmt: skip


def _mistakes() -> list[dict[str, Any]]:
    """Replies to bad requests quote what was wrong, and must not quote this."""
    return [
        {"bearerToken": f"{BEARER}\n", "signingSecret": SECRET},
        {"bearerToken": BEARER, "signingSecret": SECRET * 40},
        {"bearerToken": BEARER, "signingSecret": SECRET, "algorithm": "NONE"},
        {"bearerTokn": BEARER, "signingSecret": SECRET},
        {"bearerToken": [BEARER], "signingSecret": SECRET},
    ]


async def _validate(api: httpx.AsyncClient, sink: HttpSink, credentials: str) -> str:
    target = {"targetUrl": f"{sink.url}/probe", "credentialsId": credentials}
    answer = await api.post("/api/dispatch/targets/validate", json=target)
    assert answer.status_code in {200, 201}
    assert answer.json()["status"] == 500
    return answer.text


async def _whole_database(bench: JobBench, database_url: str) -> str:
    """Every byte of an SQLite file and its log; every row of every table as text on PostgreSQL."""
    if isinstance(bench.homing.jobs_database, MongoDatabase):
        opened = bench.homing.jobs_database.opened
        found = [await opened[name].find().to_list() for name in await opened.list_collection_names()]
        return repr(found)
    if bench.homing.database.dialect == "sqlite":
        file = Path("/" + urlsplit(database_url).path.lstrip("/"))
        return "".join(
            path.read_bytes().decode("latin-1")
            for path in file.parent.glob(f"{file.name}*")
            if path.is_file()
        )
    tables = await bench.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    rows = [await bench.sql(f"SELECT t::text AS row FROM {table['tablename']} AS t") for table in tables]
    return "\n".join(row["row"] for table in rows for row in table)
