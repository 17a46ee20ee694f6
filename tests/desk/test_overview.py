"""The first page: what it shows of a real lane, what it says of trouble, and what it does without answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from msgspec.structs import replace
from tests.outbox import Bench, bench

from homing.desk import query
from homing.desk.attention import attention
from homing.desk.overview import (
    Hand,
    LaneView,
    Overview,
    Point,
    QueueDepth,
    Sources,
    TargetTrouble,
    tempo,
)
from homing.desk.overview_model import Signs
from homing.desk.traffic import NOTHING
from homing.errors import Unreachable
from homing.http.server import serving
from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.outbox import new_token
from homing.messages.model import LANES, DeadGroup, LaneName, Phase, Wanted
from homing.senders.mail import Verdict

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PHASES: Mapping[str, Phase] = {
    "queued": "waiting",
    "dispatching": "running",
    "sent": "delivered",
    "failed": "dead",
    "cancelled": "stopped",
    "expired": "stopped",
}
QUIET = LaneView(
    "mail_outbox",
    {"queued": 7},
    {"waiting": 7, "running": 0, "delivered": 0, "dead": 0, "stopped": 0},
    0.0,
    tempo(NOTHING),
    (),
)
AT_WORK = Hand("a:1", False, ("mail_outbox", "email_log:send"))


def kinds(signs: Signs) -> list[tuple[str, str]]:
    return [(item.kind, item.level) for item in attention(signs)]


def late(seconds: float, lane: LaneName = "mail_outbox") -> LaneView:
    return replace(QUIET, lane=lane, oldest_due=seconds)


def died(count: int, ago: timedelta, error: str | None = "timeout") -> DeadGroup:
    return DeadGroup(
        "dispatch_jobs", error, count, None, NOW - ago, "words", "0ARYZVZXW372S", "https://x:443",
        codes=(error,) if error else (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        (Signs(NOW, [QUIET], hands=[]), []),
        (Signs(NOW, [late(59)], hands=[AT_WORK]), []),
        (Signs(NOW, [late(61)], hands=[AT_WORK]), [("backlog", "soon")]),
        (Signs(NOW, [late(301)], hands=[AT_WORK]), [("backlog", "urgent")]),
        (Signs(NOW, [late(301, "email_log")], hands=[AT_WORK]), [("backlog", "urgent")]),
        (Signs(NOW, [late(31)], hands=[]), [("no_worker", "urgent")]),
        (Signs(NOW, [late(31)], hands=None), []),
        (Signs(NOW, [late(301)], paused={"mail_outbox": "user:ann"}, hands=[]), [("paused", "soon")]),
        (Signs(NOW, dead=[died(9, timedelta(minutes=5))]), [("dead", "soon")]),
        (Signs(NOW, dead=[died(10, timedelta(minutes=5))]), [("dead", "urgent")]),
        (Signs(NOW, dead=[died(9000, timedelta(hours=2))]), [("dead", "soon")]),
        (Signs(NOW, dead=[died(9000, timedelta(hours=25))]), []),
        (Signs(NOW, dead=[died(n, timedelta(hours=2)) for n in range(1, 8)]), [("dead", "soon")]),
        (Signs(NOW, targets=[TargetTrouble("x", True)]), [("breaker", "soon")]),
        (Signs(NOW, targets=[TargetTrouble("x", True)] * 30), [("breaker", "soon")]),
        (Signs(NOW, targets=[TargetTrouble("x", False)] * 30), [("target_paused", "note")]),
        (Signs(NOW, hands=[Hand("b:2", True, ("mail_outbox",), 90.0)]), [("worker_lost", "soon")]),
        (Signs(NOW, hands=[Hand("b:2", True, ("mail_outbox",), 9e4)]), [("worker_lost", "soon")]),
        (Signs(NOW, hands=[AT_WORK, Hand("b:2", True, ("mail_outbox",), 899.0)]), [("worker_lost", "soon")]),
        (Signs(NOW, hands=[AT_WORK, Hand("b:2", True, ("mail_outbox",), 901.0)]), []),
        (Signs(NOW, [late(1)], hands=[replace(AT_WORK, is_lost=True)]),
         [("no_worker", "urgent"), ("worker_lost", "soon")]),
        (Signs(NOW, [QUIET], hands=[replace(AT_WORK, paused="by ann")]), [("worker_paused", "soon")]),
        (Signs(NOW, [late(1)], hands=[replace(AT_WORK, paused="by ann")]),
         [("no_worker", "urgent"), ("worker_paused", "soon")]),
        (Signs(NOW, [late(1)], hands=[AT_WORK, replace(AT_WORK, paused="by ann")]),
         [("worker_paused", "soon")]),
        (Signs(NOW, queues=[QueueDepth("q", 5, 0)]), [("queue", "soon")]),
        (Signs(NOW, queues=[QueueDepth("q", 5, 1), QueueDepth("r", 0, 0), QueueDepth("s", 5)]), []),
    ],
)  # fmt: skip
def test_what_needs_somebody(signs: Signs, expected: list[tuple[str, str]]) -> None:
    assert kinds(signs) == expected


@pytest.mark.parametrize(
    ("delivered", "retried", "level"),
    [(18, 1, None), (18, 2, None), (17, 3, "soon"), (9, 11, "urgent")],
)
def test_a_low_rate_of_success_is_told(delivered: int, retried: int, level: str | None) -> None:
    hour = tempo(replace(NOTHING, delivered=delivered, retried=retried))
    expected = [] if level is None else [("failing", level)]
    assert kinds(Signs(NOW, [replace(QUIET, hour=hour)])) == expected


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([Point(NOW - timedelta(minutes=40), 0, 90, 0), Point(NOW - timedelta(minutes=5), 0, 0, 0)], []),
        ([Point(NOW - timedelta(minutes=40), 0, 90, 0), Point(NOW - timedelta(minutes=5), 9, 1, 0)], []),
        ([Point(NOW - timedelta(minutes=40), 0, 90, 0), Point(NOW - timedelta(minutes=5), 0, 1, 0)],
         [("failing", "urgent")]),
    ],
)  # fmt: skip
def test_what_fails_no_more_is_no_topic(points: list[Point], expected: list[tuple[str, str]]) -> None:
    hour = tempo(replace(NOTHING, delivered=9, retried=91))
    assert kinds(Signs(NOW, [replace(QUIET, hour=hour, series=tuple(points))])) == expected


def test_what_was_mended_is_told_below_what_can_be_acted_on() -> None:
    hour = tempo(replace(NOTHING, delivered=36, retried=24))
    points = (Point(NOW - timedelta(minutes=9), 20, 24, 0), Point(NOW - timedelta(minutes=4), 5, 0, 0))
    failing = replace(QUIET, lane="dispatch_jobs", hour=hour, series=points[:1])
    dead = [died(12, timedelta(minutes=5))]
    (first, second) = attention(Signs(NOW, [failing], dead=dead))
    assert (first.kind, second.kind) == ("dead", "failing")
    (mended,) = attention(Signs(NOW, [replace(failing, series=points)]))
    assert (mended.level, mended.title) == ("note", "Many attempts at webhooks failed")
    assert mended.detail == "24 of 60 attempts failed in the last hour; the newest succeed"
    one_more = Point(NOW - timedelta(minutes=4), 1, 0, 0)
    assert kinds(Signs(NOW, [replace(failing, series=(*points[:1], one_more))])) == [("failing", "soon")]
    empty = replace(failing, phases={**QUIET.phases, "waiting": 0})
    (over,) = attention(Signs(NOW, [empty]))
    assert (over.level, over.detail.partition("; ")[2]) == (
        "note", "nothing waits now, and nothing is given up",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("waiting", "told"),
    [(1, "1 mail waits, the oldest"), (2, "2 mails wait, the oldest"), (0, "nothing waits")],
)
def test_a_backlog_is_told_as_people_say_it(waiting: int, told: str) -> None:
    lane = replace(late(400), phases={**QUIET.phases, "waiting": waiting})
    (item,) = attention(Signs(NOW, [lane], paused={"mail_outbox": "ann"}))
    assert item.detail.startswith(f"by ann; {told}")


def test_retention_is_a_topic_once_there_is_much_to_delete() -> None:
    full = replace(QUIET, phases={**QUIET.phases, "delivered": 1_000_001})
    assert kinds(Signs(NOW, [full], keeps_everything=True)) == [("retention", "note")]
    assert kinds(Signs(NOW, [full])) == []


def test_the_most_urgent_comes_first_and_leads_to_where_it_can_be_mended() -> None:
    mails = DeadGroup("mail_outbox", None, 1, None, NOW - timedelta(hours=3), "words", "outbox_1")
    found = attention(
        Signs(
            NOW,
            [late(400)],
            dead=[died(1204, timedelta(minutes=3), "connect_timeout"), mails],
            targets=[TargetTrouble("https://x:443", False)],
            hands=[AT_WORK, Hand("b:2", True, ("mail_outbox",), 200.0)],
        )
    )
    assert [item.level for item in found] == ["urgent", "urgent", "soon", "soon", "note"]
    assert found[0].title == "Mails are late"
    assert found[0].detail == "7 mails wait, the oldest for 7 min"
    assert found[1].title == "1,204 webhooks given up: connect_timeout"
    assert found[1].detail == "the last 3 min ago, many of them for https://x:443"
    assert found[2].title == "1 mail given up: no reason kept"
    assert found[3].detail == "it was last heard of 3 min ago"
    lines = [parse_qs(urlsplit(item.link).query).get("q", [""])[0] for item in found]
    wanted = [one for line in lines[:3] if isinstance(one := query.read(line, NOW), Wanted)]
    assert [(one.lanes, one.phases, one.error, one.codes) for one in wanted] == [
        (("mail_outbox",), ("waiting",), None, ()),
        (("dispatch_jobs",), ("dead",), None, ("connect_timeout",)),
        (("mail_outbox",), ("dead",), "unclassified", ()),
    ]
    assert [item.link for item in found[3:]] == ["/workers", "/targets?state=paused"]


def test_the_reasons_of_a_lane_stand_in_one_line() -> None:
    groups = [died(n, timedelta(minutes=n), f"http_{500 + n}") for n in range(1, 6)]
    (item,) = attention(Signs(NOW, dead=groups))
    assert item.title == (
        "15 webhooks given up: http_505 5, http_504 4, http_503 3, http_502 2, 1 other reason"
    )
    assert (item.link, item.level) == ("/dead", "urgent")
    (item,) = attention(Signs(NOW, dead=[replace(groups[0], is_lower_bound=True), groups[1]]))
    assert item.title == "at least 3 webhooks given up: http_502 2, http_501 1"
    assert item.detail.startswith("the last 60 s ago")


def test_many_of_a_kind_are_one_line() -> None:
    targets = [TargetTrouble(f"https://{name}:443", True, "HTTP 503") for name in "abcdef"]
    hands = [Hand(f"host:{number}", True, ("mail_outbox",)) for number in range(2)]
    breakers, lost = attention(Signs(NOW, targets=targets, hands=hands))
    assert breakers.title == "6 targets keep failing"
    assert breakers.detail == (
        "https://a:443, https://b:443, https://c:443, https://d:443 and 2 more; their webhooks wait"
    )
    assert (lost.title, lost.detail) == ("2 workers are silent", "host:0, host:1")
    (alone,) = attention(Signs(NOW, targets=targets[:1]))
    assert (alone.title, alone.detail) == ("https://a:443 keeps failing", "HTTP 503; its webhooks wait")


# ── with real lanes ──────────────────────────────────────────────────────────────────────────────


def sources(opened: Bench) -> Sources:
    homing = opened.homing
    return Sources({"mail_outbox": homing.mail.backlog}, {"mail_outbox": PHASES}, homing.figures.traffic)


async def test_what_a_lane_did_is_shown(database_url: str) -> None:
    async with bench(database_url) as opened:
        await opened.insert(5)
        await opened.deliver(limit=4)
        await opened.homing.figures.count.flush()
        now = datetime.now(UTC)
        overview = Overview(sources(opened))
        for hours, step, points in ((3, timedelta(minutes=5), 36), (24, timedelta(minutes=30), 48)):
            view = await overview.look(now, hours=3 if hours == 3 else 24)
            (lane,) = view.lanes
            assert lane.counts["queued"] == 1
            assert lane.counts["sent"] == 4
            assert (lane.phases["waiting"], lane.phases["delivered"]) == (1, 4)
            assert (lane.hour.attempts, lane.hour.success) == (4, 1.0)
            assert lane.hour.p50 is not None
            assert lane.hour.p50 <= (lane.hour.p95 or 0)
            assert lane.hour.wait_p95 is not None
            assert len(lane.series) == points
            assert {
                later.at - point.at for point, later in zip(lane.series, lane.series[1:], strict=False)
            } == {step}
            assert now - step < lane.series[-1].at <= now
            assert sum(point.delivered for point in lane.series) == 4
            assert view.notes == ()


async def test_who_does_not_answer_is_left_out_and_named(sqlite_url: str) -> None:
    async def away() -> Sequence[TargetTrouble]:
        raise Unreachable("away")

    async with bench(sqlite_url) as opened:
        await opened.insert()
        asked = Sources(**{**vars(sources(opened)), "targets": away})
        view = await Overview(asked).look(datetime.now(UTC))
        assert view.lanes[0].counts["queued"] == 1
        assert view.notes == ("The targets could not be asked for just now.",)


async def test_many_who_look_at_once_cost_as_much_as_one(sqlite_url: str) -> None:
    asked = {"targets": 0, "dead": 0}

    async def targets() -> Sequence[TargetTrouble]:
        asked["targets"] += 1
        await asyncio.sleep(0)
        return ()

    async def dead() -> Sequence[DeadGroup]:
        asked["dead"] += 1
        return ()

    seconds = 0.0
    async with bench(sqlite_url) as opened:
        asks = {"targets": targets, "dead": dead}
        overview = Overview(Sources(**{**vars(sources(opened)), **asks}), lambda: seconds)
        now = datetime.now(UTC)
        await asyncio.gather(*(overview.look(now) for _ in range(20)))
        await overview.look(now)
        assert asked == {"targets": 1, "dead": 1}
        seconds += 2.1
        await overview.look(now)
        assert asked == {"targets": 2, "dead": 1}, "to group the dead takes longer, so it is done more rarely"
        seconds += 10.0
        await overview.look(now)
        assert asked == {"targets": 3, "dead": 2}


@pytest.mark.clause("JOB-22", "JOB-25")
async def test_the_api_tells_of_every_lane_and_of_what_needs_somebody(sqlite_url: str) -> None:
    async with (
        bench(sqlite_url) as opened,
        serving(opened.homing.asgi(), "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
    ):
        opened.sender.answer("ann@example.org", Verdict(status="rejected", code=550, text="no such user"))
        await opened.insert(12)
        await opened.deliver()
        (late_mail,) = await opened.insert(to_address="bob@example.org")
        await opened.age(late_mail, 400)
        await opened.sql(
            "UPDATE mail_outbox SET created_at = next_attempt_at WHERE id = :id RETURNING id", id=late_mail
        )
        await opened.sql(
            "INSERT INTO homing_target (target, open_until) VALUES ('https://x:1', '2999-01-01T00:00:00Z')"
        )
        await opened.homing.fleet.pause("lane", "open_events", by="user:ann", reason="the relay moves")
        await opened.homing.figures.count.flush()
        told = await _complete(client)
        assert [lane["lane"] for lane in told["lanes"]] == list(LANES)
        mails = told["lanes"][0]
        assert mails["counts"] == await opened.outbox.counts()
        assert mails["phases"]["dead"] == 12
        assert mails["oldestDue"] >= 400
        assert mails["hour"]["success"] == 0.0
        assert len(mails["series"]) == 48
        assert [(item["kind"], item["level"]) for item in told["attention"]] == [
            ("no_worker", "urgent"),
            ("dead", "urgent"),
            ("paused", "soon"),
            ("breaker", "soon"),
        ]
        assert told["attention"][2]["detail"].startswith("by user:ann: the relay moves; ")
        assert (await client.get("/api/overview?hours=5")).status_code == 400


async def _complete(client: httpx.AsyncClient) -> Any:
    """On a busy machine something may not have answered in time, and does for the next look."""
    while True:
        answer = await client.get("/api/overview?hours=24")
        assert answer.status_code == 200
        if not answer.json()["notes"]:
            return answer.json()
        await asyncio.sleep(0.1)


async def test_an_urgent_mail_is_not_late_for_being_first(database_url: str) -> None:
    async with bench(database_url) as opened:
        await opened.outbox.enqueue([NewMail(token=new_token(), to_address="a@example.org", urgent=True)])
        assert await opened.outbox.oldest_due() < 60
        (late,) = await opened.insert()
        await opened.age(late, 400)
        await opened.sql(
            "UPDATE mail_outbox SET created_at = next_attempt_at WHERE id = :id RETURNING id", id=late
        )
        assert 400 <= await opened.outbox.oldest_due() < 3600
