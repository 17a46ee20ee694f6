"""How long a request holds the event loop: while one computes, all others of the process wait.

A coroutine runs from one await to the next without a break, and each such stretch is measured, in CPU time
of the loop's thread: a busy machine does not lengthen it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from time import perf_counter, thread_time
from types import coroutine
from typing import Any, Final

from litestar.types import ASGIApp, Receive, Scope, Send

from homing.telemetry import Telemetry

#: Seconds of CPU time that a request may take in one stretch.
LONGEST_STRETCH: Final = 0.05
#: For so many seconds a reading of the thread's clock serves: it is a call into the system.
_FRESH: Final = 0.005


class CpuClock:
    """CPU time of the thread as it was a moment ago, and when that was."""

    __slots__ = ("_read_at", "_spent")

    def __init__(self) -> None:
        self._read_at = self._spent = float("-inf")

    def now(self) -> float:
        """The wall clock, from which `spent_since` can tell."""
        if (now := perf_counter()) - self._read_at > _FRESH:
            self._read_at, self._spent = now, thread_time()
        return now

    def spent_since(self, began: float) -> float:
        """At least so much; what was perhaps spent between the reading and then is left out."""
        return thread_time() - self._spent - (began - self._read_at)


@coroutine
def stretches(
    watched: Coroutine[Any, Any, Any], clock: CpuClock, tell: Callable[[float], None]
) -> Generator[Any, Any, Any]:
    """Await it, and tell of each stretch that was too long; what it returns and raises is untouched."""
    step: Callable[..., Any] = watched.send
    given: Any = None
    while True:
        began = clock.now()
        try:
            wanted = step(given)
        except StopIteration as end:
            return end.value
        finally:
            # An error that is held here would hold this frame, until garbage is collected.
            given = None
            # Asked only where the wall clock has shown as much.
            if (
                perf_counter() - began > LONGEST_STRETCH
                and (spent := clock.spent_since(began)) > LONGEST_STRETCH
            ):
                tell(spent)
        try:
            given = yield wanted
            step = watched.send
        except BaseException as error:  # noqa: BLE001 - a cancellation, for one, is for whoever is watched
            step, given = watched.throw, error


def watched(app: ASGIApp, telemetry: Telemetry) -> ASGIApp:
    """The application, where each request that holds the loop is told of by its route."""
    clock = CpuClock()

    def tell(scope: Scope, seconds: float) -> None:
        # Routing writes the template into the scope; an address that leads nowhere has none.
        route = scope.get("path_template") or "none"
        telemetry.loop_held(f"{scope.get('method', scope['type'])} {route}", seconds)

    # No coroutine of its own: each layer costs every await of every request.
    def call(scope: Scope, receive: Receive, send: Send) -> Any:
        return stretches(app(scope, receive, send), clock, partial(tell, scope))  # type: ignore[arg-type]

    return call
