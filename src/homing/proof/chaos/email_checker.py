"""What became of every email, and of every message that named one.

Three witnesses that know nothing of each other are compared: `email_log`, the log of the SMTP sink (which
knows whom it has refused, and how often), and the logs of schedulers, senders and the API. Beside them stands
what the broker says of its queues at the end. Pure, as `checker.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from statistics import median
from typing import Literal, TypeAlias

from msgspec import Struct

from homing.proof.chaos.checker import Check, ClaimKey, Verdict, doubles_bounded, none_of
from homing.proof.chaos.email_sink import Contact
from homing.proof.chaos.email_table import EmailEnd
from homing.proof.chaos.email_testimony import EmailTestimony, Publishing, Window
from homing.proof.chaos.table import Held

FaultKind: TypeAlias = Literal["stop-broker", "kill-broker", "delete-queue", "kill"]
#: A broker that is stopped keeps what it has confirmed; after these a message, or word of it, may be gone.
_LOSSES: frozenset[FaultKind] = frozenset({"kill-broker", "delete-queue", "kill"})
#: The clocks of two processes are one, but a line is written a little after what it tells of.
_SLACK = 1.0


class OrderedEmail(Struct, frozen=True):
    """An email that the API has answered with a 202."""

    id: int
    address: str


class EmailFault(Struct, frozen=True):
    """Something that we did to the broker or to a process, and what was in flight at the time."""

    kind: FaultKind
    #: Unix times: from the first blow until the broker was there again.
    begun: float
    back: float
    held: tuple[Held, ...]
    #: Messages that waited in the queue just before.
    waiting: int = 0
    #: Seconds after `back` until an email was sent that was put in only then; until each sender had sent one.
    flowing: float | None = None
    complete: float | None = None


class QueueEnd(Struct, frozen=True):
    """A queue after the run."""

    name: str
    messages: int


class EmailEvidence(Struct, frozen=True, dict=True):
    """All that is known of a run with emails after the drain."""

    ordered: Sequence[OrderedEmail]
    ends: Sequence[EmailEnd]
    contacts: Sequence[Contact]
    faults: Sequence[EmailFault]
    testimony: EmailTestimony
    queues: Sequence[QueueEnd] = ()
    #: Processes that ended although nobody had told them to, with their exit codes.
    deserters: Sequence[str] = ()
    #: How often each fault was to come.
    wanted: Sequence[tuple[FaultKind, int]] = ()
    #: Within so many seconds of the broker's return everybody is to be at work again.
    healing_limit: float | None = None
    #: After so many seconds a message that nobody has read is published again, lost or not.
    sweep: float | None = None

    @cached_property
    def ids(self) -> dict[str, int]:
        return {end.address: end.id for end in self.ends}

    @cached_property
    def deliveries(self) -> Counter[int]:
        return Counter(self.ids[c.address] for c in self.contacts if c.taken and c.address in self.ids)

    @cached_property
    def refusals(self) -> Counter[int]:
        return Counter(self.ids[c.address] for c in self.contacts if not c.taken and c.address in self.ids)

    @cached_property
    def interrupted(self) -> set[ClaimKey]:
        """Claims that may have sent without being settled: only their rows may be sent again."""
        held = {(h.id, h.claim_seq) for fault in self.faults for h in fault.held}
        refused = {s.claim for s in self.testimony.sent if not s.took_effect}
        return held | refused | set(self.testimony.lost)

    @cached_property
    def interruptions(self) -> Counter[int]:
        return Counter(row for row, _ in self.interrupted)

    @cached_property
    def cut_short(self) -> set[int]:
        """Emails that somebody was about to publish or to send when the lease was over: others went on."""
        refused = {s.claim[0] for s in self.testimony.sent if not s.took_effect}
        return refused | {row for row, _ in self.testimony.lost} | set(self.testimony.overtaken)

    @cached_property
    def published(self) -> Counter[int]:
        return Counter(message.window[0] for message in self.testimony.published if message.confirmed)

    @cached_property
    def read(self) -> Counter[int]:
        """How many messages about each email the senders had in their hands, by their logs."""
        sent = Counter(s.claim[0] for s in self.testimony.sent)
        return sent + Counter(row for row, _ in self.testimony.lost) + Counter(self.testimony.dropped)

    @cached_property
    def repeats(self) -> list[tuple[Publishing, Publishing]]:
        """Messages that were published for a window that had one already, each with the one before."""
        found: list[tuple[Publishing, Publishing]] = []
        before: dict[Window, Publishing] = {}
        for message in sorted(self.testimony.published, key=lambda p: p.at):
            if not message.confirmed:
                continue
            if (earlier := before.get(message.window)) is not None:
                found.append((earlier, message))
            before[message.window] = message
        return found


def check_emails(evidence: EmailEvidence) -> Verdict:
    checks = [
        *_went_in_and_came_out(evidence),
        *_sent_once(evidence),
        *_attempts_are_true(evidence),
        *_published_once(evidence),
        *_healed(evidence),
    ]
    return Verdict(_figures(evidence), checks)


# ── every email, once ────────────────────────────────────────────────────────────────────────────


def _went_in_and_came_out(evidence: EmailEvidence) -> list[Check]:
    lost = [e.address for e in evidence.ordered if not evidence.deliveries[e.id]]
    left = [_email(end.id) for end in evidence.ends if end.locked]
    return [
        none_of("lost", lost),
        none_of("unexpected", _unexpected(evidence)),
        none_of("left under a lock", left),
        _all_sent(evidence.ends),
    ]


def _unexpected(evidence: EmailEvidence) -> list[str]:
    """At the sink, or in the table, and never put in."""
    known = {email.id for email in evidence.ordered}
    strangers = [c.address for c in evidence.contacts if c.address not in evidence.ids]
    return [*strangers, *(_email(end.id) for end in evidence.ends if end.id not in known)]


def _all_sent(ends: Sequence[EmailEnd]) -> Check:
    others = Counter(end.status for end in ends if end.status != "Sent" or not end.completed)
    detail = ", ".join(f"{count} {status}" for status, count in others.items())
    return Check("all Sent", not others, detail or f"{len(ends)} of {len(ends)}")


def _sent_once(evidence: EmailEvidence) -> list[Check]:
    last = {end.id: end.claim_seq for end in evidence.ends}
    completed = Counter(s.claim for s in evidence.testimony.sent if s.took_effect and s.completes)
    wrong = [f"{_email(row)} by claim {seq}" for row, seq in completed if last.get(row) != seq]
    twice = [f"{_email(row)} twice" for (row, _), count in completed.items() if count > 1]
    return [
        none_of("settled more than once", [*wrong, *twice]),
        doubles_bounded(evidence.deliveries, evidence.interrupted),
        none_of("doubles with another Message-ID", _unlike(evidence)),
    ]


def _unlike(evidence: EmailEvidence) -> list[str]:
    message_ids: dict[str, set[str | None]] = {}
    for contact in evidence.contacts:
        if contact.taken:
            message_ids.setdefault(contact.address, set()).add(contact.message_id)
    return [address for address, found in message_ids.items() if len(found) > 1]


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


def _attempts_are_true(evidence: EmailEvidence) -> list[Check]:
    charged = Counter(s.claim[0] for s in evidence.testimony.sent if s.took_effect and s.charged)
    ends = evidence.ends
    return [
        none_of("attempt_count is not the number of refusals", [
            _email(end.id) for end in ends if not _counts_refusals(evidence, end)
        ]),
        none_of("failures in a log that the row does not count", [
            _email(end.id) for end in ends if charged[end.id] > end.attempt_count
        ]),
        none_of("sends that no attempt and no fault explains", [
            _email(end.id) for end in ends if _sends(evidence, end) > _explained_sends(evidence, end)
        ]),
    ]  # fmt: skip


def _counts_refusals(evidence: EmailEvidence, end: EmailEnd) -> bool:
    """A refusal that was interrupted before it was settled is charged to nobody."""
    refused = evidence.refusals[end.id]
    return refused - evidence.interruptions[end.id] <= end.attempt_count <= refused


def _sends(evidence: EmailEvidence, end: EmailEnd) -> int:
    return evidence.refusals[end.id] + evidence.deliveries[end.id]


def _explained_sends(evidence: EmailEvidence, end: EmailEnd) -> int:
    """What failed, what was delivered, and what ended in between."""
    return end.attempt_count + 1 + evidence.interruptions[end.id]


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def _published_once(evidence: EmailEvidence) -> list[Check]:
    causeless = [_name(pair[1].window) for pair in evidence.repeats if not _has_a_cause(evidence, *pair)]
    told = {p.window[0] for p in evidence.testimony.published} | set(evidence.testimony.overtaken)
    unpublished = {email.id for email in evidence.ordered} - told
    return [
        none_of("published twice in a window without a loss", causeless),
        none_of("sent twice in a window, so a repeat not dropped", _sent_twice(evidence)),
        none_of("sent and in no log as published", [_email(row) for row in sorted(unpublished)]),
        none_of("messages left over", [f"{q.messages} in {q.name}" for q in evidence.queues if q.messages]),
    ]


def _has_a_cause(evidence: EmailEvidence, first: Publishing, again: Publishing) -> bool:
    email = again.window[0]
    return (
        _follows_a_loss(evidence, first, again)
        or email in evidence.cut_short
        or _was_late(evidence, email, again.at - first.at)
    )


def _was_late(evidence: EmailEvidence, email: int, seconds: float) -> bool:
    """A machine may be so slow that a message waits for longer than the sweep does.

    Late is not lost: then the senders have read all that was published.
    """
    is_due = evidence.sweep is not None and seconds > evidence.sweep - _SLACK
    return is_due and evidence.read[email] >= evidence.published[email]


def _follows_a_loss(evidence: EmailEvidence, first: Publishing, again: Publishing) -> bool:
    return any(
        fault.kind in _LOSSES and first.at - _SLACK <= fault.back and fault.begun <= again.at
        for fault in evidence.faults
    )


def _sent_twice(evidence: EmailEvidence) -> list[str]:
    """Attempts under the same number: by the logs, and less those that were interrupted."""
    attempts = Counter(
        (s.claim[0], s.attempt)
        for s in evidence.testimony.sent
        if s.took_effect and s.claim not in evidence.interrupted
    )
    return [_name(window) for window, count in attempts.items() if count > 1]


# ── healing ──────────────────────────────────────────────────────────────────────────────────────


def _healed(evidence: EmailEvidence) -> list[Check]:
    struck = Counter(fault.kind for fault in evidence.faults)
    missing = [f"{kind} {struck[kind]} of {count}" for kind, count in evidence.wanted if struck[kind] < count]
    checks = [
        none_of("faults that did not come about", missing),
        none_of("processes that ended by themselves", evidence.deserters),
        none_of("faults after which nothing flowed", [
            f"{f.kind}" for f in _broker_faults(evidence) if f.flowing is None or f.complete is None
        ]),
    ]  # fmt: skip
    if evidence.healing_limit is not None:
        slowest = max((f.complete or 0.0 for f in _broker_faults(evidence)), default=0.0)
        detail = f"{slowest:.1f} s, at most {evidence.healing_limit:.1f} s"
        checks.append(Check("everybody at work again", slowest <= evidence.healing_limit, detail))
    return checks


def _broker_faults(evidence: EmailEvidence) -> list[EmailFault]:
    return [fault for fault in evidence.faults if fault.kind != "kill"]


# ── what is worth knowing ────────────────────────────────────────────────────────────────────────


def _figures(evidence: EmailEvidence) -> dict[str, float]:
    deliveries, published = evidence.deliveries, evidence.testimony.published
    struck = Counter(fault.kind for fault in evidence.faults)
    after_a_loss = sum(_follows_a_loss(evidence, *pair) for pair in evidence.repeats)
    return {
        "attempted": len(evidence.ordered),
        "acked": sum(end.status == "Sent" for end in evidence.ends),
        "arrived": len(deliveries),
        "lost": sum(not deliveries[email.id] for email in evidence.ordered),
        "unexpected": len(_unexpected(evidence)),
        "duplicated": sum(count - 1 for count in deliveries.values()),
        "refused_sends": sum(evidence.refusals.values()),
        "attempts_charged": sum(end.attempt_count for end in evidence.ends),
        "broker_stops": struck["stop-broker"],
        "broker_kills": struck["kill-broker"],
        "queue_deletions": struck["delete-queue"],
        "kills": struck["kill"],
        "kills_that_hit": sum(fault.kind == "kill" and bool(fault.held) for fault in evidence.faults),
        "waiting_in_deleted_queues": sum(f.waiting for f in evidence.faults if f.kind == "delete-queue"),
        "in_flight_at_faults": len({(h.id, h.claim_seq) for f in evidence.faults for h in f.held}),
        "in_flight_bound": len(evidence.interrupted),
        "messages_published": sum(message.confirmed for message in published),
        "publishes_failed": sum(not message.confirmed for message in published),
        "publishes_overtaken": len(evidence.testimony.overtaken),
        "published_again_after_a_loss": after_a_loss,
        "published_again_for_other_causes": len(evidence.repeats) - after_a_loss,
        "messages_dropped": len(evidence.testimony.dropped),
        **_healing_figures(evidence),
    }


def _healing_figures(evidence: EmailEvidence) -> dict[str, float]:
    flowing = [f.flowing for f in _broker_faults(evidence) if f.flowing is not None]
    complete = [f.complete for f in _broker_faults(evidence) if f.complete is not None]
    return {
        "median_seconds_until_it_flows": round(median(flowing), 2) if flowing else 0.0,
        "slowest_seconds_until_it_flows": round(max(flowing, default=0.0), 2),
        "slowest_seconds_until_all_work": round(max(complete, default=0.0), 2),
    }


def _email(id: int) -> str:
    return f"email {id}"


def _name(window: Window) -> str:
    return f"email {window[0]} at {window[1]} attempts"
