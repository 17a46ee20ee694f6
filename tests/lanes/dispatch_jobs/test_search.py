"""Searching jobs: by any filter, newest first, page by page or from cursor to cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lanes.dispatch_jobs.api_bench import TRY_AGAIN, ApiBench, api_bench

from homing.errors import InvalidRequest
from homing.lanes.dispatch_jobs import search as search_module
from homing.lanes.dispatch_jobs.filters import NAMES, Filter, Parameters
from homing.lanes.dispatch_jobs.search import MOST_COUNTED, JobSearch, Total, read_cursor


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[ApiBench]:
    async with api_bench(database_url) as bench:
        yield bench


async def found(api: ApiBench, **parameters: Any) -> list[str]:
    return [job["id"] for job in (await api.get("jobs", **parameters))["items"]]


@pytest.mark.clause("JOB-03")
async def test_a_page_of_the_newest(api: ApiBench) -> None:
    ids = (await api.create_many([{"source": f"s{n}"} for n in range(45)]))[::-1]
    first = await api.get("jobs")
    assert [job["id"] for job in first["items"]] == ids[:20]
    assert (first["page"], first["size"], first["totalItems"], first["totalPages"]) == (0, 20, 45, 3)
    assert first["totalIsEstimate"] is False
    assert first["items"][0]["source"] == "s44"
    assert "payload" not in first["items"][0]
    last = await api.get("jobs", page=2)
    assert [job["id"] for job in last["items"]] == ids[40:]
    assert last["next"] is None
    assert (await api.get("jobs", page=3))["items"] == []
    assert await found(api, size=100) == ids
    assert await found(api, page=1, size=7) == ids[7:14]


@pytest.mark.clause("JOB-03")
async def test_an_empty_table(api: ApiBench) -> None:
    page = await api.get("jobs")
    assert page == {
        "items": [], "page": 0, "size": 20, "totalItems": 0, "totalPages": 0, "totalIsEstimate": False,
        "next": None,
    }  # fmt: skip


@pytest.mark.clause("JOB-03", "JOB-17")
async def test_every_filter_alone_and_together(api: ApiBench) -> None:
    jobs: list[dict[str, Any]] = [
        {
            "source": "a",
            "type": "x",
            "groupId": "g1",
            "externalId": "e1",
            "metadata": {"t": "acme", "p": "high"},
        },
        {"source": "a", "type": "y", "groupId": "g1", "metadata": {"t": "acme", "p": "low"}},
        {"source": "b", "type": "x", "groupId": "g2", "metadata": {"t": "other", "p": "high"}},
        {"source": "b", "type": "y", "externalId": "e1"},
    ]
    one, two, three, four = await api.create_many(jobs)
    await api.post(f"jobs/{two}/cancel")
    wanted: list[tuple[dict[str, str], list[str]]] = [
        ({"source": "a"}, [two, one]),
        ({"type": "x"}, [three, one]),
        ({"groupId": "g1"}, [two, one]),
        ({"externalId": "e1"}, [four, one]),
        ({"status": "CANCELLED"}, [two]),
        ({"status": "PENDING", "source": "a"}, [one]),
        ({"source": "b", "type": "y", "status": "PENDING"}, [four]),
        ({"metadata.t": "acme"}, [two, one]),
        ({"metadata.t": "acme", "metadata.p": "high"}, [one]),
        ({"metadata.p": "high"}, [three, one]),
        ({"metadata.p": "high", "source": "b"}, [three]),
        ({"metadata.t": "acme", "metadata.p": "low", "status": "CANCELLED"}, [two]),
        ({"metadata.t": "acme", "metadata.p": "low", "status": "PENDING"}, []),
        ({"metadata.t": "nobody"}, []),
        ({"metadata.unknown": "acme"}, []),
        ({"source": "a'; DROP TABLE dispatch_job; --"}, []),
        ({"metadata.t": "' OR 1=1 --"}, []),
    ]
    for parameters, ids in wanted:
        page = await api.get("jobs", **parameters)
        assert [job["id"] for job in page["items"]] == ids, parameters
        assert page["totalItems"] == len(ids), parameters
    assert (await api.get("jobs", source="a"))["items"][1]["metadata"] == {"t": "acme", "p": "high"}


@pytest.mark.clause("JOB-17", "JOB-34")
@pytest.mark.parametrize(
    "key",
    [
        "tenant id", " ", "größe", "電話", "🙂", "a=b&c", "a+b%20c", 'quote"d', "it's", "back\\slash",
        "{curly}[0]", "$dollar.dot", "metadata.twice", "a,b;c", "x" * 100,
    ],
)  # fmt: skip
async def test_metadata_keys_of_any_printable_characters(api: ApiBench, key: str) -> None:
    one = await api.create(metadata={key: "v 1", "other": "x"})
    await api.create(metadata={"other": "x"})
    assert one["metadata"] == {key: "v 1", "other": "x"}
    assert (await api.get(f"jobs/{one['id']}"))["metadata"] == one["metadata"]
    page = await api.get("jobs", **{f"metadata.{key}": "v 1", "metadata.other": "x"})
    assert [job["id"] for job in page["items"]] == [one["id"]]
    assert page["items"][0]["metadata"] == one["metadata"]
    changed = await api.post("jobs/cancel", {"filter": {"metadata": {key: "v 1"}}, "dryRun": False})
    assert changed["changed"] == 1


@pytest.mark.clause("JOB-03")
async def test_by_time_of_creation(api: ApiBench) -> None:
    ids = [(await api.create(source=f"s{n}"))["id"] for n in range(3)]
    for n in range(3):
        time = datetime(2026, 2, n + 1, 10, tzinfo=UTC)
        await api.tables.change("dispatch_job", {"created_at": time}, source=f"s{n}")
    assert await found(api, createdAfter="2026-02-02T10:00:00Z") == [ids[2], ids[1]]
    assert await found(api, createdBefore="2026-02-02T10:00:00Z") == [ids[1], ids[0]]
    assert await found(
        api, createdAfter="2026-02-02T12:00:00+02:00", createdBefore="2026-02-02T10:00:00Z"
    ) == [ids[1]]
    # A date is its midnight in UTC.
    assert await found(api, createdAfter="2026-02-03") == [ids[2]]
    assert await found(api, createdBefore="2026-02-02") == [ids[0]]
    assert await found(api, createdBefore="2026-02-02T10:00:00Z", source="s0", status="PENDING") == [ids[0]]


@pytest.mark.clause("JOB-03")
@pytest.mark.parametrize(
    "filters",
    [{}, {"source": "a"}, {"status": "PENDING"}, {"metadata.t": "x"}, {"metadata.t": "x", "source": "a"}],
)
async def test_cursors_show_every_job_once(api: ApiBench, filters: dict[str, str]) -> None:
    ids = (await api.create_many([{"source": "a", "metadata": {"t": "x"}} for _ in range(50)]))[::-1]
    # Several of one moment: the id decides among them.
    moment = datetime(2026, 2, 1, 10, 0, 0, 123_000, tzinfo=UTC)
    await api.tables.change("dispatch_job", {"created_at": moment})
    seen: list[str] = []
    pages: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        page = await api.get("jobs", size=9, **filters, **cursor)
        seen += [job["id"] for job in page["items"]]
        pages.append(page["page"])
        assert (page["totalItems"], page["totalPages"], page["totalIsEstimate"]) == (50, 6, False)
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
        # What is created meanwhile moves nothing.
        await api.create(source="a", metadata={"t": "x"})
    assert seen == ids
    assert pages == [0, 1, 2, 3, 4, 5]


async def test_jobs_of_other_programs_are_found_with_their_microseconds(sql_api: ApiBench) -> None:
    api = sql_api
    for n in range(5):
        time = (
            f"2026-02-01T10:00:00.12345{n}Z"
            if api.database.dialect == "postgres"
            else "2026-02-01T10:00:00.123Z"
        )
        await api.sql(
            "INSERT INTO dispatch_job (source, type, target_url, payload, created_at)"
            f" VALUES ('other', 't', 'https://example.com/', '', '{time}') RETURNING id"
        )
    first = await api.get("jobs", size=2, source="other")
    second = await api.get("jobs", size=3, source="other", cursor=first["next"])
    ids = [job["id"] for job in first["items"] + second["items"]]
    assert len(set(ids)) == 5
    assert second["next"] is None
    assert second["items"][0]["createdAt"] == "2026-02-01T10:00:00.123Z"


@pytest.mark.clause("JOB-25")
async def test_by_error_class(api: ApiBench) -> None:
    ids = await api.create_many([{}, {}])
    await api.bury_all("tls_error", "TLS failed")
    await api.create()
    await api.settle(await api.claim(), TRY_AGAIN)
    assert await found(api, errorClass="tls_error") == ids[::-1]
    assert await found(api, errorClass="tls_error", status="ERROR") == ids[::-1]
    # Not of jobs that are to be tried again.
    assert await found(api, errorClass="http_503") == []
    response = await api.client.get("/api/dispatch/jobs", params={"errorClass": "x", "status": "FAILED"})
    assert response.status_code == 400


# ── totals ───────────────────────────────────────────────────────────────────────────────────────

FILL = {
    "postgres": "INSERT INTO dispatch_job (source, type, target_url, payload, target) "
    "SELECT 'bulk', 't', 'https://example.com/', '', 'https://example.com:443' "
    "FROM generate_series(1, :count::integer) RETURNING 1",
    "sqlite": "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :count) "
    "INSERT INTO dispatch_job (source, type, target_url, payload, target) "
    "SELECT 'bulk', 't', 'https://example.com/', '', 'https://example.com:443' FROM n RETURNING 1",
}


@pytest.mark.clause("JOB-26", "JOB-03")
@pytest.mark.parametrize(
    "filters", [{}, {"source": "bulk"}, {"source": "bulk", "status": "PENDING"}], ids=repr
)
async def test_totals_are_exact_right_after_a_bulk_load(sql_api: ApiBench, filters: dict[str, str]) -> None:
    """The planner knows nothing of these rows yet."""
    assert MOST_COUNTED == 100_000
    await sql_api.sql(FILL[sql_api.database.dialect], count=12_000)
    first = await sql_api.get("jobs", size=50, **filters)
    assert (first["totalItems"], first["totalPages"], first["totalIsEstimate"]) == (12_000, 240, False)
    last = await sql_api.get("jobs", size=50, page=239, **filters)
    assert (len(last["items"]), last["totalItems"], last["next"]) == (50, 12_000, None)


@pytest.mark.clause("JOB-26", "JOB-03")
@pytest.mark.parametrize("size", [20, 30, 100])
async def test_every_page_that_is_named_can_be_requested(
    api: ApiBench, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(search_module, "MOST_COUNTED", 400)
    await api.create_many([{"source": "bulk"}] * 500)
    await api.create_many([{"source": "few"}] * 3)
    few = await api.get("jobs", source="few", size=size)
    assert (few["totalItems"], few["totalPages"], few["totalIsEstimate"]) == (3, 1, False)
    many = await api.get("jobs", source="bulk", size=size)
    assert many["totalIsEstimate"] is True
    assert many["totalItems"] > 400
    # The first 400 are served by number, and then the cursor goes on.
    pages = -(-400 // size)
    assert many["totalPages"] == pages
    last = await api.get("jobs", source="bulk", size=size, page=pages - 1)
    assert len(last["items"]) == size
    response = await api.client.get("/api/dispatch/jobs", params={"page": pages, "size": size})
    assert (response.status_code, response.json()["error"]["details"]) == (400, {"field": "page"})
    assert "cursor" in response.json()["error"]["message"]
    beyond = await api.get("jobs", source="bulk", size=size, cursor=last["next"])
    assert (beyond["page"], len(beyond["items"])) == (pages, min(size, 500 - pages * size))
    assert {job["id"] for job in beyond["items"]}.isdisjoint(job["id"] for job in last["items"])


@pytest.mark.clause("JOB-26")
@pytest.mark.parametrize("filters", [{}, {"status": "PENDING"}], ids=repr)
async def test_on_sqlite_an_estimate_of_all_or_of_a_state_is_what_is_tallied(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, filters: dict[str, str]
) -> None:
    monkeypatch.setattr(search_module, "MOST_COUNTED", 40)
    async with api_bench(sqlite_url) as api:
        await api.create_many([{}] * 100)
        page = await api.get("jobs", **filters)
        assert (page["totalItems"], page["totalPages"], page["totalIsEstimate"]) == (100, 2, True)


async def test_a_count_that_takes_too_long_is_estimated(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api_bench(postgres_url) as api:
        await api.create_many([{}] * 50)
        await api.sql("ANALYZE dispatch_job")
        search = JobSearch(api.jobs)
        assert await search.total(Filter(), 0) == Total(50, is_estimate=False)
        slow = "o.source = :source AND pg_sleep(0.2) IS NOT NULL"
        monkeypatch.setattr(search_module, "_CONDITIONS", {"source": slow})
        monkeypatch.setattr(search_module, "LONGEST_SEARCH", 0.05)
        total = await search.total(Filter(source="order-service"), 0)
        assert total.is_estimate
        assert 40 <= total.items <= 50
        with pytest.raises(InvalidRequest, match="takes too long"):
            await search.places(Filter(source="order-service"), 0, limit=5)


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────────

MISTAKES = [
    ("size=0", "size", "from 1 to 100"),
    ("size=101", "size", "from 1 to 100"),
    ("size=abc", "size", "from 1 to 100"),
    ("size=1.5", "size", "from 1 to 100"),
    ("size=%D9%A1", "size", "from 1 to 100"),
    ("page=-1", "page", "from 0"),
    ("page=99999999999999999999", "page", "from 0"),
    ("page=5000&size=20", "page", "cursor"),
    ("status=done", "status", "PENDING, IN_PROGRESS, COMPLETED, FAILED, ERROR, CANCELLED"),
    ("status=pending", "status", "PENDING"),
    ("status=ERROR&status=FAILED", "status", "given twice"),
    ("source=", "source", "is empty"),
    ("source=a%00b", "source", "control characters"),
    ("source=" + "x" * 501, "source", "at most 500"),
    ("createdAfter=yesterday", "createdAfter", "2026-01-31T12:00:00Z"),
    ("createdAfter=2026-01-31T12:00:00", "createdAfter", "needs a zone"),
    ("createdAfter=2026-01-31T12:00:00+02:00", "createdAfter", "%2B"),
    ("createdBefore=0001-01-01T00:00:00Z", "createdBefore", "the year"),
    ("group_id=x", "group_id", "did you mean groupId?"),
    ("groupid=x", "groupid", "did you mean groupId?"),
    ("stauts=x", "stauts", "did you mean status?"),
    ("zzz=x", "zzz", "known are status"),
    ("metadata=x", "metadata", "metadata.KEY=VALUE"),
    ("metadata[tenantId]=x", "metadata[tenantId]", "metadata.KEY=VALUE"),
    ("metadata.a%09b=x", "metadata.a?b", "printable"),
    ("metadata.=x", "metadata.", "1 to 100"),
    ("metadata.k=" + "x" * 501, "metadata.k", "at most 500"),
    ("cursor=nonsense", "cursor", "`next`"),
    ("cursor=W10", "cursor", "`next`"),
    ("cursor=%F0%9F%9A%80", "cursor", "`next`"),
]


@pytest.mark.clause("JOB-03")
async def test_each_mistake_has_its_own_message(sqlite_url: str) -> None:
    async with api_bench(sqlite_url) as api:
        for query, field, words in MISTAKES:
            response = await api.client.get(f"/api/dispatch/jobs?{query}")
            assert response.status_code == 400, query
            error = response.json()["error"]
            assert (error["code"], error["details"]) == ("INVALID_REQUEST", {"field": field}), query
            assert words in error["message"], query


async def test_a_cursor_belongs_to_its_search(api: ApiBench) -> None:
    await api.create_many([{"source": "a"}] * 3)
    cursor = (await api.get("jobs", source="a", size=1))["next"]
    response = await api.client.get("/api/dispatch/jobs", params={"source": "b", "cursor": cursor})
    assert response.status_code == 400
    assert "other filters" in response.json()["error"]["message"]
    response = await api.client.get("/api/dispatch/jobs", params={"source": "a", "cursor": cursor, "page": 1})
    assert (response.status_code, response.json()["error"]["details"]) == (400, {"field": "page"})


@given(st.text(max_size=60))
def test_no_cursor_breaks_anything(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_cursor(text, Filter())
    assert raised.value.field == "cursor"


pairs = st.lists(
    st.tuples(
        st.sampled_from([*NAMES, "page", "size", "metadata.a", "x"]) | st.text(max_size=8),
        st.text(max_size=12),
    ),
    max_size=4,
)


@given(pairs)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_asked_for_is_understood_or_explained(asked: list[tuple[str, str]]) -> None:
    try:
        given_ = Parameters(asked, [*NAMES, "page", "size"], metadata=True)
        given_.filter()
        given_.number("page", 0, 0, 10)
    except InvalidRequest as error:
        message = str(error)
    else:
        message = "understood"
    assert message.isprintable() or not message.isascii()
