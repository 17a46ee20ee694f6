"""Live pages: one look for all who look, and no stream outlives its session or the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.emails import until
from tests.http.door import Door, opened_door
from tests.http.pages.visitor import door_with_people, visiting
from tests.outbox import LogLines

from homing.desk.bulk import Asker
from homing.desk.bulk_runner import BulkRunner
from homing.errors import RateLimited, Unreachable
from homing.http import live, server
from homing.http.live import Piece, Streams
from homing.telemetry import Telemetry, make_logger


class Watched:
    """Something to look at, which tests change."""

    def __init__(self, *names: str) -> None:
        self.looks = 0
        self.pieces = dict.fromkeys(names, 0)
        self.trouble: Exception | None = None

    async def look(self) -> list[Piece]:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        return [Piece(name, "any", {"n": n}) for name, n in self.pieces.items()]


class Stage:
    def __init__(self) -> None:
        self.log = LogLines()
        telemetry = Telemetry(make_logger("json", 10, self.log.stream), CollectorRegistry())
        self.streams = Streams(telemetry, lambda piece: f"<{piece.key} {piece.values['n']}>")
        self.watched = Watched("a", "b")
        self.counting = True

    async def follow(self, who: str = "user:ann", key: str = "topic") -> AsyncGenerator[bytes, None]:
        async def counts() -> bool:
            return self.counting

        return await self.streams.follow(who, key, self.watched.look, every=0.005, counts=counts)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    await stage.streams.close()


async def event(stream: AsyncIterator[bytes]) -> tuple[str, Any]:
    """The next that says something."""
    async with asyncio.timeout(30):
        async for text in stream:
            if text.startswith(b"event: "):
                name, _, data = text.decode().partition("\n")
                return name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: ").strip())
    return "end", None


async def happens(condition: Callable[[], bool]) -> None:
    async def asked() -> bool:
        return condition()

    await until(asked, 30)


async def test_all_who_look_share_one_look_and_get_what_changed(stage: Stage) -> None:
    async with aclosing(await stage.follow()) as one, aclosing(await stage.follow("user:bob")) as other:
        everything = {"put": [["a", "<a 0>"], ["b", "<b 0>"]], "gone": [], "all": True}
        assert await event(one) == ("pieces", everything)
        assert await event(other) == ("pieces", everything)
        assert (stage.streams.followers, stage.streams.topics) == (2, 1)
        stage.watched.pieces = {"c": 1, "b": 0}
        changed = {"put": [["c", "<c 1>"]], "gone": ["a"], "all": False}
        assert await event(one) == ("pieces", changed)
        assert await event(other) == ("pieces", changed)
        async with aclosing(await stage.follow("user:late")) as late:
            assert await event(late) == (
                "pieces",
                {"put": [["c", "<c 1>"], ["b", "<b 0>"]], "gone": [], "all": True},
            )
    assert (stage.streams.followers, stage.streams.topics) == (0, 0)
    await asyncio.sleep(0.05)
    looks = stage.watched.looks
    await asyncio.sleep(0.1)
    assert stage.watched.looks == looks, "nobody looks, so nothing is asked"


async def test_a_costly_look_is_taken_more_rarely(stage: Stage) -> None:
    plain = stage.watched.look

    async def slowly() -> list[Piece]:
        await asyncio.sleep(0.05)
        return await plain()

    stage.watched.look = slowly  # type: ignore[method-assign]  # as a table that no index serves
    began = time.monotonic()
    async with aclosing(await stage.follow()) as stream:
        await event(stream)
        await happens(lambda: stage.watched.looks >= 3)
    assert time.monotonic() - began >= 1


async def test_an_outage_is_told_and_a_bug_ends_the_stream(stage: Stage) -> None:
    async with aclosing(await stage.follow()) as stream:
        await event(stream)
        stage.watched.trouble = Unreachable("canary-host refused")
        name, told = await event(stream)
        assert (name, told) == ("away", {"why": "the database cannot be reached"})
        stage.watched.trouble = ValueError("canary")
        while (await event(stream))[0] != "end":
            pass
    (entry,) = stage.log.all("live.failed")
    assert entry["error"] == "ValueError"
    assert "canary" not in stage.log.text


async def test_who_leaves_what_has_ended_takes_no_place_from_what_began_since(stage: Stage) -> None:
    old = await stage.follow()
    await event(old)
    stage.watched.trouble = ValueError("canary")
    await happens(lambda: stage.streams.topics == 0)
    stage.watched.trouble = None
    async with aclosing(await stage.follow("user:bob")) as new:
        await event(new)
        await old.aclose()
        assert (stage.streams.followers, stage.streams.topics) == (1, 1)
    assert stage.streams.topics == 0


async def test_who_is_logged_out_or_reads_too_slowly_is_sent_away(stage: Stage) -> None:
    async with aclosing(await stage.follow()) as stream:
        await event(stream)
        for n in range(20):
            stage.watched.pieces["a"] = n
            looks = stage.watched.looks
            await happens(lambda looks=looks: stage.watched.looks > looks + 1)  # type: ignore[misc]  # a default binds the number
        assert await event(stream) == ("end", None)
    async with aclosing(await stage.follow()) as stream:
        await event(stream)
        stage.counting = False
        stage.watched.pieces["a"] = -1
        assert await event(stream) == ("over", {})
        assert await event(stream) == ("end", None)


async def test_streams_are_limited_and_end_with_the_server(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_OF_ONE", 2)
    async with aclosing(await stage.follow()) as one, aclosing(await stage.follow()) as other:
        await event(one)
        await event(other)
        with pytest.raises(RateLimited):
            await stage.follow()
        async with aclosing(await stage.follow("user:bob")):
            assert stage.streams.followers == 3
        await stage.streams.close()
        assert await event(one) == ("end", None)
        assert await event(other) == ("end", None)
    with pytest.raises(RateLimited):
        await stage.follow("user:bob")


async def test_a_stream_that_nobody_reads_gives_its_place_back(stage: Stage) -> None:
    """Who asked for it may be gone before it begins."""
    following = await stage.follow()
    assert (stage.streams.followers, stage.streams.topics) == (1, 1)
    del following
    await happens(lambda: stage.streams.followers == stage.streams.topics == 0)


# ── by http ──────────────────────────────────────────────────────────────────────────────────────


class Tail:
    """What a browser makes of a stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def event(self) -> tuple[str, Any]:
        async with asyncio.timeout(30):
            async for line in self._lines:
                if line.startswith("event: "):
                    data = await anext(self._lines)
                    return line.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))
        return "end", None


@asynccontextmanager
async def tail(client: httpx.AsyncClient, **query: str) -> AsyncIterator[Tail]:
    async with client.stream("GET", "/events", params=query) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Tail(response)


def streams_of(door: Door) -> Streams:
    found = door.app.state.closing[0].__self__
    assert isinstance(found, Streams)
    return found


async def test_a_new_message_is_at_the_top_within_a_moment(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "HEARTBEAT", 0.3)
    async with door_with_people(database_url) as door, visiting(door, "viewer") as viewer:
        (first,) = await door.insert(1)
        async with tail(viewer.client, topic="messages", q="lane:mail_outbox status:waiting") as stream:
            name, told = await stream.event()
            assert (name, [key for key, _ in told["put"]]) == ("pieces", [f"row-outbox_{first}"])
            (second,) = await door.insert(1, subject="<b>late</b>")
            _, told = await stream.event()
            ((key, html),) = told["put"]
            assert key == f"row-outbox_{second}"
            assert html.startswith(f'<tr id="row-outbox_{second}"')
            assert "&lt;b&gt;late" in html
            await door.deliver()
            gone: set[str] = set()
            # They may be settled one after the other, and seen in between.
            while len(gone) < 2:
                _, told = await stream.event()
                gone |= set(told["gone"])
            assert gone == {f"row-outbox_{first}", f"row-outbox_{second}"}
            assert streams_of(door).followers == 1
            # Logging out ends it, though it was there before.
            assert (await viewer.send("/logout", {})).status_code == 303
            assert await stream.event() == ("over", {})
        await happens(lambda: streams_of(door).topics == 0)


async def test_who_looks_beside_an_operator_sees_what_a_viewer_sees(sqlite_url: str) -> None:
    """By the same line, which finds for one of them what is hidden from the other."""
    async with (
        door_with_people(sqlite_url) as door,
        visiting(door, "operator") as operator,
        visiting(door, "viewer") as viewer,
    ):
        (hidden,) = await door.insert(1, subject="Your code: 834221")
        line = {"topic": "messages", "q": "834221"}
        async with tail(operator.client, **line) as whole, tail(viewer.client, **line) as part:
            for stream, found in ((whole, [f"row-outbox_{hidden}"]), (part, [])):
                _, told = await stream.event()
                assert [key for key, _ in told["put"]] == found


async def test_a_message_is_watched_to_its_end(sqlite_url: str) -> None:
    async with opened_door(sqlite_url) as door:
        (id,) = await door.insert(1)
        page = (await door.client.get(f"/messages/outbox_{id}")).text
        assert f'data-topic="/events?topic=message&amp;q=outbox_{id}"' in page
        async with tail(door.client, topic="message", q=f"outbox_{id}") as stream:
            _, told = await stream.event()
            assert [key for key, _ in told["put"]] == ["message-state", "timeline"]
            await door.deliver()
            while "delivered" not in str(told):
                _, told = await stream.event()
        assert "data-topic" not in (await door.client.get(f"/messages/outbox_{id}")).text


async def test_who_asks_for_many_at_once_gets_as_many_as_one_may_have(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_OF_ONE", 3)
    async with opened_door(sqlite_url) as door:
        (id,) = await door.insert(1)
        host, _, port = door.address.removeprefix("http://").partition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        for _, writer in opened:
            writer.write(f"GET /events?topic=message&q=outbox_{id} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        said = sorted([(await reader.readline()).split()[1] for reader, _ in opened])
        assert said == [b"200"] * 3 + [b"429"] * 17
        assert streams_of(door).followers == 3
        for _, writer in opened:
            writer.close()
        await happens(lambda: streams_of(door).followers == 0)


async def test_who_looks_on_beside_somebody_who_may_see_more_is_told_no_more(sqlite_url: str) -> None:
    """Who ordered a bulk run over all lanes is told to those who may read all of them."""
    async with door_with_people(sqlite_url) as door, visiting(door, "admin") as admin:
        (id,) = await door.insert(1, status="failed", last_error="timeout: no answer")
        runs = door.homing.bulk.runs
        run = await runs.start("status:dead", "requeue", Asker("user:admin", lambda _scope: True))
        assert await BulkRunner(runs, door.homing.telemetry, owner="test", pause=0.0).once(run.id)
        headers = {"Authorization": f"Bearer {await door.key('desk:read', 'mail:read')}"}
        async with (
            httpx.AsyncClient(base_url=door.address, headers=headers) as client,
            tail(admin.client, topic="message", q=f"outbox_{id}") as all_of_it,
        ):
            assert f"bulk run {run.id} of user:admin" in str(await all_of_it.event())
            async with tail(client, topic="message", q=f"outbox_{id}") as less:
                told = str(await less.event())
        assert f"bulk run {run.id}" in told
        assert "user:admin" not in told
        assert f"/bulk/{run.id}" not in told, "they would not be let in there"


async def test_a_stop_does_not_wait_for_pages_that_are_open(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_SHUTDOWN_SLACK", 50)
    async with httpx.AsyncClient(timeout=30) as client:
        async with opened_door(sqlite_url) as door:
            client.base_url = httpx.URL(door.address)
            stream = tail(client, topic="overview")
            opened = await stream.__aenter__()
            name, told = await opened.event()
            assert name == "pieces"
            assert {key for key, _ in told["put"]} >= {"attention", "lane-mail_outbox"}
            for wrong, status in (
                ({"topic": "nonsense"}, 400),
                ({"topic": "bulk", "id": "7"}, 404),
                ({"topic": "message", "q": "outbox_7"}, 404),
                ({"topic": "messages", "q": "statsu:x"}, 400),
            ):
                assert (await client.get("/events", params=wrong)).status_code == status, wrong
            began = time.monotonic()
        assert time.monotonic() - began < 25, "the server waited for the stream"
        assert (await opened.event())[0] == "end"
        await stream.__aexit__(None, None, None)
