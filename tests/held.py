"""No request may hold the event loop: a test in which one computes too long fails, and names it.

What is measured is CPU time of the loop's thread, so a busy machine changes little. What the collector of
garbage takes is taken off: in a test it has all of pytest to look through.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from inspect import iscoroutine
from pathlib import Path
from typing import Any

import pytest
from tests.hang import Loop

import homing
from homing.http import loop_watch
from homing.http.loop_watch import CpuClock, stretches
from homing.telemetry import Telemetry

#: Whose tasks are watched: not those of tests, wherever the checkout is.
PRODUCT = str(Path(homing.__file__).parent)


class Collections:
    """How long the thread of the tests has collected garbage."""

    def __init__(self) -> None:
        self.seconds, self._began = 0.0, 0.0

    def __call__(self, phase: str, _info: dict[str, int]) -> None:
        if threading.current_thread() is threading.main_thread():
            if phase == "start":
                self._began = time.thread_time()
            else:
                self.seconds += time.thread_time() - self._began


async def watched(coroutine: Any, tell: Callable[[float], None]) -> Any:
    return await stretches(coroutine, CpuClock(), tell)


@pytest.fixture(autouse=True)
def holds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Who held the loop, and for how long. A test that wants it so clears the list.

    Requests are watched in every test; in those of the API and its pages also the tasks of the product.
    """
    found: list[str] = []
    collections = Collections()
    tell_of_request, create_task = Telemetry.loop_held, Loop.create_task

    def loop_held(telemetry: Telemetry, route: str, seconds: float) -> None:
        found.append(f"{route}: {seconds * 1000:.0f} ms")
        tell_of_request(telemetry, route, seconds)

    def watched_task(loop: Loop, coroutine: Any, **options: Any) -> Any:
        """Requests leave some of their work to tasks, such as the one that writes for several of them."""
        if iscoroutine(coroutine) and coroutine.cr_code.co_filename.startswith(PRODUCT):
            name = f"task {coroutine.__qualname__}"
            watching = watched(coroutine, lambda seconds: found.append(f"{name}: {seconds * 1000:.0f} ms"))
            task = create_task(loop, watching, **options)
            # One that is cancelled before it begins would complain that nobody awaited it.
            task.add_done_callback(lambda _: coroutine.close())
            return task
        return create_task(loop, coroutine, **options)

    monkeypatch.setattr(loop_watch, "thread_time", lambda: time.thread_time() - collections.seconds)
    monkeypatch.setattr(Telemetry, "loop_held", loop_held)
    if "http" in request.path.parts:
        monkeypatch.setattr(Loop, "create_task", watched_task)
    gc.callbacks.append(collections)
    yield found
    gc.callbacks.remove(collections)
    assert not found, f"the event loop was held by {', '.join(found)}"
