"""Jobs that another program inserts with plain SQL: the specification's columns are all it needs to know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from tests.jobs import JobBench, job_bench

from homing.db import instant, iso
from homing.engine.model import Complete, Failure, RetryIn
from homing.errors import Refused
from homing.lanes.dispatch_jobs.target import target_of
from homing.lanes.dispatch_jobs.tsid import time_of
from homing.testing.http_sink import Answer, HttpSink

URL = "https://partner.example/hooks"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """There is no SQL on MongoDB: there jobs come by the API, and what is incomplete is refused."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(database_url) as opened:
        yield opened


async def insert(lane: JobBench, **columns: Any) -> int:
    """As another program would: no column of ours is named."""
    values = {"source": "shop", "type": "order.created", "target_url": URL, "payload": "{}", **columns}
    marks = ", ".join(f":{name}" for name in values)
    statement = f"INSERT INTO dispatch_job ({', '.join(values)}) VALUES ({marks}) RETURNING id"
    id: int = (await lane.sql(statement, **values))[0]["id"]
    return id


def moment(lane: JobBench, seconds: float) -> datetime | str | None:
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return at if lane.homing.database.dialect == "postgres" else iso(at)


async def claimed(lane: JobBench) -> list[int]:
    return [claim.id for claim in await lane.claim()]


@pytest.mark.clause("JOB-14", "JOB-21")
async def test_a_row_with_the_specifications_columns_only_is_delivered(lane: JobBench) -> None:
    async with HttpSink() as sink:
        id = await insert(
            lane, external_id="ext-1", group_id="g", target_url=sink.url + "/hooks", protocol="HTTP_WEBHOOK",
            payload='{"a":1}', payload_content_type="application/json", status="PENDING", max_retries=3,
            retry_strategy="exponential", attempt_count=0, idempotency_key="k",
        )  # fmt: skip
        for name, value in (("X-One", "1"), ("X-Two", "zwei")):
            await lane.sql(
                "INSERT INTO dispatch_job_headers (dispatch_job_id, header_name, header_value) "
                "VALUES (:id, :name, :value) RETURNING dispatch_job_id", id=id, name=name, value=value,
            )  # fmt: skip
        await lane.run_batch()
        (request,) = sink.requests
    assert (request.path, request.body) == ("/hooks", b'{"a":1}')
    assert (request.header("X-One"), request.header("X-Two")) == ("1", "zwei")
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"]) == ("COMPLETED", 1)
    await lane.attempts_add_up()


@pytest.mark.clause("JOB-15")
async def test_the_fewest_columns_and_a_given_id_do_too(lane: JobBench) -> None:
    async with HttpSink() as sink:
        made = await insert(lane, target_url=sink.url)
        given = await insert(lane, target_url=sink.url, id=123_456)
        (ours,) = await lane.create(sink.url)
        after = await insert(lane, target_url=sink.url)
        assert given == 123_456
        assert made < ours < after or lane.homing.database.dialect == "sqlite"
        assert after > ours, "sorted by time, whoever made them"
        await lane.run_batch()
        assert await lane.states([made, given, ours, after]) == ["COMPLETED"] * 4
        assert len(await lane.attempts(given)) == 1


@pytest.mark.clause("JOB-15")
async def test_an_id_that_is_left_out_is_made_of_the_time(postgres_url: str) -> None:
    async with job_bench(postgres_url) as lane:
        id = await insert(lane)
        created = instant((await lane.row(id))["created_at"])
        assert created is not None
        assert abs((time_of(id) - created).total_seconds()) < 5


URLS = [
    "https://partner.example",
    "https://partner.example/",
    "https://partner.example/a/b?c=d",
    "https://partner.example?c=d",
    "https://partner.example:443/",
    "https://partner.example:8443/x",
    "HTTPS://Partner.EXAMPLE/Path",
    "http://partner.example",
    "http://partner.example:80/",
    "http://partner.example:8080?x=http://other.example:1/",
    "http://127.0.0.1:9000/hook",
    "http://[::1]:9000/hook",
    "http://[::1]/hook",
    "https://[2001:DB8::1]/",
    "https://[2001:db8::1]:444?x",
    "https://xn--bcher-kva.example/",
    "https://a.b.c.d.example.:8443/",
    "https://under_score.example/",
    "https://partner.example:00443/",
    "https://partner.example/a:b@c",
    "https://partner.example/#x",
    "ftp://partner.example/",
    "partner.example/hooks",
    "https:/partner.example/",
    "https://",
    "https:///path",
    "mailto:a@example.org",
    "",
]


@pytest.mark.clause("JOB-21")
@pytest.mark.parametrize("credentials_id", [None, 4242])
async def test_the_database_finds_the_same_target_as_we_do(
    lane: JobBench, credentials_id: int | None
) -> None:
    """Else a pause or a limit would hold for the one and not for the other."""
    found = {}
    for url in URLS:
        id = await insert(lane, target_url=url, credentials_id=credentials_id)
        found[url] = (await lane.row(id))["target"]
    assert found == {url: target_of(url, credentials_id) for url in URLS}


async def test_a_job_whose_url_cannot_be_used_ends_with_a_reason(lane: JobBench) -> None:
    ids = [await insert(lane, target_url=url) for url in ("nonsense", "https://user:pw@partner.example/")]
    await lane.run_batch()
    for id in ids:
        row = await lane.row(id)
        assert (row["status"], row["error_class"]) == ("ERROR", "invalid_url")


@pytest.mark.clause("JOB-19")
async def test_scheduled_and_expired_ones_are_seen_as_such(lane: JobBench) -> None:
    scheduled = await insert(lane, scheduled_for=moment(lane, 3600))
    past = await insert(lane, scheduled_for=moment(lane, -3600))
    expired = await insert(lane, expires_at=moment(lane, -1))
    await lane.jobs.sweep(10)
    assert await claimed(lane) == [past]
    assert await lane.states([scheduled, expired]) == ["PENDING", "ERROR"]
    await lane.pass_time(3601)
    assert await claimed(lane) == [scheduled]


@pytest.mark.clause("JOB-19")
async def test_sqlite_takes_times_in_every_form_that_it_reads(sqlite_url: str) -> None:
    async with job_bench(sqlite_url) as lane:
        later = [
            "2999-01-01 00:00:00", "2999-01-01T00:00:00Z", "2999-01-01T00:00:00.5+02:00", "2999-01-01",
            "2999-01-01T00:00",
        ]  # fmt: skip
        sooner = ["2020-01-01 00:00:00", "2020-01-01T00:00:00+05:00", "2020-01-01"]
        waiting = [await insert(lane, scheduled_for=text) for text in later]
        due = [await insert(lane, scheduled_for=text) for text in sooner]
        ended = [await insert(lane, expires_at=text) for text in sooner]
        await lane.jobs.sweep(10)
        assert await claimed(lane) == due
        assert await lane.states([*waiting, *ended]) == ["PENDING"] * 5 + ["ERROR"] * 3
        with pytest.raises(Refused):
            await insert(lane, scheduled_for="tomorrow")


async def test_what_cannot_be_is_refused(lane: JobBench) -> None:
    wrong: list[dict[str, Any]] = [
        {"status": "SENT"}, {"max_retries": 0}, {"attempt_count": -1},
        {"ordering": "group"}, {"ordering": "some"},
    ]  # fmt: skip
    for columns in wrong:
        with pytest.raises(Refused):
            await insert(lane, **columns)


# ── ordered ──────────────────────────────────────────────────────────────────────────────────────


async def test_ordered_ones_get_their_place_among_all_others(lane: JobBench) -> None:
    ids = [await insert(lane, group_id="g", ordering="group") for _ in range(2)]
    ids += await lane.create(URL, 2, group_id="g", ordering="group")
    ids += [await insert(lane, group_id="g", ordering="group")]
    other = await insert(lane, group_id="other", ordering="group")
    assert [bool((await lane.row(id))["ready"]) for id in [*ids, other]] == [True, *[False] * 4, True]
    delivered = []
    for _ in ids:
        (claim,) = [c for c in await lane.claim() if c.item.ordered_group == "g"]
        await lane.jobs.settle([(claim, Complete())])
        delivered.append(claim.id)
    assert delivered == ids


async def test_several_ordered_ones_in_one_statement(lane: JobBench) -> None:
    rows = ", ".join(f"('s', 't', '{URL}', '{n}', 'g', 'group')" for n in range(4))
    await lane.sql(
        "INSERT INTO dispatch_job (source, type, target_url, payload, group_id, ordering) "
        f"VALUES {rows} RETURNING id"
    )
    found = await lane.sql("SELECT payload, ready FROM dispatch_job ORDER BY position")
    assert [(row["payload"], bool(row["ready"])) for row in found] == [
        ("0", True), ("1", False), ("2", False), ("3", False),
    ]  # fmt: skip


async def test_two_programs_that_insert_into_a_group_at_once_wait_for_each_other(postgres_url: str) -> None:
    """The second sees the first when it is committed, and only one of them is ready."""
    async with job_bench(postgres_url) as lane:
        one = await asyncpg.connect(postgres_url)
        try:
            transaction = one.transaction()
            await transaction.start()
            first = await one.fetchval(
                "INSERT INTO dispatch_job (source, type, target_url, payload, group_id, ordering) "
                "VALUES ('s', 't', $1, '', 'g', 'group') RETURNING id", URL,
            )  # fmt: skip
            second = asyncio.create_task(insert(lane, group_id="g", ordering="group"))
            other = await insert(lane, group_id="other", ordering="group")
            assert not second.done()
            await transaction.commit()
            rows = [await lane.row(id) for id in (first, await second, other)]
        finally:
            await one.close()
        assert [row["ready"] for row in rows] == [True, False, True]
        assert rows[0]["position"] < rows[1]["position"]


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_that_somebody_sets_back_by_hand_is_tried_again(lane: JobBench) -> None:
    async with HttpSink() as sink:
        id = await insert(lane, target_url=sink.url)
        await lane.run_batch()
        await lane.change(id, status="PENDING")
        await lane.run_batch()
        assert sink.count == 2
    assert await lane.states([id]) == ["COMPLETED"]
    await lane.attempts_add_up()


async def test_a_url_that_somebody_changes_by_hand_is_used(lane: JobBench) -> None:
    async with HttpSink() as wrong, HttpSink() as right:
        id = await insert(lane, target_url=wrong.url)
        await lane.change(id, target_url=right.url)
        await lane.run_batch()
        assert (wrong.count, right.count) == (0, 1)


# ── rescheduled by SQL ───────────────────────────────────────────────────────────────────────────


async def is_due(lane: JobBench, id: int) -> bool:
    claim = await lane.jobs.claim_one(id)
    if claim is None:
        return False
    await lane.jobs.release([claim])
    return True


@pytest.mark.clause("JOB-29")
async def test_scheduled_for_of_a_pending_job_is_obeyed_as_the_row_has_it(lane: JobBench) -> None:
    by_sql, (by_api,) = await insert(lane), await lane.create(URL)
    for id in (by_sql, by_api):
        assert await is_due(lane, id)
        for seconds, due in ((60, False), (3600, False), (-5, True), (60, False)):
            await lane.change(id, scheduled_for=moment(lane, seconds))
            assert await is_due(lane, id) is due, seconds
        row = await lane.row(id)
        assert row["next_attempt_at"] == row["scheduled_for"] == row["queue_at"]
        await lane.change(id, scheduled_for=None)
        assert await is_due(lane, id), "NULL is now"
    await lane.change(by_sql, scheduled_for=moment(lane, 60))
    assert await lane.jobs.counts() == {
        "PENDING": 2, "IN_PROGRESS": 0, "COMPLETED": 0, "FAILED": 0, "ERROR": 0, "CANCELLED": 0,
    }  # fmt: skip
    await lane.pass_time(61)
    assert sorted(await claimed(lane)) == sorted([by_sql, by_api])


@pytest.mark.clause("JOB-29")
async def test_all_jobs_of_a_source_are_postponed_by_one_statement(lane: JobBench) -> None:
    ids = await lane.create(URL, 5)
    later = (
        "now() + interval '1 hour'"
        if lane.homing.database.dialect == "postgres"
        else "datetime('now', '+1 hour')"
    )
    await lane.sql(
        f"UPDATE dispatch_job SET scheduled_for = {later} WHERE source = 'order-service' RETURNING id"
    )
    assert await lane.claim() == []
    assert {(await lane.row(id))["queued"] for id in ids} <= {False}


@pytest.mark.clause("JOB-29")
async def test_a_failed_job_in_backoff_is_not_affected(lane: JobBench) -> None:
    async with HttpSink(lambda _: Answer(status=500)) as sink:
        id = await insert(lane, target_url=sink.url)
        await lane.run_batch()
    before = (await lane.row(id))["next_attempt_at"]
    for value in (moment(lane, -60), None, moment(lane, 7200)):
        await lane.change(id, scheduled_for=value)
        assert (await lane.row(id))["next_attempt_at"] == before


@pytest.mark.clause("JOB-29")
async def test_what_is_scheduled_while_it_is_held_waits_when_it_is_given_back(lane: JobBench) -> None:
    released, deferred, lost, failed = await lane.create(URL, 4)
    claims = {claim.id: claim for claim in await lane.claim()}
    for id in claims:
        await lane.change(id, scheduled_for=moment(lane, 3600))
    await lane.jobs.release([claims[released]])
    busy = RetryIn(1.0, Failure("target_busy", "busy"), charged=False)
    error = RetryIn(1.0, Failure("http_500", "HTTP 500"))
    await lane.jobs.settle([(claims[deferred], busy), (claims[failed], error)])
    past = moment(lane, -1)
    await lane.change(lost, lease_expires_at=past)
    assert await lane.jobs.rescue(10) == 1
    for id in (released, deferred, lost):
        row = await lane.row(id)
        assert (row["status"], row["next_attempt_at"]) == ("PENDING", row["scheduled_for"])
    row = await lane.row(failed)
    assert (row["status"], row["next_attempt_at"] < row["scheduled_for"]) == ("FAILED", True)


@pytest.mark.clause("JOB-29")
async def test_a_job_that_somebody_puts_back_is_due_as_its_schedule_says(lane: JobBench) -> None:
    async with HttpSink(lambda _: Answer(status=500)) as sink:
        now, later = [await insert(lane, target_url=sink.url) for _ in range(2)]
        await lane.run_batch()
    await lane.change(later, scheduled_for=moment(lane, 3600))
    for id in (now, later):
        assert not await is_due(lane, id), "in backoff"
        await lane.change(id, status="PENDING")
    assert [await is_due(lane, id) for id in (now, later)] == [True, False]
    await lane.jobs.cancel([now])
    await lane.change(now, status="PENDING", attempt_count=0)
    assert await is_due(lane, now)


@pytest.mark.clause("JOB-29")
async def test_sqlite_reschedules_in_every_form_of_a_time(sqlite_url: str) -> None:
    async with job_bench(sqlite_url) as lane:
        id = await insert(lane)
        for text, due in (
            ("2999-01-01 00:00:00", False),
            ("2020-01-01", True),
            ("2999-01-01T00:00+02:00", False),
        ):
            await lane.change(id, scheduled_for=text)
            assert await is_due(lane, id) is due
        assert (await lane.row(id))["scheduled_for"] == "2998-12-31T22:00:00.000Z"


async def test_the_check_that_was_dropped_left_the_file_whole(sqlite_url: str) -> None:
    """SQLite drops no constraint by itself: its schema is edited."""
    async with job_bench(sqlite_url) as lane:
        await lane.create(URL, 3)
        assert [tuple(row.values()) for row in await lane.sql("SELECT * FROM pragma_integrity_check")] == [
            ("ok",)
        ]
        (table,) = await lane.sql("SELECT sql FROM sqlite_master WHERE name = 'dispatch_job'")
        assert "CHECK (retry_strategy" not in table["sql"]
        assert "CHECK (max_retries" in table["sql"]
        assert "AUTOINCREMENT" in table["sql"]


# ── what cannot be delivered as it is written ────────────────────────────────────────────────────


@pytest.mark.clause("JOB-33")
@pytest.mark.parametrize(
    ("columns", "error_class", "words"),
    [
        ({"protocol": "GRPC"}, "unknown_protocol", "GRPC"),
        ({"protocol": "http_webhook"}, "unknown_protocol", "HTTP_WEBHOOK"),
        ({"retry_strategy": "quadratic"}, "unknown_retry_strategy", "quadratic"),
        ({"target_url": "grpc://partner.example:50051/Orders"}, "invalid_url", "URL"),
        ({"attempt_count": 3, "status": "FAILED"}, "attempts_used_up", "all 3 attempts"),
        ({"attempt_count": 5, "max_retries": 5}, "attempts_used_up", "all 5 attempts"),
    ],
)  # fmt: skip
async def test_a_row_that_cannot_be_delivered_as_written_ends_unsent(
    lane: JobBench, columns: dict[str, Any], error_class: str, words: str
) -> None:
    async with HttpSink() as sink:
        id = await insert(lane, **{"target_url": sink.url, **columns})
        fine = await insert(lane, target_url=sink.url)
        await lane.run_batch()
        assert sink.count == 1
    assert await lane.states([id, fine]) == ["ERROR", "COMPLETED"]
    row = await lane.row(id)
    assert row["error_class"] == error_class
    assert words in row["last_error"]
    assert row["completed_at"] is not None
    (dead,) = await lane.sql("SELECT message_id FROM homing_job_death")
    assert dead["message_id"] == id


@pytest.mark.clause("JOB-33")
async def test_attempts_that_are_used_up_keep_the_last_error(lane: JobBench) -> None:
    async with HttpSink(lambda _: Answer(status=500)) as sink:
        id = await insert(lane, target_url=sink.url)
        await lane.run_batch()
        await lane.change(id, max_retries=1)
        await lane.make_due()
        await lane.run_batch()
        assert sink.count == 1
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"]) == ("ERROR", 1)
    assert row["last_error"] == "all 1 attempts are used up; last error: HTTP 500"
    await lane.attempts_add_up()


# ── unusual rows ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-34")
@pytest.mark.parametrize("id", [2**63 - 1, 2**63 - 2, 2**63 - 100, 2**62])
async def test_an_id_near_the_largest_stops_no_create(lane: JobBench, id: int) -> None:
    async with HttpSink() as sink:
        await insert(lane, id=id, target_url=sink.url)
        made = [(await lane.create(sink.url, metadata={"a": "b"}, headers={"X-A": "b"}))[0] for _ in range(3)]
        assert made == sorted(made)
        assert all(abs((time_of(one) - datetime.now(UTC)).total_seconds()) < 60 for one in made)
        await lane.run_batch()
        assert await lane.states([id, *made]) == ["COMPLETED"] * 4
    for one in (id, *made):
        assert len(await lane.attempts(one)) == 1
    await lane.attempts_add_up()
