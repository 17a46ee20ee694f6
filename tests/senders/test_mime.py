"""Whatever is assembled is parsed back by the standard library and compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from email import message_from_bytes, policy, utils
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.utils import getaddresses, parsedate_to_datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from homing.senders.mail import Attachment, MailMessage
from homing.senders.mime import Unassemblable, assemble, dot_stuff, needs_smtputf8

NOON = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)

#: Sequences that some server takes for the end of a mail (SMTP smuggling).
SMUGGLING = [
    "\n.\n",
    "\r.\r",
    "\r\n.\n",
    "\n.\r\n",
    "\r.\r\n",
    "\r\n.\r",
    "\r\n\x00.\r\n",
    "\r\n.\r\n",
    "\r\n.\x00\r\n",
    "\n\n.\r\r\n",
]


def mail(**changes: object) -> MailMessage:
    given: dict[str, object] = {
        "message_id": "<m1@example.org>",
        "date": NOON,
        "sender": "Homing <no-reply@example.org>",
        "recipients": ("ann@example.org",),
        "to": ("Ann <ann@example.org>",),
        "subject": "Hello",
        "text": "Hi",
    }
    return MailMessage(**{**given, **changes})  # type: ignore[arg-type]  # one helper for all fields


def parsed(data: bytes) -> EmailMessage:
    message = message_from_bytes(data, policy=policy.default)
    assert isinstance(message, EmailMessage)
    return message


def lines_of(text: str) -> str:
    """The text with its line ends made equal, which is all that a mail may change about it."""
    return re.sub("\r\n|\r", "\n", text)


def content_of(part: EmailMessage) -> str:
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return lines_of(payload.decode())


# ── What Hypothesis builds ───────────────────────────────────────────────────────────────────────

unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)
hostile = st.sampled_from(
    [
        *SMUGGLING,
        "From someone",
        "\nFrom someone\n",
        ".",
        "..\n",
        "trailing blanks \t\n",
        "=?utf-8?q?x?=",
        "Bcc: eve@example.org\r\n",
        "--=_\n",
        "a=b",
        "\u2028\x85\x0b\x0c",
        "x" * 1200,
        "é" * 300,
        "word " * 300,
    ]
)
bodies = st.one_of(unicode_text, st.lists(unicode_text | hostile, max_size=8).map("".join))

header_characters = st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])
header_hostile = st.sampled_from(
    [
        "=?utf-8?q?x?=",
        "=?",
        "?=",
        '"',
        "\\",
        ",",
        "<",
        ">",
        ";",
        "  ",
        " ",
        "Bcc: eve@example.org",
        "é" * 90,
        "w" * 1100,
    ]
)
header_text = st.lists(st.text(header_characters, max_size=60) | header_hostile, max_size=5).map("".join)

names = st.one_of(
    st.just(""),
    st.text(header_characters, max_size=90),
    st.lists(header_hostile.filter(lambda text: len(text) < 200) | st.just("Ann"), max_size=4).map("".join),
)
locals_ = st.sampled_from(["ann", "a.b+c", "x" * 64, "o'hara", '"a..b"', "{curly}"])
domains = st.sampled_from(
    ["example.org", "localhost", "xn--bcher-kva.example", "bücher.example", "[127.0.0.1]"]
)


@st.composite
def mailboxes(draw: st.DrawFn) -> tuple[str, str, str]:
    """What is given, and the name and address that have to come out."""
    name, local, domain = draw(names), draw(locals_), draw(domains)
    wire = f"{local}@{domain.replace('bücher', 'xn--bcher-kva')}"
    if not name:
        return f"{local}@{domain}", "", wire
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}" <{local}@{domain}>', name, wire


extra_names = st.from_regex(r"X-[!-9;-~]{1,60}", fullmatch=True) | st.sampled_from(
    ["Auto-Submitted", "List-Id"]
)
files = st.builds(
    Attachment,
    filename=st.one_of(
        header_text.filter(len),
        st.sampled_from(["a.pdf", 'q"uote\\.txt', "  x  y ", "%41.txt", "'", "é" * 80]),
    ),
    content=st.binary(max_size=300) | st.sampled_from([text.encode() for text in SMUGGLING]),
    content_type=st.sampled_from(
        ["application/pdf", "image/png", "text/csv; charset=utf-8", 'a/b; x="y z; w"; v=1']
    ),
    content_id=st.none() | st.from_regex(r"[a-z0-9.]{1,80}@[a-z.]{1,80}", fullmatch=True),
)


@st.composite
def mails(draw: st.DrawFn) -> tuple[MailMessage, dict[str, list[tuple[str, str]]]]:
    boxes = st.lists(mailboxes(), max_size=4)
    given = {
        "from": [draw(mailboxes())],
        "to": draw(boxes),
        "cc": draw(boxes),
        "reply-to": draw(boxes),
    }
    message = mail(
        sender=given["from"][0][0],
        to=tuple(text for text, _, _ in given["to"]),
        cc=tuple(text for text, _, _ in given["cc"]),
        reply_to=tuple(text for text, _, _ in given["reply-to"]),
        recipients=("hidden-bcc@example.net",),
        subject=draw(header_text),
        text=draw(st.none() | bodies),
        html=draw(st.none() | bodies),
        headers=tuple(
            draw(st.lists(st.tuples(extra_names, header_text), max_size=3, unique_by=lambda h: h[0].lower()))
        ),
        attachments=tuple(draw(st.lists(files, max_size=3))),
        unsubscribe_url=draw(
            st.none() | st.sampled_from(["https://example.org/u?t=1", "https://x.org/" + "t" * 300])
        ),
    )
    return message, {field: [(name, wire) for _, name, wire in written] for field, written in given.items()}


# ── The proof ────────────────────────────────────────────────────────────────────────────────────


def check_headers(found: EmailMessage, message: MailMessage, boxes: dict[str, list[tuple[str, str]]]) -> None:
    expected = ["from", "subject", "date", "message-id", "mime-version", "content-type"]
    expected += [field for field in ("to", "cc", "reply-to") if boxes[field]]
    expected += [name.lower() for name, _ in message.headers]
    if message.unsubscribe_url:
        expected += ["list-unsubscribe"]
        assert found["list-unsubscribe"] == f"<{message.unsubscribe_url}>"
        if message.unsubscribe_url.lower().startswith("https:"):
            expected += ["list-unsubscribe-post"]
            assert found["list-unsubscribe-post"] == "List-Unsubscribe=One-Click"
    if not found.is_multipart():
        expected.append("content-transfer-encoding")
    assert sorted(name.lower() for name, _ in found.items()) == sorted(expected)
    assert found["subject"] == message.subject.strip(" ")
    assert found["message-id"] == message.message_id
    assert parsedate_to_datetime(found["date"]) == message.date
    for name, value in message.headers:
        assert found[name] == value.strip(" ")
    for field, written in boxes.items():
        if written:
            assert mailboxes_in(found, field) == [
                (plain_blanks(name), unquoted(wire)) for name, wire in written
            ]


#: Where it can be told from a strict one, which takes an address literal such as `[127.0.0.1]` for a mistake.
LENIENTLY: Mapping[str, Any] = {"strict": False} if getattr(utils, "supports_strict_parsing", False) else {}


def mailboxes_in(found: EmailMessage, field: str) -> list[tuple[str, str]]:
    """Read an address header with the standard library's older parser.

    The newer one, as of Python 3.11, keeps the blank between two encoded words of a name, which
    RFC 2047 says to drop, so it only confirms the addresses.
    """
    written = next(value for name, value in found.raw_items() if name.lower() == field)
    pairs = getaddresses([re.sub(r"\r\n", "", str(written))], **LENIENTLY)
    assert [unquoted(box.addr_spec) for box in found[field].addresses] == [
        unquoted(wire) for _, wire in pairs
    ]
    return [(str(make_header(decode_header(name))), unquoted(wire)) for name, wire in pairs]


def plain_blanks(name: str) -> str:
    return re.sub(" +", " ", name).strip(" ")


def unquoted(wire: str) -> str:
    return wire.replace('"', "")


def leaves(found: EmailMessage) -> list[EmailMessage]:
    return [part for part in found.walk() if not part.is_multipart()]


def check_content(found: EmailMessage, message: MailMessage) -> None:
    shown = [text for text in (message.whole_text, message.whole_html) if text is not None]
    if not shown and not message.attachments:
        shown = [""]
    inline = [file for file in message.attachments if file.content_id and message.html is not None]
    others = [file for file in message.attachments if file not in inline]
    parts = leaves(found)
    assert len(parts) == len(shown) + len(message.attachments)
    for part, text in zip(parts, shown, strict=False):
        # A mail that is one part ends with a line end, given or not.
        trailing = "" if found.is_multipart() or lines_of(text).endswith("\n") else "\n"
        encoded = part["content-transfer-encoding"] == "base64"
        assert content_of(part) == lines_of(text) + ("" if encoded else trailing)
    for part, file in zip(parts[len(shown) :], [*inline, *others], strict=True):
        check_file(part, file, disposition="inline" if file in inline else "attachment")


def check_file(part: EmailMessage, file: Attachment, *, disposition: str) -> None:
    assert part.get_payload(decode=True) == file.content
    # `get_filename` would also take blanks and brackets off its ends.
    assert part["content-disposition"].params["filename"] == file.filename
    assert part.get_content_disposition() == disposition
    assert part.get_content_type() == file.content_type.partition(";")[0]
    assert part["content-id"] == (file.content_id and f"<{file.content_id}>")


def check_bytes(data: bytes) -> None:
    assert data.isascii()
    assert data.endswith(b"\r\n")
    bare = data.replace(b"\r\n", b"")
    assert b"\r" not in bare
    assert b"\n" not in bare
    assert b"\x00" not in bare
    assert max(map(len, data.split(b"\r\n"))) <= 998


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mails())
def test_what_is_assembled_parses_back_as_it_was_given(
    built: tuple[MailMessage, dict[str, list[tuple[str, str]]]],
) -> None:
    message, boxes = built
    data = assemble(message)
    check_bytes(data)
    found = parsed(data)
    check_headers(found, message, boxes)
    check_content(found, message)
    assert assemble(message) == data
    assert not needs_smtputf8(message)
    assert b"hidden-bcc" not in data


@settings(max_examples=300, deadline=None)
@given(header_text)
@example("A subject with =?utf-8?q?an_encoded_word?= in it")
@example("x" * 3000)
@example("two  blanks " * 20)
@example("word " * 100)
@example("\U0001f600" * 50)
def test_a_subject_is_shown_as_it_was_given(subject: str) -> None:
    data = assemble(mail(subject=subject))
    check_bytes(data)
    found = parsed(data)
    assert found["subject"] == subject.strip(" ")
    assert found.keys() == [
        "From",
        "To",
        "Subject",
        "Date",
        "Message-ID",
        "MIME-Version",
        "Content-Type",
        "Content-Transfer-Encoding",
    ]
    words = re.findall(r"=\?utf-8\?[qb]\?[^?]*\?=", data.decode())
    assert all(len(word) <= 75 for word in words)


@settings(max_examples=300, deadline=None)
@given(bodies)
@example("From the start\nFrom here\n" + "x" * 1000)
@example("é.\n.\n..\n.x\n trailing \nFrom é" + "y" * 2000)
@example("=" * 500)
@example("x" * 998)
@example("x" * 999)
def test_a_body_survives_the_way_through_data(text: str) -> None:
    data = assemble(mail(text=text))
    check_bytes(data)
    stuffed = dot_stuff(data)
    assert b"\r\n.\r\n" not in b"\r\n" + stuffed
    unstuffed = re.sub(rb"(?m)^\.", b"", stuffed)
    assert unstuffed == data
    assert content_of(parsed(data)).rstrip("\n") == lines_of(text).rstrip("\n")
    body = data.partition(b"\r\n\r\n")[2]
    assert not re.search(rb"(?m)^From ", body)


@pytest.mark.parametrize("sequence", SMUGGLING)
@pytest.mark.parametrize("where", ["text", "html", "attachment", "message"])
def test_nothing_inside_a_mail_ends_it(sequence: str, where: str) -> None:
    hidden = f"Hi{sequence}MAIL FROM:<eve@example.org>\r\nRCPT TO:<bob@example.org>\r\nDATA\r\n"
    changes: dict[str, object] = {where: hidden}
    if where == "attachment":
        changes = {"attachments": (Attachment("x", hidden.encode(), "text/plain"),)}
    if where == "message":
        changes = {"attachments": (Attachment("x.eml", hidden.encode(), "message/rfc822"),)}
    try:
        data = assemble(mail(**changes))
    except Unassemblable:
        assert where == "message"
        assert re.search("\r(?!\n)|\x00", hidden)
        return
    check_bytes(data)
    stuffed = dot_stuff(data)
    assert b"\r\n.\r\n" not in b"\r\n" + stuffed
    assert (b"\r\n" + stuffed).count(b"\r\n.") == (b"\r\n" + stuffed).count(b"\r\n..")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([b"\r", b"\n", b".", b"a", b"\x00", b"\r\n.", b"\r\n"]), max_size=30).map(
        b"".join
    )
)
@example(b"")
@example(b".")
@example(b"\r\n.")
def test_dots_are_stuffed_whatever_the_line_ends(data: bytes) -> None:
    stuffed = dot_stuff(data)
    assert stuffed.endswith(b"\r\n")
    bare = stuffed.replace(b"\r\n", b"")
    assert b"\r" not in bare
    assert b"\n" not in bare
    lines = stuffed.split(b"\r\n")
    assert all(line.startswith(b"..") for line in lines if line.startswith(b"."))
    received = b"\r\n".join(line[1:] if line.startswith(b".") else line for line in lines)
    expected = re.sub(rb"\r\n|\r|\n", b"\r\n", data)
    assert received == (expected if expected.endswith(b"\r\n") else expected + b"\r\n")


def test_clean_data_is_not_copied_for_stuffing() -> None:
    data = b"Subject: x\r\n\r\nbody\r\n"
    assert dot_stuff(data) is data


# ── Shapes ───────────────────────────────────────────────────────────────────────────────────────


def shape(part: EmailMessage) -> str:
    if not part.is_multipart():
        return part.get_content_type()
    inner = ", ".join(shape(child) for child in part.iter_parts() if isinstance(child, EmailMessage))
    return f"{part.get_content_subtype()}({inner})"


PNG = Attachment("logo.png", b"\x89PNG", "image/png", "logo@example.org")
PDF = Attachment("a.pdf", b"%PDF", "application/pdf")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "text/plain"),
        ({"text": None}, "text/plain"),
        ({"text": None, "html": "<p>"}, "text/html"),
        ({"html": "<p>"}, "alternative(text/plain, text/html)"),
        ({"attachments": (PDF,)}, "mixed(text/plain, application/pdf)"),
        ({"text": None, "attachments": (PDF,)}, "mixed(application/pdf)"),
        ({"attachments": (PNG,)}, "mixed(text/plain, image/png)"),
        ({"text": None, "html": "<p>", "attachments": (PNG,)}, "related(text/html, image/png)"),
        (
            {"html": "<p>", "attachments": (PDF, PNG)},
            "mixed(alternative(text/plain, related(text/html, image/png)), application/pdf)",
        ),
    ],
)
def test_a_mail_has_the_simplest_shape_that_holds_it(changes: dict[str, object], expected: str) -> None:
    assert shape(parsed(assemble(mail(**changes)))) == expected


def test_a_body_that_contains_the_boundary_gets_another_one() -> None:
    usual = parsed(assemble(mail(html="<p>"))).get_boundary()
    assert usual is not None
    trap = f"--{usual}--\r\n--{usual}\r\n"
    found = parsed(assemble(mail(html="<p>", text=trap)))
    assert found.get_boundary() != usual
    assert [content_of(part) for part in leaves(found)] == [lines_of(trap), "<p>"]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("plain\n", "7bit"),
        ("x" * 998, "7bit"),
        ("x" * 999, "quoted-printable"),
        ("From me to you\n", "quoted-printable"),
        ("Grüße aus dem hohen Norden, wo die Sonne scheint\n", "quoted-printable"),
        ("Καλημέρα κόσμε", "base64"),
        ("a\x00b" * 20, "base64"),
        ("a long line with one\x00control character in it", "quoted-printable"),
    ],
)
def test_the_lightest_encoding_is_chosen(text: str, encoding: str) -> None:
    found = parsed(assemble(mail(text=text)))
    assert found["content-transfer-encoding"] == encoding
    assert content_of(found).rstrip("\n") == text.rstrip("\n")


def test_quoted_printable_lines_keep_within_76_columns() -> None:
    data = assemble(mail(text=("From " + "wörd " * 40 + "\n") * 20))
    body = data.partition(b"\r\n\r\n")[2]
    assert max(map(len, body.split(b"\r\n"))) <= 76


def test_an_attached_mail_is_not_encoded() -> None:
    inner = assemble(mail(subject="inner"))
    found = parsed(assemble(mail(attachments=(Attachment("m.eml", inner, "message/rfc822"),))))
    attached = next(iter(found.iter_attachments())).get_content()
    assert attached["subject"] == "inner"
    assert attached["content-transfer-encoding"] == "7bit"


# ── Headers ──────────────────────────────────────────────────────────────────────────────────────


def test_a_date_is_written_in_utc() -> None:
    local = datetime(2026, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=2)))
    assert b"\r\nDate: Wed, 31 Dec 2025 22:30:00 +0000\r\n" in assemble(mail(date=local))


def test_an_unsubscribe_link_offers_one_click() -> None:
    data = assemble(mail(unsubscribe_url="https://example.org/u/1"))
    assert b"\r\nList-Unsubscribe: <https://example.org/u/1>\r\n" in data
    assert b"\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" in data
    assert b"List-Unsubscribe-Post" in assemble(mail(unsubscribe_url="https://[::1]:8443/u"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/u/1", "http://localhost/u/1"])
def test_a_link_by_plain_http_offers_no_one_click(url: str) -> None:
    """RFC 8058 knows https only."""
    data = assemble(mail(unsubscribe_url=url))
    assert f"\r\nList-Unsubscribe: <{url}>\r\n".encode() in data
    assert b"List-Unsubscribe-Post" not in data


def test_many_recipients_are_folded() -> None:
    boxes = tuple(f"Person {n} <person{n}@example.org>" for n in range(200))
    data = assemble(mail(to=boxes))
    assert max(map(len, data.split(b"\r\n"))) <= 78
    assert len(parsed(data)["to"].addresses) == 200


def test_a_local_part_beyond_ascii_stays_as_it_is_and_needs_smtputf8() -> None:
    message = mail(to=("Δοκιμή <δοκιμή@bücher.example>",))
    assert needs_smtputf8(message)
    data = assemble(message)
    assert " <δοκιμή@xn--bcher-kva.example>\r\n".encode() in data
    assert b"=?utf-8?b?" in data


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, False),
        ({"subject": "é", "text": "é", "to": ("é <a@bücher.example>",)}, False),
        ({"recipients": ("é@example.org",)}, True),
        ({"sender": "é@example.org"}, True),
        ({"cc": ("a@example.org", "é@example.org")}, True),
        ({"reply_to": ("é@example.org",)}, True),
        ({"headers": (("Reply-To", "a@example.org, é@example.org"),)}, True),
        ({"headers": (("X-Note", "é@example.org"),)}, False),
    ],
)
def test_only_addresses_need_smtputf8(changes: dict[str, object], needed: bool) -> None:
    assert needs_smtputf8(mail(**changes)) is needed
    assert assemble(mail(**changes)).isascii() is (not needed or "recipients" in changes)


def test_reply_to_and_sender_given_as_headers_are_read_as_addresses() -> None:
    data = assemble(
        mail(headers=(("Reply-To", '"Doe, J" <j@bücher.example>, k@example.org'), ("Sender", "é <s@x.org>")))
    )
    found = parsed(data)
    assert [box.addr_spec for box in found["reply-to"].addresses] == [
        "j@xn--bcher-kva.example",
        "k@example.org",
    ]
    assert found["reply-to"].addresses[0].display_name == "Doe, J"
    assert found["sender"].address.display_name == "é"


# ── What is refused ──────────────────────────────────────────────────────────────────────────────

CONTROLS = [
    "\r",
    "\n",
    "\r\n",
    "\x00",
    "\t",
    "\x0b",
    "\x1f",
    "\x7f",
    "\x85",
    "\x9f",
    "\u2028",
    "\u2029",
    "\ud800",
]
HIDDEN = [
    "=?UTF-8?Q?=0A?=",
    "=?utf-8?q?=0d=0aBcc:_eve@example.org?=",
    "=?utf-8?b?Cg==?=",
    "=?utf-8?B?DQpCY2M6?=",
    "=?utf-8*en?q?=00?=",
    "=?utf-7?q?+AAo-?=",
    "=?utf-8?q?=E2=80=A8?=",
    "=?nonsense?q?=0A",
]


@pytest.mark.parametrize("bad", CONTROLS + HIDDEN)
@pytest.mark.parametrize(
    ("field", "shape"),
    [
        ("subject", lambda bad: {"subject": f"A {bad}Bcc: eve@example.org"}),
        ("sender", lambda bad: {"sender": f"A {bad}B <eve@example.org>"}),
        ("to", lambda bad: {"to": ("ok@example.org", f'"A {bad}" <eve@example.org>')}),
        ("cc", lambda bad: {"cc": (f"A {bad} <eve@example.org>",)}),
        ("reply_to", lambda bad: {"reply_to": (f"A {bad} <eve@example.org>",)}),
        ("headers.X-A", lambda bad: {"headers": (("X-A", f"A {bad}Bcc: eve@example.org"),)}),
        ("headers.Sender", lambda bad: {"headers": (("Sender", f"A {bad} <eve@example.org>"),)}),
        ("headers", lambda bad: {"headers": ((f"X-A{bad}:", "eve@example.org"),)}),
        ("message_id", lambda bad: {"message_id": f"<eve{bad}@example.org>"}),
        ("unsubscribe_url", lambda bad: {"unsubscribe_url": f"https://eve.example.org/{bad}"}),
        ("attachments[0].filename", lambda bad: {"attachments": (Attachment(f"eve{bad}", b""),)}),
        (
            "attachments[0].content_type",
            lambda bad: {"attachments": (Attachment("f", b"", f"a/eve; x={bad}"),)},
        ),
        (
            "attachments[0].content_id",
            lambda bad: {"attachments": (Attachment("f", b"", "a/b", f"eve{bad}"),)},
        ),
    ],
)
def test_control_characters_are_refused_wherever_they_hide(field: str, shape: object, bad: str) -> None:
    assert callable(shape)
    with pytest.raises(Unassemblable) as refused:
        assemble(mail(**shape(bad)))
    assert refused.value.field == field
    assert "eve" not in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("sender", {"sender": ""}),
        ("sender", {"sender": "a@example.org, b@example.org"}),
        ("sender", {"sender": "Nobody"}),
        ("to", {"to": ("a@example.org", "not an address")}),
        ("date", {"date": datetime(2026, 1, 1)}),  # noqa: DTZ001  # the missing zone is what is refused
        ("message_id", {"message_id": "m1@example.org"}),
        ("text", {"text": "\ud800"}),
        ("html", {"html": "\udfff"}),
        ("unsubscribe_url", {"unsubscribe_url": "http://example.org/u"}),
        ("unsubscribe_url", {"unsubscribe_url": "mailto:eve@example.org"}),
        ("unsubscribe_url", {"unsubscribe_url": "https://example.org/a b"}),
        ("unsubscribe_url", {"unsubscribe_url": "https://example.org/>,<x"}),
        ("unsubscribe_url", {"unsubscribe_url": "https:///u"}),
        ("unsubscribe_url", {"unsubscribe_url": 'https://example.org/"u'}),
        ("unsubscribe_url", {"unsubscribe_url": "https://[::1/u"}),
        ("unsubscribe_url", {"unsubscribe_url": "https://example.org/" + "u" * 1000}),
        ("unsubscribe_url", {"unsubscribe_url": ""}),
        ("headers", {"headers": (("", "x"),)}),
        ("headers", {"headers": (("X Y", "x"),)}),
        ("headers", {"headers": (("X-é", "x"),)}),
        ("headers", {"headers": (("X" * 71, "x"),)}),
        ("headers.Reply-To", {"headers": (("Reply-To", ""),)}),
        ("headers.Reply-To", {"reply_to": ("a@example.org",), "headers": (("Reply-To", "b@example.org"),)}),
        ("headers.references", {"headers": (("References", "<a@b>"), ("references", "<c@d>"))}),
        (
            "headers.List-Unsubscribe",
            {
                "unsubscribe_url": "https://example.org/u",
                "headers": (("List-Unsubscribe", "<https://x.org>"),),
            },
        ),
        ("attachments[1].content_type", {"attachments": (PDF, Attachment("f", b"", "pdf"))}),
        ("attachments[0].content_type", {"attachments": (Attachment("f", b"", "a/b; c"),)}),
        (
            "attachments[0].content_type",
            {"attachments": (Attachment("f", b"", "multipart/mixed; boundary=x"),)},
        ),
        ("attachments[0].content_type", {"attachments": (Attachment("f", b"", "message/partial"),)}),
        ("attachments[0]", {"attachments": (Attachment("f", b"\xff", "message/rfc822"),)}),
    ],
)
def test_what_can_never_be_a_mail_is_refused(field: str, changes: dict[str, object]) -> None:
    with pytest.raises(Unassemblable) as refused:
        assemble(mail(**changes))
    assert refused.value.field == field
    assert "example.org" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "From",
        "to",
        "CC",
        "Bcc",
        "Subject",
        "Date",
        "Message-Id",
        "MIME-Version",
        "Content-Type",
        "content-x",
        "Return-Path",
        "Received",
        "Resent-Bcc",
    ],
)
def test_extra_headers_cannot_override_ours(name: str) -> None:
    with pytest.raises(Unassemblable) as refused:
        assemble(mail(headers=((name, "x"),)))
    assert refused.value.field == f"headers.{name}"


def test_a_signature_made_elsewhere_may_be_given() -> None:
    value = "v=1; a=ed25519-sha256; d=example.org; b=" + "A" * 86
    assert parsed(assemble(mail(headers=(("DKIM-Signature", value),))))["dkim-signature"] == value
