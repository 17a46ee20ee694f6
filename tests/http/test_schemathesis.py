"""What the OpenAPI document promises of jobs, emails and the router is what the API does."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest
from tests.conftest import IN_FULL
from tests.lanes.dispatch_jobs.api_bench import ApiBench, api_bench

SEED = 20260131
TESTED = re.compile("^/api/(dispatch|emails|config)")
#: Of each operation and kind, and how many cases that is at least.
EXAMPLES, CASES = (15, 300) if IN_FULL else (4, 100)
#: Seconds; on a machine that is slow it takes a few times as long.
LONGEST = 200
#: Schemathesis takes these as a mistake of the API, and they are none.
NOT_CHECKED = (
    # A schema cannot say which hosts may be sent to, or which times are in the past.
    "positive_data_acceptance",
    # Litestar lists the methods of one handler, where a path has several.
    "allow_header_conformance",
)
CONFIG = """
[[operations]]
# An item that is invalid gets a verdict of its own; the batch as a whole is taken.
include-name = "POST /api/dispatch/jobs/batch"
checks.negative_data_rejection.enabled = false
"""


async def some_jobs(bench: ApiBench) -> None:
    """One in each state, so that there is something to find."""
    await bench.create_many([{"metadata": {"k": "v"}}] * 2)
    await bench.complete_all()
    await bench.create()
    await bench.bury_all()
    await bench.create(groupId="g", ordering="group")
    await bench.create(groupId="g", ordering="group")
    cancelled = await bench.create()
    await bench.post(f"jobs/{cancelled['id']}/cancel")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.clause("JOB-01", "JOB-02", "JOB-03", "JOB-04")
async def test_the_api_keeps_what_its_document_promises(sqlite_url: str, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    async with api_bench(sqlite_url) as bench:
        await some_jobs(bench)
        paths = (await bench.client.get("/openapi.json")).json()["paths"]
        operations = sum(len(path) for name, path in paths.items() if TESTED.match(name))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", f"--config-file={config}",
            "run", f"{bench.client.base_url}/openapi.json", f"--include-path-regex={TESTED.pattern}",
            f"--seed={SEED}", f"--max-examples={EXAMPLES}", f"--max-time={LONGEST}",
            f"--exclude-checks={','.join(NOT_CHECKED)}", "--generation-database=none", "--no-color",
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
    report = output.decode(errors="replace")
    assert process.returncode == 0, report[-6000:]
    assert f"Tested: {operations}" in report, report[-6000:]
    generated = re.search(r"(\d+) generated", report)
    assert generated is not None
    assert int(generated[1]) > CASES
