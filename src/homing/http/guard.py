"""Where a request may come from.

Without keys, loopback is the only fence, and a web page in the operator's browser stands inside it: a page
elsewhere can make the browser call 127.0.0.1, or point its own name there. So a request must name a host that
is ours, and one that changes something must not come from another site. With a session's cookie that is not
enough: such a request has to show that it comes from a page of ours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from litestar import Request
from msgspec import Struct

from homing.errors import Forbidden
from homing.settings import is_loopback

AnyRequest = Request[Any, Any, Any]

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

    def require_served(self, request: AnyRequest) -> None:
        if not self.bound_to_loopback:
            return
        host = hostname(request)
        if not is_loopback(host) and host != self._public_host:
            raise Forbidden("this Host is not served here; set HOMING_BASE_URL when a proxy stands in front")

    def is_local(self, request: AnyRequest) -> bool:
        """Asked on this machine, and by nobody through a proxy that we know of."""
        peer = request.client.host if request.client is not None else ""
        return self.bound_to_loopback and self.base_url is None and is_loopback(peer)

    def is_secure(self, request: AnyRequest) -> bool:
        """Whether the browser speaks https, with us or with the proxy in front."""
        behind_tls = (
            urlsplit(self.base_url or "").scheme == "https" and hostname(request) == self._public_host
        )
        return request.scope["scheme"] == "https" or behind_tls

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

    def _is_our_origin(self, request: AnyRequest, origin: str) -> bool:
        parts = urlsplit(origin)
        if parts.scheme != ("https" if self.is_secure(request) else "http"):
            return False
        return parts.netloc in {request.headers.get("host"), urlsplit(self.base_url or "").netloc or None}

    @property
    def _public_host(self) -> str | None:
        return urlsplit(self.base_url).hostname if self.base_url else None


def hostname(request: AnyRequest) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def refuse_foreign(request: AnyRequest) -> None:
    """A browser says where a request comes from; a program says nothing, and may ask."""
    if request.method not in READING and _is_foreign(request):
        raise Forbidden("a page of another site may not do this")


def _is_foreign(request: AnyRequest) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OUR_OWN
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")


def make_guard(base_url: str | None) -> Callable[[AnyRequest], Awaitable[None]]:
    """For an application without keys."""
    site = Site(base_url)

    async def guard(request: AnyRequest) -> None:
        site.require_served(request)
        refuse_foreign(request)

    return guard
