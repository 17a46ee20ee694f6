"""Real processes: one serves, another revokes; an address that others reach is served only with keys."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.http.door import url_with_tables

from homing.access.desk import Access
from homing.access.keys import KeyOrder
from homing.db import connect
from homing.telemetry import Telemetry

ADDRESS = re.compile(rb"is up: http://[^:]+:(\d+)/")


@asynccontextmanager
async def homing(url: str, *arguments: str, files: str | None = None, **settings: str) -> AsyncIterator[Any]:
    """The command line in a process of its own; with `files`, its limits at first, as in 256:1024."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOMING_", "DISPATCH_"))
    }
    limit = ["prlimit", f"--nofile={files}"] if files else []
    process = await asyncio.create_subprocess_exec(
        *limit, sys.executable, "-m", "homing", *arguments,
        env={**kept, "HOMING_DATABASE_URL": url, "HOMING_MAIL_URL": "memory://", "NO_COLOR": "1", **settings},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


@asynccontextmanager
async def desk(url: str) -> AsyncIterator[Access]:
    """In this process: another one than that which serves."""
    database = connect(url)
    try:
        yield Access(database, Telemetry())
    finally:
        await database.close()


async def port_of(process: Any) -> int:
    while line := await process.stderr.readline():
        if found := ADDRESS.search(line):
            return int(found[1])
    raise AssertionError("it ended before it was up")


async def test_a_key_that_another_process_revokes_is_refused_within_five_seconds(tmp_path: Path) -> None:
    url = url_with_tables(tmp_path)
    async with desk(url) as access:
        issued = await access.keys.create(KeyOrder("test", ["mail:read"]), by="cli:test")
        async with homing(url, "serve", "--port", "0") as process:
            port = await port_of(process)
            headers = {"Authorization": f"Bearer {issued.key}"}
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
                assert (await client.get("/api/mail")).status_code == 200
                await access.keys.revoke(issued.row["id"], by="cli:test")
                began = asked = time.monotonic()
                while (await client.get("/api/mail")).status_code == 200:
                    assert asked - began < 5
                    await asyncio.sleep(0.1)
                    asked = time.monotonic()
                assert (await client.get("/api/mail")).status_code == 401


async def test_an_address_that_others_reach_is_refused_until_there_is_a_key(tmp_path: Path) -> None:
    url = url_with_tables(tmp_path)
    settings = {"HOMING_ENCRYPTION_KEY": "A" * 43 + "="}
    async with homing(url, "serve", "--host", "0.0.0.0", "--port", "0", **settings) as process:
        _, said = await process.communicate()
        assert process.returncode == 2
        assert b"homing keys create" in said
        assert b"homing users add" in said
    async with desk(url) as access:
        await access.keys.create(KeyOrder("test", ["mail:read"]), by="cli:test")
    async with homing(url, "serve", "--host", "0.0.0.0", "--port", "0", **settings) as process:
        port = await port_of(process)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/api/mail")).status_code == 401
            assert (await client.get("/health/ready")).status_code == 200
