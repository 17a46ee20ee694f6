"""What a worker holds is bounded by bytes: large messages by the hundred, where memory is limited.

With `HOMING_TEST_FULL=1` it is three thousand webhooks of 1 MiB and sixty mails of 10 MB, in 1 GiB.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.jobs import JobBench, job_bench

from homing.testing.http_sink import HttpSink, SinkRequest
from homing.testing.smtp_sink import SmtpSink

FULL = bool(os.environ.get("HOMING_TEST_FULL"))
MIB = 1024 * 1024
#: MiB that the process may write to, and how many bytes of large messages it has at once.
LIMIT, AT_ONCE = (1024, 128 * MIB) if FULL else (320, 16 * MIB)
WEBHOOKS, MAILS = (3000, 60) if FULL else (100, 6)
#: Of the file of a mail.
FILE = 10_000_000
#: Made by the database, so that payloads do not pass through the test.
PAYLOAD = {"sqlite": "replace(hex(zeroblob(524288)), '0', 'x')", "postgres": "repeat('x', 1048576)"}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900 if FULL else 120),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere data that is mapped is not limited"),
]


def work_once(folder: Path, database_url: str, smtp_url: str) -> int:
    """`homing work --once`, as somebody starts it under a limit; the most MiB that it had in memory."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HOMING_")},
        "HOMING_DATABASE_URL": database_url,
        "HOMING_MAIL_URL": smtp_url,
        "HOMING_BYTES_AT_ONCE": str(AT_ONCE),
        "HOMING_ALLOW_HTTP": "1",
        "HOMING_EGRESS_ALLOW": "127.0.0.0/8",
        # glibc keeps memory for each thread, and what is only kept counts as well.
        "MALLOC_ARENA_MAX": "2",
    }
    limited = f'ulimit -d {LIMIT * 1024}; exec "$0" -m homing work --once'
    with (folder / "work.log").open("w+b") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", limited, sys.executable], cwd=folder, env=environment, stdout=log, stderr=log
        )
        most = 0
        while process.poll() is None:
            most = max(most, peak_of(process.pid))
            time.sleep(0.05)
        log.seek(0)
        told = log.read().decode(errors="replace")
    assert process.returncode == 0, told[-2000:]
    assert "MemoryError" not in told
    return most


def peak_of(pid: int) -> int:
    """MiB; 0 of who has ended. What `wait4` tells counts what this process had when the other was forked."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) // 1024 if found else 0


async def add_webhooks(lane: JobBench, url: str, count: int) -> None:
    payload = PAYLOAD[lane.homing.database.dialect]
    for _ in range(0, count, 50):
        ids = await lane.create(url, 50)
        where = "WHERE id BETWEEN :first AND :last RETURNING id"
        await lane.sql(f"UPDATE dispatch_job SET payload = {payload} {where}", first=min(ids), last=max(ids))


async def add_mails(lane: JobBench, count: int) -> None:
    """Files that compress well: what they take in the table says little of what they take in memory."""
    file = {"filename": "a.bin", "content": base64.b64encode(b"homing" * (FILE // 6)).decode()}
    statement = (
        "INSERT INTO mail_outbox (to_address, subject, text_body, attachments)"
        " VALUES ('ann@example.org', 'large', 'hello', :attachments) RETURNING id"
    )
    for _ in range(count):
        await lane.sql(statement, attachments=json.dumps([file]))


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
async def test_large_messages_by_the_hundred_fit_into_little_memory(
    request: pytest.FixtureRequest, dialect: str, tmp_path: Path
) -> None:
    url = request.getfixturevalue(f"{dialect}_url")
    arrived: list[tuple[str | None, int]] = []

    def note(request: SinkRequest) -> None:
        arrived.append((request.header("webhook-id"), len(request.body)))

    async with HttpSink(note, keep=False) as webhooks, SmtpSink() as mails, job_bench(url) as lane:
        await add_webhooks(lane, webhooks.url, WEBHOOKS)
        await add_mails(lane, MAILS)
        most = await asyncio.to_thread(work_once, tmp_path, url, f"smtp://127.0.0.1:{mails.port}?tls=none")
        assert len(arrived) == len(set(arrived)) == WEBHOOKS, "nothing lost, no duplicate"
        assert {size for _, size in arrived} == {MIB}
        assert mails.accepted == MAILS
        assert (await lane.jobs.counts())["COMPLETED"] == WEBHOOKS
        assert (await lane.homing.outbox.counts())["sent"] == MAILS
    assert most <= LIMIT
