"""verify · listen: the receiver's side of a webhook."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from homing.cli.diagnosis import Diagnosis, Request, diagnose
from homing.cli.files import read_bytes, read_text
from homing.cli.listener import Manner, Receiver, Summary, printable, show, show_json, show_summary
from homing.cli.options import Json, print_json, print_table, run_async
from homing.errors import InvalidRequest, SettingsError
from homing.signatures import DEFAULT_HEADER_PREFIX, DEFAULT_TOLERANCE, ID
from homing.testing.http_sink import HttpSink

SecretFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--secret-file", metavar="FILE", help="Holds the secret, or several, one a line; may be repeated."
    ),
]
HeaderPrefix = Annotated[str, typer.Option("--header-prefix", help="Of the specification's headers.")]


def add_to(app: typer.Typer) -> None:
    app.command(name="verify")(verify_request)
    app.command()(listen)


# ── verify ───────────────────────────────────────────────────────────────────────────────────────


def verify_request(
    secret_file: SecretFiles = None,
    header: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="'NAME: VALUE'", help="May be repeated.")
    ] = None,
    headers: Annotated[
        str | None,
        typer.Option(
            "--headers", metavar="FILE", help="Headers, one a line or as JSON; - is standard input."
        ),
    ] = None,
    body: Annotated[
        str, typer.Option("--body", metavar="FILE", help="The body, byte for byte; - is standard input.")
    ] = "-",
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0, help="How old or far ahead it may be, in seconds.")
    ] = DEFAULT_TOLERANCE,
    header_prefix: HeaderPrefix = DEFAULT_HEADER_PREFIX,
    json: Json = False,
) -> None:
    """Verify the signature of a request as it was received; explains a mismatch. Exit 1 when it is wrong."""
    if [headers, body, *(secret_file or ())].count("-") > 1:
        raise InvalidRequest("standard input can be read once: put the rest into files")
    request = Request(
        read_bytes(body),
        [*_headers_in(read_text(headers) if headers else ""), *map(_header, header or ())],
        _secrets_in(secret_file),
        datetime.now(UTC),
        tolerance,
        header_prefix,
    )
    found = diagnose(request)
    print_json(found) if json else print_table(_table(found))
    if not found.verified:
        raise typer.Exit(1)


def _secrets_in(files: Sequence[str] | None) -> list[str]:
    secrets = [line for path in files or () for line in read_text(path).splitlines() if line.strip()]
    if not secrets:
        raise InvalidRequest("name the file that holds the secret, with --secret-file")
    return secrets


def _headers_in(text: str) -> list[tuple[str, str]]:
    """As they came over the wire, with or without the request line, or as a JSON object."""
    if text.lstrip().startswith("{"):
        try:
            return list(msgspec.json.decode(text, type=dict[str, str]).items())
        except msgspec.DecodeError:
            raise InvalidRequest("the headers are no JSON object of texts") from None
    lines = text.lstrip().splitlines()
    # What comes after an empty line is the body.
    block = lines[: lines.index("")] if "" in lines else lines
    return [_header(line) for line in block if not _is_request_line(line)]


def _is_request_line(line: str) -> bool:
    return line.rstrip().endswith(("HTTP/1.1", "HTTP/1.0", "HTTP/2", "HTTP/3"))


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise InvalidRequest(f"a header is written 'Name: value', and one of these is not: {name[:40]!r}")
    return name.strip(), value.strip()


def _table(found: Diagnosis) -> Table:
    table = Table(show_header=False, box=None)
    table.add_row(
        "[green]✔[/]" if found.verified else "[red]✖[/]", "verified" if found.verified else "not verified"
    )
    for finding in found.findings:
        mark = "[green]✔[/]" if finding.well else "[red]✖[/]"
        table.add_row(mark, finding.check, escape(printable(finding.detail)))
    if found.id:
        table.add_row("", ID, escape(printable(found.id)))
    return table


def _mark(*, well: bool) -> str:
    return "[green]✔[/]" if well else "[red]✖[/]"


# ── listen ───────────────────────────────────────────────────────────────────────────────────────


def listen(
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 9000,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; anything but loopback lets others in.")
    ] = "127.0.0.1",
    secret_file: SecretFiles = None,
    status: Annotated[int, typer.Option("--status", min=200, max=599, help="What to answer.")] = 200,
    fail: Annotated[
        float, typer.Option("--fail", min=0, max=1, help="The share of requests to answer with a 500.")
    ] = 0.0,
    delay: Annotated[
        float, typer.Option("--delay", min=0, max=3600, help="Seconds to wait before answering.")
    ] = 0.0,
    header_prefix: HeaderPrefix = DEFAULT_HEADER_PREFIX,
    json: Json = False,
) -> None:
    """Receive webhooks, show each one, and answer as told; Ctrl-C ends it, with a summary."""
    secrets = tuple(_secrets_in(secret_file)) if secret_file else ()
    manner = Manner(secrets, status, fail, delay, header_prefix)
    summary = run_async(_listen(host, port, Receiver(manner, show_json if json else show)))
    show_summary(summary, json=json)


async def _listen(host: str, port: int, receiver: Receiver) -> Summary:
    sink = HttpSink(receiver.answer, host=host, port=port, keep=False)
    try:
        await sink.start()
    except OSError as error:
        why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or error
        raise SettingsError(f"cannot listen on {host}:{port}: {why}; --port 0 takes a free port") from None
    try:
        Console(stderr=True, highlight=False).print(f"listening on {sink.url}; Ctrl-C ends")
        await _until_stopped()
    finally:
        await sink.close()
    return receiver.summary()


async def _until_stopped() -> None:
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
