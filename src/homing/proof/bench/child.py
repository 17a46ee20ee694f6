"""Runs one function in a process of its own, so that what is measured shares nothing with the measuring.

    await in_child("homing.proof.bench.memory:weigh", job, Weight)

The job goes in by standard input, the result comes back by standard output, and whatever is logged goes
to a real file, as it would in production.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import typing
from importlib import import_module
from typing import IO, Any, TypeVar

import msgspec
import uvloop

from homing.errors import HomingError

Result = TypeVar("Result")

_LAST_BYTES = 2000


async def in_child(
    target: str, job: msgspec.Struct, result: type[Result], *, seconds: float = 1800
) -> Result:
    """The result of an async function `module:name`, called with the job in a new process."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, target),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
        try:
            async with asyncio.timeout(seconds):
                answer, _ = await process.communicate(msgspec.json.encode(job))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise HomingError(f"{target} ended with {process.returncode}: {_end_of(log)}")
    return msgspec.json.decode(answer, type=result)


def _end_of(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _LAST_BYTES))
    return log.read().decode(errors="replace")


def load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def main() -> None:
    # Whatever a library prints must not get between the parent and the result.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    function = load(sys.argv[1])
    hints = typing.get_type_hints(function)
    hints.pop("return", None)
    (kind,) = hints.values()
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=kind)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(function(job))
    answer.write(msgspec.json.encode(result))
    answer.close()


if __name__ == "__main__":
    main()
