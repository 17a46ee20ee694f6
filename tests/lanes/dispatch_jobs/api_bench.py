"""The API of dispatch jobs on a database of the test's own, served over HTTP, and plain SQL beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from tests.outbox import LogLines
from tests.tables import Tables

from homing.db import Database, connect
from homing.db.migrate import load_migrations, migrate
from homing.engine.model import Bury, Claim, Complete, Failure, RetryIn, Settlement
from homing.http.app import build_app
from homing.http.server import serving
from homing.lanes.dispatch_jobs.api import ROUTES, job_dependencies
from homing.lanes.dispatch_jobs.job import Job, Report
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.key_index import replace_key_index
from homing.lanes.dispatch_jobs.orders import Rules
from homing.lanes.dispatch_jobs.target import Targets
from homing.lanes.dispatch_jobs.target_desk import ProbeRequest, ProbeResult
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.senders.egress import EgressGuard
from homing.telemetry import Telemetry, make_logger

CREDENTIALS = 4242
URL = "https://partner.example.com/hooks"
JOB: dict[str, Any] = {
    "source": "order-service",
    "type": "order.created",
    "targetUrl": URL,
    "payload": '{"orderId":"12345"}',
}


class ApiBench:
    """What a test of the API holds in its hands."""

    def __init__(self, database: Database, log: LogLines) -> None:
        self.database = database
        self.log = log
        self.telemetry = Telemetry(make_logger("json", 10, log.stream), CollectorRegistry())
        targets = Targets(slots=10_000, connections=10_000)
        self.jobs = DispatchJobs(database, targets, owner="test", lease_seconds=60)
        self.client: httpx.AsyncClient
        self.probed: list[ProbeRequest] = []

    def app(self) -> Any:
        rules = Rules(EgressGuard().url_refusal)
        needed = job_dependencies(self.jobs, self.telemetry, rules, admit=self._admit, probe=self._probe)
        health = {"telemetry": self.telemetry, "check_ready": _nothing, "refresh_gauges": _nothing}
        return build_app(ROUTES, {**needed, **health}, self.telemetry, static=False)

    async def _admit(self, id: int, _origins: Collection[str], _adds: bool) -> frozenset[str] | None:
        return frozenset() if id == CREDENTIALS else None

    async def _probe(self, request: ProbeRequest) -> ProbeResult:
        self.probed.append(request)
        return ProbeResult(
            status=204,
            headers={"server": "x"},
            body="",
            duration_millis=5,
            error=None,
            error_class=None,
            completes=True,
        )

    # ── over HTTP ────────────────────────────────────────────────────────────────────────────────

    async def create(self, **fields: Any) -> dict[str, Any]:
        response = await self.client.post("/api/dispatch/jobs", json={**JOB, **fields})
        assert response.status_code == 201, response.text
        created: dict[str, Any] = response.json()
        return created

    async def create_many(self, jobs: list[dict[str, Any]]) -> list[str]:
        response = await self.client.post("/api/dispatch/jobs/batch", json=[{**JOB, **job} for job in jobs])
        assert response.json()["created"] == len(jobs), response.text
        return [item["id"] for item in response.json()["items"]]

    async def get(self, path: str, **parameters: Any) -> Any:
        response = await self.client.get(f"/api/dispatch/{path}", params=parameters)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None) -> Any:
        response = await self.client.post(f"/api/dispatch/{path}", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    # ── as a worker ──────────────────────────────────────────────────────────────────────────────

    async def claim(self, limit: int = 1000) -> list[Claim[Job]]:
        return await self.jobs.claim(limit)

    async def settle(self, claims: list[Claim[Job]], settlement: Settlement) -> None:
        settled = await self.jobs.settle([(claim, settlement) for claim in claims])
        assert settled == {claim.id for claim in claims}
        await self.jobs.judged()

    async def complete_all(self) -> None:
        await self.settle(await self.claim(), DELIVERED)

    async def bury_all(self, code: str = "http_500", message: str = "HTTP 500") -> None:
        await self.settle(await self.claim(), _given_up(code, message))

    @property
    def tables(self) -> Tables:
        return Tables(self.database)

    async def sql(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        return await self.tables.sql(statement, **parameters)

    async def stored(self) -> int:
        return len(await self.tables.rows("dispatch_job"))


def _given_up(code: str, message: str) -> Bury:
    return Bury(Failure(code, message), report=Report(0.1, 500, "oops", {}))


DELIVERED = Complete(Report(0.25, 200, "thanks", {"x-a": "b"}))
TRY_AGAIN = RetryIn(
    600.0,
    Failure("http_503", "HTTP 503"),
    charged=True,
    report=Report(0.1, 503, "busy", {}, target_failed=True),
)
GIVEN_UP = _given_up("http_500", "HTTP 500")
CREDENTIALS_TEXT = text_of(CREDENTIALS)


async def _nothing() -> None:
    return None


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@asynccontextmanager
async def api_bench(database_url: str) -> AsyncIterator[ApiBench]:
    log = LogLines()
    database = connect(database_url)
    try:
        await migrate(database, load_migrations(["homing.lanes.dispatch_jobs"], database.dialect))
        await replace_key_index(database)
        bench = ApiBench(database, log)
        async with (
            serving(bench.app(), "127.0.0.1", 0) as address,
            httpx.AsyncClient(
                base_url=address, timeout=30, limits=httpx.Limits(max_connections=200)
            ) as client,
        ):
            bench.client = client
            yield bench
    finally:
        await database.close()
