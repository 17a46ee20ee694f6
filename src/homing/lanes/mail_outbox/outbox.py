"""The rows of `mail_outbox`: the engine's store, and the verbs that people and programs use on it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.db import Database, Row, load_queries
from homing.db.attempts import Attempts, Untold
from homing.db.store import SqlStore, batches
from homing.db.tally import by_state
from homing.engine.model import Claim
from homing.lanes.mail_outbox.mail import Mail, NewMail, mail_of

CHANNEL = "homing_mail_outbox"
STATES = ("queued", "dispatching", "sent", "failed", "cancelled", "expired")

#: States that a small index serves; all others are read from the newest row backwards.
_PAGES = {
    "dispatching": "page_dispatching",
    **dict.fromkeys(("failed", "cancelled", "expired"), "page_ended"),
}

#: Whoever calls /internal/dispatch is told of a lock after so many seconds, as on PostgreSQL.
_LOCK_TIMEOUT = 2.0
_CLAIMING = ("preview", "claim")

#: Columns that may be large.
_BULKY = ("text_body", "html_body", "variables", "headers", "attachments", "metadata")
#: What a claim says of bodies below this is as good as weighed.
_AS_GOOD_AS_WEIGHED = 1_000_000

_encode = msgspec.json.Encoder().encode


class Ordered(Struct, frozen=True):
    """What became of an order."""

    verdict: Literal["created", "duplicate", "conflict"]
    id: int
    status: str


class MailOutbox(SqlStore[Mail]):
    def __init__(
        self,
        database: Database,
        transition: Any,
        *,
        owner: str,
        lease_seconds: float,
        max_attempts: int,
        untold: Untold | None = None,
    ) -> None:
        queries = load_queries(__package__ or "", database.dialect)
        impatient = {name: replace(queries[name], lock_timeout=_LOCK_TIMEOUT) for name in _CLAIMING}
        super().__init__(
            database,
            {**queries, **impatient},
            item=mail_of,
            size=attrgetter("size"),
            transition=transition,
            parameters={"owner": owner, "lease_seconds": lease_seconds, "max_attempts": max_attempts},
            kept_attempts=attempts_of_mails(database, untold),
        )

    # ── put in ───────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, mails: Sequence[NewMail], size: int = 0) -> list[Ordered]:
        """Put mails in, one statement for all but the large; a known key gives back the first mail.

        `size` is about that of all of them in bytes, where they may be large.
        """
        rows: list[Row] = []
        async for batch in batches(mails, _BULKY, size):
            rows += await self.run("enqueue", **batch)
        created = {row["token"]: Ordered("created", row["id"], row["status"]) for row in rows}
        repeated = await self._by_key(m for m in mails if m.token not in created)
        if created:
            self.database.announce(CHANNEL)
        return [created.get(m.token) or _repetition(m, repeated) for m in mails]

    async def _by_key(self, mails: Iterable[NewMail]) -> Mapping[str, Row]:
        keys = [mail.idempotency_key for mail in mails]
        if not keys:
            return {}
        rows = await self.run("by_idempotency_key", keys=_encode(keys).decode())
        return {row["idempotency_key"]: row for row in rows}

    # ── look ─────────────────────────────────────────────────────────────────────────────────────

    async def preview(self, limit: int) -> Sequence[Row]:
        """What a claim would take."""
        return await self.run("preview", limit=limit)

    async def due(self) -> int:
        """How many a claim could take, were it not limited."""
        rows = await self.run("due")
        return int(rows[0]["count"])

    async def by_ids(self, ids: Sequence[int]) -> Sequence[Row]:
        """Rows as `preview` has them, with their status, in no order."""
        return await self.run("by_ids", ids=_encode(ids).decode())

    async def get(self, id: int) -> Row | None:
        rows = await self.run("get", id=id)
        return rows[0] if rows else None

    async def page(
        self, *, status: str | None = None, before: int | None = None, limit: int = 20
    ) -> Sequence[Row]:
        """Newest first; `before` is the id that the last page ended with."""
        query = _PAGES.get(status or "", "page")
        return await self.run(query, status=status, before=before, limit=limit)

    async def weigh(self, claim: Claim[Mail]) -> int:
        """How many bytes a large one has. In the claim this would take as long as sending it."""
        if claim.size < _AS_GOOD_AS_WEIGHED and not claim.item.has_attachments:
            return claim.size
        rows = await self.run("weigh", id=claim.id)
        return rows[0]["size"] if rows else 0

    async def parts(self, id: int) -> Row | None:
        """Read apart from the claim, which would hold the files of hundreds of mails in memory."""
        rows = await self.run("parts", id=id)
        return rows[0] if rows else None

    async def counts(self) -> dict[str, int]:
        return by_state(await self.run("counts"), STATES, rest="sent")

    async def oldest_due(self, *, with_alerts: bool = True) -> float:
        """For how many seconds a mail has been due, at most; alerts are mails too."""
        rows = await self.run("oldest_due", with_alerts=with_alerts)
        return max(0.0, rows[0]["age"] or 0.0) if rows else 0.0

    # ── act ──────────────────────────────────────────────────────────────────────────────────────

    async def requeue(self, ids: Sequence[int]) -> list[int]:
        """Make ended mails due again, with all attempts; the ids that were."""
        requeued = [row["id"] for row in await self.run("requeue", ids=_encode(ids).decode())]
        if requeued:
            self.database.announce(CHANNEL)
        return requeued

    async def cancel(self, ids: Sequence[int]) -> list[int]:
        """Take mails out of the queue that nobody has claimed; the ids that were."""
        return [row["id"] for row in await self.run("cancel", ids=_encode(ids).decode())]

    async def send_now(self, ids: Sequence[int]) -> list[int]:
        """Make mails due at once that are queued for later; the ids of those that are queued."""
        queued = [row["id"] for row in await self.run("send_now", ids=_encode(ids).decode())]
        if queued:
            self.database.announce(CHANNEL)
        return queued

    async def ids_by_status(self, status: str, limit: int, after: int = 0) -> list[int]:
        """Some mails that are queued, failed, cancelled or expired; `after` is the last id seen."""
        query = "queued_ids" if status == "queued" else "ended_ids"
        return [row["id"] for row in await self.run(query, status=status, after=after, limit=limit)]


def _repetition(mail: NewMail, repeated: Mapping[str, Row]) -> Ordered:
    first = repeated[mail.idempotency_key or ""]
    same = first["fingerprint"] is None or first["fingerprint"] == mail.fingerprint
    return Ordered("duplicate" if same else "conflict", first["id"], first["status"])


def new_token() -> str:
    return secrets.token_hex(16)


def attempts_of_mails(database: Database, untold: Untold | None = None) -> Attempts:
    return Attempts(database, "mail_outbox", "mail_outbox", untold=untold)
