"""Copies all jobs from one database to another, whichever they are, and proves that they are the same there.

Jobs go in the order of their ids, a batch at a time, with metadata, headers and attempts; credentials as they
are sealed; targets with their limits and pauses. How far it has come is kept in the target, so that it may be
stopped and begun again. A job that is there already is left as it is. One that a worker has claimed is copied
as due: whoever delivers from the target cannot know what became of that claim, so stop workers first.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from homing.db import Database, Row, connect, iso
from homing.db.migrate import Migration, check, load_migrations, migrate
from homing.errors import NotAllowed
from homing.lanes.dispatch_jobs.tsid import text_of

#: What every database has of each, beside the ids.
JOB = (
    "id", "external_id", "created_at", "updated_at", "source", "type", "group_id", "target_url", "protocol",
    "payload", "payload_content_type", "credentials_id", "status", "max_retries", "retry_strategy",
    "scheduled_for", "expires_at", "attempt_count", "last_attempt_at", "completed_at", "duration_millis",
    "last_error", "idempotency_key", "queue_url", "ordering", "timeout_seconds", "error_class", "fingerprint",
    "has_headers", "target", "next_attempt_at", "ready", "position", "queue_at", "queued", "send_number",
    "attempts_before", "dead_letter_sent", "claim_seq", "locked_by", "lease_expires_at", "rescue_count",
    "defer_count", "traceparent", "tracestate",
)  # fmt: skip
ATTEMPT = (
    "id", "attempt_number", "attempted_at", "completed_at", "duration_millis", "status", "response_code",
    "response_body", "error_message", "error_stack_trace", "error_class", "response_headers", "unknown",
    "created_at", "worker", "claim_seq",
)  # fmt: skip
CREDENTIALS = (
    "id", "bearer_token", "signing_secret", "algorithm", "created_at", "updated_at", "name", "signing_key",
    "fingerprint", "previous_bearer_token", "previous_signing_secret", "previous_signing_key",
    "previous_until", "allowed_targets",
)  # fmt: skip
TARGET = (
    "target", "max_concurrency", "rate_per_second", "tokens", "tokens_at", "paused_until", "pause_reason",
    "failures", "open_until", "cooldown", "last_error", "updated_at", "endpoint", "endpoint_until", "well_at",
)  # fmt: skip
_SET_BY_PEOPLE = ("target", "max_concurrency", "rate_per_second", "paused_until", "pause_reason")
_FLAGS = frozenset({"has_headers", "ready", "queued", "dead_letter_sent", "unknown"})
_NUMBERS = frozenset({"timeout_seconds", "rate_per_second", "tokens", "cooldown"})
_JSON = frozenset({"response_headers", "allowed_targets"})
_MOST_TOLD = 100

_encode = msgspec.json.Encoder(order="deterministic").encode


class Whole(Struct, frozen=True):
    """A job with all that belongs to it. Times are text with milliseconds, which every database keeps."""

    columns: Mapping[str, Any]
    #: Pairs: nothing forbids a table to hold a key twice.
    metadata: Sequence[tuple[str, str]]
    headers: Sequence[tuple[str, str]]
    attempts: Sequence[Mapping[str, Any]]

    @property
    def id(self) -> int:
        id: int = self.columns["id"]
        return id

    @property
    def digest(self) -> bytes:
        parts = (self.columns, sorted(self.metadata), sorted(self.headers), self.attempts)
        return hashlib.sha256(_encode(parts)).digest()


class Side(Protocol):
    """A database, as far as a copy needs it."""

    async def prepare(self) -> None:
        """Make the place where the cursor is kept."""

    async def cursor(self, source: str) -> int | None:
        """The last id that was copied from there; None when nothing ever was."""

    async def count(self) -> int: ...

    async def jobs(self, after: int, limit: int, upto: int | None = None) -> list[Whole]:
        """In the order of ids, behind one and up to another."""

    async def put_jobs(self, jobs: Sequence[Whole], source: str) -> None:
        """Those that are not there, and the cursor."""

    async def put_late_jobs(self, jobs: Sequence[Whole]) -> None:
        """Those that are not there; the cursor stays where it is."""

    async def credentials(self, after: int, limit: int) -> list[Mapping[str, Any]]: ...

    async def put_credentials(self, rows: Sequence[Mapping[str, Any]]) -> None: ...

    async def targets(self, after: str, limit: int) -> list[Mapping[str, Any]]: ...

    async def put_targets(self, rows: Sequence[Mapping[str, Any]]) -> None: ...

    async def finish(self) -> None:
        """Let ids and places in groups go on behind those that came."""


class Progress(Struct, frozen=True):
    step: str
    done: int
    total: int


class Difference(Struct, frozen=True):
    kind: str
    id: str
    what: str


class Copied(Struct, frozen=True, rename="camel"):
    jobs: int
    credentials: int
    targets: int
    #: Ranges of ids whose checksums were compared.
    ranges: int
    differing: int
    #: The first hundred.
    differences: list[Difference]


def open_side(database: Database) -> Side:
    if database.dialect == "mongodb":
        from homing.lanes.dispatch_jobs.copying_mongo import MongoSide  # noqa: PLC0415 - its driver is an extra

        return MongoSide(database)
    from homing.lanes.dispatch_jobs.copying_sql import SqlSide  # noqa: PLC0415 - it needs this module's names

    return SqlSide(database)


@asynccontextmanager
async def opened_copy(
    source: str, target: str, *, batch: int = 200, merge: bool = False
) -> AsyncIterator[Copy]:
    """From one URL to the other. The target's tables are made where they are missing."""
    async with _opened(source, makes_file=False) as here, _opened(target, makes_file=True) as there:
        (await check(here, _migrations(here))).require_none()
        await migrate(there, _migrations(there))
        name = source.partition("://")[2].rpartition("@")[2].partition("?")[0]
        yield Copy(open_side(here), open_side(there), name=name, batch=batch, merge=merge)


@asynccontextmanager
async def _opened(url: str, *, makes_file: bool) -> AsyncIterator[Database]:
    database = connect(url, makes_file=makes_file)
    try:
        yield database
    finally:
        await database.close()


def _migrations(database: Database) -> list[Migration]:
    return load_migrations([__package__ or ""], database.dialect)


class Copy:
    """Run it by `async for progress in copy`; then `copied` says what came of it."""

    def __init__(
        self, source: Side, target: Side, *, name: str, batch: int = 200, merge: bool = False
    ) -> None:
        self._source = source
        self._target = target
        self._name = hashlib.sha256(name.encode()).hexdigest()[:16]
        self._batch = batch
        self._merge = merge
        self._counts = {"jobs": 0, "credentials": 0, "targets": 0}
        self._ranges = 0
        self._differing = 0
        self._differences: list[Difference] = []

    @property
    def copied(self) -> Copied:
        return Copied(
            **self._counts, ranges=self._ranges, differing=self._differing, differences=self._differences
        )

    async def __aiter__(self) -> AsyncIterator[Progress]:
        await self._target.prepare()
        after = await self._begin()
        async for progress in self._credentials():
            yield progress
        async for progress in self._targets():
            yield progress
        async for progress in self._jobs(after):
            yield progress
        await self._target.finish()
        async for progress in self._compare():
            yield progress

    async def _begin(self) -> int:
        after = await self._target.cursor(self._name)
        if after is None and not self._merge and (others := await self._target.count()):
            raise NotAllowed(
                f"the target has {others:,} jobs that did not come from there; copy into an empty database, "
                "or add to them with --merge"
            )
        return after or 0

    # ── copying ──────────────────────────────────────────────────────────────────────────────────

    async def _credentials(self) -> AsyncIterator[Progress]:
        after = -1
        while rows := await self._source.credentials(after, self._batch):
            await self._target.put_credentials(rows)
            after = rows[-1]["id"]
            self._counts["credentials"] += len(rows)
            yield Progress("credentials", self._counts["credentials"], 0)

    async def _targets(self) -> AsyncIterator[Progress]:
        after = ""
        while rows := await self._source.targets(after, self._batch):
            await self._target.put_targets(rows)
            after = rows[-1]["target"]
            self._counts["targets"] += len(rows)
            yield Progress("targets", self._counts["targets"], 0)

    async def _jobs(self, after: int) -> AsyncIterator[Progress]:
        total = await self._source.count()
        while jobs := await self._source.jobs(after, self._batch):
            await self._target.put_jobs([as_due(job) for job in jobs], self._name)
            after = jobs[-1].id
            self._counts["jobs"] += len(jobs)
            yield Progress("jobs", self._counts["jobs"], total)

    # ── comparing ────────────────────────────────────────────────────────────────────────────────

    async def _compare(self) -> AsyncIterator[Progress]:
        """All of both sides are read again: what counts is what is there."""
        total, seen, after = await self._source.count(), 0, 0
        while jobs := await self._source.jobs(after, self._batch):
            upto = jobs[-1].id
            there = await self._target.jobs(after, 0, upto)
            known = {job.id for job in there}
            # What came into the source behind the cursor, with an older id, is copied now.
            if late := [as_due(job) for job in jobs if job.id not in known]:
                await self._target.put_late_jobs(late)
                self._counts["jobs"] += len(late)
                there = await self._target.jobs(after, 0, upto)
            self._compare_range([as_due(job) for job in jobs], [as_due(job) for job in there])
            after, seen = upto, seen + len(jobs)
            yield Progress("compare", seen, total)
        await self._compare_credentials()
        await self._compare_targets()

    def _compare_range(self, here: Sequence[Whole], there: Sequence[Whole]) -> None:
        self._ranges += 1
        ours = {job.id: job for job in here}
        theirs = {job.id: job for job in there if not self._merge or job.id in ours}
        if _checksum(ours.values()) == _checksum(theirs.values()):
            return
        for id in sorted(ours.keys() | theirs.keys()):
            if what := _difference(ours.get(id), theirs.get(id)):
                self._differs("job", text_of(id), what)

    async def _compare_credentials(self) -> None:
        after = -1
        while rows := await self._source.credentials(after, self._batch):
            there = {row["id"]: row for row in await self._target.credentials(after, self._batch)}
            for row in rows:
                if there.get(row["id"]) != row:
                    self._differs("credentials", text_of(row["id"]), "missing or not the same in the target")
            after = rows[-1]["id"]

    async def _compare_targets(self) -> None:
        """What people have set; what attempts say of them changes by itself."""
        after = ""
        while rows := await self._source.targets(after, self._batch):
            there = {row["target"]: row for row in await self._target.targets(after, self._batch)}
            for row in rows:
                other = there.get(row["target"], {})
                if parts := [name for name in _SET_BY_PEOPLE if row[name] != other.get(name)]:
                    self._differs("target", row["target"], f"differs in {', '.join(parts)}")
            after = rows[-1]["target"]

    def _differs(self, kind: str, id: str, what: str) -> None:
        self._differing += 1
        if len(self._differences) < _MOST_TOLD:
            self._differences.append(Difference(kind, id, what))


def _checksum(jobs: Any) -> bytes:
    return hashlib.sha256(b"".join(job.digest for job in jobs)).digest()


def _difference(here: Whole | None, there: Whole | None) -> str | None:
    """Where they differ, never with what: payloads and addresses stay where they are."""
    if here is None or there is None:
        return "only in the target" if here is None else "missing in the target"
    parts = [name for name in JOB if here.columns[name] != there.columns[name]]
    for name in ("metadata", "headers"):
        parts += [name] if sorted(getattr(here, name)) != sorted(getattr(there, name)) else []
    parts += ["attempts"] if here.attempts != there.attempts else []
    return f"differs in {', '.join(parts)}" if parts else None


def as_due(job: Whole) -> Whole:
    """A job that somebody has claimed is what it was before."""
    if job.columns["status"] != "IN_PROGRESS":
        return job
    fresh = job.columns["attempt_count"] == job.columns["attempts_before"]
    free = {"status": "PENDING" if fresh else "FAILED", "locked_by": None, "lease_expires_at": None}
    return msgspec.structs.replace(job, columns={**job.columns, **free})


# ── how values are written, whichever database they come from ────────────────────────────────────


def plain(row: Row | Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: _plain(name, row[name]) for name in names}


def _plain(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name.endswith(("_at", "_until", "_for")) or isinstance(value, datetime):
        return iso(value)
    if name in _FLAGS:
        return bool(value)
    if name in _JSON:
        return msgspec.json.decode(value) if isinstance(value, str) else value
    return float(value) if name in _NUMBERS else value
