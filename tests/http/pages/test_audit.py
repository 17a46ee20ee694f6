"""The audit log on the desk: filters that find without reading everything, pages, and files."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.http.door import Door
from tests.http.pages.visitor import Visitor, door_with_people, visiting

from homing.access import audit as audit_module
from homing.access.audit import AuditFilter, Entry
from homing.access.keys import KeyOrder
from homing.http.pages import audit as audit_page


@pytest.fixture
async def each_door(database_url: str) -> AsyncIterator[Door]:
    """For what has SQL of its own: on both databases."""
    async with door_with_people(database_url) as door:
        yield door


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    async with door_with_people(sqlite_url) as door:
        yield door


@pytest.fixture
async def operator(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "operator") as visitor:
        yield visitor


async def write(door: Door, count: int = 1, **columns: object) -> None:
    given = {"who": "user:ann", "action": "dispatch.targets.pause", "object": "http://x:80", **columns}
    entry = msgspec.convert(given, Entry)
    for _ in range(count):
        await door.homing.access.audit.insert(entry)


async def test_entries_are_told_in_words_on_pages_that_go_on(door: Door, operator: Visitor) -> None:
    await write(door, detail={"reason": "<script>", "seconds": 60}, address="10.0.0.9")
    await write(door, outcome="refused", detail={"why": "only an active one"})
    page = await operator.read("/audit")
    assert "paused the target <strong>http://x:80</strong>" in page
    assert "only an active one" in page
    assert "&lt;script&gt;" in page
    assert "10.0.0.9" in page
    assert "logged in" in page
    assert "user:ann" in page
    await write(door, 58)
    first = await operator.read("/audit", who="user:ann")
    assert first.count('<tr id="entry-') == 50
    (older,) = [part.split('"')[0] for part in first.split('href="')[1:] if "before=" in part.split('"')[0]]
    second = await operator.read(older.replace("&amp;", "&"))
    assert second.count('<tr id="entry-') == 10
    assert "Older" not in second


QUERIES: tuple[tuple[dict[str, str], int], ...] = (
    ({"who": "user:ann"}, 3),
    ({"action": "mail.cancel"}, 2),
    ({"action": "mail.*"}, 3),
    ({"outcome": "failed"}, 1),
    ({"who": "key:k1", "outcome": "refused", "action": "mail.requeue"}, 1),
    ({"object": "outbox_7"}, 2),
    ({"since": "1h", "action": "mail.cancel"}, 1),
    ({"since": (datetime.now(UTC) + timedelta(days=400)).date().isoformat()}, 0),
    ({"who": "nobody"}, 0),
    ({"who": "ann"}, 3),
    ({"who": "k1"}, 1),
    ({"who": " ann ", "outcome": "failed"}, 1),
)


async def test_filters_go_together(each_door: Door) -> None:
    async with visiting(each_door, "operator") as operator:
        await filtered(each_door, operator)
        await indexed(each_door)


async def filtered(door: Door, operator: Visitor) -> None:
    await write(door, action="mail.cancel", object="outbox_7")
    is_postgres = door.homing.database.dialect == "postgres"
    earlier = "at - interval '2 hours'" if is_postgres else "'2026-01-01T00:00:00.000Z'"
    await door.sql(f"UPDATE homing_audit SET at = {earlier} WHERE true RETURNING id")
    await write(door, action="mail.cancel", object="outbox_8")
    await write(door, outcome="failed")
    await write(door, who="key:k1", action="mail.requeue", outcome="refused", object="outbox_7")
    for query, count in QUERIES:
        page = await operator.read("/audit", **query)
        assert page.count('<tr id="entry-') == count, query


async def test_who_is_found_by_the_name_that_the_table_shows(each_door: Door) -> None:
    audit = each_door.homing.access.audit
    for who in ("user:ann", "cli:bo@host", "loopback"):
        await write(each_door, who=who)
    issued = await each_door.homing.access.keys.create(KeyOrder("shop", ["jobs:read"]), by="cli:test")
    id = issued.row["id"]
    await write(each_door, who=f"key:{id}")
    named = {
        "ann": "user:ann", "bo@host": "cli:bo@host", "loopback": "loopback", "shop": f"key:{id}",
        id: f"key:{id}", "user:nobody": "user:nobody", "nobody": "nobody",
    }  # fmt: skip
    assert {name: await audit.whole_name(name) for name in named} == named
    await write(each_door, who="cli:ann")
    async with visiting(each_door, "operator") as operator:
        assert "Nothing found" in await operator.read("/audit", who="nobody")
        assert "ann may be cli:ann, user:ann; write which" in await operator.read("/audit", 422, who="ann")
        answer = await operator.client.get("/audit/export", params={"who": "shop"})
        assert len(answer.text.splitlines()) == 2


async def test_a_search_looks_so_far_and_says_so(
    door: Door, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_WINDOW", 5)
    await write(door, object="needle")
    await write(door, 7)
    wanted = AuditFilter(who="user:ann", object="needle")
    found = await door.homing.access.audit.search(wanted)
    assert (found.rows, found.looked_at) == ([], 5)
    again = await door.homing.access.audit.search(wanted, before=found.next)
    assert [row["object"] for row in again.rows] == ["needle"]
    assert again.next is None
    page = await operator.read("/audit", who="user:ann", object="needle")
    assert "Looked through 5 entries" in page
    assert "Older" in page
    for query, why in (
        ({"since": "soon"}, "is no time"),
        ({"since": "0001-01-01"}, "1970"),
        ({"outcome": "fine"}, "an outcome is one of"),
        ({"who": "a\x00b"}, "who"),
        ({"before": "-1"}, "before is the id"),
    ):
        assert why in await operator.read("/audit", 422, **query)
    assert (await operator.client.get("/audit/export?format=pdf")).status_code == 400


async def test_an_export_has_all_that_is_meant(
    door: Door, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_page, "_EXPORTED_AT_ONCE", 25)
    await write(door, object='=HYPERLINK("x")', detail={"reason": "a, b"})
    await write(door, 60)
    answer = await operator.client.get("/audit/export", params={"who": "user:ann"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith('attachment; filename="homing-audit-')
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 61
    assert rows[-1]["object"] == '\'=HYPERLINK("x")'
    assert msgspec.json.decode(rows[-1]["detail"]) == {"reason": "a, b"}
    lines = await operator.client.get("/audit/export", params={"who": "user:ann", "format": "ndjson"})
    told = [msgspec.json.decode(line) for line in lines.content.splitlines()]
    assert [one["id"] for one in told] == [int(row["id"]) for row in rows]


async def indexed(door: Door) -> None:
    """A filter must not read the whole table, however long it is."""
    insert = (
        "INSERT INTO homing_audit (who, action, outcome) SELECT 'key:' || (n % 400), 'a' || (n % 400), "
        "CASE WHEN n % 400 = 0 THEN 'failed' ELSE 'done' END FROM "
    )
    if door.homing.database.dialect == "postgres":
        await door.sql(f"{insert} generate_series(1, 20000) AS n RETURNING id")
        await door.homing.database.run_script("ANALYZE homing_audit")
    else:
        numbers = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 20000)"
        await door.sql(f"{numbers} {insert} s RETURNING id")
    expected: dict[str, AuditFilter] = {
        "homing_audit_who": AuditFilter(who="key:1"),
        "homing_audit_action": AuditFilter(action="a3"),
        "homing_audit_not_done": AuditFilter(outcome="failed"),
    }
    for index, wanted in expected.items():
        assert index in await plan_of(door, wanted), index
    assert len(await door.homing.access.audit.actions()) == 200


async def plan_of(door: Door, wanted: AuditFilter) -> str:
    audit, database = door.homing.access.audit, door.homing.database
    name, given = audit_module._asked(wanted)
    query = audit._queries[name]
    explain = "EXPLAIN " if database.dialect == "postgres" else "EXPLAIN QUERY PLAN "
    plan = msgspec.structs.replace(query, sql=explain + query.sql)
    rows = await database.fetch(plan, {**given, "before": 2**63 - 1, "limit": 50, "window": 10_000})
    return "\n".join(str(tuple(row)) for row in rows)


async def test_who_may_not_read_the_log_does_not(door: Door) -> None:
    async with visiting(door, "viewer") as viewer:
        assert (await viewer.client.get("/audit")).status_code == 403
        assert (await viewer.client.get("/audit/export")).status_code == 403
        assert 'href="/audit"' not in await viewer.read("/targets")
