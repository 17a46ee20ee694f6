"""Orders of jobs: each mistake has its own message, names its field, and says how to mend it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.errors import InvalidRequest, PayloadTooLarge
from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.orders import Rules, read_order
from homing.senders.egress import EgressGuard

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RULES = Rules(EgressGuard().url_refusal, clock=lambda: NOW)
JOB = {"source": "s", "type": "t", "targetUrl": "https://example.com/hooks", "payload": "{}"}


def order(**fields: Any) -> NewJob:
    return read_order(json.dumps({**JOB, **fields}).encode(), RULES)


def tried(**fields: Any) -> NewJob | InvalidRequest:
    try:
        return order(**fields)
    except InvalidRequest as error:
        return error


def mistake(**fields: Any) -> InvalidRequest:
    error = tried(**fields)
    assert isinstance(error, InvalidRequest)
    return error


def test_a_short_order_has_the_defaults() -> None:
    job = order()
    assert (job.max_retries, job.retry_strategy, job.protocol) == (3, "exponential", "HTTP_WEBHOOK")
    assert (job.payload_content_type, job.ordering, job.fingerprint) == ("application/json", "none", None)
    assert job.target == "https://example.com:443"
    assert (job.metadata, job.headers) == (None, None)


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"source": ""}, "source", "must not be empty"),
    ({"source": " \t"}, "source", "must not be blank"),
    ({"source": "a\nb"}, "source", "control characters"),
    ({"source": "x" * 101}, "source", "at most 100 characters"),
    ({"source": 5}, "source", "must be text, not a number"),
    ({"type": "\0"}, "type", "control characters"),
    ({"type": None}, "type", "must be text, not null"),
    ({"groupId": "a\x85b"}, "groupId", "control characters"),
    ({"groupId": "g" * 101}, "groupId", "at most 100"),
    ({"externalId": "x" * 33}, "externalId", "at most 32"),
    ({"externalId": ""}, "externalId", "must not be empty"),
    ({"targetUrl": "ftp://example.com/"}, "targetUrl", "https://"),
    ({"targetUrl": "http://example.com/"}, "targetUrl", "HOMING_ALLOW_HTTP"),
    ({"targetUrl": "https://127.0.0.1/"}, "targetUrl", "loopback"),
    ({"targetUrl": "https://[::ffff:10.0.0.1]/"}, "targetUrl", "HOMING_EGRESS_ALLOW"),
    ({"targetUrl": "https://169.254.169.254/latest"}, "targetUrl", "metadata"),
    ({"targetUrl": "https://2130706433/"}, "targetUrl", "usual notation"),
    ({"targetUrl": "https://user:pw@example.com/"}, "targetUrl", "credentials"),
    ({"targetUrl": "https://example.com/#x"}, "targetUrl", "fragment"),
    ({"targetUrl": "https://example.com:25/"}, "targetUrl", "another protocol"),
    ({"targetUrl": "https://example.com/" + "x" * 2048}, "targetUrl", "at most 2,048 characters"),
    ({"payload": {"orderId": 1}}, "payload", "put JSON into a string"),
    ({"payload": None}, "payload", "put JSON into a string"),
    ({"payload": "a\0b"}, "payload", "NUL"),
    ({"payloadContentType": "json"}, "payloadContentType", "media type"),
    ({"payloadContentType": "text/plain\r\nX-A: b"}, "payloadContentType", "media type"),
    ({"payloadContentType": "a/" + "b" * 99}, "payloadContentType", "at most 100"),
    ({"protocol": "GRPC"}, "protocol", "only HTTP_WEBHOOK exists so far"),
    ({"protocol": "AWS_SQS"}, "protocol", "'AWS_SQS' is not possible"),
    ({"retryStrategy": "random"}, "retryStrategy", "exponential, linear or fixed"),
    ({"maxRetries": 0}, "maxRetries", "at least 1"),
    ({"maxRetries": 1001}, "maxRetries", "at most 1000"),
    ({"maxRetries": "3"}, "maxRetries", "must be a number, not text"),
    ({"maxRetries": 1.5}, "maxRetries", "must be a whole number, not a fraction"),
    ({"maxRetries": True}, "maxRetries", "must be a number, not true or false"),
    ({"maxRetries": 10**30}, "maxRetries", "at most 1000"),
    ({"timeoutSeconds": 0.05}, "timeoutSeconds", "at least 0.1"),
    ({"timeoutSeconds": 301}, "timeoutSeconds", "at most 300"),
    ({"ordering": "group"}, "ordering", "needs a groupId"),
    ({"ordering": "fifo"}, "ordering", "none, or group"),
    ({"idempotencyKey": ""}, "idempotencyKey", "must not be empty"),
    ({"idempotencyKey": "k" * 256}, "idempotencyKey", "at most 255"),
    ({"idempotencyKey": "a\tb"}, "idempotencyKey", "control characters"),
    ({"queueUrl": "q" * 2049}, "queueUrl", "at most 2,048"),
    ({"credentialsId": "cred-uuid-here"}, "credentialsId", "no such credentials"),
    ({"scheduledFor": "tomorrow"}, "scheduledFor", "2026-01-31T12:00:00Z"),
    ({"scheduledFor": "2026-02-01T12:00:00"}, "scheduledFor", "needs a zone"),
    ({"scheduledFor": "0001-01-01T00:00:00Z"}, "scheduledFor", "the year must be"),
    ({"scheduledFor": 1767268800}, "scheduledFor", "must be"),
    ({"expiresAt": "2026-01-01T12:00:00Z"}, "expiresAt", "in the past"),
    ({"expiresAt": "9999-12-31T23:59:59-14:00"}, "expiresAt", "the year must be"),
    (
        {"scheduledFor": "2026-02-01T00:00:00Z", "expiresAt": "2026-01-31T00:00:00Z"},
        "expiresAt",
        "later than scheduledFor",
    ),
    ({"metadata": {"priority": 5}}, "metadata.priority", "as a string"),
    ({"metadata": {"a": "x", "is": True}}, "metadata.is", "as a string"),
    ({"metadata": {"a": None}}, "metadata.a", "as a string"),
    ({"metadata": ["a"]}, "metadata", "an object of strings"),
    ({"metadata": {"a\tb": "x"}}, "metadata.a?b", "printable"),
    ({"metadata": {"": "x"}}, "metadata.", "1 to 100"),
    ({"metadata": {"k" * 101: "x"}}, "metadata." + "k" * 100, "1 to 100"),
    ({"metadata": {"k": "v" * 501}}, "metadata.k", "at most 500"),
    ({"metadata": {"k": "a\0"}}, "metadata.k", "control characters"),
    ({"metadata": {f"k{n}": "" for n in range(51)}}, "metadata", "at most 50 entries"),
    ({"headers": {"X-A": 1}}, "headers.X-A", "as a string"),
    ({"headers": {"X A": "b"}}, "headers.X A", "no name of a header"),
    ({"headers": {"": "b"}}, "headers.", "no name of a header"),
    ({"headers": {"X-A\r\nX-B": "b"}}, "headers.X-A??X-B", "no name of a header"),
    ({"headers": {"X-A": "b\r\nX-B: c"}}, "headers.X-A", "visible ASCII"),
    ({"headers": {"X-A": "grün"}}, "headers.X-A", "visible ASCII"),
    ({"headers": {"X-A": " b"}}, "headers.X-A", "spaces only in between"),
    ({"headers": {"X-A": "b" * 8193}}, "headers.X-A", "at most 8,192"),
    ({"headers": {"X-A": "b" * 8192, "X-B": "b" * 8192}}, "headers", "16,384"),
    ({"headers": {"X-A": "b", "x-a": "c"}}, "headers.x-a", "given twice"),
    ({"headers": {f"X-{n}": "" for n in range(51)}}, "headers", "at most 50 entries"),
    ({"headers": {"Authorization": "Bearer x"}}, "headers.Authorization", "credentialsId"),
    ({"headers": {"content-type": "a/b"}}, "headers.content-type", "payloadContentType"),
    ({"surprise": 1}, "surprise", "there is no such field"),
    ({"targetURL": "x"}, "targetURL", "did you mean targetUrl?"),
    ({"target_url": "x"}, "target_url", "did you mean targetUrl?"),
    ({"idempotency_key": "x"}, "idempotency_key", "did you mean idempotencyKey?"),
    ({"maxRetry": 1}, "maxRetry", "did you mean maxRetries?"),
    ({"a-b\n": 1}, "a-b?", "there is no such field"),
]


@pytest.mark.clause("JOB-01", "JOB-20", "JOB-25")
@pytest.mark.parametrize(("fields", "field", "words"), MISTAKES, ids=[str(m[:2])[:60] for m in MISTAKES])
def test_each_mistake_has_its_own_message(fields: dict[str, Any], field: str, words: str) -> None:
    error = mistake(**fields)
    assert (error.field, type(error)) == (field, InvalidRequest)
    assert words in str(error)
    assert str(error).startswith(f"{field}: ")


@pytest.mark.parametrize(
    "name",
    [
        "Host", "Content-Length", "Content-Type", "Transfer-Encoding", "Connection", "Upgrade", "TE",
        "Trailer", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Expect", "Accept-Encoding",
        "Authorization", "webhook-id", "Webhook-Signature", "X-FLOWCATALYST-SIGNATURE",
        "x-flowcatalyst-anything", "User-Agent",
    ],
)  # fmt: skip
def test_headers_that_we_set_cannot_be_given(name: str) -> None:
    for spelling in (name, name.lower(), name.upper()):
        error = mistake(headers={spelling: "x"})
        assert error.field == f"headers.{spelling}"
        assert "is set by us" in str(error)


def test_the_prefix_of_our_headers_can_be_another() -> None:
    rules = Rules(EgressGuard().url_refusal, header_prefix="X-Acme-")
    body = {**JOB, "headers": {"X-Flowcatalyst-Signature": "theirs"}}
    assert read_order(json.dumps(body).encode(), rules).headers == {"X-Flowcatalyst-Signature": "theirs"}
    with pytest.raises(InvalidRequest, match="is set by us"):
        read_order(json.dumps({**JOB, "headers": {"x-acme-timestamp": "x"}}).encode(), rules)


@pytest.mark.parametrize("missing", ["source", "type", "targetUrl", "payload"])
def test_what_is_required_is_asked_for(missing: str) -> None:
    body = {name: value for name, value in JOB.items() if name != missing}
    with pytest.raises(InvalidRequest) as raised:
        read_order(json.dumps(body).encode(), RULES)
    assert raised.value.field == missing
    assert str(raised.value).startswith(f"{missing}: is required; ")


@pytest.mark.parametrize("body", [b"[]", b"5", b'"x"', b"null", b"", b"{", b'{"source": "\xff"}'])
def test_a_body_that_is_no_job(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="body"):
        read_order(body, RULES)


def test_a_payload_is_at_most_a_mebibyte_of_utf8() -> None:
    assert len(order(payload="x" * 1024 * 1024).payload) == 1024 * 1024
    for payload in ("x" * (1024 * 1024 + 1), "ü" * (512 * 1024 + 1), "🚀" * (256 * 1024 + 1)):
        error = mistake(payload=payload)
        assert (type(error), error.field) == (PayloadTooLarge, "payload")


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json", "text/plain; charset=utf-8", "application/vnd.a+json;v=1", 'a/b; c="d e"',
        "application/cloudevents+json",
    ],
)  # fmt: skip
def test_media_types(content_type: str) -> None:
    assert order(payloadContentType=content_type).payload_content_type == content_type


def test_times_are_kept_in_utc_with_milliseconds() -> None:
    job = order(scheduledFor="2026-01-02T00:00:00.1239+02:00", expiresAt="2026-01-03T00:00:00z")
    assert (job.scheduled_for, job.expires_at) == ("2026-01-01T22:00:00.123Z", "2026-01-03T00:00:00.000Z")


@pytest.mark.clause("JOB-18")
def test_a_fingerprint_tells_orders_apart_and_nothing_else() -> None:
    first = order(idempotencyKey="k", metadata={"a": "1", "b": "2"}, scheduledFor="2026-01-02T00:00:00Z")
    same = order(
        idempotencyKey="k",
        metadata={"b": "2", "a": "1"},
        scheduledFor="2026-01-02T02:00:00+02:00",
        maxRetries=3,
    )
    assert first.fingerprint is not None
    assert first.fingerprint == same.fingerprint
    for change in (
        {"payload": "{ }"},
        {"maxRetries": 4},
        {"headers": {"X-A": "b"}},
        {"metadata": {"a": "1"}},
    ):
        fields = {
            "idempotencyKey": "k",
            "metadata": {"a": "1", "b": "2"},
            "scheduledFor": "2026-01-02T00:00:00Z",
        }
        assert order(**{**fields, **change}).fingerprint != first.fingerprint


names = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.dictionaries(names, names, max_size=5))
def test_no_header_that_is_taken_can_break_a_request(headers: dict[str, str]) -> None:
    answer = tried(headers=headers)
    if isinstance(answer, InvalidRequest):
        assert answer.field is not None
        assert not re.search(r"[\x00-\x1f]", str(answer))
        return
    for name, value in (answer.headers or {}).items():
        assert re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name)
        assert re.fullmatch(r"[\t -~]*", value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.sampled_from([*JOB, "metadata", "headers", "maxRetries", "scheduledFor", "ordering", "x"]), json_values
)
def test_whatever_a_field_holds_is_taken_or_explained(field: str, value: Any) -> None:
    answer = tried(**{field: value})
    if isinstance(answer, InvalidRequest):
        assert (answer.field or "").startswith(field)
