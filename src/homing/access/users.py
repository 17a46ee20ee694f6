"""People: added, listed, changed, removed. Whatever changes in what somebody may do ends their sessions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from homing.access.audit import AuditLog, Entry, as_text
from homing.access.passwords import Passwords
from homing.access.scopes import ROLES, Role
from homing.db import Database, Row, load_queries
from homing.errors import InvalidRequest, NotAllowed, NotFound

_NAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,99}")


class Users:
    def __init__(self, database: Database, audit: AuditLog, passwords: Passwords) -> None:
        self._database, self._audit, self._passwords = database, audit, passwords
        self._queries = load_queries(__package__ or "", database.dialect)

    async def add(self, name: str, password: str, role: Role, *, by: str, address: str | None = None) -> Row:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                "a user's name is made of small letters, digits and . _ @ -, and begins with a letter "
                "or a digit",
                "name",
            )
        if role not in ROLES:
            raise InvalidRequest(f"a role is one of {', '.join(ROLES)}", "role")
        if await self.find(name) is not None:
            raise NotAllowed(f"there is a user {name} already; `homing users passwd {name}` changes it")
        hashed = await self._passwords.hash(password)
        entry = Entry(by, "users.add", name, address, {"role": role})
        (rows, _) = await self._run_audited(
            ["add_user"], entry, name=name, password=hashed, role=role, created_by=by
        )
        if not rows:
            raise NotAllowed(f"somebody has added {name} just now")
        return rows[0]

    async def find(self, name: str) -> Row | None:
        """None of a name that nobody has, or could have: PostgreSQL has no word for some of them."""
        if not _NAME.fullmatch(name):
            return None
        rows = await self._database.fetch(self._queries["load_user"], {"name": name})
        return rows[0] if rows else None

    async def scopes_of(self, name: str) -> frozenset[str] | None:
        """What somebody may do now; None: there is no such user any more."""
        row = await self.find(name)
        return ROLES[row["role"]] if row is not None else None

    async def list(self) -> Sequence[Row]:
        return await self._database.fetch(self._queries["list_users"], {})

    async def set_password(self, name: str, password: str, *, by: str, address: str | None = None) -> None:
        await self._existing(name)
        hashed = await self._passwords.hash(password)
        entry = Entry(by, "users.passwd", name, address)
        await self._run_audited(["set_password", "close_sessions_of"], entry, name=name, password=hashed)

    async def set_role(self, name: str, role: Role, *, by: str, address: str | None = None) -> None:
        before = await self._existing(name)
        entry = Entry(by, "users.role", name, address, {"role": role, "before": before["role"]})
        await self._run_audited(["set_role", "close_sessions_of"], entry, name=name, role=role)

    async def end_sessions(self, name: str, *, by: str, address: str | None = None) -> int:
        """How many there were; every process refuses them within seconds."""
        await self._existing(name)
        closed, _ = await self._run_audited(
            ["close_sessions_of"], Entry(by, "users.end_sessions", name, address), name=name
        )
        return len(closed)

    async def remove(self, name: str, *, by: str, address: str | None = None) -> None:
        await self._existing(name)
        await self._run_audited(
            ["remove_user", "close_sessions_of"], Entry(by, "users.remove", name, address), name=name
        )

    async def _existing(self, name: str) -> Row:
        row = await self.find(name)
        if row is None:
            raise NotFound(f"there is no user {name}; `homing users list` shows those there are")
        return row

    async def _run_audited(
        self, queries: Sequence[str], entry: Entry, **parameters: Any
    ) -> Sequence[Sequence[Row]]:
        """As one transaction: nothing is done without its entry, and nothing told that was not done."""
        statements = [*(self._queries[query] for query in queries), self._audit.statement]
        return await self._database.fetch_all(statements, {**parameters, "audit": as_text(entry)})
