"""What jobs may be looked for by, in a query string or in a body."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct

from homing.errors import InvalidRequest
from homing.lanes.dispatch_jobs.job import STATES
from homing.lanes.dispatch_jobs.mistakes import CONTROL, suggestion
from homing.lanes.dispatch_jobs.orders import MOST_METADATA, Moment, check_metadata, check_year
from homing.lanes.dispatch_jobs.view import Status

Word = Annotated[str, Meta(min_length=1, max_length=500)]

METADATA = "metadata."
#: The names in JSON and in a query string, and the fields here.
NAMES: Mapping[str, str] = {
    "status": "status",
    "source": "source",
    "type": "type",
    "groupId": "group_id",
    "externalId": "external_id",
    "errorClass": "error_class",
    "createdAfter": "created_after",
    "createdBefore": "created_before",
}
_TIMES = frozenset({"createdAfter", "createdBefore"})
_LONGEST = 500
_LARGEST_NUMBER = 9
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_LOST_PLUS = re.compile(r"T[\d:.]+ \d\d:?\d\d$")


class Filter(Struct, frozen=True, kw_only=True):
    """All that is given must be so."""

    status: str | None = None
    source: str | None = None
    type: str | None = None
    group_id: str | None = None
    external_id: str | None = None
    #: Of jobs in ERROR.
    error_class: str | None = None
    #: From then on, and up to then: both ends count.
    created_after: datetime | None = None
    created_before: datetime | None = None
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        return self == Filter()


class FilterRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What jobs are chosen by, as in a search; all that is given must be so."""

    status: Status | None = None
    source: Word | None = None
    type: Word | None = None
    group_id: Word | None = None
    external_id: Word | None = None
    error_class: Word | None = None
    created_after: Moment | None = None
    created_before: Moment | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=MOST_METADATA)] | None = None


def filter_of(request: FilterRequest) -> Filter:
    check_metadata(request.metadata or {}, "filter.metadata")
    for name, field in NAMES.items():
        value = getattr(request, field)
        if isinstance(value, str) and CONTROL.search(value):
            raise InvalidRequest(f"filter.{name}: must not contain control characters", f"filter.{name}")
    return _checked(
        Filter(
            **{field: getattr(request, field) for field in NAMES.values()},
            metadata=tuple(sorted((request.metadata or {}).items())),
        )
    )


def _checked(given: Filter) -> Filter:
    check_year("createdAfter", given.created_after)
    check_year("createdBefore", given.created_before)
    if given.error_class is not None and given.status not in {None, "ERROR"}:
        raise InvalidRequest("errorClass: is of jobs in ERROR; leave status out", "errorClass")
    return given


# ── from a query string ──────────────────────────────────────────────────────────────────────────


class Parameters:
    """The parameters of a request, each at most once; whatever is not asked for is a mistake."""

    def __init__(
        self, pairs: Iterable[tuple[str, str]], known: Iterable[str], *, metadata: bool = False
    ) -> None:
        self._known = list(known)
        self._metadata = metadata
        self._given: dict[str, str] = {}
        for name, value in pairs:
            self._add(name, value)

    def _add(self, name: str, value: str) -> None:
        shown = CONTROL.sub("?", name)[:100]
        if name not in self._known and not (self._metadata and name.startswith(METADATA)):
            raise InvalidRequest(f"{shown}: there is no such parameter{self._nearest(name)}", shown)
        if name in self._given:
            raise InvalidRequest(f"{shown}: is given twice; one value is looked for", shown)
        if not value and not name.startswith(METADATA):
            raise InvalidRequest(f"{shown}: is empty; leave it out", shown)
        if len(value) > _LONGEST or CONTROL.search(value):
            raise InvalidRequest(
                f"{shown}: must have at most {_LONGEST} characters, and no control characters", shown
            )
        self._given[name] = value

    def _nearest(self, name: str) -> str:
        if self._metadata and name.startswith("metadata"):
            return "; write metadata.KEY=VALUE"
        return suggestion(name, [*self._known, *(["metadata.KEY"] if self._metadata else [])])

    def text(self, name: str) -> str | None:
        return self._given.get(name)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self._given.get(name)
        if text is None:
            return default
        digits = text if text.isascii() and text.isdecimal() and len(text) <= _LARGEST_NUMBER else None
        if digits is None or not least <= int(digits) <= most:
            raise InvalidRequest(f"{name}: must be a number from {least:,} to {most:,}", name)
        return int(digits)

    def filter(self) -> Filter:
        values = {field: self._value(name) for name, field in NAMES.items() if name in self._given}
        metadata = {n.removeprefix(METADATA): v for n, v in self._given.items() if n.startswith(METADATA)}
        if len(metadata) > MOST_METADATA:
            raise InvalidRequest(f"metadata: at most {MOST_METADATA} of them", "metadata")
        check_metadata(metadata)
        return _checked(Filter(**values, metadata=tuple(sorted(metadata.items()))))  # type: ignore[arg-type]  # times are times, see _value

    def _value(self, name: str) -> str | datetime:
        text = self._given[name]
        if name in _TIMES:
            return moment_of(name, text)
        if name == "status" and text not in STATES:
            raise InvalidRequest(f"status: must be one of {', '.join(STATES)}", "status")
        return text


def moment_of(name: str, text: str) -> datetime:
    """A date alone is its midnight in UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        lost = "; write the + of the zone as %2B" if _LOST_PLUS.search(text) else ""
        raise InvalidRequest(f"{name}: must be a time such as 2026-01-31T12:00:00Z{lost}", name) from None
    if _DATE.fullmatch(text):
        return moment.replace(tzinfo=UTC)
    if moment.tzinfo is None:
        raise InvalidRequest(f"{name}: the time needs a zone, such as Z", name)
    return moment
