"""What causes are called: `dead:mail_outbox:timeout`, `backlog:email_log`, `target:https://…`, `worker:…`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from homing.alerts.rules import Kind
from homing.errors import InvalidRequest
from homing.messages.model import LANES
from homing.senders.addresses import CONTROL

#: A test is none.
_KINDS: Final[tuple[Kind, ...]] = ("dead", "target", "backlog", "idle", "worker")
_OF_LANES: Final[frozenset[str]] = frozenset({"dead", "backlog", "idle"})
_LONGEST: Final = 1000
_LONGEST_TOLD: Final = 60


def lane_of(cause: str) -> str | None:
    """Whose messages it is about; workers and tests are of no lane."""
    kind, _, rest = cause.partition(":")
    if kind == "target":
        return "dispatch_jobs"
    return rest.partition(":")[0] if kind in _OF_LANES else None


def facts_in(cause: str) -> Mapping[str, str]:
    """What its name alone tells, for links."""
    kind, _, rest = cause.partition(":")
    return {"target": rest} if kind == "target" else {"lane": lane_of(cause) or ""}


def kind_of(cause: str) -> Kind:
    """Raises `InvalidRequest` for what is no name of a cause."""
    name = cause.partition(":")[0]
    if name not in _KINDS or len(cause) > _LONGEST or CONTROL.search(cause):
        raise _ill_named()
    return name


def require_possible(cause: str) -> None:
    """Raises `InvalidRequest` for what nothing will ever be called."""
    kind, _, rest = cause.partition(":")
    lane, _, word = rest.partition(":")
    if kind in _OF_LANES and lane not in LANES:
        told = f"there is no lane `{lane[:_LONGEST_TOLD]}`: it is one of {', '.join(LANES)}"
        raise InvalidRequest(f"cause: {told}", "cause")
    if not rest or (kind in _OF_LANES and bool(word) != (kind == "dead")):
        raise _ill_named()


def _ill_named() -> InvalidRequest:
    return InvalidRequest(
        "cause: write it as `homing alerts list` shows it, such as dead:mail_outbox:invalid_recipient",
        "cause",
    )
