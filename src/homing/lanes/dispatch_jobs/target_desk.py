"""Targets as people see them: looked at, limited, paused, resumed, and tried with a test event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from homing.db import Row, instant, iso
from homing.errors import InvalidRequest, NotAllowed
from homing.lanes.dispatch_jobs.jobs import CHANNEL, DispatchJobs
from homing.lanes.dispatch_jobs.mistakes import CONTROL
from homing.lanes.dispatch_jobs.orders import (
    Admit,
    Rules,
    check_text,
    check_url,
    credentials_number,
    refused_uses,
    unknown_credentials,
)
from homing.lanes.dispatch_jobs.target import target_of
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.lanes.dispatch_jobs.view import ENDLESS_YEAR, until_text

Url = Annotated[str, Meta(min_length=1, max_length=2048)]
State = Literal["closed", "open", "half_open", "paused"]

_ENDLESS = datetime(ENDLESS_YEAR, 1, 1, tzinfo=UTC)
_LONGEST_PAUSE = 365 * 86400
_PAUSED_BY_HAND = "paused by hand"
_MOST_LISTED = 100
#: How it begins to be said that the limits are not those any more that somebody has seen.
QUICKER: Final = "Somebody has changed these limits since you looked at them"
_NO_LIMIT = "-"

HINTS: Mapping[str, str] = {
    "targetUrl": "a URL of the target; scheme, host and port are what counts",
    "maxConcurrency": "it is from 1 to 10,000; null means no limit",
    "ratePerSecond": "it is from 0.001 to 100,000; null means no limit",
    "limitsVersion": "it is that of the target as it was read",
    "seconds": "it is from 1 to 31,536,000, a year; left out, it lasts until the target is resumed",
}


class LimitRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The limits of a target, over all processes. What is left out or null is no limit."""

    target_url: Url
    credentials_id: str | None = None
    max_concurrency: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    rate_per_second: Annotated[float, Meta(ge=0.001, le=100_000)] | None = None
    #: That of the target as it was read: where somebody has changed its limits since, nothing is done.
    limits_version: Annotated[str, Meta(pattern=r"^(-|\d{1,5})/(-|[0-9.e+-]{1,30})$")] | None = None


class PauseRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    target_url: Url
    credentials_id: str | None = None
    #: Left out: until it is resumed.
    seconds: Annotated[float, Meta(ge=1, le=_LONGEST_PAUSE)] | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=500)] | None = None


class ResumeRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    target_url: Url
    credentials_id: str | None = None


class ValidateRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    target_url: Url
    credentials_id: str | None = None
    #: Left out: a small JSON object with the type homing.test.
    payload: Annotated[str, Meta(max_length=65_536)] | None = None


class ProbeRequest(Struct, frozen=True):
    """A signed test event of the type homing.test, to be sent once and at once."""

    target_url: str
    credentials_id: int | None = None
    payload: str | None = None


class ProbeResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """What came back."""

    #: null when no answer came.
    status: int | None
    headers: dict[str, str]
    body: str | None
    duration_millis: int
    error: str | None
    error_class: str | None
    #: Whether it would have completed a job.
    completes: bool


Probe = Callable[[ProbeRequest], Awaitable[ProbeResult]]


class TargetView(Struct, frozen=True, kw_only=True, rename="camel"):
    """A target: scheme, host, port and credentials."""

    target: str
    credentials_id: str | None
    state: State
    #: Until when it is asked for nothing; null where that has no end, or where it is not held back.
    until: str | None
    reason: str | None
    #: In a row.
    failures: int
    last_error: str | None
    max_concurrency: int | None
    rate_per_second: float | None
    #: What its limits are known by, to be given with others; `-/-` while there are none.
    limits_version: str
    updated_at: str | None


class TargetPage(Struct, frozen=True):
    items: list[TargetView]
    #: What to give as `after` to go on; null at the end.
    next: str | None


class TargetDesk:
    def __init__(
        self,
        jobs: DispatchJobs,
        rules: Rules,
        admit: Admit,
        probe: Probe,
    ) -> None:
        self._jobs = jobs
        self._rules = rules
        self._admit = admit
        self._probe = probe

    async def page(self, after: str) -> TargetPage:
        rows = await self._jobs.run("targets", after=after, limit=_MOST_LISTED + 1)
        items = [target_view(row) for row in rows[:_MOST_LISTED]]
        return TargetPage(items, rows[_MOST_LISTED - 1]["target"] if len(rows) > _MOST_LISTED else None)

    async def show(self, url: str, credentials_id: str | None) -> tuple[str, TargetView]:
        """With the name that the tables have for it. What is wrong with the URL is told before all else."""
        _named(url, None)
        target = _named(url, credentials_number(credentials_id))
        return target, await self._view(target)

    async def limit(self, request: LimitRequest) -> TargetView:
        target = await self._target(request.target_url, request.credentials_id)
        limits = {
            "target": target,
            "max_concurrency": request.max_concurrency,
            "rate_per_second": request.rate_per_second,
        }
        if request.limits_version is None:
            await self._jobs.run("limit_target", **limits)
        elif not await self._jobs.run("replace_limits", **limits, **_seen(request.limits_version)):
            raise NotAllowed(f"{QUICKER}: {_in_words(await self._view(target))}")
        return await self._view(target)

    async def pause(self, request: PauseRequest) -> TargetView:
        target = await self._target(request.target_url, request.credentials_id)
        if request.reason is not None:
            check_text("reason", request.reason)
        now = self._rules.clock()
        until = _ENDLESS if request.seconds is None else now + timedelta(seconds=request.seconds)
        await self._jobs.run(
            "pause_target", target=target, until=self._time(until), reason=request.reason or _PAUSED_BY_HAND
        )
        return await self._view(target)

    async def resume(self, request: ResumeRequest) -> TargetView:
        # Its credentials may be gone by now, and its jobs are to end all the same.
        target = _named(request.target_url, credentials_number(request.credentials_id))
        await self._jobs.run("resume_target", target=target)
        self._jobs.database.announce(CHANNEL)
        return await self._view(target)

    async def validate(self, request: ValidateRequest, *, adds: bool) -> ProbeResult:
        """As for a job: whoever `adds` may use any credentials anywhere."""
        check_url(request.target_url, self._rules)
        id = credentials_number(request.credentials_id)
        for refusal in (await refused_uses([(id, request.target_url)], self._admit, adds=adds)).values():
            raise refusal
        if request.payload is not None and "\0" in request.payload:
            raise InvalidRequest("payload: must not contain a NUL character", "payload")
        return await self._probe(ProbeRequest(request.target_url, id, request.payload))

    async def _target(self, url: str, credentials_id: str | None) -> str:
        return _named(url, await self._credentials(credentials_id))

    async def _credentials(self, text: str | None) -> int | None:
        id = credentials_number(text)
        if id is not None and await self._admit(id, (), False) is None:
            raise unknown_credentials()
        return id

    async def _view(self, target: str) -> TargetView:
        rows = await self._jobs.run("target", target=target)
        return target_view(rows[0]) if rows else _unknown(target)

    def _time(self, moment: datetime) -> datetime | str | None:
        return iso(moment) if self._jobs.database.dialect == "sqlite" else moment


def _named(url: str, credentials_id: int | None) -> str:
    """The target of a URL, also of one that may not be sent to: it can be paused all the same."""
    target = target_of(url, credentials_id)
    if target == "invalid" or "://:" in target or CONTROL.search(url):
        raise InvalidRequest("targetUrl: write a URL such as https://example.com/hooks", "targetUrl")
    return target


def _version(at_once: int | None, a_second: float | None) -> str:
    """The limits themselves: whoever finds those again that they saw has missed nothing."""
    rate = _NO_LIMIT if a_second is None else repr(float(a_second))
    return f"{_NO_LIMIT if at_once is None else at_once}/{rate}"


def _seen(version: str) -> dict[str, float | None]:
    at_once, _, a_second = version.partition("/")
    try:
        rate = None if a_second == _NO_LIMIT else float(a_second)
    except ValueError:
        raise InvalidRequest(f"limitsVersion: {HINTS['limitsVersion']}", "limitsVersion") from None
    return {"seen_concurrency": None if at_once == _NO_LIMIT else int(at_once), "seen_rate": rate}


def _in_words(view: TargetView) -> str:
    at_once = "any number" if view.max_concurrency is None else f"{view.max_concurrency:,}"
    a_second = "any number" if view.rate_per_second is None else f"{view.rate_per_second:g}"
    return f"it is {at_once} at once and {a_second} a second now"


def target_view(row: Row) -> TargetView:
    state, until, reason = _state(row)
    place, credentials_id = _parts(row["target"])
    return TargetView(
        target=place,
        credentials_id=credentials_id,
        state=state,
        until=until_text(until),
        reason=reason,
        failures=row["failures"],
        last_error=row["last_error"],
        max_concurrency=row["max_concurrency"],
        rate_per_second=row["rate_per_second"],
        limits_version=_version(row["max_concurrency"], row["rate_per_second"]),
        updated_at=iso(row["updated_at"]),
    )


def _state(row: Row) -> tuple[State, datetime | None, str | None]:
    """A pause counts before the breaker: it is somebody's wish."""
    names = ("now", "paused_until", "open_until", "endpoint_until")
    now, paused, broken, alone = (instant(row[name]) for name in names)
    if paused is not None and now is not None and paused > now:
        return "paused", paused, row["pause_reason"]
    if broken is None or now is None:
        if alone is not None and now is not None and alone > now:
            return "closed", alone, "one of its URLs is left alone for a while; jobs for others go out"
        return "closed", None, None
    if broken > now:
        return "open", broken, f"it failed {row['failures']} times in a row"
    return "half_open", None, "it failed too often; one job at a time is tried"


def _parts(target: str) -> tuple[str, str | None]:
    place, _, number = target.partition("#")
    return place, text_of(int(number)) if number.isdecimal() else None


def _unknown(target: str) -> TargetView:
    """One that answers and has no limits needs no row."""
    place, credentials_id = _parts(target)
    return TargetView(
        target=place,
        credentials_id=credentials_id,
        state="closed",
        until=None,
        reason=None,
        failures=0,
        last_error=None,
        max_concurrency=None,
        rate_per_second=None,
        limits_version=_version(None, None),
        updated_at=None,
    )
