"""What went in must come out, for webhooks: counts what became of every job, and in which order.

Four witnesses that know nothing of each other are compared: `dispatch_job`, `dispatch_attempt`, the
receiver's log, and the logs of the workers. Pure, as `checker.py`, which has what holds in every lane.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from msgspec import Struct

from homing.lanes.dispatch_jobs.tsid import text_of
from homing.proof.chaos.checker import (
    Check,
    ClaimKey,
    Fault,
    Testimony,
    Verdict,
    demands,
    doubles_bounded,
    fault_figures,
    interrupted,
    none_of,
    recovery_figures,
    settled_once,
    stale_refused,
)
from homing.proof.chaos.job_receiver import Receipt
from homing.proof.chaos.job_table import AttemptRow, JobEnd

Item = TypeVar("Item")

#: Attempts are kept in milliseconds.
_ROUNDING = 0.002
#: The attempt of a worker that was lost: the rescue wrote it.
_DIED = "worker_died"
_FREE_RESCUES = 3


class OrderedJob(Struct, frozen=True):
    """A job as it was put in."""

    id: int
    sha256: str
    #: Set when the jobs of this group are to be delivered one after the other, as they stand in the list.
    group: str | None = None


class JobEvidence(Struct, frozen=True, dict=True):
    """All that is known of a run with webhooks after the drain."""

    ordered: Sequence[OrderedJob]
    ends: Sequence[JobEnd]
    attempts: Sequence[AttemptRow]
    receipts: Sequence[Receipt]
    faults: Sequence[Fault]
    testimony: Testimony
    #: Groups that were seen with more than one job in flight.
    crowded: Sequence[str] = ()
    #: Workers that ended although nobody had told them to, with their exit codes.
    deserters: Sequence[str] = ()
    wanted_hits: int = 0
    recovery_limit: float | None = None

    @property
    def last_claims(self) -> dict[int, int]:
        return {end.id: end.claim_seq for end in self.ends}

    @cached_property
    def by_webhook_id(self) -> dict[str, OrderedJob]:
        return {text_of(job.id): job for job in self.ordered}

    @cached_property
    def known(self) -> list[tuple[OrderedJob, Receipt]]:
        """What the receiver got, each with its job."""
        jobs = self.by_webhook_id
        return [(jobs[r.webhook_id], r) for r in self.receipts if r.webhook_id in jobs]

    @cached_property
    def deliveries(self) -> Counter[int]:
        return Counter(job.id for job, receipt in self.known if receipt.accepted)

    @cached_property
    def attempts_of(self) -> dict[int, list[AttemptRow]]:
        return grouped((attempt.job, attempt) for attempt in self.attempts)

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """Of each ordered group its jobs, the oldest first."""
        return grouped((job.group, job.id) for job in self.ordered if job.group is not None)


Key = TypeVar("Key")


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    found: defaultdict[Key, list[Item]] = defaultdict(list)
    for key, item in pairs:
        found[key].append(item)
    return dict(found)


def check_jobs(evidence: JobEvidence) -> Verdict:
    claims = interrupted(evidence)
    checks = [
        *_went_in_and_came_out(evidence),
        settled_once(evidence),
        *_attempts_are_true(evidence),
        doubles_bounded(evidence.deliveries, claims),
        *_as_ordered(evidence),
        stale_refused(evidence),
        *_in_order(evidence),
        *demands(evidence, "jobs"),
    ]
    return Verdict(_figures(evidence, claims), checks)


# ── every job, once ──────────────────────────────────────────────────────────────────────────────


def _went_in_and_came_out(evidence: JobEvidence) -> list[Check]:
    rows = {end.id for end in evidence.ends}
    lost = [_job(j.id) for j in evidence.ordered if j.id not in rows or not evidence.deliveries[j.id]]
    left = [_job(end.id) for end in evidence.ends if end.status == "IN_PROGRESS"]
    return [
        none_of("lost", lost),
        none_of("unexpected", _unexpected(evidence)),
        none_of("left in IN_PROGRESS", left),
        _all_completed(evidence.ends),
    ]


def _unexpected(evidence: JobEvidence) -> list[str]:
    """At the receiver, or in the table, and never put in."""
    known = {job.id for job in evidence.ordered}
    strangers = [str(r.webhook_id) for r in evidence.receipts if r.webhook_id not in evidence.by_webhook_id]
    return [*strangers, *(_job(end.id) for end in evidence.ends if end.id not in known)]


def _all_completed(ends: Sequence[JobEnd]) -> Check:
    others = Counter(end.status for end in ends if end.status != "COMPLETED" or end.completed is None)
    detail = ", ".join(f"{count} {status}" for status, count in others.items())
    return Check("all COMPLETED", not others, detail or f"{len(ends)} of {len(ends)}")


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


def _attempts_are_true(evidence: JobEvidence) -> list[Check]:
    rows = {end.id: evidence.attempts_of.get(end.id, []) for end in evidence.ends}
    miscounted = [_job(end.id) for end in evidence.ends if end.attempt_count != len(rows[end.id])]
    gaps = [_job(id) for id, made in rows.items() if [a.number for a in made] != _numbers(len(made))]
    orphans = [_job(id) for id in evidence.attempts_of if id not in rows]
    late = Counter(s.claim[0] for s in evidence.testimony.settled if s.completes and not s.took_effect)
    unended = [_job(id) for id, made in rows.items() if not _ends_with_its_success(made, late[id])]
    return [
        none_of("attempt_count is not the number of attempts", [*miscounted, *orphans]),
        none_of("attempt numbers with gaps or doubles", gaps),
        none_of("not settled by one success, the last attempt", unended),
        none_of("attempts that the receiver does not know", _invented(evidence)),
        none_of("requests that no attempt explains", _unexplained(evidence)),
    ]


def _numbers(count: int) -> list[int]:
    return list(range(1, count + 1))


def _ends_with_its_success(made: Sequence[AttemptRow], late: int) -> bool:
    """Whose lease was over may have delivered as well, and said so later: its own row tells it."""
    statuses = [a.status for a in made]
    return not made or (statuses[-1] == "SUCCESS" and statuses.count("SUCCESS") <= 1 + late)


def _invented(evidence: JobEvidence) -> list[str]:
    """The table says that the receiver answered so, and the receiver did not."""
    answers = Counter((job.id, receipt.status) for job, receipt in evidence.known)
    said = Counter((a.job, a.response_code) for a in evidence.attempts if a.response_code is not None)
    return [f"{_job(job)} {code}" for (job, code), n in said.items() if n > answers[job, code]]


def _unexplained(evidence: JobEvidence) -> list[str]:
    """The history is complete: what was sent by a worker that died has its row, too."""
    requests = Counter(job.id for job, _ in evidence.known)
    made = Counter(a.job for a in evidence.attempts)
    return [f"{_job(job)}: {n} requests" for job, n in requests.items() if n > made[job]]


# ── what arrived ─────────────────────────────────────────────────────────────────────────────────


def _as_ordered(evidence: JobEvidence) -> list[Check]:
    ids: defaultdict[str, set[str | None]] = defaultdict(set)
    for receipt in evidence.receipts:
        ids[receipt.sha256].add(receipt.webhook_id)
    several = [f"{digest[:12]}…" for digest, found in ids.items() if len(found) > 1]
    changed = [_job(job.id) for job, receipt in evidence.known if receipt.sha256 != job.sha256]
    refused = [f"{r.webhook_id} {r.refused}" for r in evidence.receipts if r.refused is not None]
    return [
        none_of("attempts with another webhook-id", several),
        none_of("payloads that are not byte for byte as ordered", changed),
        none_of("signatures and tokens that do not verify", refused),
    ]


# ── the order within groups ──────────────────────────────────────────────────────────────────────


class Span(Struct, frozen=True, order=True):
    """When a job was with the receiver, or under way in the eyes of the table."""

    begun: float
    ended: float
    job: int


def _in_order(evidence: JobEvidence) -> list[Check]:
    if not evidence.groups:
        return []
    spans = grouped(
        (job.group, Span(r.begun, r.ended, job.id)) for job, r in evidence.known if job.group is not None
    )
    overslept = _overslept(evidence)
    return [
        none_of("order broken at the receiver", _overtakers(evidence.groups, _first_deliveries(evidence))),
        none_of("order broken in the table", _overtakers(evidence.groups, _completions(evidence.ends))),
        none_of("two of a group at the receiver", list(_overlaps(spans.values(), overslept))),
        none_of(
            "two of a group under way in the table", list(_overlaps(_spans_of_attempts(evidence), overslept))
        ),
        none_of("two of a group seen in flight", evidence.crowded),
    ]


def _first_deliveries(evidence: JobEvidence) -> dict[int, float]:
    first: dict[int, float] = {}
    for job, receipt in evidence.known:
        if receipt.accepted:
            first[job.id] = min(receipt.begun, first.get(job.id, receipt.begun))
    return first


def _completions(ends: Sequence[JobEnd]) -> dict[int, float]:
    return {end.id: end.completed for end in ends if end.completed is not None}


def _overtakers(groups: Mapping[str, Sequence[int]], times: Mapping[int, float]) -> list[str]:
    """Jobs that came before the one that they should have waited for."""
    return [
        f"{_job(younger)} of {group}"
        for group, jobs in groups.items()
        for older, younger in pairwise(jobs)
        if younger in times and times[younger] < times.get(older, float("inf"))
    ]


def _overslept(evidence: JobEvidence) -> set[int]:
    """Jobs that a worker may have sent when it had slept over its lease, which nobody can prevent.

    A kill is no excuse: the dead send nothing.
    """
    stopped = {h.id for fault in evidence.faults if fault.kind != "kill" for h in fault.held}
    refused = {s.claim[0] for s in evidence.testimony.settled if not s.took_effect}
    return stopped | refused | {job for job, _ in evidence.testimony.lost}


def _spans_of_attempts(evidence: JobEvidence) -> Iterable[list[Span]]:
    for jobs in evidence.groups.values():
        made = [a for job in jobs for a in evidence.attempts_of.get(job, []) if a.error_class != _DIED]
        yield [Span(a.begun + _ROUNDING, a.ended, a.job) for a in made]


def _overlaps(groups: Iterable[Sequence[Span]], excused: set[int] | None = None) -> Iterator[str]:
    for spans in groups:
        last: Span | None = None
        for span in sorted(s for s in spans if s.job not in (excused or ())):
            if last is not None and span.begun < last.ended:
                yield f"{_job(last.job)} and {_job(span.job)}"
            last = span if last is None or span.ended > last.ended else last


# ── what is worth knowing ────────────────────────────────────────────────────────────────────────


def _figures(evidence: JobEvidence, claims: set[ClaimKey]) -> dict[str, float]:
    deliveries = evidence.deliveries
    return {
        "attempted": len(evidence.ordered),
        "acked": sum(end.status == "COMPLETED" for end in evidence.ends),
        "arrived": len(deliveries),
        "lost": len(evidence.ordered) - len(deliveries),
        "unexpected": len(_unexpected(evidence)),
        "requests": len(evidence.receipts),
        "failing_answers": sum(not receipt.accepted for receipt in evidence.receipts),
        "attempt_rows": len(evidence.attempts),
        "recovered": sum(end.rescue_count > 0 for end in evidence.ends),
        "duplicated": sum(count - 1 for count in deliveries.values()),
        **fault_figures(evidence, claims),
        "rescues": sum(end.rescue_count for end in evidence.ends),
        "charged_rescues": sum(max(0, end.rescue_count - _FREE_RESCUES) for end in evidence.ends),
        **recovery_figures(evidence),
        **_group_figures(evidence),
    }


def _group_figures(evidence: JobEvidence) -> dict[str, float]:
    if not evidence.groups:
        return {}
    return {
        "groups": len(evidence.groups),
        "jobs_of_a_group": max(map(len, evidence.groups.values())),
        "excused_from_overlap": len(_overslept(evidence)),
    }


def _job(id: int) -> str:
    return f"job {text_of(id)}"
