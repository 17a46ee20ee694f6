"""What went in must come out: counts what became of every mail, as Jepsen's total-queue checker does.

It looks at three witnesses that know nothing of each other: the table, the sink's log, and the logs
of the workers, the dead ones included. It is pure, so that it can be shown to notice what it should.
What holds in every lane stands here as well; `job_checker.py` adds what holds for webhooks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from homing.proof.chaos.processes import Delivery
from homing.proof.chaos.table import End, Held

FaultKind: TypeAlias = Literal["kill", "stop", "restart-postgres"]
#: A claim: the row's id and its `claim_seq`. No two claims share one.
ClaimKey: TypeAlias = tuple[int, int]


class Fault(Struct, frozen=True):
    """Something that we did to a process, and what that process held at the time."""

    kind: FaultKind
    held: tuple[Held, ...]
    #: How many of these the sink had already said yes to, or was about to: certain to arrive twice.
    accepted: int = 0
    #: Claims that others had taken over before a stopped worker went on.
    stale: tuple[ClaimKey, ...] = ()
    #: Seconds until somebody had taken back all that was held.
    recovery: float | None = None

    @property
    def hit(self) -> bool:
        return bool(self.held)


class Settled(Struct, frozen=True):
    """A worker's word about one attempt; `took_effect` is what the database told it."""

    claim: ClaimKey
    took_effect: bool
    completes: bool


class Testimony(Struct, frozen=True):
    """What the workers' logs say."""

    settled: tuple[Settled, ...] = ()
    lost: tuple[ClaimKey, ...] = ()


class Course(Protocol):
    """What is known of a run in any lane."""

    @property
    def faults(self) -> Sequence[Fault]: ...

    @property
    def testimony(self) -> Testimony: ...

    @property
    def deserters(self) -> Sequence[str]: ...

    @property
    def wanted_hits(self) -> int: ...

    @property
    def recovery_limit(self) -> float | None: ...

    @property
    def last_claims(self) -> Mapping[int, int]:
        """Of each row the `claim_seq` that it ended with."""


class Evidence(Struct, frozen=True):
    """All that is known of a run with mails after the drain."""

    ordered: Sequence[str]
    ends: Sequence[End]
    deliveries: Sequence[Delivery]
    faults: Sequence[Fault]
    testimony: Testimony
    #: Workers that ended although nobody had told them to, with their exit codes.
    deserters: Sequence[str] = ()
    wanted_hits: int = 0
    recovery_limit: float | None = None

    @property
    def last_claims(self) -> dict[int, int]:
        return {end.id: end.claim_seq for end in self.ends}


class Check(Struct, frozen=True):
    name: str
    passed: bool
    detail: str


class Verdict(Struct, frozen=True):
    figures: Mapping[str, float]
    checks: Sequence[Check]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def read_testimony(events: Iterable[Mapping[str, Any]]) -> Testimony:
    settled, lost = [], []
    for event in events:
        if event["event"] == "delivery.attempted":
            claim = (event["id"], event["claim_seq"])
            settled.append(Settled(claim, event["settled"], event["settlement"] == "complete"))
        elif event["event"] == "lease.lost":
            lost.append((event["id"], event["claim_seq"]))
    return Testimony(tuple(settled), tuple(lost))


def check(evidence: Evidence) -> Verdict:
    ids = {end.address: end.id for end in evidence.ends}
    deliveries = Counter(ids[address] for d in evidence.deliveries for address in d.to if address in ids)
    claims = interrupted(evidence)
    checks = [
        _nothing_lost(evidence, deliveries),
        _nothing_unexpected(evidence),
        _nothing_left(evidence.ends),
        _all_sent(evidence.ends),
        settled_once(evidence),
        doubles_bounded(deliveries, claims),
        _doubles_look_alike(evidence),
        stale_refused(evidence),
        *demands(evidence, "mail"),
    ]
    return Verdict(_figures(evidence, deliveries, claims), checks)


def interrupted(course: Course) -> set[ClaimKey]:
    """Claims that may have delivered without being settled: only their rows may arrive again."""
    held = {(h.id, h.claim_seq) for fault in course.faults for h in fault.held}
    refused = {s.claim for s in course.testimony.settled if not s.took_effect}
    return held | refused | set(course.testimony.lost)


# ── what must hold ───────────────────────────────────────────────────────────────────────────────


def _nothing_lost(evidence: Evidence, deliveries: Mapping[int, int]) -> Check:
    rows = {end.address for end in evidence.ends}
    arrived = {end.address for end in evidence.ends if deliveries.get(end.id)}
    vanished = [a for a in evidence.ordered if a not in rows]
    missing = [a for a in evidence.ordered if a in rows and a not in arrived]
    return none_of("lost", [*vanished, *missing])


def _nothing_unexpected(evidence: Evidence) -> Check:
    return none_of("unexpected", _strange(evidence))


def _strange(evidence: Evidence) -> list[str]:
    """What reached the sink and is in no row, or not under the Message-ID of its row."""
    tokens = {end.address: end.token for end in evidence.ends}
    return [
        f"{address} {delivery.message_id}"
        for delivery in evidence.deliveries
        for address in delivery.to
        if address not in tokens or tokens[address] not in (delivery.message_id or "")
    ]


def _nothing_left(ends: Sequence[End]) -> Check:
    return none_of("left in dispatching", [f"row {e.id}" for e in ends if e.status == "dispatching"])


def _all_sent(ends: Sequence[End]) -> Check:
    others = Counter(end.status for end in ends if end.status != "sent" or not end.has_sent_at)
    detail = ", ".join(f"{count} {status}" for status, count in others.items())
    return Check("all sent", not others, detail or f"{len(ends)} of {len(ends)}")


def _doubles_look_alike(evidence: Evidence) -> Check:
    message_ids: dict[str, set[str | None]] = {}
    for delivery in evidence.deliveries:
        for address in delivery.to:
            message_ids.setdefault(address, set()).add(delivery.message_id)
    return none_of(
        "doubles with another Message-ID", [a for a, found in message_ids.items() if len(found) > 1]
    )


# ── what must hold in every lane ───────────────────────────────────────────────────────────────────


def settled_once(course: Course) -> Check:
    """At most one completion took effect for a row, and it was that of the row's last claim.

    A worker may die between the commit and the line in its log, so that a completion may go unsaid.
    """
    last = course.last_claims
    completed = Counter(s.claim for s in course.testimony.settled if s.took_effect and s.completes)
    wrong = [f"row {row} by claim {seq}" for row, seq in completed if last.get(row) != seq]
    twice = [f"row {row} twice" for (row, _), count in completed.items() if count > 1]
    return none_of("settled more than once", [*wrong, *twice])


def doubles_bounded(deliveries: Mapping[int, int], claims: set[ClaimKey]) -> Check:
    """Per row: one delivery, and one more for each of its claims that was interrupted."""
    allowed = Counter(row for row, _ in claims)
    doubles = sum(count - 1 for count in deliveries.values())
    too_many = [f"row {row}: {n} times" for row, n in deliveries.items() if n > 1 + allowed[row]]
    detail = f"{doubles} of at most {len(claims)}" + some_of(too_many)
    return Check("doubles within what was in flight", not too_many, detail)


def stale_refused(course: Course) -> Check:
    """What a stopped worker held and others took over is theirs: it has written nothing to it since."""
    stale = {claim for fault in course.faults for claim in fault.stale}
    last = course.last_claims
    said = {s.claim for s in course.testimony.settled if s.took_effect}
    written = [
        f"row {row} by claim {seq}" for row, seq in stale if (row, seq) in said or last.get(row) == seq
    ]
    return none_of("settled by a stale claim", written)


def demands(course: Course, what: str) -> list[Check]:
    """What makes the run worth something, and what the workers owe beside it."""
    hits = sum(fault.hit for fault in course.faults if fault.kind == "kill")
    checks = [none_of("workers that ended by themselves", list(course.deserters))]
    if course.wanted_hits:
        checks.append(Check(f"kills that hit {what} in flight", hits >= course.wanted_hits, f"{hits}"))
    slowest = max((f.recovery for f in course.faults if f.recovery is not None), default=0.0)
    if course.recovery_limit is not None:
        detail = f"{slowest:.1f} s, at most {course.recovery_limit:.1f} s"
        checks.append(Check("recovery", slowest <= course.recovery_limit, detail))
    return checks


def none_of(name: str, found: Sequence[str]) -> Check:
    return Check(name, not found, f"{len(found)}{some_of(found)}")


def some_of(found: Sequence[str]) -> str:
    return f" ({', '.join(found[:3])}{', …' if len(found) > 3 else ''})" if found else ""


# ── what is worth knowing ────────────────────────────────────────────────────────────────────────


def _figures(evidence: Evidence, deliveries: Mapping[int, int], claims: set[ClaimKey]) -> dict[str, float]:
    return {
        "attempted": len(evidence.ordered),
        "acked": sum(end.status == "sent" for end in evidence.ends),
        "arrived": len(deliveries),
        "lost": len(evidence.ordered) - len(deliveries),
        "unexpected": len(_strange(evidence)),
        "recovered": sum(end.rescue_count > 0 for end in evidence.ends),
        "duplicated": sum(count - 1 for count in deliveries.values()),
        **fault_figures(evidence, claims),
        "rescues": sum(end.rescue_count for end in evidence.ends),
        "charged_retries": sum(end.retry_count for end in evidence.ends),
        **recovery_figures(evidence),
    }


def fault_figures(course: Course, claims: set[ClaimKey]) -> dict[str, float]:
    faults, testimony = course.faults, course.testimony
    kills = [fault for fault in faults if fault.kind == "kill"]
    return {
        "duplicates_certain": sum(fault.accepted for fault in faults),
        "in_flight_at_faults": len({(h.id, h.claim_seq) for fault in faults for h in fault.held}),
        "in_flight_taken_over": len(_taken_over(course)),
        "in_flight_bound": len(claims),
        "kills": len(kills),
        "hits": sum(fault.hit for fault in kills),
        "stops": sum(fault.kind == "stop" for fault in faults),
        "restarts": sum(fault.kind == "restart-postgres" for fault in faults),
        "stale_claims": sum(len(fault.stale) for fault in faults),
        "stale_settles_refused": sum(not s.took_effect for s in testimony.settled),
        "leases_noticed_lost": len(testimony.lost),
    }


def _taken_over(course: Course) -> set[ClaimKey]:
    """What a fault interrupted and others went on with; the rest was settled by a statement already sent."""
    last = course.last_claims
    held = {(h.id, h.claim_seq) for fault in course.faults for h in fault.held}
    return {(row, seq) for row, seq in held if last.get(row, 0) > seq}


def recovery_figures(course: Course) -> dict[str, float]:
    recoveries = [fault.recovery for fault in course.faults if fault.recovery is not None]
    return {
        "median_recovery_seconds": round(median(recoveries), 2) if recoveries else 0.0,
        "slowest_recovery_seconds": round(max(recoveries, default=0.0), 2),
    }
