"""How a publication looks in SQS, and how a message of SQS looks to us.

SQS takes text, and not every character of it. What is not such text goes as base64, and says so.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from homing.brokers.base import Message, Publication
from homing.tracing import TRACEPARENT, TRACESTATE, read_trace

_BASE64 = "base64:"
_ENCODING = "homing-encoding"
_GROUP = "homing-group"
_REASON = "homing-reason"
OVER_LIMIT = "delivery_limit"
#: The characters that SQS takes in a body.
_TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
#: And those that it takes in the names of groups and for deduplication.
_NAME = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")


def entry_of(publication: Publication, *, fifo: bool, reason: str | None = None) -> dict[str, Any]:
    """An entry of a batch, without its number in it."""
    text, encoding = _to_text(publication.body)
    trace = dict(publication.trace.headers) if publication.trace is not None else {}
    attributes = {_ENCODING: encoding, _REASON: _printable(reason), **trace}
    entry: dict[str, Any] = {"MessageBody": text}
    if fifo:
        entry["MessageGroupId"] = _name(publication.group or uuid4().hex)
        entry["MessageDeduplicationId"] = _name(publication.dedup or uuid4().hex)
    if publication.group and entry.get("MessageGroupId") != publication.group:
        attributes[_GROUP] = _printable(publication.group)
    if present := {name: value for name, value in attributes.items() if value}:
        entry["MessageAttributes"] = {
            name: {"DataType": "String", "StringValue": value} for name, value in present.items()
        }
    return entry


def message_of(raw: Mapping[str, Any], receipt: Any) -> Message:
    system, own = raw.get("Attributes", {}), raw.get("MessageAttributes", {})
    group = _attribute(own, _GROUP) or system.get("MessageGroupId")
    buried = OVER_LIMIT if "DeadLetterQueueSourceArn" in system else None
    return Message(
        id=str(raw.get("MessageId", "")),
        body=_to_bytes(str(raw.get("Body", "")), _attribute(own, _ENCODING)),
        group=group,
        deliveries=int(system.get("ApproximateReceiveCount", 1)),
        reason=_attribute(own, _REASON) or buried,
        receipt=receipt,
        trace=read_trace(_attribute(own, TRACEPARENT), _attribute(own, TRACESTATE)),
    )


def size_of(entry: Mapping[str, Any]) -> int:
    attributes = entry.get("MessageAttributes", {})
    extra = sum(len(name) + 10 + len(value["StringValue"].encode()) for name, value in attributes.items())
    return len(entry["MessageBody"].encode()) + extra


def _to_text(body: bytes) -> tuple[str, str | None]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return _BASE64 + b64encode(body).decode(), "base64"
    if _TEXT.fullmatch(text):
        return text, None
    return _BASE64 + b64encode(body).decode(), "base64"


def _to_bytes(text: str, encoding: str | None) -> bytes:
    if encoding != "base64" or not text.startswith(_BASE64):
        return text.encode()
    try:
        return b64decode(text.removeprefix(_BASE64), validate=True)
    except binascii.Error:
        # Anybody may have sent it. Whoever reads it finds that it is no message of ours.
        return text.encode()


def _name(text: str) -> str:
    """What SQS does not take as a name is named by its hash."""
    return text if _NAME.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _printable(text: str | None) -> str | None:
    return None if text is None else "".join(c if _TEXT.fullmatch(c) else "?" for c in text)[:1000]


def _attribute(attributes: Mapping[str, Any], name: str) -> str | None:
    value = attributes.get(name, {}).get("StringValue")
    return str(value) if value else None
