"""Whoever asks: a program with a key, a person who is logged in, or anybody on a loopback without keys."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from homing.access.scopes import EVERYTHING, KNOWN, ROLES
from homing.errors import Forbidden

Kind = Literal["key", "user", "loopback"]


class Principal(Struct, frozen=True):
    kind: Kind
    #: The id of a key, the name of a user.
    id: str
    name: str
    scopes: frozenset[str]
    role: str | None = None
    #: What a form of this session carries, so that no other site can have it sent.
    csrf: str = ""
    rate_per_second: float | None = None

    @property
    def who(self) -> str:
        """As the audit log names it."""
        return self.kind if self.kind == "loopback" else f"{self.kind}:{self.id}"

    def may(self, scope: str) -> bool:
        return scope == KNOWN or scope in self.scopes

    def require(self, scope: str) -> None:
        """Raise unless they may. A person is also told the name of a role, which is what an admin gives."""
        if self.may(scope):
            return
        roles = [role for role, scopes in ROLES.items() if scope in scopes]
        has_it = f"; the role {roles[0]} has it" if self.kind == "user" and roles else ""
        raise Forbidden(f"this needs the scope {scope}, which {self.who} does not have{has_it}")

    def __repr__(self) -> str:
        return f"<Principal {self.who}>"


#: Without any key or user, whoever reaches the loopback may do everything.
LOOPBACK = Principal("loopback", "loopback", "loopback", EVERYTHING)
