"""Addresses: as people write them in headers, as the SMTP envelope takes them, as logs may show them.

`Ann <ann@bücher.example>`  →  parse_address  →  ("Ann", "ann@bücher.example")
                                envelope_address                →  "ann@xn--bcher-kva.example"
                                mask                            →  "a***@bücher.example"

What is refused raises `InvalidAddress`, whose message never repeats the address: it ends up in logs.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NamedTuple
from unicodedata import normalize

import idna

_LOCAL_OCTETS = 64
_ADDRESS_OCTETS = 254
_LABEL_OCTETS = 63
#: Nobody writes a name and an address longer than this; longer text is not even looked at.
_WRITTEN_CHARS = 2000

_ATEXT = r"A-Za-z0-9!#$%&'*+/=?^_`{|}~\-"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

#: The common address in one go; every quantifier is bounded by a neighbour it cannot match.
_PLAIN = re.compile(
    rf"(?=.{{3,{_ADDRESS_OCTETS}}}\Z)(?=[^@]{{1,{_LOCAL_OCTETS}}}@)"
    rf"[{_ATEXT}]+(?:\.[{_ATEXT}]+)*@{_LABEL}(?:\.{_LABEL})*"
).fullmatch
_DOT_ATOM = re.compile(rf"[{_ATEXT}\x80-\U0010ffff]+(?:\.[{_ATEXT}\x80-\U0010ffff]+)*").fullmatch
#: A quoted local part. Spaces and angle brackets would be legal, and are where parsers differ.
_QUOTED_LOCAL = re.compile(
    r'"(?:[!#-;=?-\[\]-~\x80-\U0010ffff]|\\[!-;=?-~])+"',
).fullmatch
#: What ends a label, in every script (IDNA 2003, 3.1).
_FULL_STOP = re.compile("[.\u3002\uff0e\uff61]")
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*").fullmatch

#: Python before 3.11.5 mismatches where the last turn of a possessive repeat fails in its middle (CPython
#: issue 106052). This one cannot, so it may be one.
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
#: `name <address>`, where a quoted name may contain anything.
_NAMED = re.compile(rf'((?:[^<>"]++|{_QUOTED})*)<([^<>]*)>').fullmatch
#: Outside of quotes a comma would end the mailbox.
_NAME = re.compile(rf'(?:[^",]++|{_QUOTED})*').fullmatch
_QUOTED_WORD = re.compile(_QUOTED)
#: How many blanks part two words of a name means nothing, and readers do not keep it.
_BLANKS = re.compile(" {2,}")
_ESCAPE = re.compile(r"\\(.)")
#: A quote by itself is never closed.
_IN_LIST = re.compile(rf'{_QUOTED}|[",]').finditer

#: C0, DEL, C1, the line and paragraph separators, and halves of surrogate pairs: in a header each
#: of them is a line break or nonsense to somebody.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class InvalidAddress(ValueError):
    """The text is no address that a mail could be sent to; says why, without repeating it."""


class Address(NamedTuple):
    """A mailbox: who, and where. `name` is empty where none was given."""

    name: str
    address: str


@lru_cache(maxsize=4096)
def parse_address(text: str) -> Address:
    """Read one mailbox in header form; its address is valid, and as it was written."""
    if _PLAIN(text):
        return Address("", text)
    _refuse_unreadable(text)
    named = _NAMED(text.strip(" "))
    if named is None:
        return Address("", check_address(text.strip(" ")))
    return Address(_read_name(named[1].strip(" ")), check_address(named[2].strip(" ")))


def parse_address_list(text: str) -> tuple[Address, ...]:
    """Read mailboxes separated by commas. Empty items, as a trailing comma leaves them, are dropped."""
    return tuple(parse_address(item) for item in split_address_list(text))


def split_address_list(text: str) -> list[str]:
    """Cut at commas outside of quotes, without judging the items."""
    items = _split_around_quotes(text) if '"' in text else text.split(",")
    return [stripped for item in items if (stripped := item.strip(" "))]


def is_plain_address(text: str) -> bool:
    """Tell whether the text is a bare ASCII address and nothing more, as nearly all are."""
    return _PLAIN(text) is not None


def check_address(address: str) -> str:
    """Give back a bare address that is fit for an envelope, or raise `InvalidAddress`."""
    if not _PLAIN(address):
        envelope_address(address)
    return address


@lru_cache(maxsize=1024)
def _unusual_envelope_address(address: str) -> str:
    _refuse_unreadable(address)
    local, at, domain = address.rpartition("@")
    if not at:
        raise InvalidAddress("the address has no @")
    _check_local(local)
    wire = f"{local}@{_wire_domain(domain)}"
    if len(wire.encode()) > _ADDRESS_OCTETS:
        raise InvalidAddress(f"the address is longer than {_ADDRESS_OCTETS} octets")
    return wire


def envelope_address(address: str) -> str:
    """Give a bare address its form on the wire: the domain in ASCII (IDNA 2008), the rest as it is."""
    return address if _PLAIN(address) else _unusual_envelope_address(address)


def needs_smtputf8(address: str) -> bool:
    """Tell whether only a server with SMTPUTF8 can take the bare address: its local part is not ASCII."""
    return not address.isascii() and not address.rpartition("@")[0].isascii()


def mask(address: str) -> str:
    """Make an address fit for a log: `j***@doe.com`. Takes any text, and raises nothing."""
    local, _, domain = address.strip("<> ").rpartition("@")
    shown = local[:1] + domain
    if not local or not domain or not shown.isprintable() or " " in shown or len(domain) > _ADDRESS_OCTETS:
        return "***"
    return f"{local[0]}***@{domain}"


def _refuse_unreadable(text: str) -> None:
    if len(text) > _WRITTEN_CHARS:
        raise InvalidAddress("the address is too long")
    if CONTROL.search(text):
        raise InvalidAddress("the address contains a control character")


def _read_name(name: str) -> str:
    if not _NAME(name):
        raise InvalidAddress("the name contains a comma or quote that is not inside quotes")
    if '"' in name:
        name = _QUOTED_WORD.sub(lambda word: _ESCAPE.sub(r"\1", word[0][1:-1]), name)
    return _BLANKS.sub(" ", name).strip(" ")


def _split_around_quotes(text: str) -> list[str]:
    items, start = [], 0
    for token in _IN_LIST(text):
        if token[0] == '"':
            raise InvalidAddress("a quote in the list is never closed")
        if token[0] == ",":
            items.append(text[start : token.start()])
            start = token.end()
    return [*items, text[start:]]


def _check_local(local: str) -> None:
    if not local:
        raise InvalidAddress("the part before the @ is empty")
    if len(local.encode()) > _LOCAL_OCTETS:
        raise InvalidAddress(f"the part before the @ is longer than {_LOCAL_OCTETS} octets")
    # Not printable are also the invisible ones (bidi marks, zero-width spaces, exotic blanks).
    if not local.isprintable() or not (_DOT_ATOM(local) or _QUOTED_LOCAL(local)):
        raise InvalidAddress("the part before the @ contains a character that is not allowed there")


def _wire_domain(domain: str) -> str:
    if not domain:
        raise InvalidAddress("the domain is empty")
    if domain.startswith("["):
        return _address_literal(domain)
    ascii_domain = domain if domain.isascii() else _to_a_labels(domain)
    # Checked after the mapping too: it turns look-alikes into dots and brackets.
    if not _HOST(ascii_domain):
        raise InvalidAddress("the domain is not a valid host name")
    return ascii_domain


def _to_a_labels(domain: str) -> str:
    if len(domain) > _ADDRESS_OCTETS:
        raise InvalidAddress("the domain is too long")
    encoded = idna_encoded(domain)
    if encoded is None:
        raise InvalidAddress("the domain is not a valid international name")
    return encoded


def idna_encoded(domain: str) -> str | None:
    """A name in any script as the DNS knows it (IDNA 2008); None of what it cannot know.

    A label only gets longer by it, and idna takes a time that grows with the square of a label's length: so
    what is too long is found before.
    """
    if len(domain) > _ADDRESS_OCTETS:
        return None
    if max(map(len, _FULL_STOP.split(normalize("NFC", domain)))) > _LABEL_OCTETS:
        return None
    try:
        return idna.encode(domain, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        # Its message names the domain, so it is not told.
        return None


def _address_literal(domain: str) -> str:
    inner = domain[1:-1] if domain.endswith("]") else ""
    try:
        if inner[:5].lower() == "ipv6:":
            IPv6Address(inner[5:])
        else:
            IPv4Address(inner)
    except AddressValueError:
        raise InvalidAddress("the domain is not a valid address literal") from None
    if "%" in inner:
        raise InvalidAddress("the domain is not a valid address literal")
    return domain
