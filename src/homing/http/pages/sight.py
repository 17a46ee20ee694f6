"""What somebody may see of the lanes: a page that is about all of them shows each their own."""

from __future__ import annotations

from homing.access.principal import Principal
from homing.desk.desk import Desk


def readable(desk: Desk, user: Principal) -> tuple[str, ...]:
    """The lanes whose messages they may read."""
    return tuple(name for name, lane in desk.lanes.items() if user.may(f"{lane.scope}:read"))
