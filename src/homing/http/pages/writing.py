"""How times, durations and numbers are written on a page."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from typing import Any

from markupsafe import Markup, escape

#: Where there is nothing to tell.
MISSING = "—"
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def ago(at: datetime, now: datetime) -> str:
    """`5 min ago`, `in 2 h`; the script makes the same words when it ticks."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            amount = f"{int(abs(seconds) / size)} {unit}"
            return f"{amount} ago" if seconds > 0 else f"in {amount}"
    return "now"


def duration(seconds: float | None) -> str:
    """With the figures that matter: `48 ms`, `1.3 s`, `4 min`, `2 h 5 min`."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return _brief(seconds)
    minutes = int(seconds // 60)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = [(days, "d"), (hours, "h"), (0 if days else minutes, "min")]
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount)


def at_most(seconds: float | None) -> str:
    """Of what is known by its bound only."""
    if seconds is None:
        return MISSING
    return "off the scale" if seconds == inf else f"≤ {duration(seconds)}"


def _brief(seconds: float) -> str:
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{int(seconds)} s"


def iso_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def number(value: float | None) -> str:
    return MISSING if value is None else f"{value:,}"


def compact(value: int) -> str:
    """With three figures: `999`, `12.3k`, `4.56M`."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if value >= size:
            amount = value / (1000 if letter == "k" else size)
            return f"{amount:.{2 if amount < 10 else 1 if amount < 100 else 0}f}{letter}"
    return f"{value:,}"


def clock(at: datetime) -> str:
    """Hour and minute, in UTC."""
    return at.astimezone(UTC).strftime("%H:%M")


def percent(part: float | None) -> str:
    """Of 1. Never `100 %` while anything is missing."""
    if part is None:
        return MISSING
    if part >= 1:
        return "100 %"
    return f"{min(part * 100, 99.99):.2f} %" if part > 0.99 else f"{part * 100:.1f} %"


def short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def kind_of(field: dict[str, Any]) -> str:
    """The type of a field in an OpenAPI document, as people say it."""
    if "type" in field:
        kind = field["type"]
        return " or ".join(kind) if isinstance(kind, list) else str(kind)
    several = [one.get("type") for one in field.get("oneOf", [])]
    return " or ".join(str(one) for one in several if one) or "object"


def ticks(text: str) -> Markup:
    """What our sentences put between backticks is shown as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )
