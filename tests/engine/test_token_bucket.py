from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.engine.token_bucket import TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 3, clock)
    assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take() == pytest.approx(0.5)
    clock.now += 0.5
    assert bucket.take() == 0.0
    assert bucket.take() > 0.0


def test_a_refusal_takes_nothing_and_says_how_long_to_wait() -> None:
    clock = Clock()
    bucket = TokenBucket(0.1, 1, clock)
    assert bucket.take() == 0.0
    waits = [bucket.take() for _ in range(5)]
    assert waits == pytest.approx([10.0] * 5)
    clock.now += waits[0] + 0.001
    assert bucket.take() == 0.0


def test_a_long_rest_saves_no_more_than_a_burst() -> None:
    clock = Clock()
    bucket = TokenBucket(5.0, 2, clock)
    clock.now += 3600
    assert [bucket.take() == 0.0 for _ in range(3)] == [True, True, False]


@given(
    rate=st.floats(0.1, 100),
    burst=st.integers(1, 20),
    pauses=st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
def test_no_span_of_time_gets_more_than_the_burst_and_the_rate(
    rate: float, burst: int, pauses: list[float]
) -> None:
    clock = Clock()
    bucket = TokenBucket(rate, burst, clock)
    began, taken = clock.now, 0
    for pause in pauses:
        clock.now += pause
        taken += bucket.take() == 0.0
        assert taken <= burst + (clock.now - began) * rate + 1e-6
