"""Logging in: a name, a password, and ever longer waits for who keeps guessing.

Failures are counted by address and by name, in the database: a second process, or a thousand requests at
once, make guessing no faster. Who is refused costs a look and writes nothing, and is not counted against the
owner of the name. Hashes take time, so only a few may be in line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
#: Two hashes are computed at a time, each in a third of a second.
_MOST_IN_LINE = 8
_MOST_OF_ADDRESS = 3


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


class LoginsBusy(Struct, frozen=True):
    """So many are being looked at that this one would wait for seconds; it is not counted."""

    retry_after: float = 1.0


class _Line:
    """Who waits for a hash in this process: never more than can be served in about a second."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()

    def has_room(self, address: str, failures: int) -> bool:
        """An address that failed lately finds half of the places: the others are for who has not."""
        most = _MOST_IN_LINE // 2 if failures else _MOST_IN_LINE
        return self._waiting.total() < most and self._waiting[address] < _MOST_OF_ADDRESS

    @contextmanager
    def place(self, address: str) -> Iterator[None]:
        self._waiting[address] += 1
        try:
            yield
        finally:
            self._waiting -= Counter((address,))


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
        self._line = _Line()

    async def __call__(
        self, name: str, password: str, address: str | None, before: str | None = None
    ) -> LoggedIn | WrongLogin | TooManyLogins | LoginsBusy:
        """`before` is the cookie that the browser had: a login never goes on with an older session."""
        subjects = {"address_subject": _of_address(address), "name_subject": _of_name(name)}
        known = await self._known(subjects)
        if wait := max(row["seconds"] for row in known.values()):
            return TooManyLogins(max(1.0, wait))
        place = subjects["address_subject"]
        if not self._line.has_room(place, known[place]["failures"]):
            return LoginsBusy()
        with self._line.place(place):
            return await self._try(name, password, address, before, subjects)

    async def _known(self, subjects: Mapping[str, str]) -> Mapping[str, Row]:
        """Only looked at: who is refused by it writes nothing, however often they come."""
        nothing: Row = {"failures": 0, "seconds": 0.0}
        given = {**subjects, "forgotten_after": _FORGOTTEN_AFTER}
        rows = await self._database.fetch(self._queries["login_failures"], given)
        return {**dict.fromkeys(subjects.values(), nothing), **{row["subject"]: row for row in rows}}

    async def _try(
        self, name: str, password: str, address: str | None, before: str | None, subjects: Mapping[str, str]
    ) -> LoggedIn | WrongLogin | TooManyLogins:
        # By address first: who is refused there is not counted against the owner of the name.
        for subject, patience in zip(subjects.values(), (_OF_ADDRESS, _OF_NAME), strict=True):
            if wait := await self._wait(subject, patience):
                return TooManyLogins(wait)
        row = await self._users.find(name)
        if not await self._passwords.match(row["password"] if row is not None else None, password):
            await self._audit.write(_failure(row, address))
            return WrongLogin()
        return await self._open(name, address, before, subjects)

    async def forget_old(self) -> None:
        """Failures, with the addresses that they came from, and sessions that have ended."""
        given = {"forgotten_after": _FORGOTTEN_AFTER, **msgspec.structs.asdict(self._sessions.terms)}
        steps = [self._queries["forget_old_failures"], self._queries["forget_old_sessions"]]
        await self._database.fetch_all(steps, given)

    async def _wait(self, subject: str, patience: _Patience) -> float:
        """Count an attempt; how long to wait, where it is not allowed."""
        given = {"subject": subject, "forgotten_after": _FORGOTTEN_AFTER, **msgspec.structs.asdict(patience)}
        if await self._database.fetch(self._queries["try_login"], given):
            return 0.0
        rows = await self._database.fetch(self._queries["login_wait"], {"subject": subject})
        return max(1.0, float(rows[0]["seconds"]))

    async def _open(
        self, name: str, address: str | None, before: str | None, subjects: Mapping[str, str]
    ) -> LoggedIn:
        token = new_token()
        given: dict[str, Any] = {
            **subjects,
            "name": name,
            "audit": as_text(Entry(f"user:{name}", "session.open", address=address)),
        }
        steps = ["forgive_address", "forgive_name", "note_login"]
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
        return "address:unknown"
    if isinstance(known, IPv6Address):
        return f"address:{ip_network((known, 64), strict=False)}"
    return f"address:{known}"
