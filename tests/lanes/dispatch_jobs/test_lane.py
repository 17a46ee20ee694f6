"""The lane from a row to a receiver and back: real HTTP, on both databases."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook
from tests.jobs import JobBench, job, job_bench
from tests.senders.webhook_peers import Names, guard

from homing import VerificationError, verify
from homing.db import instant, iso
from homing.lanes.dispatch_jobs.credentials.orders import CreateCredentials
from homing.lanes.dispatch_jobs.credentials.store import Credentials
from homing.lanes.dispatch_jobs.target_desk import ProbeRequest
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.senders.webhook import WebhookSender
from homing.testing.http_sink import Answer, HttpSink, SinkRequest
from homing.vault import Vault

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TOKEN = "sk_live_abc123"
PAYLOAD = '{"orderId":"12345","amount":99.99}'


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(database_url) as opened:
        yield opened


@pytest.fixture
async def sink() -> AsyncIterator[HttpSink]:
    async with HttpSink() as opened:
        yield opened


async def credentials(bench: JobBench, **given: Any) -> int:
    wanted = {"bearer_token": TOKEN, "signing_secret": SECRET, "allowed_targets": ("*",), **given}
    issued = await bench.homing.credentials.create(CreateCredentials(**wanted))
    id: int = issued.row["id"]
    return id


def later(seconds: float) -> str:
    return iso(datetime.now(UTC) + timedelta(seconds=seconds)) or ""


# ── what goes out ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-07", "JOB-08", "JOB-09")
async def test_a_job_becomes_a_signed_post_byte_for_byte(lane: JobBench, sink: HttpSink) -> None:
    (id,) = await lane.create(
        sink.url + "/webhooks/orders?v=1",
        credentials_id=await credentials(lane),
        headers={"X-Custom-Header": "value"},
    )
    before = datetime.now(UTC)
    await lane.run_batch()
    (request,) = sink.requests
    assert (request.method, request.path) == ("POST", "/webhooks/orders?v=1")
    assert request.body == PAYLOAD.encode()
    names = [name for name, _ in request.headers]
    assert len({name.lower() for name in names}) == len(names), "none twice"
    sent = dict(request.headers)
    assert sent["Authorization"] == f"Bearer {TOKEN}"
    assert sent["Content-Type"] == "application/json"
    assert sent["X-Custom-Header"] == "value"
    assert sent["webhook-id"] == text_of(id)
    timestamp = sent["X-FLOWCATALYST-TIMESTAMP"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", timestamp)
    assert abs(datetime.fromisoformat(timestamp) - before) < timedelta(minutes=1)
    assert sent["X-FLOWCATALYST-SIGNATURE"] == _as_specified(timestamp, PAYLOAD, SECRET)
    assert _verified_as_specified(request, SECRET)
    assert await lane.states([id]) == ["COMPLETED"]


def _as_specified(timestamp: str, payload: str, secret: str) -> str:
    """The specification's algorithm, in its own words."""
    signature_payload = timestamp + payload
    return hmac.new(secret.encode("utf-8"), signature_payload.encode("utf-8"), "sha256").hexdigest()


def _verified_as_specified(request: SinkRequest, secret: str) -> bool:
    """The specification's `verifyWebhook`, line by line."""
    received_signature = request.header("x-flowcatalyst-signature") or ""
    received_timestamp = request.header("x-flowcatalyst-timestamp") or ""
    age = datetime.now(UTC) - datetime.fromisoformat(received_timestamp)
    if age.total_seconds() > 300:
        return False
    expected_signature = _as_specified(received_timestamp, request.body.decode(), secret)
    return hmac.compare_digest(received_signature.encode(), expected_signature.encode())


@pytest.mark.clause("JOB-07", "JOB-08")
async def test_receivers_verify_it_with_standard_webhooks_and_with_ours(
    lane: JobBench, sink: HttpSink
) -> None:
    await lane.create(sink.url, credentials_id=await credentials(lane))
    await lane.run_batch()
    (request,) = sink.requests
    assert Webhook(SECRET).verify(request.body, dict(request.headers)) == {
        "orderId": "12345",
        "amount": 99.99,
    }
    for scheme in ("standard", "flowcatalyst"):
        assert verify(request.body, request.headers, SECRET, scheme=scheme).scheme == scheme
    for moved, reason in ((301, "too_old"), (-301, "too_new")):
        at = datetime.now(UTC) + timedelta(seconds=moved * 1.05)
        with pytest.raises(VerificationError) as refused:
            verify(request.body, request.headers, SECRET, now=at)
        assert refused.value.reason == reason
    with pytest.raises(VerificationError):
        verify(request.body + b" ", request.headers, SECRET)


@pytest.mark.clause("JOB-07")
async def test_the_prefix_of_the_headers_can_be_another(database_url: str, sink: HttpSink) -> None:
    async with job_bench(database_url, jobs_header_prefix="X-Shop") as lane:
        await lane.create(sink.url, credentials_id=await credentials(lane))
        await lane.run_batch()
    (request,) = sink.requests
    assert request.header("X-Shop-Signature")
    assert request.header("X-FLOWCATALYST-SIGNATURE") is None
    verify(request.body, request.headers, SECRET, scheme="flowcatalyst", header_prefix="X-Shop")


@pytest.mark.clause("JOB-01", "JOB-07")
async def test_without_credentials_nothing_is_signed(lane: JobBench, sink: HttpSink) -> None:
    (id,) = await lane.create(sink.url, payload_content_type="text/plain; charset=utf-8")
    await lane.run_batch()
    (request,) = sink.requests
    assert request.header("webhook-id") == text_of(id)
    assert request.header("Content-Type") == "text/plain; charset=utf-8"
    for name in ("Authorization", "webhook-signature", "X-FLOWCATALYST-SIGNATURE"):
        assert request.header(name) is None, name


@pytest.mark.clause("JOB-07")
async def test_the_body_is_the_payload_byte_for_byte(lane: JobBench, sink: HttpSink) -> None:
    payloads = ['{"name":"Zoë 🐦","text":"a\r\nb\tc"}', "", " \n", "é" * 70_000, '{"a": 1.0,"a":2}']
    used = await credentials(lane)
    ids = [(await lane.create(sink.url, payload=text, credentials_id=used))[0] for text in payloads]
    await lane.run_batch()
    found = {request.header("webhook-id"): request for request in sink.requests}
    for id, payload in zip(ids, payloads, strict=True):
        request = found[text_of(id)]
        assert request.body == payload.encode()
        assert request.header("Content-Length") == str(len(payload.encode()))
        assert _verified_as_specified(request, SECRET)


@pytest.mark.clause("JOB-07")
async def test_all_attempts_carry_the_same_id_and_a_signature_of_their_own(
    lane: JobBench, sink: HttpSink
) -> None:
    sink.script = answers(500, 503, 200)
    (id,) = await lane.create(sink.url, credentials_id=await credentials(lane))
    clock = iter(datetime(2025, 10, 4, 14, 30, 45, 123456, tzinfo=UTC) + timedelta(days=n) for n in range(3))
    lane.lane._clock = lambda: next(clock)
    await lane.run_until_idle()
    assert [r.header("webhook-id") for r in sink.requests] == [text_of(id)] * 3
    stamps = [r.header("X-FLOWCATALYST-TIMESTAMP") or "" for r in sink.requests]
    assert stamps[0] == "2025-10-04T14:30:45.123Z", "as the specification's example"
    signatures = [r.header("X-FLOWCATALYST-SIGNATURE") for r in sink.requests]
    assert signatures == [_as_specified(stamp, PAYLOAD, SECRET) for stamp in stamps]
    assert len(set(signatures)) == 3


def answers(*statuses: int) -> Callable[[SinkRequest], Answer]:
    """These in turn, then the last for ever."""
    left = list(statuses)
    return lambda _request: Answer(status=left.pop(0) if len(left) > 1 else left[0])


# ── what comes of it ─────────────────────────────────────────────────────────────────────────────


def answer_as_the_path_says(request: SinkRequest) -> Answer:
    return Answer(status=int(request.path[1:]), headers=(("Location", "/elsewhere"),))


async def jobs_for(lane: JobBench, sink: HttpSink, statuses: Iterable[int], **columns: Any) -> dict[int, int]:
    """Jobs that get these answers, by status."""
    sink.script = answer_as_the_path_says
    return {status: (await lane.create(f"{sink.url}/{status}", **columns))[0] for status in statuses}


@pytest.mark.clause("JOB-04", "JOB-09")
async def test_2xx_completes(lane: JobBench, sink: HttpSink) -> None:
    ids = await jobs_for(lane, sink, [200, 201, 202, 204, 299])
    await lane.run_batch()
    for status, id in ids.items():
        row = await lane.row(id)
        assert (row["status"], row["attempt_count"], row["last_error"]) == ("COMPLETED", 1, None)
        assert row["duration_millis"] is not None
        (attempt,) = await lane.attempts(id)
        assert (attempt["status"], attempt["response_code"]) == ("SUCCESS", status)
        assert attempt["error_message"] is None


@pytest.mark.clause("JOB-04", "JOB-09")
async def test_anything_else_is_retried_and_ends_when_attempts_are_used_up(
    database_url: str, sink: HttpSink
) -> None:
    async with job_bench(database_url, jobs_breaker_failures=1000) as lane:
        ids = await jobs_for(lane, sink, [301, 307, 400, 404, 429, 500, 503, 700], max_retries=3)
        await lane.run_batch()
        for status, id in ids.items():
            row = await lane.row(id)
            assert (row["status"], row["attempt_count"]) == ("FAILED", 1)
            assert row["error_class"] == f"http_{status}"
        assert await lane.run_batch() == {}, "not due yet"
        await lane.run_until_idle()
        for status, id in ids.items():
            await _assert_used_up(lane, id, status)
        assert "/elsewhere" not in {r.path for r in sink.requests}, "redirects are not followed"
        assert sink.count == 3 * len(ids)
        await lane.attempts_add_up()


async def _assert_used_up(lane: JobBench, id: int, status: int) -> None:
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"]) == ("ERROR", 3)
    assert row["completed_at"] is not None
    assert f"HTTP {status}" in row["last_error"]
    attempts = await lane.attempts(id)
    assert [(a["attempt_number"], a["status"], a["response_code"]) for a in attempts] == [
        (n, "FAILURE", status) for n in (1, 2, 3)
    ]
    assert all(f"HTTP {status}" in a["error_message"] for a in attempts)


@pytest.mark.clause("JOB-09", "JOB-10")
async def test_410_ends_at_once(lane: JobBench, sink: HttpSink) -> None:
    sink.script = lambda _: Answer(status=410)
    (id,) = await lane.create(sink.url, max_retries=5)
    await lane.run_batch()
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"], row["error_class"]) == ("ERROR", 1, "http_410")
    await lane.attempts_add_up()


async def test_4xx_can_be_final(database_url: str, sink: HttpSink) -> None:
    async with job_bench(database_url, reject_4xx=True) as lane:
        ended = await jobs_for(lane, sink, [400, 404, 422])
        retried = await jobs_for(lane, sink, [408, 425, 429, 500, 301])
        await lane.run_batch()
        assert await lane.states(list(ended.values())) == ["ERROR"] * 3
        assert await lane.states(list(retried.values())) == ["FAILED"] * 5


@pytest.mark.clause("JOB-04")
async def test_an_attempt_keeps_what_came_back_cut_and_without_secrets(
    lane: JobBench, sink: HttpSink
) -> None:
    body = f"é{TOKEN}" + "x" * 10_000
    headers = (("Set-Cookie", "session=1"), ("X-Api-Key", "k"), ("Server", "nginx"), ("X-Echo", TOKEN))
    sink.script = lambda _: Answer(status=500, headers=headers, body=body.encode())
    (id,) = await lane.create(sink.url, credentials_id=await credentials(lane))
    await lane.run_batch()
    (attempt,) = await lane.attempts(id)
    kept = attempt["response_body"]
    assert len(kept) == 5000
    assert kept.startswith("é[redacted]xxx")
    shown = str(attempt["response_headers"])
    assert "nginx" in shown
    for secret in (TOKEN, "session=1", '"k"'):
        assert secret not in shown
    assert TOKEN not in lane.log.text
    assert SECRET not in lane.log.text


@pytest.mark.clause("JOB-04")
async def test_a_time_out_is_a_failed_attempt_that_may_have_been_processed(
    lane: JobBench, sink: HttpSink
) -> None:
    sink.script = lambda _: Answer(silent=True)
    (id,) = await lane.create(sink.url, timeout_seconds=0.5, max_retries=1)
    (other,) = await lane.create(sink.url, timeout_seconds=0.8, max_retries=1)
    await lane.run_batch()
    for job_id, seconds in ((id, 0.5), (other, 0.8)):
        (attempt,) = await lane.attempts(job_id)
        assert (attempt["error_class"], attempt["response_code"]) == ("timeout", None)
        assert bool(attempt["unknown"]), "it had gone out"
        assert f"within {seconds:g} s" in attempt["error_message"], "each job has its own time"
        assert seconds * 1000 <= attempt["duration_millis"] < seconds * 1000 + 15_000
        took = _moment(attempt["completed_at"]) - _moment(attempt["attempted_at"])
        assert took == timedelta(milliseconds=attempt["duration_millis"])
    assert await lane.states([id, other]) == ["ERROR", "ERROR"]


def _moment(value: Any) -> datetime:
    moment = instant(value)
    assert moment is not None
    return moment


async def test_the_time_out_of_jobs_that_name_none_is_the_setting(database_url: str, sink: HttpSink) -> None:
    sink.script = lambda _: Answer(silent=True)
    async with job_bench(database_url, jobs_timeout_seconds=0.2) as lane:
        (id,) = await lane.create(sink.url)
        await lane.run_batch()
        assert (await lane.row(id))["last_error"] == "no answer within 0.2 s"


@pytest.mark.clause("JOB-04")
async def test_a_refused_connection_is_a_failed_attempt_that_nobody_saw(lane: JobBench) -> None:
    async with HttpSink() as gone:
        url = gone.url
    (id,) = await lane.create(url, max_retries=2)
    await lane.run_until_idle()
    attempts = await lane.attempts(id)
    assert [(a["error_class"], bool(a["unknown"])) for a in attempts] == [("connect_error", False)] * 2
    assert "connection refused" in attempts[0]["error_message"]
    assert await lane.states([id]) == ["ERROR"]


@pytest.mark.clause("JOB-04")
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(reset=True, raw=b""), "connection_lost"),
        (Answer(raw=b"hello\r\n\r\n", close=True), "protocol_error"),
    ],
    ids=["reset", "no HTTP"],
)
async def test_a_broken_answer_may_have_been_processed(
    lane: JobBench, sink: HttpSink, answer: Answer, error: str
) -> None:
    sink.script = lambda _: answer
    (id,) = await lane.create(sink.url)
    await lane.run_batch()
    (attempt,) = await lane.attempts(id)
    assert (attempt["error_class"], bool(attempt["unknown"])) == (error, True)
    assert await lane.states([id]) == ["FAILED"]


@pytest.mark.clause("JOB-10")
@pytest.mark.parametrize(
    ("host", "error"), [("missing.example", "dns_error"), ("inside.example", "egress_refused")]
)
async def test_names_that_lead_nowhere_or_inside_are_charged_failures(
    lane: JobBench, host: str, error: str
) -> None:
    names = Names({"inside.example": ("93.184.216.34", "10.0.0.1")})
    note = lane.homing.jobs_part._note_refused
    sender = WebhookSender(guard(), lookup=names, on_refused=note)
    lane.lane._sender = sender
    try:
        (id,) = await lane.create(f"http://{host}/", max_retries=2)
        await lane.run_until_idle()
        probed = await lane.lane.probe(ProbeRequest(f"http://{host}/"))
    finally:
        await sender.close()
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"], row["error_class"]) == ("ERROR", 2, error)
    attempts = await lane.attempts(id)
    assert [(a["error_class"], bool(a["unknown"])) for a in attempts] == [(error, False)] * 2
    if error == "egress_refused":
        told = f"{row} {attempts} {probed}"
        assert "10.0.0.1" not in told, "that would make us tell what our DNS knows of our network"
        assert "HOMING_EGRESS_ALLOW" in row["last_error"]
        line = lane.log.all("target.refused")[0]
        assert (line["host"], line["reason"][:29]) == (host, "10.0.0.1 is a private address")
        rows = await lane.jobs.run("target", target="http://inside.example:80")
        assert rows == [] or rows[0]["failures"] == 0, "nothing that the target did"


async def test_a_url_that_cannot_be_used_ends_at_once_with_a_reason(lane: JobBench) -> None:
    (id,) = await lane.create("ftp://partner.example/", max_retries=5)
    await lane.run_batch()
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"], row["error_class"]) == ("ERROR", 1, "invalid_url")
    assert "https://" in row["last_error"]


# ── credentials ──────────────────────────────────────────────────────────────────────────────────


async def test_deleted_credentials_are_a_charged_failure_that_says_so(lane: JobBench, sink: HttpSink) -> None:
    used = await credentials(lane)
    (id,) = await lane.create(sink.url, credentials_id=used, max_retries=2)
    await lane.homing.credentials.delete(used, force=True)
    await lane.run_until_idle()
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"], row["error_class"]) == ("ERROR", 2, "credentials_missing")
    assert "there are no credentials" in row["last_error"]
    assert sink.count == 0, "nothing goes out unsigned that was to be signed"
    await lane.attempts_add_up()


async def test_unreadable_credentials_are_a_charged_failure_that_says_why(
    database_url: str, sink: HttpSink
) -> None:
    async with job_bench(database_url) as before:
        (id,) = await before.create(sink.url, credentials_id=await credentials(before), max_retries=1)
    async with job_bench(database_url, encryption_key="B" * 43 + "=") as lane:
        await lane.run_batch()
        row = await lane.row(id)
        assert (row["status"], row["error_class"]) == ("ERROR", "credentials_unreadable")
        assert "HOMING_ENCRYPTION_KEY" in row["last_error"]
        assert sink.count == 0


@pytest.mark.clause("JOB-06")
async def test_another_process_sees_changed_credentials_within_five_seconds(
    database_url: str, sink: HttpSink
) -> None:
    async with job_bench(database_url) as one, job_bench(database_url) as other:
        now = 1000.0
        vault = Vault.from_setting("A" * 43 + "=")
        other.homing.jobs_part.credentials = Credentials(other.homing.jobs_database, vault, clock=lambda: now)
        used = await credentials(one)
        await other.create(sink.url, credentials_id=used)
        await other.run_batch()
        await one.homing.credentials.delete(used, force=True)
        await other.create(sink.url, credentials_id=used)
        await other.run_batch()
        assert sink.count == 2, "from memory: no look at the database for each job"
        now += 5.0
        (id,) = await other.create(sink.url, credentials_id=used)
        await other.run_batch()
        assert (await other.row(id))["error_class"] == "credentials_missing"
        assert sink.count == 2


# ── times ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-19")
async def test_a_scheduled_job_waits_and_then_goes(lane: JobBench, sink: HttpSink) -> None:
    (id,) = await lane.create(sink.url, scheduled_for=later(3600))
    await lane.run_batch()
    assert (sink.count, await lane.states([id])) == (0, ["PENDING"])
    await lane.pass_time(3590)
    await lane.run_batch()
    assert sink.count == 0
    await lane.pass_time(11)
    await lane.run_batch()
    assert (sink.count, await lane.states([id])) == (1, ["COMPLETED"])


@pytest.mark.clause("JOB-19")
async def test_a_schedule_in_the_past_is_now(lane: JobBench, sink: HttpSink) -> None:
    await lane.create(sink.url, scheduled_for=later(-3600))
    await lane.run_batch()
    assert sink.count == 1


@pytest.mark.clause("JOB-19")
async def test_an_expired_job_ends_unsent_whoever_finds_it_first(lane: JobBench, sink: HttpSink) -> None:
    (claimed,) = await lane.create(sink.url, expires_at=later(60))
    await lane.pass_time(100)
    await lane.run_batch()
    (swept,) = await lane.create(sink.url, expires_at=later(60))
    await lane.pass_time(100)
    await lane.homing.webhooks.maintenance.sweep()
    for id in (claimed, swept):
        row = await lane.row(id)
        assert (row["status"], row["error_class"], row["attempt_count"]) == ("ERROR", "expired", 0)
        assert row["last_error"] == "expired before it could be delivered"
        assert row["duration_millis"] is not None
        assert await lane.attempts(id) == []
    assert sink.count == 0


# ── retries ──────────────────────────────────────────────────────────────────────────────────────


async def waits_of(lane: JobBench, url: str, strategy: str, attempts: int) -> list[float]:
    """Seconds between the end of each failed attempt and the next, as they are written down."""
    (id,) = await lane.create(url, retry_strategy=strategy, max_retries=attempts + 1)
    waits = []
    for _ in range(attempts):
        await lane.run_batch()
        row = await lane.row(id)
        assert row["status"] == "FAILED"
        waits.append((_moment(row["next_attempt_at"]) - _moment(row["updated_at"])).total_seconds())
        await lane.make_due()
    await lane.jobs.cancel([id])
    return waits


@pytest.mark.clause("JOB-20")
async def test_each_strategy_waits_as_it_says(database_url: str, sink: HttpSink) -> None:
    sink.script = lambda _: Answer(status=404)
    async with job_bench(database_url, jobs_backoff_base_seconds=7, jobs_backoff_max_seconds=50) as lane:
        lane.deliverer._rand = lambda: 0.0
        assert await waits_of(lane, sink.url, "fixed", 4) == [7, 7, 7, 7]
        assert await waits_of(lane, sink.url, "linear", 4) == [7, 14, 21, 28]
        assert await waits_of(lane, sink.url, "exponential", 5) == [7, 14, 28, 50, 50]
        lane.deliverer._rand = lambda: 0.75
        assert await waits_of(lane, sink.url, "exponential", 3) == pytest.approx(
            [7 * 0.85, 14 * 0.85, 28 * 0.85], abs=0.002
        )
        lane.deliverer._rand = iter([0.0, 0.999999] * 5).__next__
        assert await waits_of(lane, sink.url, "exponential", 5) == pytest.approx(
            [7 * 1.2, 14 * 1.2, 28 * 1.2, 50 * 1.2, 50 * 1.2], abs=0.002
        )


@pytest.mark.clause("JOB-20")
async def test_retry_after_is_obeyed_where_it_is_longer_than_the_strategy(
    lane: JobBench, sink: HttpSink
) -> None:
    lane.deliverer._rand = lambda: 0.0
    for status, asked, expected in ((429, "100", 100), (503, "5", 30), (500, "100", 30), (404, "100", 30)):
        sink.script = _asking_to_wait(status, asked)
        await lane.tables.delete("homing_target")
        lane.forget_targets()
        assert await waits_of(lane, sink.url, "fixed", 1) == [expected], status


def _asking_to_wait(status: int, seconds: str, **more: Any) -> Callable[[SinkRequest], Answer]:
    return lambda _: Answer(status=status, headers=(("Retry-After", seconds),), **more)


@pytest.mark.clause("JOB-20")
@pytest.mark.parametrize("status", [429, 503])
async def test_who_asks_to_wait_is_left_alone(lane: JobBench, sink: HttpSink, status: int) -> None:
    """Twenty at once are told to wait: one of them pays for it, all wait, and the neighbours do not."""
    sink.script = _asking_to_wait(status, "40", delay=0.05)
    ids = await lane.create(sink.url, 20)
    async with HttpSink() as neighbour:
        others = await lane.create(neighbour.url, 5)
        await lane.run_batch()
        assert await lane.states(others) == ["COMPLETED"] * 5
        assert sink.count > 1, "it was a burst"
        assert sum([(await lane.row(id))["attempt_count"] for id in ids]) == 1
        asked = sink.count
        late = await lane.create(sink.url, 2)
        after = await lane.create(neighbour.url, 2)
        await lane.make_due()
        await lane.run_batch()
        assert sink.count == asked, "nobody is sent there meanwhile"
        assert await lane.states(after) == ["COMPLETED"] * 2
    target = await lane.target(sink.url)
    assert 30 < (_moment(target["endpoint_until"]) - _moment(target["now"])).total_seconds() <= 40
    assert f"HTTP {status}" in target["last_error"]
    sink.script = None
    await lane.pass_time(41)
    await lane.make_due()
    await lane.run_batch(1)
    await lane.run_batch()
    assert await lane.states([*ids, *late]) == ["COMPLETED"] * 22
    await lane.attempts_add_up()


async def test_a_wait_is_obeyed_for_an_hour_at_most(lane: JobBench, sink: HttpSink) -> None:
    sink.script = _asking_to_wait(429, "86400")
    (id,) = await lane.create(sink.url)
    await lane.run_batch()
    row = {**await lane.target(sink.url), **await lane.row(id)}
    waits = [_moment(row[name]) - _moment(row["now"]) for name in ("next_attempt_at", "endpoint_until")]
    assert all(timedelta(minutes=59) < wait <= timedelta(hours=1) for wait in waits)


async def test_a_wait_that_cannot_be_read_pauses_nobody(lane: JobBench, sink: HttpSink) -> None:
    for asked in ("0", "-5", "soon", "", "1e9"):
        sink.script = _asking_to_wait(429, asked)
        (id,) = await lane.create(sink.url)
        await lane.run_batch()
        assert await lane.states([id]) == ["FAILED"], asked
        assert (await lane.target(sink.url))["paused_until"] is None, asked


# ── people ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-09")
async def test_a_requeued_job_is_delivered_with_all_attempts_and_counts_on(
    lane: JobBench, sink: HttpSink
) -> None:
    sink.script = answers(500, 500, 500, 200)
    (id,) = await lane.create(sink.url, max_retries=2)
    await lane.run_until_idle()
    assert await lane.states([id]) == ["ERROR"]
    assert await lane.jobs.requeue([id]) == [id]
    await lane.run_batch()
    assert await lane.states([id]) == ["FAILED"], "the first of two"
    await lane.run_until_idle()
    assert await lane.states([id]) == ["COMPLETED"]
    attempts = await lane.attempts(id)
    assert [(a["attempt_number"], a["status"]) for a in attempts] == [
        (1, "FAILURE"), (2, "FAILURE"), (3, "FAILURE"), (4, "SUCCESS"),
    ]  # fmt: skip
    assert {r.header("webhook-id") for r in sink.requests} == {text_of(id)}


@pytest.mark.clause("JOB-09")
async def test_cancelling_what_is_being_sent_does_nothing(lane: JobBench, sink: HttpSink) -> None:
    sink.script = lambda _: Answer(delay=0.1)
    (id,) = await lane.create(sink.url)
    claims = await lane.deliverer.run_batch(10)
    await sink.received(1)
    assert await lane.jobs.cancel([id]) == []
    await lane.deliverer.settled(claims)
    assert await lane.states([id]) == ["COMPLETED"]


async def test_a_cancelled_job_is_not_sent(lane: JobBench, sink: HttpSink) -> None:
    (id,) = await lane.create(sink.url)
    assert await lane.jobs.cancel([id]) == [id]
    await lane.run_batch()
    assert sink.count == 0


# ── many ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_delivers_everything_to_several_targets_once(lane: JobBench, sink: HttpSink) -> None:
    async with HttpSink() as second:
        ids = [
            *await lane.create(sink.url, 60),
            *[o.id for o in await lane.order([job(f"{second.url}/{n}") for n in range(60)])],
        ]
        worker = lane.homing.webhooks.worker()
        running = asyncio.create_task(worker.run())
        try:
            await sink.received(60, timeout=60)
            await second.received(60, timeout=60)
            await lane.deliverer.finished()
        finally:
            worker.stop()
            await running
        assert sorted(r.header("webhook-id") or "" for r in [*sink.requests, *second.requests]) == sorted(
            map(text_of, ids)
        )
    assert (await lane.jobs.counts())["COMPLETED"] == 120
    await lane.attempts_add_up()


async def test_neither_secrets_nor_bodies_nor_urls_are_in_the_log(lane: JobBench, sink: HttpSink) -> None:
    sink.script = lambda _: Answer(status=500, body=b"canary-answer")
    await lane.create(
        sink.url + "/canary-path?canary=query",
        payload="canary-payload",
        headers={"X-Canary": "canary-header"},
        credentials_id=await credentials(lane, bearer_token="canary-bearer-token"),
    )
    await lane.run_until_idle()
    assert lane.log.all("delivery.attempted")
    assert "canary" not in lane.log.text.lower()


@pytest.mark.clause("JOB-28")
async def test_an_error_of_ours_leaves_its_stack_trace_and_no_word_of_the_payload(
    lane: JobBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_given: Any) -> Any:
        try:
            return dict[str, str]()["secret-canary"]
        except KeyError as error:
            raise ValueError("secret-canary") from error

    async with HttpSink({"/refuses": Answer(status=500)}) as sink:
        (refused,) = await lane.create(f"{sink.url}/refuses")
        await lane.run_batch()
    monkeypatch.setattr(lane.lane, "_request", crash)
    (crashed,) = await lane.create("https://partner.example.com/hooks")
    await lane.run_batch()
    (ours,), (theirs,) = await lane.attempts(crashed), await lane.attempts(refused)
    assert (ours["status"], ours["error_class"], ours["error_message"]) == (
        "FAILURE",
        "internal_error",
        "ValueError",
    )
    trace = ours["error_stack_trace"]
    assert trace.startswith("ValueError\n  at deliver.py:")
    assert "caused by KeyError\n  at test_lane.py:" in trace
    assert "secret-canary" not in trace
    assert theirs["error_stack_trace"] is None


@pytest.mark.clause("JOB-04", "JOB-33")
async def test_put_back_from_a_console_after_a_requeue_a_job_has_all_its_attempts_again(
    database_url: str,
) -> None:
    failing = HttpSink(lambda _: Answer(status=500))
    async with failing as sink, job_bench(database_url, jobs_breaker_failures=1000) as lane:
        (id,) = await lane.create(sink.url, max_retries=2)
        await lane.run_until_idle()
        assert await lane.jobs.requeue([id]) == [id]
        await lane.run_until_idle()
        assert sink.count == 4
        await lane.attempts_add_up()
        for sent in (6, 8):
            await lane.change(id, status="PENDING", attempt_count=0)
            await lane.run_until_idle()
            assert sink.count == sent
        row = await lane.row(id)
        assert (row["status"], row["attempt_count"], row["last_error"]) == ("ERROR", 2, "HTTP 500")
        # As documented: what counted before is still there, and numbers begin again.
        numbers = [attempt["attempt_number"] for attempt in await lane.attempts(id)]
        assert sorted(numbers) == [1, 1, 1, 2, 2, 2, 3, 4]
