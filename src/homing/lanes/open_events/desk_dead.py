"""What the desk does with many notifications at once: dead letters by error, verbs by the thousand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from homing.db import Row
from homing.db.patience import patiently
from homing.db.walking import Walk, walk_of
from homing.lanes.open_events.desk_conditions import ORDERED, TABLE, in_order, other_conditions, states_of
from homing.lanes.open_events.notifications import Notifications
from homing.messages.dead import DeadByText
from homing.messages.model import LaneName, Verb, Wanted

FROM_STATES: Final[Mapping[Verb, tuple[str, ...]]] = {
    "requeue": ("skipped", "failed", "expired"),
    "cancel": ("pending",),
    "send_now": ("pending",),
}
#: One statement must not hold another program's file locked for long.
_MOST_AT_ONCE = 500


class NotificationDeadDesk(DeadByText):
    name: LaneName = "open_events"
    from_states = FROM_STATES
    _table, _status = TABLE, "lower(o.fanout_status)"

    def __init__(self, rows: Notifications) -> None:
        super().__init__(rows.database, __package__ or "")
        self._rows = rows

    async def act(self, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        verbs = {"requeue": self._rows.requeue, "cancel": self._rows.cancel, "send_now": self._rows.send_now}
        changed: list[int] = []
        for start in range(0, len(numbers), _MOST_AT_ONCE):
            changed += await verbs[verb](numbers[start : start + _MOST_AT_ONCE])
        return changed

    async def _ask(self, name: str, **parameters: Any) -> Sequence[Row]:
        """Another program may hold its lock for a while; nobody is told."""
        return await patiently(lambda: super(NotificationDeadDesk, self)._ask(name, **parameters))

    def _id_of(self, number: int) -> str:
        return f"notification_{number}"

    def _words(self, text: str) -> str:
        """`error` is JSON with a message; of another program's text, all of it."""
        try:
            found = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return text
        message = found.get("message")
        return message if isinstance(message, str) and message else text

    def _walk(self, wanted: Wanted, *, newest_first: bool) -> Walk | None:
        states, others = states_of(wanted), other_conditions(wanted, self._database.dialect)
        if not states or others is None:
            return None
        return walk_of(
            self._database, TABLE, states, others, column=self._status, in_order=self._in_order,
            unique=("o.notification_id",), newest_first=newest_first,
        )  # fmt: skip

    def _in_order(self, state: str) -> str | None:
        return in_order(self._database.dialect, state) if state in ORDERED else None
