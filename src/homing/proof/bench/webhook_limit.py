"""The limit: POSTs that are ready-made, from a bare aiohttp loop.

Nothing is claimed, signed, checked, logged or settled: headers and body are the same for all of them.
"""

from __future__ import annotations

import asyncio

from multidict import CIMultiDict
from yarl import URL

from homing.proof.bench.sample_jobs import sample_payload, signed_headers, target_url
from homing.proof.bench.webhook_client import WebhookClient
from homing.proof.bench.webhook_contender import CONCURRENCY, WebhookJob


class Limit:
    def __init__(self, job: WebhookJob) -> None:
        self._job = job
        self._client = WebhookClient(job.sink_port)
        self._url = URL(target_url(job.sink_port))
        self._body = sample_payload(1).encode()
        self._headers = CIMultiDict(_all_headers(sample_payload(1)))

    async def prepare(self) -> None:
        await self._client.open()

    async def deliver(self) -> int:
        shares = (len(range(first, self._job.jobs, CONCURRENCY)) for first in range(CONCURRENCY))
        return sum(await asyncio.gather(*map(self._send, shares)))

    async def _send(self, count: int) -> int:
        for _ in range(count):
            await self._client.post(self._url, self._body, self._headers)
        return count

    async def close(self) -> None:
        await self._client.close()


def _all_headers(payload: str) -> dict[str, str]:
    """Those of Homing: the specification's own beside the ones of Standard Webhooks."""
    specified = {
        "X-FLOWCATALYST-SIGNATURE": "0123456789abcdef" * 4,
        "X-FLOWCATALYST-TIMESTAMP": "2025-10-04T14:30:45.123Z",
    }
    return {**signed_headers("job_00000001", payload), **specified}
