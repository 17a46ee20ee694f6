"""The audit log: what is in it, how it is read, and what happens when it cannot be written."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.access.desk import Desk, opened_desk

from homing.access import audit
from homing.access.audit import AuditFilter, AuditLog, Entry, Outcome
from homing.access.keys import KeyOrder
from homing.db import load_queries
from homing.errors import InvalidRequest
from homing.parts.retention import AUDIT, _of_our_own

OUTCOMES: tuple[Outcome, ...] = ("done", "refused", "failed")


async def test_entries_are_read_newest_first_by_page_time_and_person(desk: Desk) -> None:
    log = desk.access.audit
    for number in range(5):
        who = "user:ann" if number % 2 else "key:abc"
        await log.write(Entry(who, "jobs.requeue", f"job{number}", "192.0.2.7", {"n": number}))
    page = await log.page(limit=3)
    assert [row["object"] for row in page] == ["job4", "job3", "job2"]
    assert [row["object"] for row in await log.page(limit=3, before=page[-1]["id"])] == ["job1", "job0"]
    assert [row["object"] for row in await log.page(who="user:ann")] == ["job3", "job1"]
    assert msgspec.json.decode(page[0]["detail"]) == {"n": 4}
    now = datetime.now(UTC)
    assert len(await log.page(since=now - timedelta(hours=1))) == 5
    assert await log.page(since=now + timedelta(hours=1)) == []
    assert await log.page(since=now + timedelta(hours=1), who="user:ann") == []
    await desk.let_pass("homing_audit", 7200, "at")
    await log.write(Entry("user:ann", "jobs.cancel"))
    assert [row["action"] for row in await log.page(since=now - timedelta(hours=1))] == ["jobs.cancel"]


async def test_the_beginning_of_a_name_is_enough(desk: Desk) -> None:
    log = desk.access.audit
    people = (
        "key:abc",
        "user:ann",
        "key:xyz",
        "user:anna",
        "loopback",
        "key:abc",
        "user:a_n",
        "user:bob",
        "Key:x",
    )
    for number, who in enumerate(people):
        await log.write(Entry(who, "jobs.requeue", f"{number}"))

    async def found(who: str, since: datetime | None = None, **options: Any) -> str:
        searched = await log.search(AuditFilter(since, who), **options)
        # What was done is asked for, too: so it looks through them.
        looked_through = await log.search(AuditFilter(since, who, "jobs.*"), **options)
        assert [row["id"] for row in searched.rows] == [row["id"] for row in looked_through.rows]
        return "".join(row["object"] for row in searched.rows)

    assert await found("key:*") == "520"
    assert await found("user:an*") == "31", "an underscore is one"
    assert await found("user:ann*") == "31"
    assert await found("user:*") == "7631"
    assert await found("l*") == "4"
    assert await found("*") == "876543210"
    assert await found("nobody:*") == await found("key:abcd*") == await found("%*") == ""
    # In pages, and since a time.
    first = await log.search(AuditFilter(who="key:*"), limit=2)
    assert [row["object"] for row in first.rows] == ["5", "2"]
    assert await found("key:*", limit=2, before=first.next) == "0"
    assert await found("key:*", since=datetime.now(UTC) + timedelta(hours=1)) == ""


async def test_however_many_are_of_a_kind_all_of_it_is_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd is looked for among all entries, some at a time, and nobody is left out."""
    monkeypatch.setattr(audit, "_WINDOW", 100)
    log = desk.access.audit
    people = [f"{'key' if number % 3 else 'user'}:n{number:03}" for number in range(300)]
    await asyncio.gather(*(log.write(Entry(who, "jobs.cancel")) for who in people))
    for begins in ("key:", "user:", "key:n1", "user:n29"):
        meant = [who for who in people if who.startswith(begins)]
        assert sorted(await _walked(log, AuditFilter(who=f"{begins}*"))) == sorted(meant), begins


async def _walked(log: AuditLog, wanted: AuditFilter) -> list[str]:
    """Who is found, in pages to the end."""
    found = await log.search(wanted, limit=7)
    whos = [row["who"] for row in found.rows]
    while found.next is not None:
        found = await log.search(wanted, limit=7, before=found.next)
        whos += [row["who"] for row in found.rows]
    return whos


async def test_the_beginning_of_a_bare_name_means_whatever_is_called_so(desk: Desk) -> None:
    log = desk.access.audit
    issued = await desk.access.keys.create(KeyOrder("admission", ["jobs:read"]), by="user:admin")
    people = ("cli:adm@host", "user:ad", f"key:{issued.row['id']}", "admonition", "user:bob")
    for who in people:
        await log.write(Entry(who, "jobs.cancel"))

    async def found(who: str, action: str | None = None) -> set[str]:
        wanted = await log.meant(AuditFilter(who=who, action=action))
        return {row["who"] for row in (await log.search(wanted)).rows}

    everybody = {"user:admin", *people}
    assert await found("adm*") == everybody - {"user:ad", "user:bob"}
    assert await found("adm*", "jobs.*") == everybody - {"user:ad", "user:bob", "user:admin"}
    assert await found("ad*") == everybody - {"user:bob"}
    assert await found("user:adm*") == {"user:admin"}
    assert await found("nobody*") == await found("nobody*", "jobs.*") == await found("%*") == set()
    assert await found("*") == everybody


async def test_the_beginning_of_a_bare_name_that_too_many_have_is_refused_in_words(desk: Desk) -> None:
    log = desk.access.audit
    await asyncio.gather(*(log.write(Entry(f"user:n{number:03}", "jobs.cancel")) for number in range(201)))
    with pytest.raises(InvalidRequest, match=r"more than 200 are called n\*; write which: user:n\*, cli:n\*"):
        await log.meant(AuditFilter(who="n*"))
    wanted = await log.meant(AuditFilter(who="n1*"))
    assert len((await log.search(wanted, limit=500)).rows) == 100


async def test_those_who_are_called_so_are_found_without_going_through_the_others(postgres_url: str) -> None:
    """Also where the database's own order is another than that of letters, as most are."""
    async with opened_desk(postgres_url) as desk:
        await desk.sql(
            "INSERT INTO homing_audit (who, action, outcome)"
            " SELECT 'key:' || lpad(to_hex(n), 6, '0'), 'a', 'done' FROM generate_series(1, 2000) AS n"
        )
        query = load_queries("homing.access", "postgres")["audit_whos"]
        explained = replace(query, sql=f"EXPLAIN (ANALYZE, FORMAT JSON) {query.sql}")
        rows = await desk.database.fetch(explained, {"begins": "key:0000f", "most": 201})
        (walk,) = re.findall(r'"Node Type": "Recursive Union".*?"Actual Rows": (\d+)', rows[0][0], re.DOTALL)
        assert int(walk) == 16 + 1
        (column,) = await desk.sql(
            "SELECT collation_name FROM information_schema.columns"
            " WHERE table_name = 'homing_audit' AND column_name = 'who'"
        )
        assert column["collation_name"] == "C"


async def test_many_at_once_are_all_written(desk: Desk) -> None:
    entries = [Entry("user:ann", "jobs.cancel", str(number)) for number in range(300)]
    await asyncio.gather(*(desk.access.audit.write(entry) for entry in entries))
    rows = await desk.access.audit.page(limit=1000)
    assert {row["object"] for row in rows} == {str(number) for number in range(300)}


async def test_calls_that_come_by_the_thousand_are_one_entry(desk: Desk) -> None:
    log = desk.access.audit
    for number in range(1000):
        log.count("key:abc", "mail.create", "192.0.2.7", "refused" if number < 10 else "done")
    log.count("key:xyz", "mail.create", None, "done")
    await log.close()
    rows = await log.page()
    told = {(row["who"], row["outcome"]): msgspec.json.decode(row["detail"]) for row in rows}
    assert told == {
        ("key:abc", "refused"): {"calls": 10},
        ("key:abc", "done"): {"calls": 990},
        ("key:xyz", "done"): {"calls": 1},
    }


async def test_what_the_database_would_not_take_is_shortened(desk: Desk) -> None:
    huge = {"filter": {"type": "x" * 10_000, "source": "a\x00b"}}
    await desk.access.audit.write(Entry("user:ann", "jobs.cancel_many", "a\x00b" * 1000, detail=huge))
    (row,) = await desk.access.audit.page()
    assert len(row["object"]) <= 500
    assert len(row["detail"]) < 5000


async def test_an_entry_that_cannot_be_written_is_in_the_log_instead(desk: Desk) -> None:
    await desk.sql("ALTER TABLE homing_audit RENAME TO elsewhere")
    await desk.access.audit.write(Entry("user:ann", "jobs.cancel", "job1"))
    (line,) = desk.log.all("audit.failed")
    assert (line["who"], line["action"], line["object"]) == ("user:ann", "jobs.cancel", "job1")


async def test_old_entries_are_pruned_by_how_they_ended(desk: Desk) -> None:
    log = desk.access.audit
    for outcome in OUTCOMES:
        await log.write(Entry("user:ann", "jobs.cancel", outcome, outcome=outcome))
    await desk.let_pass("homing_audit", 10 * 86400, "at")
    await log.write(Entry("user:ann", "jobs.cancel", "young"))
    rows = next(one for one in _of_our_own(desk.database) if one.lane == AUDIT)
    ages = {"done": 5 * 86400, "refused": 5 * 86400, "failed": 20 * 86400}
    window = await rows.window(ages, 0, 100)
    assert window.last is not None
    found = await rows.survey(ages, 0, window.last)
    assert {one.state: one.count for one in found} == {"done": 1, "refused": 1}
    ids = await rows.candidates(ages, 0, window.last, 100)
    assert await rows.prune(ages, ids) == {"done": 1, "refused": 1}
    assert [row["object"] for row in await log.page()] == ["young", "failed"]


@pytest.mark.parametrize("name", ["audit_whos", "audit_page_of_some"])
async def test_a_beginning_is_looked_for_by_an_index(desk: Desk, name: str) -> None:
    log, database = desk.access.audit, desk.database
    entries = [Entry(f"user:n{number % 20}", "jobs.cancel") for number in range(4000)]
    await asyncio.gather(*(log.write(entry) for entry in entries))
    await database.run_script("ANALYZE homing_audit")
    query = load_queries("homing.access", database.dialect)[name]
    word = "EXPLAIN" if database.dialect == "postgres" else "EXPLAIN QUERY PLAN"
    given = {"begins": "user:n1", "most": 5}
    given |= {"whos": '["user:n1", "user:n2"]', "since": "2026-01-01T00:00:00Z", "before": 2**62, "limit": 5}
    rows = await database.fetch(replace(query, sql=f"{word} {query.sql}"), given)
    plan = "\n".join(str(tuple(row)) for row in rows)
    assert "homing_audit_who" in plan
    assert not re.search(r"Seq Scan on homing_audit\b|SCAN (homing_audit|a)\b(?! USING)", plan), plan
