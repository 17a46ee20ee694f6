"""The webhook race measures what it says: everybody sends the same signed POSTs, each of them once.

How fast anybody is stands in `docs/benchmarks.md` and is asserted nowhere: a busy machine is no bug.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import asyncpg
import httpx
import pytest
from standardwebhooks.webhooks import Webhook
from tests.conftest import require

from homing.proof.bench.child import in_child
from homing.proof.bench.contender import Round
from homing.proof.bench.create import CreateJob, Load
from homing.proof.bench.race import HOMING, LIMIT, ON_SQLITE, Entrant, entrants_here
from homing.proof.bench.sample_jobs import (
    BEARER_TOKEN,
    PAYLOAD_BYTES,
    SIGNING_SECRET,
    sample_jobs,
    sample_payload,
)
from homing.proof.bench.webhook_contender import WebhookJob, cpu_seconds
from homing.proof.bench.webhook_race import CELERY, ENTRANTS, webhook_race
from homing.proof.bench.webhook_sink import ArrivalCounter, WebhookSink, find_nginx
from homing.testing.components.postgres import Postgres
from homing.testing.components.processes import wait_until
from homing.testing.components.rabbitmq import start_rabbitmq
from homing.testing.http_sink import Answer, HttpSink, SinkRequest

JOBS = 200


# ── the sample ───────────────────────────────────────────────────────────────────────────────────


def test_payloads_are_different_json_of_the_same_size() -> None:
    jobs = list(sample_jobs(3, 80))
    assert [json.loads(job.payload)["orderId"] for job in jobs] == ["00000001", "00000002", "00000003"]
    assert {len(job.payload.encode()) for job in jobs} == {PAYLOAD_BYTES}
    assert len({job.id for job in jobs}) == 3


def test_the_time_of_workers_is_counted() -> None:
    """A worker that keeps busy, and we who wait for it."""
    before, ours = cpu_seconds(), time.process_time()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as worker:
        wait_until(
            lambda: cpu_seconds() - before > 0.3 + time.process_time() - ours, "seeing a worker's time", 30
        )
        worker.kill()


# ── the receiver ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def nginx() -> Iterator[WebhookSink]:
    with WebhookSink(require(find_nginx())) as sink:
        yield sink


@pytest.mark.slow
async def test_the_sink_counts_posts_and_not_questions(nginx: WebhookSink) -> None:
    counter, other = ArrivalCounter(nginx.port), ArrivalCounter(nginx.port)
    other.close()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{nginx.port}") as client:
        before = counter.arrived()
        for _ in range(3):
            assert (await client.post("/webhooks/orders", content=sample_payload(1))).status_code == 200
        assert counter.arrived() - before == 3
        assert counter.arrived() - before == 3
    counter.close()


# ── everybody does the same work ─────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def broker_url() -> Iterator[str]:
    with require(start_rabbitmq()) as server:
        yield server.url


@pytest.mark.slow
@pytest.mark.parametrize("entrant", ENTRANTS, ids=lambda entrant: entrant.name)
async def test_every_contender_delivers_each_job_once(
    entrant: Entrant, postgres_url: str, request: pytest.FixtureRequest
) -> None:
    if entrant not in entrants_here(ENTRANTS)[0]:
        pytest.skip(f"{entrant.needs} is not installed")
    broker_url = request.getfixturevalue("broker_url") if entrant.name == CELERY else None
    async with HttpSink() as sink:
        # As nginx counts, for those who end with the last arrival.
        sink.script = lambda asked: _counted(sink) if asked.path == "/counted" else None
        job = WebhookJob(f"homing.proof.bench.{entrant.contender}", JOBS, sink.port, postgres_url, broker_url)
        measured = await in_child("homing.proof.bench.webhook_contender:run_round", job, Round, seconds=60)
    assert measured.delivered == JOBS
    assert measured.seconds > 0
    assert measured.cpu_seconds > 0
    arrived = [received for received in sink.requests if received.path == "/webhooks/orders"]
    assert len(arrived) == JOBS
    if entrant.name != LIMIT:
        _check_signed_once(arrived)


def _counted(sink: HttpSink) -> Answer:
    return Answer(body=f"server accepts handled requests\n 1 1 {sink.count} \n".encode())


def _check_signed_once(arrived: list[SinkRequest]) -> None:
    bodies = Counter(received.body.decode() for received in arrived)
    assert bodies == Counter(sample_payload(number) for number in range(1, JOBS + 1))
    assert set(Counter(received.header("webhook-id") for received in arrived).values()) == {1}
    for received in arrived:
        assert Webhook(SIGNING_SECRET).verify(received.body, _lower(received)) == json.loads(received.body)
        assert received.header("authorization") == f"Bearer {BEARER_TOKEN}"
        assert received.header("content-type") == "application/json"


def _lower(received: SinkRequest) -> dict[str, str]:
    return {name.lower(): value for name, value in received.headers}


@pytest.mark.slow
async def test_a_run_goes_in_turns_and_has_a_line_for_everybody(
    postgres_server: Postgres, nginx: WebhookSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tuple(entrant for entrant in ENTRANTS if entrant.needs is None)
    absent = Entrant("absent", "nowhere:Nobody", 1.0, 3.0, needs="a_package_that_is_not_there")
    monkeypatch.setattr("homing.proof.bench.webhook_race.ENTRANTS", (*ours, absent))
    steps: list[str] = []
    table = await webhook_race(100, 2, steps.append, postgres_url=postgres_server.url())
    assert [line.name for line in table.lines] == [LIMIT, HOMING, ON_SQLITE]
    assert steps == [f"round {number} of 2: {entrant.name}" for number in (1, 2) for entrant in ours]
    assert all(min(line.rate.values) > 0 for line in table.lines)
    assert table.left_out == ("absent",)
    assert {budget.what: budget.bound for budget in table.budgets} == {
        "Homing, of the limit": 0.6,
        "SQL statements per delivery": 0.05,
    }


# ── creates ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_created_jobs_are_in_the_table(postgres_url: str) -> None:
    job = CreateJob("dispatch_jobs", postgres_url, requests=JOBS, connections=8)
    load = await in_child("homing.proof.bench.create:serve_under_load", job, Load, seconds=60)
    assert load.requests == JOBS
    connection = await asyncpg.connect(postgres_url)
    # The warm-up's are there as well.
    assert await connection.fetchval("SELECT count(*) FROM dispatch_job") == JOBS + 500
    await connection.close()


@pytest.mark.slow
async def test_the_endpoint_without_a_database_answers_alike() -> None:
    job = CreateJob("dispatch_jobs", None, requests=JOBS, connections=8)
    load = await in_child("homing.proof.bench.create:serve_under_load", job, Load, seconds=60)
    assert load.requests == JOBS
