"""What people type and other programs write that nobody meant: told or shown, and never an error of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.desk.rows import Bench, bench
from tests.jobs import job_bench
from tests.tables import Tables

from homing.desk.query import Mistake, read
from homing.lanes.dispatch_jobs.dead import DeadJobs
from homing.lanes.dispatch_jobs.filters import Filter
from homing.lanes.dispatch_jobs.job import OWN_SOURCE
from homing.lanes.dispatch_jobs.search import open_search
from homing.messages.model import HowMany, Wanted

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
async def lanes(database_url: str) -> AsyncIterator[Bench]:
    async with bench(database_url) as one:
        await one.fill()
        yield one


def everything(_scope: str) -> bool:
    return True


# ── lines ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("code:%FF", "no text"),
        ("code:a%ED%A0%80b", "no text"),
        ("status:,", "`status:` has no value"),
        ("to:x lane:,,", "`lane:` has no value"),
    ],
)
def test_a_line_that_means_nothing_is_a_mistake(line: str, told: str) -> None:
    found = read(line, NOW)
    assert isinstance(found, Mistake)
    assert told in found.message


async def test_a_code_that_no_text_of_the_database_can_hold_is_nobodys(lanes: Bench) -> None:
    for line in ("code:%00", "code:%00 status:dead", "code:%00 lane:dispatch_jobs status:dead"):
        assert await lanes.titles(line) == []
        for lane in lanes.desk.lanes.values():
            wanted = read(line, NOW)
            assert isinstance(wanted, Wanted)
            assert await lane.count(wanted, most=10, seconds=5) == HowMany(0)
    assert await lanes.titles("code:%00 code:http_500") == ["order.created"]


async def test_the_first_day_of_all_is_long_enough_ago(lanes: Bench) -> None:
    for line in ("meta.tenantId:acme", "error:http_500 status:dead", ""):
        named = await lanes.find(f"since:0001-01-01 until:9999-12-31T23:59:59Z {line}", limit=1)
        assert len(named.rows) == 1
        assert named.notes == ()


async def test_phases_and_states_are_counted_together(lanes: Bench) -> None:
    mails = lanes.desk.lanes["mail_outbox"]
    both = Wanted(lanes=("mail_outbox",), phases=("dead",), states=("queued",))
    assert await mails.count(both, most=10, seconds=5) == HowMany(3)
    # A word of another lane, or of nobody, is no part of a statement.
    odd = Wanted(lanes=("mail_outbox",), states=("Dead", "x' OR '1'='1", "queued"))
    assert await mails.count(odd, most=10, seconds=5) == HowMany(1)


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────


async def test_no_pattern_spells_out_what_a_url_hides(lanes: Bench) -> None:
    """Who may only look sees neither queries nor where our own jobs go, and must not find out by asking."""
    await lanes.run(
        "INSERT INTO dispatch_job (source, type, target_url, payload) VALUES"
        f" ('{OWN_SOURCE}', 'ours', 'https://chat.example/services/T0SECRET', '{{}}'),"
        " ('shop', 'with password', 'https://ann:secret@old.example/hook', '{}'),"
        " ('shop', 'with fragment', 'https://old.example/hook#secret', '{}')"
    )
    for line in (
        "https://hooks.x.com/a?b=*",
        "*b=1/*",
        "*/a?*",
        "https://chat.example/services/T0*",
        "*/services/*",
    ):
        assert await lanes.titles(f"to:{line} lane:dispatch_jobs") == [], line
    for line in ("https://ann:s*", "*//ann:*", "https://old.example/hook#s*"):
        assert await lanes.titles(f"to:{line} lane:dispatch_jobs") == [], line


async def test_a_url_is_found_as_it_is_shown_and_whole(lanes: Bench) -> None:
    for line in (
        "https://hooks.x.com/a?b=1",
        "https://hooks.x.com/a",
        "https://hooks.x.com/a?…",
        "https://*.com/a",
    ):
        assert await lanes.titles(f"to:{line}") == ["order.created"], line
    assert await lanes.titles("to:https://HOOKS.x.com*/a") == ["order.paid", "order.created"]
    assert await lanes.titles("to:https://hooks.x.com/") == []


async def test_no_pattern_spells_out_a_number_or_an_odd_address(lanes: Bench) -> None:
    await lanes.run(
        "UPDATE subscriptions SET contact_value = '+49301234567' WHERE contact_value = 'adam@w.org'"
    )
    await lanes.run(
        """UPDATE subscriptions SET contact_value = ' <"z@secret"@x.com>' WHERE contact_value = 'zoe@x.com'"""
    )
    for pattern in ("*4930*", "*secret*", "zoe*"):
        assert await lanes.titles(f"to:{pattern} lane:open_events") == [], pattern
    assert len(await lanes.titles('to:"\\"****@x.com" lane:open_events')) == 1
    assert len(await lanes.titles("to:+49301234567 lane:open_events")) == 1


# ── rows of other programs ───────────────────────────────────────────────────────────────────────

ERRORS: Mapping[str, Any] = {
    "provider": ["x"], "providerMessageId": {"a": 1}, "code": {"b": [2]}, "message": {"c": 3}
}  # fmt: skip


async def test_an_error_of_any_json_is_shown(lanes: Bench) -> None:
    error = msgspec.json.encode(ERRORS).decode()
    await lanes.run(f"UPDATE open_event_notifications SET error = '{error}' WHERE fanout_status = 'Failed'")
    (row,) = (await lanes.find("status:dead lane:open_events")).rows
    detail = await lanes.desk.show(row.id, may=everything)
    assert detail is not None
    assert dict(detail.fields)["Provider"] == "['x']"


async def test_bytes_where_text_belongs_are_read_as_text(sqlite_url: str) -> None:
    async with bench(sqlite_url) as lanes:
        await lanes.fill()
        secret = b'{"token": "abc123", "name": "Ann"}'.hex()
        for table in ("mail_outbox", "email_log"):
            await lanes.run(f"UPDATE {table} SET variables = x'{secret}' WHERE id = 1")
        await lanes.run("UPDATE mail_outbox SET metadata = x'7b2261223a317d' WHERE id = 1")
        await lanes.run("UPDATE mail_outbox SET last_error = CAST('odd: bytes' AS BLOB) WHERE id = 5")
        await lanes.run("UPDATE email_log SET last_error = CAST('odd: bytes' AS BLOB) WHERE id = 1")
        await lanes.run(
            "UPDATE dispatch_job SET last_error = CAST('odd: bytes' AS BLOB) WHERE status = 'ERROR'"
        )
        for id in ("outbox_1", "email_1"):
            detail = await lanes.desk.show(id, may=everything)
            assert detail is not None
            assert detail.payload is not None
            assert '"Ann"' in detail.payload.text
            assert "abc123" not in detail.payload.text
            assert (await lanes.desk.mail(id, may=everything)) is not None
        found = await lanes.desk.dead_groups(may=everything)
        said = {kind for group in found.groups for kind, _count in group.kinds}
        assert {"odd: bytes"} < said
        assert all(isinstance(group.example, str) for group in found.groups)


@pytest.mark.clause("JOB-25")
async def test_jobs_on_every_database_hide_their_urls(jobs_database_url: str) -> None:
    async with job_bench(jobs_database_url) as one:
        id, *_ = await one.create("http://127.0.0.1:9/hooks?token=abc", 1)
        own, *_ = await one.create("http://127.0.0.1:9/secret", 1)
        await Tables(one.homing.jobs_database).change("dispatch_job", {"source": OWN_SOURCE}, id=own)
        lane = one.homing.desk.lanes["dispatch_jobs"]

        async def found(to: str) -> list[int]:
            seen = await lane.find(Wanted(to=to), before=None, limit=10)
            numbers = await lane.numbers(Wanted(to=to), after=None, limit=10)
            assert [row.number for row in seen.rows] == list(numbers)
            return list(numbers)

        for pattern in ("http://127.0.0.1:9/hooks?token=a*", "*/hooks?*", "*/sec*"):
            assert await found(pattern) == [], pattern
        for to in ("http://127.0.0.1:9/hooks", "http://*/HOOK*", "http://127.0.0.1:9/hooks?token=abc"):
            assert await found(to) == [id], to


@pytest.mark.clause("JOB-25")
async def test_an_empty_class_is_one_and_is_not_none(jobs_database_url: str) -> None:
    async with job_bench(jobs_database_url) as one:
        ids = await one.create("http://127.0.0.1:9/hooks", 3)
        tables = Tables(one.homing.jobs_database)
        for id, error_class in zip(ids, ("", None, "timeout"), strict=True):
            await tables.change("dispatch_job", {"status": "ERROR", "error_class": error_class}, id=id)
        found = await DeadJobs(one.homing.jobs, open_search(one.homing.jobs)).look(Filter())
        assert {group.error_class: group.count for group in found.groups} == {
            "": 1, "unclassified": 1, "timeout": 1
        }  # fmt: skip


async def test_pages_go_on_after_a_time_that_is_none(migrated_sqlite_url: str) -> None:
    async with bench(migrated_sqlite_url) as lanes:
        await lanes.fill()
        await lanes.run("UPDATE dispatch_job SET created_at = 'long ago'")
        seen: list[str] = []
        cursor = None
        while True:
            page = await lanes.find("lane:dispatch_jobs", cursor=cursor, limit=1)
            seen += [row.title for row in page.rows]
            cursor = page.next
            if cursor is None:
                break
    assert sorted(seen) == ["order.created", "order.paid", "user.created"]
