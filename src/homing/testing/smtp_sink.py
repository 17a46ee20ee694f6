"""An SMTP server that takes mail in and can misbehave in every way a relay does.

    async with SmtpSink() as sink:
        ... send to sink.port ...
        assert sink.mails[0].recipients == ("ann@example.org",)

What it answers is scripted by a function of the stage and its argument: it returns an `Act`, or None
for the usual answer. `Faults` does the same by chance, from a seed.

    SmtpSink(script=lambda stage, argument: reply("450 4.2.0 later") if stage == "rcpt" else None)

`python -m homing.testing.smtp_sink --port 2525 --log accepted.jsonl` runs one as a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import os
import random
import re
import signal
import ssl
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias, cast

import msgspec
from msgspec import Struct

Stage: TypeAlias = Literal[
    "greeting", "ehlo", "starttls", "auth", "rset", "mail", "rcpt", "data", "dot", "noop"
]


class Act(Struct, frozen=True):
    """What the sink does in place of its usual answer."""

    #: The bytes to write; None writes nothing.
    write: bytes | None = None
    #: Close the connection after that.
    drop: bool = False
    #: Never answer again on this connection.
    stall: bool = False
    #: Write one byte at a time, each in a segment of its own.
    split: bool = False
    #: Seconds to wait first; later commands of the connection wait as well.
    delay: float = 0.0
    #: At the final dot: keep the mail although the answer is not a plain yes.
    accept: bool = False


def reply(text: str, *, delay: float = 0.0, drop: bool = False) -> Act:
    """Answer with this line; lines before the last end in CRLF."""
    return Act(write=text.encode() + b"\r\n", delay=delay, drop=drop)


def split_reply(text: str) -> Act:
    return Act(write=text.encode() + b"\r\n", split=True)


def raw(data: bytes) -> Act:
    """Write exactly these bytes, which need not be SMTP at all."""
    return Act(write=data)


def drop(*, accept: bool = False) -> Act:
    """Hang up without an answer; at the final dot `accept` keeps the mail nevertheless."""
    return Act(drop=True, accept=accept)


def stall(*, accept: bool = False) -> Act:
    return Act(stall=True, accept=accept)


Script: TypeAlias = Callable[[Stage, str], Act | None]


class Faults(Struct, frozen=True):
    """How often something goes wrong, each a probability from 0 to 1."""

    defer_rcpt: float = 0.0
    reject_rcpt: float = 0.0
    defer_dot: float = 0.0
    drop_before_dot: float = 0.0
    #: The mail is kept, the connection closed before the sender hears of it.
    drop_after_dot: float = 0.0
    busy: float = 0.0

    def script(self, rng: random.Random) -> Script:
        chances: dict[Stage, list[tuple[float, Act]]] = {
            "mail": [(self.busy, reply("421 4.3.2 busy, come back later", drop=True))],
            "rcpt": [
                (self.defer_rcpt, reply("450 4.2.1 mailbox busy")),
                (self.reject_rcpt, reply("550 5.1.1 no such user")),
            ],
            "data": [(self.drop_before_dot, drop())],
            "dot": [
                (self.defer_dot, reply("451 4.3.0 try again")),
                (self.drop_after_dot, drop(accept=True)),
            ],
        }
        drawn = {stage: [c for c in choices if c[0] > 0] for stage, choices in chances.items()}

        def draw(stage: Stage, _argument: str) -> Act | None:
            return next((act for chance, act in drawn.get(stage, ()) if rng.random() < chance), None)

        return draw


class SinkMail(Struct, frozen=True):
    """A mail that the sink said yes to (or kept before it hung up)."""

    sender: str
    recipients: tuple[str, ...]
    message_id: str | None
    #: The message as it was before dot-stuffing; empty unless `keep_data`.
    data: bytes = b""


class SinkSettings(Struct, frozen=True, kw_only=True):
    """How one sink behaves; see `SmtpSink`."""

    script: Script | None = None
    pipelining: bool = True
    smtputf8: bool = True
    enhanced: bool = True
    size: int | None = None
    tls: ssl.SSLContext | None = None
    implicit_tls: bool = False
    #: False leaves STARTTLS out of EHLO, as somebody in the middle would.
    offer_starttls: bool = True
    users: Mapping[str, str] = {}
    delay: float = 0.0
    keep_data: bool = True
    keep_mails: bool = True
    smuggling: bool = False
    max_connections: int | None = None


class SmtpSink:
    """A server on a free loopback port.

    `users` makes AUTH PLAIN and LOGIN available and required. `tls` offers STARTTLS, and with
    `implicit_tls` speaks TLS from the first byte. `delay` paces the answer to every final dot.
    `smuggling` takes a bare LF for a line end, as the servers do that SMTP smuggling aims at.
    `log` names a file that gets one JSON line for each mail, before the sender hears of it.
    """

    def __init__(
        self,
        settings: SinkSettings | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        script: Script | None = None,
        faults: Faults | None = None,
        seed: int = 0,
        log: Path | None = None,
        on_mail: Callable[[SinkMail], None] | None = None,
    ) -> None:
        settings = settings if settings is not None else SinkSettings()
        if faults is not None:
            script = faults.script(random.Random(seed))  # noqa: S311  (faults, not secrets)
        self.settings = settings if script is None else msgspec.structs.replace(settings, script=script)
        self.host, self.port = host, port
        self.delay = settings.delay
        self.mails: list[SinkMail] = []
        #: How many mails were taken, also when they are not kept.
        self.accepted = 0
        #: How many connections were made so far.
        self.connected = 0
        #: Every line that a client sent outside of a message.
        self.commands: list[str] = []
        self.sessions: set[_Session] = set()
        self._log_path = log
        self._log: int | None = None
        self._on_mail = on_mail
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        scheme = "smtps" if self.settings.implicit_tls else "smtp"
        return f"{scheme}://{self.host}:{self.port}"

    async def start(self) -> None:
        if self._log_path is not None:
            self._log = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        tls = self.settings.tls if self.settings.implicit_tls else None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Session(self), self.host, self.port, ssl=tls, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.hang_up()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def hurry(self) -> None:
        """Answer at once from now on."""
        self.delay = 0.0

    def hang_up(self) -> None:
        """Cut every connection that is open now."""
        for session in list(self.sessions):
            session.abort()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def accept(self, mail: SinkMail) -> None:
        self.accepted += 1
        if self._log is not None:
            entry = {"from": mail.sender, "to": mail.recipients, "message_id": mail.message_id}
            os.write(self._log, msgspec.json.encode(entry) + b"\n")
        if self.settings.keep_mails:
            self.mails.append(mail)
        if self._on_mail is not None:
            self._on_mail(mail)


_MESSAGE_ID = re.compile(rb"^message-id:\s*(<[^>\r\n]*>)", re.IGNORECASE | re.MULTILINE)
_PATH = re.compile(rb"(?:FROM|TO):\s*<([^>]*)>", re.IGNORECASE)
_ANY_DOT = re.compile(rb"(?:^|\r\n|\n|\r)\.(?:\r\n|\n|\r)")
_STAGES: dict[bytes, Stage] = {
    b"EHLO": "ehlo", b"HELO": "ehlo", b"STARTTLS": "starttls", b"AUTH": "auth", b"RSET": "rset",
    b"MAIL": "mail", b"RCPT": "rcpt", b"DATA": "data", b"NOOP": "noop",
}  # fmt: skip


class _Session(asyncio.Protocol):
    """One connection: commands in order, each answered before the next is looked at."""

    def __init__(self, sink: SmtpSink) -> None:
        self.sink = sink
        self.settings = sink.settings
        self._buffer = b""
        self._out: list[bytes] = []
        self._in_data = False
        #: True while an answer is delayed, stalled or TLS is being set up.
        self._held = False
        self._encrypted = sink.settings.implicit_tls
        self._user: str | None = None
        self._login: list[str] | None = None
        self._upgrade: asyncio.Task[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._sender: str | None = None
        self._recipients: list[str] = []

    # Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.sink.sessions.add(self)
        self.sink.connected += 1
        limit = self.settings.max_connections
        if limit is not None and len(self.sink.sessions) > limit:
            self._act(reply("421 4.7.0 too many connections", drop=True))
        else:
            self._answer("greeting", "", b"220 sink.example ESMTP\r\n")
        self._flush()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.sink.sessions.discard(self)
        self._held = True

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._work()

    def _work(self) -> None:
        while not self._held and self._step():
            pass
        self._flush()

    def _step(self) -> bool:
        """Take one command or one message off the buffer; False when there is none yet."""
        if self._in_data:
            return self._take_message()
        line, found, rest = self._buffer.partition(b"\n")
        if not found:
            return False
        self._buffer = rest
        self._command(line.rstrip(b"\r"))
        return True

    def _flush(self) -> None:
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    # Answers

    def _answer(self, stage: Stage, argument: str, usual: bytes) -> bool:
        """Answer as the script says, else as usual; True for the usual."""
        script = self.settings.script
        act = None if script is None else script(stage, argument)
        if act is None:
            self._out.append(usual)
            return True
        self._act(act)
        # A script that says yes in other words has not refused anything.
        return act.write is not None and act.write[:3] == usual[:3] and not act.drop

    def _act(self, act: Act) -> None:
        if not act.delay:
            self._perform(act)
            return
        self._held = True
        asyncio.get_running_loop().call_later(act.delay, self._perform_late, act)

    def _perform_late(self, act: Act) -> None:
        if self._transport.is_closing():
            return
        self._held = False
        self._perform(act)
        self._work()

    def _perform(self, act: Act) -> None:
        if act.split and act.write is not None:
            self._held = True
            self._flush()
            self._write_bytewise(act.write)
        elif act.write is not None:
            self._out.append(act.write)
        if act.stall or act.drop:
            self._held = True
        if act.drop:
            self._flush()
            self._transport.close()

    def _write_bytewise(self, data: bytes) -> None:
        """Write a byte per turn of the loop, so that each arrives alone."""
        if self._transport.is_closing():
            return
        if not data:
            self._held = False
            self._work()
            return
        self._transport.write(data[:1])
        asyncio.get_running_loop().call_later(0.001, self._write_bytewise, data[1:])

    # Commands

    def _command(self, line: bytes) -> None:
        if self.settings.keep_mails:
            self.sink.commands.append(line.decode("utf-8", "replace"))
        if self._login is not None:
            self._continue_login(line)
            return
        verb = line[:4].upper()
        if verb == b"RCPT":
            self._on_rcpt(line)
        elif verb == b"MAIL":
            self._on_mail(line)
        elif verb == b"DATA":
            self._on_data()
        else:
            self._on_other(verb, line)

    def _on_mail(self, line: bytes) -> None:
        if self.settings.users and self._user is None:
            self._out.append(b"530 5.7.0 authentication required\r\n")
            return
        if self._sender is not None:
            self._out.append(b"503 5.5.1 nested MAIL command\r\n")
            return
        path = _address(line)
        if path is None:
            self._out.append(b"501 5.5.4 syntax: MAIL FROM:<address>\r\n")
        elif self._answer("mail", path, b"250 2.1.0 ok\r\n"):
            self._sender = path

    def _on_rcpt(self, line: bytes) -> None:
        path = _address(line)
        if self._sender is None:
            self._out.append(b"503 5.5.1 need MAIL first\r\n")
        elif path is None:
            self._out.append(b"501 5.5.4 syntax: RCPT TO:<address>\r\n")
        elif self._answer("rcpt", path, b"250 2.1.5 ok\r\n"):
            self._recipients.append(path)

    def _on_data(self) -> None:
        if self._sender is None:
            self._out.append(b"503 5.5.1 need MAIL first\r\n")
        elif not self._recipients and not self._scripted_data():
            self._out.append(b"554 5.5.1 no valid recipients\r\n")
        elif self._recipients and self._answer("data", "", b"354 go ahead\r\n"):
            self._in_data = True

    def _scripted_data(self) -> bool:
        """Servers exist that say 354 although nobody is left; a script may play one."""
        script = self.settings.script
        act = None if script is None else script("data", "")
        if act is None:
            return False
        self._act(act)
        self._in_data = (act.write or b"").startswith(b"354")
        return True

    def _on_other(self, verb: bytes, line: bytes) -> None:
        if verb == b"QUIT":
            self._act(reply("221 2.0.0 bye", drop=True))
        elif verb in {b"EHLO", b"HELO"}:
            self._answer("ehlo", line[5:].decode("utf-8", "replace"), self._hello(verb))
            self._reset()
        elif verb == b"RSET":
            self._reset()
            self._answer("rset", "", b"250 2.0.0 ok\r\n")
        elif verb == b"NOOP":
            self._answer("noop", "", b"250 2.0.0 ok\r\n")
        elif verb == b"STAR" and self.settings.tls is not None:
            self._on_starttls(self.settings.tls)
        elif verb == b"AUTH" and self.settings.users:
            self._on_auth(line)
        else:
            self._out.append(b"502 5.5.2 not known here\r\n")

    def _hello(self, verb: bytes) -> bytes:
        if verb == b"HELO":
            return b"250 sink.example\r\n"
        settings = self.settings
        words = ["sink.example", "8BITMIME"]
        words += ["PIPELINING"] if settings.pipelining else []
        words += ["ENHANCEDSTATUSCODES"] if settings.enhanced else []
        words += ["SMTPUTF8"] if settings.smtputf8 else []
        words += [f"SIZE {settings.size}"] if settings.size is not None else []
        words += ["AUTH PLAIN LOGIN"] if settings.users else []
        if settings.tls is not None and settings.offer_starttls and not self._encrypted:
            words.append("STARTTLS")
        lines = [f"250-{word}\r\n" for word in words[:-1]] + [f"250 {words[-1]}\r\n"]
        return "".join(lines).encode()

    # TLS and AUTH

    def _on_starttls(self, context: ssl.SSLContext) -> None:
        if not self._answer("starttls", "", b"220 2.0.0 go ahead\r\n"):
            return
        self._held = True
        self._flush()
        # Nothing that came in the clear may count as a command of the encrypted session.
        self._buffer = b""
        self._transport.pause_reading()
        self._upgrade = asyncio.get_running_loop().create_task(self._start_tls(context))

    async def _start_tls(self, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(self._transport, self, context, server_side=True)
        except (OSError, ssl.SSLError):
            self._transport.abort()
            return
        self._transport = cast("asyncio.Transport", transport)
        self._encrypted, self._held = True, False
        self._reset()
        self._work()

    def _on_auth(self, line: bytes) -> None:
        words = line.split()
        mechanism = words[1].upper() if len(words) > 1 else b""
        initial = words[2] if len(words) > 2 else None
        if mechanism == b"PLAIN" and initial is not None:
            fields = _decoded(initial).split("\0")
            self._check_login(fields[-2] if len(fields) > 1 else "", fields[-1])
        elif mechanism == b"LOGIN":
            self._login = [] if initial is None else [_decoded(initial)]
            self._out.append(b"334 " + base64.b64encode(b"Password:" if initial else b"Username:") + b"\r\n")
        else:
            self._out.append(b"504 5.5.4 mechanism not known\r\n")

    def _continue_login(self, line: bytes) -> None:
        given = [*(self._login or ()), _decoded(line)]
        if len(given) == 1:
            self._login = given
            self._out.append(b"334 " + base64.b64encode(b"Password:") + b"\r\n")
        else:
            self._login = None
            self._check_login(given[0], given[1])

    def _check_login(self, user: str, password: str) -> None:
        if self.settings.users.get(user) != password:
            self._out.append(b"535 5.7.8 authentication failed\r\n")
        elif self._answer("auth", user, b"235 2.7.0 welcome\r\n"):
            self._user = user

    # Messages

    def _take_message(self) -> bool:
        end, length = self._find_end()
        if end < 0:
            return False
        data, self._buffer = self._buffer[:end], self._buffer[end + length :]
        self._in_data = False
        self._on_dot(data)
        return True

    def _find_end(self) -> tuple[int, int]:
        """Where the message ends, its last line end included, and how long the mark after it is."""
        if self.settings.smuggling:
            found = _ANY_DOT.search(self._buffer)
            return (found.start(), found.end() - found.start()) if found else (-1, 0)
        if self._buffer.startswith(b".\r\n"):
            return 0, 3
        end = self._buffer.find(b"\r\n.\r\n")
        return (end + 2, 3) if end >= 0 else (-1, 0)

    def _on_dot(self, data: bytes) -> None:
        sender, recipients = self._sender or "", tuple(self._recipients)
        self._reset()
        usual = b"250 2.0.0 ok: queued as %d\r\n" % (self.sink.accepted + 1)
        script = self.settings.script
        act = None if script is None else script("dot", ",".join(recipients))
        if act is None and self.sink.delay:
            act = Act(write=usual, delay=self.sink.delay, accept=True)
        if recipients and (act is None or act.accept or (act.write or b"").startswith(b"250")):
            self._accept(sender, recipients, data)
        if act is None:
            self._out.append(usual)
        else:
            self._act(act)

    def _accept(self, sender: str, recipients: tuple[str, ...], data: bytes) -> None:
        found = _MESSAGE_ID.search(data)
        message_id = found[1].decode("ascii", "replace") if found else None
        kept = _unstuffed(data) if self.settings.keep_data else b""
        self.sink.accept(SinkMail(sender, recipients, message_id, kept))


def _address(line: bytes) -> str | None:
    found = _PATH.search(line)
    return found[1].decode("utf-8", "replace") if found else None


def _unstuffed(data: bytes) -> bytes:
    data = data.replace(b"\r\n.", b"\r\n")
    return data[1:] if data.startswith(b".") else data


def _decoded(text: bytes) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""


async def _serve(sink: SmtpSink) -> None:
    async with sink:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, sink.hurry)
        # Whoever started us reads the address from the first line.
        sys.stdout.write(f"{sink.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Take mail in, and fail on purpose.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, help="one JSON line for each mail taken")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each final answer")
    parser.add_argument("--seed", type=int, default=0)
    for fault in Faults.__struct_fields__:
        parser.add_argument(f"--{fault.replace('_', '-')}", type=float, default=0.0, metavar="P")
    options = vars(parser.parse_args())
    faults = Faults(**{name: options[name] for name in Faults.__struct_fields__})
    sink = SmtpSink(
        SinkSettings(delay=options["delay"], keep_data=False, keep_mails=False),
        port=options["port"],
        log=options["log"],
        faults=faults if faults != Faults() else None,
        seed=options["seed"],
    )
    try:
        asyncio.run(_serve(sink))
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
