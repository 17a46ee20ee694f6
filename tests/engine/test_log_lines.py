"""What other sides say goes into log lines, and may be anything."""

from __future__ import annotations

from tests.outbox import bench

from homing.senders.mail import SendError, SendErrorCode, SendResult


async def test_half_a_character_in_an_error_stops_neither_the_line_nor_the_row(sqlite_url: str) -> None:
    async with bench(sqlite_url) as lane:
        error = SendError(SendErrorCode.PROVIDER_ERROR, "odd \ud800 words")
        lane.sender.answer_next(SendResult(status="failed", provider="x", error=error))
        await lane.insert()
        (settled,) = (await lane.deliver()).values()
        assert settled is not None
        (attempted,) = lane.log.all("delivery.attempted")
    assert attempted["error"].startswith("odd")
