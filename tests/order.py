"""In which order tests begin, when several processes share them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

Item = TypeVar("Item")

#: Files that take long, and about how many seconds each. One that is not here takes a few at most.
LONG_FILES = {
    "tests/proof/test_operator_stop.py": 100,
    "tests/lanes/dispatch_jobs/test_router_jobs.py": 100,
    "tests/lanes/dispatch_jobs/test_foreign_program.py": 90,
    "tests/proof/test_jobs_chaos.py": 90,
    "tests/proof/test_email_chaos.py": 80,
    "tests/brokers/test_rabbitmq_faults.py": 80,
    "tests/brokers/test_conformance.py": 60,
    "tests/proof/test_siege.py": 55,
    "tests/proof/test_email_bench.py": 50,
    "tests/proof/test_chaos_mail.py": 45,
    "tests/browser/test_walk.py": 45,
    "tests/model/test_jobs_machine.py": 40,
    "tests/lanes/email_log/test_kills.py": 40,
    "tests/day/test_operators_day.py": 35,
    "tests/proof/test_bench.py": 40,
    "tests/contract/test_jobs_plans.py": 38,
    "tests/contract/test_email_log_plans.py": 35,
    "tests/http/test_schemathesis.py": 30,
    "tests/proof/test_webhook_bench.py": 30,
    "tests/http/test_held.py": 30,
    "tests/proof/test_router_chaos.py": 25,
    "tests/workers/test_pause.py": 25,
    "tests/browser/test_operations.py": 18,
    "tests/browser/test_messages.py": 18,
    "tests/test_hang.py": 45,
    "tests/test_rerun.py": 30,
    "tests/test_install.py": 75,
    "tests/http/test_connection.py": 20,
    "tests/proof/test_exclusive_claims.py": 15,
    "tests/lanes/dispatch_jobs/test_attempt_history.py": 15,
    "tests/desk/test_bulk.py": 15,
    "tests/contract/test_oldest_due.py": 25,
    "tests/contract/test_search_plans.py": 14,
    "tests/proof/test_fairness.py": 10,
}


def begin_with_the_long_ones(
    items: Sequence[Item], workers: int, file_of: Callable[[Item], str]
) -> list[Item]:
    """Every worker is given an equal part of the list, and later takes over from the end of another's part.

    So each part begins with its share of the long files, whole, because their fixtures are; what is short
    stands at the ends. A long test that begins last would let all other workers wait for it.
    """
    files = {file: list(found) for file, found in groupby(sorted(items, key=file_of), key=file_of)}
    long = sorted((file for file in files if file in LONG_FILES), key=lambda file: -LONG_FILES[file])
    parts: list[list[Item]] = [[] for _ in range(workers)]
    loads = [0] * workers
    for file in long:
        least = loads.index(min(loads))
        loads[least] += LONG_FILES[file]
        parts[least] += files[file]
    return _filled_up(parts, [item for item in items if file_of(item) not in LONG_FILES])


def _filled_up(parts: Sequence[list[Item]], short: Sequence[Item]) -> list[Item]:
    """All parts of one length, as far as the short ones go round."""
    total = len(short) + sum(map(len, parts))
    rest, filled = list(short), []
    for index, part in enumerate(parts):
        size = total * (index + 1) // len(parts) - total * index // len(parts)
        room = max(0, size - len(part))
        filled += [*part, *rest[:room]]
        rest = rest[room:]
    return [*filled, *rest]
