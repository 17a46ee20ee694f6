"""What the limit and the peers send with: one aiohttp session, its connections opened beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
from yarl import URL

from homing.proof.bench.sample_jobs import SampleJob, signed_headers, warm_up_url
from homing.proof.bench.webhook_contender import CONCURRENCY


class WebhookClient:
    def __init__(self, port: int) -> None:
        self._warm_up = URL(warm_up_url(port))

    async def open(self) -> None:
        connector = aiohttp.TCPConnector(limit=CONCURRENCY)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        await asyncio.gather(*(self.post(self._warm_up, b"{}", {}) for _ in range(CONCURRENCY)))

    async def send(self, job: SampleJob) -> None:
        """The body of the peers' task."""
        await self.post(job.url, job.payload.encode(), signed_headers(job.id, job.payload))

    async def post(self, url: str | URL, body: bytes, headers: Mapping[str, str]) -> None:
        async with self._session.post(url, data=body, headers=headers) as response:
            await response.read()
            response.raise_for_status()

    async def close(self) -> None:
        await self._session.close()
