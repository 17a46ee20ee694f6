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
    has_code,
    has_no_code,
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
    # In the table such an email is Dead, too, by the reason Cancelled. Nobody has to look after it.
    "Cancelled": "stopped",
}
#: Of a row: its status, and apart from the dead those that a person has cancelled.
STATE: Final = (
    "CASE WHEN o.status = 'Dead' AND o.dead_reason = 'Cancelled' THEN 'Cancelled' ELSE o.status END"
)
CANCELLED: Final = "Cancelled"
_OF_STATE: Final = {
    "Dead": "o.status = 'Dead' AND (o.dead_reason IS NULL OR o.dead_reason <> 'Cancelled')",
    "Cancelled": "o.status = 'Dead' AND o.dead_reason = 'Cancelled'",
}
TABLE: Final = Table(
    "email_log",
    "o.id",
    "o.created_at",
    "o.id, o.message_key, o.status, o.attempt_count, o.next_attempt_at, o.last_error, o.dead_reason,"
    " o.to_address, o.cc_address, o.bcc_address, o.subject, o.template, o.created_at",
)
#: States whose rows lie in an index in the order of ids.
ORDERED: Final = ("Failed", "Dead", "RetryQueued", "Cancelled")
_ENDED: Final = "o.status IN ('Failed', 'Dead', 'RetryQueued')"
_RECIPIENTS = ("o.to_address", "o.cc_address", "o.bcc_address")
_PREFIX = "email_"
_LONGEST_NUMBER = 18


def number_of(id: str) -> int | None:
    digits = id.removeprefix(_PREFIX)
    is_one = id != digits and digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER
    return int(digits) if is_one else None


def is_in(state: str) -> str:
    """In words that an index knows."""
    return _OF_STATE.get(state) or is_one_of("o.status", (state,))


def in_order(dialect: Dialect, state: str) -> str:
    """The condition by which the rows of an ordered state are read from their index.

    SQLite takes a partial index only where its own words stand; PostgreSQL would count such words twice.
    """
    one = is_in(state)
    needs = dialect == "sqlite" and state not in _OF_STATE
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
    return others if len(states) == len(PHASES) else Conditions((is_one_of(STATE, states),)) + others


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
    found += has_code(_CODE[dialect], wanted.codes)
    return found + every_word(dialect, ("o.subject", "o.template"), wanted.words)


def _by_id(id: str) -> Conditions:
    number = number_of(id)
    if number is not None:
        return Conditions(("o.id = :number",), {"number": number})
    return Conditions(("o.message_key = :key",), {"key": id})


#: A dead one has a reason, which is its code; `last_error` of the others is `code: message`.
_CODE: Final[Mapping[Dialect, str]] = {
    "postgres": "CASE WHEN o.status = 'Dead' THEN o.dead_reason ELSE split_part(o.last_error, ':', 1) END",
    "sqlite": "CASE WHEN o.status = 'Dead' THEN CAST(o.dead_reason AS TEXT) ELSE"
    " substr(CAST(o.last_error AS TEXT), 1, instr(CAST(o.last_error AS TEXT) || ':', ':') - 1) END",
}


def _error(dialect: Dialect, error: str) -> Conditions:
    if error == UNCLASSIFIED:
        return has_no_code(_CODE[dialect])
    reason = matches(dialect, "o.dead_reason", "reason", error)
    alone = is_like(dialect, "o.last_error", "error", like(error))
    with_message = is_like(dialect, "o.last_error", "errors", f"{like(error)}:%")
    return either(reason, alone, with_message)
