"""What cannot be told of an attempt, or be written into the log, holds up no message."""

from __future__ import annotations

import asyncio
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.outbox import bench

from homing.telemetry import Telemetry, make_logger


async def test_a_lane_that_cannot_describe_an_attempt_goes_on(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: Any) -> Any:
        raise ValueError("a bug")

    async with bench(sqlite_url) as lane:
        await lane.insert()
        await lane.insert()
        monkeypatch.setattr(lane.homing.mail.deliverer.lane, "describe", broken)
        async with asyncio.timeout(60):
            settled = await lane.deliver()
        assert [type(one).__name__ for one in settled.values()] == ["Complete", "Complete"]
        assert lane.homing.mail.deliverer.idle
        assert [crash["error"] for crash in lane.log.all("settle.crashed")] == ["ValueError", "ValueError"]


class FullDisk(BytesIO):
    is_full = False

    def write(self, data: Any, /) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_a_log_that_cannot_be_written_is_no_reason_to_stop() -> None:
    disk = FullDisk()
    stream = TextIOWrapper(disk)
    telemetry = Telemetry(make_logger("json", 10, stream), CollectorRegistry())
    disk.is_full = True
    telemetry.log.info("service.ready")
    with telemetry.together():
        telemetry.log.warning("claim.failed", lane="mail_outbox")
    disk.is_full = False
    telemetry.log.info("service.stopped")
    (line,) = disk.getvalue().splitlines()
    assert b"service.stopped" in line
    counted = telemetry.registry.get_sample_value(
        "homing_log_events_total", {"event": "service.ready", "level": "info"}
    )
    assert counted == 1
