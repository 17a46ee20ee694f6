"""The credentials: what the API and the command line do with them, and what a worker reads of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from homing.db import Database, Row, load_queries
from homing.errors import Conflict, NotAllowed, NotFound
from homing.lanes.dispatch_jobs.credentials.cache import Cache
from homing.lanes.dispatch_jobs.credentials.orders import (
    Change,
    CreateCredentials,
    RotateCredentials,
    creation_of,
    rotation_of,
    targets_of,
)
from homing.lanes.dispatch_jobs.credentials.signing import (
    CURRENT,
    SEALED,
    Opened,
    Secrets,
    UnreadableSecrets,
    fingerprint_of,
    opened_column,
    opened_columns,
    plain_columns,
    refused_of,
    sealed_columns,
    secrets_of,
)
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.senders.egress import origin_of
from homing.signatures import DEFAULT_HEADER_PREFIX, MalformedKey, public_key_of
from homing.vault import Unreadable, Vault

#: Seconds. A change made elsewhere is to be seen within 5.
_KEPT = 3.0
_KEPT_MISSING = 1.0
_MOST_KEPT = 10_000
_ROTATE_TRIES = 5

_encode = msgspec.json.Encoder().encode


class Issued(Struct, frozen=True):
    """A row as it was written, and what was made for it: to be shown now, and never again."""

    row: Row
    made: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Issued(id={self.row['id']}, made={list(self.made)})"


class NotListed(Struct, frozen=True):
    """They are there, and not for this origin."""

    origin: str


class Rewrapped(Struct, frozen=True, rename="camel"):
    """How far a rewrap has come."""

    total: int
    seen: int = 0
    #: Sealed anew by the newest key.
    resealed: int = 0
    #: No key opens them; left as they are.
    unreadable: int = 0
    #: Changed by somebody else at that moment; a second run takes care of them.
    missed: int = 0


#: Is told of origins that somebody has added by using credentials there.
OnAdded = Callable[[int, Collection[str]], None]


def untold(_id: int, _origins: Collection[str]) -> None: ...


class Credentials:
    def __init__(
        self,
        database: Database,
        vault: Vault,
        *,
        header_prefix: str = DEFAULT_HEADER_PREFIX,
        keeps: float = _KEPT,
        clock: Callable[[], float] = time.monotonic,
        on_added: OnAdded = untold,
    ) -> None:
        self._database = database
        self._on_added = on_added
        self._vault = vault
        self._header_prefix = header_prefix
        self._queries = load_queries(__package__ or "", database.dialect)
        self._cache: Cache[Secrets | UnreadableSecrets] = Cache(
            self._load, keeps=keeps, keeps_missing=_KEPT_MISSING, size=_MOST_KEPT, clock=clock
        )

    # ── for workers ──────────────────────────────────────────────────────────────────────────────

    async def get(self, id: int) -> Secrets | UnreadableSecrets | None:
        """The secrets of a row, from memory for some seconds; None when there is no such row."""
        return await self._cache.get(id)

    async def for_url(self, id: int, url: str) -> Secrets | UnreadableSecrets | NotListed | None:
        """The secrets for an attempt at a URL, unless they are for others."""
        found, origin = await self.get(id), origin_of(url) or ""
        if found is not None and refused_of(found.allowed, [origin]):
            # Whoever has added it did so before the job was there, and what we remember may be older.
            self._cache.forget(id)
            found = await self.get(id)
        if found is not None and refused_of(found.allowed, [origin]):
            return NotListed(origin or "this URL")
        return found

    # ── for producers ────────────────────────────────────────────────────────────────────────────

    async def admit(self, id: int, origins: Collection[str], *, adds: bool) -> frozenset[str] | None:
        """Those of the origins that a caller may not use them for; None where there are no such credentials.

        Who administers credentials `adds` what is not listed. Where nobody has said what is allowed, nothing
        is added: another program may use them by SQL, and would be stopped by the first entry.
        """
        if (found := await self.get(id)) is None or _admits(found, origins, adds=adds):
            return None if found is None else frozenset()
        self._cache.forget(id)
        if (found := await self.get(id)) is None or _admits(found, origins, adds=adds):
            return None if found is None else frozenset()
        if found.allowed is None:
            return frozenset(origins)
        missing = refused_of(found.allowed, origins)
        if not adds:
            return missing
        await self.allow(id, [*filter(None, found.allowed), *missing])
        self._on_added(id, missing)
        return frozenset()

    async def _load(self, ids: Sequence[int]) -> list[Secrets | UnreadableSecrets | None]:
        rows = await self._run("load", ids=_encode(sorted(set(ids))).decode())
        found = {row["id"]: secrets_of(row, self._vault, self._header_prefix) for row in rows}
        return [found.get(id) for id in ids]

    # ── for people ───────────────────────────────────────────────────────────────────────────────

    async def create(self, request: CreateCredentials) -> Issued:
        change, targets = creation_of(request), targets_of(request.allowed_targets)
        id = (await self._run("draw_id"))[0]["id"]
        rows = await self._run(
            "insert",
            id=id,
            **sealed_columns(id, change.columns, self._vault),
            algorithm=request.algorithm,
            name=request.name,
            fingerprint=fingerprint_of(change.columns["signing_secret"]),
            allowed_targets=_encode(targets).decode(),
        )
        # Somebody may have asked for it before it was there.
        self._cache.forget(id)
        return Issued(rows[0], _made(change))

    async def allow(self, id: int, targets: Iterable[str]) -> Row:
        """Let them be used for these origins too; raises `NotFound`, and `NotAllowed` while unlimited."""
        return await self._set_targets("allow_targets", id, targets)

    async def allow_only(self, id: int, targets: Iterable[str]) -> Row:
        """Let them be used for these origins and no others; raises `NotFound`."""
        return await self._set_targets("replace_targets", id, targets)

    async def _set_targets(self, query: str, id: int, targets: Iterable[str]) -> Row:
        rows = await self._run(query, id=id, targets=_encode(targets_of(targets)).decode())
        self._cache.forget(id)
        if rows:
            return rows[0]
        await self.describe(id)
        raise NotAllowed(
            f"nobody has limited the credentials {text_of(id)} yet, so there is nothing to add to; "
            "set the whole list"
        )

    async def describe(self, id: int) -> Row:
        """Without the secrets; raises `NotFound`."""
        rows = await self._run("describe", id=id)
        if not rows:
            raise NotFound(f"there are no credentials {text_of(id)}")
        return rows[0]

    async def page(self, *, before: int | None = None, limit: int = 20) -> Sequence[Row]:
        """Newest first; `before` is the id that the last page ended with."""
        return await self._run("page", before=before, limit=limit)

    async def uses(self, ids: Sequence[int]) -> Mapping[int, int]:
        """How many open jobs use them; a thousand are counted, no more."""
        rows = await self._run("uses", ids=_encode(ids).decode()) if ids else []
        return {row["id"]: row["jobs"] for row in rows}

    async def end_grace(self, id: int) -> Row:
        """From now on only the new secrets count; raises `NotAllowed` where there are no others."""
        rows = await self._run("end_grace", id=id)
        self._cache.forget(id)
        if rows:
            return rows[0]
        await self.describe(id)
        raise NotAllowed(f"the credentials {text_of(id)} have no previous secrets any more")

    async def delete(self, id: int, *, force: bool = False) -> None:
        """Raises `NotAllowed` while open jobs use them, unless forced; their attempts fail from then on."""
        deleted = await self._run("delete", id=id, force=force)
        self._cache.forget(id)
        if not deleted:
            await self.describe(id)
            raise NotAllowed(
                f"open jobs use the credentials {text_of(id)}; wait for them, cancel them, or use force"
            )

    async def rotate(self, id: int, request: RotateCredentials) -> Issued:
        """Put new secrets in place of the old ones, which count on for the grace time."""
        for _ in range(_ROTATE_TRIES):
            issued = await self._try_rotate(id, request)
            self._cache.forget(id)
            if issued is not None:
                return issued
        raise Conflict(f"the credentials {text_of(id)} are being changed by others; nothing was written")

    async def _try_rotate(self, id: int, request: RotateCredentials) -> Issued | None:
        rows = await self._run("load", ids=_encode([id]).decode())
        if not rows:
            raise NotFound(f"there are no credentials {text_of(id)}")
        held = self._held(rows[0], request)
        change = rotation_of(request, held)
        columns = _rotated(held, change, keeps=request.grace_seconds > 0)
        # What does not change stays as it stands: only a rewrap seals what another program wrote.
        untouched = {c: text for c, text in plain_columns(rows[0]).items() if columns[c] == text}
        written = await self._run(
            "rotate",
            id=id,
            **{**sealed_columns(id, columns, self._vault), **untouched},
            fingerprint=fingerprint_of(columns["signing_secret"]),
            grace_seconds=float(request.grace_seconds),
            keeps_previous=any(columns[f"previous_{column}"] for column in CURRENT),
            extends_previous=any(columns[f"previous_{c}"] for c in CURRENT if c not in change.columns),
            **{f"seen_{column}": rows[0][column] for column in CURRENT},
        )
        return Issued(written[0], _made(change)) if written else None

    def _held(self, row: Row, request: RotateCredentials) -> Opened:
        try:
            return opened_columns(row, self._vault)
        except Unreadable as error:
            if request.grace_seconds > 0:
                raise NotAllowed(
                    f"the present secrets cannot be read ({error}), so they cannot count on: "
                    "rotate with graceSeconds 0, and give or generate every secret that is needed"
                ) from None
            return dict.fromkeys(SEALED)

    def public_key(self, row: Row) -> str | None:
        """What receivers of `v1a` signatures verify with, where there is a signing key that can be read."""
        try:
            key = opened_column(row, "signing_key", self._vault)
            return public_key_of(key) if key else None
        except (Unreadable, MalformedKey):
            return None

    # ── a new encryption key ─────────────────────────────────────────────────────────────────────

    async def rewrap(self, batch: int = 200) -> AsyncIterator[Rewrapped]:
        """Seal by the newest key what another one has sealed, and what is plain text; tells how far it is.

        It may be stopped at any time and begun again: what is done shows in the rows themselves.
        """
        progress = Rewrapped((await self._run("count"))[0]["count"])
        after = -1
        while rows := await self._run("sealed_after", after=after, limit=batch):
            after = rows[-1]["id"]
            progress = await self._rewrap(rows, progress)
            yield progress

    async def _rewrap(self, rows: Sequence[Row], progress: Rewrapped) -> Rewrapped:
        resealed, unreadable = [], 0
        for row in rows:
            if all(row[column] is None or self._vault.is_current(row[column]) for column in SEALED):
                continue
            try:
                resealed.append(self._resealed(row))
            except Unreadable:
                unreadable += 1
        written = await self._run("reseal", batch=_encode(resealed).decode()) if resealed else []
        return Rewrapped(
            progress.total,
            progress.seen + len(rows),
            progress.resealed + len(written),
            progress.unreadable + unreadable,
            progress.missed + len(resealed) - len(written),
        )

    def _resealed(self, row: Row) -> dict[str, Any]:
        seen = {column: row[column] for column in SEALED}
        opened = opened_columns(row, self._vault)
        anew = sealed_columns(row["id"], opened, self._vault)
        fingerprint = fingerprint_of(opened["signing_secret"])
        return {"id": row["id"], **anew, "fingerprint": fingerprint, "seen": seen}

    async def _run(self, query: str, /, **parameters: Any) -> Sequence[Row]:
        return await self._database.fetch(self._queries[query], parameters)


def _admits(found: Secrets | UnreadableSecrets, origins: Collection[str], *, adds: bool) -> bool:
    return adds if found.allowed is None else not refused_of(found.allowed, origins)


def _made(change: Change) -> dict[str, str]:
    return {column: secret for column in change.made if (secret := change.columns[column])}


def _rotated(held: Opened, change: Change, *, keeps: bool) -> dict[str, str | None]:
    """All six columns: what changes leaves its old value as the previous one, the rest stays as it is."""
    columns = {**held, **change.columns}
    for column in change.columns:
        columns[f"previous_{column}"] = held[column] if keeps else None
    return columns
