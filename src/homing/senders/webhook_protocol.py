"""One HTTP/1.1 connection of the webhook sender: a request out, its answer back, and on to the next.

An exchange costs one write, one future and what `httptools` takes to parse an answer; its deadline is
mostly a comparison, for one timer serves many requests. Every end of an exchange is an `Answer`.

A receiver may do anything. What it says unasked answers nothing, and after the least irregularity the
connection is not used again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from msgspec import Struct

from homing.senders.webhook_failure import NOT_HTTP, UNASKED, Failure, lost, too_late
from homing.senders.webhook_head import Origin

#: Bytes of an answer's headers that are taken, and bytes of its body that are read.
READ_LIMIT = 65_536
_MOST_HEADERS = 256
#: Bytes of an answer with all that is neither: the sizes of chunks, and headers after them.
_LONGEST_ANSWER = 1_048_576
#: Answers that end with their headers, whatever these say of a body.
_NO_CONTENT, _NOT_MODIFIED = 204, 304
#: How many times a receiver may say that the answer will come (1xx).
_MOST_DELAYS = 100
#: A body is written in pieces of so many bytes: behind a piece that is stuck the next one is kept back,
#: also where TLS lies between, and so it is known that the request was not sent to its end.
_PIECE = 65_536
#: Timers fire up to a millisecond early; seconds that are not worth another one.
_NEARLY = 0.001


class Deadline(Struct, frozen=True, gc=False):
    """When an exchange has to be over, in the loop's time, and how many seconds were given for it."""

    at: float
    seconds: float


class Answer(Struct, frozen=True):
    """What came of an exchange."""

    #: None where the headers of an answer did not come to their end.
    status: int | None = None
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""
    #: False where the rest of the body was left unread.
    whole: bool = True
    #: Why the answer is incomplete.
    failure: Failure | None = None
    #: The request was handed to the operating system to its last byte.
    written: bool = False


class Pool(Protocol):
    """Who owns the connections."""

    def release(self, connection: Connection) -> None:
        """It is ready for another request."""

    def gone(self, connection: Connection) -> None:
        """It takes no more requests."""

    def closed(self, connection: Connection) -> None:
        """Its socket is closed too."""


class Connection(asyncio.Protocol):
    """Carries one exchange at a time."""

    __slots__ = (
        "_alarm", "_answer", "_body", "_clogged", "_complete", "_deadline", "_delays", "_garbled",
        "_headers", "_keep_alive", "_loop", "_parser", "_pool", "_received", "_size", "_socket", "_status",
        "_timer", "_transport", "_unwritten", "end", "origin", "since",
    )  # fmt: skip

    def __init__(self, origin: Origin, sock: socket.socket, pool: Pool) -> None:
        self.origin = origin
        #: When it was last used, for the pool.
        self.since = 0.0
        #: How it ended; None while it can be used.
        self.end: Failure | None = None
        self._socket = sock
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._parser = HttpResponseParser(self)
        # As tolerant as browsers are of harmless mistakes, which plenty of small servers make.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._timer: asyncio.TimerHandle | None = None
        self._alarm = 0.0
        self._clogged = False
        self._unwritten = memoryview(b"")
        #: Awaited by whoever asked; None while nobody has.
        self._answer: asyncio.Future[Answer] | None = None
        self._delays = 0
        self._begin()

    def _begin(self) -> None:
        self._status: int | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size = self._received = 0
        self._complete = self._keep_alive = self._garbled = False

    # For the pool

    def is_silent(self) -> bool:
        """Whether it can take another request.

        What is there to be read, though the loop has not seen it yet, is either the end or answers nothing
        that was asked. To look costs a microsecond, and saves requests whose fate would be unknown.
        """
        if self.end is not None:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            # A reset: the loop will hear of it next.
            return False
        return False

    def close(self, reason: Failure) -> None:
        """End at once, whatever is under way; a second time does nothing."""
        if self._answer is not None:
            self._fail(reason)
        elif self.end is None:
            self.end = reason
            self._unwritten = memoryview(b"")
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            # A mere close would wait for ever for a receiver who reads nothing.
            self._transport.abort()
            self._pool.gone(self)

    # For the sender

    def ask(self, head: bytes, body: bytes, deadline: Deadline) -> asyncio.Future[Answer] | None:
        """Write a request. None if the connection had ended: then nothing was written."""
        if self.end is not None:
            return None
        self._begin()
        self._answer = answer = self._loop.create_future()
        self._delays = 0
        self._deadline = deadline
        if self._timer is None or deadline.at < self._alarm:
            self._set_alarm()
        if len(body) <= _PIECE:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._unwritten = memoryview(body)
            self._write_on()
        return answer

    def abandon(self, answer: asyncio.Future[Answer]) -> None:
        """Nobody waits for this answer any more; where it came already, the connection is another's."""
        if self._answer is answer:
            self._answer = None
            self.close(lost(None))

    def _set_alarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._alarm = self._deadline.at
        self._timer = self._loop.call_at(self._alarm, self._on_time)

    def _on_time(self) -> None:
        """The deadline of some request has come; mostly that one was answered long ago."""
        self._timer = None
        if self._answer is None:
            return
        if self._deadline.at - self._loop.time() > _NEARLY:
            self._set_alarm()
        else:
            self._fail(too_late(self._deadline.seconds, answered=self._status is not None))

    # How an exchange ends

    def _settle(self, answer: Answer, *, end: Failure | None) -> None:
        asked, self._answer = self._answer, None
        # It is done already when its task was cancelled, but has not run since.
        if asked is not None and not asked.done():
            asked.set_result(answer)
        if end is None:
            self._pool.release(self)
        else:
            self.close(end)

    def _succeed(self, *, keep: bool, whole: bool = True) -> None:
        body = b"".join(self._body)[:READ_LIMIT]
        answer = Answer(self._status, self._headers, body, whole=whole, written=True)
        # While a request is still being written, whatever was said of keeping the connection is void.
        self._settle(answer, end=None if keep and self._is_written() else lost(None))

    def _fail(self, failure: Failure) -> None:
        answer = Answer(self._status, self._headers, failure=failure, written=self._is_written())
        self._settle(answer, end=failure)

    def _is_written(self) -> bool:
        return not (self._clogged or self._unwritten)

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Any byte that the system does not take at once makes the transport say so.
        self._transport.set_write_buffer_limits(high=1, low=0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over(exc)
        self._pool.closed(self)

    def eof_received(self) -> None:
        self._over(None)

    def pause_writing(self) -> None:
        self._clogged = True

    def resume_writing(self) -> None:
        self._clogged = False
        self._write_on()

    def _write_on(self) -> None:
        while self._unwritten and not self._clogged:
            piece, self._unwritten = self._unwritten[:_PIECE], self._unwritten[_PIECE:]
            self._transport.write(piece)

    def _over(self, error: Exception | None) -> None:
        if self._answer is not None and error is None and self._lasts_until_the_end():
            self._succeed(keep=False)
        else:
            self.close(lost(error))

    def _lasts_until_the_end(self) -> bool:
        """Whether the body has no other end than the connection's."""
        named = {name.strip().lower(): value.lower() for name, value in self._headers}
        chunked = named.get(b"transfer-encoding", b"").endswith(b"chunked")
        return self._status is not None and not chunked and b"content-length" not in named

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close(UNASKED)
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._garbled = True
        if self._complete:
            self._succeed(keep=self._keep_alive and not self._garbled)
        elif self._garbled or self._received > READ_LIMIT or self._delays > _MOST_DELAYS:
            self._judge()

    def _judge(self) -> None:
        """The answer is not complete, and there is something wrong with it or too much of it."""
        if self._size > READ_LIMIT or (self._status is not None and self._received > _LONGEST_ANSWER):
            self._succeed(keep=False, whole=False)
        elif self._garbled or (self._status is None and self._received > READ_LIMIT):
            if not self._body:
                # What is wrong before its body begins is no answer, in however many pieces it came.
                self._status = None
            self._fail(NOT_HTTP)
        elif self._delays > _MOST_DELAYS:
            # It shall have the time that it asks for, but no more of ours: the deadline ends this.
            self._transport.pause_reading()

    # From the parser

    def on_message_begin(self) -> None:
        if self._complete:
            raise HttpParserError("a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if b"\0" in value:
            raise HttpParserError("a NUL in a header")
        # After the body there may be more of them, which nobody needs.
        if self._status is None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 100 or self._has_too_many_headers():
            raise HttpParserError("not an answer that we take")
        if status >= 200 or status == 101:
            self._status = status

    def _has_too_many_headers(self) -> bool:
        if len(self._headers) > _MOST_HEADERS:
            return True
        # They need to be measured only where so much has come in all.
        return self._received > READ_LIMIT and sum(map(_length, self._headers)) > READ_LIMIT

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._status is None:
            # That was a 1xx, and the answer is still to come.
            self._begin()
            self._delays += 1
        else:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive() and not self._may_go_on()

    def _may_go_on(self) -> bool:
        """Whether a body may follow where there is none, and be taken for the answer to the next request."""
        # Nobody asks in a POST whether something was modified: whoever says so may say anything.
        return self._status == _NOT_MODIFIED or (self._status == _NO_CONTENT and self._announces_a_body())

    def _announces_a_body(self) -> bool:
        named = {name.strip().lower(): value.strip() for name, value in self._headers}
        return b"transfer-encoding" in named or named.get(b"content-length", b"0") != b"0"


def _length(header: tuple[bytes, bytes]) -> int:
    name, value = header
    return len(name) + len(value)
