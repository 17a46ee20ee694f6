"""Homing beside a program that does its part by plain SQL and its own broker client.

The producer and the operator's console are always another program's. Who has jobs processed is Homing's own
workers, or another program's router that takes the messages from SQS and calls `/api/dispatch/process`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.jobs import eventually, job_bench
from tests.lanes.dispatch_jobs.foreign import Console, Producer, Router, is_signed

from homing.service import Stop, run
from homing.testing.http_sink import Answer, HttpSink, SinkRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOKEN, SECRET = "sk_live_abc123", "whsec_xyz789..."


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["workers", "router"])
def broker_url(request: pytest.FixtureRequest) -> str | None:
    """With a queue another program's router has the jobs processed, and no worker of ours runs."""
    url: str | None = request.getfixturevalue("sqs_url") if request.param == "router" else None
    return url


class Receiver:
    """What the subscribers do."""

    def __init__(self) -> None:
        self.is_broken = True

    def __call__(self, request: SinkRequest) -> Answer | None:
        if request.path == "/broken" and self.is_broken:
            return Answer(status=500)
        return Answer(delay=2.0) if request.path == "/slow" else None


@asynccontextmanager
async def beside_homing(database_url: str, broker_url: str | None) -> AsyncIterator[httpx.AsyncClient]:
    queue = f"flow-catalyst-dispatch-{uuid4().hex}.fifo"
    settings: dict[str, Any] = {"port": 0, "jobs_backoff_base_seconds": 0.2}
    if broker_url is not None:
        settings |= {"jobs_broker_url": broker_url, "jobs_queue": queue}
    async with job_bench(database_url, **settings) as bench:
        stop, ready = Stop(), asyncio.get_running_loop().create_future()
        work = () if broker_url else ("dispatch_jobs",)
        service = asyncio.create_task(run(bench.homing, stop, api=True, work=work, ready=ready.set_result))
        base_url = await ready
        endpoint = (broker_url or "").replace("sqs://", "http://").partition("?")[0]
        router = asyncio.create_task(Router(endpoint, queue).run()) if broker_url else None
        try:
            async with httpx.AsyncClient(base_url=base_url, timeout=60) as client:
                yield client
        finally:
            if router is not None:
                router.cancel()
            stop.ask()
            await service


def becomes(producer: Producer, id: int, status: str) -> Callable[[], Awaitable[bool]]:
    async def has_become() -> bool:
        return await producer.status(id) == status

    return has_become


@pytest.mark.clause("JOB-07", "JOB-10", "JOB-12", "JOB-14", "JOB-17", "JOB-31", "JOB-34")
async def test_what_another_program_inserts_is_delivered_and_told_in_its_tables(
    database_url: str, broker_url: str | None
) -> None:
    async with HttpSink(Receiver()) as sink, beside_homing(database_url, broker_url) as client:
        producer = Producer(Console(database_url))
        credentials = await producer.create_credentials(TOKEN, SECRET)
        fine = await producer.create_job(f"{sink.url}/ok", credentials_id=credentials)
        failing = await producer.create_job(f"{sink.url}/broken", credentials_id=credentials)
        await eventually(becomes(producer, fine, "COMPLETED"), 120)
        await eventually(becomes(producer, failing, "ERROR"), 120)

        (request,) = [one for one in sink.requests if one.path == "/ok"]
        assert request.body == b'{"orderId":"12345"}'
        headers = {name: request.header(name) or "" for name in (
            "X-FLOWCATALYST-TIMESTAMP", "X-FLOWCATALYST-SIGNATURE", "Authorization", "X-Custom-Header",
        )}  # fmt: skip
        assert is_signed(headers, request.body, TOKEN, SECRET)
        assert headers["X-Custom-Header"] == "value"

        row = await producer.job(fine)
        assert (row["attempt_count"], row["last_error"], row["completed_at"] is not None) == (1, None, True)
        row = await producer.job(failing)
        assert (row["attempt_count"], row["last_error"]) == (2, "HTTP 500")
        (attempt,) = await producer.attempts(fine)
        assert (attempt["attempt_number"], attempt["status"], attempt["response_code"]) == (1, "SUCCESS", 200)
        told = [
            (a["attempt_number"], a["status"], a["response_code"]) for a in await producer.attempts(failing)
        ]
        assert told == [(1, "FAILURE", 500), (2, "FAILURE", 500)]

        assert await producer.find_by_metadata("tenant id", "acme corp") == [fine, failing]
        found = await client.get("/api/dispatch/jobs", params={"metadata.tenant id": "acme corp"})
        assert found.json()["totalItems"] == 2
        (kept,) = await producer.console.run(("SELECT * FROM dispatch_credentials", []))
        assert (kept["bearer_token"], kept["signing_secret"]) == (TOKEN, SECRET)


@pytest.mark.clause("JOB-19", "JOB-29", "JOB-33")
async def test_rows_that_are_not_to_be_sent_are_not(database_url: str, broker_url: str | None) -> None:
    async with HttpSink(Receiver()) as sink, beside_homing(database_url, broker_url):
        producer = Producer(Console(database_url))
        console, url = producer.console, f"{sink.url}/ok"
        wrong = {
            await producer.create_job(url, protocol="GRPC"): "unknown_protocol",
            await producer.create_job(url, retry_strategy="quadratic"): "unknown_retry_strategy",
            await producer.create_job("nonsense"): "invalid_url",
            await producer.create_job(url, status="FAILED", attempt_count=2): "attempts_used_up",
            await producer.create_job(
                url, (f"UPDATE dispatch_job SET expires_at = {console.an_hour_ago()} WHERE id = ?", [])
            ): "expired",
        }
        later = f"UPDATE dispatch_job SET scheduled_for = {console.in_an_hour()} WHERE id = ?"
        postponed = await producer.create_job(url, (later, []))
        cancelled = await producer.create_job(
            url, ("UPDATE dispatch_job SET status = 'CANCELLED' WHERE id = ?", [])
        )
        for id, error_class in wrong.items():
            await eventually(becomes(producer, id, "ERROR"), 120)
            assert (await producer.job(id))["error_class"] == error_class
        # One that may be sent came after all of these.
        fine = await producer.create_job(url)
        await eventually(becomes(producer, fine, "COMPLETED"), 120)
        assert sink.count == 1
        assert [await producer.status(id) for id in (postponed, cancelled)] == ["PENDING", "CANCELLED"]

        await console.run(("UPDATE dispatch_job SET scheduled_for = NULL WHERE id = ?", [postponed]))
        await eventually(becomes(producer, postponed, "COMPLETED"), 120)
        assert sink.count == 2


@pytest.mark.clause("JOB-09", "JOB-30")
async def test_an_operator_with_a_console_has_the_last_word(
    database_url: str, broker_url: str | None
) -> None:
    receiver = Receiver()
    async with HttpSink(receiver) as sink, beside_homing(database_url, broker_url):
        producer = Producer(Console(database_url))
        died = [await producer.create_job(f"{sink.url}/broken") for _ in range(2)]
        for id in died:
            await eventually(becomes(producer, id, "ERROR"), 120)
        receiver.is_broken = False
        again = "UPDATE dispatch_job SET status = 'PENDING', attempt_count = 0 WHERE id = ?"
        more = "UPDATE dispatch_job SET status = 'PENDING', max_retries = 5 WHERE id = ?"
        await producer.console.run((again, [died[0]]), (more, [died[1]]))
        for id in died:
            await eventually(becomes(producer, id, "COMPLETED"), 120)
            assert [a["status"] for a in await producer.attempts(id)].count("SUCCESS") == 1

        slow = await producer.create_job(f"{sink.url}/slow")
        await eventually(becomes(producer, slow, "IN_PROGRESS"), 120)
        await producer.console.run(("UPDATE dispatch_job SET status = 'CANCELLED' WHERE id = ?", [slow]))

        async def recorded() -> list[dict[str, Any]]:
            return await producer.attempts(slow)

        await eventually(recorded, 120)
        (attempt,) = await producer.attempts(slow)
        assert (attempt["status"], attempt["response_code"]) == ("SUCCESS", 200)
        row = await producer.job(slow)
        assert (row["status"], row["attempt_count"], row["completed_at"]) == ("CANCELLED", 1, None)
