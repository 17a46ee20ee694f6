"""A broker's address as it may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit


def redacted(url: str) -> str:
    """For logs and errors: where, but not as whom."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "a malformed URL"
    return f"{parts.scheme}://{parts.hostname or ''}{port}"
