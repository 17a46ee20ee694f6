"""`/audit`: who did what to what, and how it ended; looked for, and taken along as a file."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, get_args

import msgspec
from litestar import Controller, MediaType, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery
from litestar.response import Stream
from msgspec import Struct

from homing.access.api import AuditEntry, shown
from homing.access.audit import AuditFilter, AuditFound, AuditLog, Outcome
from homing.access.desk import Access
from homing.db import instant
from homing.desk.query import read
from homing.errors import InvalidRequest
from homing.http.asking import AnyRequest
from homing.http.numbers import page_before
from homing.http.pages.forms import NOTHING_SENT, Form, refusal
from homing.http.pages.shell import link, render
from homing.messages.model import Wanted

_OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_TONES: Mapping[str, str] = {"done": "good", "refused": "wait", "failed": "bad"}
_AT_ONCE = 50
_FILTER = Form("/audit")
_LONGEST_TEXT = 500
#: A file has at most so many entries; the rest is for another `since`.
MOST_EXPORTED: Final = 50_000
_EXPORTED_AT_ONCE = 1000
_COLUMNS = ("id", "at", "who", "whoName", "address", "action", "object", "outcome", "detail")
#: A spreadsheet takes what begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: What was done, as people say it: before its object.
_WORDS: Mapping[str, str] = {
    "alerts.silence": "silenced the alert",
    "bulk.cancel": "cancelled the bulk run",
    "bulk.end": "had a bulk run end:",
    "bulk.start": "started a bulk run:",
    "dispatch.credentials.create": "made the credentials",
    "dispatch.credentials.delete": "deleted the credentials",
    "dispatch.credentials.end_grace": "ended the grace of the credentials",
    "dispatch.credentials.rotate": "rotated the credentials",
    "dispatch.jobs.cancel": "cancelled the job",
    "dispatch.jobs.cancel_many": "cancelled jobs by a filter",
    "dispatch.jobs.create": "created jobs",
    "dispatch.jobs.create_batch": "created jobs in batches",
    "dispatch.jobs.requeue": "requeued the job",
    "dispatch.jobs.requeue_many": "requeued jobs by a filter",
    "dispatch.targets.limit": "set limits for the target",
    "dispatch.targets.pause": "paused the target",
    "dispatch.targets.resume": "resumed the target",
    "dispatch.targets.validate": "sent a test event to the target",
    "emails.requeue": "requeued the email",
    "health.run": "had the doctor look",
    "keys.create": "made the key",
    "keys.revoke": "revoked the key",
    "mail.cancel": "cancelled the mail",
    "mail.create": "put in mails",
    "mail.requeue": "requeued the mail",
    "messages.cancel": "cancelled messages:",
    "messages.requeue": "requeued messages:",
    "messages.send_now": "had messages sent now:",
    "notifications.requeue": "requeued the notification",
    "notifications.requeue_some": "requeued notifications by a filter",
    "notifications.subscriptions.end": "ended the subscription",
    "notifications.subscriptions.pause": "paused the subscription",
    "notifications.subscriptions.resume": "resumed the subscription",
    "session.close": "logged out",
    "session.open": "logged in",
    "users.add": "added the user",
    "users.end_sessions": "ended the sessions of",
    "users.passwd": "changed the password of",
    "users.remove": "removed the user",
    "users.role": "changed the role of",
    "workers.pause": "paused",
    "workers.release": "released the leases of",
    "workers.resume": "resumed",
}
#: What reads as if it had been done, where it was not.
_TRIED: Mapping[str, str] = {"session.open": "tried to log in", "bulk.end": "had a bulk run not end well:"}


class _Asked(Struct, frozen=True):
    """The filter as it stands in the address."""

    who: str
    action: str
    outcome: str
    object: str
    since: str

    @property
    def parameters(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def filter(self, now: datetime) -> AuditFilter:
        """Raises `InvalidRequest`."""
        for name, value in self.parameters.items():
            if "\x00" in value or len(value) > _LONGEST_TEXT:
                raise InvalidRequest(f"{name}: a text of at most {_LONGEST_TEXT} characters", name)
        if self.outcome and self.outcome not in _OUTCOMES:
            raise InvalidRequest(f"an outcome is one of {', '.join(_OUTCOMES)}", "outcome")
        outcome = next((one for one in _OUTCOMES if one == self.outcome), None)
        return AuditFilter(
            _since(self.since, now), self.who or None, self.action or None, outcome, self.object or None
        )


class AuditPages(Controller):
    path = "/audit"
    include_in_schema = False
    opt: Mapping[str, Any] = {"scope": "ops"}

    @get("/", media_type=MediaType.HTML)
    async def list(
        self,
        *,
        request: AnyRequest,
        access: NamedDependency[Access],
        who: FromQuery[str] = "",
        action: FromQuery[str] = "",
        outcome: FromQuery[str] = "",
        object: FromQuery[str] = "",
        since: FromQuery[str] = "",
        before: FromQuery[int | None] = None,
    ) -> Response[str]:
        asked = _Asked(who.strip(), action.strip(), outcome, object.strip(), since.strip())
        found, sent = AuditFound((), None), NOTHING_SENT
        try:
            wanted = await _wanted(access.audit, asked, datetime.now(UTC))
            found = await access.audit.search(wanted, before=page_before(before), limit=_AT_ONCE)
        except InvalidRequest as error:
            sent = _FILTER.sent(asked.parameters, refusal(error))
        given = asked.parameters
        return render(
            request,
            "audit.html",
            sent=sent,
            entries=[_told(shown(row)) for row in found.rows],
            asked=given,
            actions=await access.audit.actions(),
            outcomes=_OUTCOMES,
            looked_at=found.looked_at,
            newest=link("/audit", **given) if before is not None else "",
            older=link("/audit", **given, before=found.next) if found.next else "",
            exports=[(kind, link("/audit/export", **given, format=kind)) for kind in _FORMATS],
            most_exported=MOST_EXPORTED,
        )

    @get("/export")
    async def export(
        self,
        *,
        access: NamedDependency[Access],
        who: FromQuery[str] = "",
        action: FromQuery[str] = "",
        outcome: FromQuery[str] = "",
        object: FromQuery[str] = "",
        since: FromQuery[str] = "",
        format: FromQuery[str] = "csv",
    ) -> Stream:
        """Newest first, written as it is read."""
        if format not in _FORMATS:
            raise InvalidRequest(f"a format is one of {', '.join(_FORMATS)}", "format")
        now = datetime.now(UTC)
        asked = _Asked(who.strip(), action.strip(), outcome, object.strip(), since.strip())
        wanted = await _wanted(access.audit, asked, now)
        media_type, written = _FORMATS[format]
        name = f"homing-audit-{now:%Y%m%dT%H%M%SZ}.{format}"
        return Stream(
            written(_exported(access.audit, wanted)),
            media_type=media_type,
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )


async def _wanted(audit: AuditLog, asked: _Asked, now: datetime) -> AuditFilter:
    """A name is enough, as the table shows it; raises `InvalidRequest`."""
    return await audit.meant(asked.filter(now))


def _since(text: str, now: datetime) -> datetime | None:
    """As the query line of messages reads it: 2h, 3d, a date or a time."""
    if not text:
        return None
    found = read(f"since:{text}", now) if not set(text) & set(" \"'") else None
    if not isinstance(found, Wanted) or found.since is None:
        raise InvalidRequest(
            f"since: {text[:40]!r} is no time; write 2h, 3d, 2026-11-16 or 2026-11-16T12:00:00Z", "since"
        )
    if not 1970 <= found.since.year < 9999:
        raise InvalidRequest("since is a year from 1970 on", "since")
    return found.since


def _words(action: str, outcome: str) -> str:
    if outcome != "done" and action in _TRIED:
        return _TRIED[action]
    return _WORDS.get(action, action)


def _told(entry: AuditEntry) -> dict[str, Any]:
    kind, _, name = entry.who.partition(":")
    detail = {key: value for key, value in (entry.detail or {}).items() if key != "status"}
    return {
        "id": entry.id,
        "at": instant(entry.at),
        "who": entry.who,
        "name": entry.who_name or name or kind,
        "kind": kind,
        "address": entry.address,
        "action": entry.action,
        "words": _words(entry.action, entry.outcome),
        "object": entry.object,
        "outcome": entry.outcome,
        "tone": _TONES[entry.outcome],
        "why": str(detail["why"]) if "why" in detail else "",
        "detail": msgspec.json.format(msgspec.json.encode(entry.detail)).decode() if entry.detail else "",
    }


# ── as a file ────────────────────────────────────────────────────────────────────────────────────


async def _exported(audit: AuditLog, wanted: AuditFilter) -> AsyncIterator[list[AuditEntry]]:
    before, left = None, MOST_EXPORTED
    while left > 0:
        found = await audit.search(wanted, before=before, limit=min(left, _EXPORTED_AT_ONCE))
        yield [shown(row) for row in found.rows]
        left -= len(found.rows)
        if found.next is None:
            return
        before = found.next


async def _as_ndjson(pages: AsyncIterator[list[AuditEntry]]) -> AsyncIterator[bytes]:
    encoder = msgspec.json.Encoder()
    async for entries in pages:
        yield encoder.encode_lines(entries)


async def _as_csv(pages: AsyncIterator[list[AuditEntry]]) -> AsyncIterator[bytes]:
    yield _lines([_COLUMNS])
    async for entries in pages:
        yield _lines(_cells(entry) for entry in entries)


def _lines(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cells(entry: AuditEntry) -> list[str]:
    told: dict[str, Any] = msgspec.to_builtins(entry)
    told["detail"] = msgspec.json.encode(entry.detail).decode() if entry.detail else ""
    return [_cell(told[name]) for name in _COLUMNS]


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


_FORMATS: Mapping[str, tuple[str, Any]] = {
    "csv": ("text/csv", _as_csv),
    "ndjson": ("application/x-ndjson", _as_ndjson),
}
