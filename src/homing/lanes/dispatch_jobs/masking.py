"""What is left out for who may only look: secrets of receivers that stand in a job's URL and headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from litestar import Request
from msgspec.structs import replace

from homing.lanes.dispatch_jobs.dead_letters import SOURCE
from homing.lanes.dispatch_jobs.look import host_of, without_query
from homing.lanes.dispatch_jobs.view import Attempt, JobSummary, JobView
from homing.messages.model import sees_whole

Job = TypeVar("Job", bound=JobSummary)

HIDDEN: Final = "…"
#: What a producer's header holds is the receiver's business. These are known to hold no secret; a list of
#: those that may would always lack one.
_HARMLESS: Final = frozenset(
    {
        *("accept", "accept-charset", "accept-encoding", "accept-language", "cache-control"),
        *("content-encoding", "content-language", "expect", "from", "priority", "user-agent"),
        *("x-correlation-id", "x-request-id", "traceparent"),
    }
)


def is_harmless(header: str) -> bool:
    return header.lower() in _HARMLESS


def shown_url(source: str, url: str, *, with_path: bool = True) -> str:
    """Without the query. A chat's address is a secret from its path on: the dashboard shows that only to
    those who know it already, and of our own jobs, which go where a setting says, to nobody.
    """
    if with_path and source != SOURCE:
        return without_query(url)
    return f"{url.partition('://')[0]}://{host_of(url)}/{HIDDEN}"


def sight_of(request: Request[Any, Any, Any]) -> Callable[[Job], Job]:
    """What to do with a job before it is answered. Without a door nobody is asked: for tests of routes."""
    user = request.scope.get("user")
    if user is None or sees_whole(user.may, "jobs"):
        return _of_trusted
    # Whoever looks at the dashboard calls this with the same session.
    return _masked_of_person if user.kind == "user" else masked


def attempts_sight_of(request: Request[Any, Any, Any]) -> Callable[[Attempt], Attempt]:
    """What to do with an attempt: how we are made inside is for administrators."""
    user = request.scope.get("user")
    return _as_it_is if user is None or user.may("access:admin") else _without_trace


def _as_it_is(attempt: Attempt) -> Attempt:
    return attempt


def _without_trace(attempt: Attempt) -> Attempt:
    return replace(attempt, error_stack_trace=None)


def _of_trusted(job: Job) -> Job:
    return masked(job) if job.source == SOURCE else job


def _masked_of_person(job: Job) -> Job:
    return masked(job, with_path=False)


def masked(job: Job, *, with_path: bool = True) -> Job:
    url = shown_url(job.source, job.target_url, with_path=with_path)
    if isinstance(job, JobView):
        return replace(job, target_url=url, headers=_masked(job.headers))
    return replace(job, target_url=url)


def _masked(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value if is_harmless(name) else HIDDEN for name, value in headers.items()}
