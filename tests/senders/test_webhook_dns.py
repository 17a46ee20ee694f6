"""Names: looked up once, kept for a while, judged, and no hindrance to each other."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.senders.webhook_peers import DnsServer, Names, guard, post, sender_for

from homing.senders.egress import AddressInfo, EgressRefused
from homing.senders.webhook_dns import Addresses, DnsLookup, GuardedResolver, LookupFailed
from homing.testing.http_sink import HttpSink


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def hosts(results: list[AddressInfo]) -> list[str]:
    return [result[4][0] for result in results]


class TestCache:
    async def test_an_answer_is_kept(self) -> None:
        clock, names = Clock(), Names({"a.example": ("1.1.1.1",)})
        resolver = GuardedResolver(guard(), names, monotonic=clock)
        for _ in range(3):
            assert hosts(await resolver.resolve("a.example", 443)) == ["1.1.1.1"]
        assert names.asked == ["a.example"]
        clock.now += 3
        await resolver.resolve("a.example", 443)
        assert len(names.asked) == 2

    @pytest.mark.parametrize(("ttl", "kept"), [(0, 2), (30, 30), (86_400, 60)])
    async def test_as_long_as_the_dns_says_within_bounds(self, ttl: float, kept: float) -> None:
        class Timed(Names):
            async def find(self, host: str) -> Addresses:
                return Addresses((await super().find(host)).found, ttl)

        clock, names = Clock(), Timed({"a.example": ("1.1.1.1",)})
        resolver = GuardedResolver(guard(), names, monotonic=clock)
        await resolver.resolve("a.example", 443)
        clock.now += kept - 0.1
        await resolver.resolve("a.example", 443)
        assert len(names.asked) == 1
        clock.now += 0.2
        await resolver.resolve("a.example", 443)
        assert len(names.asked) == 2

    async def test_failures_are_kept_briefly(self) -> None:
        clock, names, told = Clock(), Names({"bad.example": ("10.0.0.1",)}), list[tuple[str, str]]()
        resolver = GuardedResolver(
            guard(), names, monotonic=clock, on_refused=lambda *refused: told.append(refused)
        )
        for _ in range(3):
            with pytest.raises(LookupFailed, match="does not exist"):
                await resolver.resolve("none.example", 443)
            with pytest.raises(EgressRefused, match=r"^\[Errno 13\] the name leads to an address"):
                await resolver.resolve("bad.example", 443)
        assert sorted(names.asked) == ["bad.example", "none.example"]
        assert told == [
            ("bad.example", "10.0.0.1 is a private address; HOMING_EGRESS_ALLOW can permit it")
        ], "once for each question"
        clock.now += 6
        with pytest.raises(LookupFailed):
            await resolver.resolve("none.example", 443)
        assert len(names.asked) == 3

    async def test_it_does_not_grow_without_end(self) -> None:
        names = Names({f"{n}.example": ("1.1.1.1",) for n in range(5000)})
        resolver = GuardedResolver(guard(), names, monotonic=Clock())
        for number in range(5000):
            await resolver.resolve(f"{number}.example", 443)
        assert len(resolver._known) == 4096
        await resolver.resolve("4999.example", 443)
        assert len(names.asked) == 5000

    async def test_the_addresses_of_a_name_take_turns(self) -> None:
        addresses = ("1.1.1.1", "1.1.1.2", "2606:4700::1")
        resolver = GuardedResolver(guard(), Names({"a.example": addresses}), monotonic=Clock())
        firsts = [hosts(await resolver.resolve("a.example", 443))[0] for _ in range(6)]
        assert sorted(firsts) == sorted(addresses * 2)
        found = {(info[0], *info[4][:2]) for info in await resolver.resolve("a.example", 443)}
        assert found == {
            (socket.AF_INET, "1.1.1.1", 443),
            (socket.AF_INET, "1.1.1.2", 443),
            (socket.AF_INET6, "2606:4700::1", 443),
        }

    async def test_all_addresses_are_judged_however_many(self) -> None:
        many = (*(f"1.1.1.{n}" for n in range(1, 50)), "127.9.9.9")
        resolver = GuardedResolver(guard("10.0.0.0/8"), Names({"a.example": many, "b.example": many[:-1]}))
        with pytest.raises(EgressRefused):
            await resolver.resolve("a.example", 443)
        # They share the time for a connection, so only some are tried.
        assert len(await resolver.resolve("b.example", 443)) == 4


class Stuck:
    """A lookup that answers when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = 0

    async def find(self, _host: str) -> Addresses:
        self.asked += 1
        await self.go.wait()
        return Addresses(("1.1.1.1",))

    async def close(self) -> None:
        """Nothing is open."""


class TestAtTheSameTime:
    async def test_one_question_serves_all(self) -> None:
        lookup = Stuck()
        resolver = GuardedResolver(guard(), lookup)
        waiting = [asyncio.create_task(resolver.resolve("a.example", 443)) for _ in range(20)]
        await asyncio.sleep(0)
        lookup.go.set()
        assert {tuple(hosts(found)) for found in await asyncio.gather(*waiting)} == {("1.1.1.1",)}
        assert lookup.asked == 1
        await resolver.close()

    async def test_giving_up_takes_it_from_nobody_else(self) -> None:
        lookup = Stuck()
        resolver = GuardedResolver(guard(), lookup)
        first, second = (asyncio.create_task(resolver.resolve("a.example", 443)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0.01)
        lookup.go.set()
        assert hosts(await second) == ["1.1.1.1"]
        assert (first.cancelled(), lookup.asked) == (True, 1)

    async def test_closing_ends_all_questions(self) -> None:
        async with sender_for(lookup=Stuck()) as sender:
            sends = [asyncio.create_task(sender.send(post(f"http://n{n}.example/"))) for n in range(5)]
            await asyncio.sleep(0.01)
            await sender.close()
            for result in await asyncio.gather(*sends):
                assert (result.error_code, result.unknown) == ("connection_lost", False)


class TestRealDns:
    async def test_it_finds_and_fails(self) -> None:
        server = DnsServer({"receiver.example": "127.0.0.1", "inside.example": "10.0.0.1"})
        lookup = DnsLookup([await server.start()])
        async with HttpSink() as sink, sender_for(lookup=lookup) as sender:
            found = await sender.send(post(f"http://receiver.example:{sink.port}/"))
            assert (found.status, sink.requests[0].header("host")) == (200, f"receiver.example:{sink.port}")
            missing = await sender.send(post("http://missing.example/"))
            assert (missing.error_code, missing.message) == ("dns_error", "the name does not exist")
            inside = await sender.send(post("http://inside.example/"))
            assert inside.error_code == "egress_refused"
            assert "10.0.0.1" not in inside.message
            questions = len(server.questions)
            # Capitals and a full stop at the end make no other name.
            assert (await sender.send(post(f"http://Receiver.EXAMPLE.:{sink.port}/"))).status == 200
            assert len(server.questions) == questions
        server.close()

    async def test_localhost_is_known_without_asking(self) -> None:
        server = DnsServer({})
        lookup = DnsLookup([await server.start()])
        async with HttpSink() as sink, sender_for(lookup=lookup) as sender:
            assert (await sender.send(post(f"http://localhost:{sink.port}/"))).status == 200
        async with sender_for(guard(""), lookup=DnsLookup()) as sender:
            refused = await sender.send(post(f"http://localhost:{sink.port}/"))
            assert refused.error_code == "egress_refused"
            assert "the name leads to an address that webhooks may not go to" in refused.message
        assert server.questions == []
        server.close()

    async def test_20_dead_names_do_not_delay_a_healthy_one(self) -> None:
        server = DnsServer({"receiver.example": "127.0.0.1"})
        lookup = DnsLookup([await server.start()])
        async with HttpSink() as sink, sender_for(lookup=lookup) as sender:
            dead = [asyncio.create_task(sender.send(post(f"http://dead{n}.example/"))) for n in range(20)]
            while len({name for name in server.questions if name.startswith("dead")}) < 20:
                await asyncio.sleep(0.01)
            result = await sender.send(post(f"http://receiver.example:{sink.port}/"))
            assert result.status == 200
            assert not any(task.done() for task in dead)
            # It did not wait for any of these, which have ten seconds.
            assert result.seconds < 8
            await sender.close()
            assert {failed.error_code for failed in await asyncio.gather(*dead)} == {"connection_lost"}
        server.close()

    async def test_a_dead_name_takes_no_longer_than_the_deadline(self) -> None:
        server = DnsServer({})
        lookup = DnsLookup([await server.start()])
        async with sender_for(lookup=lookup) as sender:
            result = await sender.send(post("http://dead.example/", timeout=0.2))
            assert (result.error_code, result.unknown) == ("timeout", False)
            assert result.message == "no connection within 0.2 s"
        server.close()
