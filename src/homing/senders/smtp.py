"""`smtp://` and `smtps://`: a sender with a pool of connections to one relay.

sender = SmtpSender(Relay.from_url("smtp://user:password@mail.example"))
result = await sender.send(message)

Connections are opened as mails wait for them, carry mail after mail (see `smtp_protocol`), and are closed
when they have rested for a minute. What went wrong out there is in the result, and nothing is raised:

| what happened | status | error | attempted | unknown |
|---|---|---|---|---|
| refused, unreachable, TLS failed, time-out before the last byte | retryable | network_error | yes | |
| login refused | retryable | unauthorized | yes | |
| 421 or 454 before a recipient was accepted, also as greeting | retryable | rate_limited | no | |
| the breaker is open, or the sender is being closed | retryable | network_error | no | |
| connection lost or time-out after the last byte | retryable | unknown | yes | yes |
| cannot be assembled, or is too large for the relay | failed | validation_error | yes | |
| an address is none | failed, if it was the last open one | invalid_recipient | yes | |
| anything the relay answers about the mail | by its recipients' verdicts | see `smtp_reply` | yes | |
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress

from homing.engine.model import Monotonic
from homing.senders.addresses import InvalidAddress, envelope_address, needs_smtputf8, parse_address
from homing.senders.breaker import Breaker
from homing.senders.mail import MailMessage, SendError, SendErrorCode, SendResult, Verdict
from homing.senders.mime import Unassemblable, assemble_stuffed
from homing.senders.smtp_protocol import Connection, End, Limits, Recipient, Transaction
from homing.senders.smtp_relay import Closed, Entrance, Relay, enter, tls_context

__all__ = ["Limits", "Relay", "SmtpSender"]

#: A result with one of these says something about the relay and nothing about the mail.
_RELAY_TROUBLE = frozenset({SendErrorCode.NETWORK_ERROR, SendErrorCode.UNAUTHORIZED, SendErrorCode.UNKNOWN})


class SmtpSender:
    """Sends by one relay. Make it and use it in one event loop."""

    def __init__(
        self,
        relay: Relay,
        *,
        connections: int = 20,
        limits: Limits | None = None,
        monotonic: Monotonic = time.monotonic,
        breaker: Breaker | None = None,
        name: str = "smtp",
    ) -> None:
        self._name = name
        self._monotonic = monotonic
        self._limits = limits if limits is not None else Limits(command=relay.timeout)
        self._breaker = breaker if breaker is not None else Breaker(monotonic)
        self._pool = _Pool(
            relay,
            relay.connections or connections,
            self._limits,
            self._breaker,
            monotonic,
        )

    @property
    def name(self) -> str:
        return self._name

    async def send(self, message: MailMessage) -> SendResult:
        if not self._breaker.closed and not await self.available():
            return self._not_now()
        try:
            transaction = self._transaction(message)
        except (Unassemblable, InvalidAddress) as error:
            return self._failed(str(error))
        if not transaction.recipients:
            return transaction.result() if transaction.preset else self._failed("there is no recipient")
        self._pool.add(transaction)
        try:
            return await transaction.future
        except asyncio.CancelledError:
            self._pool.abandon(transaction)
            raise

    def usable(self) -> bool:
        return self._breaker.closed

    async def available(self) -> bool:
        return await self._breaker.available(self._pool.probe)

    async def close(self) -> None:
        await self._pool.close()

    def _transaction(self, message: MailMessage) -> Transaction:
        sender = envelope_address(parse_address(message.sender).address).encode()
        recipients, refused = _recipients(message.recipients)
        stuffed = assemble_stuffed(message)
        return Transaction(
            provider=self._name,
            message_id=message.message_id,
            sender=sender,
            recipients=recipients,
            preset=refused,
            body=[*stuffed.chunks, b".\r\n"],
            size=stuffed.size,
            header_utf8=stuffed.header_utf8,
            future=asyncio.get_running_loop().create_future(),
            deadline=self._monotonic() + self._limits.deadline,
        )

    def _failed(self, message: str) -> SendResult:
        error = SendError(SendErrorCode.VALIDATION_ERROR, message)
        return SendResult(status="failed", provider=self._name, error=error)

    def _not_now(self) -> SendResult:
        trouble = self._pool.trouble
        message = "the relay is left alone after failures in a row"
        shown = f"{message}; the last: {trouble.message}" if trouble is not None else message
        error = SendError(SendErrorCode.NETWORK_ERROR, shown)
        return SendResult(status="retryable", provider=self._name, error=error, attempted=False)


def _recipients(addresses: tuple[str, ...]) -> tuple[list[Recipient], dict[str, Verdict]]:
    """Who can be written to, and what is wrong with the others; one bad address stops nobody else."""
    good: list[Recipient] = []
    refused: dict[str, Verdict] = {}
    for address in dict.fromkeys(addresses):
        try:
            path = envelope_address(address).encode()
        except InvalidAddress as error:
            refused[address] = Verdict(status="rejected", text=str(error))
        else:
            good.append(Recipient(address, path, needs_smtputf8(address)))
    return good, refused


class _Pool:
    """The connections to one relay, and the mails that wait for one."""

    def __init__(
        self, relay: Relay, size: int, limits: Limits, breaker: Breaker, monotonic: Monotonic
    ) -> None:
        self._relay = relay
        self._context = tls_context(relay)
        self._size = size
        self._limits = limits
        self._breaker = breaker
        self._monotonic = monotonic
        self._waiting: deque[Transaction] = deque()
        self._connections: set[Connection] = set()
        #: Those, and the ones that are still being closed.
        self._sockets: set[Connection] = set()
        self._resting: list[Connection] = []
        self._openings: set[asyncio.Task[None]] = set()
        self._crowded_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._empty = asyncio.Event()
        #: Why the last connection could not be opened.
        self.trouble: SendError | None = None

    # For the sender

    def add(self, transaction: Transaction) -> None:
        """Start at once on a resting connection, else wait for one."""
        if self._closed:
            self._give_up(transaction, "the sender is closed")
            return
        if self._resting:
            # The one that rested least: the others are left to grow old and be closed.
            self._resting.pop().start(transaction)
            return
        self._waiting.append(transaction)
        self._open_as_needed()

    def abandon(self, transaction: Transaction) -> None:
        """Whoever waited for it is gone. In the queue it is passed over when its turn comes."""
        if transaction.connection is not None:
            transaction.connection.abandon(transaction)

    async def probe(self) -> bool:
        """Connect, log in and say NOOP; the connection is kept for the mails that follow."""
        entrance = await self._enter(probe=True)
        if isinstance(entrance, Closed):
            return False
        if self._closed:
            entrance.transport.abort()
            return False
        self._adopt(entrance).go_on()
        return True

    async def close(self) -> None:
        self._closed = True
        self._flush_waiting("the sender is being closed")
        openings = list(self._openings)
        for opening in openings:
            opening.cancel()
        for connection in list(self._resting):
            self._resting.remove(connection)
            connection.quit()
        await asyncio.gather(*openings, return_exceptions=True)
        await self._wait_until_empty()
        if self._timer is not None:
            self._timer.cancel()

    async def _wait_until_empty(self) -> None:
        await self._sockets_closed()
        for connection in list(self._connections):
            connection.end(End.ABANDONED)
        await self._sockets_closed()

    async def _sockets_closed(self) -> None:
        """Wait for the last socket, though not for long."""
        if self._sockets:
            self._empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), self._limits.quit)

    # For connections

    def take(self) -> Transaction | None:
        while self._waiting:
            transaction = self._waiting.popleft()
            if not transaction.future.done():
                return transaction
        return None

    def give_back(self, transaction: Transaction) -> None:
        transaction.connection = None
        transaction.reset()
        if transaction.future.done():
            return
        if self._closed:
            self._give_up(transaction, "the sender is being closed")
        elif self._resting:
            self._resting.pop().start(transaction)
        else:
            self._waiting.appendleft(transaction)
            self._open_as_needed()

    def settle(self, transaction: Transaction, result: SendResult) -> None:
        _resolve(transaction, result)
        error = result.error
        if error is None or (result.attempted and error.code not in _RELAY_TROUBLE):
            self._breaker.succeeded()
        else:
            self._failed()

    def rest(self, connection: Connection) -> None:
        if self._closed:
            connection.quit()
        else:
            self._resting.append(connection)

    def gone(self, connection: Connection, unfinished: Transaction | None, end: End) -> None:
        self._connections.discard(connection)
        if connection in self._resting:
            self._resting.remove(connection)
        if unfinished is not None:
            self._end_unfinished(connection, unfinished, end)
        self._open_as_needed()

    def closed(self, connection: Connection) -> None:
        self._sockets.discard(connection)
        if not self._sockets:
            self._empty.set()

    def _end_unfinished(self, connection: Connection, transaction: Transaction, end: End) -> None:
        if connection.body_may_have_arrived(transaction):
            error = SendError(SendErrorCode.UNKNOWN, f"{end.value} after the last byte")
            self.settle(transaction, transaction.cut_off(error, unknown=True))
        elif self._has_gone_stale(connection, transaction, end):
            transaction.connection = None
            transaction.moved = True
            transaction.reset()
            self._start_opening(transaction)
        else:
            error = SendError(SendErrorCode.NETWORK_ERROR, end.value)
            self.settle(transaction, transaction.cut_off(error, attempted=end is not End.ABANDONED))

    def _has_gone_stale(self, connection: Connection, transaction: Transaction, end: End) -> bool:
        """A connection that had served before was closed: try once more on a new one.

        Nothing of the body was written, so this makes no double.
        """
        unsent = not transaction.dotted and not transaction.moved
        return end is End.HUNG_UP and connection.served > 1 and unsent and not self._closed

    # Opening

    def _open_as_needed(self) -> None:
        room = self._size - len(self._connections) - len(self._openings)
        if room > 0 and not self._closed:
            crowded = self._connections and self._monotonic() < self._crowded_until
            wanted = 0 if crowded else len(self._waiting) - len(self._openings)
            for _ in range(min(wanted, room)):
                self._start_opening(None)
        self._watch()

    def _start_opening(self, transaction: Transaction | None) -> None:
        opening = asyncio.get_running_loop().create_task(self._open(transaction))
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)

    async def _open(self, transaction: Transaction | None) -> None:
        """Open a connection, for one mail in particular or for whichever waits."""
        try:
            entrance = await self._enter()
        except asyncio.CancelledError:
            if transaction is not None:
                self._give_up(transaction, "the sender is being closed")
            raise
        # Taken out here already, and not when the task is done: what follows counts them.
        self._openings.discard(_this_task())
        if isinstance(entrance, Closed):
            self._not_opened(transaction, entrance)
            return
        connection = self._adopt(entrance)
        if transaction is not None and not transaction.future.done():
            connection.start(transaction)
        else:
            connection.go_on()

    async def _enter(self, *, probe: bool = False) -> Entrance | Closed:
        entrance = await enter(self._relay, self._context, connect_timeout=self._limits.connect, probe=probe)
        self.trouble = entrance.error if isinstance(entrance, Closed) else None
        return entrance

    def _adopt(self, entrance: Entrance) -> Connection:
        connection = Connection(entrance.transport, entrance.features, self, self._limits, self._monotonic)
        self._connections.add(connection)
        self._sockets.add(connection)
        self._watch()
        return connection

    def _not_opened(self, transaction: Transaction | None, closed: Closed) -> None:
        if transaction is None and self._connections:
            # The relay works, it only wants no more connections: the mails wait for those there are.
            self._crowded_until = self._monotonic() + self._limits.crowded
            return
        victim = transaction if transaction is not None else self.take()
        if victim is not None:
            _resolve(victim, victim.cut_off(closed.error, attempted=closed.attempted))
        self._failed()
        self._open_as_needed()

    def _failed(self) -> None:
        self._breaker.failed()
        if not self._breaker.closed:
            self._flush_waiting("the relay is left alone after failures in a row")

    # Giving up

    def _flush_waiting(self, reason: str) -> None:
        while self._waiting:
            self._give_up(self._waiting.popleft(), reason)

    def _give_up(self, transaction: Transaction, reason: str) -> None:
        error = SendError(SendErrorCode.NETWORK_ERROR, reason)
        _resolve(transaction, transaction.cut_off(error, attempted=False))

    # The one timer

    def _watch(self) -> None:
        if self._timer is None and (self._connections or self._waiting) and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    @property
    def _interval(self) -> float:
        limits = self._limits
        return min(1.0, min(limits.command, limits.dot, limits.deadline, limits.idle, limits.chain) / 4)

    def _tick(self) -> None:
        self._timer = None
        now = self._monotonic()
        for connection in list(self._connections):
            connection.check(now)
        while self._waiting and (self._waiting[0].future.done() or self._waiting[0].deadline < now):
            self._give_up(self._waiting.popleft(), "no connection to the relay became free in time")
        self._open_as_needed()


def _resolve(transaction: Transaction, result: SendResult) -> None:
    # Done already when whoever waited was cancelled.
    if not transaction.future.done():
        transaction.future.set_result(result)


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task
