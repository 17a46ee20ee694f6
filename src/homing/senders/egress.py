"""What a webhook may be sent to: a guard against requests to machines that are none of the sender's business.

Whoever creates a job chooses the URL, and the worker stands inside the operator's network. So the
guard judges the address that a socket is about to be connected to, never the name that led there, and
everything that is not a public unicast address is refused unless `HOMING_EGRESS_ALLOW` names it.
"""

from __future__ import annotations

import errno
import re
import socket
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeAlias

from msgspec import Struct

from homing.errors import SettingsError
from homing.senders.addresses import idna_encoded

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
#: What `getaddrinfo` and aiohttp describe a connection by; the last entry begins with the address.
AddressInfo: TypeAlias = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]]

_LONGEST_URL = 2048
_LONGEST_HOST = 253


def _table(*rows: tuple[str, str]) -> tuple[tuple[Network, str], ...]:
    return tuple((ip_network(cidr), kind) for kind, cidrs in rows for cidr in cidrs.split())


# The first row that fits gives the reason. `ipaddress.is_global` is not asked: it lets through
# multicast, NAT64, 6to4 and more, and its answer changes with the version of Python.
_REFUSED_V4 = _table(
    ("an unspecified address", "0.0.0.0/8"),
    ("a loopback address", "127.0.0.0/8"),
    ("a private address", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16"),
    ("a link-local address", "169.254.0.0/16"),
    ("a carrier's shared address", "100.64.0.0/10"),
    ("a documentation address", "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24"),
    ("a benchmark address", "198.18.0.0/15"),
    ("a 6to4 relay", "192.88.99.0/24"),
    ("a multicast address", "224.0.0.0/4"),
    ("a reserved address", "192.0.0.0/24 192.31.196.0/24 192.52.193.0/24 192.175.48.0/24 240.0.0.0/4"),
)
_REFUSED_V6 = _table(
    ("an unspecified address", "::/128"),
    ("a loopback address", "::1/128"),
    ("an IPv4-mapped address", "::ffff:0:0/96"),
    ("an IPv4-translated address", "::ffff:0:0:0/96"),
    ("an IPv4-compatible address", "::/96"),
    ("a NAT64 address", "64:ff9b::/96 64:ff9b:1::/48"),
    ("a discard address", "100::/64"),
    ("a Teredo address", "2001::/32"),
    ("a benchmark address", "2001:2::/48"),
    ("a reserved address", "2001::/23 2620:4f:8000::/48"),
    ("a documentation address", "2001:db8::/32 3fff::/20"),
    ("a 6to4 address", "2002::/16"),
    ("a segment-routing address", "5f00::/16"),
    ("a private address", "fc00::/7"),
    ("a link-local address", "fe80::/10"),
    ("a site-local address", "fec0::/10"),
    ("a multicast address", "ff00::/8"),
    # Public addresses begin with the bits 001; what is not assigned yet is nobody's target.
    ("not a public address", "::/3 4000::/2 8000::/1"),
)
# Services that hand out credentials to whoever asks from inside: a wide network in the allow-list
# must not open them by accident.
METADATA = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.42.42", "168.63.129.16",
            "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254",
            "fd00:42::42", "fe80::a9fe:a9fe",
        ),
    )
)  # fmt: skip
# The ports of the Fetch standard that no browser connects to: whoever listens there speaks another
# protocol, and could be made to take an HTTP request for its own.
_OTHER_PROTOCOLS = frozenset(
    (
        1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103,
        104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513,
        514, 515, 526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720,
        1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
    )
)  # fmt: skip

_URL = re.compile(r"(https?)://([^/?#\\]*)([^#]*)(#.*)?", re.IGNORECASE | re.DOTALL).fullmatch
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f\\]").search
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?").fullmatch
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*").fullmatch


class EgressRefused(OSError):
    """The guard's no, in the shape in which a connector expects failures to come."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EACCES, reason)
        self.reason = reason


class Target(Struct, frozen=True):
    """A URL that may be sent to, so far as that can be seen without asking the DNS."""

    scheme: str
    #: Lower-case ASCII: a name, an IPv4 address, or an IPv6 address without brackets.
    host: str
    port: int | None
    #: Path and query, exactly as given.
    rest: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.rest}"


class Malformed(Struct, frozen=True):
    """Why a URL cannot be read as a target."""

    reason: str


class EgressGuard:
    """Says no to addresses, with a reason.

    A network in `allow` permits what lies in it. The metadata services of clouds are permitted only
    by their own address, as a /32 or /128.
    """

    def __init__(self, allow: Sequence[Network] = (), *, allow_http: bool = False) -> None:
        self._allow = tuple(allow)
        self._exact = frozenset(net.network_address for net in allow if net.prefixlen == net.max_prefixlen)
        self._allow_http = allow_http

    def refusal(self, address: str) -> str | None:
        """Why this address may not be connected to, or None."""
        try:
            parsed = ip_address(address.partition("%")[0])
        except ValueError:
            return "what the name stands for is no IP address"
        if parsed in self._exact:
            return None
        reasons = (self._reason(parsed, part) for part in (parsed, *_embedded(parsed)))
        return next((reason for reason in reasons if reason is not None), None)

    def url_refusal(self, url: str) -> str | None:
        """Why no job may be created for this URL, or None; what its name stands for is judged later."""
        target = self.target(url)
        return target.reason if isinstance(target, Malformed) else self.target_refusal(target)

    def target(self, url: str) -> Target | Malformed:
        """Take a URL apart. Reasons repeat no part of it, for it may hold a secret."""
        parts = None if len(url) > _LONGEST_URL else _URL(url)
        if parts is None or _NOT_IN_A_URL(url) or not parts[3].isascii():
            return Malformed(_what_is_wrong(url))
        scheme, authority, rest, fragment = parts.groups()
        if fragment is not None:
            return Malformed("a fragment (#…) is never sent to a server; leave it out of the URL")
        if "@" in authority:
            return Malformed("user and password do not belong into a URL; use credentials or a header")
        if scheme.lower() == "http" and not self._allow_http:
            return Malformed("only https is allowed; HOMING_ALLOW_HTTP can permit http")
        return _target(scheme.lower(), authority, rest)

    def target_refusal(self, target: Target) -> str | None:
        """Why a target may not be sent to, where its URL says it already: an address, a port."""
        # Where plain http is allowed somebody tries things out, and any port may be theirs.
        if target.port in _OTHER_PROTOCOLS and not self._allow_http:
            return f"port {target.port} belongs to another protocol than HTTP"
        return self.refusal(target.host) if is_address(target.host) else None

    def open_socket(self, info: AddressInfo) -> socket.socket:
        """Make the socket for a connection, or raise `EgressRefused`.

        Every connection comes by here, whoever resolved its name, and whether there was a name at all.
        """
        family, kind, protocol, _, address = info
        reason = self.refusal(str(address[0]))
        if reason is not None:
            raise EgressRefused(reason)
        return socket.socket(family, kind, protocol)

    def _reason(self, whole: Address, part: Address) -> str | None:
        subject = f"{whole} is" if part is whole else f"{whole} contains {part},"
        if part in METADATA:
            # Only the exact address opens these, and for a whole address that was asked already.
            if part in self._exact:
                return None
            return (
                f"{subject} a cloud's metadata service; HOMING_EGRESS_ALLOW can permit its exact address only"
            )
        kind = _kind(part)
        if kind is None or any(part in network for network in self._allow):
            return None
        return f"{subject} {kind}; HOMING_EGRESS_ALLOW can permit it"


@lru_cache(maxsize=4096)
def origin_of(url: str) -> str | None:
    """Where a URL is sent to: scheme, host and port, always written the same; None for what is sent nowhere.

    The sender reads URLs by the same function, so nothing goes elsewhere than this says.
    """
    target = _ANY_SCHEME.target(url)
    if isinstance(target, Malformed):
        return None
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{target.scheme}://{host}:{target.port or _PORTS[target.scheme]}"


_ANY_SCHEME = EgressGuard(allow_http=True)
_PORTS = {"http": 80, "https": 443}


def is_address(host: str) -> bool:
    """Whether a target's host is an address: names never end in a part of digits only."""
    return ":" in host or host.rpartition(".")[2].isdecimal()


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read `HOMING_EGRESS_ALLOW`: networks or addresses, with commas or spaces between them."""
    return tuple(_network(item) for item in re.split(r"[,\s]+", text) if item)


def _network(item: str) -> Network:
    try:
        return ip_network(item)
    except ValueError:
        pass
    try:
        wider = ip_network(item, strict=False)
    except ValueError:
        raise SettingsError(
            f"HOMING_EGRESS_ALLOW: {item!r} is no network; write addresses and networks such as"
            " 10.0.0.0/8, 192.168.1.20 or fd00::/8, with commas between them"
        ) from None
    address = item.partition("/")[0]
    raise SettingsError(
        f"HOMING_EGRESS_ALLOW: {item} begins in the middle of a network; write {wider} for all of it,"
        f" or {address} for this address"
    )


# Addresses


def _kind(address: Address) -> str | None:
    table = _REFUSED_V4 if address.version == 4 else _REFUSED_V6
    return next((kind for network, kind in table if address in network), None)


def _embedded(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that an IPv6 address carries: a gateway would send the packet on to them."""
    if isinstance(address, IPv4Address):
        return
    number = int(address)
    last = IPv4Address(number & 0xFFFFFFFF)
    prefix = number >> 32
    if prefix in _CARRIES_IPV4_LAST or number >> 80 == _LOCAL_NAT64:
        if number > 1:
            yield last
    elif number >> 112 == 0x2002:
        yield IPv4Address((number >> 80) & 0xFFFFFFFF)
    elif number >> 96 == 0x20010000:
        yield IPv4Address((number >> 64) & 0xFFFFFFFF)
        yield IPv4Address(int(last) ^ 0xFFFFFFFF)
    elif (number >> 32) & 0xFDFFFFFF == 0x00005EFE:
        # ISATAP, under any prefix.
        yield last


_CARRIES_IPV4_LAST = frozenset(
    int(IPv6Address(prefix)) >> 32 for prefix in ("::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::")
)
_LOCAL_NAT64 = int(IPv6Address("64:ff9b:1::")) >> 80


# URLs


def _what_is_wrong(url: str) -> str:
    if len(url) > _LONGEST_URL:
        return f"the URL is longer than {_LONGEST_URL:,} characters"
    if _NOT_IN_A_URL(url):
        return "the URL contains a space, a backslash or a control character; percent-encode it"
    if _URL(url) is None:
        return "the URL must begin with https:// (or http:// where it is allowed) and name a host"
    return "the URL contains letters outside of ASCII after the host; percent-encode them"


def _target(scheme: str, authority: str, rest: str) -> Target | Malformed:
    host, port = _split(authority)
    number = _port(port)
    if isinstance(number, Malformed):
        return number
    name = _address_in_brackets(host) if host.startswith("[") else _host(host)
    return name if isinstance(name, Malformed) else Target(scheme, name, number, rest)


def _split(authority: str) -> tuple[str, str | None]:
    """Host and port; the colons of an address in brackets are its own."""
    host, colon, port = authority.rpartition(":")
    return (host, port) if colon and not port.endswith("]") else (authority, None)


def _port(text: str | None) -> int | Malformed | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536):
        return Malformed("the port of the URL must be a number from 1 to 65535")
    return int(text)


def _address_in_brackets(host: str) -> str | Malformed:
    try:
        # A zone (%eth0) names an interface of this machine, which is nobody's business either.
        return str(IPv6Address(host[1:-1] if host.endswith("]") and "%" not in host else ""))
    except ValueError:
        return Malformed("what the URL has in brackets is no IPv6 address")


def _host(host: str) -> str | Malformed:
    """The host as it will be looked up: lower-case ASCII, and an address only in its usual notation."""
    name = ascii_name(host).removesuffix(".")
    labels = name.split(".")
    if _NUMBER(labels[-1]):
        return _usual_notation(name)
    if not name or len(name) > _LONGEST_HOST or not all(map(_LABEL, labels)):
        return Malformed("the URL names no valid host")
    return name


def ascii_name(host: str) -> str:
    """A name in any script as the DNS knows it; empty when it cannot."""
    if host.isascii():
        return host.lower()
    # Digits of other scripts and full stops of other widths become what a resolver takes them for.
    folded = unicodedata.normalize("NFKC", host).lower().replace("\u3002", ".")
    if folded.isascii():
        return folded
    return (idna_encoded(folded) or "").lower()


def _usual_notation(host: str) -> str | Malformed:
    """An IPv4 address; resolvers take 0x7f.1 and 2130706433 for one too, so nothing else may pass."""
    try:
        return str(IPv4Address(host))
    except ValueError:
        address = _read_loosely(host.split("."))
    if address is None:
        return Malformed("the host of the URL ends in a number but is no IPv4 address")
    return Malformed(f"write the host of the URL in the usual notation, as {address}")


def _read_loosely(parts: list[str]) -> IPv4Address | None:
    """Read what `inet_aton` reads: one to four numbers, decimal, octal or hex; the last fills the rest."""
    numbers = [_read_number(part) for part in parts]
    if len(numbers) > 4 or None in numbers:
        return None
    *firsts, last = (number for number in numbers if number is not None)
    free = 8 * (4 - len(firsts))
    if any(number > 255 for number in firsts) or last >= 1 << free:
        return None
    return IPv4Address(sum(number << 8 * (3 - place) for place, number in enumerate(firsts)) + last)


def _read_number(text: str) -> int | None:
    base = 16 if text.startswith("0x") else 8 if text.startswith("0") and len(text) > 1 else 10
    digits = text[2:] or "0" if base == 16 else text
    try:
        return int(digits, base) if _NUMBER(text) and len(digits) < 20 else None
    except ValueError:
        return None
