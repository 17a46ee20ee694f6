"""What takes long must not keep the event loop from everybody else."""

from __future__ import annotations

from asyncio import sleep, to_thread
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Final, ParamSpec, TypeVar

import msgspec

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: Bytes. Whatever is done with fewer takes some milliseconds; the way to a thread and back a tenth of one.
LARGE: Final = 16 * 1024
#: Seconds of CPU time after which others have their turn.
_SLICE: Final = 0.01


async def aside(
    size: int, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """What it returns or raises; in a thread, when it is about so many bytes."""
    return await to_thread(work, *args, **kwargs) if size > LARGE else work(*args, **kwargs)


async def each(work: Callable[[msgspec.Raw], Result], items: Sequence[msgspec.Raw]) -> list[Result]:
    """Of a batch, one after the other, with a break for others whenever it has taken a while."""
    done: list[Result] = []
    began = thread_time()
    for item in items:
        done.append(await aside(memoryview(item).nbytes, work, item))
        if thread_time() - began > _SLICE:
            await sleep(0)
            began = thread_time()
    return done
