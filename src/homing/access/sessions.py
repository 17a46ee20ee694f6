"""Who is logged in: a random cookie, of which the database has a hash, for so long as it is used."""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from homing.access.audit import AuditLog, Entry, as_text
from homing.access.memory import SEEN_GAP, LastSeen, Remembered
from homing.access.principal import Principal
from homing.access.scopes import ROLES
from homing.db import Database, Row, load_queries
from homing.engine.model import Monotonic

_TOKEN_BYTES = 32
_TOKEN_LENGTH = 43

_encode = msgspec.json.Encoder().encode


class SessionTerms(Struct, frozen=True):
    """In seconds: without use, and in all."""

    idle: float = 3600.0
    longest: float = 12 * 3600.0


class Sessions:
    def __init__(
        self,
        database: Database,
        audit: AuditLog,
        terms: SessionTerms | None = None,
        *,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._database, self._audit = database, audit
        self.terms = terms or SessionTerms()
        self._queries = load_queries(__package__ or "", database.dialect)
        self._known: Remembered[Row | None] = Remembered(self._load, monotonic=monotonic)
        self._seen = LastSeen(self._note_seen, monotonic)

    async def find(self, token: str) -> Principal | None:
        """Whose session it is, while it counts. It counts on because it is used."""
        principal = await self.look(token)
        if principal is not None:
            self._seen.note(hash_of(token))
        return principal

    async def look(self, token: str) -> Principal | None:
        """The same, by who only keeps a page open: that alone does not keep a session."""
        if len(token) != _TOKEN_LENGTH:
            return None
        row = await self._known.get(hash_of(token))
        if row is None:
            return None
        name, role = row["name"], row["role"]
        return Principal("user", name, name, ROLES[role], role=role, csrf=csrf_of(token))

    async def close(self, token: str, who: str, address: str | None) -> None:
        """Log out, everywhere at once or within seconds."""
        entry = Entry(who, "session.close", address=address)
        await self._run_all(["close_session"], entry, hash=hash_of(token))
        self._known.forget(hash_of(token))

    async def drained(self) -> None:
        await self._seen.drained()

    async def _load(self, hashes: Sequence[str]) -> list[Row | None]:
        given = {"hashes": _encode(sorted(set(hashes))).decode(), **msgspec.structs.asdict(self.terms)}
        rows = await self._database.fetch(self._queries["load_sessions"], given)
        found = {row["hash"]: row for row in rows}
        return [found.get(hash) for hash in hashes]

    async def _note_seen(self, hashes: Sequence[str]) -> None:
        given = {"batch": _encode(sorted(set(hashes))).decode(), "gap": SEEN_GAP}
        await self._database.fetch(self._queries["note_sessions"], given)

    async def _run_all(self, names: Sequence[str], entry: Entry, **parameters: Any) -> None:
        queries = [*(self._queries[name] for name in names), self._audit.statement]
        await self._database.fetch_all(queries, {**parameters, "audit": as_text(entry)})


def new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


def hash_of(token: str) -> str:
    return sha256(b"homing session\0" + token.encode("utf-8", "replace")).hexdigest()


def csrf_of(token: str) -> str:
    """Follows from the cookie, which no other site can read; so nothing more is kept."""
    mac = hmac.digest(token.encode(), b"homing csrf", sha256)
    return urlsafe_b64encode(mac).decode().rstrip("=")
