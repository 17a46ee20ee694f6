"""What the desk asks for, as conditions on `mail_outbox`; the table's alias is `o`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from homing.db import Dialect
from homing.db.conditions import UNCLASSIFIED, Conditions, has_code, has_no_code, in_json, is_one_of
from homing.db.looking import Stream, Table
from homing.messages.asking import Layout, Named, number_of
from homing.messages.mails import CODE_OF_ERROR, has_error, mail_conditions
from homing.messages.model import Phase, Wanted

PHASES: Final[Mapping[str, Phase]] = {
    "queued": "waiting",
    "dispatching": "running",
    "sent": "delivered",
    "failed": "dead",
    "cancelled": "stopped",
    "expired": "stopped",
}
_TABLE: Final = Table(
    "mail_outbox",
    "o.id",
    "o.created_at",
    "o.id, o.status, o.retry_count, o.next_attempt_at, o.last_error, o.to_address, o.cc_address,"
    " o.bcc_address, o.subject, o.template, o.idempotency_key, o.metadata, o.created_at",
)
_STATE: Final = "o.status"
_PREFIX: Final = "outbox_"
_ENDED: Final = f"{_STATE} IN ('failed', 'cancelled', 'expired')"


def _stream_of(dialect: Dialect, state: str) -> Stream:
    """How the mails of a state lie.

    SQLite takes a partial index only where its own words stand; PostgreSQL would count such words twice.
    """
    one = is_one_of(_STATE, (state,))
    if state == "sent":
        return Stream()
    if state == "queued":
        return Stream((), (one,))
    needs = dialect == "sqlite" and state != "dispatching"
    return Stream((f"{_ENDED} AND {one}" if needs else one,))


def _named(id: str) -> Named:
    number = number_of(_PREFIX, id)
    if number is not None:
        return Named(Conditions(("o.id = :number",), {"number": number}))
    return Named(Conditions(("o.idempotency_key = :key",), {"key": id}))


def _others(wanted: Wanted, dialect: Dialect) -> Conditions | None:
    """What is asked for beside states and ids. Mails have no source."""
    if wanted.source is not None:
        return None
    found = mail_conditions(dialect, wanted) + has_code(CODE_OF_ERROR[dialect], wanted.codes)
    if wanted.error is not None:
        found += _error(dialect, wanted.error)
    return found + in_json(dialect, "o.metadata", wanted.meta)


def _error(dialect: Dialect, error: str) -> Conditions:
    return has_no_code(CODE_OF_ERROR[dialect]) if error == UNCLASSIFIED else has_error(dialect, error)


LAYOUT: Final = Layout(_TABLE, _PREFIX, _STATE, _stream_of, _named, _others)
