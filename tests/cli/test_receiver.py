"""verify and listen: what they say about right and wrong signatures."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hmac import digest
from pathlib import Path

import httpx
import msgspec
import pytest
import typer
from typer.testing import CliRunner

from homing.cli import receiver
from homing.cli.diagnosis import Diagnosis, Request, diagnose
from homing.cli.listener import Manner, Received, Receiver, printable, readable, show, show_json, show_summary
from homing.errors import HomingError, InvalidRequest
from homing.signatures import Signer, key_of, make_private_key, public_key_of
from homing.testing.http_sink import HttpSink

BODY = b'{"orderId":"12345","amount":99.99,"note":"Gr\xc3\xbc\xc3\x9fe"}'
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

app = typer.Typer()
receiver.add_to(app)


def signed(body: bytes = BODY, secret: str = SECRET, age: float = 0) -> dict[str, str]:
    return Signer([secret]).headers("msg_1", datetime.now(UTC) - timedelta(seconds=age), body)


def diagnosed(body: bytes, headers: dict[str, str], *secrets: str) -> Diagnosis:
    return diagnose(Request(body, list(headers.items()), secrets or [SECRET], datetime.now(UTC)))


def only(headers: dict[str, str], scheme: str) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k.startswith("webhook") == (scheme == "standard")}


def explanation(found: Diagnosis) -> str:
    assert not found.verified
    assert found.explanation is not None
    return found.explanation


# ── what a mismatch is explained by ──────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-08")
def test_what_is_right_is_said_to_be_right() -> None:
    found = diagnosed(BODY, signed())
    assert found.verified
    assert (found.scheme, found.id, found.reason) == ("standard", "msg_1", None)
    assert [(f.check, f.well) for f in found.findings] == [
        ("signature header", True),
        ("standard", True),
        ("flowcatalyst", True),
    ]
    assert found.age_seconds is not None
    assert 0 <= found.age_seconds < 30
    assert "by secret 2" in diagnosed(BODY, signed(), "other", SECRET).findings[1].detail


@pytest.mark.parametrize("scheme", ["standard", "flowcatalyst"])
@pytest.mark.parametrize(
    ("received", "words"),
    [
        (BODY + b"\n", "without the line end"),
        (BODY + b"\r\n", "without the line end"),
        (b"  " + BODY + b" ", "without the white space around the body"),
        (b"\xef\xbb\xbf" + BODY, "without the byte order mark"),
        (json.dumps(json.loads(BODY)).encode(), "JSON written anew, compact"),
        (json.dumps(json.loads(BODY), indent=2, sort_keys=True).encode(), None),
    ],
)
def test_a_body_that_was_changed_on_its_way(scheme: str, received: bytes, words: str | None) -> None:
    told = explanation(diagnosed(received, only(signed(), scheme)))
    if words is None:
        assert "no usual mistake" in told, "the order of keys is lost for good"
    else:
        assert words in told


def test_a_body_whose_line_end_was_lost() -> None:
    assert "with a line end at the end" in explanation(diagnosed(BODY, signed(BODY + b"\n")))
    lines = b"a\r\nb"
    assert "\\n in place of \\r\\n" in explanation(diagnosed(lines, signed(b"a\nb")))
    assert "\\r\\n in place of \\n" in explanation(diagnosed(b"a\nb", signed(lines)))
    assert "with an empty body" in explanation(diagnosed(BODY, signed(b"")))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (SECRET.encode(), "the secret's characters as the key"),
        (SECRET.removeprefix("whsec_").encode(), "the characters after whsec_ as the key"),
    ],
)
def test_a_secret_that_was_taken_in_another_way(key: bytes, words: str) -> None:
    seconds = int(datetime.now(UTC).timestamp())
    signed = digest(key, f"msg_1.{seconds}.".encode() + BODY, "sha256")
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{b64encode(signed).decode()}",
    }
    assert words in explanation(diagnosed(BODY, headers))
    both = explanation(diagnosed(BODY + b"\n", headers))
    assert words in both
    assert "without the line end" in both


def test_a_secret_that_the_other_side_decodes() -> None:
    headers = only(signed(), "flowcatalyst")
    text = headers["X-FLOWCATALYST-TIMESTAMP"].encode() + BODY
    for key, encode, words in (
        (key_of(SECRET), bytes.hex, "decoded from base64"),
        (SECRET.encode(), lambda raw: b64encode(raw).decode(), "this scheme writes it in hex"),
    ):
        headers["X-FLOWCATALYST-SIGNATURE"] = encode(digest(key, text, "sha256"))
        assert words in explanation(diagnosed(BODY, headers))
    spaced = explanation(diagnosed(BODY, signed(), SECRET + " "))
    assert "white space around the secret" in spaced
    hexed = explanation(diagnosed(BODY, signed(secret="whsec_" + b64encode(b"\x01\x02").decode()), "0102"))
    assert "decoded from hex" in hexed


def test_a_signature_of_another_text() -> None:
    headers = signed()
    stamp = headers["X-FLOWCATALYST-TIMESTAMP"].encode()
    for text, words in (
        (stamp + b"." + BODY, "a dot between timestamp and body"),
        (BODY, "the body alone"),
        (f"msg_1.{headers['webhook-timestamp']}.".encode() + BODY, "id.timestamp.body"),
    ):
        headers["X-FLOWCATALYST-SIGNATURE"] = digest(SECRET.encode(), text, "sha256").hex()
        del_standard = {**headers, "webhook-signature": ""}
        assert words in explanation(diagnosed(BODY, del_standard))


def test_age_and_signature_are_told_apart() -> None:
    found = diagnosed(BODY, signed(age=1000))
    assert (found.verified, found.reason) == (False, "too_old")
    assert re.fullmatch(r"100\d s old; allowed is 300 s", found.findings[1].detail)
    assert [f.well for f in found.findings] == [True, False, True, False, True]
    ahead = diagnosed(BODY, signed(age=-1000))
    assert ahead.reason == "too_new"
    assert "ahead of this clock" in ahead.findings[1].detail


def test_what_is_missing_or_malformed() -> None:
    found = diagnosed(BODY, {"content-type": "application/json"})
    assert (found.verified, found.scheme, found.reason) == (False, None, "missing_header")
    for change in ({"webhook-timestamp": "yesterday"}, {"webhook-id": "a.b"}, {"Webhook-Id": "twice"}):
        assert not diagnosed(BODY, {**signed(), **change}).verified
    assert "no usual mistake" in explanation(diagnosed(BODY, signed(), "another secret"))
    assert "no usual mistake" in explanation(diagnosed(BODY, signed(), public_key_of(make_private_key())))
    assert SECRET not in repr(Request(BODY, [], [SECRET], datetime.now(UTC)))


def test_nothing_hostile_breaks_the_explanation() -> None:
    for body in (b"\xff\xfe", b"[" * 100_000, b'"\\ud800"', b"1e999", b""):
        for signature in ("v1,é", "v1,===", "x" * 5000, "v1," + "A" * 43 + "=", "\ud800"):
            for stamp in ("9" * 30, "\u0661", "-1", "2025-13-01T00:00:00Z"):
                headers = {
                    "webhook-id": "m", "webhook-timestamp": stamp, "webhook-signature": signature,
                    "x-flowcatalyst-signature": signature, "x-flowcatalyst-timestamp": stamp,
                }  # fmt: skip
                assert not diagnosed(body, headers).verified


# ── homing verify ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    numbers = itertools.count()

    def write(headers: str, body: bytes = BODY, secret: str = SECRET + "\n") -> list[str]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        for name, content in (("headers", headers.encode()), ("body", body), ("secret", secret.encode())):
            (folder / name).write_bytes(content)
        return [
            "verify", "--secret-file", f"{folder}/secret", "--headers", f"{folder}/headers",
            "--body", f"{folder}/body",
        ]  # fmt: skip

    return write


def lines_of(headers: dict[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


@pytest.mark.clause("JOB-08")
def test_verify_by_files(files: Callable[..., list[str]]) -> None:
    for headers in (
        lines_of(signed()),
        f"POST /webhooks/orders HTTP/1.1\r\n{lines_of(signed())}\r\n{BODY.decode()}",
        json.dumps(signed()),
    ):
        result = CliRunner().invoke(app, files(headers))
        assert result.exit_code == 0, result.output
        assert "✔" in result.stdout
        assert "matches" in result.stdout
        assert SECRET not in result.output


def test_verify_by_flags_and_standard_input(files: Callable[..., list[str]]) -> None:
    arguments = files("")[:3]
    for name, value in signed().items():
        arguments += ["-H", f"{name}: {value}"]
    result = CliRunner().invoke(app, [*arguments, "--json"], input=BODY)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["verified"], found["scheme"], found["id"]) == (True, "standard", "msg_1")
    wrong = CliRunner().invoke(app, [*arguments, "--json"], input=BODY + b"\n")
    assert wrong.exit_code == 1
    found = json.loads(wrong.stdout)
    assert found["reason"] == "no_match"
    assert any("without the line end" in finding["detail"] for finding in found["findings"])


def test_verify_says_what_is_wrong(files: Callable[..., list[str]]) -> None:
    result = CliRunner().invoke(app, files(lines_of(signed(age=900)), BODY + b"\n"))
    assert result.exit_code == 1
    assert "not verified" in result.stdout
    assert re.search(r"90\d s old", result.stdout)
    assert "without the line end" in result.stdout
    patient = CliRunner().invoke(app, [*files(lines_of(signed(age=900))), "--tolerance", "1000"])
    assert patient.exit_code == 0


def test_verify_needs_something_to_work_with(files: Callable[..., list[str]], tmp_path: Path) -> None:
    for arguments, words in (
        (["verify", "--body", "/dev/null"], "--secret-file"),
        (files(lines_of(signed()), secret="\n"), "--secret-file"),
        (files("nonsense"), "'Name: value'"),
        (files("{nonsense"), "no JSON object"),
        ([*files(""), "--headers", "-", "--body", "-"], "can be read once"),
        ([*files(""), "--headers", f"{tmp_path}/missing"], "cannot be read"),
        (files("\xff", BODY), "'Name: value'"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, InvalidRequest), result.output
        assert words in str(result.exception)


# ── homing listen ────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def listening(manner: Manner) -> AsyncIterator[tuple[httpx.AsyncClient, Receiver, list[Received]]]:
    shown: list[Received] = []
    one = Receiver(manner, shown.append)
    async with HttpSink(one.answer) as sink, httpx.AsyncClient(base_url=sink.url) as client:
        yield client, one, shown


async def test_each_request_is_shown_and_answered() -> None:
    async with listening(Manner((SECRET,))) as (client, one, shown):
        headers = {**signed(), "Authorization": "Bearer hush_hush", "X-Other": "1"}
        assert (await client.post("/hooks?a=1", content=BODY, headers=headers)).json() == {"received": 1}
        await client.post("/hooks", content=BODY, headers=headers)
        await client.post("/", content=BODY + b"\n", headers=headers)
        await client.get("/")
    first, again, forged, bare = shown
    assert (first.method, first.path, first.verified, first.why) == ("POST", "/hooks?a=1", True, "standard")
    assert (first.id, first.times, first.size) == ("msg_1", 1, len(BODY))
    assert '"amount": 99.99' in first.body
    assert first.headers["Authorization"] == "Bearer *** (9 characters)"
    assert "X-Other" not in first.headers
    assert (again.times, forged.verified, bare.verified) == (2, False, False)
    assert "no signature in it was made with the secret given" in (forged.why or "")
    assert "without the line end" in (forged.why or "")
    assert "neither webhook-signature" in (bare.why or "")
    assert msgspec.to_builtins(one.summary()) == {
        "requests": 4, "verified": 2, "notVerified": 2, "duplicates": 2, "answered": {"200": 4},
    }  # fmt: skip


async def test_it_answers_as_told() -> None:
    for manner, status in (
        (Manner(status=204), 204),
        (Manner(status=429), 429),
        (Manner(fail=1.0), 500),
        (Manner(delay=0.01), 200),
    ):
        async with listening(manner) as (client, _, shown):
            response = await client.post("/", content=b"x")
            assert response.status_code == status
            assert (shown[0].verified, shown[0].answered) == (None, status)
    async with listening(Manner(fail=0.5)) as (client, one, _):
        for _ in range(60):
            await client.post("/")
        assert set(one.summary().answered) == {"200", "500"}


async def test_a_hostile_sender_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x07[bold]"
    async with listening(Manner((SECRET,))) as (client, one, shown):
        headers = [(b"webhook-id", b"\xff\xfe[red]"), (b"webhook-x", b"\x9b31m")]
        await client.post("/%1b[2J", content=evil.encode(), headers=headers)
        await client.post("/", content=b"\xff\x00\x1b")
        await client.post("/", content=b'{"a": "\\u001b[2J\\ud800"}')
    for received in shown:
        show(received)
        show_json(received)
    show_summary(one.summary(), json=False)
    output = capsys.readouterr().out
    assert not any(character in output for character in ("\x1b", "\x07", "\x9b", "\x00"))
    assert "[bold]" in output
    assert "3 bytes that are no text" in output
    assert "3 requests, 0 verified, 3 not, 0 repeated; answered 200 3 times" in output


def test_long_bodies_are_cut() -> None:
    assert readable(b"x" * 5000).endswith("x\n…")
    assert len(readable(b"x" * 5000)) < 2100
    assert readable(json.dumps(list(range(100))).encode()).count("\n") == 20
    assert readable(b"") == ""
    assert printable("a\tb\r\n\x7f") == "a\\x09b\\x0d\n\\x7f"


def test_repetitions_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    for times, words in ((2, "2nd"), (3, "3rd"), (11, "11th"), (21, "21st"), (112, "112th")):
        show(Received(1, "POST", "/", True, "standard", "m", times, 200, {}, "", 0))
        assert f"again, for the {words} time" in capsys.readouterr().out


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\nsecond\n")
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_listen_until_told_to_end(secret_file: str, number: signal.Signals) -> None:
    """As a process: it says where, shows what comes, and ends with a summary and 0."""
    code = "import typer; from homing.cli import receiver; app = typer.Typer(); receiver.add_to(app); app()"
    command = [sys.executable, "-c", code, "listen", "--port", "0", "--json", "--secret-file", secret_file]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": "200"}
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = (await asyncio.wait_for(process.stderr.readline(), 30)).decode()
        address = said.split("listening on ")[1].split(";")[0]
        assert address.startswith("http://127.0.0.1:")
        async with httpx.AsyncClient() as client:
            headers = Signer(["second"]).headers("msg_1", datetime.now(UTC), BODY)
            assert (await client.post(address, content=BODY, headers=headers)).status_code == 200
        received = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
        assert (received["verified"], received["id"]) == (True, "msg_1")
        process.send_signal(number)
        rest, complaints = await asyncio.wait_for(process.communicate(), 30)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, complaints
    assert json.loads(rest)["summary"]["requests"] == 1
    assert b"Traceback" not in complaints


async def test_an_open_request_does_not_hold_up_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    shown = asyncio.Event()
    one = Receiver(Manner(delay=3600), lambda _: shown.set())
    served = asyncio.create_task(receiver._listen("127.0.0.1", 0, one))
    said = ""
    while "Ctrl-C" not in said:
        assert not served.done()
        await asyncio.sleep(0.01)
        said += capfd.readouterr().err
    async with httpx.AsyncClient() as client:
        waiting = asyncio.create_task(client.post(said.split("listening on ")[1].split(";")[0]))
        await asyncio.wait_for(shown.wait(), 30)
        os.kill(os.getpid(), signal.SIGINT)
        assert (await asyncio.wait_for(served, 30)).requests == 1
        with pytest.raises(httpx.HTTPError):
            await waiting


def test_a_port_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = CliRunner().invoke(app, ["listen", "--port", str(taken.getsockname()[1])])
        assert isinstance(result.exception, HomingError)
        assert "is in use" in str(result.exception)
