"""What the desk asks for, as conditions on `email_log`; the table's alias is `o`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from homing.db import Dialect
from homing.db.conditions import (
    UNCLASSIFIED,
    Conditions,
    created,
    either,
    every_word,
    has_recipient,
    is_like,
    is_one_of,
    like,
    matches,
)
from homing.db.looking import Table
from homing.messages.model import Phase, Wanted

PHASES: Final[Mapping[str, Phase]] = {
    "Pending": "waiting",
    "RetryQueued": "waiting",
    "Sent": "delivered",
    "Failed": "waiting",
    "Dead": "dead",
}
TABLE: Final = Table(
    "email_log",
    "o.id",
    "o.created_at",
    "o.id, o.message_key, o.status, o.attempt_count, o.next_attempt_at, o.last_error, o.dead_reason,"
    " o.to_address, o.cc_address, o.bcc_address, o.subject, o.template, o.created_at",
)
#: States whose rows lie in an index in the order of ids.
ORDERED: Final = ("Failed", "Dead", "RetryQueued")
_ENDED: Final = "o.status IN ('Failed', 'Dead', 'RetryQueued')"
_RECIPIENTS = ("o.to_address", "o.cc_address", "o.bcc_address")
_PREFIX = "email_"
_LONGEST_NUMBER = 18


def number_of(id: str) -> int | None:
    digits = id.removeprefix(_PREFIX)
    is_one = id != digits and digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER
    return int(digits) if is_one else None


def in_order(dialect: Dialect, state: str) -> str:
    """The condition by which the rows of an ordered state are read from their index.

    SQLite takes a partial index only where its own words stand; PostgreSQL would count such words twice.
    """
    one = is_one_of("o.status", (state,))
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
    """All that is asked for; None when no email can be that."""
    states = states_of(wanted)
    others = other_conditions(wanted, dialect)
    if not states or others is None:
        return None
    return others if len(states) == len(PHASES) else Conditions((is_one_of("o.status", states),)) + others


def other_conditions(wanted: Wanted, dialect: Dialect) -> Conditions | None:
    """What is asked for beside the states. Emails have no source and no metadata."""
    if wanted.source is not None or wanted.meta:
        return None
    found = created(dialect, "o.created_at", wanted.since, wanted.until)
    if wanted.id is not None:
        found += _by_id(wanted.id)
    if wanted.type is not None:
        found += matches(dialect, "o.template", "type", wanted.type)
    if wanted.to is not None:
        found += has_recipient(dialect, _RECIPIENTS, wanted.to)
    if wanted.error is not None:
        found += _error(dialect, wanted.error)
    return found + every_word(dialect, ("o.subject", "o.template"), wanted.words)


def _by_id(id: str) -> Conditions:
    number = number_of(id)
    if number is not None:
        return Conditions(("o.id = :number",), {"number": number})
    return Conditions(("o.message_key = :key",), {"key": id})


def _error(dialect: Dialect, error: str) -> Conditions:
    """A dead one has a reason; `last_error` of the others is `code: message`."""
    if error == UNCLASSIFIED:
        none = "o.dead_reason IS NULL AND (o.status = 'Dead' OR o.last_error IS NULL)"
        return Conditions((none,))
    reason = matches(dialect, "o.dead_reason", "reason", error)
    alone = is_like(dialect, "o.last_error", "error", like(error))
    with_message = is_like(dialect, "o.last_error", "errors", f"{like(error)}:%")
    return either(reason, alone, with_message)
