"""Without keys, loopback is the only fence; a web page in the operator's browser stands inside it.

A page elsewhere can make the browser call 127.0.0.1, or point its own name there. So a request must name a
host that is ours, and one that changes something must not come from another site.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from litestar import Request

from homing.errors import Forbidden
from homing.settings import is_loopback

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OUR_OWN = frozenset({"same-origin", "none"})


def make_guard(base_url: str | None) -> Callable[[Request[Any, Any, Any]], Awaitable[None]]:
    """`base_url` is how a proxy in front of us is reached: that host is ours as well."""
    public = urlsplit(base_url).hostname if base_url else None

    async def guard(request: Request[Any, Any, Any]) -> None:
        host = _hostname(request.headers.get("host", ""))
        if not is_loopback(host) and host != public:
            raise Forbidden("this Host is not served here; set HOMING_BASE_URL when a proxy stands in front")
        if request.method not in _READING and _is_foreign(request):
            raise Forbidden("a page of another site may not do this")

    return guard


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_foreign(request: Request[Any, Any, Any]) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OUR_OWN
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")
