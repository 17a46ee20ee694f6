"""Takes orders of jobs: one, or many with a verdict each, or many of which all are taken or none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from homing.engine.aside import aside, each
from homing.engine.coalesce import Batched
from homing.errors import DatabaseError, Forbidden, InvalidRequest, NotAllowed, Refused, Unreachable
from homing.lanes.dispatch_jobs.job import NewJob, of_trace
from homing.lanes.dispatch_jobs.jobs import CHANNEL, DispatchJobs, Ordered, keys_of
from homing.lanes.dispatch_jobs.orders import Admit, JobRequest, Rules, read_order, refused_uses
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.replies import BatchReply, ErrorDetail, ErrorReply, Verdict, error_detail, invalid
from homing.telemetry import Telemetry

LANE = "dispatch_jobs"
MOST_PER_POST = 1000
#: Hundreds of payloads of a megabyte would make one statement that nothing holds; these go alone.
_LARGE = 64 * 1024
_REFUSED = "the database does not take this job"

_encode = msgspec.json.Encoder().encode
#: What is wrong with an order: it cannot be taken, or not from this caller.
Wrong = InvalidRequest | Forbidden
_Key = tuple[str, str, str, int | None, str | None]


class BatchRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Up to 1,000 jobs. With `atomic` either all of them are created or none."""

    jobs: list[JobRequest]
    atomic: bool = False


class Placed(Struct, frozen=True):
    order: NewJob
    ordered: Ordered


async def any_queue(_url: str) -> bool:
    """Where there is no broker, nobody minds what queue a job names."""
    return True


def unknown_queue() -> InvalidRequest:
    return InvalidRequest(
        "queueUrl: is none of the queues of GET /api/config; add it by PUT, or leave it out", "queueUrl"
    )


class JobOrders:
    """Orders that arrive at the same time share one insert."""

    def __init__(
        self,
        jobs: DispatchJobs,
        telemetry: Telemetry,
        rules: Rules,
        admit: Admit,
        known_queue: Callable[[str], Awaitable[bool]] = any_queue,
    ) -> None:
        self._jobs = jobs
        self._telemetry = telemetry
        self._rules = rules
        self._admit = admit
        self._known_queue = known_queue
        self._coalesced: Batched[NewJob, Ordered] = Batched(jobs.enqueue)

    async def place(self, body: bytes, *, adds: bool) -> Placed:
        """Whoever `adds` may use any credentials anywhere, which is then written down in them."""
        order = await aside(len(body), read_order, body, self._rules)
        for refusal in (await self._refused_uses([order], adds=adds)).values():
            raise refusal
        if order.queue_url is not None and not await self._known_queue(order.queue_url):
            raise unknown_queue()
        with self._telemetry.tracing.creating(LANE) as trace:
            ordered = await self._enqueue(of_trace(order, trace))
        if ordered.verdict == "conflict":
            raise NotAllowed(_conflict(ordered.id))
        self._telemetry.enqueued(LANE, int(ordered.verdict == "created"))
        return Placed(order, ordered)

    async def _enqueue(self, order: NewJob) -> Ordered:
        try:
            if len(order.payload) > _LARGE:
                return (await self._jobs.enqueue([order]))[0]
            return await self._coalesced(order)
        except Refused as error:
            self._telemetry.log.warning("dispatch_jobs.refused", error=str(error))
            raise InvalidRequest(_REFUSED) from error

    # ── a verdict for each ───────────────────────────────────────────────────────────────────────

    async def place_all(self, items: Sequence[msgspec.Raw], *, adds: bool) -> BatchReply:
        """Everything that can be taken is taken."""
        read = await self._read_all(items, adds=adds)
        answers = iter(await self._take([one for one in read if isinstance(one, NewJob)]))
        return self._reply([next(answers) if isinstance(one, NewJob) else one for one in read])

    async def _take(self, orders: Sequence[NewJob]) -> Sequence[Ordered | InvalidRequest]:
        if not orders:
            return []
        with self._telemetry.tracing.creating(LANE, len(orders)) as trace:
            traced = [of_trace(order, trace) for order in orders]
            try:
                return await self._jobs.enqueue(traced)
            except Refused:
                return [await self._take_one(order) for order in traced]

    async def _take_one(self, order: NewJob) -> Ordered | InvalidRequest:
        try:
            return await self._enqueue(order)
        except InvalidRequest as error:
            return error

    async def _read_all(self, items: Sequence[msgspec.Raw], *, adds: bool) -> list[NewJob | Wrong]:
        if not 1 <= len(items) <= MOST_PER_POST:
            raise InvalidRequest(
                f"jobs: from 1 to {MOST_PER_POST:,} can be given, not {len(items):,}", "jobs"
            )
        read = await each(self._read, items)
        sendable = await self._with_known_queues(read)
        refused = await self._refused_uses([one for one in sendable if isinstance(one, NewJob)], adds=adds)
        return [
            refused.get((one.credentials_id, one.target_url), one) if isinstance(one, NewJob) else one
            for one in sendable
        ]

    async def _refused_uses(
        self, orders: Sequence[NewJob], *, adds: bool
    ) -> Mapping[tuple[int | None, str], Wrong]:
        uses = [(one.credentials_id, one.target_url) for one in orders if one.credentials_id is not None]
        return await refused_uses(uses, self._admit, adds=adds) if uses else {}

    async def _with_known_queues(
        self, read: Sequence[NewJob | InvalidRequest]
    ) -> list[NewJob | InvalidRequest]:
        named = {one.queue_url for one in read if isinstance(one, NewJob)} - {None}
        unknown = {url for url in named if url is not None and not await self._known_queue(url)}
        return [
            unknown_queue() if isinstance(one, NewJob) and one.queue_url in unknown else one for one in read
        ]

    def _read(self, item: msgspec.Raw) -> NewJob | InvalidRequest:
        try:
            return read_order(item, self._rules)
        except InvalidRequest as error:
            return error

    def _reply(self, answers: Sequence[Ordered | Wrong]) -> BatchReply:
        verdicts = [_verdict(answer) for answer in answers]
        created = sum(verdict.verdict == "created" for verdict in verdicts)
        self._telemetry.enqueued(LANE, created)
        return BatchReply(created, verdicts)

    # ── all or none ──────────────────────────────────────────────────────────────────────────────

    async def place_together(self, items: Sequence[msgspec.Raw], *, adds: bool) -> BatchReply | Rejection:
        read = await self._read_all(items, adds=adds)
        wrong = {n: invalid(one) for n, one in enumerate(read) if not isinstance(one, NewJob)}
        if wrong:
            return _rejection(len(read), wrong)
        orders = [one for one in read if isinstance(one, NewJob)]
        conflicts = _conflicts_within(orders)
        if conflicts:
            return _conflicting(len(orders), conflicts)
        try:
            with self._telemetry.tracing.creating(LANE, len(orders)) as trace:
                ordered = await enqueue_together(self._jobs, [of_trace(order, trace) for order in orders])
        except Unreachable:
            raise
        except DatabaseError:
            first = await self._jobs.known(dict(enumerate(orders)))
            conflicts = {n: _conflict(one.id) for n, one in first.items() if one.verdict == "conflict"}
            if not conflicts:
                raise
            return _conflicting(len(orders), conflicts)
        return self._reply(ordered)


class Rejection(Struct, frozen=True):
    status: int
    reply: ErrorReply


async def enqueue_together(jobs: DispatchJobs, orders: Sequence[NewJob]) -> list[Ordered]:
    """One transaction; it is undone, with a `DatabaseError`, where a key was used for something else."""
    steps = ["lock_groups", "insert_jobs", "promote", "refuse_conflicts"]
    groups = {order.group_id for order in orders if order.ordering == "group"}
    numbered = dict(enumerate(orders))
    results = await jobs.run_together(
        steps,
        groups=_encode(sorted(str(group) for group in groups)).decode(),
        batch=_encode([{"number": n, **msgspec.structs.asdict(o)} for n, o in numbered.items()]).decode(),
        keys=keys_of(numbered),
    )
    rows = results["insert_jobs"]
    if rows:
        jobs.database.announce(CHANNEL)
    found = {row["number"]: Ordered("created", row["id"], row["status"], row["created_at"]) for row in rows}
    found |= await jobs.known({n: order for n, order in numbered.items() if n not in found})
    return [found[n] for n in numbered]


def _key(order: NewJob) -> _Key:
    return (order.source, order.type, order.target_url, order.credentials_id, order.idempotency_key)


def _conflicts_within(orders: Sequence[NewJob]) -> dict[int, str]:
    """Items of one batch that use the key of an earlier one for something else."""
    first: dict[_Key, int] = {}
    found = {}
    for n, order in enumerate(orders):
        if order.idempotency_key is None:
            continue
        before = first.setdefault(_key(order), n)
        if orders[before].fingerprint != order.fingerprint:
            found[n] = f"the idempotency key was used for another job, item {before} of this batch"
    return found


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────


def _conflict(id: int) -> str:
    return f"the idempotency key was used for another job, {text_of(id)}; use a new key for a new job"


def _verdict(answer: Ordered | Wrong) -> Verdict:
    if not isinstance(answer, Ordered):
        return Verdict("invalid", error=invalid(answer))
    if answer.verdict == "conflict":
        error = error_detail("CONFLICT", _conflict(answer.id), "idempotencyKey")
        return Verdict("conflict", text_of(answer.id), answer.status, error)
    return Verdict(answer.verdict, text_of(answer.id), answer.status)


def _rejection(total: int, problems: Mapping[int, ErrorDetail]) -> Rejection:
    listed: list[dict[str, Any]] = [
        {"item": n, "code": one.code, "message": one.message, **one.details} for n, one in problems.items()
    ]
    if all(one.code == "FORBIDDEN" for one in problems.values()):
        message = f"{len(problems)} of {total} jobs are not allowed, so none was created"
        return Rejection(403, ErrorReply(ErrorDetail("FORBIDDEN", message, {"problems": listed})))
    message = f"{len(problems)} of {total} jobs are invalid, so none was created"
    return Rejection(400, ErrorReply(ErrorDetail("INVALID_REQUEST", message, {"problems": listed})))


def _conflicting(total: int, conflicts: Mapping[int, str]) -> Rejection:
    listed = [{"item": n, "code": "CONFLICT", "message": message} for n, message in conflicts.items()]
    message = f"{len(conflicts)} of {total} jobs use a key of another job, so none was created"
    return Rejection(409, ErrorReply(ErrorDetail("CONFLICT", message, {"problems": listed})))
