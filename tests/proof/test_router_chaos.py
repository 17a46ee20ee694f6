"""Messages that come twice and too soon, in the short form of `homing chaos router`."""

from __future__ import annotations

from pathlib import Path

import pytest

from homing.proof.chaos.job_receiver import Receipt
from homing.proof.chaos.router import RouterPlan, most_at_once, run_router


@pytest.mark.slow
@pytest.mark.clause("JOB-11", "JOB-12", "JOB-13")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_doubled_and_expiring_messages_break_neither_order_nor_anything_else(
    request: pytest.FixtureRequest, database: str, sqs_url: str, tmp_path: Path
) -> None:
    url = request.getfixturevalue(f"{database}_url")
    plan = RouterPlan(jobs=240, groups=20, seed=4, duplicates=0.1, expiries=0.1, visibility=3.0, fail=0.05)
    verdict = (await run_router(plan, url, tmp_path, sqs_url=sqs_url)).verdict
    broken = [check for check in verdict.checks if not check.passed]
    assert not broken, f"{broken}\n{verdict.figures}"
    assert verdict.figures["duplicated"] == 0, "nobody died, so nothing arrives twice"
    assert verdict.figures["failing_answers"] > 0


def test_what_was_there_at_the_same_time_is_counted() -> None:
    def receipt(begun: float, ended: float) -> Receipt:
        return Receipt("w", 200, "", None, begun, ended)

    assert most_at_once([]) == 0
    assert most_at_once([receipt(0, 1), receipt(1, 2)]) == 1, "one left when the other came"
    assert most_at_once([receipt(0, 3), receipt(1, 2), receipt(1.5, 9), receipt(4, float("inf"))]) == 3
