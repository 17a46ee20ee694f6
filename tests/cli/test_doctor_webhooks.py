"""What `homing doctor` says of webhooks: keys, credentials, egress, and the weeks of attempts."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from tests.command import Homing
from tests.jobs import job_bench

from homing.db import Query, connect

KEY, OTHER_KEY = b64encode(b"k" * 32).decode(), b64encode(b"o" * 32).decode()


def findings(homing: Homing, **settings: str) -> dict[str, Any]:
    result = homing("doctor", "--json", **settings)
    found = {finding["check"]: finding for finding in json.loads(result.stdout)}
    assert result.returncode == (0 if all(finding["ok"] for finding in found.values()) else 1)
    return found


def make_credentials(homing: Homing, count: int, **settings: str) -> list[str]:
    made = [homing("credentials", "create", "--json", **settings) for _ in range(count)]
    return [str(json.loads(one.stdout)["id"]) for one in made]


def test_a_key_file_is_looked_at_and_never_made(homing: Homing, tmp_path: Path) -> None:
    homing("migrate")
    none_yet = findings(homing)
    assert none_yet["encryption key"]["ok"]
    assert "none yet" in none_yet["encryption key"]["detail"]
    assert not (tmp_path / "homing.key").exists()
    make_credentials(homing, 1)
    assert "homing.key, mode 0600" in findings(homing)["encryption key"]["detail"]
    (tmp_path / "homing.key").chmod(0o644)
    loose = findings(homing)
    assert not loose["encryption key"]["ok"]
    assert "chmod 600" in loose["encryption key"]["detail"]
    assert not loose["credentials"]["ok"]


@pytest.mark.clause("JOB-24")
def test_credentials_that_no_key_opens_are_counted(homing: Homing, database_url: str, tmp_path: Path) -> None:
    here = {"HOMING_DATABASE_URL": database_url, "HOMING_MAIL_URL": "memory://"}
    homing("migrate", **here)
    assert findings(homing, **here)["credentials"]["detail"] == "0, and each can be opened"
    make_credentials(homing, 2, **here, HOMING_ENCRYPTION_KEY=KEY)
    (lost,) = make_credentials(homing, 1, **here, HOMING_ENCRYPTION_KEY=OTHER_KEY)
    both = findings(homing, **here, HOMING_ENCRYPTION_KEY=f"{KEY},{OTHER_KEY}")
    assert both["credentials"]["ok"]
    assert both["encryption key"]["detail"] == "HOMING_ENCRYPTION_KEY holds 2 keys"
    one = findings(homing, **here, HOMING_ENCRYPTION_KEY=KEY)["credentials"]
    assert not one["ok"]
    assert one["detail"].startswith("1 of 3 cannot be opened: add the key")
    without = findings(homing, **here)["credentials"]
    assert without["detail"].startswith("3 of 3 cannot be opened")
    assert not (tmp_path / "homing.key").exists(), "looking makes no key"
    mended = homing(
        "credentials", "rotate", lost, "--grace-seconds", "0", "--generate", "signing-secret",
        **here, HOMING_ENCRYPTION_KEY=KEY,
    )  # fmt: skip
    assert mended.returncode == 0, mended.stderr
    assert findings(homing, **here, HOMING_ENCRYPTION_KEY=KEY)["credentials"]["ok"]


async def _run(database_url: str, statement: str) -> None:
    database = connect(database_url)
    await database.fetch(Query("plain", statement, (), writes=True), {})
    await database.close()


@pytest.mark.clause("JOB-31")
def test_plain_credentials_are_counted(homing: Homing, database_url: str) -> None:
    here = {"HOMING_DATABASE_URL": database_url, "HOMING_MAIL_URL": "memory://"}
    homing("migrate", **here)
    make_credentials(homing, 1, **here, HOMING_ENCRYPTION_KEY=KEY)
    insert = (
        "INSERT INTO dispatch_credentials (id, bearer_token, signing_secret, algorithm)"
        " VALUES (1, 'sk_live_abc123', 'whsec_xyz789', 'HMAC_SHA256'), (2, NULL, 'whsec_b', 'HMAC_SHA256')"
    )
    asyncio.run(_run(database_url, insert))
    found = findings(homing, **here, HOMING_ENCRYPTION_KEY=KEY)["credentials"]
    assert found["ok"]
    assert "3, and each can be opened; 2 in plain text" in found["detail"]
    assert homing("credentials", "rewrap", **here, HOMING_ENCRYPTION_KEY=KEY).returncode == 0
    sealed = findings(homing, **here, HOMING_ENCRYPTION_KEY=KEY)["credentials"]
    assert sealed["detail"].startswith("3, and each can be opened; 2 for any target, until")
    for id in ("0000000000001", "0000000000002"):
        limited = homing(
            "credentials", "allow", id, "https://a.example", "--only", **here, HOMING_ENCRYPTION_KEY=KEY
        )
        assert limited.returncode == 0, limited.stderr
    limited = findings(homing, **here, HOMING_ENCRYPTION_KEY=KEY)["credentials"]
    assert limited["detail"] == "3, and each can be opened"


def test_a_key_that_is_none(homing: Homing) -> None:
    homing("migrate")
    found = findings(homing, HOMING_ENCRYPTION_KEY="short")
    assert "key 1 is not base64 of 32 bytes" in found["encryption key"]["detail"]
    assert not found["credentials"]["ok"]
    assert "short" not in json.dumps(found)


def test_where_webhooks_may_go(homing: Homing) -> None:
    homing("migrate")
    local = findings(homing, HOMING_EGRESS_ALLOW="10.1.0.0/16")
    assert local["egress"]["detail"] == "webhooks may go to public addresses, loopback, 10.1.0.0/16"
    assert local["plain http"]["ok"]
    strict = findings(homing, HOMING_ALLOW_HTTP="false")
    assert strict["egress"]["detail"] == "webhooks may go to public addresses"
    assert strict["plain http"]["detail"] == "webhooks go to https only"
    served = findings(homing, HOMING_HOST="192.0.2.1", HOMING_ENCRYPTION_KEY=KEY)
    assert served["egress"]["detail"] == "webhooks may go to public addresses"
    assert served["plain http"]["detail"] == "webhooks go to https only"
    risky = findings(
        homing, HOMING_HOST="192.0.2.1", HOMING_ALLOW_HTTP="true", HOMING_EGRESS_ALLOW="0.0.0.0/0"
    )
    assert [risky[check]["ok"] for check in ("egress", "plain http", "encryption key")] == [False] * 3
    assert "openssl rand -base64 32" in risky["encryption key"]["detail"]


def test_weeks_of_attempts_that_are_missing(homing: Homing, postgres_url: str) -> None:
    here = {"HOMING_DATABASE_URL": postgres_url, "HOMING_MAIL_URL": "memory://"}
    homing("migrate", **here)
    assert findings(homing, **here)["attempt weeks"]["ok"]

    async def lose_one() -> str:
        async with job_bench(postgres_url) as bench:
            rows = await bench.sql(
                "SELECT to_char((now() + interval '14 days') AT TIME ZONE 'UTC', "
                '\'"dispatch_attempt_"IYYY"w"IW\') AS week'
            )
            await bench.homing.database.run_script(f"DROP TABLE {rows[0]['week']}")
            return str(rows[0]["week"])

    lost = asyncio.run(lose_one())
    found = findings(homing, **here)["attempt weeks"]
    assert not found["ok"]
    assert found["detail"].startswith(f"{lost} missing")

    async def sweep() -> None:
        async with job_bench(postgres_url) as bench:
            await bench.jobs.sweep(100)

    asyncio.run(sweep())
    assert findings(homing, **here)["attempt weeks"]["ok"], "a worker makes them"
