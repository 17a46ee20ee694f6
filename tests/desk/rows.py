"""Rows of all lanes as other programs write them: by plain SQL, with the columns that they know."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from homing.app import Homing
from homing.db import Query
from homing.desk.desk import Found
from homing.desk.query import read
from homing.messages.model import Wanted
from homing.settings import Settings

#: 32 bytes of nothing; the links of subscribers are signed with it.
KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

MAILS = """
INSERT INTO mail_outbox (to_address, cc_address, subject, text_body, status, last_error, metadata, created_at)
VALUES
  ('Ann <ann@x.com>, bob@y.org', NULL, 'Hello Ann', 'hi', 'failed', 'invalid_recipient: no such user',
   '{"tenantId": "acme", "n": 5, "is_vip": true, "order \\"id\\"/é": "7 b"}', '2026-01-01T00:00:01Z'),
  ('carl@x.com', 'DORA@Z.com', 'Second', 'hi', 'queued', NULL, '["no object"]', '2026-01-01T00:00:02Z'),
  ('joann@x.com', NULL, '100% _off_', 'hi', 'sent', 'rate_limited: so far', NULL, '2026-01-01T00:00:03Z'),
  ('eve@x.com', NULL, 'Stopped', 'hi', 'cancelled', NULL, NULL, '2026-01-01T00:00:04Z'),
  ('not an address', NULL, 'Odd', NULL, 'failed', 'Connection refused', NULL, '2026-01-01T00:00:05Z');
"""
JOBS = """
INSERT INTO dispatch_job (source, type, target_url, payload, status, error_class, external_id, created_at)
VALUES
  ('shop', 'order.created', 'https://hooks.x.com/a?b=1', '{"n": 12345678901234567890123}', 'ERROR',
   'http_500', NULL, '2026-01-01T00:00:01.500Z'),
  ('shop', 'order.paid', 'https://hooks.x.com:8443/a', 'no json', 'PENDING', NULL, 'ext-1',
   '2026-01-01T00:00:02.500Z'),
  ('crm', 'user.created', 'http://hooks.x.com.evil.org/', '{}', 'COMPLETED', 'http_500', NULL,
   '2026-01-01T00:00:03.500Z');
INSERT INTO dispatch_job_metadata (dispatch_job_id, meta_key, meta_value)
SELECT id, 'tenantId', 'acme' FROM dispatch_job WHERE source = 'shop'
UNION ALL
SELECT id, 'order "id"/é', '7 b' FROM dispatch_job WHERE type = 'order.paid';
"""
EMAILS = """
INSERT INTO email_log (to_address, subject, body, status, dead_reason, last_error, created_at)
VALUES
  ('d@x.com', 'Dead one', 'b', 'Dead', 'MaxAttemptsExceeded', 'network_error: no route',
   '2026-01-01T00:00:01.700Z'),
  ('e@x.com', 'New one', 'b', 'Pending', NULL, NULL, '2026-01-01T00:00:02.700Z');
"""
NOTIFICATIONS = """
INSERT INTO open_events (term_id, campus_code, index_number, status_after, event_at, dedupe_key, payload)
VALUES ('2026F', 'NB', '12345', 'OPEN', '2026-01-01T00:00:00Z', 'key-1',
        '{"courseTitle": "Algebra", "sectionNumber": "01", "courseString": "01:640:151"}');
INSERT INTO subscriptions (term_id, campus_code, index_number, contact_value, status)
VALUES ('2026F', 'NB', '12345', 'zoe@x.com', 'active'), ('2026F', 'NB', '12345', 'adam@w.org', 'active');
INSERT INTO open_event_notifications
    (open_event_id, subscription_id, dedupe_key, fanout_status, error, created_at)
SELECT e.open_event_id, s.subscription_id, 'key-1',
    CASE WHEN s.contact_value = 'zoe@x.com' THEN 'Failed' ELSE 'pending' END,
    CASE WHEN s.contact_value = 'zoe@x.com' THEN '{"code": "provider_error", "message": "no"}' END,
    CASE WHEN s.contact_value = 'zoe@x.com' THEN '2026-01-01T00:00:01.800Z'
         ELSE '2026-01-01T00:00:02.800Z' END
FROM open_events AS e CROSS JOIN subscriptions AS s;
"""


class Bench:
    def __init__(self, homing: Homing) -> None:
        self.homing = homing
        self.desk = homing.desk

    async def fill(self) -> None:
        for script in (MAILS, JOBS, EMAILS, NOTIFICATIONS):
            await self.homing.database.run_script(self._in_dialect(script))

    def _in_dialect(self, script: str) -> str:
        if self.homing.database.dialect == "sqlite":
            return script
        return script.replace("THEN '2026", "THEN timestamptz '2026")

    async def run(self, sql: str) -> Any:
        writes = not sql.lstrip().upper().startswith("SELECT")
        return await self.homing.database.fetch(Query("test", sql, (), writes), {})

    def untold(self, lane: str) -> float | None:
        """So many failed attempts of the lane were not kept."""
        registry = self.homing.telemetry.registry
        return registry.get_sample_value("homing_attempts_untold_total", {"lane": lane})

    async def find(self, line: str, **options: Any) -> Found:
        wanted = read(line, datetime(2026, 1, 2, tzinfo=UTC))
        assert isinstance(wanted, Wanted), wanted
        return await self.desk.find(wanted, **{"may": lambda _scope: True, **options})

    async def titles(self, line: str, **options: Any) -> list[str]:
        """What is found, by what it is called."""
        found = await self.find(line, **options)
        assert found.notes == ()
        return [row.title for row in found.rows]


@asynccontextmanager
async def bench(url: str, *, migrates: bool = True, **settings: Any) -> AsyncIterator[Bench]:
    homing = Homing(Settings(database_url=url, encryption_key=KEY, **settings))
    try:
        if migrates:
            await homing.migrate()
        yield Bench(homing)
    finally:
        await homing.close()
