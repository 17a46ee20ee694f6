"""Dead letters, statistics and targets over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from httpx import Response
from tests.lanes.dispatch_jobs.api_bench import (
    CREDENTIALS,
    CREDENTIALS_TEXT,
    DELIVERED,
    GIVEN_UP,
    TRY_AGAIN,
    URL,
    ApiBench,
    api_bench,
    moment,
)

from homing.lanes.dispatch_jobs.search import open_search
from homing.lanes.dispatch_jobs.statistics import JobStatistics, Statistics
from homing.lanes.dispatch_jobs.target_desk import ProbeRequest
from homing.lanes.dispatch_jobs.tsid import number_of, text_of


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[ApiBench]:
    async with api_bench(database_url) as bench:
        yield bench


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-25")
async def test_dead_letters_are_grouped_by_what_they_died_of(api: ApiBench) -> None:
    assert await api.get("dead") == {"groups": [], "items": [], "next": None}
    timeouts = await api.create_many([{"source": "a"}] * 3 + [{"source": "b"}])
    await api.bury_all("timeout", "no answer within 30 s")
    await api.create_many([{"source": "a", "type": "other"}] * 2)
    await api.bury_all("http_410", "HTTP 410")
    await api.create()
    groups = (await api.get("dead"))["groups"]
    assert [(g["errorClass"], g["source"], g["type"], g["count"]) for g in groups] == [
        ("timeout", "a", "order.created", 3),
        ("http_410", "a", "other", 2),
        ("timeout", "b", "order.created", 1),
    ]
    assert groups[0]["exampleId"] == timeouts[2]
    assert (groups[0]["lastError"], groups[0]["countIsLowerBound"]) == ("no answer within 30 s", False)
    assert datetime.now(UTC) - moment(groups[0]["newestAt"]) < timedelta(minutes=1)
    of_b = (await api.get("dead", source="b"))["groups"]
    assert [(g["errorClass"], g["count"]) for g in of_b] == [("timeout", 1)]
    assert [g["count"] for g in (await api.get("dead", type="other"))["groups"]] == [2]


@pytest.mark.clause("JOB-25")
async def test_the_jobs_of_one_error_class_are_listed(api: ApiBench) -> None:
    ids = (await api.create_many([{"source": f"s{n % 2}"} for n in range(5)]))[::-1]
    await api.bury_all("timeout", "no answer")
    await api.create()
    await api.bury_all("http_500")
    first = await api.get("dead", errorClass="timeout", size=2)
    assert {g["errorClass"] for g in first["groups"]} == {"timeout"}
    assert [job["id"] for job in first["items"]] == ids[:2]
    second = await api.get("dead", errorClass="timeout", size=3, before=first["next"])
    assert ([job["id"] for job in second["items"]], second["next"]) == (ids[2:], None)
    only = await api.get("dead", errorClass="timeout", source="s1")
    assert [job["source"] for job in only["items"]] == ["s1", "s1"]


async def test_jobs_that_another_program_ended_are_unclassified(api: ApiBench) -> None:
    job = await api.create()
    await api.tables.change("dispatch_job", {"status": "ERROR"})
    groups = (await api.get("dead"))["groups"]
    assert [(g["errorClass"], g["exampleId"]) for g in groups] == [("unclassified", job["id"])]
    listed = await api.get("dead", errorClass="unclassified")
    assert [one["id"] for one in listed["items"]] == [job["id"]]


@pytest.mark.parametrize("query", ["before=x", "before=0000000000000", "errorclass=x", "size=0", "page=1"])
async def test_mistakes_are_explained(sqlite_url: str, query: str) -> None:
    async with api_bench(sqlite_url) as api:
        response = await api.client.get(f"/api/dispatch/dead?{query}")
        assert response.status_code == 400
        assert response.json()["error"]["details"]["field"] == query.partition("=")[0]


# ── statistics ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-22")
async def test_statistics_answer_the_three_questions(api: ApiBench) -> None:
    await api.create_many([{"source": "a", "type": "x"}] * 3 + [{"source": "b", "type": "y"}])
    await api.complete_all()
    (dead,) = await api.create_many([{"source": "a", "type": "z"}])
    await api.bury_all()
    (near_its_end,) = await api.create_many([{"maxRetries": 2, "source": "c"}])
    await api.create_many([{"maxRetries": 5, "source": "c"}])
    await api.settle(await api.claim(), TRY_AGAIN)
    await api.create(source="old")
    long_ago = datetime(2020, 2, 1, 10, tzinfo=UTC)
    await api.tables.change("dispatch_job", {"created_at": long_ago}, source="old")
    for type_, millis in (("x", 100), ("y", 300)):
        await api.tables.change("dispatch_job", {"duration_millis": millis}, status="COMPLETED", type=type_)
    answer = await api.get("statistics")
    assert answer["successBySource"] == [
        {"source": "a", "total": 4, "successful": 3, "successRate": 75.0},
        {"source": "c", "total": 2, "successful": 0, "successRate": 0.0},
        {"source": "b", "total": 1, "successful": 1, "successRate": 100.0},
    ]
    assert answer["durationByType"] == [
        {"type": "x", "count": 3, "meanMillis": 100.0, "maxMillis": 100},
        {"type": "y", "count": 1, "meanMillis": 300.0, "maxMillis": 300},
    ]
    assert [job["id"] for job in answer["needingAttention"]] == [near_its_end, dead]
    assert (answer["windowHours"], answer["needingAttentionCount"]) == (24, 2)
    assert datetime.now(UTC) - moment(answer["asOf"]) < timedelta(minutes=1)


#: "Queries for Dashboards", as the specification prints them.
SUCCESS = """
SELECT
    source,
    COUNT(*) as total,
    SUM(CASE WHEN status = 'COMPLETED' THEN 1 ELSE 0 END) as successful,
    ROUND(100.0 * SUM(CASE WHEN status = 'COMPLETED' THEN 1 ELSE 0 END) / COUNT(*), 2) as success_rate
FROM dispatch_job
WHERE created_at > NOW() - INTERVAL '24 hours'
GROUP BY source
"""
DURATION = """
SELECT
    type,
    AVG(duration_millis) as avg_duration_ms,
    MAX(duration_millis) as max_duration_ms
FROM dispatch_job
WHERE status = 'COMPLETED'
GROUP BY type
"""
ATTENTION = """
SELECT * FROM dispatch_job
WHERE status = 'ERROR'
   OR (status = 'FAILED' AND attempt_count >= max_retries - 1)
"""
A_DAY_AGO = {
    "postgres": "NOW() - INTERVAL '24 hours'",
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-24 hours')",
}
#: 2,500 completed jobs of each of two types, made over the last ten days.
FILL = """
INSERT INTO dispatch_job (
    source, type, target_url, payload, target, status, duration_millis, created_at)
SELECT 's' || n % 3, 't' || n % 2, 'https://example.com/', '', 'https://example.com:443', 'COMPLETED', n,
    {created}
FROM {series} RETURNING 1
"""
LONG_HISTORY = {
    "postgres": FILL.format(
        created="now() - n * interval '3 minutes'", series="generate_series(1, 5000) AS n"
    ),
    "sqlite": "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5000)"
    + FILL.format(created="strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('-%d minutes', n * 3))", series="n"),
}


async def by_the_specification(api: ApiBench, statement: str) -> list[dict[str, Any]]:
    dialect = api.database.dialect
    return await api.sql(statement.replace(A_DAY_AGO["postgres"], A_DAY_AGO[dialect]))


@pytest.mark.clause("JOB-27", "JOB-22")
async def test_statistics_equal_the_specifications_sql(sql_api: ApiBench) -> None:
    api = sql_api
    await api.sql(LONG_HISTORY[api.database.dialect])
    # Another program may not have said how long it took.
    await api.sql("UPDATE dispatch_job SET duration_millis = NULL WHERE duration_millis < 100 RETURNING 1")
    await fail_and_requeue(api)
    answer = await api.get("statistics")
    assert {
        (one["source"], one["total"], one["successful"], one["successRate"])
        for one in answer["successBySource"]
    } == {
        (row["source"], row["total"], row["successful"], float(row["success_rate"]))
        for row in await by_the_specification(api, SUCCESS)
    }
    assert {(one["type"], one["meanMillis"], one["maxMillis"]) for one in answer["durationByType"]} == {
        (row["type"], round(float(row["avg_duration_ms"]), 2), row["max_duration_ms"])
        for row in await by_the_specification(api, DURATION)
    }
    needing = [text_of(row["id"]) for row in await by_the_specification(api, ATTENTION)]
    assert answer["needingAttentionCount"] == len(needing)
    assert sorted(job["id"] for job in answer["needingAttention"]) == sorted(needing)


async def fail_and_requeue(api: ApiBench) -> tuple[str, str]:
    """One that waits again, and one that has failed again since, with attempts left."""
    waits, fails = await api.create_many([{"maxRetries": 2}, {"maxRetries": 3}])
    await api.bury_all()
    await api.post(f"jobs/{fails}/requeue")
    await api.settle(await api.claim(), TRY_AGAIN)
    await api.post(f"jobs/{waits}/requeue")
    return waits, fails


@pytest.mark.clause("JOB-27")
async def test_attempts_before_a_requeue_count_towards_attention(api: ApiBench) -> None:
    _, fails = await fail_and_requeue(api)
    (dead,) = await api.create_many([{}])
    claims = await api.claim()
    await api.settle([claim for claim in claims if text_of(claim.id) == dead], GIVEN_UP)
    answer = await api.get("statistics")
    assert {job["id"] for job in answer["needingAttention"]} == {fails, dead}
    assert answer["needingAttentionCount"] == 2


@pytest.mark.clause("JOB-27")
async def test_durations_are_of_all_completed_jobs(api: ApiBench) -> None:
    count = 1200
    for _ in range(0, count, 400):
        await api.create_many([{"type": "x"}] * 400)
    while claims := await api.claim():
        await api.settle(claims, DELIVERED)
    await api.tables.change("dispatch_job", {"duration_millis": 10})
    (longest,) = await api.create_many([{"type": "x"}])
    await api.complete_all()
    since = datetime(2020, 2, 1, 10, tzinfo=UTC)
    await api.tables.change(
        "dispatch_job", {"duration_millis": 12020, "created_at": since}, id=number_of(longest)
    )
    (of_x,) = (await api.get("statistics"))["durationByType"]
    assert of_x == {"type": "x", "count": count + 1, "meanMillis": 20.0, "maxMillis": 12020}


async def test_the_newest_twenty_that_need_attention_are_listed_and_all_are_counted(api: ApiBench) -> None:
    ids = await api.create_many([{}] * 25)
    await api.bury_all()
    answer = await api.get("statistics")
    assert [job["id"] for job in answer["needingAttention"]] == ids[::-1][:20]
    assert answer["needingAttentionCount"] == 25


async def test_statistics_take_a_small_share_of_the_time(api: ApiBench) -> None:
    now = 1000.0
    statistics = JobStatistics(api.jobs, open_search(api.jobs), lambda: now)
    assert (await statistics.look()).success_by_source == []
    await api.create()
    assert (await statistics.look()).success_by_source == []
    now += 5.0
    assert [one.total for one in (await statistics.look()).success_by_source] == [1]


@pytest.mark.clause("JOB-27")
async def test_statistics_are_at_most_a_minute_old(api: ApiBench, monkeypatch: pytest.MonkeyPatch) -> None:
    now, ask = 1000.0, JobStatistics._ask

    async def slowly(statistics: JobStatistics) -> Statistics:
        nonlocal now
        now += 15.0
        return await ask(statistics)

    monkeypatch.setattr(JobStatistics, "_ask", slowly)
    statistics = JobStatistics(api.jobs, open_search(api.jobs), lambda: now)
    first = await statistics.look()
    await api.create()
    now += 59.0
    assert await statistics.look() == first
    now += 1.0
    assert [one.total for one in (await statistics.look()).success_by_source] == [1]


# ── targets ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_target_is_limited_paused_and_resumed(api: ApiBench) -> None:
    assert await api.get("targets") == {"items": [], "next": None}
    limits = {"targetUrl": URL, "maxConcurrency": 3, "ratePerSecond": 1.5}
    response = await api.client.put("/api/dispatch/targets", json=limits)
    assert response.status_code == 200
    target = response.json()
    assert (target["target"], target["credentialsId"]) == ("https://partner.example.com:443", None)
    assert (target["maxConcurrency"], target["ratePerSecond"], target["state"]) == (3, 1.5, "closed")
    paused = await api.post("targets/pause", {"targetUrl": URL + "/elsewhere?x=1", "reason": "moving house"})
    assert (paused["state"], paused["until"], paused["reason"]) == ("paused", None, "moving house")
    assert paused["maxConcurrency"] == 3
    await api.create()
    assert await api.claim() == []
    shorter = await api.post("targets/pause", {"targetUrl": URL, "seconds": 3600})
    assert timedelta(minutes=59) < moment(shorter["until"]) - datetime.now(UTC) <= timedelta(minutes=60)
    assert await api.get("targets") == {"items": [shorter], "next": None}
    resumed = await api.post("targets/resume", {"targetUrl": URL})
    assert (resumed["state"], resumed["until"], resumed["reason"]) == ("closed", None, None)
    # Also the process that had seen the pause goes on at once.
    assert len(await api.claim()) == 1
    response = await api.client.put("/api/dispatch/targets", json={"targetUrl": URL})
    assert (response.json()["maxConcurrency"], response.json()["ratePerSecond"]) == (None, None)


async def test_limits_that_somebody_has_changed_are_not_written_over(api: ApiBench) -> None:
    async def put(version: str, **limits: float) -> Response:
        body = {"targetUrl": URL, "limitsVersion": version, **limits}
        return await api.client.put("/api/dispatch/targets", json=body)

    assert (await put("5/-", maxConcurrency=1)).status_code == 409, "there are none"
    assert await api.get("targets") == {"items": [], "next": None}, "and nothing was made of it"
    both = await asyncio.gather(*(put("-/-", maxConcurrency=n, ratePerSecond=0.1) for n in (1, 2)))
    well, late = sorted(both, key=lambda answer: answer.status_code)
    assert (well.status_code, late.status_code) == (200, 409), "one of two who saw the same"
    held = well.json()
    assert held["limitsVersion"] == f"{held['maxConcurrency']}/0.1"
    assert late.json()["error"]["message"] == (
        "Somebody has changed these limits since you looked at them: "
        f"it is {held['maxConcurrency']} at once and 0.1 a second now"
    )
    # A pause, or what attempts say of it, is no change of its limits.
    paused = await api.post("targets/pause", {"targetUrl": URL})
    assert paused["limitsVersion"] == held["limitsVersion"]
    without = (await put(paused["limitsVersion"])).json()
    assert (without["maxConcurrency"], without["ratePerSecond"], without["limitsVersion"]) == (
        None,
        None,
        "-/-",
    )
    assert (await put(held["limitsVersion"], maxConcurrency=7)).status_code == 409
    assert (await put("-/-", maxConcurrency=7)).json()["limitsVersion"] == "7/-"
    for wrong in ("", "7", "7/1.2.3", "999999/-", "7/nan"):
        answer = await put(wrong)
        assert (answer.status_code, answer.json()["error"]["details"]) == (400, {"field": "limitsVersion"})
        assert answer.json()["error"]["message"].endswith("it is that of the target as it was read")
        assert "regex" not in answer.text


async def test_credentials_make_a_target_of_its_own(api: ApiBench) -> None:
    await api.post("targets/pause", {"targetUrl": URL, "credentialsId": CREDENTIALS_TEXT})
    (target,) = (await api.get("targets"))["items"]
    assert (target["target"], target["credentialsId"]) == (
        "https://partner.example.com:443",
        CREDENTIALS_TEXT,
    )
    await api.create()
    held = await api.create(credentialsId=CREDENTIALS_TEXT)
    assert [claim.item.credentials_id for claim in await api.claim()] == [None]
    assert (await api.get(f"jobs/{held['id']}"))["waitingFor"]["reason"] == "target_paused"


async def test_a_broken_target_shows_its_breaker(api: ApiBench) -> None:
    await api.create_many([{"targetUrl": f"{URL}/{n % 2}"} for n in range(10)])
    await api.settle(await api.claim(), TRY_AGAIN)
    (target,) = (await api.get("targets"))["items"]
    assert (target["state"], target["failures"], target["lastError"]) == ("open", 10, "HTTP 503")
    assert moment(target["until"]) > datetime.now(UTC)
    await api.tables.change("homing_target", {"open_until": datetime(2020, 1, 1, tzinfo=UTC)})
    assert (await api.get("targets"))["items"][0]["state"] == "half_open"
    resumed = await api.post("targets/resume", {"targetUrl": URL})
    assert (resumed["state"], resumed["failures"]) == ("closed", 0)


async def test_targets_come_in_pages(api: ApiBench) -> None:
    for n in range(101):
        await api.jobs.run(
            "limit_target", target=f"https://a{n:03}.com:443", max_concurrency=1, rate_per_second=None
        )
    first = await api.get("targets")
    assert len(first["items"]) == 100
    second = await api.get("targets", after=first["next"])
    assert [target["target"] for target in second["items"]] == ["https://a100.com:443"]
    assert second["next"] is None


@pytest.mark.clause("JOB-25")
async def test_an_endpoint_is_tried_with_a_test_event(api: ApiBench) -> None:
    result = await api.post(
        "targets/validate", {"targetUrl": URL, "credentialsId": CREDENTIALS_TEXT, "payload": "{}"}
    )
    assert result == {
        "status": 204, "headers": {"server": "x"}, "body": "", "durationMillis": 5, "error": None,
        "errorClass": None, "completes": True,
    }  # fmt: skip
    assert api.probed == [ProbeRequest(URL, CREDENTIALS, "{}")]


MISTAKES: list[tuple[str, dict[str, Any], str, str]] = [
    ("validate", {"targetUrl": "https://10.0.0.1/"}, "targetUrl", "private"),
    ("validate", {"targetUrl": URL, "credentialsId": "x"}, "credentialsId", "no such credentials"),
    (
        "validate",
        {"targetUrl": URL, "credentialsId": "0000000000001"},
        "credentialsId",
        "no such credentials",
    ),
    ("validate", {"targetUrl": URL, "payload": {}}, "payload", "must be text"),
    ("validate", {}, "targetUrl", "is required"),
    ("pause", {"targetUrl": "partner.example.com"}, "targetUrl", "https://example.com/hooks"),
    ("pause", {"targetUrl": "https:///x"}, "targetUrl", "https://example.com/hooks"),
    ("pause", {"targetUrl": URL, "seconds": 0}, "seconds", "at least 1"),
    ("pause", {"targetUrl": URL, "reason": " "}, "reason", "must not be blank"),
    ("pause", {"targetUrl": URL, "second": 5}, "second", "did you mean seconds?"),
    ("resume", {"targetUrl": "https://a\0b/"}, "targetUrl", "https://example.com/hooks"),
]


@pytest.mark.parametrize(("verb", "body", "field", "words"), MISTAKES)
async def test_mistakes_about_targets_are_explained(
    sqlite_url: str, verb: str, body: dict[str, Any], field: str, words: str
) -> None:
    async with api_bench(sqlite_url) as api:
        response = await api.client.post(f"/api/dispatch/targets/{verb}", json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["details"] == {"field": field}
        assert words in response.json()["error"]["message"]
        assert (await api.get("targets"))["items"] == []
        assert api.probed == []
