"""One SMTP connection after the login: mails in a row, pipelined (RFC 2920).

    we write                                          the relay answers
    MAIL RCPT… DATA                                   250 250… 354
    body of A, dot, MAIL RCPT… DATA of B              250 (A is taken) 250 250… 354
    body of B, dot, MAIL RCPT… DATA of C              250 (B is taken) …

While mails are waiting, each costs one round trip, one write and one future. Until a body has gone out
nothing has happened: a mail of which only the envelope was written can move to another connection.
Once its final dot was written and no answer came, the outcome is unknown, and says so.

A relay without PIPELINING is spoken to command by command, by the same steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

from homing.engine.model import Monotonic
from homing.senders.mail import SendError, SendErrorCode, SendResult, Verdict
from homing.senders.smtp_relay import Features
from homing.senders.smtp_reply import (
    BUSY,
    Reply,
    Stage,
    acceptance,
    error_of,
    queue_id_of,
    read_reply,
    refusal,
    wait_of,
)

#: RFC 5321 allows 512 octets a line; relays are more talkative than that.
LONGEST_LINE = 8192
LONGEST_REPLY = 65536

_CODES = {b"%d" % code: code for code in range(200, 600)}
#: What may follow the code of a reply: another line will come, or this is the last.
_MARKS = frozenset({b"-", b" ", b"\r", b""})
_DOT = b".\r\n"


class Limits(Struct, frozen=True, kw_only=True):
    """How long to wait for what, in seconds, and how much one connection may carry."""

    connect: float = 10.0
    command: float = 30.0
    #: RFC 5321, 4.5.3.2.6: who gives up earlier sends doubles. The lease is renewed meanwhile.
    dot: float = 600.0
    #: One attempt as a whole, waiting for a connection included.
    deadline: float = 620.0
    idle: float = 60.0
    quit: float = 2.0
    #: How long an envelope may wait behind a mail whose answer does not come.
    chain: float = 2.0
    #: After a connection could not be opened beside others that work, no further one for so long.
    crowded: float = 5.0
    mails_per_connection: int = 1000


class Recipient(Struct, frozen=True, gc=False):
    """An address as the caller wrote it, and as the envelope takes it."""

    address: str
    path: bytes
    needs_utf8: bool = False


class Transaction:
    """One mail on its way: what is to be written, and what was answered so far."""

    __slots__ = (
        "accepted", "body", "busy", "commands", "connection", "deadline", "deferred", "dotted", "future",
        "header_utf8", "mail_refused", "message_id", "moved", "preset", "provider", "recipients", "rejected",
        "remaining", "retry_after", "sender", "size", "step", "utf8", "verdicts",
    )  # fmt: skip

    def __init__(
        self,
        *,
        provider: str,
        message_id: str,
        sender: bytes,
        recipients: Sequence[Recipient],
        preset: dict[str, Verdict],
        body: Sequence[bytes],
        size: int,
        header_utf8: bool,
        future: asyncio.Future[SendResult],
        deadline: float,
    ) -> None:
        self.provider = provider
        self.message_id = message_id
        self.sender = sender
        self.recipients = recipients
        #: Verdicts that need no relay: addresses that are none.
        self.preset = preset
        #: Dot-stuffed, the final dot included.
        self.body = body
        self.size = size
        self.header_utf8 = header_utf8
        self.utf8 = header_utf8 or any(recipient.needs_utf8 for recipient in recipients)
        self.future = future
        self.deadline = deadline
        self.connection: Connection | None = None
        #: True once it was moved away from a connection that had gone stale.
        self.moved = False
        self.reset()

    def reset(self) -> None:
        """Forget what a connection answered, so that another can start from the beginning."""
        self.commands: list[bytes] = []
        self.remaining: Sequence[Recipient] = ()
        #: Index of the command whose answer is awaited; past the last one it is the final dot.
        self.step = 0
        self.accepted = 0
        self.dotted = False
        self.busy = False
        self.mail_refused = False
        self.verdicts = dict(self.preset) if self.preset else {}
        self.deferred: SendError | None = None
        self.rejected: SendError | None = None
        self.retry_after: float | None = None
        for verdict in self.verdicts.values():
            self._refuse_unsent(verdict.text or "")

    # What goes out

    def prepare(self, features: Features) -> bool:
        """Make the envelope for this relay. False when nothing is left to send: `result` says why."""
        self.remaining = self._reachable(features)
        if not self.remaining:
            return False
        self.commands = [
            b"MAIL FROM:<%b>%b\r\n" % (self.sender, self._parameters(features)),
            *[b"RCPT TO:<%b>\r\n" % recipient.path for recipient in self.remaining],
            b"DATA\r\n",
        ]
        return True

    def _parameters(self, features: Features) -> bytes:
        size = b" SIZE=%d" % self.size if features.size is not None else b""
        if not (self.utf8 and features.smtputf8):
            return size
        eight_bit = b" BODY=8BITMIME" if self.header_utf8 and features.eight_bit else b""
        return size + eight_bit + b" SMTPUTF8"

    def _reachable(self, features: Features) -> Sequence[Recipient]:
        """Who can get this message from this relay."""
        if features.size and self.size > features.size:
            self._fail(f"the message has {self.size} octets, the relay takes {features.size}")
            return ()
        if not self.utf8 or features.smtputf8:
            return self.recipients
        if self.header_utf8:
            self._fail("an address in the header needs SMTPUTF8, which the relay does not offer")
            return ()
        return self._written_in_ascii()

    def _written_in_ascii(self) -> Sequence[Recipient]:
        text = "the address needs SMTPUTF8, which the relay does not offer"
        for recipient in self.recipients:
            if recipient.needs_utf8:
                self.verdicts[recipient.address] = Verdict(status="rejected", text=text)
                self._refuse_unsent(text)
        return [recipient for recipient in self.recipients if not recipient.needs_utf8]

    def _fail(self, message: str) -> None:
        self.rejected = SendError(SendErrorCode.VALIDATION_ERROR, message)

    def _refuse_unsent(self, text: str) -> None:
        if self.rejected is None:
            self.rejected = SendError(SendErrorCode.INVALID_RECIPIENT, text)

    # What was answered

    def refuse(self, recipient: Recipient, reply: Reply, stage: Stage, *, trust_enhanced: bool) -> None:
        verdict = refusal(reply, trust_enhanced=trust_enhanced)
        self.verdicts[recipient.address] = verdict
        error = error_of(reply, verdict, stage)
        if verdict.status == "rejected":
            self.rejected = self.rejected or error
            return
        self.deferred = self.deferred or error
        wait = wait_of(reply.text)
        if wait is not None:
            self.retry_after = max(wait, self.retry_after or 0.0)

    def refuse_open(self, reply: Reply, stage: Stage, *, trust_enhanced: bool) -> None:
        """The reply holds for every recipient that has no verdict yet."""
        for recipient in self.remaining:
            if recipient.address not in self.verdicts:
                self.refuse(recipient, reply, stage, trust_enhanced=trust_enhanced)

    def take(self, reply: Reply) -> SendResult:
        """The relay has it: every recipient that was not refused before is accepted."""
        verdict = acceptance(reply)
        for recipient in self.remaining:
            self.verdicts.setdefault(recipient.address, verdict)
        # Not every relay tells its own name for the mail; the mail has one by which its logs find it, too.
        return self.result(queue_id_of(reply.text) or self.message_id)

    def result(self, provider_message_id: str | None = None) -> SendResult:
        if self.deferred is None and self.rejected is None:
            return SendResult(
                status="sent",
                provider=self.provider,
                provider_message_id=provider_message_id,
                verdicts=self.verdicts,
            )
        return SendResult(
            status="retryable" if self.deferred is not None else "failed",
            provider=self.provider,
            provider_message_id=provider_message_id,
            verdicts=self.verdicts,
            error=self.deferred or self.rejected,
            retry_after=self.retry_after,
            # Busy for everybody, before anybody was accepted: this mail was not looked at.
            attempted=not (self.busy and not self.accepted),
        )

    def cut_off(self, error: SendError, *, unknown: bool = False, attempted: bool = True) -> SendResult:
        """The connection ended in the middle; recipients without a verdict stay open."""
        if self.remaining and all(recipient.address in self.verdicts for recipient in self.remaining):
            return self.result()
        return SendResult(
            status="retryable",
            provider=self.provider,
            verdicts=self.verdicts,
            error=error,
            attempted=attempted,
            unknown=unknown,
        )


class End(Enum):
    """How a connection ended; the text is what a person reads of it."""

    HUNG_UP = "the relay closed the connection"
    BUSY = "the relay closed the connection, as it is busy"
    GARBLED = "the relay answered something that is not SMTP"
    TOO_LATE = "the relay did not answer in time"
    ABANDONED = "the connection was given up"


class Pool(Protocol):
    """Who owns the connections and the mails that wait."""

    def take(self) -> Transaction | None:
        """The next mail that waits."""

    def give_back(self, transaction: Transaction) -> None:
        """Only its envelope was written: somebody else is to send it, before all others."""

    def settle(self, transaction: Transaction, result: SendResult) -> None: ...

    def rest(self, connection: Connection) -> None:
        """The connection has nothing to do."""

    def gone(self, connection: Connection, unfinished: Transaction | None, end: End) -> None:
        """The connection carries nothing any more."""

    def closed(self, connection: Connection) -> None:
        """Its socket is closed too."""


class Connection(asyncio.Protocol):
    """Carries mails of a pool, one behind the other."""

    def __init__(
        self,
        transport: asyncio.Transport,
        features: Features,
        pool: Pool,
        limits: Limits,
        monotonic: Monotonic,
    ) -> None:
        self._transport = transport
        self.features = features
        self._pool = pool
        self._limits = limits
        self._monotonic = monotonic
        #: May carry mails; then it says QUIT, or just ends, and then it is dead.
        self._open = True
        self._dead = False
        #: The mail whose answers come next, and the one whose envelope was written behind its body.
        self.current: Transaction | None = None
        self.chained: Transaction | None = None
        #: Mails that were begun on this connection.
        self.served = 0
        #: When something was written, or a line came in.
        self.since = monotonic()
        #: The relay still has an envelope of ours that came to nothing.
        self._stale_envelope = False
        self._awaits_reset = False
        #: A chained mail was taken back: its answers will come, and must not be mistaken.
        self._recalled = False
        self._writing_paused = False
        self._partial = b""
        self._lines: list[bytes] = []
        self._lines_size = 0
        self._out: list[bytes] = []
        transport.set_protocol(self)

    # For the pool

    def start(self, transaction: Transaction) -> None:
        """Begin with a mail while resting."""
        self._begin(transaction)
        if self.current is None:
            self._next()
        self._flush()

    def go_on(self) -> None:
        """Take what the pool has; a new connection starts like this."""
        self._next()
        self._flush()

    def quit(self) -> None:
        self._open = False
        self._out.append(b"QUIT\r\n")
        self._flush()

    def abandon(self, transaction: Transaction) -> None:
        """Nobody waits for this mail any more."""
        if self.current is transaction:
            self.current = None
            self.end(End.ABANDONED)
        elif self.chained is transaction:
            self.chained = None
            self._recalled = True

    def check(self, now: float) -> None:
        """Called about once a second; one timer serves all connections of a pool."""
        waited = now - self.since
        if not self._open:
            if waited > self._limits.quit:
                self.end(End.ABANDONED)
        elif self.current is None:
            if waited > self._limits.idle:
                self.quit()
        elif self._is_late(self.current, now, waited):
            self.end(End.TOO_LATE)
        elif self.chained is not None and waited > self._limits.chain:
            self._recall(self.chained)

    def _is_late(self, current: Transaction, now: float, waited: float) -> bool:
        return now > current.deadline or waited > (
            self._limits.dot if current.dotted else self._limits.command
        )

    def _recall(self, chained: Transaction) -> None:
        self.chained = None
        self._recalled = True
        self._pool.give_back(chained)

    def end(self, end: End) -> None:
        """Close at once, and hand back what was under way."""
        if self._dead:
            return
        self._open, self._dead = False, True
        unfinished, chained = self.current, self.chained
        self.current = self.chained = None
        self._transport.abort()
        if chained is not None:
            self._pool.give_back(chained)
        self._pool.gone(self, unfinished, end)

    def body_may_have_arrived(self, transaction: Transaction) -> bool:
        """False while the end of the body cannot have left: the transport still asks us to wait."""
        return transaction.dotted and not self._writing_paused

    # From the transport

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False

    def connection_lost(self, _exc: Exception | None) -> None:
        self.end(End.HUNG_UP)
        self._pool.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._open:
            self._read(data)
        else:
            # An answer to our QUIT: whatever it says, we have nothing to add.
            self._transport.close()

    def _read(self, data: bytes) -> None:
        if self._partial:
            data = self._partial + data
        lines = data.split(b"\n")
        self._partial = lines.pop()
        if lines:
            self.since = self._monotonic()
        for line in lines:
            if not self._open:
                break
            self._read_line(line)
        if len(self._partial) > LONGEST_LINE:
            self.end(End.GARBLED)
        if self._open:
            self._flush()

    def _flush(self) -> None:
        if self._out:
            self.since = self._monotonic()
            # One buffer: a dozen of them cost more to hand over than to join (14 µs against 10).
            self._transport.write(b"".join(self._out))
            self._out = []

    # Replies

    def _read_line(self, line: bytes) -> None:
        code = _CODES.get(line[:3])
        mark = line[3:4]
        if code is None or mark not in _MARKS or len(line) > LONGEST_LINE:
            self.end(End.GARBLED)
        elif mark == b"-" or self._lines:
            self._collect(code, line, last=mark != b"-")
        else:
            self._on_reply(code, (line,))

    def _collect(self, code: int, line: bytes, *, last: bool) -> None:
        """Gather the lines of one reply, which all have the same code."""
        self._lines.append(line)
        self._lines_size += len(line)
        if self._lines_size > LONGEST_REPLY or line[:3] != self._lines[0][:3]:
            self.end(End.GARBLED)
        elif last:
            lines, self._lines, self._lines_size = self._lines, [], 0
            self._on_reply(code, lines)

    def _on_reply(self, code: int, lines: Sequence[bytes]) -> None:
        transaction = self.current
        if transaction is None:
            # Out of turn: mostly a 421 before an idle connection is closed.
            self.end(End.HUNG_UP if code == 421 else End.GARBLED)
        elif self._awaits_reset:
            self._on_reset(transaction, code)
        elif transaction.step == len(transaction.commands):
            self._on_dot(transaction, code, lines)
        elif code == 421:
            self._on_closing(transaction, lines)
        elif transaction.step == len(transaction.commands) - 1:
            self._on_data(transaction, code, lines)
        else:
            self._on_address(transaction, code, lines)

    def _on_reset(self, transaction: Transaction, code: int) -> None:
        self._awaits_reset = False
        if code != 250:
            # The mail has nothing to do with it, and moves to a fresh connection.
            self.end(End.HUNG_UP)
        elif not self.features.pipelining:
            self._out.append(transaction.commands[0])

    def _on_address(self, transaction: Transaction, code: int, lines: Sequence[bytes]) -> None:
        """The answer to MAIL or to one RCPT."""
        step = transaction.step
        transaction.step = step + 1
        if code >= 400:
            self._on_refused_address(transaction, step, read_reply(code, lines))
        elif code >= 300:
            self.end(End.GARBLED)
            return
        elif step and not transaction.mail_refused:
            transaction.accepted += 1
        if not self.features.pipelining:
            self._write_step(transaction)

    def _on_refused_address(self, transaction: Transaction, step: int, reply: Reply) -> None:
        if transaction.mail_refused:
            # What follows a refused MAIL is only its echo.
            return
        transaction.busy = transaction.busy or reply.code in BUSY
        trust = self.features.enhanced
        if step == 0:
            transaction.mail_refused = True
            transaction.refuse_open(reply, Stage.MAIL, trust_enhanced=trust)
        else:
            transaction.refuse(transaction.remaining[step - 1], reply, Stage.RCPT, trust_enhanced=trust)

    def _write_step(self, transaction: Transaction) -> None:
        """Without PIPELINING: the next command, or none if the mail came to nothing."""
        is_data = transaction.step == len(transaction.commands) - 1
        if transaction.mail_refused or (is_data and not transaction.accepted):
            self._finish(transaction, transaction.result(), stale_envelope=True)
        else:
            self._out.append(transaction.commands[transaction.step])

    def _on_data(self, transaction: Transaction, code: int, lines: Sequence[bytes]) -> None:
        if code == 354:
            transaction.step += 1
            self._write_body(transaction)
        elif code < 400:
            self.end(End.GARBLED)
        else:
            if transaction.accepted:
                reply = read_reply(code, lines)
                transaction.refuse_open(reply, Stage.CONTENT, trust_enhanced=self.features.enhanced)
            self._finish(transaction, transaction.result(), stale_envelope=True)

    def _write_body(self, transaction: Transaction) -> None:
        if transaction.future.done():
            # Cancelled a moment ago: the lease may be lost, and this is the last chance to stop.
            self.abandon(transaction)
            return
        if transaction.accepted:
            transaction.dotted = True
            self._out += transaction.body
        else:
            # RFC 2920, 3.1: the relay waits for a message to nobody; an empty one ends it.
            self._out.append(_DOT)
        if self.features.pipelining and self.served < self._limits.mails_per_connection:
            self.chained = self._draw()
            if self.chained is not None:
                self._write_envelope(self.chained)

    def _on_dot(self, transaction: Transaction, code: int, lines: Sequence[bytes]) -> None:
        reply = read_reply(code, lines)
        if 300 <= code < 400:
            self.end(End.GARBLED)
            return
        if code >= 400:
            transaction.refuse_open(reply, Stage.CONTENT, trust_enhanced=self.features.enhanced)
        result = transaction.take(reply) if code < 300 and transaction.accepted else transaction.result()
        if code == 421:
            self._last_word(transaction, result, End.HUNG_UP)
        else:
            self._finish(transaction, result, stale_envelope=False)

    def _on_closing(self, transaction: Transaction, lines: Sequence[bytes]) -> None:
        """421: the relay closes the connection, and answers nothing of what was written behind."""
        if transaction.step == 0 and self.served > 1:
            # The usual end of a connection that rested too long, or carried enough.
            self.end(End.HUNG_UP)
            return
        transaction.busy = True
        transaction.refuse_open(read_reply(421, lines), Stage.CONTENT, trust_enhanced=False)
        self._last_word(transaction, transaction.result(), End.BUSY)

    def _last_word(self, transaction: Transaction, result: SendResult, end: End) -> None:
        self.current = None
        self._pool.settle(transaction, result)
        self.end(end)

    # Mails

    def _draw(self) -> Transaction | None:
        """The next mail of which there is something to send on this connection."""
        while (transaction := self._pool.take()) is not None:
            if transaction.prepare(self.features):
                return transaction
            self._pool.settle(transaction, transaction.result())
        return None

    def _begin(self, transaction: Transaction) -> None:
        if transaction.prepare(self.features):
            self.current = transaction
            self._write_envelope(transaction)
        else:
            self._pool.settle(transaction, transaction.result())

    def _write_envelope(self, transaction: Transaction) -> None:
        transaction.connection = self
        self.served += 1
        if self._stale_envelope:
            self._stale_envelope, self._awaits_reset = False, True
            self._out.append(b"RSET\r\n")
        if self.features.pipelining:
            self._out += transaction.commands
        elif not self._awaits_reset:
            self._out.append(transaction.commands[0])

    def _finish(self, transaction: Transaction, result: SendResult, *, stale_envelope: bool) -> None:
        self._stale_envelope = stale_envelope
        self.current, self.chained = self.chained, None
        self._pool.settle(transaction, result)
        if self.current is None:
            self._next()

    def _next(self) -> None:
        if self._recalled:
            self.end(End.ABANDONED)
            return
        if self.served >= self._limits.mails_per_connection:
            self.quit()
            return
        transaction = self._draw()
        if transaction is None:
            self._pool.rest(self)
        else:
            self.current = transaction
            self._write_envelope(transaction)
