"""What errors have in common."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.db.conditions import like
from homing.engine.likeness import code_like, likeness


@pytest.mark.parametrize(
    ("text", "common"),
    [
        ("550 5.1.1 <bob@example.org>: no mailbox here", "* <*>: no mailbox here"),
        ("no answer from 10.1.2.3:8443 within 30 s", "no answer from * within * s"),
        ("cannot connect: shop-12.example.org:443 refused", "cannot connect: * refused"),
        ("GET https://a.example/x?y=1 says 503", "GET * says *"),
        ("job 0ARYZVZXW372S of 3f2504e0-4f89-11d3-9a0c-0305e82c3301 died", "job * of * died"),
        ("[::1]:8080 hung up", "* hung up"),
        ("read 12,345 of 99,999 bytes", "read * of * bytes"),
        ("  two\n lines ", "two lines"),
        ("plain words stay, e.g. these", "plain words stay, e.g. these"),
        ("", ""),
    ],
)
def test_numbers_ids_hosts_and_addresses_are_taken_out(text: str, common: str) -> None:
    assert likeness(text) == common


def test_two_of_a_kind_are_alike_and_two_others_are_not() -> None:
    assert likeness("timeout after 3 s at host a.example") == likeness("timeout after 31 s at host b.example")
    assert likeness("timeout after 3 s") != likeness("refused after 3 s")


@pytest.mark.parametrize("code", ["timeout", "http_503", "MaxAttemptsExceeded", "EAI_AGAIN", "dns.error-2"])
def test_a_code_stays_as_it_is(code: str) -> None:
    assert code_like(code) == code


def test_a_text_of_another_program_becomes_a_pattern() -> None:
    assert code_like("550 mailbox 12 unknown") == "* mailbox * unknown"


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=300))
def test_the_pattern_of_a_text_finds_it(text: str) -> None:
    """As LIKE does it, where whoever requeues a group asks for it."""
    line = " ".join(text.split())
    assert _matches(like(likeness(line)), line)


def _matches(pattern: str, text: str) -> bool:
    """LIKE, with a backslash as its escape; `_` and `%` stand only for themselves here, or for anything."""
    parts = pattern.replace("\\\\", "\0").replace("\\%", "\1").replace("\\_", "_").split("%")
    pieces = [part.replace("\0", "\\").replace("\1", "%") for part in parts]
    if len(pieces) == 1:
        return pieces[0] == text
    if not text.startswith(pieces[0]):
        return False
    place = len(pieces[0])
    for piece in pieces[1:-1]:
        place = text.find(piece, place)
        if place < 0:
            return False
        place += len(piece)
    return text.endswith(pieces[-1]) and len(text) - len(pieces[-1]) >= place
