"""A line is one lane at work in one process: what attempts, what looks after it, what wakes it."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from typing import Any

from homing.db import Database
from homing.db.backlog import Backlog, Counted
from homing.engine.deliver import Deliverer
from homing.engine.lane import Lane
from homing.engine.maintenance import Maintenance
from homing.engine.worker import Worker
from homing.telemetry import Telemetry


class Line:
    def __init__(
        self,
        lane: Lane[Any],
        rows: Counted,
        database: Database,
        telemetry: Telemetry,
        *,
        channel: str,
        concurrency: int,
        slots: int,
    ) -> None:
        self.lane = lane
        self.deliverer = Deliverer(lane, telemetry, concurrency=concurrency, slots=slots)
        self.maintenance = Maintenance(lane, telemetry)
        self.backlog = Backlog(lane.name, rows, telemetry)
        self._database = database
        self._telemetry = telemetry
        self._channel = channel

    def worker(self) -> Worker:
        _tune(self._database)
        worker = Worker(self.deliverer, self._telemetry)
        self._database.listen(self._channel, worker.wake)
        return worker


def _tune(database: Database) -> None:
    """What makes the interpreter fit for a worker."""
    # What is in flight is large and rarely in cycles, and the collector would walk through it again and
    # again: with these figures it takes a tenth less of a webhook's time, and memory stays flat all the same.
    _raise_file_limit()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    if database.dialect == "sqlite":
        # Its thread asks for the interpreter's lock with every row it reads, and may wait this long for
        # it. Measured: a tenth of the usual interval delivers an eighth more mails; less costs again.
        sys.setswitchinterval(0.0005)


def _raise_file_limit() -> None:
    """A thousand webhooks at once are a thousand files, and the usual soft limit is about as much."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - Windows has none

        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
