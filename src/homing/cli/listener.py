"""A receiver to try things with: takes every request, shows it, and answers as told."""

from __future__ import annotations

import json as standard_json
import secrets as random_source
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.markup import escape

from homing.cli.diagnosis import Request, diagnose
from homing.signatures import DEFAULT_HEADER_PREFIX, ID, SIGNATURE, Scheme, VerificationError, verify
from homing.testing.http_sink import Answer, SinkRequest

_MOST_IDS = 100_000
_SHOWN_LINES, _SHOWN_CHARACTERS = 20, 2000
#: Statuses that have no body.
_BARE = frozenset({204, 205, 304})


class Manner(Struct, frozen=True):
    """How a receiver answers."""

    secrets: tuple[str, ...] = ()
    status: int = 200
    #: The share of requests that get a 500 instead.
    fail: float = 0.0
    delay: float = 0.0
    header_prefix: str = DEFAULT_HEADER_PREFIX

    def __repr__(self) -> str:
        return f"Manner(status={self.status}, fail={self.fail}, delay={self.delay})"


class Received(Struct, frozen=True, rename="camel"):
    """One request, as it is shown."""

    number: int
    method: str
    path: str
    #: None when no secret was given to verify with.
    verified: bool | None
    why: str | None
    id: str | None
    #: How often this id has come, this time included.
    times: int
    answered: int
    headers: Mapping[str, str]
    body: str
    size: int


class Summary(Struct, frozen=True, rename="camel"):
    requests: int
    verified: int
    not_verified: int
    duplicates: int
    answered: Mapping[str, int]


class Receiver:
    """Takes every request, shows it, and answers as told."""

    def __init__(self, manner: Manner, show: Callable[[Received], None]) -> None:
        self._manner = manner
        self._show = show
        self._chance = random_source.SystemRandom()
        self._ids: OrderedDict[str, int] = OrderedDict()
        self._count = {"requests": 0, "verified": 0, "not_verified": 0, "duplicates": 0}
        self._answered: dict[str, int] = {}

    def answer(self, request: SinkRequest) -> Answer:
        received = self._received(request)
        self._show(received)
        reply = b"" if received.answered in _BARE else msgspec.json.encode({"received": received.number})
        headers = (("Content-Type", "application/json"),)
        return Answer(status=received.answered, headers=headers, body=reply, delay=self._manner.delay)

    def summary(self) -> Summary:
        return Summary(**self._count, answered=dict(sorted(self._answered.items())))

    def _received(self, request: SinkRequest) -> Received:
        verified, why = self._verdict(request)
        id = request.header(ID)
        received = Received(
            self._count["requests"] + 1, printable(request.method), printable(request.path), verified, why,
            printable(id) if id else None, self._times(id), self._status(),
            self._of_interest(dict(request.headers)), readable(request.body), len(request.body),
        )  # fmt: skip
        self._note(received)
        return received

    def _verdict(self, request: SinkRequest) -> tuple[bool | None, str | None]:
        if not self._manner.secrets:
            return None, None
        manner, headers = self._manner, dict(request.headers)
        # To try things out it says which scheme it was; a receiver names the one that it accepts.
        is_weaker = request.header(f"{manner.header_prefix}-SIGNATURE") and not request.header(SIGNATURE)
        scheme: Scheme = "flowcatalyst" if is_weaker else "standard"
        try:
            verified = verify(
                request.body, headers, manner.secrets, scheme=scheme, header_prefix=manner.header_prefix
            )
        except VerificationError as error:
            return False, self._why(request, error)
        return True, verified.scheme

    def _why(self, request: SinkRequest, error: VerificationError) -> str:
        headers = list(request.headers)
        now, prefix = datetime.now(UTC), self._manner.header_prefix
        found = diagnose(Request(request.body, headers, self._manner.secrets, now, header_prefix=prefix))
        return f"{error} {found.explanation}" if found.explanation else str(error)

    def _times(self, id: str | None) -> int:
        if id is None:
            return 1
        self._ids[id] = self._ids.pop(id, 0) + 1
        if len(self._ids) > _MOST_IDS:
            self._ids.popitem(last=False)
        return self._ids[id]

    def _status(self) -> int:
        return 500 if self._chance.random() < self._manner.fail else self._manner.status

    def _of_interest(self, headers: Mapping[str, str]) -> dict[str, str]:
        prefix = f"{self._manner.header_prefix}-".lower()
        wanted = ("webhook-", prefix, "content-type", "user-agent", "authorization", "traceparent")
        return {
            printable(name): _hidden(value) if name.lower() == "authorization" else printable(value)
            for name, value in headers.items()
            if name.lower().startswith(wanted)
        }

    def _note(self, received: Received) -> None:
        self._count["requests"] += 1
        self._count["verified"] += received.verified is True
        self._count["not_verified"] += received.verified is False
        self._count["duplicates"] += received.times > 1
        status = str(received.answered)
        self._answered[status] = self._answered.get(status, 0) + 1


def _hidden(authorization: str) -> str:
    """That there is a token may be seen, and which kind; the token may not."""
    kind, _, token = authorization.partition(" ")
    return f"{kind} *** ({len(token)} characters)" if token else "***"


# ── what is shown ────────────────────────────────────────────────────────────────────────────────


def _out() -> Console:
    return Console(highlight=False, soft_wrap=True)


def show(received: Received) -> None:
    out = _out()
    again = f"  [yellow]again, for the {_ordinal(received.times)} time[/]" if received.times > 1 else ""
    line = f"[bold]{received.number}[/]  {received.method} {escape(received.path)}"
    out.print(f"{line}  {_verdict_shown(received)}  → {received.answered}{again}")
    for name, value in received.headers.items():
        out.print(f"   [dim]{escape(name)}:[/] {escape(value)}")
    if received.body:
        out.print(escape(received.body))


def _verdict_shown(received: Received) -> str:
    if received.verified is None:
        return "[dim]not verified: no --secret-file[/]"
    if received.verified:
        return f"[green]✔ verified[/] ({received.why})"
    return f"[red]✖ {escape(received.why or '')}[/]"


def show_json(received: Received) -> None:
    _print_line(received)


def _print_line(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def show_summary(summary: Summary, *, json: bool) -> None:
    if json:
        _print_line({"summary": summary})
    else:
        _out().print(_told(summary))


def _told(summary: Summary) -> str:
    answers = ", ".join(f"{status} {count:,} times" for status, count in summary.answered.items())
    return (
        f"{summary.requests:,} requests, {summary.verified:,} verified, {summary.not_verified:,} not, "
        f"{summary.duplicates:,} repeated; answered {answers or 'nothing'}"
    )


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number // 10 % 10 != 1 else 0, "th")
    return f"{number}{ending}"


def readable(body: bytes) -> str:
    """For a terminal: JSON is indented, what is long is cut, and nothing in it moves the cursor."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"({len(body):,} bytes that are no text)"
    with suppress(ValueError, RecursionError):
        text = standard_json.dumps(standard_json.loads(text), indent=2, ensure_ascii=False)
    lines = printable(text[:_SHOWN_CHARACTERS]).splitlines()
    cut = len(text) > _SHOWN_CHARACTERS or len(lines) > _SHOWN_LINES
    return "\n".join(lines[:_SHOWN_LINES]) + ("\n…" if cut else "")


def printable(text: str) -> str:
    """Anybody may have written it: control characters would command the terminal."""
    return "".join(
        character if character.isprintable() or character == "\n" else f"\\x{ord(character):02x}"
        for character in text
    )
