"""`/api/dispatch/jobs`: created, looked at, cancelled, requeued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.lanes.dispatch_jobs.api_bench import (
    CREDENTIALS_TEXT,
    DELIVERED,
    JOB,
    TRY_AGAIN,
    URL,
    ApiBench,
    api_bench,
    moment,
)

from homing.db.mongo import MongoDatabase
from homing.lanes.dispatch_jobs.tsid import number_of, time_of


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[ApiBench]:
    async with api_bench(database_url) as bench:
        yield bench


def in_future(**length: float) -> str:
    return (datetime.now(UTC) + timedelta(**length)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ── create and get ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-01", "JOB-15")
async def test_a_job_is_created_with_defaults(api: ApiBench) -> None:
    response = await api.client.post("/api/dispatch/jobs", json=JOB)
    assert response.status_code == 201
    job = response.json()
    assert (job["status"], job["attemptCount"], job["maxRetries"]) == ("PENDING", 0, 3)
    assert (job["protocol"], job["payloadContentType"]) == ("HTTP_WEBHOOK", "application/json")
    assert (job["retryStrategy"], job["ordering"], job["credentialsId"]) == ("exponential", "none", None)
    assert {name: job[name] for name in JOB} == JOB
    assert len(job["id"]) == 13
    assert abs(time_of(number_of(job["id"]) or 0) - moment(job["createdAt"])) <= timedelta(minutes=1)
    assert response.headers["location"] == f"/api/dispatch/jobs/{job['id']}"
    assert job["createdAt"].endswith("Z")
    assert len(job["createdAt"]) == len("2025-10-04T14:30:00.000Z")


@pytest.mark.clause("JOB-01", "JOB-02", "JOB-19")
async def test_every_field_is_echoed_and_kept(api: ApiBench) -> None:
    full = {
        **JOB,
        "externalId": "0123456789abcdef0123456789abcdef",
        "groupId": "order-12345",
        "metadata": {"tenantId": "acme-corp", "priority": "high"},
        "protocol": "HTTP_WEBHOOK",
        "headers": {"X-Custom-Header": "value"},
        "payloadContentType": "text/plain; charset=utf-8",
        "credentialsId": CREDENTIALS_TEXT,
        "maxRetries": 7,
        "retryStrategy": "linear",
        "scheduledFor": in_future(hours=1),
        "expiresAt": in_future(hours=2),
        "idempotencyKey": "order-12345",
        "queueUrl": "http://127.0.0.1:9324/000000000000/dispatch.fifo",
        "ordering": "none",
        "timeoutSeconds": 2.5,
    }
    created = await api.create(**full)
    assert {name: created[name] for name in full} == full
    assert created["waitingFor"]["reason"] == "scheduled"
    found = await api.get(f"jobs/{created['id']}")
    # One clock is the transaction's, the other the statement's: due and created may be a millisecond apart.
    assert {**found, "updatedAt": created["updatedAt"]} == created


async def test_what_is_null_counts_as_left_out(api: ApiBench) -> None:
    optional = {
        "externalId", "groupId", "metadata", "protocol", "headers", "payloadContentType", "credentialsId",
        "maxRetries", "retryStrategy", "scheduledFor", "expiresAt", "idempotencyKey", "queueUrl", "ordering",
        "timeoutSeconds",
    }  # fmt: skip
    job = await api.create(**dict.fromkeys(optional))
    assert (job["maxRetries"], job["protocol"], job["metadata"], job["headers"]) == (
        3,
        "HTTP_WEBHOOK",
        {},
        {},
    )


async def test_text_of_any_script_survives(api: ApiBench) -> None:
    payload = "Grüße, 日本語, 🚀, \\ \" ' \n\t end"
    job = await api.create(payload=payload, source="søurce", metadata={"k": "wert ü 🚀"})
    found = await api.get(f"jobs/{job['id']}")
    assert (found["payload"], found["source"], found["metadata"]) == (payload, "søurce", {"k": "wert ü 🚀"})


@pytest.mark.clause("JOB-02", "JOB-04")
async def test_a_completed_job_and_its_attempts(api: ApiBench) -> None:
    job = await api.create()
    await api.settle(await api.claim(), TRY_AGAIN)
    waiting = await api.get(f"jobs/{job['id']}")
    assert (waiting["status"], waiting["attemptCount"], waiting["lastError"]) == ("FAILED", 1, "HTTP 503")
    assert (waiting["errorClass"], waiting["waitingFor"]["reason"]) == ("http_503", "retry")
    assert waiting["waitingFor"]["until"] == waiting["nextAttemptAt"]
    await api.tables.shift("dispatch_job", ["next_attempt_at"], 1000)
    await api.complete_all()
    done = await api.get(f"jobs/{job['id']}")
    assert (done["status"], done["attemptCount"], done["lastError"]) == ("COMPLETED", 2, None)
    assert done["durationMillis"] >= 0
    assert moment(done["completedAt"]) >= moment(done["createdAt"])
    assert (done["nextAttemptAt"], done["waitingFor"]) == (None, None)
    first, second = await api.get(f"jobs/{job['id']}/attempts")
    assert (first["attemptNumber"], first["status"], first["responseCode"]) == (1, "FAILURE", 503)
    assert (first["errorMessage"], first["errorClass"], first["unknown"]) == ("HTTP 503", "http_503", False)
    assert (second["attemptNumber"], second["status"], second["responseCode"]) == (2, "SUCCESS", 200)
    assert (second["responseBody"], second["responseHeaders"]) == ("thanks", {"x-a": "b"})
    assert (second["durationMillis"], len(second["id"])) == (250, 13)
    assert moment(second["completedAt"]) >= moment(second["attemptedAt"])


@pytest.mark.clause("JOB-04")
async def test_unknown_jobs_are_404(api: ApiBench) -> None:
    job = await api.create()
    assert await api.get(f"jobs/{job['id']}/attempts") == []
    for path in (
        "0000000000000",
        "0000000000000/attempts",
        "nonsense",
        "ZZZZZZZZZZZZZ",
        "%00",
        "🚀/attempts",
    ):
        response = await api.client.get(f"/api/dispatch/jobs/{path}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "NOT_FOUND"), path
    for verb in ("cancel", "requeue"):
        assert (await api.client.post(f"/api/dispatch/jobs/0000000000000/{verb}")).status_code == 404


async def test_an_id_is_read_as_people_write_it(api: ApiBench) -> None:
    job = await api.create()
    assert (await api.get(f"jobs/{job['id'].lower()}"))["id"] == job["id"]


# ── what a job waits for ─────────────────────────────────────────────────────────────────────────


async def test_a_job_says_what_it_waits_for(api: ApiBench) -> None:
    free = await api.create()
    assert (await api.get(f"jobs/{free['id']}"))["waitingFor"] is None
    paused = await api.post("targets/pause", {"targetUrl": URL, "seconds": 60, "reason": "moving house"})
    waiting = (await api.get(f"jobs/{free['id']}"))["waitingFor"]
    assert (waiting["reason"], waiting["until"]) == ("target_paused", paused["until"])
    assert "moving house" in waiting["message"]
    # Of two reasons the one that lasts longer is told.
    scheduled = await api.create(scheduledFor=in_future(hours=1))
    waiting = (await api.get(f"jobs/{scheduled['id']}"))["waitingFor"]
    assert (waiting["reason"], waiting["until"]) == ("scheduled", scheduled["scheduledFor"])
    await api.post("targets/resume", {"targetUrl": URL})
    assert (await api.get(f"jobs/{free['id']}"))["waitingFor"] is None


async def test_a_job_behind_others_of_its_group_names_the_first(api: ApiBench) -> None:
    first = await api.create(groupId="g", ordering="group")
    second = await api.create(groupId="g", ordering="group")
    assert first["waitingFor"] is None
    assert second["waitingFor"]["reason"] == "group"
    assert second["waitingFor"]["jobId"] == first["id"]
    await api.post(f"jobs/{first['id']}/cancel")
    assert (await api.get(f"jobs/{second['id']}"))["waitingFor"] is None


async def test_a_job_of_a_broken_target_says_so(api: ApiBench) -> None:
    jobs = await api.create_many([{"targetUrl": f"{URL}/{n % 2}"} for n in range(11)])
    claims = await api.claim()
    await api.settle(claims[:10], TRY_AGAIN)
    await api.jobs.release(claims[10:])
    left = next(job for job in jobs if number_of(job) == claims[10].id)
    waiting = (await api.get(f"jobs/{left}"))["waitingFor"]
    assert waiting["reason"] == "breaker_open"
    assert "HTTP 503" in waiting["message"]
    assert moment(waiting["until"]) > datetime.now(UTC)


@pytest.mark.clause("JOB-01", "JOB-02")
async def test_a_job_is_due_when_it_was_created_in_every_answer(api: ApiBench) -> None:
    for _ in range(20):
        created = await api.create()
        assert created["nextAttemptAt"] == created["createdAt"]
        shown = await api.get(f"jobs/{created['id']}")
        assert (shown["nextAttemptAt"], shown["createdAt"]) == (created["createdAt"], created["createdAt"])
    later = "2031-01-31T12:00:00.123999Z"
    scheduled = await api.create(scheduledFor=later)
    shown = await api.get(f"jobs/{scheduled['id']}")
    # To the millisecond that has begun, everywhere.
    assert {scheduled["nextAttemptAt"], shown["nextAttemptAt"], shown["scheduledFor"]} == {later[:-4] + "Z"}
    assert shown["waitingFor"]["until"] == scheduled["waitingFor"]["until"] == later[:-4] + "Z"


# ── idempotency ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-18")
async def test_an_idempotency_key_is_honoured(api: ApiBench) -> None:
    order = {**JOB, "idempotencyKey": "order-1", "metadata": {"b": "2", "a": "1"}}
    first = await api.client.post("/api/dispatch/jobs", json=order)
    # The same in other words: defaults spelt out, another order of entries.
    again = await api.client.post(
        "/api/dispatch/jobs",
        json={**order, "maxRetries": 3, "metadata": {"a": "1", "b": "2"}, "headers": None},
    )
    other = await api.client.post("/api/dispatch/jobs", json={**order, "payload": "{}"})
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["payload"] == JOB["payload"]
    assert other.json()["error"]["code"] == "CONFLICT"
    assert first.json()["id"] in other.json()["error"]["message"]
    assert await api.stored() == 1


@pytest.mark.clause("JOB-18", "JOB-23")
async def test_one_key_serves_all_subscribers_of_an_event(api: ApiBench) -> None:
    ids = await api.create_many(
        [
            {"idempotencyKey": "event-1"},
            {"idempotencyKey": "event-1", "targetUrl": "https://other.example.com/"},
            {"idempotencyKey": "event-1", "type": "order.paid"},
            {"idempotencyKey": "event-1", "source": "billing"},
        ]
    )
    assert len(set(ids)) == 4


@pytest.mark.clause("JOB-18")
async def test_one_key_serves_two_subscribers_behind_one_url(api: ApiBench) -> None:
    async def create(**fields: Any) -> Any:
        return await api.client.post(
            "/api/dispatch/jobs", json={**JOB, "idempotencyKey": "event-1", **fields}
        )

    signed = await create(credentialsId=CREDENTIALS_TEXT)
    unsigned = await create()
    assert (signed.status_code, unsigned.status_code) == (201, 201)
    assert (await create(credentialsId=CREDENTIALS_TEXT)).json()["id"] == signed.json()["id"]
    assert (await create()).json()["id"] == unsigned.json()["id"]
    other = await create(credentialsId=CREDENTIALS_TEXT, payload="{}")
    assert other.status_code == 409
    assert signed.json()["id"] in other.json()["error"]["message"]
    jobs = [
        {**JOB, "idempotencyKey": "event-2", "credentialsId": credentials}
        for credentials in (CREDENTIALS_TEXT, None)
    ]
    for created in (2, 0):
        reply = await api.post("jobs/batch", {"jobs": jobs, "atomic": True})
        assert reply["created"] == created
    assert await api.stored() == 4


@pytest.mark.clause("JOB-18")
async def test_two_hundred_creates_with_twenty_keys_are_twenty_jobs(api: ApiBench) -> None:
    async def create(n: int) -> tuple[str, int, str]:
        order = {**JOB, "idempotencyKey": f"key-{n % 20}", "payload": f"{n % 20}"}
        if n % 10 == 9:
            order["payload"] = "something else"
        response = await api.client.post("/api/dispatch/jobs", json=order)
        return order["idempotencyKey"], response.status_code, response.json().get("id", "")

    answers = await asyncio.gather(*(create(n) for n in range(200)))
    assert await api.stored() == 20
    for key in {key for key, _, _ in answers}:
        mine = [(status, id) for k, status, id in answers if k == key]
        assert [status for status, _ in mine].count(201) == 1, key
        assert len({id for status, id in mine if status in {200, 201}}) == 1, key
    assert {status for _, status, _ in answers} <= {200, 201, 409}


@pytest.mark.clause("JOB-18", "JOB-23")
async def test_batches_in_opposite_orders_do_not_deadlock(api: ApiBench) -> None:
    """One key for many subscribers, many keys for one: always the same jobs, in opposite orders."""
    for round_ in range(10):
        jobs = [
            {**JOB, "idempotencyKey": f"{round_}-{n % 4}", "targetUrl": f"https://a{n}.example.com/"}
            for n in range(60)
        ]
        responses = await asyncio.gather(
            *(
                api.client.post("/api/dispatch/jobs/batch", json=jobs if n % 2 else jobs[::-1])
                for n in range(4)
            )
        )
        assert [r.status_code for r in responses] == [200] * 4
        assert sum(r.json()["created"] for r in responses) == 60
    assert await api.stored() == 600


async def refuse_source(api: ApiBench, source: str) -> None:
    """A row that the database does not take, though we would."""
    if isinstance(api.database, MongoDatabase):
        found = await api.database.opened.command("listCollections", filter={"name": "dispatch_job"})
        known = found["cursor"]["firstBatch"][0]["options"]["validator"]
        also = {"$and": [known, {"source": {"$ne": source}}]}
        await api.database.opened.command({"collMod": "dispatch_job", "validator": also})
    elif api.database.dialect == "postgres":
        await api.database.run_script(
            f"ALTER TABLE dispatch_job ADD CONSTRAINT no_such_source CHECK (source <> '{source}')"
        )
    else:
        await api.database.run_script(
            f"CREATE TRIGGER no_such_source BEFORE INSERT ON dispatch_job WHEN NEW.source = '{source}' "
            "BEGIN SELECT RAISE(ABORT, 'no such source'); END;"
        )


async def test_a_bad_row_fails_alone(api: ApiBench) -> None:
    await refuse_source(api, "cursed")
    responses = await asyncio.gather(
        *(
            api.client.post("/api/dispatch/jobs", json={**JOB, "source": "cursed" if n == 25 else "well"})
            for n in range(50)
        )
    )
    assert sorted(r.status_code for r in responses) == [201] * 49 + [400]
    batch = await api.client.post(
        "/api/dispatch/jobs/batch", json=[JOB, {**JOB, "source": "cursed"}, {**JOB, "idempotencyKey": "k"}]
    )
    assert [item["verdict"] for item in batch.json()["items"]] == ["created", "invalid", "created"]
    assert await api.stored() == 51


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-23", "JOB-25")
async def test_a_batch_gets_a_verdict_per_item(api: ApiBench) -> None:
    await api.create(idempotencyKey="old")
    items = [
        JOB,
        {**JOB, "targetUrl": "nonsense"},
        {**JOB, "idempotencyKey": "old"},
        {**JOB, "idempotencyKey": "old", "payload": "other"},
        {**JOB, "surprise": 1},
        {**JOB, "idempotencyKey": "twice"},
        {**JOB, "idempotencyKey": "twice"},
        {**JOB, "credentialsId": "0000000000001"},
        {**JOB, "payload": "x" * (1024 * 1024 + 1)},
        7,
    ]
    for body in (items, {"jobs": items}):
        response = await api.client.post("/api/dispatch/jobs/batch", json=body)
        assert response.status_code == 200
        verdicts = [item["verdict"] for item in response.json()["items"]]
        first_time = body is items
        assert verdicts == [
            "created", "invalid", "duplicate", "conflict", "invalid",
            "created" if first_time else "duplicate", "duplicate", "invalid", "invalid", "invalid",
        ]  # fmt: skip
        assert response.json()["created"] == (2 if first_time else 1)
    answers = response.json()["items"]
    assert answers[1]["error"]["details"] == {"field": "targetUrl"}
    assert answers[3]["error"]["code"] == "CONFLICT"
    assert answers[5]["id"] == answers[6]["id"]
    assert answers[7]["error"]["details"] == {"field": "credentialsId"}
    assert answers[8]["error"]["code"] == "PAYLOAD_TOO_LARGE"
    assert await api.stored() == 4


@pytest.mark.clause("JOB-23")
async def test_a_batch_has_one_to_a_thousand_jobs(api: ApiBench) -> None:
    response = await api.client.post("/api/dispatch/jobs/batch", json=[JOB] * 1000)
    assert response.json()["created"] == 1000
    ids = [item["id"] for item in response.json()["items"]]
    assert ids == sorted(set(ids))
    bodies: list[Any] = [[], [JOB] * 1001, {"jobs": []}, {}, 5, {"jobs": [JOB], "atomc": True}, {"jobs": JOB}]
    for body in bodies:
        response = await api.client.post("/api/dispatch/jobs/batch", json=body)
        assert response.status_code == 400, response.text
    assert await api.stored() == 1000


async def test_a_batch_is_at_most_sixteen_mebibytes(api: ApiBench) -> None:
    response = await api.client.post(
        "/api/dispatch/jobs/batch", json=[{**JOB, "payload": "x" * 1_000_000}] * 17
    )
    assert (response.status_code, response.json()["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert await api.stored() == 0


@pytest.mark.clause("JOB-23")
async def test_an_atomic_batch_is_created_as_a_whole(api: ApiBench) -> None:
    first = await api.create(idempotencyKey="old")
    body = {"jobs": [JOB, {**JOB, "idempotencyKey": "old"}, {**JOB, "groupId": "g", "ordering": "group"}]}
    reply = await api.post("jobs/batch", {**body, "atomic": True})
    assert [item["verdict"] for item in reply["items"]] == ["created", "duplicate", "created"]
    assert (reply["created"], reply["items"][1]["id"]) == (2, first["id"])
    assert await api.stored() == 3
    assert len(await api.claim()) == 3


@pytest.mark.clause("JOB-23")
async def test_an_atomic_batch_with_a_mistake_creates_nothing(api: ApiBench) -> None:
    await api.create(idempotencyKey="old")
    invalid = [JOB, {**JOB, "type": " "}, JOB, {**JOB, "payload": 5}]
    response = await api.client.post("/api/dispatch/jobs/batch", json={"jobs": invalid, "atomic": True})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    problems = response.json()["error"]["details"]["problems"]
    assert [(problem["item"], problem["field"]) for problem in problems] == [(1, "type"), (3, "payload")]
    used = [JOB, {**JOB, "idempotencyKey": "new"}, {**JOB, "idempotencyKey": "old", "payload": "other"}]
    within = [{**JOB, "idempotencyKey": "k"}, {**JOB, "idempotencyKey": "k", "payload": "other"}]
    for conflicting, item in ((used, 2), (within, 1)):
        response = await api.client.post(
            "/api/dispatch/jobs/batch", json={"jobs": conflicting, "atomic": True}
        )
        assert (response.status_code, response.json()["error"]["code"]) == (409, "CONFLICT")
        assert [p["item"] for p in response.json()["error"]["details"]["problems"]] == [item]
    assert await api.stored() == 1


@pytest.mark.clause("JOB-23")
async def test_atomic_batches_that_race_for_a_key_leave_no_halves(api: ApiBench) -> None:
    async def place(n: int) -> int:
        jobs = [{**JOB, "source": f"batch-{n}"}, {**JOB, "idempotencyKey": "race", "payload": f"{n}"}]
        response = await api.client.post("/api/dispatch/jobs/batch", json={"jobs": jobs, "atomic": True})
        return response.status_code

    statuses = await asyncio.gather(*(place(n) for n in range(12)))
    assert sorted(statuses) == [200] + [409] * 11
    assert await api.stored() == 2


# ── cancel and requeue ───────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-09", "JOB-25")
async def test_a_pending_and_a_failed_job_can_be_cancelled(api: ApiBench) -> None:
    pending = await api.create(scheduledFor=in_future(hours=1))
    failed = await api.create()
    await api.settle(await api.claim(), TRY_AGAIN)
    for job in (pending, failed):
        cancelled = await api.post(f"jobs/{job['id']}/cancel")
        assert (cancelled["id"], cancelled["status"], cancelled["nextAttemptAt"]) == (
            job["id"],
            "CANCELLED",
            None,
        )
    assert await api.claim() == []


@pytest.mark.clause("JOB-09")
async def test_what_is_under_way_or_over_cannot_be_cancelled(api: ApiBench) -> None:
    job = await api.create()
    claims = await api.claim()
    response = await api.client.post(f"/api/dispatch/jobs/{job['id']}/cancel")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "CONFLICT")
    assert "being sent" in response.json()["error"]["message"]
    await api.settle(claims, DELIVERED)
    response = await api.client.post(f"/api/dispatch/jobs/{job['id']}/cancel")
    assert response.status_code == 409
    assert "COMPLETED" in response.json()["error"]["message"]


@pytest.mark.clause("JOB-09")
async def test_an_ended_job_can_be_requeued(api: ApiBench) -> None:
    job = await api.create(maxRetries=1)
    await api.bury_all()
    dead = await api.get(f"jobs/{job['id']}")
    assert (dead["status"], dead["attemptCount"], dead["errorClass"]) == ("ERROR", 1, "http_500")
    again = await api.post(f"jobs/{job['id']}/requeue")
    assert (again["status"], again["attemptCount"], again["completedAt"]) == ("PENDING", 1, None)
    response = await api.client.post(f"/api/dispatch/jobs/{job['id']}/requeue")
    assert response.status_code == 409
    assert "PENDING" in response.json()["error"]["message"]
    await api.post(f"jobs/{job['id']}/cancel")
    await api.post(f"jobs/{job['id']}/requeue")
    await api.complete_all()
    assert (await api.get(f"jobs/{job['id']}"))["status"] == "COMPLETED"
    assert [a["attemptNumber"] for a in await api.get(f"jobs/{job['id']}/attempts")] == [1, 2]


# ── how it is called ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["jobs", "jobs/batch", "jobs/cancel", "jobs/requeue", "targets/pause"])
async def test_bodies_must_be_json(api: ApiBench, path: str) -> None:
    response = await api.client.post(f"/api/dispatch/{path}", content=b"a=b")
    assert (response.status_code, response.json()["error"]["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    headers = {"content-type": "application/json; charset=utf-8"}
    for body in (b"", b"{", b"null", b'"x"', b'{"source":"\xff"}', b"[" * 10_000, b'{"source":"\\ud800"}'):
        response = await api.client.post(f"/api/dispatch/{path}", content=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_REQUEST"), body[:20]
    assert await api.stored() == 0


async def test_nothing_that_was_sent_is_logged(api: ApiBench) -> None:
    await api.create(
        payload="canary-payload", metadata={"k": "canary-value"}, headers={"X-A": "canary-header"}
    )
    bad: list[dict[str, Any]] = [
        {"payload": 5},
        {"targetUrl": "https://u:canary@example.com/"},
        {"headers": {"X": "canary\n"}},
    ]
    for fields in bad:
        response = await api.client.post("/api/dispatch/jobs", json={**JOB, **fields})
        assert response.status_code == 400
        assert "canary" not in response.text
    assert "canary" not in api.log.text


async def test_created_jobs_are_counted(api: ApiBench) -> None:
    await api.create(idempotencyKey="k")
    await api.client.post("/api/dispatch/jobs", json={**JOB, "idempotencyKey": "k"})
    await api.create_many([{}, {}])
    value = api.telemetry.registry.get_sample_value("homing_enqueued_total", {"lane": "dispatch_jobs"})
    assert value == 3
