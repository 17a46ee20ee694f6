"""Pointers: what is written is read again, and whatever else comes is refused as a value."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.brokers.pointer import Malformed, MessagePointer, decode_pointer, encode_pointer

WHOLE = MessagePointer(
    id="0HZX0000000AB",
    pool_code="DISPATCH-POOL",
    mediation_target="http://127.0.0.1:8080/api/dispatch/process",
    message_group_id="order-1",
    auth_token="secret",
)


def test_a_pointer_has_the_fields_of_the_specification() -> None:
    assert msgspec.json.decode(encode_pointer(WHOLE)) == {
        "id": "0HZX0000000AB",
        "poolCode": "DISPATCH-POOL",
        "mediationType": "HTTP",
        "mediationTarget": "http://127.0.0.1:8080/api/dispatch/process",
        "messageGroupId": "order-1",
        "authToken": "secret",
    }
    assert decode_pointer(encode_pointer(WHOLE)) == WHOLE
    assert "secret" not in repr(WHOLE)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": None}, "Expected `str`, got `null` - at `$.id`"),
        ({"id": ""}, "Expected `str` of length >= 1 - at `$.id`"),
        ({"id": 5}, "Expected `str`, got `int` - at `$.id`"),
        ({"poolCode": None}, "Expected `str`, got `null` - at `$.poolCode`"),
        ({"mediationType": "GRPC"}, "mediationType: only HTTP is known"),
        ({"mediationTarget": "http://x/\n"}, "it has control characters"),
        ({"authToken": "a\r\nX-Other: b"}, "it has control characters"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], reason: str) -> None:
    fields = {**msgspec.json.decode(encode_pointer(WHOLE)), **change}
    assert decode_pointer(msgspec.json.encode(fields)) == Malformed(reason)


def test_what_a_newer_version_adds_and_small_letters_are_taken() -> None:
    fields = {**msgspec.json.decode(encode_pointer(WHOLE)), "mediationType": "http", "batchId": "b"}
    decoded = decode_pointer(msgspec.json.encode(fields))
    assert isinstance(decoded, MessagePointer)
    assert decoded.id == WHOLE.id


@given(st.binary() | st.text().map(str.encode) | st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["id", "poolCode", "x"]), inner),
).map(msgspec.json.encode))  # fmt: skip
def test_whatever_comes_is_a_value(body: bytes) -> None:
    assert isinstance(decode_pointer(body), Malformed)
