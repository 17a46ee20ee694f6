"""What became of every notification, by four witnesses that know nothing of each other.

The tables, the log of the SMTP sink (which knows whom it has refused, and how often), the logs of the
workers, and the diary of the other program, which has made the rows and put some of them back. Pure, as
`checker.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from homing.proof.bench.measure import percentile
from homing.proof.chaos.checker import Check, ClaimKey, Verdict, doubles_bounded, none_of
from homing.proof.chaos.email_sink import Contact
from homing.proof.chaos.notification_table import NotificationEnd
from homing.proof.chaos.notification_testimony import REFUSED, Attempt, Diary, WorkerTestimony
from homing.proof.chaos.table import Held

BlowKind: TypeAlias = Literal["kill", "stop"]


class Blow(Struct, frozen=True):
    """A worker that was killed, or told to stop."""

    kind: BlowKind
    #: What it had locked after its end.
    held: tuple[Held, ...] = ()
    #: An operator took its locks away at once; else they were over by themselves.
    cleared: bool = False
    #: Of one that was told to stop.
    exit_code: int | None = 0
    #: Seconds until locks that nobody took away were all taken over.
    recovery: float | None = None


class NotificationEvidence(Struct, frozen=True, dict=True):
    """All that is known of a run with notifications after the drain."""

    ends: Sequence[NotificationEnd]
    contacts: Sequence[Contact]
    blows: Sequence[Blow]
    workers: WorkerTestimony
    diary: Diary
    #: Workers that ended although nobody had told them to, with their exit codes.
    deserters: Sequence[str] = ()
    #: How often each blow, and each hold of the other program, was to come.
    kills: int = 0
    stops: int = 0
    holds: int = 0
    #: Notifications that a worker writes down at once, at the most: their lines in the log may go with it.
    batch: int = 0
    #: Seconds that the other program may be kept waiting, and that a dead worker's locks may last.
    wait_limit: float | None = None
    recovery_limit: float | None = None

    @cached_property
    def ids(self) -> dict[str, int]:
        return {end.address: end.id for end in self.ends}

    @cached_property
    def deliveries(self) -> Counter[int]:
        return Counter(self.ids[c.address] for c in self.contacts if c.taken and c.address in self.ids)

    @cached_property
    def attempted(self) -> Counter[int]:
        """How often the sink was asked to take each, whether it did or not."""
        return Counter(self.ids[c.address] for c in self.contacts if c.address in self.ids)

    @cached_property
    def interrupted(self) -> set[ClaimKey]:
        """Claims that may have sent without being settled: only their rows may be sent again."""
        held = {(h.id, h.claim_seq) for blow in self.blows for h in blow.held}
        return held | {a.claim for a in self.workers.attempts if not a.took_effect} | set(self.workers.lost)

    @cached_property
    def interruptions(self) -> Counter[int]:
        return Counter(row for row, _ in self.interrupted)

    @cached_property
    def counted(self) -> Counter[int]:
        """Attempts of each row by its own word: what it says now, and what it said when it was put back."""
        before = Counter[int]()
        for requeue in self.diary.requeues:
            before[requeue.id] += requeue.attempts
        return before + Counter({end.id: end.attempts for end in self.ends})

    @cached_property
    def settled(self) -> list[Attempt]:
        return [attempt for attempt in self.workers.attempts if attempt.took_effect]

    @cached_property
    def logged(self) -> Counter[int]:
        return Counter(attempt.claim[0] for attempt in self.settled if attempt.counts)

    @cached_property
    def unheard(self) -> Counter[int]:
        """Attempts of which the sink need not know: no connection, or no answer."""
        return Counter(
            attempt.claim[0]
            for attempt in self.settled
            if attempt.counts and not attempt.completes and attempt.error_code != REFUSED
        )

    def leaves(self, end: NotificationEnd) -> bool:
        """Whether it was for somebody who had unsubscribed."""
        return end.address in self.diary.leaving

    def kinds(self, kind: BlowKind) -> list[Blow]:
        return [blow for blow in self.blows if blow.kind == kind]


def check_notifications(evidence: NotificationEvidence) -> Verdict:
    checks = [
        *_went_in_and_came_out(evidence),
        *_sent_once(evidence),
        *_attempts_are_true(evidence),
        *_rows_tell_the_truth(evidence),
        *_lived_together(evidence),
        *_came_about(evidence),
    ]
    return Verdict(_figures(evidence), checks)


def _wrong(
    evidence: NotificationEvidence, name: str, is_right: Callable[[NotificationEnd], bool | int]
) -> Check:
    return none_of(name, [_row(end.id) for end in evidence.ends if not is_right(end)])


def _row(id: int) -> str:
    return f"notification {id}"


# ── every notification, once ─────────────────────────────────────────────────────────────────────


def _went_in_and_came_out(evidence: NotificationEvidence) -> list[Check]:
    return [
        none_of("lost", _lost(evidence)),
        none_of("unexpected", _unexpected(evidence)),
        _wrong(evidence, "left under a lock", lambda end: not end.locked),
        _all_ended(evidence),
    ]


def _lost(evidence: NotificationEvidence) -> list[str]:
    """Of those who stay, the ones that got nothing; of those who left, the ones that have no row."""
    ids, deliveries, leaving = evidence.ids, evidence.deliveries, evidence.diary.leaving
    return [
        student
        for student in evidence.diary.students
        if student not in ids or (student not in leaving and not deliveries[ids[student]])
    ]


def _unexpected(evidence: NotificationEvidence) -> list[str]:
    """At the sink, or in the table, and nobody has made it; or two rows for one subscription."""
    known = set(evidence.diary.students)
    strangers = {c.address for c in evidence.contacts} - known
    rows = Counter(end.address for end in evidence.ends)
    return [*sorted(strangers), *(a for a, count in rows.items() if a not in known or count > 1)]


def _all_ended(evidence: NotificationEvidence) -> Check:
    wrong = [end for end in evidence.ends if end.status != ("skipped" if evidence.leaves(end) else "sent")]
    states = Counter(end.status for end in wrong or evidence.ends)
    detail = ", ".join(f"{count} {status}" for status, count in states.items())
    return Check("all sent, and skipped for those who left", not wrong, detail)


def _sent_once(evidence: NotificationEvidence) -> list[Check]:
    last = {end.id: end.claim_seq for end in evidence.ends}
    completed = Counter(attempt.claim for attempt in evidence.settled if attempt.completes)
    wrong = [f"{_row(row)} by claim {seq}" for row, seq in completed if last.get(row) != seq]
    twice = [f"{_row(row)} twice" for (row, _), count in completed.items() if count > 1]
    message_ids: dict[str, set[str | None]] = {}
    for contact in evidence.contacts:
        if contact.taken:
            message_ids.setdefault(contact.address, set()).add(contact.message_id)
    mailed = [end for end in evidence.ends if evidence.leaves(end) and evidence.attempted[end.id]]
    return [
        none_of("settled more than once", [*wrong, *twice]),
        doubles_bounded(evidence.deliveries, evidence.interrupted),
        none_of("doubles with another Message-ID", [a for a, ids in message_ids.items() if len(ids) > 1]),
        none_of("mailed after they had unsubscribed", [_row(end.id) for end in mailed]),
    ]


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


def _attempts_are_true(evidence: NotificationEvidence) -> list[Check]:
    counted, logged = evidence.counted, evidence.logged
    unsaid = sum(max(0, counted[end.id] - logged[end.id]) for end in evidence.ends)
    most = len(evidence.kinds("kill")) * evidence.batch
    told = f"{unsaid} of at most {most}"

    def is_counted(end: NotificationEnd) -> bool:
        return logged[end.id] <= counted[end.id]

    return [
        _wrong(
            evidence,
            "fanout_attempts is not the number of completed attempts",
            lambda end: _counts_attempts(evidence, end),
        ),
        _wrong(evidence, "attempts in a log that the row does not count", is_counted),
        Check("attempts that no log tells of, for their worker died", unsaid <= most, told),
    ]


def _counts_attempts(evidence: NotificationEvidence, end: NotificationEnd) -> bool:
    """An attempt that a kill cut short is charged to nobody; without one the numbers are equal."""
    counted, known = evidence.counted[end.id], evidence.attempted[end.id]
    if evidence.leaves(end):
        return counted == 1
    return known - evidence.interruptions[end.id] <= counted <= known + evidence.unheard[end.id]


# ── what else is written ─────────────────────────────────────────────────────────────────────────


def _rows_tell_the_truth(evidence: NotificationEvidence) -> list[Check]:
    failed = Counter(requeue.id for requeue in evidence.diary.requeues if requeue.status != "pending")

    def is_told(end: NotificationEnd) -> bool:
        sent = end.status == "sent"
        return (end.told_sent, end.told_failed) == (int(sent), failed[end.id] + int(not sent))

    return [
        _wrong(evidence, "error is not that of the last attempt", lambda e: _has_right_error(evidence, e)),
        _wrong(evidence, "no last_attempt_at", lambda end: end.has_last_attempt),
        _wrong(evidence, "not exactly one notify_sent, or a notify_failed for each other end", is_told),
        _wrong(
            evidence,
            "a subscription that does not say what it got",
            lambda end: _subscription_says(evidence, end),
        ),
    ]


def _has_right_error(evidence: NotificationEvidence, end: NotificationEnd) -> bool:
    error: Any = msgspec.json.decode(end.error or "null")
    if not isinstance(error, dict):
        return False
    if evidence.leaves(end):
        return error.get("code") == "unsubscribed"
    return error.keys() == {"provider", "providerMessageId", "status"} and error["status"] == "sent"


def _subscription_says(evidence: NotificationEvidence, end: NotificationEnd) -> bool:
    if evidence.leaves(end):
        return not end.notified and end.subscription_status == "unsubscribed"
    told = end.notified and end.known_section_status == "OPEN"
    return bool(told) and end.subscription_status == "active"


# ── two programs in one file ─────────────────────────────────────────────────────────────────────


def _lived_together(evidence: NotificationEvidence) -> list[Check]:
    """A claim of a worker that lives is lost only if the other program has taken its lock away."""
    cleared, workers = set(evidence.diary.cleared), evidence.workers
    refused = [attempt.claim for attempt in workers.attempts if not attempt.took_effect]
    lost = [_row(row) for row, _ in {*refused, *workers.lost} if row not in cleared]
    checks = [
        none_of("settlements that were lost", lost),
        none_of("crashes in a worker's log", workers.crashes),
        none_of("troubles of the other program", evidence.diary.troubles),
        Check("the other program knows nothing of Homing", evidence.diary.ended_alone, "and came to its end"),
    ]
    if evidence.wait_limit is not None:
        longest = max(evidence.diary.waits, default=0.0)
        detail = f"{longest * 1000:.0f} ms, at most {evidence.wait_limit * 1000:.0f} ms"
        checks.append(Check("the longest that it waited for us", longest <= evidence.wait_limit, detail))
    return checks


def _came_about(evidence: NotificationEvidence) -> list[Check]:
    stops = evidence.kinds("stop")
    hits = sum(bool(blow.held) for blow in evidence.kinds("kill"))
    wanted = (("kills that hit", hits, evidence.kills), ("stops", len(stops), evidence.stops),
              ("holds", len(evidence.diary.holds), evidence.holds))  # fmt: skip
    unkind = [
        f"exit {blow.exit_code}, {len(blow.held)} locked" for blow in stops if blow.exit_code or blow.held
    ]
    checks = [
        none_of("what did not come about", [f"{n} {got} of {most}" for n, got, most in wanted if got < most]),
        none_of("workers that ended by themselves", evidence.deserters),
        none_of("stops that left something behind, or failed", unkind),
    ]
    if evidence.recovery_limit is not None:
        slowest = max(_recoveries(evidence), default=0.0)
        detail = f"{slowest:.1f} s, at most {evidence.recovery_limit:.1f} s"
        checks.append(Check("locks of the dead taken over", slowest <= evidence.recovery_limit, detail))
    return checks


def _recoveries(evidence: NotificationEvidence) -> list[float]:
    return [blow.recovery for blow in evidence.blows if blow.recovery is not None]


# ── what is worth knowing ────────────────────────────────────────────────────────────────────────


def _figures(evidence: NotificationEvidence) -> dict[str, float]:
    deliveries, diary, workers = evidence.deliveries, evidence.diary, evidence.workers
    kills = evidence.kinds("kill")
    given_up = Counter(workers.given_up)
    return {
        "attempted": len(diary.students),
        "acked": sum(end.status == "sent" for end in evidence.ends),
        "arrived": len(deliveries),
        "skipped": sum(end.status == "skipped" for end in evidence.ends),
        "lost": len(_lost(evidence)),
        "unexpected": len(_unexpected(evidence)),
        "duplicated": sum(count - 1 for count in deliveries.values()),
        "in_flight_at_kills": sum(len(blow.held) for blow in kills),
        "kills": len(kills),
        "kills_that_hit": sum(bool(blow.held) for blow in kills),
        "locks_cleared_by_hand": sum(len(blow.held) for blow in kills if blow.cleared),
        "locks_cleared_for_their_age": len(diary.cleared),
        "stops": len(evidence.kinds("stop")),
        "refused_sends": sum(not contact.taken for contact in evidence.contacts),
        "attempts_counted": sum(evidence.counted.values()),
        "attempts_cut_short": _cut_short(evidence),
        "requeued_after_failing": sum(requeue.status != "pending" for requeue in diary.requeues),
        "requeued_while_waiting": sum(requeue.status == "pending" for requeue in diary.requeues),
        "holds": len(diary.holds),
        "seconds_held": round(sum(diary.holds), 1),
        "settles_given_up_and_repeated": given_up["settle"],
        "claims_given_up_and_repeated": given_up["claim"],
        "leases_lost": len(workers.lost),
        "slowest_takeover_seconds": round(max(_recoveries(evidence), default=0.0), 2),
        **_waits(diary.waits),
    }  # fmt: skip


def _cut_short(evidence: NotificationEvidence) -> int:
    """What the sink knows of and no row counts."""
    staying = [end.id for end in evidence.ends if not evidence.leaves(end)]
    return sum(max(0, evidence.attempted[id] - evidence.counted[id]) for id in staying)


def _waits(waits: Sequence[float]) -> dict[str, float]:
    """How long each transaction of the other program was kept waiting."""
    shares = (("median", 0.5), ("p99", 0.99), ("longest", 1.0))
    found = {
        f"{name}_wait_ms": round(percentile(waits, share) * 1000, 1) if waits else 0.0
        for name, share in shares
    }
    return {"transactions_of_the_other": len(waits), **found}
