"""Flips of sections: an opening becomes an event, and a notification for each subscription that wants one.

The event and all its rows are written in one transaction, by one statement, however many there are. Who is
snoozed or outside of a delivery window gets a row as well: it waits. Who does not want to know, or has had
all the mails that were wanted, gets none.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from homing.db import Database, Row, iso, load_queries
from homing.db.patience import patiently
from homing.engine.aside import each
from homing.errors import Conflict, InvalidRequest, Refused
from homing.lanes.open_events.notification import CHANNEL
from homing.lanes.open_events.preferences import read_preferences
from homing.lanes.open_events.words import Word, check_plain
from homing.replies import ErrorDetail, error_detail, invalid
from homing.senders.drafts import check_texts
from homing.strict_json import decode
from homing.telemetry import Telemetry
from homing.tracing import Trace

Status = Literal["OPEN", "CLOSED", "WAIT"]
FlipVerdict = Literal["opened", "duplicate", "closed", "unchanged"]

#: Openings of a section that are closer than this are one.
WINDOW_SECONDS = 180
MOST_PER_POST = 500

#: A poller's clock may be ahead of ours by this much.
_AHEAD = timedelta(minutes=5)
_FIRST_YEAR = 1970
_LARGEST_PAYLOAD = 16 * 1024
#: How many preferences are read before others get their turn.
_AT_ONCE = 500

#: Who saw it, where that is not said: a table of another program may want to know.
_OURSELVES = "homing"
#: What a flip may do without; the columns have defaults of their own.
_OPTIONAL = ("section_id", "seat_delta", "snapshot_id", "payload")

_STATUSES = "Open, Closed or Wait, in any spelling"

_encode = msgspec.json.Encoder().encode


class FlipRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A section whose status has changed, as a poller saw it."""

    term_id: Annotated[Word, Meta(examples=["92026"])]
    campus_code: Annotated[Word, Meta(examples=["NB"])]
    index_number: Annotated[Word, Meta(examples=["12345"])]
    status_before: Annotated[Word, Meta(description=_STATUSES, examples=["Closed"])]
    status_after: Annotated[Word, Meta(description=_STATUSES, examples=["Open"])]
    section_id: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    seat_delta: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    event_at: (
        Annotated[datetime, Meta(tz=True, description="When it was seen, with a zone; by default now")] | None
    ) = None
    detected_by: Word | None = None
    snapshot_id: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    trace_id: Word | None = None
    payload: (
        Annotated[
            dict[str, Any],
            Meta(
                description="What the mail says, even if the tables change; up to 16 KiB",
                examples=[{"courseTitle": "Calculus", "sectionNumber": "07"}],
            ),
        ]
        | None
    ) = None


class Flip(Struct, frozen=True, kw_only=True):
    """A flip, by column of `open_events`."""

    section_id: int | None
    term_id: str
    campus_code: str
    index_number: str
    status_before: Status
    status_after: Status
    seat_delta: int | None
    event_at: str | None
    detected_by: str
    snapshot_id: int | None
    dedupe_key: str
    trace_id: str | None
    payload: str | None

    @property
    def is_opening(self) -> bool:
        return self.status_after == "OPEN" != self.status_before

    @property
    def section(self) -> dict[str, str]:
        return {
            "term_id": self.term_id,
            "campus_code": self.campus_code,
            "index_number": self.index_number,
        }


class FlipReply(Struct, frozen=True, rename="camel"):
    """What became of a flip."""

    #: The event that it is; None where nothing opened.
    open_event_id: int | None
    #: How many are told of it, by this request.
    notifications: int
    #: Whether the event was known already.
    duplicate: bool
    #: opened, duplicate, closed (the section's status was noted, nobody is told) or unchanged
    verdict: FlipVerdict


class FlipItem(Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of one flip of several: a reply as to one alone, or an error."""

    open_event_id: int | UnsetType | None = UNSET
    notifications: int | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    verdict: FlipVerdict | Literal["invalid", "failed"]
    error: ErrorDetail | UnsetType = UNSET


class FlipBatchReply(Struct, frozen=True):
    """What became of each flip, in the order of the request."""

    #: How many are told of one of them.
    notifications: int
    items: list[FlipItem]


class Fanout:
    def __init__(self, database: Database, telemetry: Telemetry) -> None:
        self._database = database
        self._telemetry = telemetry
        self._queries = load_queries(__package__ or "", database.dialect, "fanout")

    async def record(self, flip: Flip) -> FlipReply:
        """Write down what happened, once, whoever else says so at the same time."""
        if flip.status_after == flip.status_before:
            return FlipReply(None, 0, False, "unchanged")
        if not flip.is_opening:
            return await self._record_other(flip)
        # A look before the lock: pollers repeat themselves, and that need not keep anybody waiting.
        known = await self._run("near", **_parameters(flip))
        if known:
            await self._note_reopening(flip, known[0]["open_event_id"])
            return _duplicate(known)
        with self._telemetry.tracing.creating("open_events") as trace:
            traced = _of_trace(flip, trace)
            reply = await patiently(lambda: self._open(traced))
        self._telemetry.enqueued("open_events", reply.notifications)
        if reply.notifications:
            self._database.announce(CHANNEL)
        return reply

    async def record_all(self, items: Sequence[msgspec.Raw], now: datetime) -> FlipBatchReply:
        """Each flip on its own, in the order given; what is wrong with one is said of that one."""
        if not 1 <= len(items) <= MOST_PER_POST:
            raise InvalidRequest(f"an array must hold from 1 to {MOST_PER_POST} flips")
        read = await each(lambda item: _read(item, now), items)
        verdicts = [await self._verdict(one) for one in read]
        told = sum(one.notifications or 0 for one in verdicts)
        return FlipBatchReply(told, verdicts)

    async def _verdict(self, flip: Flip | InvalidRequest) -> FlipItem:
        if isinstance(flip, InvalidRequest):
            return FlipItem(verdict="invalid", error=invalid(flip))
        try:
            reply = await self.record(flip)
        except Refused as error:
            # A table of another program may have rules of its own; those who call need not know them.
            self._telemetry.log.warning("open_events.flip_refused", error=str(error))
            return _failed("INTERNAL_ERROR", "the tables do not take this flip; the log has more")
        except Conflict as error:
            return _failed("CONFLICT", str(error))
        return FlipItem(**msgspec.structs.asdict(reply))

    async def _open(self, flip: Flip) -> FlipReply:
        limits = await self._limits(flip)
        section = "|".join(flip.section.values())
        flip = await self._described(flip)
        found = await self._run_together(
            ("lock_section", "near", "record", "mark_section"),
            frozenset(name for name in _OPTIONAL if getattr(flip, name) is None),
            **_parameters(flip),
            **flip.section,
            section=section,
            status=flip.status_after,
            limits=_encode(limits).decode(),
        )
        if found["near"]:
            return _duplicate(found["near"])
        if not found["record"]:
            # Who knows no lock of ours was quicker by a moment; in another moment it can be seen.
            raise Conflict("another program is writing down the same opening; try again")
        row = found["record"][0]
        return FlipReply(row["open_event_id"], row["notifications"], False, "opened")

    async def _described(self, flip: Flip) -> Flip:
        """With what a mail will say of the section, as of now: as it was told, else as the tables have it."""
        rows = await self._run("section", **flip.section)
        known = _told_by_tables(rows[0]) if rows else {}
        said = {**known, **msgspec.json.decode(flip.payload or "{}")}
        return msgspec.structs.replace(
            flip,
            section_id=rows[0]["section_id"] if flip.section_id is None and rows else flip.section_id,
            payload=_encode(said).decode() if said else None,
        )

    async def _limits(self, flip: Flip) -> list[dict[str, int]]:
        """For whom there is a limit: none at all for those who do not want to know."""
        rows = await self._run("wishes", **flip.section)
        limits: list[dict[str, int]] = []
        for start in range(0, len(rows), _AT_ONCE):
            limits += [limit for row in rows[start : start + _AT_ONCE] if (limit := _limit(row))]
            await asyncio.sleep(0)
        return limits

    async def _record_other(self, flip: Flip) -> FlipReply:
        mark = ("mark_section", "mark_subscriptions")
        await patiently(lambda: self._run_together(mark, **flip.section, status=flip.status_after))
        return FlipReply(None, 0, False, "closed")

    async def _note_reopening(self, flip: Flip, id: int) -> None:
        """It closed and opened again so soon that nobody is told; it is open all the same."""
        if await self._run("reopened", **_parameters(flip), open_event_id=id):
            mark = ("mark_section",)
            await patiently(lambda: self._run_together(mark, **flip.section, status=flip.status_after))

    async def _run(self, name: str, **parameters: Any) -> Sequence[Row]:
        return await patiently(lambda: self._database.fetch(self._queries[name], parameters))

    async def _run_together(
        self, names: Sequence[str], absent: frozenset[str] = frozenset(), /, **parameters: Any
    ) -> Mapping[str, Sequence[Row]]:
        queries = load_queries(__package__ or "", self._database.dialect, "fanout", absent)
        present = [name for name in names if name in queries]
        rows = await self._database.fetch_all([queries[name] for name in present], parameters)
        return dict(zip(present, rows, strict=True))


def _of_trace(flip: Flip, trace: Trace | None) -> Flip:
    """The trace that whoever calls names in words of their own; else that of the request, else a new one."""
    if flip.trace_id:
        return flip
    trace_id = trace.trace_id if trace is not None else secrets.token_hex(16)
    return msgspec.structs.replace(flip, trace_id=trace_id)


def _told_by_tables(row: Row) -> dict[str, Any]:
    columns = {
        "courseTitle": "title",
        "courseString": "course_string",
        "sectionNumber": "section_number",
        "subjectCode": "subject_code",
    }
    return {name: row[column] for name, column in columns.items() if row[column]}


def _limit(row: Row) -> dict[str, int] | None:
    wishes = read_preferences(row["metadata"])
    most = wishes.max_notifications if wishes.wants_open else 0
    return None if most is None else {"id": row["id"], "most": most}


def _failed(code: str, message: str) -> FlipItem:
    return FlipItem(verdict="failed", error=error_detail(code, message))


def _duplicate(rows: Sequence[Row]) -> FlipReply:
    return FlipReply(rows[0]["open_event_id"], 0, True, "duplicate")


def _parameters(flip: Flip) -> dict[str, Any]:
    return {"flip": _encode(flip).decode(), "window_seconds": WINDOW_SECONDS}


# ── from a request to a flip ──────────────────────────────────────────────────────────────────────


def flip_of(request: FlipRequest, now: datetime) -> Flip:
    check_texts(request)
    check_plain(request, "termId", "campusCode", "indexNumber", "detectedBy", "traceId")
    section = [part.strip() for part in (request.term_id, request.campus_code, request.index_number)]
    after = _status("statusAfter", request.status_after)
    moment = _checked_moment(request.event_at or now, now)
    return Flip(
        section_id=request.section_id,
        term_id=section[0],
        campus_code=section[1],
        index_number=section[2],
        status_before=_status("statusBefore", request.status_before),
        status_after=after,
        seat_delta=request.seat_delta,
        event_at=iso(moment),
        detected_by=request.detected_by or _OURSELVES,
        snapshot_id=request.snapshot_id,
        dedupe_key=dedupe_key(*section, status=after, moment=moment),
        trace_id=request.trace_id,
        payload=_checked_payload(request.payload),
    )


def _read(item: msgspec.Raw, now: datetime) -> Flip | InvalidRequest:
    try:
        return flip_of(decode(item, FlipRequest), now)
    except InvalidRequest as error:
        return error


def dedupe_key(term_id: str, campus_code: str, index_number: str, *, status: str, moment: datetime) -> str:
    """The same for all who see one opening within the same three minutes of the clock."""
    milliseconds = int(moment.timestamp() * 1000)
    bucket = milliseconds // (WINDOW_SECONDS * 1000)
    text = f"{term_id}|{campus_code}|{index_number}|{status}|{bucket}"
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _status(field: str, given: str) -> Status:
    match given.strip().upper():
        case "OPEN":
            return "OPEN"
        case "CLOSED":
            return "CLOSED"
        case "WAIT":
            return "WAIT"
    raise InvalidRequest(f"{field}: it is Open, Closed or Wait", field)


def _checked_moment(moment: datetime, now: datetime) -> datetime:
    if moment > now + _AHEAD:
        raise InvalidRequest("eventAt: it lies in the future; is the clock of the sender right?", "eventAt")
    if moment.year < _FIRST_YEAR:
        raise InvalidRequest(f"eventAt: the year must be {_FIRST_YEAR} or later", "eventAt")
    # Milliseconds are what is stored, so that a key can be computed again from the row.
    utc = moment.astimezone(UTC)
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)


def _checked_payload(payload: Mapping[str, Any] | None) -> str | None:
    if payload is None:
        return None
    text = _encode(payload).decode()
    if len(text) > _LARGEST_PAYLOAD:
        raise InvalidRequest(f"payload: must have at most {_LARGEST_PAYLOAD:,} characters", "payload")
    return text
