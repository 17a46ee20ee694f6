"""What the desk asks for, as conditions on `open_event_notifications`; the table's alias is `o`.

Addresses are masked on the desk. A pattern is compared with what is shown, so that nobody finds out an
address letter by letter; a whole address is compared with the address.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

from homing.db import Dialect
from homing.db.conditions import (
    UNCLASSIFIED,
    Conditions,
    created,
    every_word,
    has_code,
    has_no_code,
    is_like,
    is_one_of,
    is_pattern,
    like,
    select,
)
from homing.db.looking import Stream, Table
from homing.lanes.open_events.locales import OPEN_SEAT
from homing.messages.asking import Layout, Named, number_of
from homing.messages.model import Phase, Wanted

PHASES: Final[Mapping[str, Phase]] = {
    "pending": "waiting",
    "sent": "delivered",
    "skipped": "stopped",
    "failed": "dead",
    "expired": "stopped",
}
_TABLE: Final = Table(
    "open_event_notifications",
    "o.notification_id",
    "o.created_at",
    "o.notification_id AS id, o.notification_id, o.open_event_id, o.subscription_id, o.fanout_status,"
    " o.error, o.due_at, o.created_at",
)
_STATE: Final = "lower(o.fanout_status)"
_PREFIX: Final = "notification_"
_ENDED: Final = f"{_STATE} IN ('skipped', 'failed', 'expired')"
_PENDING: Final = f"{_STATE} = 'pending'"


def _stream_of(dialect: Dialect, state: str) -> Stream:
    """How the notifications of a state lie.

    SQLite takes a partial index only where its own words stand; PostgreSQL would count such words twice.
    """
    if state == "sent":
        return Stream()
    if state == "pending":
        return Stream((f"{_PENDING} AND o.due_at IS NULL",), (f"{_PENDING} AND o.due_at IS NOT NULL",))
    one = is_one_of(_STATE, (state,))
    return Stream((f"{_ENDED} AND {one}" if dialect == "sqlite" else one,))


def _named(id: str) -> Named:
    """A notification, or all of one event, by the key that the event has."""
    number = number_of(_PREFIX, id)
    if number is not None:
        return Named(Conditions(("o.notification_id = :number",), {"number": number}))
    events = select("e.open_event_id", "open_events AS e", ("e.dedupe_key = :key",))
    return Named(Conditions((f"o.open_event_id IN ({events})",), {"key": id}), is_unique=False)


def _others(wanted: Wanted, dialect: Dialect) -> Conditions | None:
    """What is asked for beside states and ids. There is no source, no metadata, and one template."""
    if wanted.source is not None or wanted.meta:
        return None
    if wanted.type is not None and not fnmatchcase(OPEN_SEAT, wanted.type.lower()):
        return None
    found = created(dialect, "o.created_at", wanted.since, wanted.until)
    if wanted.to is not None:
        found += _to(dialect, wanted.to)
    if wanted.error is not None:
        found += _error(dialect, wanted.error)
    found += has_code(_CODE[dialect], wanted.codes)
    return found + _words(dialect, wanted.words)


def _to(dialect: Dialect, to: str) -> Conditions:
    if not is_pattern(to):
        # As the index has it.
        whole = select("s.subscription_id", "subscriptions AS s", ("lower(trim(s.contact_value)) = :to",))
        return Conditions((f"o.subscription_id IN ({whole})",), {"to": to.strip().lower()})
    masked = is_like(dialect, _MASKED, "to", like(to))
    mine = select("1", "subscriptions AS s", ("s.subscription_id = o.subscription_id", *masked.texts))
    return Conditions((f"EXISTS ({mine})",), masked.values)


_ADDRESS = "trim(s.contact_value, '<> ')"
#: As `senders.addresses.mask` has it: the first letter, and what follows the last `@`. A number has none.
_MASKED = (
    f"CASE WHEN {_ADDRESS} LIKE '_%@%' THEN substr({_ADDRESS}, 1, 1) || '***@' || "
    f"substr({_ADDRESS}, length(rtrim({_ADDRESS}, replace({_ADDRESS}, '@', ''))) + 1) ELSE '***' END"
)


#: desk_dead_*.sql has the same.
_CODE: Final[Mapping[Dialect, str]] = {
    "postgres": """substring(CAST(o.error AS TEXT) FROM '"code"\\s*:\\s*"([^"]*)"')""",
    "sqlite": "CASE WHEN json_valid(o.error) THEN CAST(json_extract(o.error, '$.code') AS TEXT) END",
}


def _error(dialect: Dialect, error: str) -> Conditions:
    """What another program wrote into the column may be no JSON, so its text is looked through."""
    if error == UNCLASSIFIED:
        return has_no_code(_CODE[dialect])
    text = "replace(CAST(o.error AS TEXT), ' ', '')"
    return is_like(dialect, text, "error", f'%"code":"{like(error)}"%')


def _words(dialect: Dialect, words: tuple[str, ...]) -> Conditions:
    if not words:
        return Conditions()
    columns = ("e.index_number", "e.term_id", "e.campus_code", "CAST(e.payload AS TEXT)")
    found = every_word(dialect, columns, words)
    mine = select("1", "open_events AS e", ("e.open_event_id = o.open_event_id", *found.texts))
    return Conditions((f"EXISTS ({mine})",), found.values)


LAYOUT: Final = Layout(_TABLE, _PREFIX, _STATE, _stream_of, _named, _others)
