"""The real application with all its routes, and who asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from litestar import Litestar
from tests.conftest import make_tables
from tests.outbox import Bench, bench

from homing.access.api import shown
from homing.access.keys import KeyOrder
from homing.app import MIGRATED
from homing.http.server import serving


class Door(Bench):
    app: Litestar
    client: httpx.AsyncClient
    address: str

    async def key(self, *scopes: str, expires_in: float | None = None, rate: float | None = None) -> str:
        order = KeyOrder("test", scopes or ("*",), expires_in, rate)
        return (await self.homing.access.keys.create(order, by="cli:test")).key

    async def ask(self, method: str, path: str, key: str | None = None, **options: Any) -> httpx.Response:
        headers = {**options.pop("headers", {}), **({"Authorization": f"Bearer {key}"} if key else {})}
        return await self.client.request(method, path, headers=headers, **options)

    async def audit(self) -> list[dict[str, Any]]:
        """Oldest first, what was done by the command line left out."""
        await self.homing.access.audit.close()
        rows = [shown(row) for row in await self.homing.access.audit.page(limit=500)]
        return [
            {
                "who": row.who,
                "action": row.action,
                "object": row.object,
                "detail": row.detail,
                "outcome": row.outcome,
            }
            for row in reversed(rows)
            if not row.who.startswith("cli:")
        ]


@asynccontextmanager
async def opened_door(url: str, **settings: Any) -> AsyncIterator[Door]:
    async with bench(url, **settings) as lane:
        door = Door(lane.homing, lane.log)
        door.app = lane.homing.asgi()
        async with (
            serving(door.app, "127.0.0.1", 0) as door.address,
            httpx.AsyncClient(base_url=door.address, timeout=30) as door.client,
        ):
            yield door


def url_with_tables(folder: Path) -> str:
    """A file with all tables, written in a moment: making them takes a second."""
    path = folder / "homing.db"
    path.write_bytes(_empty_database())
    return f"sqlite:///{path}"


@cache
def _empty_database() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "homing.db"
        make_tables(f"sqlite:///{path}", MIGRATED)
        return path.read_bytes()
