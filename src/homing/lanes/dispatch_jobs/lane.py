"""The lane: one attempt is one signed POST, and what came back says what becomes of the job."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from homing.engine.model import (
    Claim,
    Delivered,
    Failure,
    Monotonic,
    Outcome,
    Reject,
    Retry,
    Settlement,
    Skip,
)
from homing.engine.policy import Backoff, Exponential, Fixed, Linear, Policy
from homing.lanes.dispatch_jobs.credentials.signing import Secrets, UnreadableSecrets
from homing.lanes.dispatch_jobs.credentials.store import NotListed
from homing.lanes.dispatch_jobs.headers import is_ours
from homing.lanes.dispatch_jobs.job import PROTOCOL, Job, Report, read_headers
from homing.lanes.dispatch_jobs.jobs import DispatchJobs, key_of
from homing.lanes.dispatch_jobs.orders import how_to_allow
from homing.lanes.dispatch_jobs.target import Targets
from homing.lanes.dispatch_jobs.target_desk import ProbeRequest, ProbeResult
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.senders.webhook import WebhookRequest, WebhookResult, WebhookSender
from homing.senders.webhook_failure import CONNECT_TIMEOUT, NO_CONNECTION
from homing.tracing import TRACEPARENT, Tracing

_TEST_EVENT = '{"type":"homing.test","data":{"message":"A test event: nothing has happened."}}'
_EXPIRED = Failure("expired", "expired before it could be delivered")
_HEADERS_TOO_LARGE = Failure(
    "headers_too_large", "its headers are more than 1,000, or have more than 64 KiB; no server takes them"
)
_BUSY = Failure("target_busy", "the target was still busy with others")
_CLOSED = Failure("target_closed", "the target asked for a pause, or keeps failing")

#: The other side may want the same request again.
_WORTH_REPEATING = frozenset({408, 425, 429})
_ASKS_TO_WAIT = frozenset({429, 503})
#: Nothing that the target did.
_OUR_OWN = frozenset({"egress_refused", "invalid_url", "invalid_request"})
#: Beside a time-out before there was a connection.
_NO_CONNECTION = frozenset({"dns_error", "connect_error", "tls_error"})
#: No other attempt would go out differently.
_NEVER_SENT = frozenset({"invalid_url", "invalid_request"})
#: Waiting for a paused target is free however often: half-open probes are charged, so it comes to an end.
_DEFERRALS = 1_000_000
_JITTER = 0.2


@lru_cache(maxsize=1)
def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def now_to_the_millisecond() -> datetime:
    """As fine as the specification's timestamp, so that those of one moment are written out once."""
    return _moment(time.time_ns() // 1_000_000)


#: The secrets for an attempt at a URL.
SecretsFor = Callable[[int, str], Awaitable[Secrets | UnreadableSecrets | NotListed | None]]


class Strategies:
    """What a job's `retryStrategy` and `maxRetries` mean."""

    def __init__(self, base: float, longest: float) -> None:
        self._backoffs: Mapping[str, Backoff] = {
            # Half of it, because the engine's formula begins with twice the base.
            "exponential": Exponential(base / 2, longest, _JITTER),
            "linear": Linear(base),
            "fixed": Fixed(base),
        }
        self.policy = lru_cache(maxsize=1024)(self._policy)

    def know(self, strategy: str) -> bool:
        return strategy in self._backoffs

    def _policy(self, strategy: str, max_retries: int) -> Policy:
        # A job of an unknown strategy ends at its first attempt; until then it may be put off.
        backoff = self._backoffs.get(strategy, self._backoffs["exponential"])
        return Policy(max_retries, backoff, max_deferrals=_DEFERRALS, shortest_deferral=0.25)


class DispatchJobsLane:
    name = "dispatch_jobs"

    def __init__(
        self,
        jobs: DispatchJobs,
        targets: Targets,
        credentials: SecretsFor,
        sender: WebhookSender,
        *,
        strategies: Strategies,
        lease_seconds: float,
        timeout_seconds: float,
        reject_4xx: bool = False,
        header_prefix: str = "X-FLOWCATALYST-",
        tracing: Tracing | None = None,
        clock: Callable[[], datetime] = now_to_the_millisecond,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self.store = jobs
        self.lease_seconds = lease_seconds
        self._targets = targets
        self._credentials = credentials
        self._sender = sender
        self._strategies = strategies
        self._timeout_seconds = timeout_seconds
        self._reject_4xx = reject_4xx
        self._header_prefix = header_prefix
        self._tracing = tracing or Tracing()
        self._clock = clock
        self._monotonic = monotonic

    def policy_of(self, claim: Claim[Job]) -> Policy:
        return self._strategies.policy(claim.item.retry_strategy, claim.item.max_retries)

    async def available(self) -> bool:
        return True

    async def attempt(self, claim: Claim[Job]) -> Outcome:
        job = claim.item
        if (reason := self._unsendable(claim)) is not None:
            return Skip(reason)
        gate = self._targets.gate(job.target)
        ticket = await gate.enter(self._monotonic)
        if ticket is None:
            return Retry(_BUSY, charged=False)
        seconds = None
        try:
            if (wait := self._targets.admit(job.target, job.target_url)) > 0:
                return Retry(_CLOSED, after=wait, charged=False)
            request = await self._request(claim)
            if isinstance(request, Failure):
                # No attempt makes it allowed; a person does, and requeues the job.
                is_final = request.code == "credential_not_allowed"
                return Skip(request) if is_final else Retry(request, report=Report())
            self.store.sending[key_of(claim)] = self._monotonic()
            result = await self._sender.send(request)
            if result.error_code == "out_of_resources":
                # What we lack says nothing of the target, and costs the job nothing.
                return Retry(_failure(result), charged=False)
            seconds = result.seconds
            return self._conclude(job, result)
        finally:
            self.store.sending.pop(key_of(claim), None)
            gate.leave(ticket, seconds)

    def _unsendable(self, claim: Claim[Job]) -> Failure | None:
        """Why it is not to be sent at all. Another program may have written any row."""
        job = claim.item
        if job.expired:
            return _EXPIRED
        if job.headers == "":
            return _HEADERS_TOO_LARGE
        if job.protocol != PROTOCOL:
            return Failure(
                "unknown_protocol", f"unknown protocol {job.protocol!r}; {PROTOCOL} is the only one"
            )
        if not self._strategies.know(job.retry_strategy):
            known = "exponential, linear or fixed"
            return Failure(
                "unknown_retry_strategy", f"unknown retryStrategy {job.retry_strategy!r}; it is {known}"
            )
        if claim.attempts >= job.max_retries:
            return Failure("attempts_used_up", f"all {job.max_retries} attempts are used up")
        return None

    async def _request(self, claim: Claim[Job]) -> WebhookRequest | Failure:
        job = claim.item
        payload = await self.store.payload(claim.id) if job.payload is None else job.payload
        if payload is None:
            return Failure("job_missing", "the job was deleted")
        body = payload.encode()
        headers = [("Content-Type", job.payload_content_type)]
        if job.headers is not None:
            given = read_headers(job.headers)
            headers += [pair for pair in given if not is_ours(pair[0].lower(), self._header_prefix)]
        signed = await self.signed(text_of(claim.id), job.credentials_id, job.target_url, body)
        if isinstance(signed, Failure):
            return signed
        headers += signed
        if (trace := self._tracing.outgoing(claim.traceparent, job.tracestate)) is not None:
            headers += _unless_given(trace.headers, headers)
        timeout = self._timeout_seconds if job.timeout_seconds is None else job.timeout_seconds
        return WebhookRequest(job.target_url, headers, body, timeout)

    async def signed(
        self, id: str, credentials_id: int | None, url: str, body: bytes
    ) -> list[tuple[str, str]] | Failure:
        """The headers by which a receiver knows that this came from us, and that it came twice."""
        if credentials_id is None:
            return [("webhook-id", id)]
        found = await self._credentials(credentials_id, url)
        if isinstance(found, NotListed):
            return Failure(
                "credential_not_allowed",
                f"the credentials {text_of(credentials_id)} may not be used for {found.origin}; "
                f"{how_to_allow(credentials_id, found.origin)}, and requeue the job",
            )
        if found is None:
            id_text = text_of(credentials_id)
            return Failure("credentials_missing", f"there are no credentials {id_text}; create the job anew")
        if isinstance(found, UnreadableSecrets):
            return Failure("credentials_unreadable", found.message)
        headers = found.headers(id, self._clock(), body)
        headers.setdefault("webhook-id", id)
        return list(headers.items())

    async def probe(self, request: ProbeRequest) -> ProbeResult:
        """One signed test event, at once and outside of everything: no job, no retry, no breaker."""
        id = f"test_{secrets.token_hex(8)}"
        body = (request.payload or _TEST_EVENT).encode()
        signed = await self.signed(id, request.credentials_id, request.target_url, body)
        if isinstance(signed, Failure):
            return _unsent(signed)
        headers = [("Content-Type", "application/json"), *signed]
        result = await self._sender.send(
            WebhookRequest(request.target_url, headers, body, self._timeout_seconds)
        )
        return _probed(result)

    def _conclude(self, job: Job, result: WebhookResult) -> Outcome:
        wait = result.retry_after if result.status in _ASKS_TO_WAIT else None
        if not wait:
            hurried = self._is_hurried(job)
            if _target_failed(result, hurried=hurried) is False:
                self._targets.is_well(job.target, job.target_url)
            return conclude(result, reject_4xx=self._reject_4xx, hurried=hurried)
        failure = _failure(result)
        if self._targets.close(job.target, job.target_url, wait):
            return Retry(failure, after=wait, report=_report(result, pause=wait))
        # Others have paid for this pause already.
        return Retry(failure, after=wait, charged=False)

    def _is_hurried(self, job: Job) -> bool:
        """It gives the target less time than a connection may take: that it was too late is its own doing."""
        own = job.timeout_seconds
        return own is not None and own < min(CONNECT_TIMEOUT, self._timeout_seconds)

    def describe(self, claim: Claim[Job], settlement: Settlement | None) -> Mapping[str, Any]:
        report = getattr(settlement, "report", None)
        return {
            "job": text_of(claim.id),
            "target": claim.item.target,
            "response_code": report.response_code if report is not None else None,
        }


def _unless_given(
    trace: Sequence[tuple[str, str]], headers: Sequence[tuple[str, str]]
) -> Sequence[tuple[str, str]]:
    """Whoever gives a `traceparent` of their own means that one, and what they say beside it."""
    return () if any(name.lower() == TRACEPARENT for name, _ in headers) else trace


def _unsent(failure: Failure) -> ProbeResult:
    return ProbeResult(
        status=None, headers={}, body=None, duration_millis=0,
        error=failure.message, error_class=failure.code, completes=False,
    )  # fmt: skip


def _probed(result: WebhookResult) -> ProbeResult:
    outcome = conclude(result, reject_4xx=False)
    failure: Failure | None = getattr(outcome, "failure", None)
    return ProbeResult(
        status=result.status,
        headers=dict(result.headers),
        body=result.body,
        duration_millis=round(result.seconds * 1000),
        error=failure.message if failure else None,
        error_class=failure.code if failure else None,
        completes=isinstance(outcome, Delivered),
    )


def conclude(result: WebhookResult, *, reject_4xx: bool, hurried: bool = False) -> Outcome:
    """2xx completes, 410 ends; everything else is tried again, 4xx unless they are said to be final."""
    status = result.status
    if result.error_code is None and status is not None and 200 <= status < 300:
        return Delivered(_report(result))
    failure, report = _failure(result), _report(result, hurried=hurried)
    final = status == 410 or (reject_4xx and _is_refusal(status)) or result.error_code in _NEVER_SENT
    return Reject(failure, report) if final else Retry(failure, report=report)


def _is_refusal(status: int | None) -> bool:
    return status is not None and 400 <= status < 500 and status not in _WORTH_REPEATING


def _failure(result: WebhookResult) -> Failure:
    return Failure(result.error_code or f"http_{result.status}", result.message)


def _report(result: WebhookResult, pause: float = 0.0, *, hurried: bool = False) -> Report:
    return Report(
        result.seconds,
        result.status,
        result.body,
        dict(result.headers),
        result.unknown,
        _target_failed(result, hurried=hurried),
        pause,
        _is_unreachable(result),
    )


def _target_failed(result: WebhookResult, *, hurried: bool = False) -> bool | None:
    """Whether the target as a whole is in trouble, as against this one job."""
    if hurried and result.error_code == "timeout":
        return None
    if result.error_code is not None:
        return None if result.error_code in _OUR_OWN else True
    return result.status is None or result.status >= 500 or result.status == 429


def _is_unreachable(result: WebhookResult) -> bool:
    """Whether it failed before anybody could see the URL."""
    if result.error_code == "timeout":
        return result.status is None and result.message.startswith(NO_CONNECTION)
    return result.error_code in _NO_CONNECTION
