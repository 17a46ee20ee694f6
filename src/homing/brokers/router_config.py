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

_SPACE_OR_CONTROL = re.compile(r"[\s\x00-\x1f\x7f]")

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


def check_config(config: RouterConfig) -> None:
    """What types cannot say; raises `InvalidRequest` with the field."""
    for number, queue in enumerate(config.queues):
        if _SPACE_OR_CONTROL.search(queue.queue_uri):
            _refuse(f"queues[{number}].queueUri", "must have no spaces or control characters")
    for number, pool in enumerate(config.processing_pools):
        if _SPACE_OR_CONTROL.search(pool.code):
            _refuse(f"processingPools[{number}].code", "must have no spaces or control characters")
    _refuse_twice("queues", (queue.queue_uri for queue in config.queues))
    _refuse_twice("processingPools", (pool.code for pool in config.processing_pools))


def _refuse_twice(field: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            _refuse(field, f"{name} is given {count} times; leave one")


def _refuse(field: str, why: str) -> None:
    raise InvalidRequest(f"{field}: {why}", field)


def default_config(queue: str, concurrency: int) -> RouterConfig:
    return RouterConfig([QueueConfig(queue)], [PoolConfig(DISPATCH_POOL, concurrency)])
