"""Text that is encoded once for many mails: the octets are the same as if each had been encoded whole."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.senders.body_text import encode_text
from homing.senders.mail import MailMessage
from homing.senders.mime import assemble, assemble_stuffed, dot_stuff
from homing.senders.printed import Filled, print_text

_TEXTS = st.lists(
    st.sampled_from([*"ab=. \t\nFrom:<é漢\x00", "From ", "\n.", " \n", "x" * 70, "y" * 500, "z" * 998]),
    max_size=12,
).map("".join)
_VALUES = st.lists(
    st.sampled_from([*"ht=/.?& Frome", "v" * 60, "w" * 600, "_", "é", "\n", "\r", "\x00"]), max_size=6
).map("".join)


@st.composite
def _pieces(draw: st.DrawFn) -> tuple[str, ...]:
    texts = draw(st.lists(_TEXTS, min_size=1, max_size=5))
    names = [draw(st.sampled_from(["one", "other"])) for _ in texts[1:]]
    return tuple(part for pair in zip(texts, [*names, ""], strict=True) for part in pair)[:-1]


@settings(max_examples=600, deadline=None)
@given(_pieces(), _VALUES, _VALUES)
@example(("a\n", "one", "\nb"), "From x", "h")
@example(("漢" * 3 + "a" * 60 + "\n", "one", "=\n"), "https://h/?token=a", "h")
@example(("Fro", "one", ""), "m me", "h")
@example(("a\n", "one", "\n"), ".", "h")
@example((".a\n", "one", "\n"), "h", "h")
@example(("x" * 900, "one", "\n"), "v" * 99, "h")
def test_what_is_filled_in_is_what_encoding_the_whole_gives(
    pieces: tuple[str, ...], one: str, other: str
) -> None:
    values = {"one": one, "other": other}
    printed = print_text(pieces)
    if printed is None:
        return
    filled = Filled(printed, values)
    whole = "".join(values[part] if number % 2 else part for number, part in enumerate(pieces))
    assert str(filled) == whole
    if (encoded := filled.encoded()) is not None:
        body = b"".join(encoded.chunks)
        assert (encoded.encoding, body) == encode_text(whole.encode())
        assert b"=_" not in body
        if encoded.is_stuffed:
            assert dot_stuff(body).removesuffix(b"\r\n") == body.removesuffix(b"\r\n")


@pytest.mark.parametrize("shared", ["Hello.\n", "空位\n" + "Seats are open again. " * 8 + "\n"])
def test_a_letter_is_really_shared(shared: str) -> None:
    """The shortcut is taken for what mails consist of: else nothing of the above would say anything."""
    link = "https://seats.example.org/unsubscribe?token=bAIDPsd-_x"
    pieces = (f"{shared}Leave: <", "link", ">\n")
    printed = print_text(pieces)
    assert printed is not None
    encoded = Filled(printed, {"link": link}).encoded()
    assert encoded is not None
    whole = f"{shared}Leave: <{link}>\n".encode()
    assert (encoded.encoding, b"".join(encoded.chunks)) == encode_text(whole)


def test_a_mail_with_shared_parts_is_the_same_mail() -> None:
    values = {"link": "https://seats.example.org/u?token=1"}
    text, html = ("Hello\n", "link", "\n"), ('<p>\n<a href="', "link", '">leave</a>\n')
    printed_text, printed_html = print_text(text), print_text(html)
    assert printed_text is not None
    assert printed_html is not None
    mail = MailMessage(
        message_id="<1@example.org>",
        date=datetime(2026, 1, 2, tzinfo=UTC),
        sender="a@example.org",
        recipients=("b@example.org",),
        to=("b@example.org",),
        text=f"Hello\n{values['link']}\n",
        html=f'<p>\n<a href="{values["link"]}">leave</a>\n',
    )
    shared = replace(mail, text=Filled(printed_text, values), html=Filled(printed_html, values))
    assert (shared.whole_text, shared.whole_html) == (mail.text, mail.html)
    assert assemble(shared) == assemble(mail)
    for one in (shared, mail):
        stuffed = assemble_stuffed(one)
        assert b"".join(stuffed.chunks) == dot_stuff(assemble(mail))
        assert stuffed.size == len(assemble(mail))
        assert not stuffed.header_utf8
