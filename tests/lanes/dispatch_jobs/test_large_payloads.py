"""Large payloads are claimed without, read when their turn comes, and a bounded number of bytes at once."""

from __future__ import annotations

import asyncio

from tests.jobs import JobBench, job_bench

from homing.testing.http_sink import Answer, HttpSink, SinkRequest

MIB = 1024 * 1024
#: 300 KiB of text that takes more bytes than characters.
LARGE = "ä" * 150 * 1024


def in_hand(lane: JobBench) -> float | None:
    return lane.homing.telemetry.registry.get_sample_value("homing_bytes_in_hand")


async def test_a_large_payload_comes_after_the_claim_and_arrives_whole(database_url: str) -> None:
    async with HttpSink() as sink, job_bench(database_url) as lane:
        payloads = ["x" * 16384, "x" * 16385, LARGE]
        ids = [(await lane.create(sink.url, payload=payload))[0] for payload in payloads]
        claims = {claim.id: claim for claim in await lane.claim()}
        assert [claims[id].size for id in ids] == [0, 16385, 300 * 1024]
        assert [claims[id].item.payload for id in ids] == [payloads[0], None, None]
        await lane.jobs.release(list(claims.values()))
        await lane.run_until_idle()
        assert await lane.states(ids) == ["COMPLETED"] * 3
        assert sorted(request.body.decode() for request in sink.requests) == sorted(payloads)


async def test_large_ones_wait_for_room_and_small_ones_pass_them_by(database_url: str) -> None:
    """Of one target as much as half of a MiB, which is one of them; and another target has the other half."""
    held: list[float | None] = []
    large = {"now": 0, "most": 0}

    def answer(request: SinkRequest) -> Answer:
        if len(request.body) < MIB // 4:
            return Answer()
        held.append(in_hand(lane))
        large["now"] += 1
        large["most"] = max(large["most"], large["now"])
        asyncio.get_running_loop().call_later(0.05, done)
        return Answer(delay=0.05)

    def done() -> None:
        large["now"] -= 1

    async with (
        HttpSink(answer) as sink,
        HttpSink(answer) as other,
        job_bench(database_url, bytes_at_once=MIB) as lane,
    ):
        value = lane.homing.telemetry.registry.get_sample_value
        assert value("homing_bytes_at_once") == MIB
        await lane.create(sink.url, 6, payload=LARGE)
        await lane.create(other.url, 3, payload=LARGE)
        small = await lane.create(sink.url, 20)
        await lane.run_until_idle()
        assert set(await lane.states(small)) == {"COMPLETED"}
        assert (sink.count, other.count) == (26, 3)
        assert large["most"] == 2, "one of each target"
        assert max(size for size in held if size is not None) == 600 * 1024
        assert in_hand(lane) == 0
        first = [len(request.body) for request in sink.requests[:15]]
        assert sum(size < MIB // 4 for size in first) >= 10, "they did not wait"
        await lane.attempts_add_up()


async def test_a_job_that_is_deleted_while_it_waits_for_room_is_not_sent(database_url: str) -> None:
    async with HttpSink() as sink, job_bench(database_url) as lane:
        (id,) = await lane.create(sink.url, payload=LARGE)
        (claim,) = await lane.claim()
        await lane.tables.delete("dispatch_job", id=id)
        lane.deliverer.take([claim], until=asyncio.get_running_loop().time() + 60)
        await lane.deliverer.finished()
        assert sink.count == 0


async def test_headers_that_no_server_takes_do_not_come_with_the_claim(database_url: str) -> None:
    async with HttpSink() as sink, job_bench(database_url) as lane:
        wide, deep, fits = await lane.create(sink.url, 3, headers={"X-First": "1"})
        await lane.tables.add_header(wide, "X-Wide", "a" * 2 * MIB)
        for number in range(5):
            await lane.tables.add_header(deep, f"X-{number}", "a" * 16_000)
            await lane.tables.add_header(fits, f"X-{number}", "a" * 1_000)
        claims = {claim.id: claim for claim in await lane.claim()}
        assert [claims[id].item.headers for id in (wide, deep)] == ["", ""]
        await lane.jobs.release(list(claims.values()))
        await lane.run_until_idle()
        assert await lane.states([wide, deep, fits]) == ["ERROR", "ERROR", "COMPLETED"]
        assert "no server takes them" in (await lane.row(wide))["last_error"]
        (request,) = sink.requests
        assert [request.header(f"X-{number}") for number in range(5)] == ["a" * 1_000] * 5


async def test_a_trace_that_is_none_does_not_come_with_the_claim(database_url: str) -> None:
    async with HttpSink() as sink, job_bench(database_url) as lane:
        (id,) = await lane.create(sink.url)
        await lane.change(id, traceparent="a" * MIB, tracestate="b" * MIB)
        (claim,) = await lane.claim()
        assert len(claim.traceparent or "") + len(claim.item.tracestate or "") < 1024
        await lane.jobs.release([claim])
        await lane.run_until_idle()
        assert await lane.states([id]) == ["COMPLETED"]
