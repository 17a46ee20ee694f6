"""Dead letters of every lane by what they died of, and the requeue of a whole group."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.desk.bulk import ANN, BulkBench
from tests.jobs import job_bench
from tests.tables import Tables

from homing.desk import query
from homing.desk.bulk import Asker, BulkRuns
from homing.desk.bulk_runner import BulkRunner
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.messages.model import DeadGroup, LaneName

URL = "http://127.0.0.1:9/hooks"
OTHER = "http://127.0.0.1:10/hooks"


@pytest.fixture
def mongodb_url(migrated_mongodb_url: str) -> str:
    return migrated_mongodb_url


async def groups(desk: BulkBench, lane: LaneName) -> dict[str | None, DeadGroup]:
    return {group.error: group for group in await desk.homing.desk.lanes[lane].dead_groups()}


def line_of(group: DeadGroup) -> str:
    """As the page has it."""
    return query.write(query.of_group(group))


async def requeued(desk: BulkBench, group: DeadGroup) -> int:
    run = await desk.runs.start(line_of(group), "requeue", ANN)
    await desk.runner().once()
    return (await desk.now(run.id)).done


@pytest.mark.clause("RTY-15")
async def test_dead_mails_fall_together_by_their_code_and_a_group_is_requeued(desk: BulkBench) -> None:
    for seconds in (10, 20, 30):
        await desk.mails(2, error=f"timeout: no answer within {seconds} s")
    await desk.mails(1, error="invalid_recipient: 550 <ann@example.org> unknown")
    await desk.mails(2, error="Mailbox 17 of host a.example is full")
    await desk.mails(1, error="Mailbox 4 of host b.example is full")
    await desk.mails(1, error=None)
    await desk.mails(3, status="expired", error="expired before it could be sent")
    found = await groups(desk, "mail_outbox")
    assert {error: group.count for error, group in found.items()} == {
        "timeout": 6, "invalid_recipient": 1, "Mailbox * of host * is full": 3, None: 1,
    }  # fmt: skip
    timeout = found["timeout"]
    assert (timeout.example_id, timeout.example) == ("outbox_6", "timeout: no answer within 30 s")
    assert timeout.kinds == (("timeout: no answer within * s", 6),)
    assert not timeout.is_lower_bound
    assert timeout.last_at is not None
    for group in found.values():
        assert await requeued(desk, group) == group.count, group.error
    assert await desk.states() == {"queued": 11, "expired": 3}


async def test_of_very_many_the_newest_are_looked_at_and_the_group_says_so(
    desk: BulkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.messages.table_desk.MOST_LOOKED_AT", 10)
    await desk.mails(5, error="old: x")
    await desk.mails(15)
    (group,) = (await groups(desk, "mail_outbox")).values()
    assert (group.error, group.count, group.is_lower_bound) == ("timeout", 10, True)


@pytest.mark.clause("JOB-25")
async def test_dead_jobs_fall_together_by_their_class_with_the_target_of_most(jobs_database_url: str) -> None:
    """On every database that jobs can be in."""
    async with job_bench(jobs_database_url) as bench:
        ids = await bench.create(URL, 3) + await bench.create(OTHER, 2) + await bench.create(URL, 1)
        tables = Tables(bench.homing.jobs_database)
        at = await tables.now()
        for number, id in enumerate(ids):
            ended: dict[str, Any] = {"status": "ERROR", "last_error": f"HTTP 50{number}", "completed_at": at}
            code = "http_5xx" if number < 5 else None
            await tables.change("dispatch_job", {**ended, "error_class": code}, id=id)
        lane = bench.homing.desk.lanes["dispatch_jobs"]
        found = {group.error: group for group in await lane.dead_groups()}
        assert {error: group.count for error, group in found.items()} == {"http_5xx": 5, None: 1}
        group = found["http_5xx"]
        assert (group.example_id, group.example) == (text_of(ids[4]), "HTTP 504")
        assert group.target == "http://127.0.0.1:9"
        assert group.kinds == (("HTTP *", 5),)
        assert (group.first_at, group.is_lower_bound) == (group.last_at, False)
        for group in found.values():
            run = await done(bench.homing, line_of(group))
            assert run.done == group.count
        assert await bench.states(ids) == ["PENDING"] * 6
        cancelled = await done(bench.homing, "lane:dispatch_jobs type:order.*", "cancel")
        assert cancelled.done == 6
        (again,) = await bench.create(URL)
        await tables.change("dispatch_job", {"next_attempt_at": datetime(2099, 1, 1, tzinfo=UTC)}, id=again)
        assert (await done(bench.homing, "lane:dispatch_jobs status:waiting", "send_now")).done == 1
        assert [claim.id for claim in await bench.claim()] == [again]


async def done(homing: Any, line: str, verb: Any = "requeue") -> Any:
    runs: BulkRuns = homing.bulk.runs
    run = await runs.start(line, verb, Asker("cli:test", lambda _scope: True))
    assert await BulkRunner(runs, homing.telemetry, owner="test").once()
    return await runs.existing(run.id)


@pytest.mark.clause("RTY-15")
async def test_dead_emails_fall_together_by_their_reason(desk: BulkBench) -> None:
    for number, reason in enumerate(["InvalidRecipient", "MaxAttemptsExceeded", "MaxAttemptsExceeded", None]):
        await desk.sql(
            "INSERT INTO email_log (to_address, subject, body, status, dead_reason, last_error) "
            "VALUES ('ann@example.org', 'Hi', 'Hello.', 'Dead', :reason, :error) RETURNING id",
            reason=reason, error=f"timeout: after {number} s",
        )  # fmt: skip
    found = await groups(desk, "email_log")
    assert {error: group.count for error, group in found.items()} == {
        "InvalidRecipient": 1, "MaxAttemptsExceeded": 2, None: 1,
    }  # fmt: skip
    assert found["MaxAttemptsExceeded"].kinds == (("timeout: after * s", 2),)
    for group in found.values():
        assert await requeued(desk, group) == group.count
    assert {row["status"] for row in await desk.sql("SELECT status FROM email_log")} == {"Pending"}


@pytest.mark.clause("NTF-16")
async def test_dead_notifications_fall_together_by_their_code(desk: BulkBench) -> None:
    errors = [
        '{"code": "network_error", "message": "host a.example is away"}',
        '{"code":"network_error","message":"host b.example is away"}',
        "Traceback: what another program wrote",
        None,
    ]
    for number, error in enumerate(errors):
        await desk.sql(
            "INSERT INTO open_event_notifications "
            "(open_event_id, subscription_id, dedupe_key, fanout_status, error) "
            "VALUES (:number, :number, 'd', 'Failed', :error) RETURNING notification_id",
            number=number, error=error,
        )  # fmt: skip
    found = await groups(desk, "open_events")
    assert {error: group.count for error, group in found.items()} == {"network_error": 2, None: 2}
    assert found["network_error"].example == "host b.example is away"
    assert found["network_error"].kinds == (("host * is away", 2),)
    for group in found.values():
        assert await requeued(desk, group) == 2
    statement = (
        "SELECT fanout_status AS status, fanout_attempts AS attempts, error FROM open_event_notifications"
    )
    assert await desk.sql(statement) == [{"status": "pending", "attempts": 0, "error": None}] * 4
