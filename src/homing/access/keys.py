"""API keys: made, listed, revoked, and asked for with every request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from homing.access.audit import AuditLog, Entry, as_text
from homing.access.key_text import KeyHashes, id_of, is_id, make_key
from homing.access.memory import SEEN_GAP, LastSeen, Remembered
from homing.access.principal import Principal
from homing.access.scopes import chosen_scopes, with_included
from homing.db import Database, Row, load_queries
from homing.engine.model import Monotonic
from homing.errors import DatabaseError, InvalidRequest, NotAllowed, NotFound

_LONGEST_NAME = 100
_LONGEST_LIFE = 10 * 366 * 86400.0

_encode = msgspec.json.Encoder().encode

#: Why a key does not count. What it was is told only to who has the secret.
Denial = Literal["unknown", "expired", "revoked", "unsealed"]
_DENIALS: Mapping[str, Denial] = {"expired": "expired", "unsealed": "unsealed"}


class KeyOrder(Struct, frozen=True):
    """A key that somebody wants."""

    name: str
    scopes: Sequence[str]
    #: Seconds; None: it never ends.
    expires_in: float | None = None
    #: Requests; None: as the settings say.
    rate_per_second: float | None = None


class IssuedKey(Struct, frozen=True):
    """A row as it was written, and the key itself: to be shown now, and never again."""

    row: Row
    key: str

    def __repr__(self) -> str:
        return f"IssuedKey(id={self.row['id']!r})"


class _Known(Struct, frozen=True):
    hash: str
    state: str
    principal: Principal


class ApiKeys:
    def __init__(
        self,
        database: Database,
        audit: AuditLog,
        hashes: KeyHashes | None = None,
        *,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._database, self._audit = database, audit
        self._hashes = hashes or KeyHashes()
        self._queries = load_queries(__package__ or "", database.dialect)
        self._known: Remembered[_Known | None] = Remembered(self._load, monotonic=monotonic)
        self._uses = LastSeen(self._note_uses, monotonic)

    # ── with every request ───────────────────────────────────────────────────────────────────────

    async def authenticate(self, text: str, *, in_outage: float = 0.0) -> Principal | Denial:
        """Who it is, or why not. An unknown id takes as long as a wrong secret.

        While the database is away, what was known `in_outage` seconds ago counts.
        """
        id = id_of(text)
        if id is None:
            return "unknown"
        known = await self._known.get(id, in_outage=in_outage)
        matches = self._hashes.match(known.hash if known is not None else None, text)
        if known is None or not matches:
            return "unknown"
        if known.state != "valid":
            return _DENIALS.get(known.state, "revoked")
        self._uses.note(id)
        if not self._hashes.is_current(known.hash):
            await self._rehash(id, known.hash, text)
        return known.principal

    async def drained(self) -> None:
        await self._uses.drained()

    async def _load(self, ids: Sequence[str]) -> list[_Known | None]:
        rows = await self._run("load_keys", ids=_encode(sorted(set(ids))).decode())
        found = {row["id"]: _Known(row["hash"], self._state(row), _principal(row)) for row in rows}
        return [found.get(id) for id in ids]

    def _state(self, row: Row) -> str:
        state: str = row["state"]
        return state if state != "valid" or self._hashes.counts(row["hash"]) else "unsealed"

    async def _note_uses(self, ids: Sequence[str]) -> None:
        await self._run("note_uses", batch=_encode(sorted(set(ids))).decode(), gap=SEEN_GAP)

    async def _rehash(self, id: str, seen: str, text: str) -> None:
        """By the newest encryption key: then the older ones may go."""
        try:
            await self._run("rehash_key", id=id, seen=seen, hash=self._hashes.of(text))
        except DatabaseError:
            return
        self._known.forget(id)

    async def scopes_of(self, id: str) -> frozenset[str] | None:
        """What a key may do now, read anew; None: it does not count any more."""
        (known,) = await self._load([id])
        return known.principal.scopes if known is not None and known.state == "valid" else None

    # ── for people ───────────────────────────────────────────────────────────────────────────────

    async def create(self, order: KeyOrder, *, by: str, address: str | None = None) -> IssuedKey:
        scopes = chosen_scopes(order.scopes)
        _check(order, scopes)
        made = make_key()
        detail = {"name": order.name, "scopes": scopes}
        entry = Entry(by, "keys.create", made.id, address, detail)
        rows, _ = await self._run_audited(
            "create_key",
            entry,
            id=made.id,
            name=order.name,
            hash=self._hashes.of(made.text),
            scopes=_encode(scopes).decode(),
            rate_per_second=order.rate_per_second,
            created_by=by,
            expires_in=order.expires_in,
        )
        return IssuedKey(rows[0], made.text)

    async def list(self) -> Sequence[Row]:
        """Newest first, those that are revoked included."""
        rows = await self._run("list_keys")
        return [{**dict(row), "hash": None, "state": self._state(row)} for row in rows]

    async def seal(self, id: str, *, by: str) -> Row:
        """Let a key count that is from before there was an encryption key: somebody knows whose it is."""
        known = await self._existing(id)
        hash = self._hashes.sealed(known["hash"])
        if hash is None or self._state(known) != "unsealed":
            raise NotAllowed(
                f"the key {id} needs no seal: only one does that was made without HOMING_ENCRYPTION_KEY, "
                "where that is set now"
            )
        entry = Entry(by, "keys.seal", id, detail={"name": known["name"]})
        await self._run_audited("rehash_key", entry, id=id, seen=known["hash"], hash=hash)
        self._known.forget(id)
        return known

    async def revoke(self, id: str, *, by: str, address: str | None = None) -> Row:
        """Every process refuses it within seconds."""
        known = await self._existing(id)
        if known["state"] == "revoked":
            raise NotAllowed(f"the key {id} is revoked already")
        entry = Entry(by, "keys.revoke", id, address, {"name": known["name"]})
        rows, _ = await self._run_audited("revoke_key", entry, id=id, revoked_by=by)
        self._known.forget(id)
        return rows[0] if rows else known

    async def _existing(self, id: str) -> Row:
        known = await self._run("load_keys", ids=_encode([id]).decode()) if is_id(id) else ()
        if not known:
            raise NotFound(f"there is no key {id}; `homing keys list` shows those there are")
        return known[0]

    async def _run(self, query: str, /, **parameters: Any) -> Sequence[Row]:
        return await self._database.fetch(self._queries[query], parameters)

    async def _run_audited(self, query: str, entry: Entry, /, **parameters: Any) -> Sequence[Sequence[Row]]:
        queries = [self._queries[query], self._audit.statement]
        return await self._database.fetch_all(queries, {**parameters, "audit": as_text(entry)})


def _principal(row: Row) -> Principal:
    scopes = with_included(msgspec.json.decode(row["scopes"], type=list[str]))
    return Principal("key", row["id"], row["name"], scopes, rate_per_second=row["rate_per_second"])


def _check(order: KeyOrder, scopes: Sequence[str]) -> None:
    if not (order.name.strip() and order.name.isprintable() and len(order.name) <= _LONGEST_NAME):
        raise InvalidRequest(f"a key needs a name of 1 to {_LONGEST_NAME} characters, to know it by", "name")
    if not scopes:
        raise InvalidRequest("a key needs a scope, such as jobs:write", "scope")
    if order.expires_in is not None and not 60 <= order.expires_in <= _LONGEST_LIFE:
        raise InvalidRequest("a key expires after a minute to ten years", "expires")
    if order.rate_per_second is not None and not 0.01 <= order.rate_per_second <= 1_000_000:
        raise InvalidRequest("the rate of a key is from 0.01 to 1,000,000 requests a second", "rate")
