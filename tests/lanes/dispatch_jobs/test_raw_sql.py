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
from homing.engine.model import Complete
from homing.errors import Refused
from homing.lanes.dispatch_jobs.target import target_of
from homing.lanes.dispatch_jobs.tsid import time_of
from homing.testing.http_sink import HttpSink

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
