"""What a message of the router says: not what is to be done, but where to ask for it.

{"id": "0HZX…", "poolCode": "DISPATCH-POOL", "mediationType": "HTTP",
 "mediationTarget": "https://…/api/dispatch/process", "messageGroupId": "order-1", "authToken": "…"}
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
#: The one way of mediation that exists; capitals make no difference.
HTTP = "HTTP"

Word = Annotated[str, Meta(min_length=1, max_length=255)]


class MessagePointer(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Fields that are not known here are left alone: a newer version may write them during an update."""

    #: What the mediator is asked to process.
    id: Word
    pool_code: Word
    mediation_type: Word = HTTP
    mediation_target: Annotated[str, Meta(min_length=1, max_length=2048)]
    #: Messages of one group are processed in order, one at a time.
    message_group_id: Word | None = None
    auth_token: Annotated[str, Meta(max_length=1024)] | None = None

    def __repr__(self) -> str:
        # A traceback with local variables would show the token.
        return f"<MessagePointer {self.id} for {self.pool_code}>"


#: Ids are each mediator's own, and anybody can write one down: only with its token it is the same task.
Task: TypeAlias = tuple[str, str, str | None]


def task_of(pointer: MessagePointer) -> Task:
    return pointer.id, pointer.mediation_target, pointer.auth_token


class Malformed(Struct, frozen=True):
    """Why a message is no pointer; nothing of the message in it."""

    reason: str


_decode = msgspec.json.Decoder(MessagePointer, strict=True).decode
_encode = msgspec.json.Encoder().encode


def encode_pointer(pointer: MessagePointer) -> bytes:
    # `mediationType` is its own default, and others may not know that.
    return _encode({**msgspec.to_builtins(pointer), "mediationType": pointer.mediation_type})


def decode_pointer(body: bytes) -> MessagePointer | Malformed:
    try:
        pointer = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return Malformed(_without_values(str(error)))
    if pointer.mediation_type.upper() != HTTP:
        return Malformed("mediationType: only HTTP is known")
    texts = (pointer.id, pointer.pool_code, pointer.mediation_target, pointer.auth_token or "")
    if any(_CONTROL.search(text) for text in texts):
        return Malformed("it has control characters")
    return pointer


def _without_values(reason: str) -> str:
    """The decoder names fields and types, and quotes at most what stands for one character."""
    return _CONTROL.sub("?", reason)[:200]
