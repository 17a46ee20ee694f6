"""Where the router's configuration is kept: one row, which every process looks at."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from homing.brokers.router_config import RouterConfig
from homing.db import Database, load_queries
from homing.engine.model import Monotonic

CHANNEL = "homing_router_config"
#: For who needs no more than to know which queues there are.
_KEPT_FOR = 2.0

_decode = msgspec.json.Decoder(RouterConfig).decode
_encode = msgspec.json.Encoder().encode


class RouterConfigs:
    """`default` holds until somebody has put another one. `broker` is the name of its kind, if any."""

    def __init__(
        self,
        database: Database,
        default: RouterConfig,
        broker: str | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self.broker = broker
        self._database = database
        package = __package__ or ""
        self._queries = {
            **load_queries(package, database.dialect),
            **load_queries(package, database.dialect, "router"),
        }
        self._default = default
        self._monotonic = monotonic
        self._known: RouterConfig | None = None
        self._known_until = 0.0

    async def read(self) -> RouterConfig:
        return (await self.current())[0]

    async def current(self) -> tuple[RouterConfig, int]:
        """With its version; 0 is that nobody has put one yet."""
        rows = await self._database.fetch(self._queries["router_config"], {})
        config = _decode(rows[0]["config"]) if rows else self._default
        version: int = rows[0]["version"] if rows else 0
        return (config if self.broker is None else self._filled(config)), version

    def _filled(self, config: RouterConfig) -> RouterConfig:
        """It may have been put while there was no broker, and then it may be empty."""
        return msgspec.structs.replace(
            config,
            queues=config.queues or self._default.queues,
            processing_pools=config.processing_pools or self._default.processing_pools,
        )

    async def recent(self) -> RouterConfig:
        """What was read a moment ago."""
        if self._known is None or self._monotonic() >= self._known_until:
            self._known = await self.read()
            self._known_until = self._monotonic() + _KEPT_FOR
        return self._known

    async def put(self, config: RouterConfig) -> None:
        await self._write("put_router_config", config)

    async def replace(self, config: RouterConfig, version: int) -> bool:
        """Put it, if that version is still there; False when somebody was quicker."""
        return await self._write("replace_router_config", config, version=version)

    async def _write(self, query: str, config: RouterConfig, **given: int) -> bool:
        text = _encode(config).decode()
        written = await self._database.fetch(self._queries[query], {"config": text, **given})
        self._known = None
        self._database.announce(CHANNEL)
        return bool(written)

    def listen(self, wake: Callable[[], None]) -> None:
        self._database.listen(CHANNEL, wake)
