"""Processes that kill themselves at their n-th step, as SIGKILL would: no cleanup, no goodbye.

    python -m tests.lanes.email_log.killed schedule|order SETTINGS-AS-JSON

For each number n of a line on standard input a child is forked that does its work once and is gone at step n,
counted from the moment in which it has something to lose; those of one line side by side. A step is one
resumption of any coroutine, which is what lies between two awaits. The answer has a word for each: `killed`,
or `done` when there were fewer steps.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine, Generator
from importlib import import_module
from typing import Any

from prometheus_client import CollectorRegistry

from homing.app import Homing
from homing.lanes.email_log.orders import EmailRequest, order_of
from homing.lanes.email_log.queues import queues_of
from homing.settings import load_settings
from homing.telemetry import Telemetry, make_logger

_KILLED = 9
#: Emails for each child.
SHARE = 2


class Steps:
    def __init__(self, last: int) -> None:
        self._left = last
        self.counting = False

    def step(self) -> None:
        if self.counting:
            self._left -= 1
            if self._left <= 0:
                os._exit(_KILLED)


class Counted(Coroutine[Any, Any, Any]):
    """A coroutine whose every resumption is a step."""

    def __init__(self, coroutine: Any, steps: Steps) -> None:
        self._coroutine = coroutine
        self._steps = steps

    def send(self, value: Any) -> Any:
        self._steps.step()
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._steps.step()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from self._coroutine.__await__()


async def schedule(homing: Homing, steps: Steps) -> None:
    """Claim what is due, publish it, settle; from the answer to the claim on."""
    deliverer = homing.email_schedule.deliverer
    store = homing.email_schedule.lane.store
    claims = await store.claim(SHARE)
    assert len(claims) == SHARE, "each has something to lose"
    steps.counting = True
    deliverer.take(claims, until=asyncio.get_running_loop().time() + 60)
    await deliverer.settled(claims)


async def order(homing: Homing, steps: Steps) -> None:
    """Create emails; from before they are written on."""
    steps.counting = True
    names = [f"{os.getpid()}-{number}" for number in range(SHARE)]
    requests = [EmailRequest("ann@example.org", "Hi", "Hello.", name) for name in names]
    await asyncio.gather(*(homing.email_orders.place(order_of(request)) for request in requests))


async def work(mode: str, settings: dict[str, Any], steps: Steps) -> None:
    telemetry = Telemetry(make_logger("json", 50), CollectorRegistry())
    homing = Homing(load_settings(settings, environ={}), telemetry)
    # Connecting is no part of the story, and would be most of its steps.
    await homing.email_broker.publish(queues_of(homing.settings.email_queue_prefix).send, [])
    await homing.emails.counts()
    await (schedule if mode == "schedule" else order)(homing, steps)
    # Whoever has nothing more to lose need not be gentle either.
    os._exit(0)


def forked(mode: str, settings: dict[str, Any], last: int) -> int:
    if (pid := os.fork()) == 0:
        try:
            child(mode, settings, last)
        finally:
            os._exit(1)
    return pid


def end_of(pid: int) -> str:
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {0: "done", _KILLED: "killed"}.get(code, f"ended-with-{code}")


def child(mode: str, settings: dict[str, Any], last: int) -> None:
    steps = Steps(last)
    loop = asyncio.new_event_loop()
    loop.set_task_factory(
        lambda loop, coroutine, **more: asyncio.Task(Counted(coroutine, steps), loop=loop, **more)
    )
    loop.run_until_complete(work(mode, settings, steps))


def main() -> None:
    mode, settings = sys.argv[1], json.loads(sys.argv[2])
    # Imported when a broker is first used: here once, instead of in every child.
    import_module("homing.brokers.rabbitmq")
    for line in sys.stdin:
        children = [forked(mode, settings, int(number)) for number in line.split()]
        sys.stdout.write(" ".join(map(end_of, children)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
