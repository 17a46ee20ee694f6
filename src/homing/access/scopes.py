"""What can be allowed, and which of it a role has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Literal

from homing.errors import InvalidRequest

Role = Literal["viewer", "operator", "admin"]

#: Of a route that any valid key or login opens, whatever it may do besides.
KNOWN = "known"

#: Every scope, with what it opens.
SCOPES: Mapping[str, str] = {
    "mail:read": "look at mails of the outbox",
    "mail:write": "put mails into the outbox",
    "mail:operate": "requeue and cancel mails",
    "emails:read": "look at emails",
    "emails:write": "order emails",
    "emails:operate": "requeue emails",
    "jobs:read": "look at dispatch jobs, dead letters, statistics and targets",
    "jobs:write": "create dispatch jobs",
    "jobs:operate": "requeue and cancel jobs; pause, limit and test targets",
    "notifications:read": "look at notifications and subscriptions",
    "notifications:write": "report openings; make and change subscriptions",
    "notifications:operate": "requeue notifications; pause, resume and end subscriptions",
    "credentials:read": "look at credentials, without their secrets",
    "credentials:admin": "make, rotate and delete credentials, and say where they may be used",
    "router:read": "look at the queues and pools of the router",
    "router:admin": "change the queues and pools of the router",
    "workers:operate": "pause and resume workers and lanes; release what a lost worker holds",
    "internal:dispatch": "call POST /internal/dispatch",
    "alerts:operate": "silence alerts",
    "desk:read": "open the pages of the dashboard",
    "ops": "read metrics, alerts and the audit log",
    "access:admin": "make and revoke keys, add and change users: whoever has it can get everything else",
}

#: Who may change a thing may look at it.
_INCLUDED: Mapping[str, str] = {"credentials:admin": "credentials:read", "router:admin": "router:read"}

EVERYTHING = frozenset(SCOPES)
ROLES: Mapping[Role, frozenset[str]] = {
    "viewer": frozenset(scope for scope in SCOPES if scope.endswith(":read")),
    "operator": frozenset(scope for scope in SCOPES if scope.endswith((":read", ":operate"))) | {"ops"},
    "admin": EVERYTHING,
}


def chosen_scopes(named: Iterable[str]) -> tuple[str, ...]:
    """The scopes that somebody named: each by itself, those of an area (`jobs:*`), or all (`*`)."""
    chosen: set[str] = set()
    for name in named:
        matching = {scope for scope in SCOPES if _matches(name, scope)}
        if not matching:
            raise InvalidRequest(f"there is no scope {name!r}{_hint(name)}", "scope")
        chosen |= matching
    return tuple(sorted(chosen))


def _matches(name: str, scope: str) -> bool:
    return name in {"*", scope} or (name.endswith(":*") and scope.startswith(name[:-1]))


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, SCOPES, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(SCOPES)}"


def with_included(scopes: Iterable[str]) -> frozenset[str]:
    named = frozenset(scopes)
    return named | {_INCLUDED[scope] for scope in named if scope in _INCLUDED}
