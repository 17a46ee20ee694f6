"""One message with everything about it: timeline, payload, mail, and the command that sends it again."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from collections.abc import AsyncIterator
from email import message_from_string
from email.policy import default
from pathlib import Path

import pytest
from tests.conftest import require_program
from tests.desk.rows import Bench, bench

from homing.messages.model import Detail, MailParts
from homing.signatures import verify
from homing.testing.http_sink import HttpSink

pytestmark = pytest.mark.clause("JOB-22", "RTY-15", "NTF-16")


def anybody(_scope: str) -> bool:
    return True


@pytest.fixture
async def lanes(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(database_url, template_dir=str(tmp_path)) as one:
        await one.fill()
        yield one


async def shown(lanes: Bench, line: str) -> Detail:
    rows = (await lanes.find(line)).rows
    detail = await lanes.desk.show(rows[0].id, may=anybody)
    assert detail is not None
    return detail


async def mail_of(lanes: Bench, line: str) -> MailParts:
    mail = await lanes.desk.mail((await lanes.find(line)).rows[0].id, may=anybody)
    assert mail is not None
    return mail


async def test_an_id_is_told_by_its_form(lanes: Bench) -> None:
    for id in ("outbox_99", "email_99", "notification_99", "0ARYZVZXW372S", "outbox_1x", "", "1"):
        assert await lanes.desk.show(id, may=anybody) is None
    assert (await shown(lanes, "outbox_1")).summary.lane == "mail_outbox"


async def test_a_mail_tells_its_story(lanes: Bench) -> None:
    await lanes.run(
        "UPDATE mail_outbox SET retry_count = 2, claim_seq = 3, last_attempt_at = '2026-01-01T00:01:00Z',"
        " recipients = "
        """'{"ann@x.com": {"status": "rejected", "code": 550, "enhanced": "5.1.1", "text": "who?"}}'"""
        " WHERE id = 1"
    )
    detail = await shown(lanes, "outbox_1")
    fields = dict(detail.fields)
    assert fields["Recipient ann@x.com"] == "rejected: 550 5.1.1 who?"
    assert fields["Claims"] == "3"
    assert [step.kind for step in detail.timeline] == ["created", "attempt", "dead"]
    assert (detail.timeline[1].error_class, detail.timeline[1].error) == ("invalid_recipient", "no such user")
    assert (detail.verbs, detail.waits) == (("requeue",), None)
    assert detail.payload is not None
    assert '"tenantId": "acme"' in detail.payload.text


async def test_the_attempt_that_succeeded_is_counted(lanes: Bench) -> None:
    """The columns have the failures alone."""
    at = "last_attempt_at = '2026-01-01T00:01:00Z', sent_at = '2026-01-01T00:01:00Z'"
    await lanes.run(f"UPDATE mail_outbox SET status = 'sent', retry_count = 2, {at} WHERE id = 1")
    await lanes.run(f"UPDATE email_log SET status = 'Sent', attempt_count = 0, {at} WHERE id = 1")
    for id, attempts in (("outbox_1", 3), ("email_1", 1)):
        detail = await shown(lanes, id)
        assert detail.summary.attempts == attempts
        assert f"Attempt {attempts}" in [step.title for step in detail.timeline]


async def test_what_waits_says_why(lanes: Bench) -> None:
    assert (await shown(lanes, "second")).waits == "it is due, but nobody works on mail_outbox"
    await lanes.homing.operations.heartbeat(["mail_outbox"], worked={"mail_outbox"}, serves=False).begin()
    assert (await shown(lanes, "second")).waits == "it is due, and the next free worker takes it"
    await lanes.run(
        "UPDATE mail_outbox SET next_attempt_at = '2999-01-01T00:00:00Z', retry_count = 1,"
        " last_error = 'network_error: no route' WHERE status = 'queued'"
    )
    detail = await shown(lanes, "second")
    assert detail.waits == "it is tried again after: network_error: no route"
    assert detail.timeline[-1].kind == "waits"
    await lanes.run(
        "UPDATE mail_outbox SET status = 'dispatching', locked_by = 'host:7', last_attempt_at = created_at"
        " WHERE subject = 'Second'"
    )
    detail = await shown(lanes, "second")
    assert (detail.waits, detail.timeline[-1].worker) == ("host:7 has it", "host:7")


async def test_a_job_behind_a_paused_target_says_so(lanes: Bench) -> None:
    await lanes.run(
        "INSERT INTO homing_target (target, paused_until, pause_reason)"
        " VALUES ('https://hooks.x.com:8443', '9999-01-01T00:00:00Z', 'they move house')"
    )
    assert (await shown(lanes, "id:ext-1")).waits == "its target is paused: they move house"
    await lanes.run("UPDATE homing_target SET paused_until = '2999-01-01T00:00:00Z'")
    step = (await shown(lanes, "id:ext-1")).timeline[-1]
    assert (step.kind, step.at.year) == ("waits", 2999), "not when it is due: nothing is sent until then"


async def test_a_job_tells_every_attempt(lanes: Bench) -> None:
    await lanes.run(
        "INSERT INTO dispatch_attempt (dispatch_job_id, attempt_number, attempted_at, duration_millis,"
        " status, response_code, response_body, response_headers, error_message, error_class, unknown)"
        " SELECT id, 1, '2026-01-01T00:00:02Z', 1500, 'FAILURE', 500, 'oops', '{\"x-a\": \"b\"}',"
        " 'the receiver answered 500', 'http_500', true FROM dispatch_job WHERE status = 'ERROR'"
    )
    detail = await shown(lanes, "error:http_500")
    attempt = detail.timeline[1]
    assert (attempt.title, attempt.seconds, attempt.response_code) == ("Attempt 1: answered 500", 1.5, 500)
    assert attempt.request == "POST https://hooks.x.com/a?…, application/json, 30 bytes"
    assert (attempt.response_body, attempt.response_headers, attempt.unknown) == ("oops", {"x-a": "b"}, True)
    assert [step.kind for step in detail.timeline] == ["created", "attempt", "dead"]
    await lanes.run("UPDATE dispatch_attempt SET attempt_number = 3")
    await lanes.run("UPDATE dispatch_job SET attempts_before = 2, attempt_count = 3 WHERE status = 'ERROR'")
    requeued = (await shown(lanes, "error:http_500")).timeline[1]
    assert requeued.title == "Attempt 3, after a requeue: answered 500"
    assert detail.payload is not None
    # Every digit, as it was written.
    assert detail.payload.text == '{\n  "n": 12345678901234567890123\n}'
    assert detail.payload.length == len('{"n": 12345678901234567890123}')


async def test_a_long_payload_is_cut_and_says_how_long_it_is(lanes: Bench) -> None:
    await lanes.run(
        "UPDATE dispatch_job SET payload = payload || '" + "x" * 300_000 + "' WHERE status = 'PENDING'"
    )
    detail = await shown(lanes, "id:ext-1")
    assert detail.payload is not None
    assert (len(detail.payload.text), detail.payload.length) == (200_000, 300_007)
    assert detail.curl is None


async def test_a_mail_is_set_as_it_would_be_sent_and_nothing_in_it_works(lanes: Bench) -> None:
    await lanes.run(
        'UPDATE mail_outbox SET html_body = \'<a href="https://x.com/out?a=1&amp;token=s3cret">out</a>'
        ' <a href="https://x.com/u/s3cret">stop</a>\','
        " unsubscribe_url = 'https://x.com/u/s3cret' WHERE id = 2"
    )
    mail = await mail_of(lanes, "outbox_2")
    assert mail.trouble is None
    assert mail.html == (
        '<a href="https://x.com/out?a=1&amp;token=hidden-in-preview">out</a>'
        ' <a href="https://x.com/hidden-in-preview">stop</a>'
    )
    assert "s3cret" not in mail.source
    parsed = message_from_string(mail.source, policy=default)
    assert (parsed["subject"], parsed["to"], parsed["cc"]) == ("Second", "carl@x.com", "DORA@Z.com")
    assert ("Subject", "Second") in [*mail.headers]


async def test_secrets_of_a_mail_are_hidden_by_their_names_and_by_their_looks(lanes: Bench) -> None:
    body = (
        "https://shop.example/users/edit?reset_password_token=CANARY1 https://shop.example/reset/CANARY2"
        " https://x.example/a?t=CANARY3&utm_source=news https://x.example/i/CANARY4aB9xZ0q1R"
        " https://x.example/blog/summer-sale-2026"
    )
    variables = '{"otp": 123456, "name": "Ann", "user": {"api_key": ["CANARY5"]}, "total": 1.10}'
    await lanes.run(f"UPDATE mail_outbox SET text_body = '{body}', variables = '{variables}' WHERE id = 2")
    mail = await mail_of(lanes, "outbox_2")
    detail = await shown(lanes, "outbox_2")
    assert "CANARY" not in f"{mail.text}{mail.source}{detail}"
    assert "123456" not in str(detail)
    assert "https://x.example/a?t=hidden-in-preview&utm_source=news" in (mail.text or "")
    assert "https://x.example/blog/summer-sale-2026" in (mail.text or "")
    assert detail.payload is not None
    assert '"total": 1.10' in detail.payload.text
    assert '"name": "Ann"' in detail.payload.text


async def test_a_mail_that_can_be_none_says_why(lanes: Bench) -> None:
    await lanes.run("UPDATE mail_outbox SET template = 'gone' WHERE id = 2")
    assert "gone" in str((await mail_of(lanes, "outbox_2")).trouble)
    await lanes.run("UPDATE email_log SET to_address = 'a@b@c' WHERE id = 1")
    assert "1 of 1 recipients can never get it" in str((await mail_of(lanes, "email_1")).trouble)


async def test_a_notification_shows_no_address_and_no_token(lanes: Bench) -> None:
    detail = await shown(lanes, "to:zoe@x.com")
    summary = detail.summary
    assert (summary.to, summary.error, summary.state) == ("z***@x.com", "provider_error", "failed")
    assert detail.timeline[-1].error == "no"
    mail = await mail_of(lanes, "to:zoe@x.com")
    assert (mail.trouble, mail.text is not None, mail.html is not None) == (None, True, True)
    for text in (mail.source, mail.text or "", mail.html or "", str(detail)):
        assert "zoe@x.com" not in text
    assert "/hidden-in-preview" in (mail.text or "")
    parsed = message_from_string(mail.source, policy=default)
    assert parsed["list-unsubscribe"].endswith("/hidden-in-preview>")


# ── curl ─────────────────────────────────────────────────────────────────────────────────────────


PAYLOAD = """{"it's": "$HOME `id` \\\\ \\"quoted\\" ü"}"""


@pytest.mark.parametrize("secret", ["a plain secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
async def test_the_command_sends_what_a_receiver_verifies(sqlite_url: str, secret: str) -> None:
    for program in ("bash", "curl", "openssl"):
        require_program(program)
    quoted = PAYLOAD.replace("'", "''")
    async with bench(sqlite_url) as lanes, HttpSink() as sink:
        await lanes.run(
            "INSERT INTO dispatch_job (source, type, target_url, payload, credentials_id)"
            f" VALUES ('shop', 'order.paid', '{sink.url}/a?b=c', '{quoted}', 1)"
        )
        await lanes.run(
            "INSERT INTO dispatch_job_headers (dispatch_job_id, header_name, header_value)"
            " SELECT id, 'X-Api-Key', 'k3y' FROM dispatch_job"
            " UNION ALL SELECT id, 'X-Kind', 'a ''b' FROM dispatch_job"
        )
        detail = await shown(lanes, "type:order.paid")
        assert detail.curl is not None
        assert "k3y" not in detail.curl
        assert "b=c" not in str(detail)
        given = {
            "SIGNING_SECRET": secret,
            "BEARER_TOKEN": "t0ken",
            "HEADER_X_API_KEY": "k3y",
            "HEADER_X_KIND": "a 'b",
            "QUERY": "b=c",
            "PATH": os.environ["PATH"],
        }
        command = await asyncio.create_subprocess_exec(
            "bash", "-euc", detail.curl, env=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        _, complaints = await command.communicate()
        assert command.returncode == 0, complaints.decode()
        request = (await sink.received(1))[0]
    assert (request.path, request.body.decode()) == ("/a?b=c", PAYLOAD)
    headers = {name.lower(): value for name, value in request.headers}
    assert (headers["x-api-key"], headers["x-kind"]) == ("k3y", "a 'b")
    assert headers["authorization"] == "Bearer t0ken"
    assert verify(request.body, request.headers, secret).id == detail.summary.id
    assert verify(request.body, request.headers, secret, scheme="flowcatalyst").scheme == "flowcatalyst"


async def run_in_shell(command: str, **given: str) -> None:
    """With these variables and no others."""
    shell = await asyncio.create_subprocess_exec(
        "bash", "-euc", command, env={"PATH": os.environ["PATH"], **given}, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    _, complaints = await shell.communicate()
    assert shell.returncode == 0, complaints.decode()


@pytest.mark.parametrize("credentials", ["NULL", "1"])
async def test_the_command_sends_the_payload_and_never_a_file(
    sqlite_url: str, tmp_path: Path, credentials: str
) -> None:
    """Payloads, URLs and headers are a producer's, and the command runs on an operator's machine."""
    for program in ("bash", "curl", "openssl"):
        require_program(program)
    secret = tmp_path / "secret"
    secret.write_text("of the operator")
    async with bench(sqlite_url) as lanes, HttpSink() as sink:
        await lanes.run(
            "INSERT INTO dispatch_job (source, type, target_url, payload, credentials_id)"
            f" VALUES ('shop', 'order.paid', '{sink.url}/{{a,b}}[1-3]', '@{secret}', {credentials})"
        )
        await lanes.run(
            "INSERT INTO dispatch_job_headers (dispatch_job_id, header_name, header_value)"
            " SELECT id, 'X-Pass', 'p4ss' FROM dispatch_job"
            " UNION ALL SELECT id, 'Cloud-Key', 'cr3d' FROM dispatch_job"
            " UNION ALL SELECT id, 'Accept-Language', 'de' FROM dispatch_job"
            f" UNION ALL SELECT id, '@{secret}', 'x' FROM dispatch_job"
        )
        curl = (await shown(lanes, "type:order.paid")).curl
        assert curl is not None
        assert "p4ss" not in curl
        assert "cr3d" not in curl
        named = {"HEADER_X_PASS": "mine", "HEADER_CLOUD_KEY": "given"}
        await run_in_shell(curl, SIGNING_SECRET="s", CLOUD_KEY="the operator's own", **named)
        (request,) = await sink.received(1)
    assert request.body.decode() == f"@{secret}"
    assert request.path == "/{a,b}[1-3]"
    headers = {name.lower(): value for name, value in request.headers}
    assert (headers["x-pass"], headers["cloud-key"], headers["accept-language"]) == ("mine", "given", "de")


async def test_without_credentials_the_command_is_one_line(lanes: Bench) -> None:
    curl = (await shown(lanes, "id:ext-1")).curl
    assert curl is not None
    assert shlex.split(curl.replace("\\\n", ""))[:6] == [
        "curl",
        "--globoff",
        "--request",
        "POST",
        "--url",
        "https://hooks.x.com:8443/a",
    ]
    assert "SIGNING_SECRET" not in curl
