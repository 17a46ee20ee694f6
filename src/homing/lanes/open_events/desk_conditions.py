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
from homing.db.looking import Table
from homing.lanes.open_events.locales import OPEN_SEAT
from homing.messages.model import Phase, Wanted

PHASES: Final[Mapping[str, Phase]] = {
    "pending": "waiting",
    "sent": "delivered",
    "skipped": "stopped",
    "failed": "dead",
    "expired": "stopped",
}
TABLE: Final = Table(
    "open_event_notifications",
    "o.notification_id",
    "o.created_at",
    "o.notification_id AS id, o.notification_id, o.open_event_id, o.subscription_id, o.fanout_status,"
    " o.error, o.due_at, o.created_at",
)
STATE: Final = "lower(o.fanout_status)"
#: States whose rows lie in an index in the order of ids.
ORDERED: Final = ("skipped", "failed", "expired")
_ENDED: Final = f"{STATE} IN ('skipped', 'failed', 'expired')"
_PREFIX = "notification_"
_LONGEST_NUMBER = 18


def number_of(id: str) -> int | None:
    digits = id.removeprefix(_PREFIX)
    is_one = id != digits and digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER
    return int(digits) if is_one else None


def in_order(dialect: Dialect, state: str) -> str:
    """The condition by which the rows of an ordered state are read from their index.

    SQLite takes a partial index only where its own words stand; PostgreSQL would count such words twice.
    """
    one = is_one_of(STATE, (state,))
    needs = dialect == "sqlite"
    return f"{_ENDED} AND {one}" if needs else one


def states_of(wanted: Wanted) -> tuple[str, ...]:
    """Those that are asked for; all of them when none is. What has arrived has no error."""
    every = not wanted.phases and not wanted.states
    return tuple(
        state
        for state, phase in PHASES.items()
        if (every or phase in wanted.phases or state in wanted.states)
        and not (phase == "delivered" and wanted.has_error)
    )


def conditions(wanted: Wanted, dialect: Dialect) -> Conditions | None:
    """All that is asked for; None when no notification can be that."""
    states = states_of(wanted)
    others = other_conditions(wanted, dialect)
    if not states or others is None:
        return None
    return others if len(states) == len(PHASES) else Conditions((is_one_of(STATE, states),)) + others


def other_conditions(wanted: Wanted, dialect: Dialect) -> Conditions | None:
    """What is asked for beside the states. Notifications have no source and no metadata, and one template."""
    if wanted.source is not None or wanted.meta:
        return None
    if wanted.type is not None and not fnmatchcase(OPEN_SEAT, wanted.type.lower()):
        return None
    found = created(dialect, "o.created_at", wanted.since, wanted.until)
    if wanted.id is not None:
        found += by_id(wanted.id)
    if wanted.to is not None:
        found += _to(dialect, wanted.to)
    if wanted.error is not None:
        found += _error(dialect, wanted.error)
    found += has_code(_CODE[dialect], wanted.codes)
    return found + _words(dialect, wanted.words)


def by_id(id: str) -> Conditions:
    """A notification, or all of one event, by the key that the event has."""
    number = number_of(id)
    if number is not None:
        return Conditions(("o.notification_id = :number",), {"number": number})
    events = select("e.open_event_id", "open_events AS e", ("e.dedupe_key = :key",))
    return Conditions((f"o.open_event_id IN ({events})",), {"key": id})


def _to(dialect: Dialect, to: str) -> Conditions:
    if not is_pattern(to):
        # As the index has it.
        whole = select("s.subscription_id", "subscriptions AS s", ("lower(trim(s.contact_value)) = :to",))
        return Conditions((f"o.subscription_id IN ({whole})",), {"to": to.strip().lower()})
    masked = is_like(dialect, _MASKED[dialect], "to", like(to))
    mine = select("1", "subscriptions AS s", ("s.subscription_id = o.subscription_id", *masked.texts))
    return Conditions((f"EXISTS ({mine})",), masked.values)


#: As `senders.addresses.mask` has it.
_MASKED: Mapping[Dialect, str] = {
    "postgres": "(left(trim(s.contact_value), 1) || '***'"
    " || substr(s.contact_value, strpos(s.contact_value, '@')))",
    "sqlite": "(substr(trim(s.contact_value), 1, 1) || '***'"
    " || substr(s.contact_value, instr(s.contact_value, '@')))",
}


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
