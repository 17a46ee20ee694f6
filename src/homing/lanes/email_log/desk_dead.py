"""What the desk does with many emails at once: dead letters by reason, verbs by the thousand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from homing.db.walking import Walk, walk_of
from homing.lanes.email_log.desk_conditions import (
    ORDERED,
    STATE,
    TABLE,
    in_order,
    is_in,
    other_conditions,
    states_of,
)
from homing.lanes.email_log.log import EmailLog
from homing.messages.dead import DeadByText
from homing.messages.model import LaneName, Verb, Wanted

FROM_STATES: Final[Mapping[Verb, tuple[str, ...]]] = {
    "requeue": ("Dead", "Failed", "Cancelled"),
    "cancel": ("Pending", "Failed"),
    "send_now": ("Pending", "Failed"),
}


class EmailDeadDesk(DeadByText):
    name: LaneName = "email_log"
    from_states = FROM_STATES
    _table, _status = TABLE, STATE

    def __init__(self, log: EmailLog) -> None:
        super().__init__(log.database, __package__ or "")
        self._log = log

    async def act(self, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        verbs = {"requeue": self._log.requeue, "cancel": self._log.cancel, "send_now": self._log.send_now}
        return await verbs[verb](numbers)

    def _id_of(self, number: int) -> str:
        return f"email_{number}"

    def _condition(self, state: str) -> str:
        return is_in(state)

    def _walk(self, wanted: Wanted, *, newest_first: bool) -> Walk | None:
        states, others = states_of(wanted), other_conditions(wanted, self._database.dialect)
        if not states or others is None:
            return None
        return walk_of(
            self._database, TABLE, states, others, column=self._status, in_order=self._in_order,
            unique=("o.id", "o.message_key"), newest_first=newest_first,
        )  # fmt: skip

    def _in_order(self, state: str) -> str | None:
        return in_order(self._database.dialect, state) if state in ORDERED else None
