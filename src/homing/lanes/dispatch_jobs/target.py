"""Targets: who may have how many of our slots.

A target is scheme, host, port and credentials. What all processes must know of it (pauses, breaker, limits)
stands in `homing_target`; here is what one process sees for itself: who answers quickly, and who is at work.
An endpoint of it is a URL without its query. One that fails, or asks for a pause, holds back its own jobs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from homing.engine.model import Monotonic, Rand
from homing.engine.token_bucket import TokenBucket
from homing.senders.egress import ascii_name

_PORTS = {"http": 80, "https": 443}
#: A target that takes longer than this is slow.
_QUICK = 1.0
#: A job that waits longer than this for its turn at the target goes back, for others to see.
LONGEST_TURN = 1.0
#: Jobs are claimed this many seconds before a quick target can take them.
_MOMENT = 0.25
#: A claim takes at most this part of the slots for targets that are known to be slow; and when quick ones are
#: due as well, this part in a second: many slow ones that time out together are not to crowd them out.
_SLOW_AT_ONCE, _SLOW_PER_SECOND = 1 / 50, 1 / 8
#: Seconds for which what a target said to us counts, also where the table does not know it yet.
_AHEAD_OF_THE_TABLE = 3.0
#: In the place of the one endpoint that fails: several, or the connection itself.
SEVERAL = "*"
#: After a pause an endpoint is asked by one job at a time, and by another when this one takes longer.
_PROBE = 1.0
#: A job of a closed endpoint looks again at least so often: a person may have resumed the target meanwhile.
_LOOKS_AGAIN = 300.0


def target_of(url: str, credentials_id: int | None) -> str:
    """As `homing_target_of` in the database has it."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return "invalid"
    host = ascii_name(parts.hostname or "").removesuffix(".")
    if not host:
        return "invalid"
    place = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return place if credentials_id is None else f"{place}#{credentials_id}"


def endpoint_of(url: str) -> str:
    """What stands for a URL without its query, which may hold secrets and be long."""
    bare = url.partition("#")[0].partition("?")[0]
    return blake2b(bare.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


#: How a target was met so far; `asked` has not answered yet.
Pace = Literal["quick", "unknown", "asked", "slow"]


class Standing(Struct, frozen=True, gc=False):
    """A target at the moment of a claim, as the database knows it."""

    target: str
    #: It has a job that is due, and may be asked.
    due: bool
    #: Jobs of it that any process holds, and those of this one.
    in_flight: int
    ours: int
    #: Never more than this at once, all processes together; 1 while its breaker is half open.
    most_in_flight: int | None = None
    rate_per_second: float | None = None
    failures: int = 0
    #: Seconds until it may be asked again.
    closed_for: float = 0.0
    #: The one that failed last; and seconds until this one may be asked again, while it is to be left alone.
    endpoint: str | None = None
    endpoint_closed_for: float | None = None
    #: Its breaker is not closed: once it may be asked again, one job tries. None where that is not known.
    broken: bool | None = None

    @property
    def limited(self) -> bool:
        return self.most_in_flight is not None or self.rate_per_second is not None

    def after(self, shares: Mapping[str, int], took: Mapping[str, int]) -> Standing:
        """When part of the claim is done. Who took all it was offered may have more, unless it has limits."""
        count = took.get(self.target, 0)
        hungry = 0 < shares.get(self.target, 0) <= count and not self.limited
        return replace(self, due=hungry, in_flight=self.in_flight + count, ours=self.ours + count)


class Gate:
    """One target's traffic in this process: so many at once, the others in line."""

    __slots__ = (
        "_free",
        "_impatience",
        "_line",
        "_started",
        "_tickets",
        "closed_until",
        "seconds",
        "well_at",
    )

    def __init__(self, width: int) -> None:
        self._free = width
        #: Since when, and what wakes it.
        self._line: deque[tuple[float, asyncio.Future[bool]]] = deque()
        self._impatience: asyncio.TimerHandle | None = None
        self._started: dict[int, float] = {}
        self._tickets = 0
        #: By our monotonic clock; nothing is sent before.
        self.closed_until = 0.0
        #: How long the last attempt took.
        self.seconds: float | None = None
        #: When an attempt last said nothing ill of it.
        self.well_at: float | None = None

    def is_quick(self, now: float) -> bool:
        """It answered quickly, and keeps nobody waiting now."""
        if self.seconds is None or self.seconds >= _QUICK:
            return False
        return not self._started or now - next(iter(self._started.values())) < _QUICK

    @property
    def idle(self) -> bool:
        return not self._started and not self._line

    async def enter(self, monotonic: Monotonic) -> int | None:
        """Wait for a turn, and get a ticket to leave with; None when it takes too long."""
        if self._free > 0:
            self._free -= 1
        elif not await self._turn():
            return None
        self._tickets += 1
        self._started[self._tickets] = monotonic()
        return self._tickets

    async def _turn(self) -> bool:
        """Whoever leaves hands its place over, so that nobody comes in between."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._line.append((loop.time(), turn))
        # One timer for the whole line: one for each in it would cost more than sending.
        if self._impatience is None:
            self._impatience = loop.call_later(LONGEST_TURN, self._send_back)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self._hand_over()
            raise

    def _send_back(self) -> None:
        """Those who have waited long enough go; for the others the timer is set again."""
        loop = asyncio.get_running_loop()
        while self._line and self._line[0][0] <= loop.time() - LONGEST_TURN:
            _, turn = self._line.popleft()
            if not turn.done():
                turn.set_result(False)
        left = self._line[0][0] + LONGEST_TURN - loop.time() if self._line else None
        self._impatience = None if left is None else loop.call_later(max(left, 0.001), self._send_back)

    def leave(self, ticket: int, seconds: float | None) -> None:
        """`seconds` is None when the target was not asked after all."""
        del self._started[ticket]
        if seconds is not None:
            self.seconds = seconds
        self._hand_over()

    def _hand_over(self) -> None:
        while self._line:
            _, turn = self._line.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1


class Closing:
    """An endpoint that is left alone for a while; after that one job at a time tries, until one succeeds."""

    __slots__ = ("heard_until", "probed_until", "until")

    def __init__(self) -> None:
        #: By our monotonic clock, as everything here.
        self.until = self.probed_until = 0.0
        #: Until then we know better than the table, which learns of a pause with the next settlement.
        self.heard_until = 0.0

    def admit(self, now: float) -> float:
        """Seconds to wait; who has none to wait is the one that tries."""
        wait = max(self.until, self.probed_until) - now
        if wait <= 0:
            self.probed_until = now + _PROBE
        return max(0.0, wait)


class Targets:
    """Shares the slots of this process among targets: fairly, and half of them only for the quick."""

    def __init__(
        self,
        *,
        slots: int,
        connections: int,
        monotonic: Monotonic = time.monotonic,
        rand: Rand = random.random,
    ) -> None:
        self._slots = slots
        self._connections = connections
        self._monotonic = monotonic
        self._rand = rand
        self._gates: dict[str, Gate] = {}
        #: By target and endpoint.
        self._closings: dict[tuple[str, str], Closing] = {}
        #: By target whose breaker is not closed, the endpoints that have tried.
        self._tried: dict[str, set[str]] = {}
        self._slow_at_once = max(1, int(slots * _SLOW_AT_ONCE))
        self._slow = TokenBucket(slots * _SLOW_PER_SECOND, self._slow_at_once, monotonic)
        self.forget_above = 10_000

    def gate(self, target: str) -> Gate:
        gate = self._gates.get(target)
        if gate is None:
            self._forget_the_idle()
            gate = self._gates[target] = Gate(self._connections)
        return gate

    def _forget_the_idle(self) -> None:
        if len(self._gates) >= self.forget_above:
            now = self._monotonic()
            self._gates = {
                name: gate for name, gate in self._gates.items() if not gate.idle or gate.closed_until > now
            }

    def close(self, target: str, url: str, seconds: float) -> bool:
        """Send this endpoint nothing for a while; False when it was closed already."""
        closing, now = self._closing(target, endpoint_of(url)), self._monotonic()
        news = closing.until <= now
        closing.until = max(closing.until, now + seconds)
        closing.heard_until = min(closing.until, now + _AHEAD_OF_THE_TABLE)
        return news

    def is_well(self, target: str, url: str) -> None:
        """An attempt said nothing ill of it."""
        self.gate(target).well_at = self._monotonic()
        if self._closings:
            self._closings.pop((target, endpoint_of(url)), None)

    def well_age(self, target: str) -> float | None:
        """Seconds since any of its endpoints was well, as far as this process knows."""
        gate = self._gates.get(target)
        return None if gate is None or gate.well_at is None else self._monotonic() - gate.well_at

    def _closing(self, target: str, endpoint: str) -> Closing:
        closing = self._closings.get((target, endpoint))
        if closing is None:
            if len(self._closings) >= self.forget_above:
                # The oldest; who is forgotten too soon says once more that it wants a pause.
                del self._closings[next(iter(self._closings))]
            closing = self._closings[target, endpoint] = Closing()
        return closing

    def follow(self, standings: Iterable[Standing]) -> None:
        """Close and open as the table says: another process, or a person, may have."""
        now = self._monotonic()
        for standing in standings:
            if standing.broken is False:
                self._tried.pop(standing.target, None)
            if standing.closed_for > 0 or standing.target in self._gates:
                self.gate(standing.target).closed_until = now + standing.closed_for
            if standing.endpoint is not None:
                self._follow_endpoint(standing.target, standing.endpoint, standing.endpoint_closed_for, now)

    def _follow_endpoint(self, target: str, endpoint: str, closed_for: float | None, now: float) -> None:
        if closed_for is not None:
            closing = self._closing(target, endpoint)
            closing.until = max(now + closed_for, closing.heard_until)
        elif (known := self._closings.get((target, endpoint))) is not None and known.heard_until <= now:
            del self._closings[target, endpoint]

    def admit(self, target: str, url: str) -> float:
        """Seconds that a job must wait before it may be sent."""
        if (wait := self.closed_for(target)) > 0 or not self._closings:
            return wait
        closing = self._closings.get((target, endpoint_of(url)))
        return 0.0 if closing is None else min(closing.admit(self._monotonic()), _LOOKS_AGAIN)

    def pick_probe(self, target: str, urls: Mapping[int, str]) -> int:
        """Which of these jobs tries: of an endpoint that has not, so that one that is well is soon found."""
        by_endpoint: dict[str, int] = {}
        for id, url in urls.items():
            by_endpoint.setdefault(endpoint_of(url), id)
        tried = self._tried.setdefault(target, set())
        if tried.issuperset(by_endpoint):
            tried.clear()
        untried = [endpoint for endpoint in by_endpoint if endpoint not in tried]
        endpoint = untried[int(self._rand() * len(untried))]
        tried.add(endpoint)
        return by_endpoint[endpoint]

    def closed_for(self, target: str) -> float:
        gate = self._gates.get(target)
        return max(0.0, gate.closed_until - self._monotonic()) if gate is not None else 0.0

    def share_out(self, free: int, standings: Sequence[Standing], *, again: bool = False) -> dict[str, int]:
        """How many jobs to claim of which target.

        Whoever holds fewest gets first. A target that is slow, or that nobody knows yet, gets at most what
        can be sent at once, and all of them together half of the slots: the other half is there for those
        who answer, whatever the slow ones do. The unknown go before the slow, since they may be quick; the
        more they are the less each gets, and no more before it has answered. What is left over after a
        first claim, and shared out `again`, is for the quick.
        """
        paces = {standing.target: self._pace(standing.target) for standing in standings}
        wishes = self._wishes(standings, paces)
        shares: dict[str, int] = {}
        if not again:
            held = sum(s.ours for s in standings if paces[s.target] != "quick")
            shares = self._share_among_others(min(free, max(0, self._slots // 2 - held)), wishes)
        return shares | fill(free - sum(shares.values()), wishes["quick"], self._rand)

    def _share_among_others(self, free: int, wishes: Mapping[Pace, Sequence[Wish]]) -> dict[str, int]:
        shares = fill(free, wishes["unknown"], self._rand)
        some = max(0, int(self._slow.level())) if wishes["quick"] else self._slow_at_once
        slow = fill(min(some, free - sum(shares.values())), wishes["slow"], self._rand)
        self._slow.spend(sum(slow.values()))
        return shares | slow

    def _wishes(self, standings: Sequence[Standing], paces: Mapping[str, Pace]) -> dict[Pace, list[Wish]]:
        unknown = sum(pace in {"unknown", "asked"} for pace in paces.values())
        most: dict[Pace, int] = {"slow": self._connections, "asked": 0}
        most["unknown"] = min(self._connections, max(1, self._slots // 4 // max(1, unknown)))
        wishes: dict[Pace, list[Wish]] = {"quick": [], "unknown": [], "slow": [], "asked": []}
        for standing in standings:
            if standing.due and self.closed_for(standing.target) <= 0:
                pace = paces[standing.target]
                room = self._ahead(standing.target) if pace == "quick" else most[pace]
                wishes[pace].append(_wish(standing, room))
        return wishes

    def _pace(self, target: str) -> Pace:
        gate = self._gates.get(target)
        if gate is None or gate.seconds is None:
            return "unknown" if gate is None or gate.idle else "asked"
        return "quick" if gate.is_quick(self._monotonic()) else "slow"

    def _ahead(self, target: str) -> int:
        """As many as it will have answered in a moment, so that the next are at hand when those have gone."""
        seconds = max(self.gate(target).seconds or 0.0, 0.001)
        soon = int(self._connections * _MOMENT / seconds)
        return max(self._connections, min(soon, self._slots))


class Wish(Struct, frozen=True, gc=False):
    """What a target holds already, and how many more it could take."""

    target: str
    held: int
    room: int


def _wish(standing: Standing, most: int) -> Wish:
    room = most - standing.ours
    if standing.most_in_flight is not None:
        room = min(room, standing.most_in_flight - standing.in_flight)
    return Wish(standing.target, standing.ours, max(0, room))


def fill(free: int, wishes: Iterable[Wish], rand: Rand) -> dict[str, int]:
    """Raise all to the same level, as water does; what is left over goes to some, by lot."""
    takers = [wish for wish in wishes if wish.room > 0]
    level = _level(free, takers)
    shares = {w.target: _below(w, level) for w in takers}
    rest = free - sum(shares.values())
    hungry = sorted((w for w in takers if shares[w.target] < w.room), key=lambda w: (w.held, rand()))
    for wish in hungry[:rest]:
        if wish.held <= level:
            shares[wish.target] += 1
    return {target: share for target, share in shares.items() if share}


def _level(free: int, takers: Sequence[Wish]) -> int:
    """The highest level that all can be raised to with what is free."""
    low, high = 0, max((w.held + w.room for w in takers), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(_below(w, middle) for w in takers) <= free:
            low = middle
        else:
            high = middle - 1
    return low


def _below(wish: Wish, level: int) -> int:
    return min(wish.room, max(0, level - wish.held))
