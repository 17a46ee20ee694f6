"""The store of `dispatch_job` against a model of it in plain Python, step by random step.

Several workers claim, settle, renew, release and die; time passes; jobs are rescued, swept, requeued and
cancelled, also by hand; targets are paused; ordered groups wait for their heads. After each step every job
is what the model says. A claim that was ever given out may be used at any later time, so most settlements
that are tried here come from workers that are late.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace
from tests.conftest import IN_FULL
from tests.jobs import JobBench, job, job_bench

from homing.db import iso
from homing.engine.model import Bury, Claim, Complete, Discard, Failure, RetryIn, Settlement
from homing.errors import Refused
from homing.lanes.dispatch_jobs.job import Job

Result = TypeVar("Result")

LEASE, BASE, MAX_RETRIES, FREE_RESCUES = 120.0, 30.0, 3, 3
FAILURE = Failure("http_500", "HTTP 500")
#: No sum of steps equals a delay, a lease, a pause or a time to live, so the milliseconds that really pass
#: decide nothing.
STEPS = (70.0, 140.0, 1000.0)
TIMES_TO_LIVE = (None, None, 200.0, 600.0)
SCHEDULES = (None, None, None, 250.0)
A_PAUSE = 300.0
URLS = [f"https://partner{n}.example/" for n in range(3)]
GROUPS = ("g0", "g1")
SETTLEMENTS: tuple[Settlement, ...] = (
    Complete(),
    RetryIn(100.0, FAILURE),
    RetryIn(100.0, FAILURE, charged=False),
    Bury(FAILURE),
    Bury(FAILURE, charged=False),
    Discard(FAILURE),
)
OPEN = {"PENDING", "FAILED"}
LIVE = {*OPEN, "IN_PROGRESS"}
EVERYTHING = 400

several = st.lists(st.integers(0, 200), min_size=1, max_size=6)


@dataclass
class Row:
    url: str
    group: str | None
    place: int
    due: float
    expires: float | None
    ready: bool
    scheduled: float = 0.0
    status: str = "PENDING"
    lease: float | None = None
    fence: int = 0
    attempts: int = 0
    before: int = 0
    rescues: int = 0
    deferrals: int = 0

    @property
    def open_status(self) -> str:
        return "PENDING" if self.attempts == self.before else "FAILED"

    def shown(self) -> tuple[Any, ...]:
        ready = self.ready if self.status in LIVE else None
        counts = (self.fence, self.attempts, self.before, self.rescues, self.deferrals)
        return self.status, ready, self.lease is not None, *counts


@dataclass
class Opened:
    """A real store, and the loop that it lives in."""

    runner: asyncio.Runner
    bench: JobBench

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)


class JobsMachine(RuleBasedStateMachine):
    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.opened = opened
        self.bench = opened.bench
        self.jobs = opened.bench.jobs
        self.maintenance = opened.bench.homing.webhooks.maintenance
        self.now = 0.0
        self.rows: dict[int, Row] = {}
        self.places = count()
        self.paused_until: dict[str, float] = {}
        #: Claims that have an attempt: each has one, whoever writes it.
        self.recorded: set[tuple[int, int]] = set()
        #: Every claim that was ever given out, the forgotten ones of dead workers too.
        self.claims: list[Claim[Job]] = []

    @initialize()
    def start_empty(self) -> None:
        for table in ("dispatch_job", "dispatch_attempt", "homing_target"):
            self.opened.run(self.bench.tables.delete(table))
        self.bench.forget_targets()
        # What an earlier walk left claimed would count against the targets of this one.
        self.jobs._holdings._held.clear()

    # ── orders ───────────────────────────────────────────────────────────────────────────────────

    @rule(
        groups=st.lists(st.sampled_from((None, *GROUPS)), min_size=1, max_size=4),
        url=st.sampled_from(URLS),
        time_to_live=st.sampled_from(TIMES_TO_LIVE),
        schedule=st.sampled_from(SCHEDULES),
    )
    def create(
        self, groups: list[str | None], url: str, time_to_live: float | None, schedule: float | None
    ) -> None:
        orders = [
            job(
                url,
                group_id=group,
                ordering="none" if group is None else "group",
                max_retries=MAX_RETRIES,
                retry_strategy="fixed",
                expires_at=_moment(time_to_live),
                scheduled_for=_moment(schedule),
            )
            for group in groups
        ]
        created = self.opened.run(self.bench.order(orders))
        for group, one in zip(groups, created, strict=True):
            assert one.verdict == "created"
            expires = None if time_to_live is None else self.now + time_to_live
            due = self.now + (schedule or 0.0)
            row = Row(url, group, next(self.places), due, expires, ready=group is None, scheduled=due)
            self.rows[one.id] = row
        self._promote(groups)

    @precondition(lambda self: self.rows)
    @rule(picks=several)
    def requeue(self, picks: list[int]) -> None:
        ids = self._pick_ids(picks)
        ended = sorted({id for id in ids if self.rows[id].status in {"ERROR", "CANCELLED"}})
        assert sorted(self.opened.run(self.jobs.requeue(ids))) == ended
        for row in (self.rows[id] for id in ended):
            row.status, row.due, row.before = "PENDING", max(self.now, row.scheduled), row.attempts
            row.rescues = row.deferrals = 0
            row.expires = None if row.expires is None or row.expires <= self.now else row.expires
            row.ready, row.place = row.group is None, next(self.places)
        self._promote(self.rows[id].group for id in ids)

    @precondition(lambda self: self.rows)
    @rule(picks=several)
    def cancel(self, picks: list[int]) -> None:
        ids = self._pick_ids(picks)
        waiting = sorted({id for id in ids if self.rows[id].status in OPEN})
        assert sorted(self.opened.run(self.jobs.cancel(ids))) == waiting
        for id in waiting:
            self.rows[id].status = "CANCELLED"
        self._promote(self.rows[id].group for id in ids)

    @precondition(lambda self: self.rows)
    @rule(pick=st.integers(0, 200))
    def cancel_by_hand(self, pick: int) -> None:
        """Somebody with a console tells nobody; when it was a head, its group is stuck for a while."""
        (id,) = self._pick_ids([pick])
        if self.rows[id].status in OPEN:
            self.opened.run(self.bench.change(id, status="CANCELLED"))
            self.rows[id].status = "CANCELLED"

    def _pick_ids(self, picks: list[int]) -> list[int]:
        known = list(self.rows)
        return [known[pick % len(known)] for pick in picks]

    def _promote(self, groups: Iterable[str | None]) -> None:
        """The first of a group is ready, unless one is already."""
        for group in set(groups) - {None}:
            live = [row for row in self.rows.values() if row.group == group and row.status in LIVE]
            if live and not any(row.ready for row in live):
                min(live, key=lambda row: row.place).ready = True

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    @rule(limit=st.sampled_from((1, 2, 5, EVERYTHING)))
    def claim(self, limit: int) -> None:
        due = {id: row for id, row in self.rows.items() if self._is_due(row)}
        claims = self.opened.run(self.bench.claim(limit))
        taken = {claim.id for claim in claims}
        assert taken <= set(due)
        assert len(taken) == len(claims) <= limit
        assert bool(taken) == bool(due), "something, where there is something"
        assert limit < EVERYTHING or taken == set(due)
        self._assert_earliest(due, taken)
        for claim in claims:
            self._hand_over(claim)

    def _is_due(self, row: Row) -> bool:
        open_ = row.status in OPEN and row.ready and row.due <= self.now
        return open_ and self.paused_until.get(row.url, 0.0) <= self.now

    def _assert_earliest(self, due: dict[int, Row], taken: set[int]) -> None:
        """Of each target those that were due first."""
        for url in URLS:
            mine = [due[id].due for id in taken if due[id].url == url]
            left = [row.due for id, row in due.items() if id not in taken and row.url == url]
            assert max(mine, default=0.0) <= min(left, default=self.now)

    def _hand_over(self, claim: Claim[Job]) -> None:
        row = self.rows[claim.id]
        assert claim.fence == row.fence + 1, "the fence only rises"
        assert (claim.attempts, claim.deferrals) == (row.attempts - row.before, row.deferrals)
        assert bool(claim.item.expired) == (row.expires is not None and row.expires <= self.now)
        assert claim.item.ordered_group == row.group
        row.status, row.fence, row.lease = "IN_PROGRESS", claim.fence, self.now + LEASE
        self.claims.append(claim)

    @precondition(lambda self: self.claims)
    @rule(picks=several, kinds=st.lists(st.sampled_from(SETTLEMENTS), min_size=6, max_size=6))
    def settle(self, picks: list[int], kinds: list[Settlement]) -> None:
        batch = dict(zip(self._pick_claims(picks), kinds, strict=False))
        owned = {key: settlement for key, settlement in batch.items() if self._owns(self.claims[key])}
        settled = self.opened.run(self.jobs.settle([(self.claims[key], batch[key]) for key in batch]))
        self.opened.run(self.jobs.judged())
        assert settled == {self.claims[key].id for key in owned}
        for key, settlement in batch.items():
            self._note_attempt(self.claims[key], settlement, is_late=key not in owned)
        for key, settlement in owned.items():
            self._write(self.rows[self.claims[key].id], settlement)
        ending = [key for key, settlement in batch.items() if not isinstance(settlement, RetryIn)]
        self._promote(self.rows[self.claims[key].id].group for key in ending)

    @precondition(lambda self: self.claims)
    @rule(picks=several)
    def renew(self, picks: list[int]) -> None:
        claims = [self.claims[key] for key in self._pick_claims(picks)]
        owned = {claim.id for claim in claims if self._owns(claim)}
        assert self.opened.run(self.jobs.renew(claims)) == owned
        for id in owned:
            self.rows[id].lease = self.now + LEASE

    @precondition(lambda self: self.claims)
    @rule(picks=several)
    def release(self, picks: list[int]) -> None:
        claims = [self.claims[key] for key in self._pick_claims(picks)]
        owned = {claim.id for claim in claims if self._owns(claim)}
        assert self.opened.run(self.jobs.release(claims)) == owned
        for id in owned:
            self.rows[id].status, self.rows[id].lease = self.rows[id].open_status, None

    def _pick_claims(self, picks: list[int]) -> list[int]:
        """Places in `claims`, mostly of the latest ones, each once."""
        latest = len(self.claims)
        return list(dict.fromkeys(latest - 1 - pick % min(latest, 12) for pick in picks))

    def _owns(self, claim: Claim[Job]) -> bool:
        row = self.rows[claim.id]
        return row.status == "IN_PROGRESS" and row.fence == claim.fence

    def _note_attempt(self, claim: Claim[Job], settlement: Settlement, *, is_late: bool) -> None:
        """A late result replaces the row of its claim, or is an attempt more, and changes nothing else."""
        made = (claim.id, claim.fence)
        if _is_charged(settlement) and made not in self.recorded:
            self.recorded.add(made)
            self.rows[claim.id].attempts += is_late

    def _write(self, row: Row, settlement: Settlement) -> None:
        charged = _is_charged(settlement)
        row.lease = None
        row.attempts += charged
        deferred = isinstance(settlement, RetryIn) and not charged
        row.deferrals = row.deferrals + 1 if deferred else 0
        match settlement:
            case Complete():
                row.status = "COMPLETED"
            case RetryIn(delay=delay):
                row.status, row.due = row.open_status, self.now + delay
            case _:
                row.status = "ERROR"

    # ── targets ──────────────────────────────────────────────────────────────────────────────────

    @rule(url=st.sampled_from(URLS))
    def pause(self, url: str) -> None:
        until = datetime.now(UTC) + timedelta(seconds=A_PAUSE)
        moment = self.bench.time(until)
        self.opened.run(self.jobs.run("pause_target", target=_target(url), until=moment, reason="x"))
        self.paused_until[url] = self.now + A_PAUSE

    @rule(url=st.sampled_from(URLS))
    def resume(self, url: str) -> None:
        self.opened.run(self.jobs.run("resume_target", target=_target(url)))
        self.paused_until.pop(url, None)

    # ── time, and what it brings ─────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from(STEPS))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.opened.run(self.bench.pass_time(seconds))

    @rule()
    def rescue(self) -> None:
        self.opened.run(self.maintenance.rescue())
        for id, row in self.rows.items():
            if row.status == "IN_PROGRESS" and row.lease is not None and row.lease < self.now:
                self._rescue_row(id, row)

    def _rescue_row(self, id: int, row: Row) -> None:
        self.recorded.add((id, row.fence))
        row.rescues += 1
        row.fence += 1
        if row.rescues <= FREE_RESCUES:
            row.status, row.due, row.lease = row.open_status, self.now, None
            row.attempts += 1
            row.before += 1
            return
        dead = row.attempts - row.before + 1 >= MAX_RETRIES
        self._write(row, Bury(FAILURE) if dead else RetryIn(BASE, FAILURE))
        if dead:
            self._promote([row.group])

    @rule()
    def sweep(self) -> None:
        self.jobs._chores_at = 0.0
        self.opened.run(self.maintenance.sweep())
        for row in self.rows.values():
            if row.status in OPEN and row.expires is not None and row.expires <= self.now:
                row.status = "ERROR"
        self._promote(GROUPS)

    # ── stories that chance alone would seldom tell ──────────────────────────────────────────────

    @rule(times=st.integers(1, 4))
    def lose_workers(self, times: int) -> None:
        """Who claims dies, again and again; then one claims whose rows others still believe to own."""
        for _ in range(times):
            self.claim(EVERYTHING)
            self.pass_time(STEPS[-1])
            self.rescue()
        self.claim(EVERYTHING)

    @rule(times=st.integers(1, MAX_RETRIES), group=st.sampled_from((None, *GROUPS)))
    def fail_again_and_again(self, times: int, group: str | None) -> None:
        self.create([group], URLS[0], None, None)
        for _ in range(times):
            first = len(self.claims)
            self.claim(5)
            taken = len(self.claims) - first
            if taken:
                self.settle(list(range(taken)), [RetryIn(100.0, FAILURE)] * 6)
            self.pass_time(140.0)

    @rule(group=st.sampled_from(GROUPS))
    def cancel_and_requeue_some_of_a_group(self, group: str) -> None:
        """Those who were first stand last then, behind one that came meanwhile."""
        first = len(self.rows)
        self.create([group] * 3, URLS[0], None, None)
        self.cancel([first, first + 1])
        self.create([group], URLS[1], None, None)
        self.requeue([first + 1, first])

    @precondition(lambda self: self.rows)
    @rule(pick=st.integers(0, 200))
    def cancel_what_is_under_way(self, pick: int) -> None:
        self.claim(EVERYTHING)
        self.cancel([pick, pick + 1, pick + 2])

    # ── always ───────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def every_job_is_as_the_model_says(self) -> None:
        found = self.opened.run(self.bench.tables.rows("dispatch_job"))
        attempts = self.opened.run(self.bench.tables.rows("dispatch_attempt"))
        numbers = Counter(row["dispatch_job_id"] for row in attempts)
        shown = {row["id"]: _shown(row) for row in found}
        assert shown == {id: row.shown() for id, row in self.rows.items()}
        for row in found:
            assert numbers[row["id"]] == row["attempt_count"], "each attempt is a row"
            assert (row["locked_by"] is not None) == (row["lease_expires_at"] is not None)

    @invariant()
    def a_group_has_one_that_is_ready_and_no_other_is_under_way(self) -> None:
        for group in GROUPS:
            live = [row for row in self.rows.values() if row.group == group and row.status in LIVE]
            assert sum(row.ready for row in live) <= 1
            assert all(row.ready for row in live if row.status == "IN_PROGRESS")

    @invariant()
    def a_claim_has_one_holder(self) -> None:
        assert len({(claim.id, claim.fence) for claim in self.claims}) == len(self.claims)

    @invariant()
    def counts_agree(self) -> None:
        counts = self.opened.run(self.jobs.counts())
        statuses = [row.status for row in self.rows.values()]
        assert counts == {state: statuses.count(state) for state in counts}


def _is_charged(settlement: Settlement) -> bool:
    return isinstance(settlement, Complete) or getattr(settlement, "charged", False)


def _shown(row: dict[str, Any]) -> tuple[Any, ...]:
    ready = bool(row["ready"]) if row["status"] in LIVE else None
    counts = ("claim_seq", "attempt_count", "attempts_before", "rescue_count", "defer_count")
    return row["status"], ready, row["lease_expires_at"] is not None, *(row[name] for name in counts)


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else iso(datetime.now(UTC) + timedelta(seconds=seconds))


def _target(url: str) -> str:
    return url.removesuffix("/") + ":443"


@contextmanager
def opened_store(url: str) -> Iterator[Opened]:
    waits = {"jobs_backoff_base_seconds": BASE, "jobs_lease_seconds": LEASE}
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        opened = runner.run(stack.enter_async_context(job_bench(url, **waits)))
        try:
            yield Opened(runner, opened)
        finally:
            runner.run(stack.aclose())


WALKS = settings(max_examples=25, stateful_step_count=40)
#: A step on MongoDB takes six times as long as one on SQLite.
FEWER_WALKS = WALKS if IN_FULL else settings(WALKS, max_examples=12)


def walk(opened: Opened, chosen: settings = WALKS) -> None:
    class OnThisStore(JobsMachine):
        def __init__(self) -> None:
            super().__init__(opened)

    run_state_machine_as_test(OnThisStore, settings=chosen)


@pytest.mark.slow
@pytest.mark.clause("JOB-09", "JOB-19", "JOB-21")
def test_the_jobs_are_what_the_model_says(jobs_database_url: str) -> None:
    with opened_store(jobs_database_url) as opened:
        walk(opened, FEWER_WALKS if opened.bench.homing.jobs_database.dialect == "mongodb" else WALKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "right", "wrong"),
    [
        ("settle", "AND dispatch_job.claim_seq = batch.fence", ""),
        ("settle", "AND json_extract(b.value, '$.counted') = 1", ""),
        ("release", "WHEN attempt_count <= attempts_before THEN 'PENDING'", "WHEN true THEN 'PENDING'"),
        ("rescue", "attempts_before = attempts_before + 1,", ""),
        ("record_late", "NOT EXISTS", "EXISTS"),
        ("rescue", "rescue_count < 3", "rescue_count < 2"),
        ("cancel", "IN ('PENDING', 'FAILED')", "IN ('PENDING', 'FAILED', 'IN_PROGRESS')"),
        ("requeue", "attempts_before = attempt_count,", ""),
        ("requeue", "coalesce(max(j.position), 0) + 1", "coalesce(min(j.position), 0) - 1"),
        ("promote", "ORDER BY j.position LIMIT 1", "ORDER BY j.position DESC LIMIT 1"),
        ("claim", "claim_seq = claim_seq + 1", "claim_seq = max(claim_seq, 1)"),
    ],
)
def test_a_store_with_a_mistake_is_caught(sqlite_url: str, query: str, right: str, wrong: str) -> None:
    """The test of the test: each of these mistakes has to be found."""
    with opened_store(sqlite_url) as opened:
        queries = dict(opened.bench.jobs._queries)
        assert right in queries[query].sql
        queries[query] = replace(queries[query], sql=queries[query].sql.replace(right, wrong))
        opened.bench.jobs._queries = queries
        # It ends with the first walk that finds the mistake, so many may be tried.
        many = settings(WALKS, max_examples=300, derandomize=True, database=None, phases=[Phase.generate])
        # The model finds it, or a constraint of the table that the model knows nothing of.
        with pytest.raises((AssertionError, Refused)):
            walk(opened, many)
