"""`POST /internal/dispatch`, over real HTTP, on real databases, with a real SMTP peer."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from tests.apis import api_of
from tests.notifications import sqlite_path
from tests.outbox import Bench, bench

from homing.db import instant, iso
from homing.http.server import serving
from homing.testing.smtp_sink import Act, SmtpSink, Stage, reply

UTC_WITH_Z = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")


class Api(Bench):
    client: httpx.AsyncClient
    sink: SmtpSink

    async def dispatch(self, body: Any = None, **request: Any) -> httpx.Response:
        if body is not None:
            request["json"] = body
        return await self.client.post("/internal/dispatch", **request)

    async def until_settled(self) -> None:
        async with asyncio.timeout(60):
            await self.deliverer.finished()


async def opened(database_url: str, sink: SmtpSink, **settings: Any) -> AsyncIterator[Api]:
    async with bench(database_url, mail_url=sink.url, **settings) as lane:
        api = Api(lane.homing, lane.log)
        api.sink = sink
        async with (
            serving(api_of(lane.homing, lane.homing.mails_part), "127.0.0.1", 0) as address,
            httpx.AsyncClient(base_url=address, timeout=30) as api.client,
        ):
            yield api


@pytest.fixture
async def sink() -> AsyncIterator[SmtpSink]:
    async with SmtpSink() as server:
        yield server


@pytest.fixture
async def api(database_url: str, sink: SmtpSink) -> AsyncIterator[Api]:
    async for one in opened(database_url, sink):
        yield one


def assert_error(response: httpx.Response, status: int, code: str, field: str | None = None) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["details"].get("field") == field
    assert "Traceback" not in response.text


@pytest.mark.clause("API-01", "API-02")
async def test_a_batch_is_claimed_and_sent_after_the_reply(api: Api) -> None:
    ids = await api.insert(3)
    response = await api.dispatch({"batchSize": 2, "dryRun": False})
    assert response.status_code == 200
    reply_body = response.json()
    assert (reply_body["dispatched"], reply_body["maxAttempts"]) == (2, 5)
    assert [item["id"] for item in reply_body["items"]] == [f"outbox_{id}" for id in ids[:2]]
    for item in reply_body["items"]:
        assert set(item) == {"id", "retryCount", "nextAttemptAt", "lastAttemptAt"}
        assert item["retryCount"] == 0
        assert UTC_WITH_Z.fullmatch(item["nextAttemptAt"])
        assert UTC_WITH_Z.fullmatch(item["lastAttemptAt"])
    await api.until_settled()
    assert len(api.sink.mails) == 2
    assert [(await api.row(id))["status"] for id in ids] == ["sent", "sent", "queued"]


@pytest.mark.clause("API-01")
async def test_no_body_is_the_defaults(api: Api) -> None:
    await api.insert(51)
    response = await api.dispatch()
    assert response.json()["dispatched"] == 50
    assert (await api.dispatch({})).json()["dispatched"] == 1


@pytest.mark.clause("API-02")
async def test_the_reply_comes_when_the_claim_has_committed_and_before_the_mails_are_sent(
    database_url: str,
) -> None:
    def slow(stage: Stage, _argument: str) -> Act | None:
        return reply("250 2.0.0 ok", delay=0.2) if stage == "mail" else None

    async with SmtpSink(script=slow) as sink:
        async for api in opened(database_url, sink):
            (id,) = await api.insert()
            assert (await api.dispatch()).json()["dispatched"] == 1
            assert (await api.row(id))["status"] == "dispatching"
            assert sink.mails == []
            await api.until_settled()
            assert len(sink.mails) == 1


@pytest.mark.clause("API-02")
async def test_wait_answers_when_all_are_settled_and_says_how(database_url: str) -> None:
    def script(stage: Stage, argument: str) -> Act | None:
        if stage == "rcpt" and "later@" in argument:
            return reply("450 4.2.0 later")
        return reply("550 5.1.1 no") if stage == "rcpt" and "never@" in argument else None

    async with SmtpSink(script=script) as sink:
        async for api in opened(database_url, sink):
            for name in ("ann", "later", "never"):
                await api.insert(to_address=f"{name}@example.org")
            response = await api.dispatch({"wait": True})
            assert [item["status"] for item in response.json()["items"]] == ["sent", "queued", "failed"]
            assert len(sink.mails) == 1


@pytest.mark.clause("API-09")
async def test_with_wait_the_items_are_as_they_are_after_the_attempt(database_url: str) -> None:
    def script(stage: Stage, _argument: str) -> Act | None:
        return reply("450 4.2.0 later") if stage == "rcpt" else None

    async with SmtpSink(script=script) as sink:
        async for api in opened(database_url, sink, dispatch_backoff_jitter=0.0):
            (id,) = await api.insert()
            (item,) = (await api.dispatch({"wait": True})).json()["items"]
            assert (item["status"], item["retryCount"]) == ("queued", 1)
            row = await api.row(id)
            for name, column in (("nextAttemptAt", "next_attempt_at"), ("lastAttemptAt", "last_attempt_at")):
                assert instant(item[name]) == instant(iso(row[column]))
            assert item["nextAttemptAt"] > item["lastAttemptAt"]


@pytest.mark.clause("API-09")
async def test_due_mails_that_are_not_sent_are_held(database_url: str) -> None:
    async with SmtpSink() as sink:
        url = sink.url
    # Nobody listens there any more.
    async with bench(database_url, mail_url=url) as lane:
        api = Api(lane.homing, lane.log)
        async with (
            serving(api_of(lane.homing, lane.homing.mails_part), "127.0.0.1", 0) as address,
            httpx.AsyncClient(base_url=address, timeout=60) as api.client,
        ):
            await api.insert(7)
            sent = [(await api.dispatch({"batchSize": 1, "wait": True})).json() for _ in range(5)]
            assert [one["dispatched"] for one in sent] == [1] * 5
            assert all("held" not in one for one in sent)
            response = await api.dispatch({"wait": True})
            assert response.status_code == 200
            reason = "the breaker of the mail relay is open: it could not be reached"
            assert response.json() == {
                "dispatched": 0,
                "maxAttempts": 5,
                "items": [],
                "held": {"due": 2, "reason": reason},
            }
            await api.sql("UPDATE mail_outbox SET status = 'cancelled' RETURNING 1")
            assert (await api.dispatch()).json() == {"dispatched": 0, "maxAttempts": 5, "items": []}


def examples() -> list[dict[str, Any]]:
    """Those of the document."""
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    section = text.split("## POST /internal/dispatch")[1].split("\n## ")[0]
    return [json.loads(found) for found in re.findall(r"```json\n(.*?)```", section, re.DOTALL)]


@pytest.mark.clause("API-02", "API-09")
async def test_the_examples_of_the_document_can_occur(database_url: str) -> None:
    """Each is brought about: the same fields, and times that stand to each other as they do there."""

    def script(stage: Stage, _argument: str) -> Act | None:
        return reply("450 4.2.0 later") if stage == "rcpt" else None

    async with SmtpSink(script=script) as sink:
        async for api in opened(database_url, sink, dispatch_backoff_jitter=0.0):
            await api.insert(2)
            await api.sql("UPDATE mail_outbox SET retry_count = 2 RETURNING 1")
            got = [(await api.dispatch({"batchSize": 1, "wait": wait})).json() for wait in (False, True)]
            await api.insert(1)
            api.deliverer.paused = True
            got.append((await api.dispatch()).json())
            told = examples()
            assert [shape(one) for one in got] == [shape(one) for one in told]
            for one in (*got, *told):
                for item in one["items"]:
                    is_settled = "status" in item
                    assert (item["nextAttemptAt"] > item["lastAttemptAt"]) == is_settled
                    assert item["retryCount"] == 2 + is_settled
                    if is_settled:
                        # The third failure in a row waits 30·2³ seconds.
                        due, tried = (
                            datetime.fromisoformat(item[n]) for n in ("nextAttemptAt", "lastAttemptAt")
                        )
                        assert round((due - tried).total_seconds(), -1) == 240


def shape(given: Any) -> Any:
    """Fields and kinds, and the values that are the same whenever it is tried."""
    if isinstance(given, dict):
        return {
            name: value if name in {"dispatched", "maxAttempts", "status"} else shape(value)
            for name, value in given.items()
        }
    return [shape(one) for one in given] if isinstance(given, list) else type(given)


@pytest.mark.clause("API-02")
async def test_retry_count_is_what_it_was_before_the_attempt(api: Api) -> None:
    (id,) = await api.insert()
    await api.sql("UPDATE mail_outbox SET retry_count = 2 WHERE id = :id RETURNING id", id=id)
    assert (await api.dispatch()).json()["items"][0]["retryCount"] == 2


@pytest.mark.clause("API-03")
async def test_nothing_due(api: Api) -> None:
    response = await api.dispatch({"batchSize": 10})
    assert response.status_code == 200
    assert response.json() == {"dispatched": 0, "maxAttempts": 5, "items": []}


@pytest.mark.clause("API-02")
async def test_max_attempts_is_the_setting(database_url: str, sink: SmtpSink) -> None:
    async for api in opened(database_url, sink, dispatch_max_attempts=9):
        assert (await api.dispatch()).json()["maxAttempts"] == 9


@pytest.mark.clause("API-04")
async def test_a_dry_run_selects_and_changes_nothing(api: Api) -> None:
    ids = await api.insert(3)
    before = [dict(await api.row(id)) for id in ids]
    response = await api.dispatch({"batchSize": 2, "dryRun": True})
    assert response.json()["dispatched"] == 0
    assert [item["id"] for item in response.json()["items"]] == [f"outbox_{id}" for id in ids[:2]]
    assert [dict(await api.row(id)) for id in ids] == before
    assert api.sink.mails == []


@pytest.mark.clause("API-05")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"batchSize": 0}, "batchSize"),
        ({"batchSize": -1}, "batchSize"),
        ({"batchSize": 1001}, "batchSize"),
        ({"batchSize": "25"}, "batchSize"),
        ({"batchSize": 2.5}, "batchSize"),
        ({"batchSize": True}, "batchSize"),
        ({"batchSize": None}, "batchSize"),
        ({"batchSize": 10**30}, "batchSize"),
        ({"dryRun": "yes"}, "dryRun"),
        ({"dryRun": 1}, "dryRun"),
        ({"wait": 0}, "wait"),
        ({"batchsize": 1}, "batchsize"),
        ({"surprise": 1}, "surprise"),
        ([], None),
        ("text", None),
    ],
)
async def test_a_wrong_body_is_a_400_that_names_the_field_and_changes_nothing(
    api: Api, body: Any, field: str | None
) -> None:
    (id,) = await api.insert()
    assert_error(await api.dispatch(body), 400, "DISPATCH_INVALID_REQUEST", field)
    assert (await api.row(id))["status"] == "queued"


@pytest.mark.clause("API-05")
async def test_the_example_of_the_specification(api: Api) -> None:
    response = await api.dispatch({"batchSize": 0})
    assert response.json() == {
        "error": {
            "code": "DISPATCH_INVALID_REQUEST",
            "message": "batchSize must be a positive integer",
            "details": {"field": "batchSize"},
        }
    }


@pytest.mark.clause("API-05")
@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"{", "application/json"),
        (b"\xff\xfe", "application/json"),
        (b'{"batchSize": 1}', "text/plain"),
        (b'{"batchSize": 1}', "application/x-www-form-urlencoded"),
        (b"[" * 100_000, "application/json"),
        (b'{"batchSize": 1' + b" " * (17 * 1024 * 1024) + b"}", "application/json"),
        (b"\x00", "application/json"),
    ],
    ids=["broken", "not utf-8", "text", "form", "deep", "too large", "nul"],
)
async def test_a_body_that_is_no_json_is_a_400(api: Api, content: bytes, content_type: str) -> None:
    response = await api.dispatch(content=content, headers={"content-type": content_type})
    assert_error(response, 400, "DISPATCH_INVALID_REQUEST")


@pytest.mark.clause("API-06")
async def test_a_lock_on_the_table_is_a_409_and_nothing_is_half_claimed_postgres(
    postgres_url: str, sink: SmtpSink
) -> None:
    async for api in opened(postgres_url, sink):
        (id,) = await api.insert()
        other = await asyncpg.connect(postgres_url)
        try:
            async with other.transaction():
                await other.execute("LOCK TABLE mail_outbox IN ACCESS EXCLUSIVE MODE")
                assert_error(await api.dispatch(), 409, "DISPATCH_CONFLICT")
        finally:
            await other.close()
        assert (await api.row(id))["status"] == "queued"
        assert (await api.dispatch()).json()["dispatched"] == 1


@pytest.mark.clause("API-06")
async def test_a_locked_file_is_a_409_and_nothing_is_half_claimed_sqlite(
    tmp_path: Path, sink: SmtpSink
) -> None:
    path = tmp_path / "locked.db"
    async for api in opened(f"sqlite:///{path}?busy_timeout=0.1", sink):
        (id,) = await api.insert()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert_error(await api.dispatch(), 409, "DISPATCH_CONFLICT")
        other.execute("ROLLBACK")
        other.close()
        assert (await api.row(id))["status"] == "queued"
        assert (await api.dispatch()).json()["dispatched"] == 1


@pytest.mark.clause("API-06")
async def test_a_lock_is_told_of_after_two_seconds_whatever_else_waits_for_it_sqlite(
    sqlite_url: str, sink: SmtpSink
) -> None:
    """At the default time-out, and behind statements of ours that would wait for ten seconds each."""
    async for api in opened(sqlite_url, sink):
        (id,) = await api.insert()
        other = sqlite3.connect(sqlite_path(sqlite_url), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        # The writer of this process: the first is at it, the others are behind it.
        patient = [asyncio.create_task(api.outbox.rescue(10)) for _ in range(3)]
        began = time.monotonic()
        assert_error(await api.dispatch(), 409, "DISPATCH_CONFLICT")
        took = time.monotonic() - began
        assert 1.5 < took < 6, took
        other.execute("ROLLBACK")
        other.close()
        await asyncio.gather(*patient)
        row = await api.row(id)
        assert (row["status"], row["claim_seq"]) == ("queued", 0), "it was not claimed later either"
        assert (await api.dispatch({"wait": True})).json()["dispatched"] == 1


@pytest.mark.clause("API-06")
async def test_competing_callers_share_the_rows_between_them(api: Api) -> None:
    ids = await api.insert(40)
    replies = await asyncio.gather(*(api.dispatch({"batchSize": 10}) for _ in range(8)))
    assert {r.status_code for r in replies} <= {200, 409}
    taken = [item["id"] for r in replies if r.status_code == 200 for item in r.json()["items"]]
    assert len(taken) == len(set(taken))
    while (await api.dispatch()).json()["dispatched"]:
        pass
    await api.until_settled()
    assert len(api.sink.mails) == 40
    assert {(await api.row(id))["status"] for id in ids} == {"sent"}


@pytest.mark.clause("API-07")
async def test_the_rate_limit_is_off_by_default_and_a_429_when_set(database_url: str, sink: SmtpSink) -> None:
    async for api in opened(database_url, sink, dispatch_rate_limit_per_minute=3):
        for _ in range(3):
            assert (await api.dispatch()).status_code == 200
        response = await api.dispatch()
        assert_error(response, 429, "DISPATCH_RATE_LIMITED")
        assert 1 <= int(response.headers["retry-after"]) <= 20
    async for api in opened(database_url, sink):
        assert {(await api.dispatch()).status_code for _ in range(30)} == {200}


@pytest.mark.clause("API-08")
async def test_an_unexpected_error_is_a_500_without_a_stack_trace(api: Api) -> None:
    await api.insert()
    await api.sql("ALTER TABLE mail_outbox RENAME COLUMN token TO tokens")
    response = await api.dispatch()
    assert_error(response, 500, "DISPATCH_INTERNAL_ERROR")
    assert "tokens" not in response.text
    assert api.log.all("http.failed")


@pytest.mark.clause("API-06", "API-08")
async def test_a_database_that_cannot_be_reached_is_a_500(sink: SmtpSink, private_postgres: Any) -> None:
    async for api in opened(private_postgres.create_database(), sink):
        private_postgres.stop(immediate=True)
        assert_error(await api.dispatch(), 500, "DISPATCH_INTERNAL_ERROR")
        private_postgres.start()
        async with asyncio.timeout(60):
            while (await api.dispatch()).status_code != 200:
                await asyncio.sleep(0.1)


async def test_the_endpoint_answers_only_to_post(api: Api) -> None:
    assert (await api.client.get("/internal/dispatch")).status_code == 405
