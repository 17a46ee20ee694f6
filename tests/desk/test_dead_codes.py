"""Codes that other programs write: a group of dead letters means just its messages, whatever they died of."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.desk.bulk import ANN, BulkBench, bulk_bench
from tests.jobs import job_bench
from tests.tables import Tables

from homing.desk import query
from homing.desk.bulk import BulkRuns
from homing.messages.dead import Cause, groups_of
from homing.messages.model import LANES, DeadGroup, Wanted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: Numbers, patterns, quotes, words of the query line, what cannot be typed, and what is too long.
ODD = (
    "550", "429", "5.1.1", "ann@example.org", "timeout", "Timeout", "http 500", "http 503", "http_500", "*",
    "**", "has * star", "has a star", "unclassified", "a:b", "a,b", "status:dead", "%", "100%", "%41", "A",
    'q"uo\\te', "line\nbreak", "line break", "\x85x", "ends with space ", " ", "x_y", "xzy", "ü" * 90,
    "y" * 600, "y" * 700, "y" * 79, "host a.example is away", "host b.example is away", None,
)  # fmt: skip
CODES = st.lists(
    st.one_of(
        st.sampled_from(ODD),
        st.text(st.characters(codec="utf-8"), max_size=120),
    ),
    max_size=40,
)


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[BulkBench]:
    async with bulk_bench(database_url) as bench:
        yield bench


def read(line: str) -> Wanted:
    wanted = query.read(line, NOW)
    assert isinstance(wanted, Wanted), wanted
    return wanted


@given(CODES)
@settings(max_examples=150, deadline=None)
def test_groups_share_out_all_codes_and_their_lines_say_them(codes: list[str | None]) -> None:
    counted = Counter(None if code is None else code[:80] for code in codes)
    causes = [Cause(code, count, NOW, NOW, 1, "", is_lower_bound=False) for code, count in counted.items()]
    found = groups_of("mail_outbox", causes, {}, id_of=str)
    assert sum(group.count for group in found) == len(codes)
    told = [code for group in found for code in group.codes or (None,)]
    assert sorted(map(str, told)) == sorted(map(str, counted))
    for group in found:
        line = query.write(query.of_group(group))
        assert len(line) <= query.LONGEST_LINE
        assert read(line) == query.of_group(group)


def test_many_codes_that_are_alike_are_some_groups_each_with_a_line() -> None:
    causes = [Cause(f"550 <user{n}@x.org>", 1, NOW, NOW, n, "", is_lower_bound=False) for n in range(300)]
    found = groups_of("mail_outbox", causes, {}, id_of=str)
    assert {group.error for group in found} == {"* <*>"}
    assert sum(len(group.codes) for group in found) == 300
    assert all(len(query.write(query.of_group(group))) <= query.LONGEST_LINE for group in found)


# ── on every lane ────────────────────────────────────────────────────────────────────────────────


async def fill(desk: BulkBench, codes: Sequence[str | None]) -> None:
    for number, code in enumerate(codes):
        # A code of a mail ends at the first colon.
        await desk.mails(1, error=None if code is None else f"{code}: what was said")
        await desk.sql(
            "INSERT INTO email_log (to_address, subject, body, status, dead_reason, last_error) "
            "VALUES ('ann@example.org', 'Hi', 'Hello.', 'Dead', :reason, 'timeout: x') RETURNING id",
            reason=code,
        )
        await desk.sql(
            "INSERT INTO open_event_notifications "
            "(open_event_id, subscription_id, dedupe_key, fanout_status, error) "
            "VALUES (:number, :number, 'd', 'failed', :error) RETURNING notification_id",
            number=number,
            error=None if code is None else msgspec.json.encode({"code": code}).decode(),
        )
        await desk.sql(
            "INSERT INTO dispatch_job (source, type, target_url, payload, status, error_class) "
            "VALUES ('shop', 'order.paid', 'https://x.example/h', '{}', 'ERROR', :code) RETURNING id",
            code=code,
        )


async def listed(desk: BulkBench, wanted: Wanted) -> list[str]:
    found = await desk.homing.desk.find(wanted, limit=200, may=lambda _scope: True)
    assert found.next is None
    return [row.id for row in found.rows]


@pytest.mark.clause("RTY-15", "JOB-25", "NTF-16")
async def test_the_line_of_a_group_means_its_messages_and_no_others(desk: BulkBench) -> None:
    await fill(desk, ODD)
    # A message in another state, which no group means.
    await desk.mails(1, status="cancelled", error="550: x")
    found = (await desk.homing.desk.dead_groups(may=lambda _scope: True)).groups
    assert sum(group.count for group in found) == len(LANES) * len(ODD)
    seen: list[str] = []
    for group in found:
        wanted = read(query.write(query.of_group(group)))
        counted = await desk.runs.count(wanted, "requeue", lambda _scope: True)
        ids = await listed(desk, wanted)
        assert (counted.total, len(ids)) == (group.count, group.count), group
        assert group.example_id in ids
        seen += ids
    assert (len(seen), len(set(seen))) == (len(LANES) * len(ODD), len(LANES) * len(ODD))


@pytest.mark.clause("RTY-15")
async def test_a_group_whose_code_is_a_number_is_requeued_alone(desk: BulkBench) -> None:
    await desk.mails(2, error="550: no such user")
    await desk.mails(3, error="timeout: x")
    groups = {group.error: group for group in await desk.homing.desk.lanes["mail_outbox"].dead_groups()}
    assert {error: group.count for error, group in groups.items()} == {"timeout": 3, "550": 2}
    run = await desk.runs.start(query.write(query.of_group(groups["550"])), "requeue", ANN)
    await desk.runner().once()
    assert (await desk.now(run.id)).done == 2
    assert await desk.states() == {"queued": 2, "failed": 3}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(codes=CODES)
async def test_any_codes_at_all(sqlite_url: str, codes: list[str | None]) -> None:
    async with bulk_bench(sqlite_url) as desk:
        for table in ("mail_outbox", "email_log", "open_event_notifications", "dispatch_job"):
            await desk.sql(f"DELETE FROM {table} RETURNING 1")
        await fill(desk, codes)
        found = (await desk.homing.desk.dead_groups(may=lambda _scope: True)).groups
        counts = [await _count(desk.runs, group) for group in found]
        assert counts == [group.count for group in found]
        assert sum(counts) == len(LANES) * len(codes)


async def _count(runs: BulkRuns, group: DeadGroup) -> int:
    wanted = read(query.write(query.of_group(group)))
    return (await runs.count(wanted, "requeue", lambda _scope: True)).total


@pytest.mark.clause("JOB-25")
async def test_dead_jobs_of_any_class_are_their_groups_alone(jobs_database_url: str) -> None:
    """On every database that jobs can be in."""
    async with job_bench(jobs_database_url) as bench:
        classes: list[Any] = [*(code for code in ODD if code != "unclassified"), "", "unclassified"]
        ids = await bench.create("http://127.0.0.1:9/hooks", len(classes))
        tables = Tables(bench.homing.jobs_database)
        for id, code in zip(ids, classes, strict=True):
            await tables.change("dispatch_job", {"status": "ERROR", "error_class": code}, id=id)
        lane = bench.homing.desk.lanes["dispatch_jobs"]
        seen: list[int] = []
        for group in await lane.dead_groups():
            wanted = read(query.write(query.of_group(group)))
            found = await lane.find(wanted, before=None, limit=100)
            (narrowed,) = bench.homing.bulk.runs.plan(wanted, "requeue").values()
            walked = await lane.numbers(narrowed, after=None, limit=100)
            assert {row.number for row in found.rows} == set(walked)
            assert len(walked) == group.count
            seen += walked
        assert sorted(seen) == sorted(ids)
