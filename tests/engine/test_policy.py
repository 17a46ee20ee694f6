"""`decide` and the backoff: pure, so they are tested as properties."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.engine.model import (
    Bury,
    Claim,
    Complete,
    Delivered,
    Discard,
    Failure,
    Reject,
    Retry,
    RetryIn,
    Skip,
)
from homing.engine.policy import Exponential, Policy, decide

FAILURE = Failure("network_error", "gone")


def claim(attempts: int = 0, deferrals: int = 0) -> Claim[None]:
    return Claim(1, 1, attempts, None, deferrals)


def policy(max_attempts: int = 5, backoff: Exponential | None = None) -> Policy:
    return Policy(max_attempts, backoff or Exponential(30, 3600, 0.0))


@pytest.mark.clause("OUT-09", "OUT-10")
@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 60), (2, 120), (3, 240), (4, 480), (6, 1920), (7, 3600), (60, 3600)]
)
def test_backoff_is_the_formula_of_the_specification(failures: int, seconds: float) -> None:
    """Base·2^n, capped, n counted after the increment; without jitter it is deterministic."""
    backoff = Exponential(30, 3600, 0.0)
    assert backoff(failures, random.random) == seconds
    assert backoff(failures, random.random) == backoff(failures, random.random)


@pytest.mark.clause("OUT-09")
@given(
    failures=st.integers(1, 10_000),
    jitter=st.floats(0, 1),
    base=st.integers(1, 86400),
    maximum=st.integers(1, 2_592_000),
    seed=st.integers(),
)
def test_jitter_spreads_around_the_capped_wait(
    failures: int, jitter: float, base: int, maximum: int, seed: int
) -> None:
    rand = random.Random(seed).random
    capped = min(base * 2.0 ** min(failures, 64), maximum)
    wait = Exponential(base, maximum, jitter)(failures, rand)
    assert capped * (1 - jitter) <= wait <= capped * (1 + jitter)


@pytest.mark.clause("OUT-09")
def test_jitter_goes_both_ways_and_may_pass_the_cap() -> None:
    rand = random.Random(7).random
    waits = [Exponential(30, 3600, 0.2)(10, rand) for _ in range(2000)]
    assert min(waits) < 2950
    assert max(waits) > 4250
    assert 3550 < sum(waits) / len(waits) < 3650


def test_delivered_completes() -> None:
    assert decide(policy(), claim(), Delivered("r"), random.random) == Complete("r")


def test_skip_is_discarded_without_a_charge() -> None:
    assert decide(policy(), claim(), Skip(FAILURE), random.random) == Discard(FAILURE)


@pytest.mark.clause("OUT-12")
def test_a_permanent_refusal_is_buried_at_once_and_charged() -> None:
    assert decide(policy(), claim(), Reject(FAILURE), random.random) == Bury(FAILURE, charged=True)


@pytest.mark.clause("OUT-12")
@given(max_attempts=st.integers(1, 50), attempts=st.integers(0, 60))
def test_a_retry_is_buried_exactly_when_the_attempts_are_used_up(max_attempts: int, attempts: int) -> None:
    settlement = decide(policy(max_attempts), claim(attempts), Retry(FAILURE), random.random)
    assert isinstance(settlement, Bury) == (attempts + 1 >= max_attempts)


@pytest.mark.clause("OUT-06")
@given(deferrals=st.integers(0, 30))
def test_an_uncharged_return_is_free_ten_times_in_a_row(deferrals: int) -> None:
    settlement = decide(policy(), claim(0, deferrals), Retry(FAILURE, charged=False), random.random)
    assert isinstance(settlement, RetryIn)
    assert settlement.charged == (deferrals >= 10)
    assert settlement.delay >= 1


@given(after=st.floats(0, 1e6))
def test_the_other_sides_wait_is_obeyed(after: float) -> None:
    settlement = decide(policy(), claim(), Retry(FAILURE, after=after), random.random)
    assert isinstance(settlement, RetryIn)
    assert settlement.delay == max(60.0, after)
