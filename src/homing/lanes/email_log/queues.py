"""The queues of the contract, and the message that goes through them: exactly two keys."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from homing.brokers.base import Queue

_LONGEST_REASON = 200
#: As the API takes a key and the table keeps it.
LONGEST_KEY = 255
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Queues(Struct, frozen=True):
    #: A message for each email that is to be sent.
    send: Queue
    #: What no email can be made of, and which emails were given up.
    dead_letters: Queue


def queues_of(
    prefix: str = "email.dispatcher", *, dots: bool = True, kind: Literal["quorum", "classic"] = "quorum"
) -> Queues:
    """Named as specified; where a broker takes no dots (SQS), with hyphens in their place."""
    send, dead = (name if dots else name.replace(".", "-") for name in (f"{prefix}.send", f"{prefix}.dlq"))
    return Queues(Queue(send, dead_letters=dead, kind=kind), Queue(dead, kind=kind))


class Hint(Struct, frozen=True, omit_defaults=True, gc=False):
    """Which row may be due; what is to be done is in the row."""

    EmailId: int
    MessageKey: str
    #: It was handed out before, perhaps to somebody who is still sending. No part of the message.
    redelivered: bool = False


class _Received(Struct, frozen=True, gc=False):
    """A message as other programs may write it, with more fields than these."""

    EmailId: Annotated[int, Meta(ge=1, le=2**63 - 1)] | Annotated[str, Meta(pattern=r"^[0-9]{1,19}\Z")]
    MessageKey: Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)]


class Death(Struct, frozen=True, gc=False):
    """What the dead letter queue is told of an email that is given up."""

    EmailId: int
    MessageKey: str
    AttemptCount: int
    DeadReason: str | None


class Unreadable(Struct, frozen=True, gc=False):
    """No message of ours; why, in words that quote nothing of it."""

    reason: str


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Received, strict=True).decode
_LARGEST_ID = 2**63 - 1


def read_hint(body: bytes, *, redelivered: bool = False) -> Hint | Unreadable:
    try:
        received = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        kind = "no such message" if isinstance(error, msgspec.ValidationError) else "no valid JSON"
        return Unreadable(f"{kind}: {error}"[:_LONGEST_REASON])
    if CONTROL.search(received.MessageKey):
        return Unreadable("no such message: MessageKey has control characters")
    number = int(received.EmailId)
    if not 1 <= number <= _LARGEST_ID:
        return Unreadable("no such message: EmailId is out of range")
    return Hint(number, received.MessageKey, redelivered)
