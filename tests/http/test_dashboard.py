"""The page and the page of a job: what they show, and what they never do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.jobs import JobBench, job_bench

from homing.http.server import serving
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.testing.http_sink import Answer, HttpSink

ANSWERS = {
    "/broken": Answer(status=500, body=b"<script>alert(1)</script>"),
    "/gone": Answer(status=410),
}


class Pages:
    bench: JobBench
    client: httpx.AsyncClient
    url: str

    async def read(self, path: str) -> str:
        response = await self.client.get(path)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "<script" not in response.text
        return response.text


@pytest.fixture
async def pages(database_url: str) -> AsyncIterator[Pages]:
    pages = Pages()
    async with (
        job_bench(database_url, jobs_breaker_failures=2, mail_url="memory://") as pages.bench,
        HttpSink(ANSWERS) as sink,
        serving(pages.bench.homing.asgi(), "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as pages.client,
    ):
        pages.url = sink.url
        yield pages


async def test_an_empty_page_says_how_to_begin(pages: Pages) -> None:
    page = await pages.read("/")
    assert "No job yet" in page
    assert "No mail yet" in page
    assert "held back" not in page


@pytest.mark.clause("JOB-22")
async def test_the_page_shows_jobs_by_state_and_targets_that_are_held_back(pages: Pages) -> None:
    await pages.bench.create(f"{pages.url}/ok", 2)
    (dead,) = await pages.bench.create(f"{pages.url}/gone", type="order.<b>cancelled</b>")
    await pages.bench.run_batch()
    for _ in range(2):
        await pages.bench.create(f"{pages.url}/broken")
        await pages.bench.run_batch()
    page = await pages.read("/")
    for state, count in (("COMPLETED", 2), ("ERROR", 1), ("FAILED", 2), ("PENDING", 0)):
        assert f'<div class="count {state}"><strong>{count}</strong>' in page
    assert f'<a href="/jobs/{text_of(dead)}">{text_of(dead)}</a>' in page
    assert "order.&lt;b&gt;cancelled&lt;/b&gt;" in page
    assert "HTTP 410" in page
    assert "Targets that are held back" in page
    assert f"<td>{pages.url}</td>" in page
    assert "it failed 2 times in a row" in page


async def test_the_page_of_a_job_tells_its_attempts_and_keeps_secrets(pages: Pages) -> None:
    secrets = CreateCredentials(
        bearer_token="canary-bearer", signing_secret="canary-signing-secret-0123456789"
    )
    issued = await pages.bench.homing.credentials.create(secrets)
    (id,) = await pages.bench.create(
        f"{pages.url}/broken?token=canary-query",
        credentials_id=issued.row["id"],
        headers={"X-Api-Key": "canary-header"},
        metadata={"tenantId": "<acme>"},
        payload='{"note":"<img src=x>"}' + "x" * 6000,
    )
    await pages.bench.run_batch()
    page = await pages.read(f"/jobs/{text_of(id)}")
    assert "canary" not in page
    assert f"{pages.url}/broken?…" in page
    assert "X-Api-Key" in page
    assert "tenantId = &lt;acme&gt;" in page
    assert "&lt;img src=x&gt;" in page.replace("&#34;", '"')
    assert "6,022 characters in all" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert 'class="state FAILURE">FAILURE' in page
    assert "It waits (retry, until <time>" in page


async def test_a_job_behind_others_links_to_the_first(pages: Pages) -> None:
    group: dict[str, Any] = {"ordering": "group", "group_id": "g"}
    first, second = await pages.bench.create(f"{pages.url}/ok", 2, **group)
    page = await pages.read(f"/jobs/{text_of(second)}")
    assert f'<a href="/jobs/{text_of(first)}">that job</a>' in page
    assert "No attempt so far" in page


async def test_what_is_no_job_is_not_found(pages: Pages) -> None:
    for id in ("0000000000001", "nonsense", "<script>"):
        response = await pages.client.get(f"/jobs/{id}")
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/json"


async def test_a_url_that_is_none_breaks_no_page(pages: Pages) -> None:
    (id,) = await pages.bench.create(f"{pages.url}/ok")
    await pages.bench.change(id, target_url="http://[odd/hook")
    assert "not a URL" in await pages.read("/")
    assert "not a URL" in await pages.read(f"/jobs/{text_of(id)}")
