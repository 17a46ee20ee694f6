"""Orders of jobs as the API takes them: checked, so that nothing is stored that could never be sent."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from homing.db import iso
from homing.errors import Forbidden, InvalidRequest, PayloadTooLarge
from homing.lanes.dispatch_jobs.headers import is_ours
from homing.lanes.dispatch_jobs.job import OWN_SOURCE, NewJob
from homing.lanes.dispatch_jobs.mistakes import CONTROL, read
from homing.lanes.dispatch_jobs.target import target_of
from homing.lanes.dispatch_jobs.tsid import number_of, text_of
from homing.senders.egress import origin_of

Protocol = Literal["HTTP_WEBHOOK"]
RetryStrategy = Literal["exponential", "linear", "fixed"]
Ordering = Literal["none", "group"]
Label = Annotated[str, Meta(min_length=1, max_length=100)]
Moment = Annotated[datetime, Meta(tz=True)]

MOST_METADATA = 50
LONGEST_KEY, LONGEST_VALUE = 100, 500
LARGEST_PAYLOAD = 1024 * 1024
_MOST_HEADERS = 50
_LONGEST_NAME = 200
_LARGEST_HEADER, _LARGEST_HEADERS = 8 * 1024, 16 * 1024
_FIRST_YEAR, _LAST_YEAR = 1970, 9998

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - HTTP calls the form of a name so
_NAME = re.compile(_TOKEN)
_HEADER_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")
_MEDIA_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(?:[ \t]*;[ \t]*{_TOKEN}=(?:{_TOKEN}|"[ !#-\[\]-~]*"))*')
#: All that can be shown; what cannot is the same as in values.
METADATA_KEY = re.compile(r"[^\x00-\x1f\x7f-\x9f]+")

#: What the connection, the signature or the job itself decides.
_INSTEAD = {
    "authorization": "it comes from the credentials; name them as credentialsId",
    "content-type": "give it as payloadContentType",
}

HINTS: Mapping[str, str] = {
    "": "the body must be one job, a JSON object; several go to POST /api/dispatch/jobs/batch",
    "payload": 'the body of the webhook as text: put JSON into a string, as in "{\\"orderId\\":1}"',
    "protocol": "only HTTP_WEBHOOK exists so far",
    "retryStrategy": "it is exponential, linear or fixed",
    "ordering": "it is none, or group to deliver the jobs of a groupId one after the other",
    "maxRetries": "it is the number of attempts in all, from 1 to 1000",
    "timeoutSeconds": "it is from 0.1 to 300 seconds",
    "metadata": "it is an object of strings",
    "headers": "it is an object of strings",
    "targetUrl": "where the webhook goes, such as https://example.com/hooks",
    "source": "who sends it, such as order-service",
    "type": "what happened, such as order.created",
}


class JobRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One job, as it is ordered by POST. What is null counts as left out."""

    source: Annotated[Label, Meta(description="Who sends it", examples=["order-service"])]
    type: Annotated[Label, Meta(description="What happened", examples=["order.created"])]
    target_url: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2048,
            description="Where the webhook goes",
            examples=["https://partner.example.com/webhooks/orders"],
        ),
    ]
    payload: Annotated[
        str,
        Meta(
            description="Its body as text, up to 1 MiB of UTF-8; JSON is put into a string",
            examples=['{"orderId":"12345","amount":99.99}'],
        ),
    ]
    external_id: Annotated[str, Meta(min_length=1, max_length=32, description="An id of yours")] | None = None
    group_id: Annotated[Label, Meta(description="To search by, and for `ordering`")] | None = None
    metadata: (
        Annotated[
            dict[str, str],
            Meta(
                max_length=MOST_METADATA,
                description="To search by: up to 50 entries of at most 500 characters",
                examples=[{"tenantId": "acme-corp", "priority": "high"}],
            ),
        ]
        | None
    ) = None
    protocol: Protocol | None = None
    headers: (
        Annotated[
            dict[str, str],
            Meta(
                max_length=_MOST_HEADERS,
                description="Sent along; up to 50, none of those that we set ourselves",
                examples=[{"X-Custom-Header": "value"}],
            ),
        ]
        | None
    ) = None
    payload_content_type: (
        Annotated[str, Meta(min_length=1, max_length=100, description="By default application/json")] | None
    ) = None
    credentials_id: Annotated[str, Meta(description="What it is signed with; null: unsigned")] | None = None
    max_retries: Annotated[int, Meta(ge=1, le=1000, description="Attempts in all, by default 3")] | None = (
        None
    )
    retry_strategy: RetryStrategy | None = None
    scheduled_for: Annotated[Moment, Meta(description="Not before then; with a zone")] | None = None
    expires_at: Annotated[Moment, Meta(description="Not after then; with a zone")] | None = None
    idempotency_key: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=255,
                description="The same order under a key is one job, per source, type, target and credentials",
            ),
        ]
        | None
    ) = None
    queue_url: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    ordering: Ordering | None = None
    timeout_seconds: (
        Annotated[float, Meta(ge=0.1, le=300, description="For one attempt, by default 30")] | None
    ) = None


class Rules(Struct, frozen=True):
    """What an installation allows."""

    #: Why no job may be created for a URL, or None.
    url_refusal: Callable[[str], str | None]
    #: Headers that begin so are ours to set.
    header_prefix: str = "X-FLOWCATALYST-"
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


def read_order(body: bytes | msgspec.Raw, rules: Rules) -> NewJob:
    """From JSON to columns; raises `InvalidRequest` with the field."""
    return order_of(read(body, JobRequest, HINTS), rules)


def order_of(request: JobRequest, rules: Rules) -> NewJob:
    """Check what a database would take and a sender would later refuse."""
    _check_labels(request)
    _check_payload(request.payload)
    _check_content_type(request.payload_content_type)
    check_metadata(request.metadata or {})
    _check_headers(request.headers or {}, rules.header_prefix)
    _check_ordering(request)
    credentials_id = credentials_number(request.credentials_id)
    check_url(request.target_url, rules)
    scheduled_for, expires_at = _times(request, rules.clock())
    order = NewJob(
        source=request.source,
        type=request.type,
        target_url=request.target_url,
        target=target_of(request.target_url, credentials_id),
        payload=request.payload,
        external_id=request.external_id,
        group_id=request.group_id,
        protocol=request.protocol or "HTTP_WEBHOOK",
        payload_content_type=request.payload_content_type or "application/json",
        credentials_id=credentials_id,
        max_retries=request.max_retries or 3,
        retry_strategy=request.retry_strategy or "exponential",
        scheduled_for=iso(scheduled_for),
        expires_at=iso(expires_at),
        idempotency_key=request.idempotency_key,
        queue_url=request.queue_url,
        ordering=request.ordering or "none",
        timeout_seconds=request.timeout_seconds,
        metadata=request.metadata or None,
        headers=request.headers or None,
    )
    return msgspec.structs.replace(order, fingerprint=fingerprint(order)) if order.idempotency_key else order


def fingerprint(order: NewJob) -> str:
    """The same for the same order, whether its defaults were spelt out or not."""
    return hashlib.sha256(msgspec.json.encode(order, order="deterministic")).hexdigest()


# ── one message for each mistake ─────────────────────────────────────────────────────────────────


def _check_labels(request: JobRequest) -> None:
    given = (
        ("source", request.source),
        ("type", request.type),
        ("groupId", request.group_id),
        ("externalId", request.external_id),
        ("idempotencyKey", request.idempotency_key),
        ("queueUrl", request.queue_url),
    )
    for field, value in given:
        if value is not None:
            check_text(field, value)
    if request.source == OWN_SOURCE:
        raise InvalidRequest(
            f"source: {OWN_SOURCE} is the source of Homing's own dead letters and alerts; take another name",
            "source",
        )


def check_text(field: str, value: str) -> None:
    if not value.strip():
        raise InvalidRequest(f"{field}: must not be blank", field)
    if CONTROL.search(value):
        raise InvalidRequest(f"{field}: must not contain control characters", field)


def _check_payload(payload: str) -> None:
    if len(payload) > LARGEST_PAYLOAD or len(payload.encode()) > LARGEST_PAYLOAD:
        raise PayloadTooLarge(
            "payload: must be at most 1 MiB (1,048,576 bytes of UTF-8); send a reference to what is larger",
            "payload",
        )
    if "\0" in payload:
        raise InvalidRequest("payload: contains a NUL character, which no database keeps", "payload")


def _check_content_type(given: str | None) -> None:
    if given is not None and not _MEDIA_TYPE.fullmatch(given):
        raise InvalidRequest(
            "payloadContentType: must be a media type, such as application/json or text/plain; charset=utf-8",
            "payloadContentType",
        )


def check_metadata(metadata: Mapping[str, str], at: str = "metadata") -> None:
    for key, value in metadata.items():
        field = f"{at}.{CONTROL.sub('?', key)[:LONGEST_KEY]}"
        if not METADATA_KEY.fullmatch(key) or len(key) > LONGEST_KEY:
            raise InvalidRequest(f"{field}: a key has 1 to {LONGEST_KEY} printable characters", field)
        if len(value) > LONGEST_VALUE:
            raise InvalidRequest(f"{field}: must have at most {LONGEST_VALUE} characters", field)
        if CONTROL.search(value):
            raise InvalidRequest(f"{field}: must not contain control characters", field)


def _check_headers(headers: Mapping[str, str], prefix: str) -> None:
    seen: set[str] = set()
    for name, value in headers.items():
        field = f"headers.{CONTROL.sub('?', name)[:_LONGEST_NAME]}"
        _check_header_name(field, name, prefix)
        _check_header_value(field, value)
        if name.lower() in seen:
            raise InvalidRequest(f"{field}: is given twice; capitals make no difference", field)
        seen.add(name.lower())
    if sum(len(name) + len(value) for name, value in headers.items()) > _LARGEST_HEADERS:
        raise InvalidRequest("headers: must have at most 16,384 characters in all", "headers")


def _check_header_name(field: str, name: str, prefix: str) -> None:
    lower = name.lower()
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise InvalidRequest(
            f"{field}: is no name of a header; it has 1 to {_LONGEST_NAME} letters, digits and hyphens", field
        )
    if is_ours(lower, prefix):
        instead = _INSTEAD.get(lower, "leave it out")
        raise InvalidRequest(f"{field}: is set by us and cannot be given; {instead}", field)


def _check_header_value(field: str, value: str) -> None:
    if len(value) > _LARGEST_HEADER:
        raise InvalidRequest(f"{field}: must have at most {_LARGEST_HEADER:,} characters", field)
    if not _HEADER_VALUE.fullmatch(value):
        raise InvalidRequest(
            f"{field}: must be visible ASCII, with spaces only in between; encode what is not", field
        )


def _check_ordering(request: JobRequest) -> None:
    if request.ordering == "group" and request.group_id is None:
        raise InvalidRequest("ordering: group needs a groupId, whose jobs are kept in order", "ordering")


def credentials_number(text: str | None) -> int | None:
    if text is None:
        return None
    number = number_of(text)
    if number is None:
        raise unknown_credentials()
    return number


def unknown_credentials() -> InvalidRequest:
    return InvalidRequest(
        "credentialsId: there are no such credentials; make them by POST /api/admin/dispatch/credentials,"
        " or leave it out to send without a signature",
        "credentialsId",
    )


#: Of these origins, those that a caller may not use the credentials for, unless it adds them; None where
#: there are no such credentials.
Admit = Callable[[int, Collection[str], bool], Awaitable[frozenset[str] | None]]


async def refused_uses(
    uses: Iterable[tuple[int | None, str]], admit: Admit, *, adds: bool
) -> dict[tuple[int | None, str], InvalidRequest | Forbidden]:
    """What is wrong with credentials at URLs, by pairs of both; each of the credentials is asked for once."""
    origins: dict[int, dict[str, str]] = defaultdict(dict)
    for id, url in uses:
        if id is not None:
            origins[id][url] = origin_of(url) or ""
    asked = [admit(id, {*those.values()}, adds) for id, those in origins.items()]
    # Together, so that one query loads those that are not known yet; for one alone a task would cost more.
    answers = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
    refused: dict[tuple[int | None, str], InvalidRequest | Forbidden] = {}
    for (id, those), missing in zip(origins.items(), answers, strict=True):
        for url, origin in those.items():
            if missing is None:
                refused[id, url] = unknown_credentials()
            elif origin in missing:
                refused[id, url] = not_allowed(id, origin)
    return refused


def not_allowed(credentials_id: int, origin: str) -> Forbidden:
    id = text_of(credentials_id)
    return Forbidden(
        f"credentialsId: {id} may not be used for {origin or 'this URL'}; somebody with the scope "
        f"credentials:admin adds it to their allowedTargets ({how_to_allow(credentials_id, origin)})"
    )


def how_to_allow(credentials_id: int, origin: str) -> str:
    id = text_of(credentials_id)
    return (
        f"`homing credentials allow {id} {origin}`, or "
        f"PUT /api/admin/dispatch/credentials/{id}/allowed-targets"
    )


def check_url(url: str, rules: Rules) -> None:
    refusal = rules.url_refusal(url)
    if refusal is not None:
        raise InvalidRequest(f"targetUrl: {refusal}", "targetUrl")


def _times(request: JobRequest, now: datetime) -> tuple[datetime | None, datetime | None]:
    starts, ends = request.scheduled_for, request.expires_at
    check_year("scheduledFor", starts)
    check_year("expiresAt", ends)
    if ends is not None and ends <= now:
        raise InvalidRequest("expiresAt: is in the past, so the job would never be sent", "expiresAt")
    if starts is not None and ends is not None and ends <= starts:
        raise InvalidRequest("expiresAt: must be later than scheduledFor", "expiresAt")
    return starts, ends


def check_year(field: str, moment: datetime | None) -> None:
    if moment is not None and not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise InvalidRequest(f"{field}: the year must be from {_FIRST_YEAR} to {_LAST_YEAR}", field)
