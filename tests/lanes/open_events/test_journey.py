"""One subscriber from the first request to the last click, through everything that is really there."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.lanes.open_events.desk import OPENED, WHERE
from tests.outbox import Bench, bench

from homing.http.server import serving
from homing.senders.mail import MailMessage

ANN = "ann@example.org"
TOLD = {"courseTitle": "Calculus", "courseString": "01:640:151", "sectionNumber": "07"}


class Journey:
    def __init__(self, lane: Bench, client: httpx.AsyncClient) -> None:
        self.lane, self.client = lane, client
        self._now = datetime.now(UTC) - timedelta(hours=1)

    async def post(self, path: str, body: Any) -> Any:
        response = await self.client.post(f"/api/notifications/{path}", json=body)
        assert response.status_code < 300, response.text
        return response.json()

    async def click(self, link: str) -> None:
        """A POST to a link of a mail, wherever it says that it leads."""
        parts = urlsplit(link)
        response = await self.client.post(f"{parts.path}?{parts.query}")
        assert response.status_code == 200, response.text

    async def opens(self) -> Any:
        """The section opens, each time ten minutes later."""
        self._now += timedelta(minutes=10)
        return await self.post("events", {**OPENED, "eventAt": self._now.isoformat(), "payload": TOLD})

    async def mails(self) -> list[MailMessage]:
        """What goes out now."""
        before = len(self.lane.sender.messages)
        await self.lane.deliver()
        deliverer = self.lane.homing.notify.deliverer
        await deliverer.settled(await deliverer.run_batch(100))
        return self.lane.sender.messages[before:]


@asynccontextmanager
async def journey(database_url: str) -> AsyncIterator[Journey]:
    async with bench(database_url, default_locale="en-US", notify_rate_per_second=0) as lane:
        async with (
            serving(lane.homing.asgi(), "127.0.0.1", 0) as address,
            httpx.AsyncClient(base_url=address, timeout=30) as client,
        ):
            yield Journey(lane, client)
        await lane.homing.notify.deliverer.drain(5)


def _link(mail: MailMessage, path: str) -> str:
    found = re.search(rf"https?://\S+/{path}\S*token=[\w-]+", mail.whole_text or "")
    assert found is not None, mail.whole_text
    return found[0]


@pytest.mark.clause("NTF-23")
async def test_from_the_request_to_the_last_click(database_url: str) -> None:
    async with journey(database_url) as ann:
        await ann.post("subscriptions", {**WHERE, "email": ANN, "preferences": {"maxNotifications": 2}})
        assert (await ann.opens())["notifications"] == 0, "it is not confirmed"
        (verification,) = await ann.mails()
        assert verification.recipients == (ANN,)
        await ann.click(_link(verification, "confirm"))

        assert (await ann.opens())["notifications"] == 1
        (seat,) = await ann.mails()
        assert "Calculus" in seat.subject
        assert await ann.mails() == [], "once"
        assert (await ann.opens())["notifications"] == 1
        assert len(await ann.mails()) == 1
        # Two were wanted: the count begins anew when it is paused and resumed.
        path = "/api/notifications/subscriptions/1"
        assert (await ann.client.get(path)).json()["status"] == "active"
        assert (await ann.opens())["notifications"] == 0
        await ann.client.post(f"{path}/pause")
        await ann.client.post(f"{path}/resume")

        assert (await ann.opens())["notifications"] == 1
        await ann.click(str(seat.unsubscribe_url))
        assert await ann.mails() == [], "unsubscribed means never again, also for what is queued"
        assert (await ann.opens())["notifications"] == 0
        listed = (await ann.client.get("/api/notifications", params={"status": "skipped"})).json()
        assert [item["errorCode"] for item in listed["items"]] == ["unsubscribed"]
        # And when an operator puts it back by mistake, it ends the same way.
        requeued = await ann.client.post(f"/api/notifications/{listed['items'][0]['id']}/requeue")
        assert requeued.json()["status"] == "pending"
        assert await ann.mails() == []

        log = ann.lane.log.text
        assert ANN not in log
        assert urlsplit(str(seat.unsubscribe_url)).query not in log
