"""What the logs of schedulers, senders and the API say about emails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from msgspec import Struct

from homing.proof.chaos.checker import ClaimKey

SCHEDULE, SEND = "email_log:schedule", "email_log:send"

#: The attempt window of a message: the email's id and its attempt count when it was published.
Window: TypeAlias = tuple[int, int]


class Publishing(Struct, frozen=True):
    """A message that was to be published."""

    window: Window
    #: Unix time.
    at: float
    #: Whether the broker has confirmed it.
    confirmed: bool


class Sending(Struct, frozen=True):
    """A sender's word about one attempt; `took_effect` is what the database told it."""

    claim: ClaimKey
    #: Which attempt it was.
    attempt: int
    took_effect: bool
    completes: bool
    charged: bool


class EmailTestimony(Struct, frozen=True):
    published: tuple[Publishing, ...] = ()
    sent: tuple[Sending, ...] = ()
    #: Claims of senders whose lease was over before they were settled.
    lost: tuple[ClaimKey, ...] = ()
    #: Emails of messages for which nothing was to be done any more.
    dropped: tuple[int, ...] = ()
    #: Emails that a sender had taken before their publisher heard of the broker that it has the message.
    overtaken: tuple[int, ...] = ()


def read_email_testimony(events: Iterable[Mapping[str, Any]]) -> EmailTestimony:
    published, sent, lost, dropped, overtaken = [], [], [], [], []
    for event in events:
        match event:
            case {"event": "email.scheduled"}:
                published.append(_publishing(event))
            case {"event": "delivery.attempted", "lane": "email_log:send"}:
                sent.append(_sending(event))
            case {"event": "lease.lost", "lane": "email_log:send"}:
                lost.append((event["id"], event["claim_seq"]))
            case {"event": "lease.lost", "lane": "email_log:schedule"}:
                overtaken.append(event["id"])
            case {"event": "email.dropped"}:
                dropped.append(event["EmailId"])
    return EmailTestimony(tuple(published), tuple(sent), tuple(lost), tuple(dropped), tuple(overtaken))


def _publishing(event: Mapping[str, Any]) -> Publishing:
    window = (event["EmailId"], event["AttemptCount"])
    return Publishing(window, datetime.fromisoformat(event["time"]).timestamp(), event["Published"])


def _sending(event: Mapping[str, Any]) -> Sending:
    return Sending(
        (event["id"], event["claim_seq"]), event["attempt"], event["settled"],
        completes=event["settlement"] == "complete", charged=event["charged"],
    )  # fmt: skip
