"""What the desk asks for, as conditions on `email_log`; the table's alias is `o`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from homing.db import Dialect
from homing.db.conditions import UNCLASSIFIED, Conditions, either, has_code, has_no_code, is_one_of, matches
from homing.db.looking import Stream, Table
from homing.messages.asking import Layout, Named, number_of
from homing.messages.mails import CODE_OF_ERROR, has_error, mail_conditions
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
_STATE: Final = (
    "CASE WHEN o.status = 'Dead' AND o.dead_reason = 'Cancelled' THEN 'Cancelled' ELSE o.status END"
)
CANCELLED: Final = "Cancelled"
_OF_STATE: Final = {
    "Dead": "o.status = 'Dead' AND (o.dead_reason IS NULL OR o.dead_reason <> 'Cancelled')",
    "Cancelled": "o.status = 'Dead' AND o.dead_reason = 'Cancelled'",
}
_TABLE: Final = Table(
    "email_log",
    "o.id",
    "o.created_at",
    "o.id, o.message_key, o.status, o.attempt_count, o.next_attempt_at, o.last_error, o.dead_reason,"
    " o.to_address, o.cc_address, o.bcc_address, o.subject, o.template, o.created_at",
)
_PREFIX: Final = "email_"
_ENDED: Final = "o.status IN ('Failed', 'Dead', 'RetryQueued')"


def _stream_of(dialect: Dialect, state: str) -> Stream:
    """How the emails of a state lie.

    SQLite takes a partial index only where its own words stand; PostgreSQL would count such words twice.
    """
    one = _OF_STATE.get(state) or is_one_of("o.status", (state,))
    if state == "Sent":
        return Stream()
    if state == "Pending":
        return Stream((), (one,))
    needs = dialect == "sqlite" and state not in _OF_STATE
    return Stream((f"{_ENDED} AND {one}" if needs else one,))


def _named(id: str) -> Named:
    number = number_of(_PREFIX, id)
    if number is not None:
        return Named(Conditions(("o.id = :number",), {"number": number}))
    return Named(Conditions(("o.message_key = :key",), {"key": id}))


def _others(wanted: Wanted, dialect: Dialect) -> Conditions | None:
    """What is asked for beside states and ids. Emails have no source and no metadata."""
    if wanted.source is not None or wanted.meta:
        return None
    found = mail_conditions(dialect, wanted) + has_code(_CODE[dialect], wanted.codes)
    return found if wanted.error is None else found + _error(dialect, wanted.error)


#: A dead one has a reason, which is its code.
_CODE: Final[Mapping[Dialect, str]] = {
    dialect: f"CASE WHEN o.status = 'Dead' THEN CAST(o.dead_reason AS TEXT) ELSE {code} END"
    for dialect, code in CODE_OF_ERROR.items()
}


def _error(dialect: Dialect, error: str) -> Conditions:
    if error == UNCLASSIFIED:
        return has_no_code(_CODE[dialect])
    return either(matches(dialect, "o.dead_reason", "reason", error), has_error(dialect, error))


LAYOUT: Final = Layout(_TABLE, _PREFIX, _STATE, _stream_of, _named, _others)
