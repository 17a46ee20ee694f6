"""The sink as a process of its own, as benchmarks and chaos use it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.senders.webhook_peers import post, sender_for

from homing.testing.http_sink import Answer, Faults, HttpSink, SinkRequest


@asynccontextmanager
async def sink_process(*options: str) -> AsyncIterator[str]:
    command = (sys.executable, "-m", "homing.testing.http_sink", *options)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        assert await process.wait() == 0


def lines(record: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in record.read_bytes().splitlines()]


async def test_it_records_before_it_answers(tmp_path: Path) -> None:
    record = tmp_path / "got.jsonl"
    async with sink_process("--record", str(record)) as url, sender_for() as sender:
        for number in range(5):
            body = b"body %d" % number
            request = post(f"{url}/hook/{number}", body)
            assert (await sender.send(request)).status == 200
            last = lines(record)[-1]
            assert (last["path"], last["webhook_id"], last["status"]) == (f"/hook/{number}", "msg_1", 200)
            assert last["sha256"] == sha256(body).hexdigest()
            assert "body" not in last
    assert [line["time"] for line in lines(record)] == sorted(line["time"] for line in lines(record))


@pytest.mark.slow
async def test_failures_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    runs = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        record = tmp_path / name
        options = ("--record", str(record), "--record-bodies", "--fail", "0.3", "--seed", seed)
        async with sink_process(*options) as url, sender_for() as sender:
            for number in range(60):
                request = post(url, b"x", headers={"Webhook-Id": f"m{number % 30}"})
                assert (await sender.send(request)).status in {200, 500}
        runs.append([line["status"] for line in lines(record)])
        assert lines(record)[0]["body"] == "x"
    assert runs[0] == runs[1] != runs[2]
    assert 5 <= runs[0].count(500) <= 35


async def test_slow_paths_and_latency() -> None:
    options = ("--drip-path", "/slow", "--drip-interval", "0.05", "--latency", "0.05")
    async with sink_process(*options) as url, sender_for() as sender:
        assert (await sender.send(post(f"{url}/slow/1", timeout=0.3))).error_code == "timeout"
        quick = await sender.send(post(f"{url}/quick"))
        assert quick.status == 200
        # A timer of an event loop may fire a moment early.
        assert quick.seconds > 0.049


def test_how_many_fail_is_about_what_was_asked_for() -> None:
    script = Faults(fail=0.1, seed=3).script()
    requests = (
        SinkRequest("POST", "/", (("webhook-id", f"m{number}"),), b"", 0.0, 1) for number in range(5000)
    )
    failed = sum(script(request) is not None for request in requests)
    assert 400 < failed < 600


async def test_a_client_that_asks_before_it_sends() -> None:
    async with HttpSink() as sink:
        reader, writer = await asyncio.open_connection("127.0.0.1", sink.port)
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert sink.requests[0].body == b"body"
        writer.close()
        await writer.wait_closed()


async def test_requests_in_one_segment_and_in_pieces() -> None:
    one = b"POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
    async with HttpSink({"/a": Answer(delay=0.01)}) as sink:
        reader, writer = await asyncio.open_connection("127.0.0.1", sink.port)
        writer.write(one * 3)
        for start in range(0, len(one), 7):
            writer.write(one[start : start + 7])
            await writer.drain()
            await asyncio.sleep(0)
        await sink.received(4)
        assert {request.body for request in sink.requests} == {b"abc"}
        answers = [await reader.readuntil(b"\r\n\r\n") for _ in range(4)]
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
        writer.close()
        await writer.wait_closed()


async def test_waiting_in_vain_says_so() -> None:
    async with HttpSink() as sink:
        with pytest.raises(TimeoutError):
            await sink.received(1, timeout=0.05)
