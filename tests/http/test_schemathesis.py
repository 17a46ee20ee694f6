"""What the OpenAPI document promises of jobs, emails, notifications and the router is what the API does."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import IN_FULL

from homing.app import opened
from homing.http.server import serving
from homing.settings import load_settings

SEED = 20260131
TESTED = re.compile("^/api/(dispatch|emails|config|notifications)")
#: Of each operation and kind, and how many cases that is at least.
EXAMPLES, CASES = (15, 300) if IN_FULL else (5, 100)
#: The others take minutes.
PHASES = "examples,coverage,fuzzing,stateful" if IN_FULL else "examples,fuzzing"
#: Schemathesis takes these as a mistake of the API, and they are none.
NOT_CHECKED = (
    # A schema cannot say which hosts may be sent to, or which times are in the past.
    "positive_data_acceptance",
    # Litestar lists the methods of one handler, where a path has several.
    "allow_header_conformance",
)
LEAST_OPERATIONS = 39
JOB = {"source": "shop", "type": "order.created", "targetUrl": "http://127.0.0.1:9/hooks", "payload": "{}"}
SEAT = {"termId": "2027-1", "campusCode": "NB", "indexNumber": "09214"}
MESSAGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/api/dispatch/jobs", {**JOB, "metadata": {"k": "v"}}),
    ("/api/dispatch/jobs", {**JOB, "groupId": "g", "ordering": "group"}),
    ("/api/dispatch/jobs", {**JOB, "groupId": "g", "ordering": "group"}),
    ("/api/emails", {"to": "ann@example.org", "subject": "Hi", "body": "Hello.", "messageKey": "order-1"}),
    ("/api/notifications/subscriptions", {**SEAT, "email": "ann@example.org"}),
    ("/api/notifications/events", {**SEAT, "statusBefore": "Closed", "statusAfter": "Open"}),
)
CONFIG = """
[[operations]]
# An item that is invalid gets a verdict of its own; the batch as a whole is taken.
include-name = "POST /api/dispatch/jobs/batch"
checks.negative_data_rejection.enabled = false

[[operations]]
include-name = "POST /api/notifications/events/batch"
checks.negative_data_rejection.enabled = false

# A subscription that is ended is still there to be looked at.
[[operations]]
include-name = "GET /api/notifications/subscriptions/{id}"
checks.use_after_free.enabled = false

[[operations]]
include-name = "DELETE /api/notifications/subscriptions/{id}"
checks.use_after_free.enabled = false
"""


async def some_messages(address: str) -> None:
    """A few of each lane, so that there is something to find."""
    async with httpx.AsyncClient(base_url=address, timeout=30, follow_redirects=True) as client:
        for path, body in MESSAGES:
            response = await client.post(path, json=body)
            assert response.is_success, response.text


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.clause("JOB-01", "JOB-02", "JOB-03", "JOB-04", "NTF-23")
async def test_the_api_keeps_what_its_document_promises(sqlite_url: str, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    settings = load_settings({"database_url": sqlite_url}, environ={})
    async with opened(settings, makes_file=True) as homing, AsyncExitStack() as stack:
        await homing.migrate()
        address = await stack.enter_async_context(serving(homing.asgi(), "127.0.0.1", 0))
        await some_messages(address)
        async with httpx.AsyncClient(base_url=address) as client:
            paths = (await client.get("/openapi.json")).json()["paths"]
        operations = sum(len(path) for name, path in paths.items() if TESTED.match(name))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", f"--config-file={config}",
            "run", f"{address}/openapi.json", f"--include-path-regex={TESTED.pattern}",
            # Without --max-time, for all of which fuzzing would go on.
            f"--phases={PHASES}", f"--seed={SEED}", f"--max-examples={EXAMPLES}",
            f"--exclude-checks={','.join(NOT_CHECKED)}", "--generation-database=none", "--no-color",
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
    report = output.decode(errors="replace")
    assert process.returncode == 0, report[-6000:]
    assert f"Tested: {operations}" in report, report[-6000:]
    assert operations >= LEAST_OPERATIONS, "all lanes are served"
    generated = re.search(r"(\d+) generated", report)
    assert generated is not None
    assert int(generated[1]) > CASES
