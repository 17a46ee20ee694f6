"""What the desk asks for, as conditions on `mail_outbox`; the table's alias is `o`."""

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
    in_json,
    is_like,
    is_one_of,
    like,
    matches,
)
from homing.db.looking import Table
from homing.messages.model import Phase, Wanted

PHASES: Final[Mapping[str, Phase]] = {
    "queued": "waiting",
    "dispatching": "running",
    "sent": "delivered",
    "failed": "dead",
    "cancelled": "stopped",
    "expired": "stopped",
}
TABLE: Final = Table(
    "mail_outbox",
    "o.id",
    "o.created_at",
    "o.id, o.status, o.retry_count, o.next_attempt_at, o.last_error, o.to_address, o.cc_address,"
    " o.bcc_address, o.subject, o.template, o.idempotency_key, o.metadata, o.created_at",
)
#: States whose rows lie in an index in the order of ids.
ORDERED: Final = ("dispatching", "failed", "cancelled", "expired")
_ENDED: Final = "o.status IN ('failed', 'cancelled', 'expired')"
_PREFIX = "outbox_"
_LONGEST_NUMBER = 18
_RECIPIENTS = ("o.to_address", "o.cc_address", "o.bcc_address")


def number_of(id: str) -> int | None:
    digits = id.removeprefix(_PREFIX)
    is_one = id != digits and digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER
    return int(digits) if is_one else None


def in_order(dialect: Dialect, state: str) -> str:
    """The condition by which the rows of an ordered state are read from their index.

    SQLite takes a partial index only where its own words stand; PostgreSQL would count such words twice.
    """
    one = is_one_of("o.status", (state,))
    needs = dialect == "sqlite" and state != "dispatching"
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
    """All that is asked for; None when no mail can be that."""
    states = states_of(wanted)
    others = other_conditions(wanted, dialect)
    if not states or others is None:
        return None
    return others if len(states) == len(PHASES) else Conditions((is_one_of("o.status", states),)) + others


def other_conditions(wanted: Wanted, dialect: Dialect) -> Conditions | None:
    """What is asked for beside the states."""
    if wanted.source is not None:
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
    found += every_word(dialect, ("o.subject", "o.template"), wanted.words)
    return found + in_json(dialect, "o.metadata", wanted.meta)


def _by_id(id: str) -> Conditions:
    number = number_of(id)
    if number is not None:
        return Conditions(("o.id = :number",), {"number": number})
    return Conditions(("o.idempotency_key = :key",), {"key": id})


#: `last_error` is `code: message`; desk_dead_*.sql has the same.
_CODE: Final[Mapping[Dialect, str]] = {
    "postgres": "split_part(o.last_error, ':', 1)",
    "sqlite": "substr(CAST(o.last_error AS TEXT), 1, instr(CAST(o.last_error AS TEXT) || ':', ':') - 1)",
}


def _error(dialect: Dialect, error: str) -> Conditions:
    if error == UNCLASSIFIED:
        return has_no_code(_CODE[dialect])
    alone = is_like(dialect, "o.last_error", "error", like(error))
    with_message = is_like(dialect, "o.last_error", "errors", f"{like(error)}:%")
    return either(alone, with_message)
