"""Messages as JSON has them: for `/api/messages` and for `homing find --json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from homing.db import iso
from homing.desk import query
from homing.desk.desk import Found
from homing.messages.model import Body, Detail, LaneName, MailParts, Phase, Step, Summary, Verb, Wanted


class MessageSummary(Struct, frozen=True, rename="camel"):
    """A message of any lane, as a list shows it."""

    id: str
    lane: LaneName
    #: In the lane's own word.
    state: str
    phase: Phase
    title: str
    #: An address, masked where the lane masks it; the host of a job's target.
    to: str
    attempts: int
    error: str | None
    created_at: str
    #: When it is tried next, while it waits.
    due_at: str | None


class MessagePage(Struct, frozen=True, rename="camel"):
    items: list[MessageSummary]
    #: The query line as it was understood, times absolute.
    query: str
    #: What to give as cursor to go on; null at the end.
    next: str | None
    #: How many rows were looked through, where no index serves the query and the page is not full.
    looked_at: int | None
    #: What is not in it, in sentences: a lane whose database is away.
    notes: list[str]


class Happening(Struct, frozen=True, rename="camel"):
    """One entry of a message's timeline."""

    at: str
    kind: str
    title: str
    well: bool | None
    seconds: float | None
    error_class: str | None
    error: str | None
    worker: str | None
    #: What was asked of the receiver, without secrets.
    request: str | None
    response_code: int | None
    response_headers: dict[str, str]
    response_body: str | None
    #: The request may have been processed though no answer came.
    unknown: bool
    #: The bulk run that did it, as `/api/bulk/{id}` knows it.
    bulk_run: int | None


class Payload(Struct, frozen=True, rename="camel"):
    content_type: str
    #: JSON is set out in lines; a long one is cut.
    text: str
    #: Of the whole.
    length: int


class Fact(Struct, frozen=True):
    name: str
    value: str


class MailView(Struct, frozen=True):
    """A mail as it would be sent. Tokens in its links are hidden."""

    headers: list[Fact]
    text: str | None
    html: str | None
    #: Why there is nothing to see, or less than there is.
    trouble: str | None


class MessageDetail(MessageSummary, frozen=True, rename="camel", kw_only=True):
    """Everything about one message."""

    fields: list[Fact]
    #: In the order of time.
    timeline: list[Happening]
    payload: Payload | None
    #: What can be done with it now.
    verbs: list[Verb]
    #: The same request as a command; secrets are named, not shown.
    curl: str | None
    #: Why it waits, in a sentence.
    waits: str | None
    mail: MailView | None


def page_view(found: Found, wanted: Wanted) -> MessagePage:
    items = [_listed(row) for row in found.rows]
    return MessagePage(items, query.write(wanted), found.next, found.looked_at, [*found.notes])


def _summary(row: Summary) -> dict[str, Any]:
    return {
        **{
            name: getattr(row, name)
            for name in ("id", "lane", "state", "phase", "title", "to", "attempts", "error")
        },
        "created_at": iso(row.created_at) or "",
        "due_at": iso(row.due_at),
    }


def _listed(row: Summary) -> MessageSummary:
    return MessageSummary(**_summary(row))


def detail_view(detail: Detail, mail: MailParts | None) -> MessageDetail:
    return MessageDetail(
        **_summary(detail.summary),
        fields=_facts(detail.fields),
        timeline=[_happening(step) for step in detail.timeline],
        payload=_payload(detail.payload) if detail.payload is not None else None,
        verbs=[*detail.verbs],
        curl=detail.curl,
        waits=detail.waits,
        mail=_mail(mail) if mail is not None else None,
    )


def _facts(pairs: Sequence[tuple[str, str]]) -> list[Fact]:
    return [Fact(name, value) for name, value in pairs]


def _payload(body: Body) -> Payload:
    return Payload(body.content_type, body.text, body.length)


def _mail(mail: MailParts) -> MailView:
    return MailView(_facts(mail.headers), mail.text, mail.html, mail.trouble)


def _happening(step: Step) -> Happening:
    return Happening(
        at=iso(step.at) or "",
        kind=step.kind,
        title=step.title,
        well=step.well,
        seconds=step.seconds,
        error_class=step.error_class,
        error=step.error,
        worker=step.worker,
        request=step.request,
        response_code=step.response_code,
        response_headers=dict(step.response_headers),
        response_body=step.response_body,
        unknown=step.unknown,
        bulk_run=step.bulk_run,
    )
