"""An event loop whose time jumps to the next timer, and processes in it that can be stopped and killed.

Days pass in milliseconds (up to six weeks: beyond, floats are too coarse), and the same seed gives the
same run. A `Process` owns every task that is created in its context, so a crash ends exactly those, and
a pause holds back exactly their steps while the rest of the world goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, TypeVarTuple, Unpack

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Stuck(AssertionError):
    """Everybody waits and no timer is set: nothing will ever happen again."""


class Process:
    """What an operating system's process is to the engine: a set of tasks with one fate."""

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self._loop = loop
        self._parked: list[_Parked] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, self)
        loop.processes.append(self)

    def spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        return self._context.run(self._loop.create_task, work)

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call as if from inside: tasks that it makes belong to this process."""
        return self._context.run(function, *arguments)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if not self.alive:
            task.cancel()

    def kill(self) -> None:
        """SIGKILL: what is written after this is written by nobody."""
        self.alive = False
        self.resume()
        for task in list(self._tasks):
            task.cancel()

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        parked, self._parked = self._parked, []
        for step in parked:
            self._loop.call_soon(step.run, context=step.context)

    def park(self, step: _Parked) -> None:
        self._parked.append(step)


class _Parked:
    """A step that was due while its process was stopped; it may still be cancelled until its turn comes."""

    __slots__ = ("_arguments", "_callback", "_handle", "context")

    def __init__(
        self,
        handle: asyncio.Handle,
        callback: Callable[..., Any],
        arguments: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self._handle, self._callback, self._arguments = handle, callback, arguments
        self.context = context

    def run(self) -> None:
        if not self._handle.cancelled():
            self._callback(*self._arguments)


class _JumpingSelector(selectors.SelectSelector):
    """Nothing comes from outside, so instead of waiting the clock is moved on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("every task waits, and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)
        self.set_task_factory(_adopting_task)
        self.processes: list[Process] = []

    def time(self) -> float:
        return self._clock.now

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None or not process.paused:
            return super().call_soon(callback, *args, context=context)
        owned = contextvars.copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, owned)
        process.park(_Parked(handle, callback, args, owned))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        owned = contextvars.copy_context() if context is None else context

        def fire() -> None:
            if process.paused:
                process.park(_Parked(timer, callback, args, owned))
            else:
                callback(*args)

        timer = super().call_at(when, fire, context=owned)
        return timer


def _adopting_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Result] | Generator[Any, None, Result],
    **options: Any,
) -> asyncio.Task[Result]:
    task: asyncio.Task[Result] = asyncio.Task(work, loop=loop, **options)
    if (process := PROCESS.get()) is not None:
        process.adopt(task)
    return task


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Run to the end on a loop of its own, and end every task that is left."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.run_until_complete(_end_all(loop))
        loop.close()


async def _end_all(loop: VirtualLoop) -> None:
    for process in loop.processes:
        process.resume()
    left = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
