"""Where the emails of a chaos run come from: a client of the API that asks again when it got no answer."""

from __future__ import annotations

import asyncio
import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Self

import msgspec

from homing.errors import HomingError
from homing.lanes.email_log.view import email_number
from homing.proof.chaos.email_checker import OrderedEmail
from homing.proof.chaos.waiting import TICK

_PATH = "/api/emails"
#: While the broker is away an answer may take as long as the API's patience with it.
_AT_ONCE = 32
_PATIENCE = 60.0
_TRIES = 5
_ACCEPTED = frozenset({200, 202})
_HEADERS = {"Content-Type": "application/json"}


class Intake:
    """Puts in emails, each to an address of its own, until there are as many as planned."""

    def __init__(self, port: int, emails: int, *, reserved: int) -> None:
        self._port = port
        self._emails = emails
        self._begun = 0
        #: Not for those who come evenly: they are put in at moments of their own.
        self._reserved = reserved
        self._threads = ThreadPoolExecutor(_AT_ONCE)
        self._connections: SimpleQueue[http.client.HTTPConnection] = SimpleQueue()
        self.ordered: list[OrderedEmail] = []

    def __enter__(self) -> Self:
        for _ in range(_AT_ONCE):
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE)
            self._connections.put(connection)
        return self

    def __exit__(self, *_: object) -> None:
        # Whoever still waits for an answer gets none when the API has ended.
        self._threads.shutdown(wait=False, cancel_futures=True)
        while not self._connections.empty():
            self._connections.get().close()

    @property
    def missing(self) -> int:
        """How many are still to be put in."""
        return self._emails - len(self.ordered)

    @property
    def newest(self) -> int:
        """The id of the youngest email."""
        return max((email.id for email in self.ordered), default=0)

    async def put_in(self, count: int) -> None:
        """So many at once, as far as there are any left."""
        first = self._begun
        self._begun = min(self._emails, first + count)
        await asyncio.gather(*(self._create(number) for number in range(first, self._begun)))

    async def put_in_reserved(self, count: int) -> None:
        self._reserved = max(0, self._reserved - count)
        await self.put_in(count)

    async def trickle(self, pause: float, enough: asyncio.Event) -> None:
        """Reserved ones, one after the other, until it is enough; more than planned where that takes long."""
        while not enough.is_set():
            if self._begun + 1 > self._emails:
                self._emails += 1
            await self.put_in_reserved(1)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await enough.wait()

    async def put_in_rest(self) -> None:
        await self.put_in(self._emails)

    async def keep_coming(self, rate: float) -> None:
        """All that are not reserved, evenly; who has to wait for the API makes up for it."""
        started, asked = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while (left := self._emails - self._reserved - self._begun) > 0:
                due = int((time.monotonic() - started) * rate)
                group.create_task(self.put_in(min(left, due - asked)))
                asked = due
                await asyncio.sleep(TICK)

    async def _create(self, number: int) -> None:
        address = f"email{number}@chaos.example"
        order = {"to": address, "subject": f"Email {number}", "body": "It must arrive."}
        body = msgspec.json.encode({**order, "messageKey": f"chaos-{number}"})
        id = await asyncio.get_running_loop().run_in_executor(self._threads, self._insist, body)
        self.ordered.append(OrderedEmail(id, address))

    def _insist(self, body: bytes) -> int:
        """The same order under the same key, until somebody has taken it."""
        connection = self._connections.get()
        try:
            for _ in range(_TRIES):
                status, answer = _post(connection, body)
                if status in _ACCEPTED:
                    return email_number(msgspec.json.decode(answer)["id"])
        finally:
            self._connections.put(connection)
        raise HomingError(f"an email was not taken: {status} {answer.decode(errors='replace')}")


def _post(connection: http.client.HTTPConnection, body: bytes) -> tuple[int, bytes]:
    try:
        connection.request("POST", _PATH, body, _HEADERS)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return 0, str(error).encode()
