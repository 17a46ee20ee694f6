"""When to try again, and when to stop. Pure: no clock, no table, no randomness of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct

from homing.engine.model import (
    Bury,
    Claim,
    Complete,
    Delivered,
    Discard,
    Outcome,
    Rand,
    Reject,
    Retry,
    RetryIn,
    Settlement,
    Skip,
)

#: (failed attempts, the one just made included; randomness) → seconds to wait
Backoff: TypeAlias = Callable[[int, Rand], float]

#: 2**64 seconds are beyond any cap; a larger exponent would only overflow.
_LARGEST_EXPONENT = 64


class Exponential(Struct, frozen=True):
    """`min(base·2^n, max)·(1 ± jitter·rand)`, literally as the dispatch specification has it.

    The first retry therefore waits twice the base, and jitter may go beyond the maximum.
    """

    base: float
    maximum: float
    jitter: float = 0.0

    def __call__(self, failures: int, rand: Rand) -> float:
        raw = self.base * 2.0 ** min(failures, _LARGEST_EXPONENT)
        sign = 1 if rand() < 0.5 else -1
        return min(raw, self.maximum) * (1 + sign * self.jitter * rand())


class Linear(Struct, frozen=True):
    """`base·n`"""

    base: float

    def __call__(self, failures: int, rand: Rand) -> float:  # noqa: ARG002 - as every backoff is called
        return self.base * failures


class Fixed(Struct, frozen=True):
    """`base`, each time."""

    base: float

    def __call__(self, failures: int, rand: Rand) -> float:  # noqa: ARG002 - as every backoff is called
        return self.base


_WAIT = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_WAIT = 30 * 86400.0


class Schedule(Struct, frozen=True):
    """One wait after the other, as they are listed; past the end the last one."""

    waits: tuple[float, ...]

    def __call__(self, failures: int, rand: Rand) -> float:  # noqa: ARG002 - as every backoff is called
        return self.waits[min(max(failures, 1), len(self.waits)) - 1]


def read_schedule(text: str) -> Schedule:
    """From `1m,5m,1h`; raises ValueError in words for whoever wrote it."""
    waits = [_read_wait(part.strip()) for part in text.split(",") if part.strip()]
    if not waits:
        raise ValueError("a schedule lists at least one wait, such as 1m,5m,1h")
    return Schedule(tuple(waits))


def read_milliseconds(text: str) -> Schedule:
    """From `0,2000,7000`; raises ValueError in words for whoever wrote it."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is no list of milliseconds; write whole numbers, such as 0,2000,7000")
    waits = tuple(int(part) / 1000 for part in parts)
    if max(waits) > _LONGEST_WAIT:
        raise ValueError(f"{text!r}: a wait is at most 30 days")
    return Schedule(waits)


def _read_wait(text: str) -> float:
    match = _WAIT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no wait; write a number and s, m, h or d, such as 90s or 1h")
    wait = float(match[1]) * _UNITS[match[2]]
    if not 0 < wait <= _LONGEST_WAIT:
        raise ValueError(f"{text!r} is no wait; it must be more than nothing and at most 30d")
    return wait


class Policy(Struct, frozen=True):
    """How persistent a lane is."""

    max_attempts: int
    backoff: Backoff
    #: An uncharged return is free, but not for ever: the next one in a row is charged.
    max_deferrals: int = 10
    #: An uncharged return waits at least this long, so that a busy peer is not asked in a tight loop.
    shortest_deferral: float = 1.0


def decide(
    policy: Policy, claim: Claim[Any], outcome: Outcome, rand: Rand, millis: int | None = None
) -> Settlement:
    """What to write about an attempt, which took so long."""
    match outcome:
        case Delivered(report=report):
            return Complete(report, millis)
        case Reject(failure=failure, report=report):
            return Bury(failure, report=report, millis=millis)
        case Skip(failure=failure, report=report):
            return Discard(failure, report)
        case Retry():
            return _retry(policy, claim, outcome, rand, millis)


def _retry(policy: Policy, claim: Claim[Any], retry: Retry, rand: Rand, millis: int | None) -> Settlement:
    charged = retry.charged or claim.deferrals >= policy.max_deferrals
    failures = claim.attempts + charged
    if failures >= policy.max_attempts:
        return Bury(retry.failure, charged, retry.report, millis)
    wait = policy.backoff(failures, rand) if charged else _deferral(policy, claim.deferrals)
    return RetryIn(max(wait, retry.after or 0.0), retry.failure, charged, retry.report, millis)


def _deferral(policy: Policy, deferrals: int) -> float:
    """Nobody failed, so the wait is short; it doubles while the other side stays busy."""
    return policy.shortest_deferral * 2.0 ** min(deferrals, 6)
