"""From a `MailMessage` to the bytes of RFC 5322, directly.

The standard library's `EmailMessage` takes 1,800 µs for a small mail, most of it for parsing what it
is about to write. Here each shape is written down at once, and the standard library parses it back in
the tests. The shapes, from the outside in, each only where it is needed:

    mixed( alternative( text, related( html, inline files… ) ), files… )

The same message always gives the same bytes, so that every attempt is the same mail. Nothing that was
given can add a header, end one, or end the mail: what could do so raises `Unassemblable`, for good.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, a2b_qp, b2a_base64
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from homing.senders.addresses import (
    CONTROL,
    InvalidAddress,
    envelope_address,
    parse_address,
    parse_address_list,
    split_address_list,
)
from homing.senders.addresses import needs_smtputf8 as address_needs_smtputf8
from homing.senders.body_text import (
    BOUNDARY,
    SEVEN_BIT,
    Encoding,
    base64_lines,
    encode_text,
    has_long_line,
)
from homing.senders.mail import Attachment, MailMessage
from homing.senders.printed import Filled

#: RFC 5322 asks for 78 octets a line; lines with encoded words have 76 (RFC 2047).
_FOLD_AT = 76
_WORD_LIMIT = 75
#: With a name of 70 characters before it, a token of this length still fits on a line.
_TOKEN_LIMIT = 900
_WORD_FRAME = len("=?utf-8?q??=")
#: Longer names are written as encoded words, because those can be folded.
_NAME_LIMIT = 60

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_ENCODED_WORD = re.compile(r"=\?([^?\s]+)\?([bBqQ])\?([^?]*)")
_C0 = re.compile(rb"[\x00-\x1f\x7f]")
_Q_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/")
_Q_TABLE = tuple(
    "_" if byte == 32 else chr(byte) if byte in _Q_SAFE else f"={byte:02X}" for byte in range(256)
)

_ATOMS = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_PHRASE = re.compile(rf"{_ATOMS}(?: {_ATOMS})*").fullmatch
_MESSAGE_ID = re.compile(r"<[!-;=?A-~]{1,240}@[!-;=?A-~]{1,240}>").fullmatch
_HEADER_NAME = re.compile(r"[!-9;-~]{1,70}").fullmatch
_CONTENT_ID = re.compile(r"[!-;=?-~]{1,200}").fullmatch
_WORD = r"[A-Za-z0-9!#$%&'*+.^_`{|}~-]+"
_MEDIA_TYPE = re.compile(rf"({_WORD})/({_WORD})").match
_MEDIA_PARAMETER = re.compile(rf' *; *({_WORD}=(?:{_WORD}|"[ !#-\[\]-~]*"))').match
#: A filename that every reader takes from a quoted string alike.
_PLAIN_FILENAME = re.compile(r"[!#-\[\]-~]+(?: [!#-\[\]-~]+)*").fullmatch
_HTTPS = re.compile(r"https://[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::\d{1,5})?(?:[/?#][!#-;=?-~]*)?").fullmatch

#: What we write ourselves, and what only servers on the way may add.
_OURS = frozenset(
    {"from", "to", "cc", "bcc", "subject", "date", "message-id", "mime-version", "return-path", "received"}
)
_OUR_PREFIXES = ("content-", "resent-")
_ONCE = frozenset(
    {"sender", "reply-to", "in-reply-to", "references", "list-unsubscribe", "list-unsubscribe-post"}
)
_ADDRESS_HEADERS = frozenset({"sender", "reply-to"})
_UNSUBSCRIBE = frozenset({"list-unsubscribe", "list-unsubscribe-post"})


class Unassemblable(ValueError):
    """The message can never become a mail; says which field is why, without repeating its content."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class _Part(NamedTuple):
    """Header lines about some content, and the content as it goes over the wire."""

    headers: str
    #: In pieces: to put them together is left to whoever needs one.
    body: Sequence[bytes]
    #: It is known to have CRLF for every line end, and no dot at the beginning of a line.
    is_stuffed: bool = False
    #: It may hold anything, a boundary as well.
    is_foreign: bool = True


def assemble(message: MailMessage) -> bytes:
    """Write the whole mail: CRLF line ends, no dots stuffed, bcc nowhere."""
    head, content = _head(message), _content(message)
    return b"".join((f"{head}{content.headers}\r\n".encode(), *content.body, _end(content)))


class Stuffed(NamedTuple):
    """A mail, fit for DATA."""

    chunks: list[bytes]
    #: Without the stuffing.
    size: int
    #: Its header needs SMTPUTF8; its body never does, for it is written in 7 bits.
    header_utf8: bool


def assemble_stuffed(message: MailMessage) -> Stuffed:
    content = _content(message)
    head = f"{_head(message)}{content.headers}\r\n".encode()
    chunks = [*content.body, _end(content)]
    size = len(head) + sum(map(len, chunks))
    whole = [dot_stuff(head), *chunks] if content.is_stuffed else [dot_stuff(b"".join((head, *chunks)))]
    return Stuffed(whole, size, not head.isascii())


def _end(content: _Part) -> bytes:
    return b"" if content.body[-1].endswith(b"\r\n") else b"\r\n"


#: A CR that is no line end, or one before a dot. With one octet to look for first, one pass is enough.
_ODD_LINE_END = re.compile(rb"\r(?!\n(?!\.))")
_NO_LINE_END = bytes(octet for octet in range(256) if octet not in b"\r\n")


def dot_stuff(data: bytes) -> bytes:
    """Make bytes fit for DATA: every line end a CRLF, no line a lone dot; the final dot is not added.

    Servers differ in what they take for the end of a mail, and bare CR and LF are how one mail is
    smuggled into another, so none is left.
    """
    # Where no CR is alone, an LF is when there are more of them. Looking for CRLF itself would cost four
    # times as much: 28 µs instead of 7 in a mail of 9 KB.
    ends = data.translate(None, _NO_LINE_END)
    if _ODD_LINE_END.search(data) or ends != b"\r\n" * (len(ends) // 2):
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\r\n")
        data = data.replace(b"\r\n.", b"\r\n..")
    if data.startswith(b"."):
        data = b"." + data
    return data if data.endswith(b"\r\n") else data + b"\r\n"


def needs_smtputf8(message: MailMessage) -> bool:
    """Tell whether only a server with SMTPUTF8 can take the mail: an address needs it.

    Names, subjects and domains never do, since they have a form in ASCII.
    """
    if any(map(address_needs_smtputf8, message.recipients)):
        return True
    given = (value for name, value in message.headers if name.lower() in _ADDRESS_HEADERS)
    written = (message.sender, *message.to, *message.cc, *message.reply_to, *given)
    return any(_written_needs_smtputf8(text) for text in written if not text.isascii())


def _written_needs_smtputf8(text: str) -> bool:
    try:
        return any(address_needs_smtputf8(mailbox.address) for mailbox in parse_address_list(text))
    except InvalidAddress:
        # `assemble` says what is wrong with it; as bytes it will never exist.
        return False


# ── The header block ─────────────────────────────────────────────────────────────────────────────


def _head(message: MailMessage) -> str:
    lines = [_mailbox_lines("From", (message.sender,), "sender")]
    if message.to:
        lines.append(_mailbox_lines("To", message.to, "to"))
    if message.cc:
        lines.append(_mailbox_lines("Cc", message.cc, "cc"))
    if message.reply_to:
        lines.append(_mailbox_lines("Reply-To", message.reply_to, "reply_to"))
    lines.append(_text_lines("Subject", message.subject, "subject"))
    lines.append(_date_line(message.date))
    lines.append(_message_id_line(message.message_id))
    if message.unsubscribe_url is not None:
        lines.append(_unsubscribe_lines(message.unsubscribe_url))
    if message.headers:
        lines.append(_extra_lines(message))
    lines.append("MIME-Version: 1.0\r\n")
    return "".join(lines)


def _text_lines(name: str, value: str, field: str) -> str:
    """Write a header of free text. Blanks around it mean nothing, and are dropped."""
    value = value.strip(" ")
    plain = value.isascii() and value.isprintable() and "=?" not in value
    if plain and len(name) + len(value) <= _FOLD_AT:
        return f"{name}: {value}\r\n"
    if not plain:
        _refuse_control(value, field)
    tokens = value.split(" ")
    # A run of blanks would be lost to folding, and a very long token cannot be folded at
    # all. What looks like an encoded word is encoded, so that it is shown as it was given.
    if plain and "" not in tokens and max(map(len, tokens)) <= _TOKEN_LIMIT:
        return _fold(name, tokens)
    return _fold(name, _encoded_words(value, first=_FOLD_AT - len(name) - 2))


def _mailbox_lines(name: str, mailboxes: Sequence[str], field: str) -> str:
    try:
        if len(mailboxes) == 1:
            return _single_mailbox_lines(name, mailboxes[0])
        written = [_mailbox(text) for text in mailboxes]
    except InvalidAddress as refused:
        raise Unassemblable(field, str(refused)) from None
    tokens = [token for mailbox in written for token in (*mailbox[:-1], f"{mailbox[-1]},")]
    tokens[-1] = tokens[-1][:-1]
    return _fold(name, tokens)


@lru_cache(maxsize=2048)
def _single_mailbox_lines(name: str, mailbox: str) -> str:
    return _fold(name, _mailbox(mailbox))


def _mailbox(text: str) -> tuple[str, ...]:
    """Write a mailbox as tokens between which a line may be folded."""
    name, address = parse_address(text)
    wire = envelope_address(address)
    return (*_phrase(name), f"<{wire}>") if name else (wire,)


def _phrase(name: str) -> Sequence[str]:
    if "=?" in name:
        if _hides_control(name):
            raise InvalidAddress("the name hides a control character in an encoded word")
    elif name.isascii() and len(name) <= _NAME_LIMIT:
        if _PHRASE(name):
            return (name,)
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        return (f'"{escaped}"',)
    return _encoded_words(name, first=_NAME_LIMIT)


@lru_cache(maxsize=64)
def _date_line(date: datetime) -> str:
    """All mails of one claim have the same."""
    if date.tzinfo is not UTC:
        if date.tzinfo is None:
            raise Unassemblable("date", "it has no time zone")
        date = date.astimezone(UTC)
    day, month = _DAYS[date.weekday()], _MONTHS[date.month - 1]
    clock = f"{date.hour:02}:{date.minute:02}:{date.second:02}"
    return f"Date: {day}, {date.day:02} {month} {date.year:04} {clock} +0000\r\n"


def _message_id_line(message_id: str) -> str:
    if not _MESSAGE_ID(message_id) or "=?" in message_id:
        raise Unassemblable("message_id", "it has to look like <unique@domain>, in ASCII")
    return _fold("Message-ID", (message_id,))


def _unsubscribe_lines(url: str) -> str:
    if not _HTTPS(url):
        _check_unusual_url(url)
    if len(url) > _TOKEN_LIMIT or _ENCODED_WORD.search(url):
        raise Unassemblable("unsubscribe_url", "it is too long, or reads as an encoded word")
    # RFC 8058 is about https only; by plain http anybody on the way could read the token.
    post = "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
    return _fold("List-Unsubscribe", (f"<{url}>",)) + (post if url[:6].lower() == "https:" else "")


def _check_unusual_url(url: str) -> None:
    if not url.isascii() or not url.isprintable() or any(char in url for char in ' <>"'):
        raise Unassemblable("unsubscribe_url", "it contains a character that has to be percent-encoded")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise Unassemblable("unsubscribe_url", "it is not a valid address") from None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))):
        raise Unassemblable("unsubscribe_url", "it has to begin with https://")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _extra_lines(message: MailMessage) -> str:
    seen = {"reply-to"} if message.reply_to else set()
    if message.unsubscribe_url is not None:
        seen |= _UNSUBSCRIBE
    lines = []
    for name, value in message.headers:
        lowered = _checked_header_name(name)
        if lowered in seen:
            raise Unassemblable(f"headers.{name}", "it is given twice, and may stand only once")
        if lowered in _ONCE:
            seen.add(lowered)
        lines.append(_extra_line(name, lowered, value))
    return "".join(lines)


def _checked_header_name(name: str) -> str:
    if not _HEADER_NAME(name):
        raise Unassemblable(
            "headers", "a name may consist of visible ASCII without colon, up to 70 characters"
        )
    lowered = name.lower()
    if lowered in _OURS or lowered.startswith(_OUR_PREFIXES):
        raise Unassemblable(f"headers.{name}", "it is written by the mail's own fields, or only by servers")
    return lowered


def _extra_line(name: str, lowered: str, value: str) -> str:
    field = f"headers.{name}"
    if lowered == "sender":
        return _mailbox_lines(name, (value,), field)
    if lowered == "reply-to":
        return _mailbox_lines(name, _split_mailboxes(value, field), field)
    return _text_lines(name, value, field)


def _split_mailboxes(value: str, field: str) -> list[str]:
    try:
        mailboxes = split_address_list(value)
    except InvalidAddress as refused:
        raise Unassemblable(field, str(refused)) from None
    if not mailboxes:
        raise Unassemblable(field, "it contains no address")
    return mailboxes


def _fold(name: str, tokens: Sequence[str]) -> str:
    """Join tokens by blanks, and begin a new line wherever the next token would not fit.

    The first one stays beside the name in any case: readers stumble over a name with an empty line.
    """
    lines, line = [], f"{name}: {tokens[0]}"
    for token in tokens[1:]:
        if len(line) + len(token) >= _FOLD_AT:
            lines.append(line)
            line = ""
        line = f"{line} {token}"
    return "\r\n".join([*lines, line, ""])


# ── Text in headers ──────────────────────────────────────────────────────────────────────────────


def _refuse_control(value: str, field: str) -> None:
    if CONTROL.search(value):
        raise Unassemblable(field, "it contains a control character")
    if _hides_control(value):
        raise Unassemblable(field, "it hides a control character in an encoded word")


def _hides_control(value: str) -> bool:
    """Find what becomes a line break when somebody on the way decodes once too often."""
    for charset, encoding, payload in _ENCODED_WORD.findall(value):
        raw = _decoded_payload(encoding, payload)
        if _C0.search(raw) or CONTROL.search(_lenient_text(raw, charset.partition("*")[0])):
            return True
    return False


def _decoded_payload(encoding: str, payload: str) -> bytes:
    raw = payload.encode()
    if encoding in "qQ":
        return a2b_qp(raw, header=True)
    try:
        return a2b_base64(raw + b"===")
    except Base64Error:
        return b""


def _lenient_text(raw: bytes, charset: str) -> str:
    try:
        # Codecs such as unicode_escape are Python's own; no reader of mail knows them.
        return "" if "escape" in charset else raw.decode(charset, "replace")
    except (LookupError, ValueError):
        return ""


def _encoded_words(text: str, *, first: int) -> list[str]:
    """Write text as encoded words (RFC 2047), cut between characters; the first has `first` columns."""
    raw = text.encode()
    room, rest = max(first, 30) - _WORD_FRAME, _WORD_LIMIT - _WORD_FRAME
    quoted = "".join(map(_Q_TABLE.__getitem__, raw))
    if len(quoted) <= (len(raw) + 2) // 3 * 4:
        pieces = _cut(len(quoted), room, rest, lambda end: _escaped_start(quoted, end, "="))
        return [f"=?utf-8?q?{quoted[piece]}?=" for piece in pieces]
    pieces = _cut(len(raw), room // 4 * 3, rest // 4 * 3, lambda end: _octet_start(raw, end))
    return [f"=?utf-8?b?{b2a_base64(raw[piece], newline=False).decode()}?=" for piece in pieces]


def _cut(length: int, room: int, rest: int, character_start: Callable[[int], int]) -> list[slice]:
    """Cut into a piece of at most `room`, and further ones of at most `rest`, between characters."""
    pieces, start = [], 0
    while length - start > room:
        end = character_start(start + room)
        pieces.append(slice(start, end))
        start, room = end, rest
    return [*pieces, slice(start, length)]


def _octet_start(raw: bytes, position: int) -> int:
    """Go back to where the character at this position begins."""
    while raw[position] & 0xC0 == 0x80:
        position -= 1
    return position


def _escaped_start(escaped: str, position: int, mark: str) -> int:
    """Go back to where the character begins, in text whose octets are escaped as mark and two digits."""
    if escaped[position - 1] == mark:
        position -= 1
    elif escaped[position - 2] == mark:
        position -= 2
    while escaped[position] == mark and escaped[position + 1] in "89AB":
        position -= 3
    return position


# ── The content ──────────────────────────────────────────────────────────────────────────────────


def _content(message: MailMessage) -> _Part:
    text = None if message.text is None else _text_part("plain", message.text, "text")
    html = None if message.html is None else _text_part("html", message.html, "html")
    if not message.attachments:
        if html is None:
            return text or _text_part("plain", "", "text")
        if text is None:
            return html
        return _multipart("alternative", _boundary(message.message_id, (text, html)), (text, html))
    return _content_with_files(message, text, html)


def _content_with_files(message: MailMessage, text: _Part | None, html: _Part | None) -> _Part:
    inline: list[_Part] = []
    files: list[_Part] = []
    for index, attachment in enumerate(message.attachments):
        # Without html nothing can refer to an inline file, so it is attached like the others.
        shown = html is not None and attachment.content_id is not None
        (inline if shown else files).append(_file_part(attachment, f"attachments[{index}]", inline=shown))
    leaves = [part for part in (text, html, *inline, *files) if part]
    boundary = _boundary(message.message_id, leaves)
    if html and inline:
        html = _multipart("related", boundary, (html, *inline))
    body = [part for part in (text, html) if part]
    if len(body) == 2:
        body = [_multipart("alternative", boundary, body)]
    return _multipart("mixed", boundary, (*body, *files)) if files else body[0]


def _multipart(kind: str, boundary: str, parts: Sequence[_Part]) -> _Part:
    # The kind belongs to the boundary, so that no inner one is taken for an outer one.
    marker = f"{boundary}-{kind}"
    root = '; type="text/html"' if kind == "related" else ""
    chunks: list[bytes] = []
    for part in parts:
        chunks += (f"--{marker}\r\n{part.headers}\r\n".encode(), *part.body, b"\r\n")
    chunks.append(f"--{marker}--\r\n".encode())
    headers = f'Content-Type: multipart/{kind}{root};\r\n boundary="{marker}"\r\n'
    return _Part(headers, chunks, all(part.is_stuffed for part in parts))


def _boundary(message_id: str, parts: Iterable[_Part]) -> str:
    """Derive a boundary that occurs in no part, the same one at each attempt.

    `=_` cannot occur in quoted-printable or base64; a 7bit body that was made to contain the first
    candidate gets another, and a body is too short to contain them all.
    """
    seed = message_id.encode()
    foreign = [b"".join(part.body) for part in parts if part.is_foreign]
    while True:
        candidate = BOUNDARY + blake2b(seed, digest_size=12).hexdigest()
        needle = candidate.encode()
        if not any(needle in body for body in foreign):
            return candidate
        seed = needle


def _text_part(subtype: str, text: str | Filled, field: str) -> _Part:
    shared = text.encoded() if isinstance(text, Filled) else None
    encoding, body = shared[:2] if shared else _encoded(str(text), field)
    headers = f'Content-Type: text/{subtype}; charset="utf-8"\r\nContent-Transfer-Encoding: {encoding}\r\n'
    return _Part(headers, body, shared is not None and shared.is_stuffed, is_foreign=shared is None)


def _encoded(text: str, field: str) -> tuple[Encoding, list[bytes]]:
    encoding, body = encode_text(_octets(text, field))
    return encoding, [body]


def _octets(text: str, field: str) -> bytes:
    """In UTF-8, with LF line ends."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise Unassemblable(field, "it contains half of a surrogate pair") from None
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def _file_part(attachment: Attachment, field: str, *, inline: bool) -> _Part:
    kind = _media_type_tokens(attachment.content_type, f"{field}.content_type")
    encoding, body = _encode_file(kind[0], attachment.content, field)
    disposition = ["inline" if inline else "attachment"]
    if attachment.filename:
        disposition += _filename_parameters(attachment.filename, f"{field}.filename")
    headers = [
        _fold("Content-Type", _separated(kind)),
        f"Content-Transfer-Encoding: {encoding}\r\n",
        _fold("Content-Disposition", _separated(disposition)),
    ]
    if attachment.content_id is not None:
        headers.append(_content_id_line(attachment.content_id, f"{field}.content_id"))
    return _Part("".join(headers), [body])


def _encode_file(media_type: str, content: bytes, field: str) -> tuple[str, bytes]:
    if not media_type.lower().startswith("message/"):
        return "base64", base64_lines(content)
    # RFC 2046 forbids to encode a mail inside a mail.
    lines = content.replace(b"\r\n", b"\n")
    if lines.translate(None, SEVEN_BIT) or has_long_line(lines):
        raise Unassemblable(field, "a mail that is attached as message/rfc822 has to be 7bit text")
    return "7bit", lines.replace(b"\n", b"\r\n")


def _media_type_tokens(content_type: str, field: str) -> list[str]:
    """Take a content type apart into its type and its parameters."""
    kind = _MEDIA_TYPE(content_type)
    if kind is None or len(content_type) > 500 or "=?" in content_type:
        raise Unassemblable(field, "it has to look like type/subtype, with parameters after semicolons")
    if kind[1].lower() == "multipart" or (kind[1].lower() == "message" and kind[2].lower() != "rfc822"):
        raise Unassemblable(field, "a file cannot be of this type")
    tokens, position = [kind[0]], kind.end()
    while position < len(content_type):
        parameter = _MEDIA_PARAMETER(content_type, position)
        if parameter is None:
            raise Unassemblable(field, "its parameters have to look like name=value, after semicolons")
        tokens.append(parameter[1])
        position = parameter.end()
    return tokens


def _separated(tokens: Sequence[str]) -> list[str]:
    return [*(f"{token};" for token in tokens[:-1]), tokens[-1]]


def _filename_parameters(filename: str, field: str) -> list[str]:
    _refuse_control(filename, field)
    if len(filename) <= _NAME_LIMIT and _PLAIN_FILENAME(filename) and "=?" not in filename:
        return [f'filename="{filename}"']
    # RFC 2231: percent-encoded, and in numbered pieces if it is long.
    encoded = quote(filename, safe="")
    head, *tail = _cut(len(encoded), 50, 50, lambda end: _escaped_start(encoded, end, "%"))
    if not tail:
        return [f"filename*=utf-8''{encoded}"]
    numbered = [f"filename*{number}*={encoded[piece]}" for number, piece in enumerate(tail, 1)]
    return [f"filename*0*=utf-8''{encoded[head]}", *numbered]


def _content_id_line(content_id: str, field: str) -> str:
    bare = content_id.removeprefix("<").removesuffix(">")
    if not _CONTENT_ID(bare) or "=?" in bare:
        raise Unassemblable(field, "it may consist of visible ASCII without angle brackets")
    return _fold("Content-ID", (f"<{bare}>",))
