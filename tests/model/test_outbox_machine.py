"""The store of `mail_outbox` against a model of it in plain Python, step by random step.

Several workers claim, settle, renew, release and die; time passes; rows are rescued, swept, requeued
and cancelled. After each step every row is what the model says. A claim that was ever given out may be
used at any later time, so most settlements that are tried here come from workers that are late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
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
from tests.outbox import Bench, bench

from homing.engine.model import Bury, Claim, Complete, Discard, Failure, RetryIn, Settlement
from homing.lanes.mail_outbox.mail import Mail

Result = TypeVar("Result")

MAX_ATTEMPTS, LEASE, BASE = 5, 120.0, 30.0
FREE_RESCUES = 3
FAILURE = Failure("network_error", "gone")
#: No sum of steps equals a delay, a lease or a time to live, so the milliseconds that really pass decide
#: nothing.
STEPS = (70.0, 140.0, 1000.0)
TIMES_TO_LIVE = (None, None, 200.0, 600.0)
SETTLEMENTS: tuple[Settlement, ...] = (
    Complete(),
    RetryIn(100.0, FAILURE),
    RetryIn(100.0, FAILURE, charged=False),
    Bury(FAILURE),
    Bury(FAILURE, charged=False),
    Discard(FAILURE),
)
ENDED = {"sent", "failed", "cancelled", "expired"}

several = st.lists(st.integers(0, 200), min_size=1, max_size=6)


@dataclass
class Row:
    due: float
    expires: float | None
    status: str = "queued"
    lease: float | None = None
    fence: int = 0
    retries: int = 0
    rescues: int = 0
    deferrals: int = 0
    #: Queued after its end, and not claimed since: then it does not expire.
    is_back: bool = False

    def shown(self) -> tuple[Any, ...]:
        return self.status, self.fence, self.retries, self.rescues, self.deferrals, self.lease is not None


@dataclass
class Opened:
    """A real store, and the loop that it lives in."""

    runner: asyncio.Runner
    bench: Bench

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)


class OutboxMachine(RuleBasedStateMachine):
    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.opened = opened
        self.outbox = opened.bench.outbox
        self.maintenance = opened.bench.homing.mail.maintenance
        self.now = 0.0
        self.rows: dict[int, Row] = {}
        #: Every claim that was ever given out, the forgotten ones of dead workers too.
        self.claims: list[Claim[Mail]] = []

    @initialize()
    def start_empty(self) -> None:
        self.opened.run(self.opened.bench.sql("DELETE FROM mail_outbox RETURNING 1 AS one"))

    # ── orders ───────────────────────────────────────────────────────────────────────────────────

    @rule(count=st.integers(1, 3), time_to_live=st.sampled_from(TIMES_TO_LIVE))
    def insert(self, count: int, time_to_live: float | None) -> None:
        for one in self.opened.run(self.opened.bench.insert(count)):
            assert one not in self.rows
            self.rows[one] = Row(self.now, None if time_to_live is None else self.now + time_to_live)
            if time_to_live is not None:
                self.opened.run(_expire_in(self.opened.bench, one, time_to_live))

    @precondition(lambda self: self.rows)
    @rule(picks=several)
    def requeue(self, picks: list[int]) -> None:
        ids = self._pick_ids(picks)
        ended = {one for one in ids if self.rows[one].status in {"failed", "cancelled", "expired"}}
        assert set(self.opened.run(self.outbox.requeue(ids))) == ended
        for row in (self.rows[one] for one in ended):
            row.status, row.due, row.retries, row.rescues, row.deferrals = "queued", self.now, 0, 0, 0
            row.is_back = True

    @precondition(lambda self: self.rows)
    @rule(picks=several)
    def put_back(self, picks: list[int]) -> None:
        """By plain SQL, as a person does it, and what was sent, too."""
        for one in dict.fromkeys(self._pick_ids(picks)):
            row = self.rows[one]
            if row.status in ENDED:
                self.opened.run(_put_back(self.opened.bench, one))
                row.status, row.due, row.retries, row.is_back = "queued", self.now, 0, True

    @precondition(lambda self: self.rows)
    @rule(picks=several)
    def cancel(self, picks: list[int]) -> None:
        ids = self._pick_ids(picks)
        waiting = {one for one in ids if self.rows[one].status == "queued"}
        assert set(self.opened.run(self.outbox.cancel(ids))) == waiting
        for one in waiting:
            self.rows[one].status = "cancelled"

    def _pick_ids(self, picks: list[int]) -> list[int]:
        known = list(self.rows)
        return [known[pick % len(known)] for pick in picks]

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    @rule(limit=st.integers(1, 5))
    def claim(self, limit: int) -> None:
        due = {one: row for one, row in self.rows.items() if self._is_due(row)}
        claims = self.opened.run(self.outbox.claim(limit))
        taken = {claim.id for claim in claims}
        assert taken <= set(due)
        assert len(claims) == len(taken) == min(limit, len(due))
        left = [row.due for one, row in due.items() if one not in taken]
        assert max((due[one].due for one in taken), default=0) <= min(left, default=self.now)
        for claim in claims:
            self._hand_over(claim)

    def _is_due(self, row: Row) -> bool:
        return row.status == "queued" and row.due <= self.now and row.retries < MAX_ATTEMPTS

    def _hand_over(self, claim: Claim[Mail]) -> None:
        row = self.rows[claim.id]
        assert claim.fence == row.fence + 1, "the fence only rises"
        assert (claim.attempts, claim.deferrals) == (row.retries, row.deferrals)
        if row.is_back and row.expires is not None and row.expires <= self.now:
            row.expires = None
        row.is_back = False
        assert bool(claim.item.expired) == (row.expires is not None and row.expires <= self.now)
        row.status, row.fence, row.lease = "dispatching", claim.fence, self.now + LEASE
        self.claims.append(claim)

    @precondition(lambda self: self.claims)
    @rule(picks=several, kinds=st.lists(st.sampled_from(SETTLEMENTS), min_size=6, max_size=6))
    def settle(self, picks: list[int], kinds: list[Settlement]) -> None:
        batch = dict(zip(self._pick_claims(picks), kinds, strict=False))
        owned = {key: settlement for key, settlement in batch.items() if self._owns(self.claims[key])}
        settled = self.opened.run(self.outbox.settle([(self.claims[key], batch[key]) for key in batch]))
        assert settled == {self.claims[key].id for key in owned}
        for key, settlement in owned.items():
            self._write(self.rows[self.claims[key].id], settlement)

    @precondition(lambda self: self.claims)
    @rule(picks=several)
    def renew(self, picks: list[int]) -> None:
        claims = [self.claims[key] for key in self._pick_claims(picks)]
        owned = {claim.id for claim in claims if self._owns(claim)}
        assert self.opened.run(self.outbox.renew(claims)) == owned
        for one in owned:
            self.rows[one].lease = self.now + LEASE

    @precondition(lambda self: self.claims)
    @rule(picks=several)
    def release(self, picks: list[int]) -> None:
        claims = [self.claims[key] for key in self._pick_claims(picks)]
        owned = {claim.id for claim in claims if self._owns(claim)}
        assert self.opened.run(self.outbox.release(claims)) == owned
        for one in owned:
            self.rows[one].status, self.rows[one].lease = "queued", None

    def _pick_claims(self, picks: list[int]) -> list[int]:
        """Places in `claims`, mostly of the latest ones, each once."""
        latest = len(self.claims)
        return list(dict.fromkeys(latest - 1 - pick % min(latest, 12) for pick in picks))

    def _owns(self, claim: Claim[Mail]) -> bool:
        row = self.rows[claim.id]
        return row.status == "dispatching" and row.fence == claim.fence

    def _write(self, row: Row, settlement: Settlement) -> None:
        charged = getattr(settlement, "charged", False)
        row.lease = None
        row.retries += charged
        deferred = isinstance(settlement, RetryIn) and not charged
        row.deferrals = row.deferrals + 1 if deferred else 0
        match settlement:
            case Complete():
                row.status = "sent"
            case RetryIn(delay=delay):
                row.status, row.due = "queued", self.now + delay
            case Bury():
                row.status = "failed"
            case Discard():
                row.status = "expired"

    # ── time, and what it brings ─────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from(STEPS))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.opened.run(_age_all(self.opened.bench, seconds))

    @rule()
    def rescue(self) -> None:
        self.opened.run(self.maintenance.rescue())
        for row in self.rows.values():
            if row.status == "dispatching" and row.lease is not None and row.lease < self.now:
                self._rescue_row(row)

    def _rescue_row(self, row: Row) -> None:
        row.rescues += 1
        row.fence += 1
        if row.rescues <= FREE_RESCUES:
            row.status, row.due, row.lease = "queued", self.now, None
            return
        failures = row.retries + 1
        dead = failures >= MAX_ATTEMPTS
        self._write(row, Bury(FAILURE) if dead else RetryIn(BASE * 2**failures, FAILURE))

    @rule()
    def sweep(self) -> None:
        self.opened.run(self.maintenance.sweep())
        for row in self.rows.values():
            if row.status != "queued":
                continue
            if row.expires is not None and row.expires <= self.now and not row.is_back:
                row.status = "expired"
            elif row.retries >= MAX_ATTEMPTS:
                row.status = "failed"

    # ── stories that chance alone would seldom tell ──────────────────────────────────────────────

    @rule(times=st.integers(1, 4))
    def lose_workers(self, times: int) -> None:
        """Who claims dies, again and again; then one claims whose rows others still believe to own."""
        for _ in range(times):
            self.claim(5)
            self.pass_time(STEPS[-1])
            self.rescue()
        self.claim(5)

    @rule(times=st.integers(1, MAX_ATTEMPTS))
    def fail_again_and_again(self, times: int) -> None:
        for _ in range(times):
            first = len(self.claims)
            self.claim(5)
            taken = len(self.claims) - first
            if taken:
                self.settle(list(range(taken)), [RetryIn(100.0, FAILURE)] * 6)
            self.pass_time(140.0)

    # ── always ───────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def every_row_is_as_the_model_says(self) -> None:
        found = self.opened.run(
            self.opened.bench.sql(
                "SELECT id, status, claim_seq, retry_count, rescue_count, defer_count, "
                "lease_expires_at IS NOT NULL AS leased, locked_by IS NOT NULL AS locked FROM mail_outbox"
            )
        )
        shown = {row["id"]: (*tuple(row.values())[1:6], bool(row["leased"])) for row in found}
        assert shown == {one: row.shown() for one, row in self.rows.items()}
        assert all(bool(row["locked"]) is bool(row["leased"]) for row in found)

    @invariant()
    def a_claim_has_one_holder(self) -> None:
        assert len({(claim.id, claim.fence) for claim in self.claims}) == len(self.claims)
        assert all(row.lease is None for row in self.rows.values() if row.status in ENDED)

    @invariant()
    def counts_agree(self) -> None:
        counts = self.opened.run(self.outbox.counts())
        statuses = [row.status for row in self.rows.values()]
        assert counts == {state: statuses.count(state) for state in counts}


async def _age_all(opened: Bench, seconds: float) -> None:
    columns = ("next_attempt_at", "lease_expires_at", "expires_at")
    form = (
        "{0} - make_interval(secs => :s)"
        if opened.homing.database.dialect == "postgres"
        else "strftime('%Y-%m-%dT%H:%M:%fZ', {0}, printf('%+.3f seconds', -:s))"
    )
    changes = ", ".join(f"{column} = {form.format(column)}" for column in columns)
    await opened.sql(f"UPDATE mail_outbox SET {changes} RETURNING id", s=seconds)


async def _put_back(opened: Bench, id: int) -> None:
    now = "now()" if opened.homing.database.dialect == "postgres" else "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
    await opened.sql(
        f"UPDATE mail_outbox SET status = 'queued', retry_count = 0, next_attempt_at = {now} "
        "WHERE id = :id RETURNING id",
        id=id,
    )


async def _expire_in(opened: Bench, id: int, seconds: float) -> None:
    moment = (
        "now() + make_interval(secs => :s)"
        if opened.homing.database.dialect == "postgres"
        else "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', :s))"
    )
    await opened.sql(
        f"UPDATE mail_outbox SET expires_at = {moment} WHERE id = :id RETURNING id", s=seconds, id=id
    )


@contextmanager
def opened_store(url: str) -> Iterator[Opened]:
    limits = {"dispatch_max_attempts": MAX_ATTEMPTS, "dispatch_lease_seconds": LEASE}
    waits = {"dispatch_backoff_base_seconds": BASE, "dispatch_backoff_jitter": 0.0}
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        opened = runner.run(stack.enter_async_context(bench(url, **limits, **waits)))
        try:
            yield Opened(runner, opened)
        finally:
            runner.run(stack.aclose())


WALKS = settings(max_examples=60, stateful_step_count=40)


def walk(opened: Opened, chosen: settings = WALKS) -> None:
    class OnThisStore(OutboxMachine):
        def __init__(self) -> None:
            super().__init__(opened)

    run_state_machine_as_test(OnThisStore, settings=chosen)


@pytest.mark.slow
@pytest.mark.clause("OUT-01", "OUT-04", "OUT-12", "OUT-13", "OUT-15")
def test_the_outbox_is_what_the_model_says(database_url: str) -> None:
    with opened_store(database_url) as opened:
        walk(opened)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "right", "wrong"),
    [
        ("settle", " AND mail_outbox.claim_seq = batch.fence", ""),
        ("renew", " AND mail_outbox.claim_seq = batch.fence", ""),
        ("release", "SET status = 'queued',", "SET status = 'queued', retry_count = retry_count + 1,"),
        ("claim", "claim_seq = claim_seq + 1", "claim_seq = max(claim_seq, 1)"),
        ("rescue", "rescue_count < 3", "rescue_count < 2"),
        ("cancel", "AND status = 'queued'", "AND status IN ('queued', 'dispatching')"),
        ("requeue", "retry_count = 0, ", ""),
        ("sweep", "retry_count >= :max_attempts", "retry_count > :max_attempts"),
    ],
)
def test_a_store_with_a_mistake_is_caught(sqlite_url: str, query: str, right: str, wrong: str) -> None:
    """The test of the test: each of these mistakes has to be found."""
    with opened_store(sqlite_url) as opened:
        queries = dict(opened.bench.outbox._queries)
        assert right in queries[query].sql
        queries[query] = replace(queries[query], sql=queries[query].sql.replace(right, wrong))
        opened.bench.outbox._queries = queries
        # It ends with the first walk that finds the mistake, so many may be tried.
        many = settings(WALKS, max_examples=1000, derandomize=True, database=None, phases=[Phase.generate])
        with pytest.raises(AssertionError):
            walk(opened, many)
