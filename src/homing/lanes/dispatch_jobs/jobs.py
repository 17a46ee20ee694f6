"""The rows of `dispatch_job`: the engine's store, and the verbs that people and programs use on it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from homing.db import Database, Row, iso, load_queries
from homing.db.backlog import HeldBack, HeldTarget
from homing.db.store import SqlStore
from homing.db.tally import by_state
from homing.engine.coalesce import Coalescer
from homing.engine.model import (
    WORKER_LOST,
    Bury,
    Claim,
    Complete,
    Discard,
    Failure,
    Monotonic,
    RetryIn,
    Settlement,
)
from homing.errors import DatabaseError, Locked, Refused
from homing.lanes.dispatch_jobs.job import STATES, Job, NewJob, Report, job_of
from homing.lanes.dispatch_jobs.target import SEVERAL, Standing, Targets, endpoint_of
from homing.telemetry import Telemetry

CHANNEL = "homing_dispatch_job"

#: A claim looks at so many targets at most, and goes on from there the next time.
_MOST_TARGETS = 1000
#: Nobody reads a longer list of those that are held back. Of each so many jobs are counted.
MOST_HELD_BACK: Final = 100
_MOST_COUNTED: Final = 10_000
#: A target that took all it was offered is offered what others left over, so often.
_PASSES = 3
#: Of the jobs that are due first, and of those that are due last, one is found that tries a broken target.
_PROBES = 500
#: Chores that need not be done with every sweep.
_CHORES_EVERY = 60.0

_encode = msgspec.json.Encoder().encode


class Breaking(Struct, frozen=True):
    """When a target counts as broken: failures in a row, then a pause that doubles with each failed probe."""

    threshold: int = 10
    cooldown: float = 5.0
    longest_cooldown: float = 300.0
    #: A pause that several of a target's endpoints ask for is no longer than this while others answer.
    shorter_pause: float = 60.0


class Ordered(Struct, frozen=True):
    """What became of an order."""

    verdict: Literal["created", "duplicate", "conflict"]
    id: int
    status: str
    created_at: datetime | str


class Verdict(Struct, frozen=True):
    """What an attempt said of its target."""

    target: str
    #: Of which of its endpoints.
    endpoint: str
    failed: bool | None
    pause: float
    unreachable: bool
    error: str | None
    #: Seconds since any of them was well.
    well_age: float | None


class Holdings:
    """The targets of what this process has claimed. A lease that was lost unnoticed ends here too."""

    def __init__(self, lease_seconds: float, monotonic: Monotonic) -> None:
        self._lease_seconds = lease_seconds
        self._monotonic = monotonic
        self._held: dict[int, tuple[str, float]] = {}

    def take(self, claims: Iterable[Claim[Job]]) -> None:
        until = self._monotonic() + self._lease_seconds
        for claim in claims:
            self._held[claim.id] = (claim.item.target, until)

    def drop(self, claims: Iterable[Claim[Job]]) -> None:
        for claim in claims:
            self._held.pop(claim.id, None)

    def by_target(self) -> Counter[str]:
        now = self._monotonic()
        for id in [id for id, (_, until) in self._held.items() if until < now]:
            del self._held[id]
        return Counter(target for target, _ in self._held.values())


class DispatchJobs(SqlStore[Job]):
    def __init__(
        self,
        database: Database,
        targets: Targets,
        *,
        owner: str,
        lease_seconds: float,
        breaking: Breaking | None = None,
        telemetry: Telemetry | None = None,
        dead_letter: Callable[[Row], NewJob | None] | None = None,
        queued_letters: Callable[[Sequence[Row]], Awaitable[list[int]]] | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        super().__init__(
            database,
            load_queries(__package__ or "", database.dialect),
            item=job_of,
            size=attrgetter("size"),
            transition=transition,
            parameters={
                "owner": owner,
                "lease_seconds": lease_seconds,
                "lost_class": WORKER_LOST.code,
                "lost_error": WORKER_LOST.message,
                **msgspec.structs.asdict(breaking or Breaking()),
            },
        )
        self._targets = targets
        self._holdings = Holdings(lease_seconds, monotonic)
        #: When the requests of claims went out that have no answer yet, by our monotonic clock.
        self.sending: dict[ClaimKey, float] = {}
        self._telemetry = telemetry or Telemetry()
        self._dead_letter = dead_letter
        self._queued_letters = queued_letters
        self._monotonic = monotonic
        #: Where the last look at targets ended; empty when it saw them all.
        self._seen_up_to = ""
        #: Targets that failed, until a success was written down: only of these is one worth it.
        self._failing: set[str] = set()
        #: By target the one endpoint that is left alone, until its success was written down.
        self._left_alone: dict[str, str] = {}
        #: Targets whose breaker is open, as far as we were told.
        self._open: set[str] = set()
        # On their own: jobs that go well do not wait for what is to be said of targets that do not.
        self._verdicts: Coalescer[Verdict] = Coalescer(self._judge)
        #: Returns when all is written that attempts said of targets.
        self.judged = self._verdicts.drained
        self._chores_at = 0.0
        self._cursors: dict[str, Any] = {}

    # ── claim ────────────────────────────────────────────────────────────────────────────────────

    async def claim(self, limit: int) -> list[Claim[Job]]:
        """What is due, fairly among the targets that may be asked."""
        claims = await self._claim_among_some(limit)
        # There may be more targets than one look takes in: until one has something, or all were seen.
        while not claims and self._seen_up_to:
            claims = await self._claim_among_some(limit)
        return claims

    async def _claim_among_some(self, limit: int) -> list[Claim[Job]]:
        standings: Sequence[Standing] = await self._standings()
        limited = {s.target for s in standings if s.limited}
        broken = {s.target for s in standings if s.broken}
        claims: list[Claim[Job]] = []
        for number in range(_PASSES):
            shares = self._targets.share_out(limit - len(claims), standings, again=number > 0)
            if not shares:
                break
            claimed = [claim for target in broken.intersection(shares) for claim in await self._probe(target)]
            others = {target: slots for target, slots in shares.items() if target not in broken}
            if others:
                claimed += await self._claim(others, locked=not limited.isdisjoint(others))
            claims += claimed
            took = Counter(claim.item.target for claim in claimed)
            standings = [standing.after(shares, took) for standing in standings]
        return claims

    async def _standings(self) -> list[Standing]:
        rows = await self.run("due_targets", after=self._seen_up_to, most=_MOST_TARGETS)
        self._seen_up_to = max(row["target"] for row in rows) if len(rows) == _MOST_TARGETS else ""
        held = self._holdings.by_target()
        standings = [_standing(row, held.pop(row["target"], 0)) for row in rows]
        standings += [
            Standing(target, due=False, in_flight=count, ours=count) for target, count in held.items()
        ]
        self._failing |= {s.target for s in standings if s.failures}
        self._follow(standings)
        return standings

    def _follow(self, standings: Sequence[Standing]) -> None:
        for standing in standings:
            if standing.endpoint is not None and standing.endpoint_closed_for is not None:
                self._left_alone[standing.target] = standing.endpoint
            elif self._left_alone:
                self._left_alone.pop(standing.target, None)
        self._targets.follow(standings)

    async def _claim(self, shares: Mapping[str, int], *, locked: bool) -> list[Claim[Job]]:
        given = [{"target": target, "slots": slots} for target, slots in shares.items()]
        steps = ["lock_targets", "claim"] if locked else ["claim"]
        results = await self.run_together(steps, shares=_encode(given).decode())
        claims = self._claims(results["claim"])
        self._holdings.take(claims)
        return claims

    async def _probe(self, target: str) -> list[Claim[Job]]:
        """The one job that tries whether the target is well again. First in line may be what made it fail."""
        urls = {row["id"]: row["target_url"] for row in await self.run("probes", target=target, most=_PROBES)}
        claim = await self.claim_one_limited(self._targets.pick_probe(target, urls)) if urls else None
        return [] if claim is None else [claim]

    async def claim_one(self, id: int) -> Claim[Job] | None:
        """This job, if it is due and nobody's, and its target has no limits."""
        return self._taken(await self.run("claim_one", id=id))

    async def claim_these(self, ids: Sequence[int]) -> list[Claim[Job] | None]:
        """The same for several in one statement. One that is named twice is claimed for the first."""
        claims = self._claims(await self.run("claim_these", ids=_encode(ids).decode()))
        self._holdings.take(claims)
        found = {claim.id: claim for claim in claims}
        return [found.pop(id, None) for id in ids]

    async def claim_one_limited(self, id: int) -> Claim[Job] | None:
        """The same where the target has limits, which hold over all processes."""
        results = await self.run_together(["lock_target_of", "claim_one_limited"], id=id)
        return self._taken(results["claim_one_limited"])

    def _taken(self, rows: Sequence[Row]) -> Claim[Job] | None:
        claims = self._claims(rows)
        self._holdings.take(claims)
        return claims[0] if claims else None

    # ── settle ───────────────────────────────────────────────────────────────────────────────────

    async def settle(self, batch: Sequence[tuple[Claim[Job], Settlement]]) -> set[int]:
        if not batch:
            return set()
        columns = [
            {"id": claim.id, "fence": claim.fence, **transition(claim, settlement)}
            for claim, settlement in batch
        ]
        groups = {c.item.ordered_group for c, s in batch if not isinstance(s, RetryIn)} - {None}
        rows = await self._end("settle", groups, batch=_encode(columns).decode())
        self._holdings.drop(claim for claim, _ in batch)
        self._note_targets(batch)
        settled = {row["id"] for row in rows}
        if len(settled) < len(batch):
            await self._record_late([one for one in _late(columns, settled) if one["counted"]])
        for claim, settlement in batch:
            if claim.id in settled:
                state = _STATE_WORDS.get(type(settlement), "ERROR")
                self._telemetry.job_settled(claim.item.source, claim.item.type, state)
        return settled

    async def renew(self, claims: Sequence[Claim[Job]]) -> set[int]:
        kept = await super().renew(claims)
        self._holdings.take(claim for claim in claims if claim.id in kept)
        # What is given up now may arrive all the same, also when no rescue took it: somebody changed the job.
        gone = [claim for claim in claims if claim.id not in kept and key_of(claim) in self.sending]
        try:
            await self._record_late([_interrupted(claim, self._sent_for(claim)) for claim in gone])
        except DatabaseError as error:
            # The others' leases are renewed, and must not count as lost for a line of the history.
            self._telemetry.log.warning("attempts.unrecorded", error=str(error), attempts=len(gone))
        return kept

    async def release(self, claims: Sequence[Claim[Job]]) -> set[int]:
        self._holdings.drop(claims)
        # Before anything is awaited: the attempts were cancelled, and forget what they were at.
        batch = [{"id": c.id, "fence": c.fence, "millis": self._sent_for(c)} for c in claims]
        return await self._write("release", batch)

    def _sent_for(self, claim: Claim[Job]) -> int | None:
        """Milliseconds since its request went out; None when none did."""
        began = self.sending.get(key_of(claim))
        return None if began is None else round((self._monotonic() - began) * 1000)

    async def _record_late(self, results: list[dict[str, Any]]) -> None:
        """What became of claims that are not ours any more: for the history, the job is another's."""
        if results:
            ids = sorted({one["id"] for one in results})
            await self.run_together(
                ["lock_jobs", "record_late"],
                ids=_encode(ids).decode(),
                batch=_encode(results).decode(),
            )

    async def _change(
        self, query: str, groups: Any, lock: str = "lock_groups", **parameters: Any
    ) -> Sequence[Row]:
        """Run a query that may end the head of a group: in the same transaction the next becomes ready."""
        if not groups:
            return await self.run(query, **parameters)
        steps = [lock, query, "promote"]
        results = await self.run_together(steps, groups=_encode(sorted(groups)).decode(), **parameters)
        if any(row["due"] for row in results["promote"]):
            self.database.announce(CHANNEL)
        return results[query]

    async def _end(self, query: str, groups: Any, **parameters: Any) -> Sequence[Row]:
        """Run one that only ends heads.

        Who holds a group, as a producer does with an open transaction, keeps its next job waiting and no end.
        """
        try:
            return await self._change(query, groups, **parameters)
        except Locked:
            if not groups:
                raise
            self._chores_at = self._monotonic()
            return await self._change(query, groups, lock="try_lock_groups", **parameters)

    def _note_targets(self, batch: Sequence[tuple[Claim[Job], Settlement]]) -> None:
        """What is worth writing down of targets: failures and pauses, and a success after a failure."""
        for claim, settlement in batch:
            report: Report | None = getattr(settlement, "report", None)
            if report is None:
                continue
            target = claim.item.target
            if report.target_failed:
                self._failing.add(target)
            if report.pause or self._is_worth_writing(claim.item, report):
                self._verdicts.put(self._verdict(claim.item, report, _words(settlement)))

    def _is_worth_writing(self, job: Job, report: Report) -> bool:
        if report.target_failed is None:
            return False
        if job.target in self._failing:
            return True
        alone = self._left_alone.get(job.target)
        return alone is not None and alone == endpoint_of(job.target_url)

    def _verdict(self, job: Job, report: Report, error: str | None) -> Verdict:
        return Verdict(
            job.target,
            endpoint_of(job.target_url),
            report.target_failed,
            report.pause,
            report.unreachable,
            error,
            self._targets.well_age(job.target),
        )

    async def _judge(self, verdicts: Sequence[Verdict]) -> None:
        sums = _sums(verdicts)
        try:
            results = await self.run_together(
                ["note_targets", "judge_targets"], verdicts=_encode(sums).decode()
            )
        except DatabaseError as error:
            # What is lost here is learnt again from the next attempt; the settlement itself stands.
            self._telemetry.log.warning("targets.unjudged", error=str(error))
        else:
            self._failing -= {s["target"] for s in sums if s["succeeded"] and not s["failures"]}
            rows = results["judge_targets"]
            self._note_open({row["target"]: bool(row["open"]) for row in rows})
            self._follow([_judged(row) for row in rows])

    def _note_open(self, judged: Mapping[str, bool]) -> None:
        for target, is_open in judged.items():
            if is_open and target not in self._open:
                self._telemetry.breaker_opened(target)
        self._open = (self._open - judged.keys()) | {target for target, is_open in judged.items() if is_open}

    # ── look after ───────────────────────────────────────────────────────────────────────────────

    async def rescue(self, limit: int) -> int:
        rescued = await super().rescue(limit)
        if rescued:
            self.database.announce(CHANNEL)
        return rescued

    async def sweep(self, limit: int) -> Mapping[str, int]:
        """End what has expired; now and then look for what no statement of ours leaves behind."""
        ended = await self._expire(limit)
        if self._dead_letter is not None:
            await self._announce_the_dead(self._dead_letter, limit)
        if self._queued_letters is not None:
            await self._send_letters(self._queued_letters, limit)
        if self._monotonic() >= self._chores_at:
            self._chores_at = self._monotonic() + _CHORES_EVERY
            await self.run("make_attempt_weeks")
            await self._mend_groups(limit)
            await self._sweep_orphans(limit)
        return {"ERROR": ended} if ended else {}

    async def _expire(self, limit: int) -> int:
        rows = await self.run("expired", limit=limit)
        if not rows:
            return 0
        groups = {row["ordered_group"] for row in rows} - {None}
        ids = _encode([row["id"] for row in rows]).decode()
        return len(await self._end("expire", groups, ids=ids))

    async def _announce_the_dead(self, letter_of: Callable[[Row], NewJob | None], limit: int) -> None:
        """A job for each that ended in ERROR; both are written in one transaction, so none is forgotten."""
        rows = await self.run("dead_letters", limit=limit)
        if not rows:
            return
        letters = [letter for row in rows if (letter := letter_of(row)) is not None]
        batch = [{"number": n, **msgspec.structs.asdict(letter)} for n, letter in enumerate(letters)]
        await self.run_together(
            ["insert_jobs", "dead_letters_sent"],
            batch=_encode(batch).decode(),
            ids=_encode([row["id"] for row in rows]).decode(),
        )
        self.database.announce(CHANNEL)

    async def _send_letters(self, send: Callable[[Sequence[Row]], Awaitable[list[int]]], limit: int) -> None:
        """First sent, then noted: a crash in between repeats a letter, and loses none."""
        rows = await self.run("dead_letters", limit=limit)
        if rows and (sent := await send(rows)):
            await self.run("dead_letters_sent", ids=_encode(sent).decode())

    async def _mend_groups(self, limit: int) -> None:
        rows = await self.run("stuck_groups", after=self._cursors.get("groups", ""), limit=limit)
        self._cursors["groups"] = rows[-1]["group_id"] if len(rows) == limit else ""
        stuck = [row["group_id"] for row in rows if not row["ready"]]
        if stuck:
            await self.run_together(["try_lock_groups", "promote"], groups=_encode(stuck).decode())

    async def _sweep_orphans(self, limit: int) -> None:
        for query in ("sweep_metadata", "sweep_headers", "sweep_attempts"):
            rows = await self.run(query, after=self._cursors.get(query, 0), limit=limit)
            self._cursors[query] = rows[0]["last"] or 0

    # ── put in ───────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Ordered]:
        """Put jobs in, one statement for all; a key that is known gives back the first job."""
        batch = [{"number": n, **msgspec.structs.asdict(job)} for n, job in enumerate(jobs)]
        groups = {job.group_id for job in jobs if job.ordering == "group"}
        rows = await self._change("insert_jobs", groups, batch=_encode(batch).decode())
        found = {
            row["number"]: Ordered("created", row["id"], row["status"], row["created_at"]) for row in rows
        }
        if rows:
            self.database.announce(CHANNEL)
        found |= await self.known({n: job for n, job in enumerate(jobs) if n not in found})
        if len(found) < len(jobs):
            raise Refused("the database did not take a job, and has none with its idempotency key")
        return [found[n] for n in range(len(jobs))]

    async def known(self, jobs: Mapping[int, NewJob]) -> dict[int, Ordered]:
        """Those whose keys have been used, with the job of the first use."""
        rows = await self.run("by_idempotency_key", keys=keys_of(jobs)) if jobs else []
        found: dict[int, Ordered] = {}
        # The one with its own credentials last, which then counts.
        for row in sorted(
            rows, key=lambda row: bool(row["credentials_id"] == jobs[row["number"]].credentials_id)
        ):
            found[row["number"]] = _repetition(jobs[row["number"]], row)
        return found

    # ── look at ──────────────────────────────────────────────────────────────────────────────────

    async def get(self, id: int) -> Row | None:
        rows = await self.run("get", id=id)
        return rows[0] if rows else None

    async def attempts(self, id: int) -> Sequence[Row]:
        return await self.run("attempts", id=id)

    async def payload(self, id: int) -> str | None:
        """Of a job that was claimed without it."""
        rows = await self.run("payload", id=id)
        return rows[0]["payload"] if rows else None

    async def counts(self) -> dict[str, int]:
        return by_state(await self.run("counts"), STATES, rest="COMPLETED")

    async def oldest_due(self, *, but_for: str = "") -> float:
        """For how many seconds the first has been due, held back or not. A target can be left out."""
        rows = await self.run("oldest_due", after="", most=100 * _MOST_TARGETS, but_for=but_for)
        return max(0.0, rows[0]["age"] or 0.0) if rows else 0.0

    async def held_back(self) -> HeldBack:
        """What is due for targets that are paused or whose breaker is open, half or whole."""
        rows = await self.run(
            "held_back",
            after="",
            most=100 * _MOST_TARGETS,
            most_held=MOST_HELD_BACK + 1,
            counted=_MOST_COUNTED,
        )
        held = [HeldTarget(row["target"], row["count"], iso(row["since"]), row["age"]) for row in rows]
        is_more = len(held) > MOST_HELD_BACK or any(one.count >= _MOST_COUNTED for one in held)
        return HeldBack(tuple(held[:MOST_HELD_BACK]), is_lower_bound=is_more)

    # ── act ──────────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[int]) -> list[int]:
        """End jobs that nobody has claimed; the ids that were."""
        return await self._act("cancel", ids)

    async def requeue(self, ids: Sequence[int]) -> list[int]:
        """Make ended jobs due again, with all attempts; the ids that were."""
        requeued = await self._act("requeue", ids)
        if requeued:
            self.database.announce(CHANNEL)
        return requeued

    async def send_now(self, ids: Sequence[int]) -> list[int]:
        """Make jobs due at once that wait; the ids of those that do. What holds back a target stays so."""
        waiting = [row["id"] for row in await self.run("send_now", ids=_encode(ids).decode())]
        if waiting:
            self.database.announce(CHANNEL)
        return waiting

    async def _act(self, query: str, ids: Sequence[int]) -> list[int]:
        chosen = _encode(ids).decode()
        groups = {row["group_id"] for row in await self.run("ordered_groups", ids=chosen)}
        return [row["id"] for row in await self._change(query, groups, ids=chosen)]


def _standing(row: Row, ours: int) -> Standing:
    return Standing(
        row["target"],
        bool(row["due"]),
        max(row["in_flight"] or 0, ours),
        ours,
        row["most_in_flight"],
        row["rate_per_second"],
        row["failures"],
        row["closed_for"] or 0.0,
        row["endpoint"],
        row["endpoint_closed_for"],
        bool(row["broken"]),
    )


def _judged(row: Row) -> Standing:
    """What is known of a target when it was judged, and nothing of its jobs."""
    return Standing(
        row["target"],
        due=False,
        in_flight=0,
        ours=0,
        closed_for=row["closed_for"] or 0.0,
        endpoint=row["endpoint"],
        endpoint_closed_for=row["endpoint_closed_for"],
        broken=bool(row["open"]),
    )


def keys_of(jobs: Mapping[int, NewJob]) -> str:
    """As the queries take them."""
    keys = [
        {
            "number": n,
            "source": job.source,
            "type": job.type,
            "target_url": job.target_url,
            "credentials_id": job.credentials_id,
            "idempotency_key": job.idempotency_key,
            "fingerprint": job.fingerprint,
        }
        for n, job in jobs.items()
        if job.idempotency_key is not None
    ]
    return _encode(keys).decode()


def _repetition(job: NewJob, first: Row) -> Ordered:
    same = first["fingerprint"] is None or first["fingerprint"] == job.fingerprint
    return Ordered("duplicate" if same else "conflict", first["id"], first["status"], first["created_at"])


ClaimKey: TypeAlias = tuple[int, int]


def key_of(claim: Claim[Job]) -> ClaimKey:
    return claim.id, claim.fence


def _late(columns: Sequence[dict[str, Any]], settled: set[int]) -> list[dict[str, Any]]:
    """Those that were refused. Of several claims of a job only the youngest can have settled."""
    youngest: dict[int, int] = {}
    for one in columns:
        youngest[one["id"]] = max(one["fence"], youngest.get(one["id"], 0))
    return [one for one in columns if one["id"] not in settled or one["fence"] != youngest[one["id"]]]


def _interrupted(claim: Claim[Job], millis: int | None) -> dict[str, Any]:
    """An attempt that was called off, and does not count."""
    end = RetryIn(0.0, WORKER_LOST, charged=False)
    return {**transition(claim, end), "id": claim.id, "fence": claim.fence, "millis": millis or 0, "lost": 0}


_STATE_WORDS: dict[type, str] = {Complete: "COMPLETED", RetryIn: "FAILED"}


# ── what a settlement writes ──────────────────────────────────────────────────────────────────────


def transition(_claim: Claim[Job], settlement: Settlement) -> Mapping[str, Any]:
    """The columns that each settlement writes, and those of the attempt that it counts."""
    match settlement:
        case Complete(report=report):
            return {**_attempt("SUCCESS", report), "status": "COMPLETED", "counted": 1}
        case RetryIn(delay=delay, failure=failure, charged=charged, report=report):
            state = "FAILED" if charged or _claim.attempts else "PENDING"
            return {
                **_failed_attempt(failure, report),
                "status": state,
                "counted": int(charged),
                "delay": delay,
                "error": failure.message or failure.code,
                "error_class": failure.code,
                "stack_trace": failure.trace or None,
            }
        case Bury(failure=failure, charged=charged, report=report):
            return {
                **_failed_attempt(failure, report),
                "status": "ERROR",
                "counted": int(charged),
                "error": failure.message or failure.code,
                "error_class": failure.code,
                "stack_trace": failure.trace or None,
            }
        case Discard(failure=failure):
            return {
                "status": "ERROR",
                "counted": 0,
                "error": failure.message or failure.code,
                "error_class": failure.code,
            }


def _failed_attempt(failure: Failure, report: Report | None) -> dict[str, Any]:
    # What is charged to a job that keeps losing its workers is the attempt of the claim before.
    lost = {"unknown": True, "lost": 1} if failure is WORKER_LOST else {}
    return {**_attempt("FAILURE", report), **lost}


def _attempt(status: str, report: Report | None) -> dict[str, Any]:
    if report is None:
        return {"attempt": status, "millis": 0}
    return {
        "attempt": status,
        "millis": round(report.seconds * 1000),
        "response_code": report.response_code,
        "response_body": report.response_body,
        "response_headers": report.response_headers,
        "unknown": report.unknown,
    }


def _sums(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """By target: failures since its last success, of which endpoint, and the longest pause since."""
    found: dict[str, dict[str, Any]] = {}
    for verdict in verdicts:
        empty = {
            "target": verdict.target, "succeeded": False, "failures": 0, "pause": 0.0, "error": None,
            "endpoint": None, "well": [], "well_age": None,
        }  # fmt: skip
        _add(found.setdefault(verdict.target, empty), verdict)
    return sorted(found.values(), key=lambda one: str(one["target"]))


def _add(one: dict[str, Any], verdict: Verdict) -> None:
    if verdict.failed is False:
        # Who asked for a pause before has it already, in the process that heard it.
        one.update(succeeded=True, failures=0, pause=0.0, endpoint=None, well_age=0.0)
        one["well"].append(verdict.endpoint)
    elif verdict.failed:
        one["failures"] += 1
        one["error"] = verdict.error
        is_new = one["endpoint"] not in {None, verdict.endpoint}
        one["endpoint"] = SEVERAL if is_new or verdict.unreachable else verdict.endpoint
        one["well_age"] = min((a for a in (one["well_age"], verdict.well_age) if a is not None), default=None)
    if verdict.pause > one["pause"]:
        one.update(pause=verdict.pause, error=verdict.error)


def _words(settlement: Settlement) -> str | None:
    failure = getattr(settlement, "failure", None)
    return (failure.message or failure.code) if failure is not None else None
