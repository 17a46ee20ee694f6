"""Credentials that are there at the upgrade may be used where they have been used."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.jobs import job
from tests.tables import Tables

from homing.db import Database, connect
from homing.db.migrate import load_migrations, migrate
from homing.lanes.dispatch_jobs.credentials import Credentials
from homing.lanes.dispatch_jobs.credentials.signing import allowed_of
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.target import Targets
from homing.vault import Vault


def _credentials(database: Database, id: int) -> dict[str, Any]:
    row: dict[str, Any] = {"id": id, "bearer_token": "sk_live"}
    if database.dialect == "mongodb":
        now = datetime.now(UTC)
        row |= {"algorithm": "HMAC_SHA256", "created_at": now, "updated_at": now}
    return row


async def test_an_upgrade_allows_what_jobs_have_used(jobs_database_url: str) -> None:
    database = connect(jobs_database_url)
    try:
        every = load_migrations(["homing.lanes.dispatch_jobs"], database.dialect)
        (ours,) = [one for one in every if one.name == "allowed_targets"]
        await migrate(database, [one for one in every if one.version < ours.version])
        urls = {
            1: [
                "https://a.example/x",
                "https://a.example/y",
                "https://bücher.example",
                "http://b.example:8080/",
            ],
            2: ["ftp://a.example"],
            3: [f"https://{n}.example/" for n in range(1001)],
            4: [],
        }
        for id in urls:
            await Tables(database).insert("dispatch_credentials", _credentials(database, id))
        jobs = DispatchJobs(database, Targets(slots=1, connections=1), owner="test", lease_seconds=60)
        for id, some in urls.items():
            await jobs.enqueue([job(url, credentials_id=id) for url in some])
        await jobs.enqueue([job("https://unsigned.example"), job("https://gone.example", credentials_id=5)])

        await migrate(database, every)
        credentials = Credentials(database, Vault([b"k" * 32]))
        found = [allowed_of(await credentials.describe(id)) for id in urls]
        used = frozenset(
            {"https://a.example:443", "https://xn--bcher-kva.example:443", "http://b.example:8080"}
        )
        assert found == [used, None, frozenset({"*"}), None]
    finally:
        await database.close()
