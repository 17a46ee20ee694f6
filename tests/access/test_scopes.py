"""What can be allowed, and which of it a role has."""

from __future__ import annotations

import pytest

from homing.access.principal import LOOPBACK
from homing.access.scopes import ROLES, SCOPES, chosen_scopes, with_included
from homing.errors import InvalidRequest


def test_scopes_are_named_one_by_one_by_area_or_all() -> None:
    assert chosen_scopes(["jobs:write", "jobs:write", "ops"]) == ("jobs:write", "ops")
    assert chosen_scopes(["jobs:*"]) == ("jobs:operate", "jobs:read", "jobs:write")
    assert chosen_scopes(["*"]) == tuple(sorted(SCOPES))


@pytest.mark.parametrize("name", ["job:write", "", "nonsense:*", "jobs", "known", ":*"])
def test_what_is_no_scope_is_refused_with_a_hint(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"there is no scope .*; (did you mean|there are)"):
        chosen_scopes(["ops", name])


def test_each_role_has_more_than_the_one_before_and_a_viewer_changes_nothing() -> None:
    assert ROLES["viewer"] < ROLES["operator"] < ROLES["admin"] == frozenset(SCOPES)
    assert all(scope.endswith(":read") for scope in ROLES["viewer"])
    assert {"mail:operate", "jobs:operate", "ops"} <= ROLES["operator"]
    assert not ROLES["operator"] & {"credentials:admin", "router:admin", "jobs:write", "mail:write"}


def test_who_may_change_a_thing_may_look_at_it() -> None:
    assert "credentials:read" in with_included(["credentials:admin"])
    assert with_included(["jobs:write"]) == {"jobs:write"}
    assert LOOPBACK.may("credentials:admin")
    assert LOOPBACK.who == "loopback"
