"""Headers that are ours to set, whoever creates a job and however."""

from __future__ import annotations

_RESERVED = frozenset(
    {
        "accept-encoding", "authorization", "connection", "content-length", "content-type", "expect", "host",
        "http2-settings", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
    }
)  # fmt: skip
_RESERVED_PREFIXES = ("webhook-", "proxy-")


def is_ours(lower: str, prefix: str) -> bool:
    """`lower` is a header's name in lower case, `prefix` how the specification's headers begin."""
    return lower in _RESERVED or lower.startswith((*_RESERVED_PREFIXES, prefix.lower()))
