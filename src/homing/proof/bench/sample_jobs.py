"""The webhooks that everybody delivers: a signed POST of 300 bytes of JSON to one receiver."""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Iterator

from msgspec import Struct

PAYLOAD_BYTES = 300
SIGNING_SECRET = "whsec_" + base64.b64encode(b"a secret of 32 bytes for a bench").decode()
BEARER_TOKEN = "sk_bench_" + "0123456789abcdef"
_KEY = base64.b64decode(SIGNING_SECRET.removeprefix("whsec_"))


class SampleJob(Struct, frozen=True):
    id: str
    url: str
    payload: str


def target_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/webhooks/orders"


def warm_up_url(port: int) -> str:
    """For what opens connections before the clock runs."""
    return f"http://127.0.0.1:{port}/warm-up"


def sample_payload(number: int) -> str:
    order = f'{{"orderId":"{number:08}","amount":99.99,"status":"shipped","note":"'
    return order + "x" * (PAYLOAD_BYTES - len(order) - 2) + '"}'


def sample_jobs(count: int, port: int) -> Iterator[SampleJob]:
    url = target_url(port)
    return (SampleJob(f"job_{n:08}", url, sample_payload(n)) for n in range(1, count + 1))


def signed_headers(id: str, payload: str) -> dict[str, str]:
    """What a user of a task queue writes in the task: one HMAC, as Standard Webhooks asks for it."""
    timestamp = str(int(time.time()))
    digest = hmac.digest(_KEY, f"{id}.{timestamp}.{payload}".encode(), "sha256")
    return {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {BEARER_TOKEN}",
        "webhook-id": id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
