"""A process that does the first batches of a bulk run, and hangs in the next until it is killed.

python -m tests.desk.bulk_process URL
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from tests.desk.bulk import Act, bulk_bench

from homing.messages.model import Verb

LEASE = 1.0
_BATCHES = 2


class Hanging:
    def __init__(self) -> None:
        self._batches = 0

    async def __call__(self, act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        self._batches += 1
        changed = await act(verb, numbers)
        if self._batches > _BATCHES:
            await asyncio.Event().wait()
        return changed


async def main(url: str) -> None:
    async with bulk_bench(url) as bench:
        await bench.runner(bench.troubled(Hanging()), lease_seconds=LEASE).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
