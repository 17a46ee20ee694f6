"""What the desk does with many mails of the outbox at once: dead letters by error, verbs by the thousand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from homing.db.walking import Walk, walk_of
from homing.lanes.mail_outbox.desk_conditions import ORDERED, TABLE, in_order, other_conditions, states_of
from homing.lanes.mail_outbox.outbox import MailOutbox
from homing.messages.dead import DeadByText
from homing.messages.model import LaneName, Verb, Wanted

FROM_STATES: Final[Mapping[Verb, tuple[str, ...]]] = {
    "requeue": ("failed", "cancelled", "expired"),
    "cancel": ("queued",),
    "send_now": ("queued",),
}


class MailDeadDesk(DeadByText):
    name: LaneName = "mail_outbox"
    from_states = FROM_STATES
    _table, _status = TABLE, "o.status"

    def __init__(self, outbox: MailOutbox) -> None:
        super().__init__(outbox.database, __package__ or "")
        self._outbox = outbox

    async def act(self, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        verbs = {
            "requeue": self._outbox.requeue,
            "cancel": self._outbox.cancel,
            "send_now": self._outbox.send_now,
        }
        return await verbs[verb](numbers)

    def _id_of(self, number: int) -> str:
        return f"outbox_{number}"

    def _walk(self, wanted: Wanted, *, newest_first: bool) -> Walk | None:
        states, others = states_of(wanted), other_conditions(wanted, self._database.dialect)
        if not states or others is None:
            return None
        return walk_of(
            self._database, TABLE, states, others, column=self._status, in_order=self._in_order,
            unique=("o.id", "o.idempotency_key"), newest_first=newest_first,
        )  # fmt: skip

    def _in_order(self, state: str) -> str | None:
        return in_order(self._database.dialect, state) if state in ORDERED else None
