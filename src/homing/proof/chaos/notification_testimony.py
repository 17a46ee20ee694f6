"""What is told of a run with notifications: by the logs of the workers, and by the other program's diary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from homing.proof.chaos.checker import ClaimKey

#: How a worker calls what the sink answers to those whom it refuses.
REFUSED = "provider_error"
#: A bug of ours, whatever came of it.
_CRASHES = frozenset({"delivery.crashed", "settle.crashed", "claim.crashed"})
_GIVEN_UP = {"settle.delayed": "settle", "claim.failed": "claim", "lease.renewal_delayed": "renew"}


class Attempt(Struct, frozen=True):
    """A worker's word about one attempt; `took_effect` is what the database told it."""

    claim: ClaimKey
    took_effect: bool
    completes: bool
    #: Whether the row counts it.
    counts: bool
    error_code: str | None = None


class WorkerTestimony(Struct, frozen=True):
    attempts: tuple[Attempt, ...] = ()
    #: Claims whose lock was over, or another's, before they were settled.
    lost: tuple[ClaimKey, ...] = ()
    crashes: tuple[str, ...] = ()
    #: What was tried again later because the database did not answer, or not in time.
    given_up: tuple[str, ...] = ()


def read_workers(events: Iterable[Mapping[str, Any]]) -> WorkerTestimony:
    attempts, lost, crashes, given_up = [], [], [], []
    for event in events:
        name = event["event"]
        if name == "delivery.attempted":
            attempts.append(_attempt(event))
        elif name == "lease.lost":
            lost.append((event["id"], event["claim_seq"]))
        elif name in _CRASHES:
            crashes.append(name)
        elif name in _GIVEN_UP:
            given_up.append(_GIVEN_UP[name])
    return WorkerTestimony(tuple(attempts), tuple(lost), tuple(crashes), tuple(given_up))


def _attempt(event: Mapping[str, Any]) -> Attempt:
    settlement = event["settlement"]
    return Attempt(
        (event["id"], event["claim_seq"]), event["settled"],
        completes=settlement == "complete",
        counts=settlement in {"complete", "discard"} or event["charged"],
        error_code=event["error_code"],
    )  # fmt: skip


# ── the other program ────────────────────────────────────────────────────────────────────────────


class Requeue(Struct, frozen=True):
    """A row that was put back by plain SQL, as it was before."""

    id: int
    attempts: int
    status: str


class Diary(Struct, frozen=True):
    #: Whom the mails are for.
    students: tuple[str, ...] = ()
    #: Those of them who had unsubscribed when the section opened.
    leaving: frozenset[str] = frozenset()
    requeues: tuple[Requeue, ...] = ()
    #: Rows whose lock it has taken away because it was too old.
    cleared: tuple[int, ...] = ()
    #: Seconds for which it held a transaction open.
    holds: tuple[float, ...] = ()
    #: Seconds that each of its transactions was kept waiting.
    waits: tuple[float, ...] = ()
    troubles: tuple[str, ...] = ()
    #: It has come to its end, and nothing of Homing was in it.
    ended_alone: bool = False


def read_diary(lines: Iterable[bytes]) -> Diary:
    entries = [msgspec.json.decode(line) for line in lines]

    def of(kind: str) -> list[dict[str, Any]]:
        return [entry for entry in entries if entry["kind"] == kind]

    opened = of("opened")
    return Diary(
        students=tuple(student for entry in opened for student in entry["students"]),
        leaving=frozenset(student for entry in opened for student in entry["leaving"]),
        requeues=tuple(Requeue(e["id"], e["attempts"], e["status"]) for e in of("requeued")),
        cleared=tuple(id for entry in of("cleared") for id in entry["ids"]),
        holds=tuple(entry["hold"] for entry in opened if entry["hold"]),
        waits=tuple(entry["waited"] for entry in of("committed")),
        troubles=tuple(entry["error"] for entry in of("trouble")),
        ended_alone=[entry["knows_homing"] for entry in of("ended")] == [False],
    )
