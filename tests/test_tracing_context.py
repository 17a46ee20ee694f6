"""`traceparent` and `tracestate`: what is one is kept, what is none is passed over."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.tracing import Trace, came_from, coming_from, read_trace, trace_id_of, trace_in

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"

HEX = "0123456789abcdef"


def hexadecimal(length: int) -> st.SearchStrategy[str]:
    return st.text(HEX, min_size=length, max_size=length)


def not_zero(length: int) -> st.SearchStrategy[str]:
    return hexadecimal(length).filter(lambda text: text.strip("0") != "")


@given(not_zero(32), not_zero(16), hexadecimal(2))
def test_what_is_written_is_read(trace_id: str, span_id: str, flags: str) -> None:
    text = f"00-{trace_id}-{span_id}-{flags}"
    trace = read_trace(text)
    assert trace == Trace(trace_id, span_id, int(flags, 16))
    assert trace.traceparent == text
    assert trace_id_of(text) == trace_id
    assert trace.is_sampled == bool(int(flags, 16) & 1)


@given(st.text() | st.text(HEX + "-", min_size=50, max_size=60))
def test_nothing_is_an_error(text: str) -> None:
    trace = read_trace(text, text)
    if trace is not None:
        assert read_trace(trace.traceparent) is not None
    assert trace_id_of(text) is None or re.fullmatch("[0-9a-f]{32}", str(trace_id_of(text)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ff" + TRACEPARENT[2:],
        TRACEPARENT.upper(),
        TRACEPARENT + "-more",
        TRACEPARENT + " ",
        TRACEPARENT[:-1],
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-0g",
        f"00_{TRACE_ID}_{SPAN_ID}_01",
        "0x" + TRACEPARENT[2:],
        TRACEPARENT.replace("4", "\u0664"),
    ],
)
def test_what_is_none(text: str) -> None:
    assert read_trace(text) is None


def test_a_version_to_come_is_read_as_far_as_it_is_known() -> None:
    assert read_trace(f"01-{TRACE_ID}-{SPAN_ID}-ff-new-things") == Trace(TRACE_ID, SPAN_ID, 1)
    assert read_trace(f"cc-{TRACE_ID}-{SPAN_ID}-00") == Trace(TRACE_ID, SPAN_ID, 0)
    assert read_trace(f"cc-{TRACE_ID}-{SPAN_ID}-00.what") is None


@pytest.mark.parametrize(
    ("given_state", "kept"),
    [
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ("", None),
        (" , ", None),
        ("a=" + "x" * 511, None),
        ("a=b\r\nX-Injected: 1", None),
        ("schlüssel=wert", None),
    ],
)
def test_a_state_that_cannot_be_a_header_is_left_out(given_state: str, kept: str | None) -> None:
    trace = read_trace(TRACEPARENT, given_state)
    assert trace is not None
    assert trace.tracestate == kept
    assert dict(trace.headers).get("tracestate") == kept


def test_a_trace_id_alone_names_a_trace() -> None:
    assert trace_id_of(TRACE_ID) == TRACE_ID
    assert trace_id_of("trace-42") is None
    assert trace_id_of("0" * 32) is None
    assert trace_id_of(None) is None


def test_of_a_request_one_traceparent_counts_and_all_of_the_state() -> None:
    one = (b"traceparent", TRACEPARENT.encode())
    assert trace_in([(b"host", b"x"), one]) == read_trace(TRACEPARENT)
    assert trace_in([one, (b"tracestate", b"a=1"), (b"tracestate", b"b=2")]) == Trace(
        TRACE_ID, SPAN_ID, 1, "a=1,b=2"
    )
    assert trace_in([one, one]) is None
    assert trace_in([(b"tracestate", b"a=1")]) is None
    assert trace_in([(b"traceparent", b"\xff\xfe")]) is None


def test_where_a_request_came_from_is_forgotten_after_it() -> None:
    trace = Trace(TRACE_ID, SPAN_ID)
    with coming_from(trace):
        assert came_from() is trace
        with coming_from(None):
            assert came_from() is None
        assert came_from() is trace
    assert came_from() is None
