"""Workers that die beside another program: the short form of `homing chaos notifications`; its checker."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from msgspec.structs import replace

from homing.proof.chaos import notification_writer
from homing.proof.chaos.checker import Verdict
from homing.proof.chaos.email_sink import Contact
from homing.proof.chaos.notification_checker import Blow, NotificationEvidence, check_notifications
from homing.proof.chaos.notification_table import NotificationEnd
from homing.proof.chaos.notification_testimony import (
    Attempt,
    Diary,
    Requeue,
    WorkerTestimony,
    read_diary,
    read_workers,
)
from homing.proof.chaos.notifications import NotificationPlan, run_notifications
from homing.proof.chaos.table import Held

# ── real processes ───────────────────────────────────────────────────────────────────────────────

SHORT = NotificationPlan(
    notifications=600, kills=2, waits_for_locks=False, stops=0, pause=0.5, holds=1, longest_hold=1.0,
    refuse=0.2, leaving=0.02, retry_ms=400, wait_limit=30.0, seed=1,
)  # fmt: skip


def assert_kept(verdict: Verdict) -> None:
    broken = [check for check in verdict.checks if not check.passed]
    assert not broken, f"{broken}\n{verdict.figures}"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.clause("NTF-01", "NTF-03", "NTF-16", "NTF-17")
async def test_workers_killed_beside_another_program_lose_nothing_and_count_every_attempt(
    sqlite_url: str, tmp_path: Path
) -> None:
    verdict = (await run_notifications(SHORT, sqlite_url, tmp_path)).verdict
    assert_kept(verdict)
    figures = verdict.figures
    assert figures["attempted"] >= SHORT.notifications
    assert figures["kills_that_hit"] == 2
    assert figures["requeued_after_failing"] > 0, "the other program has put back what had failed"
    assert figures["refused_sends"] > 0
    assert figures["skipped"] > 0, "somebody had left"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.clause("NTF-01", "NTF-03")
async def test_the_same_on_postgres_with_workers_that_are_told_to_stop(
    postgres_url: str, tmp_path: Path
) -> None:
    plan = replace(SHORT, notifications=400, kills=1, stops=1, seed=2)
    verdict = (await run_notifications(plan, postgres_url, tmp_path)).verdict
    assert_kept(verdict)
    assert verdict.figures["stops"] == 1


def test_the_other_program_has_nothing_of_homing() -> None:
    """It is not to share a mistake with us; at the end of a run it says so itself as well."""
    tree = ast.parse(Path(notification_writer.__file__).read_text())
    imported = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
        )
    ]
    assert imported
    assert not [name for name in imported if name.startswith("homing")]


# ── the checker ──────────────────────────────────────────────────────────────────────────────────

ANN, BOB, EVE = "ann@chaos.example", "bob@chaos.example", "eve@chaos.example"
SENT = '{"provider":"smtp","providerMessageId":"x","status":"sent"}'
LEFT = '{"code":"unsubscribed","message":"the subscriber has unsubscribed"}'
#: Ann is served at once; Bob is refused twice, so fails, is put back and served; Eve had left.
ENDS = (
    NotificationEnd(1, ANN, "sent", 1, 1, False, SENT, True, True, "active", "OPEN", 1, 0),
    NotificationEnd(2, BOB, "sent", 1, 3, False, SENT, True, True, "active", "OPEN", 1, 1),
    NotificationEnd(3, EVE, "skipped", 1, 1, False, LEFT, True, False, "unsubscribed", None, 0, 1),
)
CONTACTS = (
    Contact(10.0, ANN, taken=True, message_id="<1@x>"),
    Contact(10.0, BOB, taken=False),
    Contact(12.0, BOB, taken=False),
    Contact(14.0, BOB, taken=True, message_id="<2@x>"),
)
ATTEMPTS = (
    Attempt((1, 1), took_effect=True, completes=True, counts=True),
    Attempt((2, 1), took_effect=True, completes=False, counts=True, error_code="provider_error"),
    Attempt((2, 2), took_effect=True, completes=False, counts=True, error_code="provider_error"),
    Attempt((2, 3), took_effect=True, completes=True, counts=True),
    Attempt((3, 1), took_effect=True, completes=False, counts=True, error_code="unsubscribed"),
)
WORDS = WorkerTestimony(ATTEMPTS)
DIARY = Diary(
    students=(ANN, BOB, EVE), leaving=frozenset({EVE}), requeues=(Requeue(2, 2, "failed"),),
    holds=(1.5,), waits=(0.001, 0.002, 0.25), ended_alone=True,
)  # fmt: skip
GOOD = NotificationEvidence(
    ENDS, CONTACTS, (), WORDS, DIARY, holds=1, batch=10, wait_limit=1.0, recovery_limit=40.0
)
HELD = Held(1, 1, "host:1", ANN)
KILL = Blow("kill", (HELD,))
DOUBLE = replace(CONTACTS[0], at=11.0)
#: Ann's first claim was killed after the sink had taken the mail.
KILLED = replace(
    GOOD,
    ends=(replace(ENDS[0], claim_seq=2), *ENDS[1:]),
    contacts=(*CONTACTS, DOUBLE),
    workers=WorkerTestimony((replace(ATTEMPTS[0], claim=(1, 2)), *ATTEMPTS[1:])),
    blows=(KILL,),
)
LOST_SETTLE = "settlements that were lost"
ATTEMPTS_WRONG = "fanout_attempts is not the number of completed attempts"
UNCOUNTED = "attempts in a log that the row does not count"
UNSAID = "attempts that no log tells of, for their worker died"
HISTORY = "not exactly one notify_sent, or a notify_failed for each other end"
SUBSCRIPTION = "a subscription that does not say what it got"
STATES = "all sent, and skipped for those who left"
DOUBLES = "doubles within what was in flight"


def broken(evidence: NotificationEvidence) -> set[str]:
    return {found.name for found in check_notifications(evidence).checks if not found.passed}


def ended(number: int, **changes: object) -> NotificationEvidence:
    ends = [replace(end, **changes) if end.id == number else end for end in ENDS]
    return replace(GOOD, ends=tuple(ends))


def said(**changes: object) -> NotificationEvidence:
    return replace(GOOD, workers=replace(WORDS, **changes))


def noted(**changes: object) -> NotificationEvidence:
    return replace(GOOD, diary=replace(DIARY, **changes))


def test_a_run_without_faults_passes() -> None:
    verdict = check_notifications(GOOD)
    assert verdict.passed, verdict.checks
    figures = verdict.figures
    assert (figures["attempted"], figures["arrived"], figures["skipped"]) == (3, 2, 1)
    assert figures["attempts_counted"] == 5
    assert figures["attempts_cut_short"] == 0
    assert figures["longest_wait_ms"] == 250


def test_a_double_of_what_was_in_flight_is_allowed_and_its_attempt_not_counted() -> None:
    verdict = check_notifications(KILLED)
    assert verdict.passed, verdict.checks
    assert verdict.figures["duplicated"] == verdict.figures["attempts_cut_short"] == 1


def test_an_attempt_that_a_kill_cut_short_and_that_was_counted_all_the_same_is_seen() -> None:
    charged = replace(KILLED, ends=(replace(KILLED.ends[0], attempts=3), *ENDS[1:]))
    assert broken(charged) == {ATTEMPTS_WRONG}


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        (replace(GOOD, contacts=CONTACTS[:-1]), {"lost", ATTEMPTS_WRONG}),
        (noted(students=(*DIARY.students, "dan@chaos.example")), {"lost"}),
        (noted(students=(ANN, BOB, EVE), leaving=frozenset({EVE, "x"})), set()),
        (replace(GOOD, contacts=(*CONTACTS, Contact(9.0, "dan@chaos.example", taken=True))), {"unexpected"}),
        (replace(GOOD, ends=(*ENDS, replace(ENDS[0], id=4, address="dan@chaos.example"))),
         {"unexpected", ATTEMPTS_WRONG, UNSAID}),
        (ended(1, locked=True), {"left under a lock"}),
        (ended(1, status="failed", told_sent=0, told_failed=1), {STATES}),
        (ended(3, status="sent", told_sent=1, told_failed=0), {STATES}),
        (ended(1, attempts=2), {ATTEMPTS_WRONG, UNSAID}),
        (ended(2, attempts=0), {ATTEMPTS_WRONG, UNCOUNTED}),
        (ended(3, attempts=0), {ATTEMPTS_WRONG, UNCOUNTED}),
        (noted(requeues=()), {ATTEMPTS_WRONG, UNCOUNTED, HISTORY}),
        (ended(1, error=None), {"error is not that of the last attempt"}),
        (ended(1, error='{"code":"provider_error","message":""}'), {"error is not that of the last attempt"}),
        (ended(3, error=SENT), {"error is not that of the last attempt"}),
        (ended(1, has_last_attempt=False), {"no last_attempt_at"}),
        (ended(1, told_sent=2), {HISTORY}),
        (ended(1, told_sent=0), {HISTORY}),
        (ended(2, told_failed=0), {HISTORY}),
        (ended(1, notified=False), {SUBSCRIPTION}),
        (ended(1, known_section_status=None), {SUBSCRIPTION}),
        (ended(1, subscription_status="paused"), {SUBSCRIPTION}),
        (ended(3, notified=True), {SUBSCRIPTION}),
    ],
)  # fmt: skip
def test_the_checker_sees_what_a_row_has_wrong(evidence: NotificationEvidence, found: set[str]) -> None:
    assert broken(evidence) == found


def test_a_double_without_a_kill_is_seen() -> None:
    assert broken(replace(GOOD, contacts=(*CONTACTS, DOUBLE))) == {DOUBLES, ATTEMPTS_WRONG}
    other = replace(KILL, held=(replace(HELD, id=2),))
    assert DOUBLES in broken(replace(KILLED, blows=(other,))), "of something else than was in flight"
    unlike = (*CONTACTS, replace(DOUBLE, message_id="<other@x>"))
    assert broken(replace(KILLED, contacts=unlike)) == {"doubles with another Message-ID"}


def test_a_mail_to_somebody_who_had_left_is_seen() -> None:
    mailed = replace(GOOD, contacts=(*CONTACTS, Contact(9.0, EVE, taken=True, message_id="<3@x>")))
    assert broken(mailed) == {"mailed after they had unsubscribed"}


def test_two_settlements_of_one_row_are_seen() -> None:
    assert "settled more than once" in broken(said(attempts=(*ATTEMPTS, ATTEMPTS[0])))
    assert broken(ended(1, claim_seq=2)) == {"settled more than once"}


def test_an_attempt_that_no_log_tells_of_needs_a_kill() -> None:
    silent = said(attempts=ATTEMPTS[1:])
    assert broken(silent) == {UNSAID}
    assert not broken(replace(silent, blows=(KILL,)))


def test_an_attempt_of_which_only_the_worker_knows_is_believed() -> None:
    """No connection: the sink has not heard of it, and the row counts it."""
    alone = Attempt((1, 0), took_effect=True, completes=False, counts=True, error_code="network_error")
    evidence = replace(ended(1, attempts=2), workers=WorkerTestimony((alone, *ATTEMPTS)))
    assert not broken(evidence)


def test_a_settlement_that_was_lost_is_seen_unless_the_lock_was_taken_away() -> None:
    lost = said(attempts=(*ATTEMPTS, replace(ATTEMPTS[0], claim=(1, 0), took_effect=False, completes=False)))
    assert broken(lost) == {LOST_SETTLE}
    assert broken(said(lost=((1, 0),))) == {LOST_SETTLE}
    assert not broken(replace(lost, diary=replace(DIARY, cleared=(1,))))


def test_a_crash_in_a_log_is_seen() -> None:
    assert broken(said(crashes=("settle.crashed",))) == {"crashes in a worker's log"}


def test_what_the_other_program_suffers_is_seen() -> None:
    assert broken(noted(troubles=("OperationalError: database is locked",))) == {
        "troubles of the other program"
    }
    assert broken(noted(waits=(0.1, 1.2))) == {"the longest that it waited for us"}
    assert broken(noted(ended_alone=False)) == {"the other program knows nothing of Homing"}


def test_what_did_not_come_about_is_seen() -> None:
    name = {"what did not come about"}
    assert broken(replace(GOOD, kills=1)) == name
    assert broken(replace(GOOD, kills=1, blows=(Blow("kill"),))) == name, (
        "it hit nobody with anything in flight"
    )
    assert broken(replace(GOOD, stops=1)) == name
    assert broken(replace(GOOD, holds=2)) == name
    assert broken(replace(GOOD, deserters=("worker-001: 1",))) == {"workers that ended by themselves"}


def test_a_stop_that_leaves_locks_or_fails_is_seen() -> None:
    name = {"stops that left something behind, or failed"}
    assert broken(replace(GOOD, blows=(Blow("stop", (HELD,)),))) == name
    assert broken(replace(GOOD, blows=(Blow("stop", exit_code=-1),))) == name
    assert not broken(replace(GOOD, stops=1, blows=(Blow("stop"),)))


def test_locks_that_are_taken_over_too_late_are_seen() -> None:
    assert broken(replace(KILLED, blows=(replace(KILL, recovery=41.0),))) == {"locks of the dead taken over"}
    assert not broken(replace(KILLED, blows=(replace(KILL, recovery=31.0),)))


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def test_the_log_of_a_worker_is_read() -> None:
    attempted = {
        "event": "delivery.attempted", "id": 7, "claim_seq": 2, "settled": True, "settlement": "retry_in",
        "charged": True, "error_code": "provider_error",
    }  # fmt: skip
    told = read_workers([
        attempted,
        {**attempted, "charged": False, "error_code": "changed"},
        {**attempted, "settlement": "complete", "charged": False, "error_code": None},
        {"event": "lease.lost", "id": 8, "claim_seq": 1},
        {"event": "claim.crashed"},
        {"event": "settle.delayed"},
        {"event": "worker.started"},
    ])  # fmt: skip
    assert [(a.counts, a.completes) for a in told.attempts] == [(True, False), (False, False), (True, True)]
    assert (told.lost, told.crashes, told.given_up) == (((8, 1),), ("claim.crashed",), ("settle",))


def test_the_diary_is_read() -> None:
    diary = read_diary([
        b'{"kind":"begun"}',
        b'{"kind":"opened","students":["a","b"],"leaving":["b"],"hold":0}',
        b'{"kind":"opened","students":["c"],"leaving":[],"hold":1.5}',
        b'{"kind":"committed","waited":0.25}',
        b'{"kind":"requeued","id":3,"attempts":2,"status":"failed"}',
        b'{"kind":"cleared","ids":[3,4]}',
        b'{"kind":"trouble","error":"locked"}',
        b'{"kind":"ended","knows_homing":false}',
    ])  # fmt: skip
    assert diary == Diary(
        ("a", "b", "c"),
        frozenset({"b"}),
        (Requeue(3, 2, "failed"),),
        (3, 4),
        (1.5,),
        (0.25,),
        ("locked",),
        True,
    )
    assert not read_diary([b'{"kind":"ended","knows_homing":true}']).ended_alone
    assert not read_diary([]).ended_alone, "it has not come to its end"
