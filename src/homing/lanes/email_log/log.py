"""The rows of `email_log`: the sending stage's store, and the verbs that people and programs use on it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from homing.db import Database, Row, load_queries
from homing.db.attempts import Attempts, Untold
from homing.db.store import SqlStore, batches
from homing.db.tally import by_state
from homing.engine.model import Bury, Claim, Discard, Settlement
from homing.errors import Refused
from homing.lanes.email_log.email import (
    STATES,
    Dropped,
    Due,
    Email,
    Held,
    NewEmail,
    Ordered,
    Terms,
    email_of,
)
from homing.lanes.email_log.queues import Hint
from homing.telemetry import Telemetry

#: Announced when a scheduler may find something due.
CHANNEL = "homing_email_log"

_DONE = frozenset({"Sent", "Dead"})
#: A lock that is over is looked after by a rescue, which comes within seconds.
_SHORTEST_HOLD = 2.0

#: States that a small index serves; all others are read from the newest row backwards.
_OPEN = ("Failed", "Dead", "RetryQueued")

#: Columns that may be large.
_BULKY = ("body", "html_body", "variables", "headers", "attachments")
#: What a claim says of bodies below this is as good as weighed.
_AS_GOOD_AS_WEIGHED = 1_000_000

_encode = msgspec.json.Encoder().encode


async def oldest_due(database: Database) -> float:
    """For how many seconds the first has been due, whichever stage is to take it."""
    query = load_queries(__package__ or "", database.dialect)["oldest_due"]
    (row,) = await database.fetch(query, {})
    return max(0.0, row["age"] or 0.0)


class EmailLog(SqlStore[Email]):
    def __init__(
        self,
        database: Database,
        transition: Any,
        *,
        terms: Terms,
        telemetry: Telemetry,
    ) -> None:
        super().__init__(
            database,
            load_queries(__package__ or "", database.dialect),
            item=email_of,
            size=attrgetter("size"),
            transition=transition,
            parameters=msgspec.structs.asdict(terms),
            kept_attempts=attempts_of_emails(database, partial(telemetry.attempts_untold, "email_log:send")),
        )
        # On PostgreSQL one statement does both.
        self._settling = [name for name in ("settle", "complete_keys") if name in self._queries]
        self._owner = terms.owner
        self._telemetry = telemetry

    # ── the sending stage ────────────────────────────────────────────────────────────────────────

    async def claim(self, limit: int) -> list[Claim[Email]]:  # noqa: ARG002 - as every store is asked
        """Nothing: what is to be sent is named by a message, and nobody looks for it."""
        return []

    async def claim_these(self, hints: Sequence[Hint]) -> list[Claim[Email] | Dropped | Held]:
        """The rows that messages name, for one lease; or why one of them names nothing to send now."""
        wanted = [{"id": hint.EmailId, "key": hint.MessageKey, "again": hint.redelivered} for hint in hints]
        rows = await self.run("claim_these", batch=_encode(wanted).decode())
        claims = {claim.id: claim for claim in self._claims(rows)}
        found = [_taken(claims, hint) for hint in hints]
        missed = [hint.EmailId for hint, claim in zip(hints, found, strict=True) if claim is None]
        states = await self._states(missed)
        return [
            claim or _why_not(hint, states.get(hint.EmailId))
            for hint, claim in zip(hints, found, strict=True)
        ]

    async def _states(self, ids: Sequence[int]) -> Mapping[int, Row]:
        rows = await self.run("states", ids=_encode(ids).decode()) if ids else []
        return {row["id"]: row for row in rows}

    async def settle(self, batch: Sequence[tuple[Claim[Email], Settlement]]) -> set[int]:
        settled = await super().settle(batch)
        for claim, end in batch:
            if claim.id in settled and isinstance(end, Bury | Discard):
                self._telemetry.email_died(self._transition(claim, end)["dead_reason"])
        return settled

    async def release(self, claims: Sequence[Claim[Email]]) -> set[int]:
        released = await super().release(claims)
        if released:
            self.database.announce(CHANNEL)
        return released

    async def rescue(self, limit: int) -> int:
        rescued = len((await self.run_together(["rescue", "disown"], limit=limit))["rescue"])
        if rescued:
            self.database.announce(CHANNEL)
        return rescued

    async def sweep(self, limit: int) -> Mapping[str, int]:  # noqa: ARG002 - as every store is asked
        """Nothing: the scheduling stage ends what is beyond the limit."""
        return {}

    async def weigh(self, claim: Claim[Email]) -> int:
        """How many bytes a large one has. In the claim this would take as long as sending it."""
        if claim.size < _AS_GOOD_AS_WEIGHED and not claim.item.has_attachments:
            return claim.size
        rows = await self.run("weigh", id=claim.id)
        return rows[0]["size"] if rows else 0

    async def parts(self, id: int) -> Row | None:
        """Read apart from the claim, which would hold the files of hundreds of mails in memory."""
        rows = await self.run("parts", id=id)
        return rows[0] if rows else None

    # ── put in ───────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, emails: Sequence[NewEmail], *, publish: bool, size: int = 0) -> list[Ordered]:
        """Put emails in, one statement for all but the large; a known key gives back the first email.

        With `publish` each new row is claimed for publishing as it is written, and whoever asked publishes
        it. Else it is due for any scheduler. `size` is about that of all of them in bytes, where they may be
        large.
        """
        firsts = {email.message_key: email for email in reversed(emails)}
        written = await self._write_new(list(firsts.values()), self._owner if publish else None, size)
        created = {row["message_key"]: _created(row, claimed=publish) for row in written}
        if created and not publish:
            self.database.announce(CHANNEL)
        new = {firsts[key].token: ordered for key, ordered in created.items()}
        known = await self._repetitions([email for email in emails if email.token not in new])
        return [new.get(email.token) or known[email.token] for email in emails]

    async def _write_new(self, emails: Sequence[NewEmail], publisher: str | None, size: int) -> Sequence[Row]:
        written: list[Row] = []
        async for batch in batches(emails, _BULKY, size):
            written += await self._write_batch(batch, publisher)
        return written

    async def _write_batch(self, batch: Mapping[str, str | None], publisher: str | None) -> Sequence[Row]:
        steps = ["enqueue", "reserve_keys"] if "reserve_keys" in self._queries else ["enqueue"]
        write = partial(self.run_together, steps, **batch, publisher=publisher)
        try:
            results = await write()
        except Refused:
            # Another program wrote a row with such a key in that moment; now it can be seen.
            results = await write()
        return results["enqueue"]

    async def _repetitions(self, emails: Sequence[NewEmail]) -> dict[str, Ordered]:
        """By token: what is known of the keys that were there before, or twice in one batch."""
        if not emails:
            return {}
        keys = sorted({email.message_key for email in emails})
        rows = await self.run("by_message_key", keys=_encode(keys).decode())
        firsts = {row["message_key"]: row for row in rows}
        return {email.token: _repetition(email, firsts[email.message_key]) for email in emails}

    # ── look ─────────────────────────────────────────────────────────────────────────────────────

    async def get(self, id: int) -> Row | None:
        rows = await self.run("get", id=id)
        return rows[0] if rows else None

    async def id_of(self, message_key: str) -> int | None:
        rows = await self.run("by_message_key", keys=_encode([message_key]).decode())
        return rows[0]["id"] if rows else None

    async def page(
        self,
        *,
        status: str | None = None,
        reason: str | None = None,
        before: int | None = None,
        limit: int = 20,
    ) -> Sequence[Row]:
        """Newest first; `before` is the id that the last page ended with, `reason` is for Dead ones."""
        query = "page_open" if status in _OPEN else "page"
        return await self.run(query, status=status, reason=reason, before=before, limit=limit)

    async def dead_reasons(self) -> dict[str, int]:
        return {row["reason"] or "": row["count"] for row in await self.run("dead_reasons")}

    async def counts(self) -> dict[str, int]:
        """By state; what a person cancelled is Dead in the table, and told apart here."""
        counts = by_state(await self.run("counts"), STATES, rest="Sent")
        (row,) = await self.run("cancelled")
        cancelled = min(row["count"], counts["Dead"])
        return {**counts, "Dead": counts["Dead"] - cancelled, "Cancelled": cancelled}

    async def oldest_due(self) -> float:
        return await oldest_due(self.database)

    # ── act ──────────────────────────────────────────────────────────────────────────────────────

    async def requeue(self, ids: Sequence[int]) -> list[int]:
        """Make dead and failed emails due at once, with all attempts; the ids that were."""
        requeued = [row["id"] for row in await self.run("requeue", ids=_encode(ids).decode())]
        if requeued:
            self.database.announce(CHANNEL)
        return requeued

    async def cancel(self, ids: Sequence[int]) -> list[int]:
        """End emails that wait and that nobody holds as `Dead`, by the reason `Cancelled`; their ids."""
        return [row["id"] for row in await self.run("cancel", ids=_encode(ids).decode())]

    async def send_now(self, ids: Sequence[int]) -> list[int]:
        """Make emails due at once that wait for another attempt or to be queued; the ids that were."""
        due = [row["id"] for row in await self.run("send_now", ids=_encode(ids).decode())]
        if due:
            self.database.announce(CHANNEL)
        return due

    async def dead_ids(self, *, reason: str | None = None, after: int = 0, limit: int = 1000) -> list[int]:
        """Some of the dead in the order of their ids; `after` is the last id seen."""
        return [row["id"] for row in await self.run("dead_ids", reason=reason, after=after, limit=limit)]


def _taken(claims: dict[int, Claim[Email]], hint: Hint) -> Claim[Email] | None:
    """Of two messages that came together for one row, the first gets it; another key does not."""
    claim = claims.get(hint.EmailId)
    return (
        claims.pop(hint.EmailId) if claim is not None and claim.item.message_key == hint.MessageKey else None
    )


def _why_not(hint: Hint, row: Row | None) -> Dropped | Held:
    if row is None:
        return Dropped("there is no such email")
    if row["message_key"] != hint.MessageKey:
        return Dropped("the message key is another one")
    if row["status"] in _DONE or (row["status"] == "Failed" and row["held_for"] is None):
        return Dropped(f"it is {row['status']}")
    if hint.redelivered and row["held_for"] is not None:
        # Whoever had the message before may be sending, or dead; then it is the only message that there is.
        return Held(max(_SHORTEST_HOLD, row["held_for"]))
    return Dropped("another worker has it, or it is beyond the limit")


def _created(row: Row, *, claimed: bool) -> Ordered:
    due = Due(row["next_attempt_at"], row["message_key"])
    claim = Claim(row["id"], row["claim_seq"], 0, due, traceparent=row["traceparent"]) if claimed else None
    return Ordered("created", row["id"], row["message_key"], row["status"], claim)


def _repetition(email: NewEmail, first: Row) -> Ordered:
    same = first["fingerprint"] is None or first["fingerprint"] == email.fingerprint
    return Ordered("duplicate" if same else "conflict", first["id"], email.message_key, first["status"])


def new_token() -> str:
    return secrets.token_hex(16)


def attempts_of_emails(database: Database, untold: Untold | None = None) -> Attempts:
    return Attempts(database, "email_log", "email_log", untold=untold)
