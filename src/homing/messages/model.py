"""What the desk shows of a message, whatever lane it is in, and what it asks of a lane.

A lane has states of its own (`queued`, `PENDING`, …). People who look at all lanes at once need
fewer words: a `Phase`. Both are shown, and both can be searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, Protocol

from msgspec import Struct

LaneName = Literal["mail_outbox", "dispatch_jobs", "email_log", "open_events"]
#: waiting for its (next) attempt · claimed by a worker now · arrived · given up · ended without an attempt
Phase = Literal["waiting", "running", "delivered", "dead", "stopped"]
Verb = Literal["requeue", "cancel", "send_now"]

LANES: Final[tuple[LaneName, ...]] = ("mail_outbox", "dispatch_jobs", "email_log", "open_events")
PHASES: Final[tuple[Phase, ...]] = ("waiting", "running", "delivered", "dead", "stopped")


def sees_whole(may: Callable[[str], bool], area: str) -> bool:
    """Whoever puts messages of an area in or mends them knows their secrets; who only reads does not."""
    return may(f"{area}:write") or may(f"{area}:operate")


class Wanted(Struct, frozen=True):
    """Which messages: what a query line says, read. Values with `*` are patterns; the others are whole."""

    lanes: tuple[LaneName, ...] = LANES
    phases: tuple[Phase, ...] = ()
    #: States in a lane's own words; a lane that does not know one has no such message.
    states: tuple[str, ...] = ()
    #: Type of a job, template of a mail.
    type: str | None = None
    #: Of a job.
    source: str | None = None
    #: Address of a mail, URL or host of a job.
    to: str | None = None
    #: Error class or code of the last attempt.
    error: str | None = None
    #: One of these is its class or code, to the letter; nothing in them is a pattern. Long ones are cut to
    #: `homing.db.conditions.LONGEST_CODE` characters, and so is what they are compared with.
    codes: tuple[str, ...] = ()
    #: Metadata of jobs and mails.
    meta: Mapping[str, str] = {}
    #: One message by its id, key or external id.
    id: str | None = None
    #: Words in the subject, the type or the section; every one of them.
    words: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None

    @property
    def has_error(self) -> bool:
        """Whether it asks for messages with some error; what has arrived has none."""
        return self.error is not None or bool(self.codes)


class Summary(Struct, frozen=True):
    """A line of the list."""

    lane: LaneName
    #: As people write it: `outbox_12`, `email_12`, `notification_12`, `0ARYZVZXW372S`.
    id: str
    number: int
    #: In the lane's own word.
    state: str
    phase: Phase
    #: The subject of a mail, the type of a job, the section that opened.
    title: str
    #: Whom it goes to: an address, masked where the lane masks it; the host of a job's target.
    to: str
    attempts: int
    #: The class or code of what went wrong last; None when nothing did.
    error: str | None
    created_at: datetime
    #: When it is tried next, while it waits.
    due_at: datetime | None = None


class Seen(Struct, frozen=True):
    """A page of one lane: newest first."""

    rows: Sequence[Summary]
    #: Where to go on: the number of the last row that was looked at; None when there is nothing more.
    next: int | None
    #: How many rows were looked through where no index serves the question; None where one does.
    looked_at: int | None = None


class Step(Struct, frozen=True):
    """One entry of a message's timeline."""

    at: datetime
    #: created, claimed, attempt, waits, delivered, dead, stopped, …
    kind: str
    title: str
    well: bool | None = None
    seconds: float | None = None
    error_class: str | None = None
    error: str | None = None
    worker: str | None = None
    #: For a webhook: what was asked of the receiver, without secrets.
    request: str | None = None
    #: For a webhook: what was answered.
    response_code: int | None = None
    response_headers: Mapping[str, str] = {}
    response_body: str | None = None
    #: What may have been processed though no answer came.
    unknown: bool = False
    #: The bulk run that did it.
    bulk_run: int | None = None


class Body(Struct, frozen=True):
    content_type: str
    text: str
    #: Of the whole; `text` may have been cut.
    length: int


class MailParts(Struct, frozen=True):
    """A mail as it was, or would be, sent."""

    headers: Sequence[tuple[str, str]]
    text: str | None
    html: str | None
    source: str
    #: Why there is nothing to see, in words: its template is gone, …
    trouble: str | None = None


class Detail(Struct, frozen=True):
    """Everything about one message."""

    summary: Summary
    #: Name and value, in the order in which a person wants them. No secrets.
    fields: Sequence[tuple[str, str]]
    #: In the order of time.
    timeline: Sequence[Step]
    payload: Body | None = None
    has_mail: bool = False
    #: What can be done with it now.
    verbs: tuple[Verb, ...] = ()
    #: Of a webhook: the same request as a command; secrets are named, not shown.
    curl: str | None = None
    #: Why it waits, in a sentence.
    waits: str | None = None


class DeadGroup(Struct, frozen=True):
    """Messages that were given up for the same reason."""

    lane: LaneName
    #: What it is called: a class or code, or what some codes have in common, with `*` for the rest; None of
    #: those that have no code.
    error: str | None
    count: int
    first_at: datetime | None
    last_at: datetime | None
    #: In the words of the newest of them.
    example: str
    example_id: str
    #: For jobs, the target that most of them went to.
    target: str | None = None
    #: There are more than were looked at, so perhaps more of this group.
    is_lower_bound: bool = False
    #: What the newest of them say, with numbers, ids and hosts taken out; and how many of those say so.
    kinds: tuple[tuple[str, int], ...] = ()
    #: The exact codes of its messages, as `code:` of a query line takes them; none where they have none.
    codes: tuple[str, ...] = ()


class HowMany(Struct, frozen=True):
    number: int
    #: There may be more.
    is_lower_bound: bool = False


class LaneDesk(Protocol):
    """What each lane can tell and do. `lanes/<lane>/desk.py` has it, beside its SQL."""

    name: LaneName
    #: Every state of the lane, with its phase.
    phases: Mapping[str, Phase]
    #: From which states a verb is possible.
    from_states: Mapping[Verb, tuple[str, ...]]
    #: The first part of the scopes of this lane: mail, jobs, emails, notifications.
    scope: str

    def number(self, id: str) -> int | None:
        """Of an id in this lane's form; None of any other text."""
        ...

    async def find(self, wanted: Wanted, *, before: int | None, limit: int) -> Seen:
        """Newest first, from below the number `before` on; bounded work, whatever is asked."""
        ...

    async def show(self, number: int, *, whole: bool = False) -> Detail | None:
        """`whole`: with what only those know who put messages in or mend them."""
        ...

    async def mail(self, number: int) -> MailParts | None:
        """Of lanes that send mails, the mail; None of the others."""
        ...

    async def dead_groups(self) -> Sequence[DeadGroup]: ...

    async def counts(self) -> Mapping[str, int]:
        """How many there are in which state: from tallies, not by counting."""
        ...

    async def oldest_due(self) -> float: ...

    async def count(self, wanted: Wanted, *, most: int, seconds: float) -> HowMany:
        """How many there are: up to `most`, and as many as can be counted in about that time."""
        ...

    async def numbers(
        self, wanted: Wanted, *, after: int | None, limit: int, newest_first: bool = False
    ) -> Sequence[int]:
        """Oldest first, or newest first, from beyond that number on; for an action on all of them."""
        ...

    async def act(self, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        """Do it to those that are in a state for it; their numbers."""
        ...
