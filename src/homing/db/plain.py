"""Words of somebody else, as every database takes them: in one line, without what no text may hold."""

from __future__ import annotations


def plain(text: str, most: int) -> str:
    """PostgreSQL's text holds everything but NUL; half a character is no text."""
    readable = text.encode("utf-8", "replace").decode().replace("\x00", " ")
    return " ".join(readable.split())[:most]
