"""What one contender of the webhook race has to do in one round, and how that round is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from homing.proof.bench.child import load
from homing.proof.bench.contender import Round, measure

#: Everybody may have this many POSTs under way, each on a connection that stays open.
CONCURRENCY = 100


class WebhookJob(Struct, frozen=True):
    #: `module:name` of the contender.
    contender: str
    jobs: int
    sink_port: int
    #: A database of its own, empty.
    postgres_url: str
    #: A broker, for those who have their jobs there.
    broker_url: str | None = None


async def run_round(job: WebhookJob) -> Round:
    """In a process of its own."""
    return await measure(load(job.contender)(job), job.contender, job.jobs, job.postgres_url, cpu_seconds)


def cpu_seconds() -> float:
    """Of this process and of the workers that it has started, which some contenders have."""
    return time.process_time() + sum(_cpu_of(process) for process in _descendants(os.getpid()))


def _descendants(pid: int) -> Iterable[Path]:
    parents = {process: int(_stat(process)[1]) for process in Path("/proc").glob("[0-9]*")}
    found = [process for process, parent in parents.items() if parent == pid]
    for process in found:
        found.extend(other for other, parent in parents.items() if parent == int(process.name))
    return found


def _cpu_of(process: Path) -> float:
    user, system = map(int, _stat(process)[11:13])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def _stat(process: Path) -> list[str]:
    """What follows the name, which may hold blanks: state, parent, …; all zero when it has just ended."""
    try:
        return (process / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ["0"] * 50
