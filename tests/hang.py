"""A test that takes longer than its `timeout` is ended, wherever it waits, and the run goes on.

pytest-timeout measures, and raises an exception in a handler of a signal. While uvloop waits, one of its
callbacks runs that handler, and what a callback raises is logged and forgotten: the test waits on. So what
waits in a loop is cancelled here. What does not even end then is ended with its process: pytest-xdist starts
another one, and reports the test as one that crashed it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import traceback
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Callable, Generator, Iterator, Mapping
from types import FrameType
from typing import Any

import pytest
import uvloop

#: Seconds that a test has for its end when its time is over; it is told to end three times meanwhile.
GRACE = 30.0
#: Seconds that a run has for its end; pytest-xdist waits ten of them for each of its processes.
AT_THE_END = 120.0
SECONDS = pytest.StashKey[float]()


class Alarm:
    """Rings when the time of the running test is over."""

    def __init__(self) -> None:
        self.stderr = 2
        self._seconds = 0.0
        #: What the test was doing when the time was over.
        self._found = ""

    def set(self, seconds: float) -> None:
        self.off()
        self._seconds = seconds
        grace = min(seconds, GRACE)
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, seconds, grace / 3)
        self.last_resort(seconds + grace)

    def last_resort(self, seconds: float) -> None:
        """End the process by a thread of C, which no lock of Python's can hold up."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=self.stderr)

    def off(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        self._seconds, self._found = 0.0, ""

    def complain(self) -> None:
        """Let whatever was told to end fail, also where it took that for something else."""
        __tracebackhide__ = True
        if self._found:
            pytest.fail(self._found)

    def hush(self) -> None:
        """What was told to end has ended: do not ring while that is reported."""
        if self._found:
            self.off()

    def _ring(self, _signal: int, _frame: FrameType | None) -> None:
        __tracebackhide__ = True
        if not self._seconds:
            return
        loop, is_first = _running_loop(), not self._found
        if is_first:
            self._found = f"Timeout (>{self._seconds:g} s)\n{''.join(_stacks(loop))}"
            # A test that ends with its process has no report.
            os.write(self.stderr, f"\n{self._found}".encode(errors="replace"))
        if loop is not None:
            for waiting in _awaited_by_the_test(loop):
                loop.call_soon_threadsafe(waiting.cancel)
        if loop is None or not is_first:
            self.complain()


ALARM = Alarm()


class Loop(uvloop.Loop):
    """That of tests: it knows what it runs for, and why that was cancelled."""

    awaited: Future[Any] | None = None

    def run_until_complete(self, future: Any) -> Any:
        __tracebackhide__ = True
        self.awaited = asyncio.ensure_future(future, loop=self)
        try:
            return super().run_until_complete(self.awaited)
        except asyncio.CancelledError:
            ALARM.complain()
            raise


def _running_loop() -> AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _awaited_by_the_test(loop: AbstractEventLoop) -> set[Future[Any]]:
    """Others, which live as long as a loop of many tests, go on. A loop that a test made is for it alone."""
    if isinstance(loop, Loop):
        return {loop.awaited} if loop.awaited is not None else set()
    return set(asyncio.all_tasks(loop))


# ── what a test was doing ────────────────────────────────────────────────────────────────────────


def _stacks(loop: AbstractEventLoop | None) -> Iterator[str]:
    """Of the tasks of the loop and of all threads but this one, whose stack the failure has."""
    for task in asyncio.all_tasks(loop) if loop is not None else ():
        yield f"\n~~ task {task.get_name()}\n"
        yield from traceback.StackSummary.extract(_awaiting(task)).format()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            yield f"\n~~ thread {names.get(ident, ident)}\n"
            yield from traceback.format_stack(frame)


def _awaiting(task: Task[Any]) -> Iterator[tuple[FrameType, int]]:
    """`Task.get_stack` knows only the outermost coroutine of one that waits."""
    one: Any = task.get_coro()
    while one is not None:
        # One that is watched (`tests/held.py`) stands around the one that runs.
        one = getattr(one, "_coroutine", one)
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(one, f"{kind}_frame")), None)
        frame = getattr(one, f"{kind}_frame", None)
        if frame is None:
            return
        yield frame, frame.f_lineno
        one = getattr(one, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)


# ── hooks ────────────────────────────────────────────────────────────────────────────────────────


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], AbstractEventLoop]]:
    """Tests run on the loop that the product runs on."""
    return {"uvloop": Loop}


def pytest_configure() -> None:
    # While a test runs, what is written to 2 is kept for its report.
    ALARM.stderr = os.dup(2)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    if not item.config.pluginmanager.getplugin("timeout").is_debugging():
        item.stash[SECONDS] = settings.timeout
        ALARM.set(settings.timeout)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer() -> bool:
    ALARM.off()
    return True


def pytest_enter_pdb() -> None:
    ALARM.off()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None]:
    yield from _in_time()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Generator[None]:
    yield from _in_time()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """It has a time of its own: pytest-timeout stops measuring when a test has failed."""
    if seconds := item.stash.get(SECONDS, 0.0):
        ALARM.set(seconds)
    try:
        yield from _in_time()
    finally:
        ALARM.off()


def _in_time() -> Generator[None]:
    __tracebackhide__ = True
    try:
        yield
        ALARM.complain()
    except asyncio.CancelledError:
        ALARM.complain()
        raise
    finally:
        ALARM.hush()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that does not end fails. Those of pytest-xdist wait for each other, and it ends them."""
    if not hasattr(session.config, "workerinput"):
        ALARM.last_resort(AT_THE_END)
