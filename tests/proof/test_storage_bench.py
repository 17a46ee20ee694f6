"""What `homing bench storage` says is what PostgreSQL says."""

from __future__ import annotations

import pytest

from homing.proof.bench.storage import storage
from homing.testing.components.postgres import PostgresServer


@pytest.mark.slow
async def test_each_message_has_its_bytes(private_postgres: PostgresServer) -> None:
    """On a server of its own: the write-ahead log that is measured is that of all databases together."""
    table = await storage(1000, lambda _: None, postgres_url=private_postgres.url())
    assert [line.lane for line in table.lines] == ["mail_outbox", "dispatch_jobs"]
    for line in table.lines:
        assert 500 < line.wal_to_create < 5000
        assert line.wal_to_deliver > line.wal_to_create, "a claim and a settlement are two updates"
        assert 500 < line.table < 10_000
        assert 0 < line.indexes < 5000
