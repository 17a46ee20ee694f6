"""Times as other programs write them into a column that has no type for them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

#: Seconds since 1970 are fewer (until the year 5138), milliseconds are more (from 1973 on).
_MILLISECONDS_FROM = 10**11
#: A smaller number is something else: a counter, a year, a flag.
_SECONDS_FROM = 10**8
_NUMBER = re.compile(r"\d{9,16}(?:\.\d+)?").fullmatch
#: As JavaScript's `String(new Date())` has it; what follows is the name of the zone.
_JAVASCRIPT = re.compile(
    r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) (\d\d) (\d{4}) ([\d:]{8})(?: GMT([+-]\d{4}))?(?= |$)"
)
_RFC_2822 = re.compile(r"(?:[A-Z][a-z]{2}, ?)?\d{1,2} [A-Z][a-z]{2} \d{4} \d\d:\d\d").match


def read_instant(given: object) -> datetime | None:
    """ISO in any form, seconds or milliseconds since 1970, RFC 2822, JavaScript; None for what is none.

    Without a zone it is UTC.
    """
    try:
        moment = _moment(given)
        if moment is None:
            return None
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _moment(given: object) -> datetime | None:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return _since_1970(given)
    if not isinstance(given, str):
        return None
    text = given.strip()
    if _NUMBER(text):
        return _since_1970(float(text))
    if javascript := _JAVASCRIPT.match(text):
        month, day, year, clock, offset = javascript.groups()
        return parsedate_to_datetime(f"{day} {month} {year} {clock} {offset or '+0000'}")
    return parsedate_to_datetime(text) if _RFC_2822(text) else datetime.fromisoformat(text)


def _since_1970(number: float) -> datetime | None:
    if not number >= _SECONDS_FROM:
        return None
    return datetime.fromtimestamp(number / 1000 if number >= _MILLISECONDS_FROM else number, UTC)
