"""What `/api/config` says: the queues that the router reads, and the pools that it feeds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from homing.errors import InvalidRequest

DISPATCH_POOL = "DISPATCH-POOL"
DEFAULT_POOL = "DEFAULT-POOL"
DEFAULT_POOL_CONCURRENCY = 20
MOST_QUEUES, MOST_POOLS, MOST_CONNECTIONS, MOST_AT_ONCE = 100, 2000, 50, 10_000

_UNSEEN = "must have no spaces or control characters"
#: A dot stands only before the `fifo` of such a queue, and both count.
_SQS_NAME = re.compile(r"(?=.{1,80}\Z)[A-Za-z0-9_-]+(\.fifo)?")
_RABBITMQ_BYTES = 255

Connections = Annotated[int, Meta(ge=1, le=MOST_CONNECTIONS, description="Receivers side by side")]


class QueueConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    queue_uri: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2048,
            description="Its URL or its name",
            examples=["http://localhost:9324/000000000000/flow-catalyst-dispatch.fifo"],
        ),
    ]
    queue_name: Annotated[str, Meta(min_length=1, max_length=255, description="For people")] | None = None
    connections: Connections | None = None

    @property
    def label(self) -> str:
        """How logs and metrics call it."""
        return self.queue_name or self.queue_uri.rstrip("/").rpartition("/")[2]


class PoolConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    code: Annotated[str, Meta(min_length=1, max_length=255, examples=[DISPATCH_POOL])]
    concurrency: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE, description="Messages processed at once")] = 5
    rate_limit_per_minute: (
        Annotated[int, Meta(ge=1, le=10_000_000, description="Begun per minute; null: no limit")] | None
    ) = None


class RouterConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Queues that are read, and pools that their messages are processed in."""

    queues: Annotated[list[QueueConfig], Meta(max_length=MOST_QUEUES)]
    processing_pools: Annotated[list[PoolConfig], Meta(max_length=MOST_POOLS)]
    connections: Connections = 1


def check_config(config: RouterConfig, broker: str | None = None) -> None:
    """What types cannot say; raises `InvalidRequest` with the field. `broker` is the name of its kind."""
    if broker is not None:
        _check_some(config)
    for number, queue in enumerate(config.queues):
        if why := queue_refusal(queue.queue_uri, broker):
            _refuse(f"queues[{number}].queueUri", why)
    for number, pool in enumerate(config.processing_pools):
        if _is_unseen(pool.code):
            _refuse(f"processingPools[{number}].code", _UNSEEN)
    _refuse_twice("queues", (queue.queue_uri for queue in config.queues))
    _refuse_twice("processingPools", (pool.code for pool in config.processing_pools))


def _check_some(config: RouterConfig) -> None:
    """With a broker nobody polls the database: without queues or pools no job would ever be delivered."""
    if not config.queues:
        _refuse("queues", "must name one at least, since jobs come through a broker")
    if not config.processing_pools:
        _refuse("processingPools", "must name one at least, since jobs come through a broker")


def queue_refusal(uri: str, broker: str | None) -> str | None:
    """Why this kind of broker can have no such queue."""
    if _is_unseen(uri):
        return _UNSEEN
    if "://" in uri and "@" in uri:
        return "must have no user and password; those of the broker belong into its own URL"
    if broker == "rabbitmq":
        return _rabbitmq_refusal(uri)
    return _sqs_refusal(uri) if broker == "sqs" else None


def _rabbitmq_refusal(name: str) -> str | None:
    if len(name.encode()) > _RABBITMQ_BYTES:
        return f"must have at most {_RABBITMQ_BYTES} bytes, the longest name in RabbitMQ"
    return "must not begin with amq., which RabbitMQ keeps for itself" if name.startswith("amq.") else None


def _sqs_refusal(uri: str) -> str | None:
    address, _, name = uri.rpartition("/")
    if address and not re.match(r"https?://[^/]", address):
        return "must be a name, or a URL that begins with https://"
    if not _SQS_NAME.fullmatch(name):
        return (
            "must have a name of at most 80 letters, digits, - and _, with .fifo at its end for a FIFO queue"
        )
    return None


def _is_unseen(text: str) -> bool:
    return not text.isprintable() or any(letter.isspace() for letter in text)


def _refuse_twice(field: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            _refuse(field, f"{name} is given {count} times; leave one")


def _refuse(field: str, why: str) -> None:
    raise InvalidRequest(f"{field}: {why}", field)


def default_config(queue: str, concurrency: int) -> RouterConfig:
    return RouterConfig([QueueConfig(queue)], [PoolConfig(DISPATCH_POOL, concurrency)])
