"""Crashes, in the short form of `homing chaos jobs`; and that the checker sees what it is there to see."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from homing.lanes.dispatch_jobs.tsid import text_of
from homing.proof.chaos import jobs
from homing.proof.chaos.checker import Fault, Settled, Testimony, Verdict
from homing.proof.chaos.job_checker import JobEvidence, OrderedJob, check_jobs
from homing.proof.chaos.job_receiver import Keys, Receipt, read_receipts, why_refused
from homing.proof.chaos.job_table import AttemptRow, JobEnd
from homing.proof.chaos.jobs import JobPlan, run_jobs
from homing.proof.chaos.table import Held
from homing.signatures import Signer
from homing.testing.components.postgres import PostgresServer
from homing.testing.http_sink import SinkRequest

# ── real processes ───────────────────────────────────────────────────────────────────────────────


def assert_kept(verdict: Verdict) -> None:
    broken = [check for check in verdict.checks if not check.passed]
    assert not broken, f"{broken}\n{verdict.figures}"


@pytest.mark.slow
@pytest.mark.clause("JOB-09")
async def test_killed_workers_lose_no_job_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    plan = JobPlan(jobs=900, workers=3, kills=4, stops=0, lease=2.0, seed=1)
    verdict = (await run_jobs(plan, postgres_url, tmp_path)).verdict
    assert_kept(verdict)
    assert verdict.figures["rescues"] > 0
    assert verdict.figures["in_flight_at_faults"] > 0
    assert verdict.figures["failing_answers"] > 0


@pytest.mark.slow
@pytest.mark.clause("JOB-09")
async def test_killed_workers_lose_no_job_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    plan = JobPlan(jobs=400, workers=2, kills=3, stops=0, lease=2.0, seed=2)
    verdict = (await run_jobs(plan, sqlite_url, tmp_path)).verdict
    assert_kept(verdict)
    assert verdict.figures["failing_answers"] > 0


@pytest.mark.slow
async def test_worker_that_was_stopped_beyond_its_lease_settles_no_job(
    postgres_url: str, tmp_path: Path
) -> None:
    plan = JobPlan(jobs=300, workers=2, kills=0, stops=1, lease=2.0, seed=3)
    verdict = (await run_jobs(plan, postgres_url, tmp_path)).verdict
    assert_kept(verdict)
    figures = verdict.figures
    assert figures["stale_claims"] > 0
    assert figures["stale_settles_refused"] + figures["leases_noticed_lost"] >= figures["stale_claims"]


@pytest.mark.slow
async def test_ordered_groups_keep_their_order_while_workers_are_killed_on_postgres(
    postgres_url: str, tmp_path: Path
) -> None:
    plan = JobPlan(jobs=1000, groups=50, workers=3, kills=4, stops=0, lease=2.0, seed=4)
    verdict = (await run_jobs(plan, postgres_url, tmp_path)).verdict
    assert_kept(verdict)
    assert verdict.figures["failing_answers"] > 0


@pytest.mark.slow
async def test_ordered_groups_keep_their_order_while_workers_are_killed_on_sqlite(
    sqlite_url: str, tmp_path: Path
) -> None:
    plan = JobPlan(jobs=400, groups=40, workers=2, kills=3, stops=0, lease=2.0, seed=5)
    assert_kept((await run_jobs(plan, sqlite_url, tmp_path)).verdict)


@pytest.mark.slow
async def test_ordered_groups_outlive_a_crash_of_postgres(
    private_postgres: PostgresServer, tmp_path: Path
) -> None:
    url = private_postgres.create_database("chaos")
    plan = JobPlan(jobs=300, groups=30, workers=2, kills=0, stops=0, restarts=1, lease=2.0, seed=6)
    verdict = (await run_jobs(plan, url, tmp_path, restart=private_postgres.restart)).verdict
    assert_kept(verdict)
    assert verdict.figures["restarts"] == 1


@pytest.mark.slow
async def test_a_run_in_which_order_was_not_asked_for_is_seen_to_have_none(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same jobs, of which the lane does not know that they are ordered: the checks of order must fail."""
    order = jobs._order
    monkeypatch.setattr(jobs, "_order", lambda *given: replace(order(*given), ordering="none"))
    plan = JobPlan(jobs=200, groups=10, workers=1, kills=0, stops=0, lease=2.0, seed=7)
    verdict = (await run_jobs(plan, postgres_url, tmp_path)).verdict
    failed = {check.name for check in verdict.checks if not check.passed}
    assert failed == {
        "order broken at the receiver",
        "order broken in the table",
        "two of a group at the receiver",
        "two of a group under way in the table",
    }


# ── the checker ──────────────────────────────────────────────────────────────────────────────────

IDS = (100, 200)
DIGESTS = tuple(sha256(b"%d" % id).hexdigest() for id in IDS)
JOBS = tuple(OrderedJob(id, digest) for id, digest in zip(IDS, DIGESTS, strict=True))
ENDS = (JobEnd(100, "COMPLETED", 1, 1, 0, 11.0), JobEnd(200, "COMPLETED", 1, 1, 0, 13.0))
ATTEMPTS = (
    AttemptRow(100, 1, "SUCCESS", 200, None, 10.0, 11.0),
    AttemptRow(200, 1, "SUCCESS", 200, None, 12.0, 13.0),
)
RECEIPTS = (
    Receipt(text_of(100), 200, DIGESTS[0], None, 10.0, 10.5),
    Receipt(text_of(200), 200, DIGESTS[1], None, 12.0, 12.5),
)
WORDS = (
    Settled((100, 1), took_effect=True, completes=True),
    Settled((200, 1), took_effect=True, completes=True),
)
GOOD = JobEvidence(JOBS, ENDS, ATTEMPTS, RECEIPTS, (), Testimony(WORDS))
HELD = Held(100, 1, "host:1", text_of(100))
#: Of a worker that was killed: two attempts, of which the first tells nothing.
KILLED = replace(
    GOOD,
    ends=(replace(ENDS[0], claim_seq=2, attempt_count=2), ENDS[1]),
    attempts=(
        AttemptRow(100, 1, "FAILURE", None, "worker_died", 9.0, 9.5),
        replace(ATTEMPTS[0], number=2),
        ATTEMPTS[1],
    ),
    testimony=Testimony((replace(WORDS[0], claim=(100, 2)), WORDS[1])),
)
DOUBLE = replace(RECEIPTS[0], begun=11.0, ended=11.5)
FAILED = replace(RECEIPTS[0], status=500, begun=9.0, ended=9.5)


def broken(evidence: JobEvidence) -> set[str]:
    return {found.name for found in check_jobs(evidence).checks if not found.passed}


def test_a_run_without_faults_passes() -> None:
    verdict = check_jobs(GOOD)
    assert verdict.passed
    assert verdict.figures["arrived"] == 2
    assert verdict.figures["duplicated"] == 0
    assert "groups" not in verdict.figures, "nothing was ordered"


def test_a_failing_answer_is_no_delivery_and_is_an_attempt() -> None:
    attempts = (
        replace(ATTEMPTS[0], status="FAILURE", response_code=500, begun=9.0, ended=9.5),
        replace(ATTEMPTS[0], number=2),
        ATTEMPTS[1],
    )
    good = replace(
        GOOD,
        ends=(replace(ENDS[0], attempt_count=2), ENDS[1]),
        attempts=attempts,
        receipts=(FAILED, *RECEIPTS),
    )
    assert check_jobs(good).passed
    assert broken(replace(good, receipts=RECEIPTS)) == {"attempts that the receiver does not know"}
    assert broken(replace(good, ends=ENDS)) == {"attempt_count is not the number of attempts"}


def test_a_double_is_allowed_once_for_each_claim_that_was_interrupted() -> None:
    evidence = replace(KILLED, receipts=(*RECEIPTS, DOUBLE), faults=(Fault("kill", (HELD,), 1),))
    assert check_jobs(evidence).passed
    thrice = replace(evidence, receipts=(*RECEIPTS, DOUBLE, DOUBLE))
    assert broken(thrice) == {
        "doubles within what was in flight",
        "requests that no attempt explains",
    }


def test_a_result_that_came_late_may_be_a_second_success_and_nothing_else_may() -> None:
    twice = replace(
        KILLED,
        attempts=(
            replace(ATTEMPTS[0], begun=9.0, ended=9.5), replace(ATTEMPTS[0], number=2), ATTEMPTS[1],
        ),
        receipts=(*RECEIPTS, DOUBLE),
        faults=(Fault("stop", (HELD,), 1),),
    )  # fmt: skip
    assert broken(twice) == {"not settled by one success, the last attempt"}
    late = Settled((100, 1), took_effect=False, completes=True)
    told = replace(twice, testimony=Testimony((*KILLED.testimony.settled, late)))
    assert check_jobs(told).passed


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"receipts": RECEIPTS[:1]}, "lost"),
        ({"ends": ENDS[:1]}, "lost"),
        ({"receipts": (*RECEIPTS, replace(RECEIPTS[0], webhook_id=text_of(300)))}, "unexpected"),
        ({"receipts": (*RECEIPTS, replace(RECEIPTS[0], webhook_id=None))}, "unexpected"),
        ({"ends": (*ENDS, replace(ENDS[0], id=300))}, "unexpected"),
        ({"ends": (replace(ENDS[0], status="IN_PROGRESS"), ENDS[1])}, "left in IN_PROGRESS"),
        ({"ends": (replace(ENDS[0], status="ERROR"), ENDS[1])}, "all COMPLETED"),
        ({"ends": (replace(ENDS[0], completed=None), ENDS[1])}, "all COMPLETED"),
        ({"testimony": Testimony((*WORDS, WORDS[0]))}, "settled more than once"),
        ({"ends": (replace(ENDS[0], claim_seq=2), ENDS[1])}, "settled more than once"),
        (
            {"ends": (replace(ENDS[0], attempt_count=2), ENDS[1])},
            "attempt_count is not the number of attempts",
        ),
        (
            {"attempts": (*ATTEMPTS, replace(ATTEMPTS[0], job=300))},
            "attempt_count is not the number of attempts",
        ),
        ({"attempts": (replace(ATTEMPTS[0], number=2), ATTEMPTS[1])}, "attempt numbers with gaps or doubles"),
        ({"attempts": (ATTEMPTS[0], *ATTEMPTS)}, "attempt numbers with gaps or doubles"),
        (
            {"attempts": (ATTEMPTS[0], replace(ATTEMPTS[0], number=2), ATTEMPTS[1])},
            "not settled by one success, the last attempt",
        ),
        (
            {"attempts": (replace(ATTEMPTS[0], status="FAILURE"), ATTEMPTS[1])},
            "not settled by one success, the last attempt",
        ),
        ({"receipts": (*RECEIPTS, FAILED)}, "requests that no attempt explains"),
        ({"receipts": (*RECEIPTS, DOUBLE)}, "doubles within what was in flight"),
        (
            {"receipts": (*RECEIPTS, replace(DOUBLE, webhook_id=text_of(200)))},
            "attempts with another webhook-id",
        ),
        (
            {"receipts": (replace(RECEIPTS[0], sha256="0"), RECEIPTS[1])},
            "payloads that are not byte for byte as ordered",
        ),
        (
            {"receipts": (replace(RECEIPTS[0], refused="no_match"), RECEIPTS[1])},
            "signatures and tokens that do not verify",
        ),
        ({"faults": (Fault("stop", (HELD,), stale=((100, 1),)),)}, "settled by a stale claim"),
        ({"deserters": ("worker-001: 1",)}, "workers that ended by themselves"),
        ({"wanted_hits": 1}, "kills that hit jobs in flight"),
        ({"faults": (Fault("kill", (HELD,), recovery=9.0),), "recovery_limit": 8.0}, "recovery"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_found(change: Mapping[str, Any], found: str) -> None:
    assert found in broken(replace(GOOD, **change))


# ── the order ────────────────────────────────────────────────────────────────────────────────────

IN_A_GROUP = replace(GOOD, ordered=tuple(replace(job, group="g") for job in JOBS))


def test_a_group_in_its_order_passes() -> None:
    assert check_jobs(IN_A_GROUP).passed


def test_others_may_be_in_flight_at_the_same_time() -> None:
    apart = replace(
        IN_A_GROUP,
        ordered=(replace(JOBS[0], group="g"), replace(JOBS[1], group="h")),
        receipts=(RECEIPTS[0], replace(RECEIPTS[1], begun=10.2)),
    )
    assert check_jobs(apart).passed


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            {"receipts": (RECEIPTS[0], replace(RECEIPTS[1], begun=8.0, ended=8.5))},
            "order broken at the receiver",
        ),
        ({"ends": (replace(ENDS[0], completed=14.0), ENDS[1])}, "order broken in the table"),
        ({"receipts": (RECEIPTS[0], replace(RECEIPTS[1], begun=10.2))}, "two of a group at the receiver"),
        (
            {"receipts": (replace(RECEIPTS[0], ended=float("inf")), RECEIPTS[1])},
            "two of a group at the receiver",
        ),
        (
            {"attempts": (ATTEMPTS[0], replace(ATTEMPTS[1], begun=10.5))},
            "two of a group under way in the table",
        ),
        ({"crowded": ("g",)}, "two of a group seen in flight"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_order_is_found(change: Mapping[str, Any], found: str) -> None:
    assert broken(replace(IN_A_GROUP, **change)) == {found}


def test_a_double_of_the_head_after_a_kill_breaks_no_order() -> None:
    evidence = replace(
        KILLED,
        ordered=IN_A_GROUP.ordered,
        receipts=(replace(RECEIPTS[0], begun=5.0, ended=5.5), *RECEIPTS),
        faults=(Fault("kill", (HELD,), 1),),
    )
    assert check_jobs(evidence).passed


def test_a_kill_excuses_no_overlap_and_a_sleep_over_the_lease_does() -> None:
    late = replace(DOUBLE, begun=12.1, ended=12.6)
    evidence = replace(
        KILLED,
        ordered=IN_A_GROUP.ordered,
        receipts=(*RECEIPTS, late),
        faults=(Fault("kill", (HELD,)),),
    )
    assert broken(evidence) == {"two of a group at the receiver"}
    assert check_jobs(replace(evidence, faults=(Fault("stop", (HELD,)),))).passed


# ── the receiver ─────────────────────────────────────────────────────────────────────────────────

KEYS = Keys("a secret", "a token")


def signed_request(**changes: str) -> SinkRequest:
    headers = {
        **Signer([KEYS.signing_secret]).headers("msg", datetime.now(UTC), b"{}"),
        "Authorization": f"Bearer {KEYS.bearer_token}",
        **changes,
    }
    return SinkRequest("POST", "/hook", tuple(headers.items()), b"{}", 0.0, 1)


def test_the_receiver_refuses_what_is_not_signed_for_it() -> None:
    good = signed_request()
    assert why_refused(good, {"/hook": KEYS}) is None
    assert why_refused(good, {"/other": KEYS}) == "unknown path"
    assert why_refused(good, {"/hook": Keys("another", "a token")}) == "no_match"
    assert why_refused(good, {"/hook": Keys("a secret", "another")}) == "another bearer token"
    changed = SinkRequest("POST", "/hook", good.headers, b"{ }", 0.0, 1)
    assert why_refused(changed, {"/hook": KEYS}) == "no_match"
    half = signed_request(**{"X-FLOWCATALYST-SIGNATURE": "0" * 64})
    assert why_refused(half, {"/hook": KEYS}) == "no_match"


def test_receipts_are_read_from_their_two_lines() -> None:
    begun = b'{"type":"begun","number":%d,"at":%d,"webhook_id":"m","status":200,"sha256":"s"}'
    lines = [begun % (1, 5), begun % (2, 6), b'{"type":"ended","number":1,"at":7}']
    assert read_receipts(lines) == [
        Receipt("m", 200, "s", None, 5.0, 7.0),
        Receipt("m", 200, "s", None, 6.0, float("inf")),
    ]
