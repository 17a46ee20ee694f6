"""Where a request may come from.

Without keys, loopback is the only fence, and a web page in the operator's browser stands inside it: a page
elsewhere can make the browser call 127.0.0.1, or point its own name there. So a request must name a host that
is ours, and one that changes something must not come from another site. With a session's cookie that is not
enough: such a request has to show that it comes from a page of ours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from litestar.datastructures import Headers
from litestar.types import Scope
from msgspec import Struct

from homing.errors import Forbidden, InvalidRequest
from homing.http.asking import AnyRequest, address_of
from homing.settings import is_loopback

Address = IPv4Address | IPv6Address

_FORWARDED_FOR, _FORWARDED_PROTO = "x-forwarded-for", "x-forwarded-proto"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OUR_OWN = frozenset({"same-origin", "none"})
#: A cookie of this name is taken by browsers only with Secure, with Path=/ and for no other host.
_SECURE_COOKIE = "__Host-homing"
#: On plain http a cookie cannot be Secure, and so cannot have that name; only loopback is served so.
_PLAIN_COOKIE = "homing_session"


class Site(Struct, frozen=True):
    """`base_url` is how a proxy in front of us is reached: that host is ours as well."""

    base_url: str | None = None
    #: Whether nobody but this machine can connect.
    bound_to_loopback: bool = True
    #: Networks of proxies that are believed when they say whom they ask for. Litestar, which hands a site to
    #: handlers, knows no type of networks.
    trusted: tuple[Any, ...] = ()

    def see_through(self, scope: Scope, headers: Headers) -> bool:
        """Let `scope` name who is behind the proxies that are trusted; whether one was there that is not.

        A proxy adds whom it was called by at the end of `X-Forwarded-For`; what stands before the last that
        is no proxy of ours may be anybody's. Raises `InvalidRequest` for what is no address.
        """
        client = scope["client"]
        forwarded = headers.getall(_FORWARDED_FOR, [])
        peer, written = _peer(client[0]) if client is not None else (None, "")
        if client is None or peer is None:
            return bool(forwarded)
        if not self._trusts(peer):
            scope["client"] = (written, client[1])
            return bool(forwarded)
        scope["client"] = (str(self._origin(peer, ",".join(forwarded))), client[1])
        scheme = headers.get(_FORWARDED_PROTO, "").rpartition(",")[2].strip().lower()
        if scheme in {"http", "https"}:
            scope["scheme"] = scheme
        return False

    def _origin(self, peer: Address, forwarded: str) -> Address:
        hops = forwarded.split(",") if forwarded else []
        while hops and self._trusts(peer):
            hop = _hop(hops.pop().strip())
            if hop is None:
                raise InvalidRequest(
                    "X-Forwarded-For names what is no address; let the proxy write the address that it was "
                    "called from, and nothing else"
                )
            peer = hop
        return peer

    def _trusts(self, address: Address) -> bool:
        return bool(self.trusted) and any(address in network for network in self.trusted)

    def require_served(self, host: str) -> None:
        """By the Host header, which a page elsewhere cannot choose."""
        if self.bound_to_loopback and not _is_served(host, self.base_url):
            raise Forbidden("this Host is not served here; set HOMING_BASE_URL when a proxy stands in front")

    def is_local(self, request: AnyRequest) -> bool:
        """Asked on this machine, and by nobody through a proxy that we know of."""
        if not self.bound_to_loopback or self.base_url is not None or self.trusted:
            return False
        return is_loopback(address_of(request) or "") and _FORWARDED_FOR not in request.headers

    @property
    def is_https(self) -> bool:
        """Whether people come by https, which a proxy in front of us speaks."""
        return urlsplit(self.base_url or "").scheme == "https"

    def is_secure(self, request: AnyRequest) -> bool:
        """Whether the browser speaks https, with us or with the proxy in front."""
        is_ours = hostname(request.headers.get("host", "")) == urlsplit(self.base_url or "").hostname
        return request.scope["scheme"] == "https" or (self.is_https and is_ours)

    def cookie_name(self, request: AnyRequest) -> str:
        return _SECURE_COOKIE if self.is_secure(request) else _PLAIN_COOKIE

    def session_cookie(self, request: AnyRequest) -> str | None:
        return request.cookies.get(self.cookie_name(request))

    def require_own_page(self, request: AnyRequest) -> None:
        """For what a cookie allows, and for logging in: no proof that it is ours is as bad as a wrong one."""
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
        # A page that sends no referrer sends this instead of its origin; the other header still tells.
        if origin == "null" and site is not None:
            origin = None
        said = [site == "same-origin"] if site is not None else []
        said += [self._is_our_origin(request, origin)] if origin is not None else []
        if not said or not all(said):
            raise Forbidden("only a page of this site may do this")

    def came_from(self, request: AnyRequest) -> str:
        """The page of ours that a form was on, with its query; nothing where the browser does not say."""
        scheme, _, rest = request.headers.get("referer", "").partition("://")
        place, _, path = rest.partition("/")
        is_ours = self._is_our_origin(request, f"{scheme}://{place}")
        return f"/{path.partition('#')[0]}" if is_ours else ""

    def _is_our_origin(self, request: AnyRequest, origin: str) -> bool:
        scheme, _, place = origin.partition("://")
        if scheme != ("https" if self.is_secure(request) else "http"):
            return False
        return place in {request.headers.get("host"), urlsplit(self.base_url or "").netloc or None}


@lru_cache(maxsize=1024)
def _peer(text: str) -> tuple[Address | None, str]:
    """Who is connected, and how we write that. Asked for each request."""
    found = _address(text.partition("%")[0])
    return found, str(found)


@lru_cache(maxsize=1024)
def _address(text: str) -> Address | None:
    """An IPv4 address that came by a socket of IPv6 is what it is."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _hop(text: str) -> Address | None:
    """Some proxies write the port, too. A zone is nothing that comes from elsewhere, and may be any text."""
    host = text[1:].partition("]")[0] if text.startswith("[") else text
    return _address(host.partition(":")[0] if host.count(":") == 1 else host) if "%" not in host else None


@lru_cache(maxsize=256)
def _is_served(host: str, base_url: str | None) -> bool:
    name = hostname(host)
    return is_loopback(name) or (base_url is not None and name == urlsplit(base_url).hostname)


def hostname(host: str) -> str:
    """Of a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def refuse_foreign(method: str, headers: Mapping[str, str]) -> None:
    """A browser says where a request comes from; a program says nothing, and may ask."""
    if method not in READING and _is_foreign(headers):
        raise Forbidden("a page of another site may not do this")


def _is_foreign(headers: Mapping[str, str]) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OUR_OWN
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")


def make_guard(base_url: str | None) -> Callable[[AnyRequest], Awaitable[None]]:
    """For an application without keys."""
    site = Site(base_url)

    async def guard(request: AnyRequest) -> None:
        headers = request.headers
        site.require_served(headers.get("host", ""))
        refuse_foreign(request.method, headers)

    return guard
