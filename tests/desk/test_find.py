"""One list of all lanes: what each term of a query line finds, on rows that other programs wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from tests.desk.rows import Bench, bench

from homing.desk import query
from homing.errors import Forbidden, InvalidRequest
from homing.messages.model import LANES, HowMany, Wanted

ALGEBRA = "Algebra (2026F NB 12345)"
#: Newest first, as they were created.
ALL = [
    "Odd", "Stopped", "user.created", "100% _off_", ALGEBRA, "New one", "order.paid", "Second", ALGEBRA,
    "Dead one", "order.created", "Hello Ann",
]  # fmt: skip


@pytest.fixture
async def lanes(database_url: str) -> AsyncIterator[Bench]:
    async with bench(database_url) as one:
        await one.fill()
        yield one


LINES = {
    "": ALL,
    "status:dead": ["Odd", ALGEBRA, "Dead one", "order.created", "Hello Ann"],
    "status:waiting": [ALGEBRA, "New one", "order.paid", "Second"],
    "status:delivered": ["user.created", "100% _off_"],
    "status:stopped,running": ["Stopped"],
    "status:PENDING": ["order.paid"],
    "status:failed": ["Odd", ALGEBRA, "Hello Ann"],
    "status:dead,queued lane:mail_outbox": ["Odd", "Second", "Hello Ann"],
    "lane:email_log,dispatch_jobs": ["user.created", "New one", "order.paid", "Dead one", "order.created"],
    "type:order.*": ["order.paid", "order.created"],
    "type:ORDER.p*": ["order.paid"],
    "type:order.paid": ["order.paid"],
    "type:open-seat": [ALGEBRA, ALGEBRA],
    "source:shop": ["order.paid", "order.created"],
    "source:s*p status:dead": ["order.created"],
    "meta.tenantId:acme": ["order.paid", "order.created", "Hello Ann"],
    "meta.tenantId:ac*": ["order.paid", "order.created", "Hello Ann"],
    "meta.n:5": ["Hello Ann"],
    "meta.is_vip:true": ["Hello Ann"],
    'meta.tenantId:"; DROP"': [],
    r'meta."order \"id\"/é":"7 b"': ["order.paid", "Hello Ann"],
    "to:ann@x.com": ["Hello Ann"],
    "to:BOB@y.org": ["Hello Ann"],
    "to:dora@z.com": ["Second"],
    "to:*@x.com": ["Stopped", "100% _off_", "New one", "Second", ALGEBRA, "Dead one", "Hello Ann"],
    "to:jo*": ["100% _off_"],
    "to:hooks.x.com": ["order.paid", "order.created"],
    "to:hooks.x.com:8443": ["order.paid"],
    "to:hooks.x.com*": ["user.created", "order.paid", "order.created"],
    "to:https://hooks.x.com/a?b=1": ["order.created"],
    "to:zoe@x.com": [ALGEBRA],
    "to:zo*@x.com": [],
    "to:z*@x.com": [ALGEBRA],
    "error:invalid_recipient": ["Hello Ann"],
    "error:http_500": ["order.created"],
    "error:http_*": ["order.created"],
    "error:provider_error": [ALGEBRA],
    "error:MaxAttemptsExceeded": ["Dead one"],
    "error:network_error": ["Dead one"],
    'error:"Connection refused"': ["Odd"],
    "error:rate_limited": [],
    "status:waiting error:unclassified": [ALGEBRA, "New one", "order.paid", "Second"],
    "hello": ["Hello Ann"],
    "one": ["New one", "Dead one"],
    "one dead": ["Dead one"],
    '"100% _o"': ["100% _off_"],
    '"100_ _o"': [],
    "algebra": [ALGEBRA, ALGEBRA],
    "id:ext-1": ["order.paid"],
    "id:key-1": [ALGEBRA, ALGEBRA],
    "id:key-1 status:dead": [ALGEBRA],
    "id:ext-1 status:dead": [],
    "outbox_1": ["Hello Ann"],
    "email_1 type:x": [],
    "id:nothing": [],
    "since:2026-01-01T00:00:03Z": ["Odd", "Stopped", "user.created", "100% _off_"],
    "until:2026-01-01T00:00:01.6Z": ["order.created", "Hello Ann"],
    "since:2026-01-01T00:00:01.6Z until:2026-01-01T00:00:02.6Z": [
        "order.paid",
        "Second",
        ALGEBRA,
        "Dead one",
    ],
    "since:2027-01-01": [],
}


@pytest.mark.clause("RTY-15", "JOB-22")
async def test_every_term_finds_what_it_says(lanes: Bench) -> None:
    found = {line: await lanes.titles(line) for line in LINES}
    assert found == LINES


async def test_what_is_listed_is_what_is_counted_and_walked_through(lanes: Bench) -> None:
    """A bulk run is ordered over a list that somebody sees: it has to mean the same messages."""
    for line in (*LINES, "id:key-1 to:zoe@x.com", "id:ext-1 meta.tenantId:ac*", "code:http_500 code:timeout"):
        wanted = query.read(line, datetime(2026, 1, 2, tzinfo=UTC))
        assert isinstance(wanted, Wanted)
        for name, lane in lanes.desk.lanes.items():
            listed = [row.number for row in (await lane.find(wanted, before=None, limit=100)).rows]
            for newest_first in (True, False):
                walked = await lane.numbers(wanted, after=None, limit=100, newest_first=newest_first)
                assert walked == sorted(listed, reverse=newest_first), (line, name)
            assert await lane.count(wanted, most=100, seconds=10) == HowMany(len(listed)), (line, name)


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_pages_follow_each_other_without_gaps_or_doubles(lanes: Bench, limit: int) -> None:
    for line in ("", "status:waiting,dead,stopped", "to:*@x.com", "error:*"):
        whole = [row.id for row in (await lanes.find(line)).rows]
        seen: list[str] = []
        cursor = None
        while True:
            page = await lanes.find(line, cursor=cursor, limit=limit)
            seen += [row.id for row in page.rows]
            cursor = page.next
            if cursor is None:
                break
        assert seen == whole, line


async def test_only_lanes_that_may_be_read_are_looked_at(lanes: Bench) -> None:
    def may(scope: str) -> bool:
        return scope == "emails:read"

    assert await lanes.titles("", may=may) == ["New one", "Dead one"]
    assert (await lanes.desk.show("email_1", may=may)) is not None
    with pytest.raises(Forbidden, match="mail:read"):
        await lanes.desk.show("outbox_1", may=may)
    with pytest.raises(Forbidden, match="jobs:read"):
        await lanes.desk.mail((await lanes.find("source:crm")).rows[0].id, may=may)


async def test_a_cursor_is_of_its_query_and_nothing_else_is_one(lanes: Bench) -> None:
    following = (await lanes.find("status:dead", limit=1)).next
    for line, cursor in (("status:waiting", following), ("", "AAAA"), ("", "%%%"), ("", "WyJ4Iix7fV0")):
        with pytest.raises(InvalidRequest, match="cursor"):
            await lanes.find(line, cursor=cursor)


async def test_that_none_were_looked_through_is_not_told(lanes: Bench) -> None:
    found = await lanes.find("lane:dispatch_jobs status:running error:http_503")
    assert (list(found.rows), found.looked_at) == ([], None)


async def test_what_no_index_serves_is_looked_for_in_a_window(
    lanes: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.db.looking.WINDOW", 2)
    monkeypatch.setattr("homing.db.looking.FIRST_WINDOW", 1)
    found = await lanes.find("hello lane:mail_outbox")
    assert (list(found.rows), found.looked_at) == ([], 2)
    pages = 1
    while found.next is not None:
        found = await lanes.find("hello lane:mail_outbox", cursor=found.next)
        pages += 1
    assert [row.title for row in found.rows] == ["Hello Ann"]
    assert pages == 3


async def test_rows_that_hold_nonsense_are_shown_all_the_same(lanes: Bench) -> None:
    if lanes.homing.database.dialect == "sqlite":
        await lanes.run("UPDATE mail_outbox SET created_at = 'long ago', recipients = '[1]' WHERE id = 1")
        await lanes.run("UPDATE mail_outbox SET subject = x'ff', last_error = x'00ff' WHERE id = 5")
        await lanes.run("UPDATE email_log SET subject = 5, last_error = 7.5, created_at = 12 WHERE id = 1")
        await lanes.run(
            "UPDATE open_event_notifications SET created_at = '', error = x'ff00' WHERE notification_id = 1"
        )
    else:
        await lanes.run("UPDATE mail_outbox SET created_at = '-infinity', recipients = '[1]' WHERE id = 1")
        await lanes.run("UPDATE open_event_notifications SET error = '[1]' WHERE fanout_status = 'Failed'")
    await lanes.run("UPDATE dispatch_job SET target_url = 'http://[', payload = '' WHERE status = 'ERROR'")
    await lanes.run("UPDATE open_events SET payload = 'no json', event_at = '0001-01-01T00:00:00Z'")
    await lanes.run("DELETE FROM subscriptions WHERE contact_value = 'zoe@x.com'")
    found = await lanes.find("")
    assert len(found.rows) == len(ALL)
    for row in found.rows:
        detail = await lanes.desk.show(row.id, may=lambda _scope: True)
        assert detail is not None
        assert detail.summary.id == row.id
        await lanes.desk.mail(row.id, may=lambda _scope: True)


async def test_a_lane_whose_database_is_away_is_a_note(sqlite_url: str) -> None:
    async with bench(sqlite_url) as before:
        await before.run("INSERT INTO mail_outbox (to_address, subject) VALUES ('a@x.com', 'Here')")
    away = "postgresql://homing:secret@127.0.0.1:1/nowhere"
    async with bench(sqlite_url, migrates=False, jobs_database_url=away) as lanes:
        found = await lanes.find("")
        again = await lanes.find("", cursor=found.next)
    assert [row.title for row in found.rows] == ["Here"]
    assert [note.partition(":")[0] for note in found.notes] == ["dispatch_jobs is left out"]
    assert "secret" not in found.notes[0]
    # It is asked again, from where it stands; the others have been read to their end.
    assert (list(again.rows), len(again.notes)) == ([], 1)


async def test_the_words_of_the_query_line_are_the_lanes_own(lanes: Bench) -> None:
    assert tuple(lanes.desk.lanes) == LANES
    for name, lane in lanes.desk.lanes.items():
        assert query.STATES[name] == tuple(lane.phases)
        assert set(lane.phases) >= {state for states in lane.from_states.values() for state in states}
        assert set(await lane.counts()) == set(lane.phases)
