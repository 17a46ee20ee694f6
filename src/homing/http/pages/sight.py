"""What somebody may see of the lanes: a page that is about all of them shows each their own."""

from __future__ import annotations

from homing.access.principal import Principal
from homing.desk.desk import Desk
from homing.messages.model import sees_whole


def readable(desk: Desk, user: Principal) -> tuple[str, ...]:
    """The lanes whose messages they may read."""
    return tuple(name for name, lane in desk.lanes.items() if user.may(f"{lane.scope}:read"))


def seen_whole(desk: Desk, user: Principal) -> tuple[str, ...]:
    """The lanes of whose messages they know the secrets, because they put them in or mend them."""
    return tuple(name for name, lane in desk.lanes.items() if sees_whole(user.may, lane.scope))
