"""TSIDs as people write them, and the time in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.lanes.dispatch_jobs.tsid import EPOCH, first_at, number_of, text_of, time_of

IDS = st.integers(0, 2**63 - 1)
#: To the microsecond, over the seventy years that a signed 64-bit number has room for.
MOMENTS = st.integers(0, 2**41 * 1000 - 1).map(lambda micros: EPOCH + timedelta(microseconds=micros))


@pytest.mark.clause("JOB-02", "JOB-15")
@given(IDS)
def test_a_text_names_its_number(id: int) -> None:
    text = text_of(id)
    assert len(text) == 13
    assert text == text.upper()
    assert number_of(text) == number_of(text.lower()) == id


@pytest.mark.clause("JOB-15")
@given(IDS, IDS)
def test_texts_sort_as_numbers_do(one: int, other: int) -> None:
    assert (text_of(one) < text_of(other)) == (one < other)


def test_known_values() -> None:
    assert text_of(0) == "0" * 13
    assert text_of(31) == "0" * 12 + "Z"
    assert text_of(2**63 - 1) == "7" + "Z" * 12
    assert number_of("00000000000ZZ") == 32 * 32 - 1


@given(IDS)
def test_another_way_to_read_base32(id: int) -> None:
    """Python's own base 32 goes on from 9 with A to V, in place of Crockford's letters."""
    ours, pythons = "ABCDEFGHJKMNPQRSTVWXYZ", "ABCDEFGHIJKLMNOPQRSTUV"
    assert int(text_of(id).translate(str.maketrans(ours, pythons)), 32) == id


def test_what_people_misread_is_read_right() -> None:
    assert number_of("OOOOOOOOOOOOI") == number_of("ooooooooooool") == 1
    assert number_of("000000000000L") == number_of("000000000000i") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 12,
        "0" * 14,
        "000000000000U",
        "0ARYZVZXW372-",
        " 000000000000",
        "000000000000\n",
        "\u0660" * 13,  # Arabic digits
        "8000000000000",
        "ZZZZZZZZZZZZZ",
        "\u017f000000000000",  # a long s, whose upper case is S
    ],
)
def test_what_is_no_id(text: str) -> None:
    assert number_of(text) is None


@pytest.mark.clause("JOB-15")
@given(MOMENTS, st.integers(0, 2**22 - 1))
def test_the_time_is_in_the_id(moment: datetime, tail: int) -> None:
    first = first_at(moment)
    shown = time_of(first + tail)
    assert timedelta(0) <= moment - shown < timedelta(milliseconds=1)
    assert first_at(shown) == first
    assert time_of(first - 1) < shown or first == 0


def test_times_that_no_id_has_are_the_first_or_the_last() -> None:
    assert first_at(EPOCH - timedelta(days=1)) == 0
    assert first_at(datetime(9999, 1, 1, tzinfo=UTC)) == 2**63 - 1
    assert time_of(0) == EPOCH
