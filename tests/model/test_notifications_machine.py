"""The store of `open_event_notifications` against a model of it, step by random step, beside another program.

Two workers of ours claim, settle, renew, release and die; a foreign worker locks and ends rows, and operators
requeue rows and clear locks by plain SQL, all with the columns of the contract alone. After each step every
row is what the model says. A claim that was ever given out may be used at any later time.
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
from tests.notifications import NotificationBench, notification_bench

from homing.engine.model import Bury, Claim, Complete, Discard, Failure, RetryIn, Settlement
from homing.lanes.open_events.lane import transition
from homing.lanes.open_events.notification import Notification, Terms
from homing.lanes.open_events.notifications import Notifications

Result = TypeVar("Result")

TTL = 120.0
FAILURE = Failure("network_error", "gone")
OWNERS = ("worker-1", "worker-2")
FOREIGN = "their-worker"
#: No sum of steps equals a delay or the time of a lock, so the milliseconds that really pass decide nothing.
STEPS = (70.0, 140.0, 1000.0)
SETTLEMENTS: tuple[Settlement, ...] = (
    Complete(),
    RetryIn(100.0, FAILURE),
    RetryIn(0.0, FAILURE),
    RetryIn(100.0, FAILURE, charged=False),
    Bury(FAILURE),
    Discard(FAILURE),
)
TABLES = ("open_event_notifications", "subscription_events", "subscriptions", "open_events")

several = st.lists(st.integers(0, 200), min_size=1, max_size=6)
owners = st.sampled_from(OWNERS)


@dataclass
class Row:
    status: str = "pending"
    attempts: int = 0
    fence: int = 0
    owner: str | None = None
    locked: float | None = None
    #: What only our workers know: when it is due, for how many attempts that holds, and their own lock.
    due: float | None = None
    due_attempts: int | None = None
    written: float | None = None
    #: There is something in `error`.
    word: bool = False
    told_sent: int = 0

    def shown(self) -> tuple[Any, ...]:
        return self.status, self.attempts, self.fence, self.owner, self.locked is not None, self.told_sent

    def is_locked(self, now: float) -> bool:
        return self.locked is not None and self.locked > now - TTL

    def is_due(self, now: float) -> bool:
        """Whatever another program has done to a row that waits makes it due at once."""
        unlocked = self.written is not None and self.locked is None
        requeued = self.written is None and not self.word
        changed = self.due_attempts != self.attempts or unlocked or requeued
        waits = self.due is not None and self.due > now and not changed
        return self.status == "pending" and not self.is_locked(now) and not waits

    def unlock(self) -> None:
        self.owner = self.locked = None


@dataclass
class Opened:
    """A real database with two workers on it, and the loop that they live in."""

    runner: asyncio.Runner
    bench: NotificationBench
    stores: dict[str, Notifications]

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    def sql(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        return self.run(self.bench.other.sql(statement, **parameters))


class NotificationsMachine(RuleBasedStateMachine):
    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.opened = opened
        self.now = 0.0
        self.rows: dict[int, Row] = {}
        #: Every claim that was ever given out, with its owner; the forgotten ones of dead workers too.
        self.claims: list[tuple[str, Claim[Notification]]] = []

    @initialize()
    def start_empty(self) -> None:
        for table in TABLES:
            self.opened.sql(f"DELETE FROM {table} RETURNING 1 AS one")

    @rule(count=st.integers(1, 3))
    def produce(self, count: int) -> None:
        for _ in range(count):
            self.rows[self.opened.run(self.opened.bench.notification())] = Row()

    # ── our workers ──────────────────────────────────────────────────────────────────────────────

    @rule(owner=owners, limit=st.integers(1, 5))
    def claim(self, owner: str, limit: int) -> None:
        due = {one for one, row in self.rows.items() if row.is_due(self.now)}
        claims = self.opened.run(self.opened.stores[owner].claim(limit))
        assert {claim.id for claim in claims} <= due
        assert len(claims) == min(limit, len(due))
        for claim in claims:
            self._hand_over(owner, claim)

    def _hand_over(self, owner: str, claim: Claim[Notification]) -> None:
        row = self.rows[claim.id]
        assert claim.fence == row.fence + 1, "the fence only rises"
        assert claim.attempts == row.attempts, "a claim costs no attempt"
        row.fence, row.owner, row.locked, row.written = claim.fence, owner, self.now, self.now
        row.due, row.due_attempts = self.now + TTL, row.attempts
        self.claims.append((owner, claim))

    @precondition(lambda self: self.claims)
    @rule(owner=owners, picks=several, kinds=st.lists(st.sampled_from(SETTLEMENTS), min_size=6, max_size=6))
    def settle(self, owner: str, picks: list[int], kinds: list[Settlement]) -> None:
        batch = list(zip(self._pick_claims(owner, picks), kinds, strict=False))
        owned = [(claim, settlement) for claim, settlement in batch if self._owns(owner, claim)]
        assert self.opened.run(self.opened.stores[owner].settle(batch)) == {claim.id for claim, _ in owned}
        for claim, settlement in owned:
            self._write(self.rows[claim.id], claim, settlement)

    @precondition(lambda self: self.claims)
    @rule(owner=owners, picks=several)
    def renew(self, owner: str, picks: list[int]) -> None:
        claims = self._pick_claims(owner, picks)
        owned = {claim.id for claim in claims if self._owns(owner, claim)}
        assert self.opened.run(self.opened.stores[owner].renew(claims)) == owned
        for row in (self.rows[one] for one in owned):
            row.locked, row.written, row.due = self.now, self.now, self.now + TTL

    @precondition(lambda self: self.claims)
    @rule(owner=owners, picks=several)
    def release(self, owner: str, picks: list[int]) -> None:
        claims = self._pick_claims(owner, picks)
        owned = {claim.id for claim in claims if self._owns(owner, claim)}
        assert self.opened.run(self.opened.stores[owner].release(claims)) == owned
        for row in (self.rows[one] for one in owned):
            row.unlock()
            row.written = row.due = row.due_attempts = None

    def _pick_claims(self, owner: str, picks: list[int]) -> list[Claim[Notification]]:
        """Mostly the latest ones of a worker, each once."""
        own = [claim for whose, claim in self.claims if whose == owner][-12:]
        return [own[place] for place in dict.fromkeys(pick % len(own) for pick in picks)] if own else []

    def _owns(self, owner: str, claim: Claim[Notification]) -> bool:
        """By what anybody can see, so that a foreign worker's lock counts as well."""
        row = self.rows[claim.id]
        ours = row.locked is not None and row.locked == row.written
        return row.status == "pending" and (row.owner, row.fence) == (owner, claim.fence) and ours

    def _write(self, row: Row, claim: Claim[Notification], settlement: Settlement) -> None:
        charged = getattr(settlement, "charged", True)
        row.attempts += charged
        # Who waits for the first attempt says why; later the word of the last attempt stays.
        row.word = row.word or charged or not claim.item.has_error
        row.unlock()
        row.written = row.due = row.due_attempts = None
        match settlement:
            case Complete():
                row.status, row.told_sent = "sent", row.told_sent + 1
            case RetryIn(delay=delay) if delay:
                row.due, row.due_attempts = self.now + delay, row.attempts
            case Bury():
                row.status = "failed"
            case Discard():
                row.status = "skipped"

    # ── other programs, by plain SQL ─────────────────────────────────────────────────────────────

    @precondition(lambda self: self.rows)
    @rule(picks=several)
    def requeue_by_hand(self, picks: list[int]) -> None:
        """NTF-16, also of what waits or is locked; not of what was sent, which would be sent again."""
        for one in self._pick_rows(picks):
            row = self.rows[one]
            if row.status != "sent":
                self._change(one, fanout_status="pending", fanout_attempts=0, error=None)
                row.status, row.attempts, row.word = "pending", 0, False

    @precondition(lambda self: self.rows)
    @rule(picks=several)
    def clear_locks_by_hand(self, picks: list[int]) -> None:
        for one in self._pick_rows(picks):
            if self.rows[one].status == "pending":
                self._change(one, locked_by=None, locked_at=None)
                self.rows[one].unlock()

    @precondition(lambda self: self.rows)
    @rule(picks=several)
    def be_locked_by_a_foreign_worker(self, picks: list[int]) -> None:
        for one in self._pick_rows(picks):
            row = self.rows[one]
            if row.status == "pending" and not row.is_locked(self.now):
                self._lock_for_them(one)
                row.owner, row.locked = FOREIGN, self.now

    @precondition(lambda self: self.rows)
    @rule(picks=several, status=st.sampled_from(["pending", "sent", "failed"]))
    def be_settled_by_a_foreign_worker(self, picks: list[int], status: str) -> None:
        for one in self._pick_rows(picks):
            row = self.rows[one]
            if row.status == "pending" and row.owner == FOREIGN:
                attempts = row.attempts + 1
                self._change(
                    one, fanout_status=status, fanout_attempts=attempts, locked_by=None, locked_at=None
                )
                row.status, row.attempts = status, attempts
                row.unlock()

    def _pick_rows(self, picks: list[int]) -> list[int]:
        known = list(self.rows)
        return list(dict.fromkeys(known[pick % len(known)] for pick in picks))

    def _change(self, one: int, **columns: Any) -> None:
        self.opened.run(self.opened.bench.other.change(one, **columns))

    def _lock_for_them(self, one: int) -> None:
        """By the database's clock, and as most programs write a time."""
        now = "now()" if self.opened.bench.other.dialect == "postgres" else "datetime('now')"
        self.opened.sql(
            f"UPDATE open_event_notifications SET locked_by = :who, locked_at = {now} "
            "WHERE notification_id = :id RETURNING 1 AS one",
            who=FOREIGN, id=one,
        )  # fmt: skip

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from(STEPS))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        columns = ("locked_at", "lock_written_at", "due_at")
        form = (
            "{0} - make_interval(secs => :s)"
            if self.opened.bench.other.dialect == "postgres"
            else "strftime('%Y-%m-%dT%H:%M:%fZ', {0}, printf('%+.3f seconds', -:s))"
        )
        changes = ", ".join(f"{column} = {form.format(column)}" for column in columns)
        self.opened.sql(f"UPDATE open_event_notifications SET {changes} RETURNING 1 AS one", s=seconds)

    @rule(owner=owners)
    def lose_a_worker(self, owner: str) -> None:
        """It claims and dies; the other one takes over, and the dead one's claims come too late."""
        self.claim(owner, 5)
        self.pass_time(STEPS[1])
        self.claim(OWNERS[owner == OWNERS[0]], 5)

    @rule(owner=owners, times=st.integers(1, 3))
    def fail_again_and_again(self, owner: str, times: int) -> None:
        for _ in range(times):
            before = len(self.claims)
            self.claim(owner, 5)
            if taken := len(self.claims) - before:
                own = min(12, sum(whose == owner for whose, _ in self.claims))
                self.settle(owner, list(range(own - taken, own)), [RetryIn(0.0, FAILURE)] * 6)

    # ── always ───────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def every_row_is_as_the_model_says(self) -> None:
        found = self.opened.sql(
            "SELECT n.notification_id, n.fanout_status, n.fanout_attempts, "
            "coalesce(n.claim_seq, 0) AS fence, n.locked_by, n.locked_at IS NOT NULL AS locked, "
            "(SELECT count(*) FROM subscription_events AS t "
            " WHERE t.subscription_id = n.subscription_id AND t.event_type = 'notify_sent') AS told "
            "FROM open_event_notifications AS n"
        )
        shown = {
            row["notification_id"]: (
                row["fanout_status"], row["fanout_attempts"], row["fence"], row["locked_by"],
                bool(row["locked"]), row["told"],
            )
            for row in found
        }  # fmt: skip
        assert shown == {one: row.shown() for one, row in self.rows.items()}

    @invariant()
    def a_claim_has_one_holder_and_a_row_is_told_once(self) -> None:
        assert len({(claim.id, claim.fence) for _, claim in self.claims}) == len(self.claims)
        assert all(row.told_sent <= 1 for row in self.rows.values())


@contextmanager
def opened_store(url: str) -> Iterator[Opened]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        bench = runner.run(stack.enter_async_context(notification_bench(url)))
        stores = {
            owner: Notifications(bench.database, transition, terms=Terms(owner, TTL, 1e9)) for owner in OWNERS
        }
        try:
            yield Opened(runner, bench, stores)
        finally:
            runner.run(stack.aclose())


WALKS = settings(max_examples=30, stateful_step_count=40)


def walk(opened: Opened, chosen: settings = WALKS) -> None:
    class OnThisStore(NotificationsMachine):
        def __init__(self) -> None:
            super().__init__(opened)

    run_state_machine_as_test(OnThisStore, settings=chosen)


@pytest.mark.slow
@pytest.mark.clause("NTF-01", "NTF-02", "NTF-03", "NTF-16", "NTF-17")
def test_notifications_are_what_the_model_says(database_url: str) -> None:
    with opened_store(database_url) as opened:
        walk(opened)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "right", "wrong"),
    [
        ("settle", "n.claim_seq = b.fence AND ", ""),
        # Either of the two tells a foreign worker's lock from ours, so both have to go.
        ("settle", "n.locked_by = :owner AND n.locked_at = n.lock_written_at AND ", ""),
        ("settle", "max(0, CAST(coalesce(n.fanout_attempts, 0) AS INTEGER)), 30000) + b.charged", "1, 1)"),
        ("claim", "SET claim_seq", "SET fanout_attempts = fanout_attempts + 1, claim_seq"),
        (
            "claim",
            "lock_written_at IS NULL AND error IS NULL)",
            "lock_written_at IS NULL AND error IS NULL) AND due_attempts IS NOT fanout_attempts",
        ),
        ("claim", " OR lock_written_at IS NULL AND error IS NULL", ""),
        ("renew", "n.claim_seq = b.fence AND ", ""),
        ("release", "SET locked_by", "SET fanout_attempts = fanout_attempts + 1, locked_by"),
    ],
)
def test_a_store_with_a_mistake_is_caught(sqlite_url: str, query: str, right: str, wrong: str) -> None:
    """The test of the test: each of these mistakes has to be found."""
    with opened_store(sqlite_url) as opened:
        for store in opened.stores.values():
            queries = dict(store._queries)
            assert right in queries[query].sql
            queries[query] = replace(queries[query], sql=queries[query].sql.replace(right, wrong))
            store._queries = queries
        # It ends with the first walk that finds the mistake, so many may be tried.
        many = settings(WALKS, max_examples=300, derandomize=True, database=None, phases=[Phase.generate])
        with pytest.raises(AssertionError):
            walk(opened, many)
