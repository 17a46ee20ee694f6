"""Logging in: a name, a password, and ever longer waits for who keeps guessing.

Failures are counted by name and by address, in the database: a second process, or a thousand requests at
once, make guessing no faster.
"""

from __future__ import annotations

from hashlib import sha256
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

import msgspec
from msgspec import Struct

from homing.access.audit import AuditLog, Entry, as_text
from homing.access.passwords import Passwords
from homing.access.sessions import Sessions, hash_of, new_token
from homing.access.users import Users
from homing.db import Database, Row, load_queries

#: Seconds after which a failure is forgotten.
_FORGOTTEN_AFTER = 86400.0


class _Patience(Struct, frozen=True):
    """So many failures cost nothing; then the wait begins with a second and doubles."""

    free: int
    longest_block: int


#: Whoever knows a name could keep its owner out, so that wait is the shorter one.
_OF_NAME = _Patience(free=5, longest_block=300)
#: Many may share an address.
_OF_ADDRESS = _Patience(free=20, longest_block=900)


class LoggedIn(Struct, frozen=True):
    name: str
    #: What the cookie holds.
    token: str

    def __repr__(self) -> str:
        return f"LoggedIn(name={self.name!r})"


class WrongLogin(Struct, frozen=True):
    """Name or password; which of them is nobody's business."""


class TooManyLogins(Struct, frozen=True):
    retry_after: float


class Logins:
    def __init__(
        self,
        database: Database,
        users: Users,
        sessions: Sessions,
        passwords: Passwords,
        audit: AuditLog,
    ) -> None:
        self._database, self._users, self._sessions = database, users, sessions
        self._passwords, self._audit = passwords, audit
        self._queries = load_queries(__package__ or "", database.dialect)

    async def __call__(
        self, name: str, password: str, address: str | None, before: str | None = None
    ) -> LoggedIn | WrongLogin | TooManyLogins:
        """`before` is the cookie that the browser had: a login never goes on with an older session."""
        subjects = {"name_subject": _of_name(name), "address_subject": _of_address(address)}
        for subject, patience in zip(subjects.values(), (_OF_NAME, _OF_ADDRESS), strict=True):
            if wait := await self._wait(subject, patience):
                return TooManyLogins(wait)
        row = await self._users.find(name)
        if not await self._passwords.match(row["password"] if row is not None else None, password):
            await self._audit.write(_failure(row, address))
            return WrongLogin()
        return await self._open(name, address, before, subjects)

    async def _wait(self, subject: str, patience: _Patience) -> float:
        """Count an attempt; how long to wait, where it is not allowed."""
        given = {"subject": subject, "forgotten_after": _FORGOTTEN_AFTER, **msgspec.structs.asdict(patience)}
        if await self._database.fetch(self._queries["try_login"], given):
            return 0.0
        rows = await self._database.fetch(self._queries["login_wait"], {"subject": subject})
        return max(1.0, float(rows[0]["seconds"]))

    async def _open(
        self, name: str, address: str | None, before: str | None, subjects: dict[str, str]
    ) -> LoggedIn:
        token = new_token()
        given: dict[str, Any] = {
            **subjects,
            **msgspec.structs.asdict(self._sessions.terms),
            "name": name,
            "forgotten_after": _FORGOTTEN_AFTER,
            "audit": as_text(Entry(f"user:{name}", "session.open", address=address)),
        }
        steps = [
            "forgive_address",
            "forgive_name",
            "forget_old_failures",
            "forget_old_sessions",
            "note_login",
        ]
        await self._database.fetch_all(
            [*(self._queries[step] for step in steps), self._queries["open_session"], self._audit.statement],
            {**given, "hash": hash_of(token)},
        )
        if before is not None:
            await self._database.fetch(self._queries["close_session"], {"hash": hash_of(before)})
        return LoggedIn(name, token)


def _failure(row: Row | None, address: str | None) -> Entry:
    """A name that nobody has may be a password in the wrong field: it is told nowhere."""
    who = f"user:{row['name']}" if row is not None else "unknown"
    return Entry(who, "session.open", address=address, outcome="refused")


def _of_name(name: str) -> str:
    return f"name:{sha256(name.encode('utf-8', 'replace')).hexdigest()[:32]}"


def _of_address(address: str | None) -> str:
    """Whoever has one IPv6 address has all of its network."""
    try:
        known = ip_address(address or "")
    except ValueError:
        return f"address:{(address or 'unknown')[:100]}"
    if isinstance(known, IPv6Address):
        return f"address:{ip_network((known, 64), strict=False)}"
    return f"address:{known}"
