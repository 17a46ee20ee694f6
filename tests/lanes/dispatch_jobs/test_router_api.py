"""`/api/dispatch/process` and `/api/config`, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.apis import api_of
from tests.jobs import JobBench, job_bench

from homing.http.server import serving
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.testing.http_sink import Answer, HttpSink

DEFAULT = {
    "queues": [{"queueUri": "flow-catalyst-dispatch.fifo", "queueName": None, "connections": None}],
    "processingPools": [{"code": "DISPATCH-POOL", "concurrency": 5, "rateLimitPerMinute": None}],
    "connections": 1,
}


class Api:
    def __init__(self, lane: JobBench, client: httpx.AsyncClient) -> None:
        self.lane = lane
        self.client = client

    async def process(self, message_id: str, token: str | None = None) -> httpx.Response:
        given = self.lane.homing.process_tokens.token(message_id) if token is None else token
        return await self.client.post(
            "/api/dispatch/process",
            json={"messageId": message_id},
            headers={"Authorization": f"Bearer {given}"},
        )


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with (
        job_bench(database_url, jobs_backoff_base_seconds=40.0) as lane,
        serving(api_of(lane.homing, lane.homing.jobs_part), "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        yield Api(lane, client)


# ── process ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-10")
async def test_a_message_is_answered_by_what_became_of_its_job(api: Api) -> None:
    async with HttpSink({"/bad": Answer(status=500)}) as sink:
        (good,) = await api.lane.create(sink.url)
        (bad,) = await api.lane.create(f"{sink.url}/bad", max_retries=2, retry_strategy="fixed")
        taken = await api.process(text_of(good))
        assert taken.status_code == 200
        assert taken.json() == {"ack": True, "message": "delivered", "delaySeconds": 0}
        failed = await api.process(text_of(bad))
        assert failed.status_code == 400
        assert failed.json() == {"ack": False, "message": "failed: HTTP 500", "delaySeconds": 40}
        assert (await api.process(text_of(bad))).status_code == 400, "not due yet"
        await api.lane.pass_time(41)
        exhausted = await api.process(text_of(bad))
        assert exhausted.status_code == 200
        assert len(sink.requests) == 3
        assert (await api.process(text_of(good))).json()["message"] == "it is COMPLETED already"
        assert len(sink.requests) == 3
    assert await api.lane.states([good, bad]) == ["COMPLETED", "ERROR"]


@pytest.mark.clause("JOB-10")
@pytest.mark.parametrize("unknown", ["0000000000001", "nonsense", "é"])
async def test_an_unknown_job_is_acknowledged(api: Api, unknown: str) -> None:
    answer = await api.process(unknown)
    assert (answer.status_code, answer.json()["ack"]) == (200, True)


@pytest.mark.clause("JOB-10")
async def test_without_the_token_of_the_job_nothing_happens(api: Api) -> None:
    (id,) = await api.lane.create("https://partner.example/")
    tokens = api.lane.homing.process_tokens
    body = {"messageId": text_of(id)}
    for headers in (
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer x"},
        {"Authorization": f"Basic {tokens.token(text_of(id))}"},
        {"Authorization": f"Bearer {tokens.token(text_of(id + 1))}"},
        {"Authorization": f"Bearer {tokens.token(text_of(id))[:-1]}"},
    ):
        answer = await api.client.post("/api/dispatch/process", json=body, headers=headers)
        assert answer.status_code == 401, headers
        assert answer.json()["error"]["code"] == "UNAUTHORIZED"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert await api.lane.states([id]) == ["PENDING"]
    assert tokens.token(text_of(id)) not in api.lane.log.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{}", "messageId"),
        (b'{"messageId": 5}', "messageId"),
        (b'{"messageid": "x"}', "messageid"),
        (b"[", None),
    ],
)
async def test_a_malformed_request_is_told_what_is_wrong(api: Api, body: bytes, field: str | None) -> None:
    headers = {"Authorization": "Bearer x", "Content-Type": "application/json"}
    answer = await api.client.post("/api/dispatch/process", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"] == ({"field": field} if field else {})


async def test_calls_at_the_same_time_are_answered_each_for_its_own(api: Api) -> None:
    async with HttpSink({"/bad": Answer(status=500)}) as sink:
        good = await api.lane.create(sink.url, 20)
        bad = await api.lane.create(f"{sink.url}/bad", 20)
        answers = await asyncio.gather(*(api.process(text_of(id)) for id in [*good, *bad]))
        assert [answer.status_code for answer in answers] == [200] * 20 + [400] * 20


# ── config ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-13")
async def test_the_configuration_has_a_default_and_can_be_replaced(api: Api) -> None:
    assert (await api.client.get("/api/config")).json() == DEFAULT
    wanted: dict[str, Any] = {
        "queues": [
            {
                "queueUri": "http://localhost:9324/000000000000/flow-catalyst-dispatch.fifo",
                "queueName": None,
                "connections": None,
            },
            {"queueUri": "second", "queueName": "The second", "connections": 3},
        ],
        "processingPools": [{"code": "DISPATCH-POOL", "concurrency": 8, "rateLimitPerMinute": 600}],
        "connections": 2,
    }
    for _ in range(2):
        put = await api.client.put("/api/config", json=wanted)
        assert (put.status_code, put.json()) == (200, wanted)
    assert (await api.client.get("/api/config")).json() == wanted


@pytest.mark.clause("JOB-13")
async def test_the_example_of_the_specification_is_taken_and_concurrency_is_five_by_default(api: Api) -> None:
    put = await api.client.put(
        "/api/config", json={"queues": [{"queueUri": "a.fifo"}], "processingPools": [{"code": "X"}]}
    )
    assert put.status_code == 200
    config = await api.lane.homing.router_configs.read()
    assert (config.processing_pools[0].concurrency, config.connections) == (5, 1)


@pytest.mark.clause("JOB-13")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queues": None}, "queues: must be array, not null"),
        ({"queues": [{"queueUri": ""}]}, "queueUri: must not be empty"),
        ({"queues": [{"queueUri": "a b"}]}, "queues[0].queueUri: must have no spaces or control characters"),
        ({"queues": [{"queueUri": "a"}, {"queueUri": "a"}]}, "queues: a is given 2 times; leave one"),
        ({"queues": [{"queueUrl": "a"}]}, "queueUrl: there is no such field"),
        ({"processingPools": [{"code": "P", "concurrency": 0}]}, "concurrency: must be at least 1"),
        ({"processingPools": [{"code": "P", "concurrency": "5"}]}, "concurrency: must be a number, not text"),
        ({"processingPools": [{"code": "P", "rateLimitPerMinute": 0}]}, "must be at least 1"),
        ({"processingPools": [{"code": "P"}] * 2}, "processingPools: P is given 2 times; leave one"),
        ({"processingPools": [{"code": "P Q"}]}, "processingPools[0].code: must have no spaces"),
        ({"connections": 51}, "connections: must be at most 50"),
        ({"pools": []}, "pools: there is no such field"),
    ],
)
async def test_a_configuration_that_cannot_work_is_refused_with_the_reason(
    api: Api, change: dict[str, Any], message: str
) -> None:
    answer = await api.client.put("/api/config", json={**DEFAULT, **change})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert (await api.client.get("/api/config")).json() == DEFAULT


LONG = "b" * 300


@pytest.mark.clause("JOB-13")
@pytest.mark.parametrize(
    ("broker", "change", "message"),
    [
        ("memory://config", {"queues": []}, "queues: must name one at least"),
        ("memory://config", {"processingPools": []}, "processingPools: must name one at least"),
        ("memory://config", {"queues": [{"queueUri": "a\u202eb"}]}, "must have no spaces or control"),
        ("memory://config", {"queues": [{"queueUri": "amqp://u:hunter2@h/q"}]}, "must have no user"),
        ("amqp://127.0.0.1:1", {"queues": [{"queueUri": LONG}]}, "must have at most 255 bytes"),
        ("amqp://127.0.0.1:1", {"queues": [{"queueUri": "é" * 128}]}, "must have at most 255 bytes"),
        ("amqp://127.0.0.1:1", {"queues": [{"queueUri": "amq.gen"}]}, "must not begin with amq."),
        ("sqs://127.0.0.1:1", {"queues": [{"queueUri": "b" * 81}]}, "of at most 80 letters"),
        ("sqs://127.0.0.1:1", {"queues": [{"queueUri": "b" * 76 + ".fifo"}]}, "of at most 80 letters"),
        ("sqs://127.0.0.1:1", {"queues": [{"queueUri": "é.fifo"}]}, "of at most 80 letters"),
        ("sqs://127.0.0.1:1", {"queues": [{"queueUri": "a/b"}]}, "must be a name, or a URL"),
        ("sqs://127.0.0.1:1", {"queues": [{"queueUri": "https://host/0/"}]}, "of at most 80 letters"),
    ],
)
async def test_a_configuration_that_the_broker_cannot_have_is_refused(
    database_url: str, broker: str, change: dict[str, Any], message: str
) -> None:
    async with _with_broker(database_url, broker) as client:
        answer = await client.put("/api/config", json={**DEFAULT, **change})
        assert answer.status_code == 400, answer.text
        assert message in answer.json()["error"]["message"]
        assert "hunter2" not in answer.text
        assert (await client.get("/api/config")).json() == DEFAULT


@pytest.mark.parametrize(
    ("broker", "uri"),
    [
        ("memory://config", LONG),
        ("amqp://127.0.0.1:1", "b" * 255),
        ("amqp://127.0.0.1:1", "with.dots/and-more"),
        ("sqs://127.0.0.1:1", "b" * 80),
        ("sqs://127.0.0.1:1", "b" * 75 + ".fifo"),
        ("sqs://127.0.0.1:1", "http://localhost:9324/000000000000/flow-catalyst-dispatch.fifo"),
    ],
)
async def test_a_queue_that_the_broker_can_have_is_taken(database_url: str, broker: str, uri: str) -> None:
    async with _with_broker(database_url, broker) as client:
        answer = await client.put("/api/config", json={**DEFAULT, "queues": [{"queueUri": uri}]})
        assert answer.status_code == 200, answer.text


async def test_without_a_broker_there_need_be_no_queues(api: Api) -> None:
    empty: dict[str, Any] = {"queues": [], "processingPools": []}
    assert (await api.client.put("/api/config", json=empty)).status_code == 200


@asynccontextmanager
async def _with_broker(database_url: str, broker: str) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        job_bench(database_url, jobs_broker_url=broker) as lane,
        serving(api_of(lane.homing, lane.homing.jobs_part), "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        yield client
