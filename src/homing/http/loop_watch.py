"""How long a request holds the event loop: while one computes, all others of the process wait.

A coroutine runs from one await to the next without a break, and each such stretch is measured, in CPU time
of the loop's thread: a busy machine does not lengthen it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import perf_counter, thread_time
from typing import Any, Final

from litestar.types import ASGIApp, Receive, Scope, Send

from homing.telemetry import Telemetry

#: Seconds of CPU time that a request may take in one stretch.
LONGEST_STRETCH: Final = 0.05


class Stretches(Coroutine[Any, Any, Any]):
    """A coroutine that tells of each stretch that was too long; what it returns and raises is untouched."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], tell: Callable[[float], None]) -> None:
        self._coroutine, self._tell = coroutine, tell
        self._send = coroutine.send

    def send(self, value: Any) -> Any:
        began, cpu_began = perf_counter(), thread_time()
        try:
            return self._send(value)
        finally:
            if perf_counter() - began > LONGEST_STRETCH:
                self._judge(cpu_began)

    def throw(self, *error: Any) -> Any:
        cpu_began = thread_time()
        try:
            return self._coroutine.throw(*error)
        finally:
            self._judge(cpu_began)

    def _judge(self, cpu_began: float) -> None:
        """Asked only where the other clock, which costs no call into the system, has shown as much."""
        if (spent := thread_time() - cpu_began) > LONGEST_STRETCH:
            self._tell(spent)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.send(None)


def watched(app: ASGIApp, telemetry: Telemetry) -> ASGIApp:
    """The application, where each request that holds the loop is told of by its route."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        def tell(seconds: float) -> None:
            # Routing writes the template into the scope; an address that leads nowhere has none.
            route = scope.get("path_template") or "none"
            telemetry.loop_held(f"{scope.get('method', scope['type'])} {route}", seconds)

        await Stretches(app(scope, receive, send), tell)  # type: ignore[arg-type]

    return call
