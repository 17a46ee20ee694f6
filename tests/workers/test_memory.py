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
from homing.testing.smtp_sink import SinkSettings, SmtpSink

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


#: What becomes much of a claim. Of what it keeps in kilobytes PostgreSQL writes out megabytes.
SAYS_LITTLE = {
    "postgres": {
        "variables": "(SELECT jsonb_build_object('a', jsonb_agg(1e308::numeric))"
        " FROM generate_series(1, 20000))",
        "headers": "jsonb_build_object('X-A', repeat('a', 4000000))",
        "bcc_address": "repeat(' ', 16000000)",
    },
    "sqlite": {
        "headers": "json_object('X-A', replace(hex(zeroblob(2000000)), '0', 'a'))",
        "bcc_address": "replace(hex(zeroblob(8000000)), '0', ' ')",
    },
}


@pytest.mark.parametrize(
    ("dialect", "column"),
    [(dialect, column) for dialect, columns in SAYS_LITTLE.items() for column in columns]
    if FULL
    # The others take the same way.
    else [("postgres", "variables"), ("sqlite", "headers")],
)
async def test_mails_that_are_larger_than_they_look_fit_into_little_memory(
    request: pytest.FixtureRequest, dialect: str, column: str, tmp_path: Path
) -> None:
    url = request.getfixturevalue(f"{dialect}_url")
    async with SmtpSink(SinkSettings(keep_data=False)) as mails, job_bench(url) as lane:
        # As many as are more than the limit, were they all claimed at once.
        heavy = (3 if FULL else 1) * (80 if column == "variables" else 25)
        for _ in range(heavy):
            await lane.sql(
                f"INSERT INTO mail_outbox (to_address, subject, text_body, {column})"
                f" VALUES ('ann@example.org', 'heavy', 'hello', {SAYS_LITTLE[dialect][column]}) RETURNING id"
            )
        await asyncio.to_thread(work_once, tmp_path, url, f"smtp://127.0.0.1:{mails.port}?tls=none")
        assert (await lane.homing.outbox.counts())["sent"] == heavy


@pytest.mark.parametrize("numbers", [1_200, 9_000], ids=["150 MiB", "more than PostgreSQL writes out"])
async def test_a_mail_that_is_too_large_for_any_attempt_fails_and_keeps_nobody(
    postgres_url: str, numbers: int, tmp_path: Path
) -> None:
    """Two kilobytes in the table."""
    async with SmtpSink() as mails, job_bench(postgres_url) as lane:
        (row,) = await lane.sql(
            "INSERT INTO mail_outbox (to_address, subject, text_body, variables)"
            " SELECT 'ann@example.org', 'bomb', 'a', jsonb_build_object('a', jsonb_agg(1e131071::numeric))"
            f" FROM generate_series(1, {numbers}) RETURNING id"
        )
        await lane.sql(
            "INSERT INTO mail_outbox (to_address, subject, text_body)"
            " VALUES ('bob@example.org', 'next', 'b') RETURNING id"
        )
        await asyncio.to_thread(work_once, tmp_path, postgres_url, f"smtp://127.0.0.1:{mails.port}?tls=none")
        assert [mail.recipients for mail in mails.mails] == [("bob@example.org",)]
        (bomb,) = await lane.sql("SELECT status, last_error FROM mail_outbox WHERE id = :id", id=row["id"])
        assert bomb["status"] == "failed"
        assert "message_too_large: it has more than 128 MiB" in bomb["last_error"]
