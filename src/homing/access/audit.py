"""The audit log: what was done, by whom, from where, to what, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.db import Database, Query, Row, iso, load_queries
from homing.engine.coalesce import Batched
from homing.engine.model import Monotonic
from homing.errors import DatabaseError, InvalidRequest
from homing.telemetry import Telemetry

Outcome = Literal["done", "refused", "failed"]

#: Seconds over which calls that only put messages in are counted together.
COUNTED_OVER = 10.0
_LONGEST_OBJECT = 500
_LONGEST_DETAIL = 4000
_LAST = 2**63 - 1
#: Rows that one search looks through where no index knows what is asked for.
_WINDOW = 10_000
_MOST_ACTIONS = 200
#: What stands before a name in `who`.
_KINDS = ("user", "cli", "key")
_MOST_NAMED = 5
#: So many may be meant by the beginning of a name that may be a user's, a key's or another's.
_MOST_MEANT = 200
#: After the beginning of a name, or of an action.
_REST = "*"
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

_encode = msgspec.json.Encoder().encode


class Entry(Struct, frozen=True):
    who: str
    action: str
    object: str | None = None
    address: str | None = None
    #: Without secrets: whoever reads the log may see it.
    detail: Mapping[str, Any] | None = None
    outcome: Outcome = "done"


class AuditFilter(Struct, frozen=True):
    """Which entries; what is None is not asked for."""

    since: datetime | None = None
    #: Whole, or its beginning and `*`; and so of the action.
    who: str | None = None
    action: str | None = None
    outcome: Outcome | None = None
    object: str | None = None
    #: Any of these, instead of `who`.
    whos: tuple[str, ...] | None = None


class AuditFound(Struct, frozen=True):
    """Newest first."""

    rows: Sequence[Row]
    #: What to give as `before` to go on; None at the end.
    next: int | None
    #: How many entries were looked through when it was not all there is.
    looked_at: int | None = None


class AuditLog:
    """An entry is in the database when `write` returns; those that come together share a statement."""

    def __init__(
        self, database: Database, telemetry: Telemetry, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._database, self._telemetry, self._monotonic = database, telemetry, monotonic
        self._queries = load_queries(__package__ or "", database.dialect)
        self._insert: Batched[Entry, None] = Batched(self._insert_all)
        self._counted: dict[tuple[str, str, str | None, Outcome], int] = {}
        self._counting: asyncio.Task[None] | None = None

    # ── in ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def statement(self) -> Query:
        """For whoever writes an entry in the transaction of what it tells; takes `audit` (`as_text`)."""
        return self._queries["write_audit"]

    async def write(self, entry: Entry) -> None:
        """What was done is done: a log that cannot be written is itself logged, with the entry."""
        try:
            await self.insert(entry)
        except DatabaseError as error:
            self._report(entry, str(error))
        except Exception as bug:  # noqa: BLE001 - an answer is on its way out, and has to get there
            self._telemetry.crashed("audit.failed", bug, **_told(entry))

    async def insert(self, entry: Entry) -> None:
        """As `write`, for who can tell a person that it failed."""
        await self._insert(entry)

    def _report(self, entry: Entry, error: str) -> None:
        self._telemetry.log.error("audit.failed", error=error, **_told(entry))

    def count(self, who: str, action: str, address: str | None, outcome: Outcome) -> None:
        """Of calls that come by the thousand, one entry with their number for every ten seconds."""
        call = (who, action, address, outcome)
        self._counted[call] = self._counted.get(call, 0) + 1
        if self._counting is None:
            self._counting = asyncio.get_running_loop().create_task(self._write_counted_later())

    async def close(self) -> None:
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.gather(self._counting, return_exceptions=True)
            self._counting = None
        await self._write_counted()

    async def _write_counted_later(self) -> None:
        await asyncio.sleep(COUNTED_OVER)
        self._counting = None
        await self._write_counted()

    async def _write_counted(self) -> None:
        counted, self._counted = self._counted, {}
        entries = [
            Entry(who, action, address=address, detail={"calls": calls}, outcome=outcome)
            for (who, action, address, outcome), calls in counted.items()
        ]
        await asyncio.gather(*(self.write(entry) for entry in entries))

    async def _insert_all(self, entries: Sequence[Entry]) -> list[None]:
        await self._database.fetch(self.statement, {"audit": as_text(*entries)})
        return [None for _ in entries]

    # ── out ──────────────────────────────────────────────────────────────────────────────────────

    async def page(
        self,
        *,
        since: datetime | None = None,
        who: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Row]:
        """Newest first; `before` is the id that the last page ended with."""
        given = _window(since, before, limit)
        if who is not None:
            return await self._database.fetch(self._queries["audit_page_of"], {**given, "who": who})
        return await self._database.fetch(self._queries["audit_page"], given)

    async def search(self, wanted: AuditFilter, *, before: int | None = None, limit: int = 50) -> AuditFound:
        """As `page`, by more; where no index knows what is meant it looks so far and no further at a time."""
        rows = await self._by_who(wanted, before, limit)
        if rows is not None:
            return AuditFound(rows, rows[-1]["id"] if len(rows) == limit else None)
        name, given = _asked(wanted)
        given |= {"before": _LAST if before is None else before, "limit": limit, "window": _WINDOW}
        found = await self._database.fetch(self._queries[name], given)
        rows = [row for row in found if row["id"] is not None]
        if len(rows) == limit:
            return AuditFound(rows, rows[-1]["id"])
        if found[0]["looked_at"] < _WINDOW:
            return AuditFound(rows, None)
        return AuditFound(rows, found[0]["looked_until"], _WINDOW)

    async def _by_who(self, wanted: AuditFilter, before: int | None, limit: int) -> Sequence[Row] | None:
        """By the index of who, which reads `limit` of each; None for a crowd, or where more is asked for."""
        if wanted.whos == ():
            return ()
        if replace(wanted, since=None, who=None, whos=None) != AuditFilter():
            return None
        whole, begins = _read(wanted.who)
        if not begins and wanted.whos is None:
            return await self.page(since=wanted.since, who=whole, before=before, limit=limit)
        most = _WINDOW // limit
        whos = wanted.whos if not begins else await self._called(begins, most + 1)
        if whos is None or len(whos) > most:
            return None
        given = {**_window(wanted.since, before, limit), "whos": _encode(whos).decode()}
        return await self._database.fetch(self._queries["audit_page_of_some"], given)

    async def _called(self, begins: str, most: int, query: str = "audit_whos") -> tuple[str, ...]:
        rows = await self._database.fetch(self._queries[query], {"begins": begins, "most": most})
        return tuple(row["who"] for row in rows)

    async def meant(self, wanted: AuditFilter) -> AuditFilter:
        """With whom a bare name means, or the beginning of one. Raises `InvalidRequest` for a vague one."""
        whole, begins = _read(wanted.who)
        if whole is not None:
            return replace(wanted, who=await self.whole_name(whole))
        if not begins or _names_kind(begins):
            return wanted
        return replace(wanted, who=None, whos=await self._all_called(begins))

    async def _all_called(self, begins: str) -> tuple[str, ...]:
        """Whatever they are."""
        whole = [f"{kind}:{begins}" for kind in _KINDS]
        found = {*await self._called(begins, _MOST_MEANT + 1, "keys_called")}
        for one in (begins, *whole):
            found |= {*await self._called(one, _MOST_MEANT + 1)}
        if len(found) > _MOST_MEANT:
            which = ", ".join(f"{one}{_REST}" for one in whole)
            raise InvalidRequest(
                f"more than {_MOST_MEANT} are called {begins}{_REST}; write which: {which}", "who"
            )
        return tuple(sorted(found))

    async def whole_name(self, name: str) -> str:
        """Of somebody who is called so, whatever they are; raises `InvalidRequest` where several are."""
        if _names_kind(name):
            return name
        given = {"names": _encode([name, *(f"{kind}:{name}" for kind in _KINDS)]).decode(), "name": name}
        rows = await self._database.fetch(self._queries["audit_named"], {**given, "most": _MOST_NAMED})
        found = [row["who"] for row in rows]
        if len(found) > 1:
            raise InvalidRequest(f"{name} may be {', '.join(found)}; write which", "who")
        return found[0] if found else name

    async def actions(self) -> list[str]:
        """What there are entries of."""
        rows = await self._database.fetch(self._queries["audit_actions"], {"most": _MOST_ACTIONS})
        return [row["action"] for row in rows]


def _window(since: datetime | None, before: int | None, limit: int) -> dict[str, Any]:
    return {
        "since": iso(since or _BEGINNING),
        "before": _LAST if before is None else before,
        "limit": limit,
    }


def _names_kind(name: str) -> bool:
    return name.partition(":")[0] in _KINDS


def _asked(wanted: AuditFilter) -> tuple[str, dict[str, Any]]:
    """The query whose index leaves the fewest to look through, and its parameters."""
    whole, begins = _read(wanted.action)
    who, who_begins = _read(wanted.who)
    name = "audit_search"
    if who is not None:
        name = "audit_search_of"
    elif wanted.outcome not in {None, "done"}:
        name = "audit_search_not_done"
    elif whole is not None:
        name = "audit_search_action"
    since = iso(wanted.since or _BEGINNING)
    return name, {
        "since": since, "who": who, "who_begins": who_begins, "action": whole, "begins": begins,
        "outcome": wanted.outcome, "object": wanted.object,
        "whos": _encode(wanted.whos).decode() if wanted.whos is not None else None,
    }  # fmt: skip


def _read(text: str | None) -> tuple[str | None, str | None]:
    """The whole of a name, or its beginning."""
    if text is None or not text.endswith(_REST):
        return text, None
    return None, text.removesuffix(_REST)


def as_text(*entries: Entry) -> str:
    return _encode([_told(entry) for entry in entries]).decode()


def _told(entry: Entry) -> dict[str, Any]:
    object = entry.object[:_LONGEST_OBJECT].replace("\x00", "") if entry.object is not None else None
    return {
        "who": entry.who,
        "address": entry.address,
        "action": entry.action,
        "object": object,
        "detail": _shortened(entry.detail),
        "outcome": entry.outcome,
    }


def _shortened(detail: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """NUL is no text for PostgreSQL, and somebody may have sent a filter of a megabyte."""
    text = _encode(detail)
    if len(text) > _LONGEST_DETAIL or b"\\u0000" in text:
        return {"cut": text[:_LONGEST_DETAIL].decode("utf-8", "ignore").replace("\\u0000", "")}
    return detail
