"""A broker's address as it may be shown."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_QUERY = re.compile(r"[?#]")


def redacted(url: str) -> str:
    """For logs and errors: where, but not as whom.

    A password may hold what ends an address to every parser, such as a slash. So all before the last @ is
    left out, and where it cannot be told what is a password, all but the scheme.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return "a malformed URL"
    address, *query = _QUERY.split(rest, maxsplit=1)
    if query and "@" in query[0]:
        return f"{scheme}://"
    return f"{scheme}://{_place(address.rpartition('@')[2])}"


def identity(url: str) -> str:
    """As `redacted`, with the path: two virtual hosts of one RabbitMQ are two brokers."""
    place = redacted(url)
    address = _QUERY.split(url, maxsplit=1)[0].rpartition("@")[2]
    # RabbitMQ's own is a slash, which may be written or not.
    path = unquote(address.rpartition("://")[2].partition("/")[2]).strip("/")
    # Without a host it could not be told what of the address is a password.
    return place if place.endswith(("://", "URL")) or not path else f"{place}/{path}"


def _place(address: str) -> str:
    try:
        parts = urlsplit(f"//{address}")
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    host = parts.hostname or ""
    return f"[{host}]{port}" if ":" in host else f"{host}{port}"
