"""health: asks a Homing that runs, as a container's health check does."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.command import Homing
from tests.outbox import bench

from homing.http.server import serving


async def test_a_running_homing_is_well_until_its_tables_are_gone(homing: Homing, sqlite_url: str) -> None:
    async with (
        bench(sqlite_url) as lane,
        serving(lane.homing.metrics_asgi(), "127.0.0.1", 0) as address,
    ):
        port = str(urlsplit(address).port)
        well = await asyncio.to_thread(homing, "health", "--port", port)
        assert (well.returncode, json.loads(well.stdout)["status"]) == (0, 200)
        assert json.loads(well.stdout)["answer"]["status"] == "ok", "no JSON in a string"
        as_others = await asyncio.to_thread(homing, "health", "--json", "--port", port)
        assert as_others.stdout == well.stdout
        worker = await asyncio.to_thread(homing, "health", "--worker", HOMING_METRICS_PORT=port)
        assert worker.returncode == 0
        # Who listens everywhere is asked on loopback.
        everywhere = await asyncio.to_thread(homing, "health", HOMING_PORT=port, HOMING_HOST="0.0.0.0")
        assert everywhere.returncode == 0

        await lane.sql("DROP TABLE mail_outbox")
        await lane.sql("DELETE FROM homing_migration")
        ill = await asyncio.to_thread(homing, "health", "--port", port)
        assert (ill.returncode, json.loads(ill.stdout)["status"]) == (1, 503)
        alive = await asyncio.to_thread(homing, "health", "--live", "--port", port)
        assert alive.returncode == 0


@pytest.fixture
def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_where_nobody_answers_it_says_so(homing: Homing, free_port: int, tmp_path: Path) -> None:
    del tmp_path
    result = homing("health", "--port", str(free_port), "--timeout", "2")
    assert result.returncode == 1
    assert "no answer from 127.0.0.1" in json.loads(result.stdout)["answer"]
