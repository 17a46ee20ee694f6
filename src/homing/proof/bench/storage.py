"""What a message costs on disk: bytes of write-ahead log, and of table and indexes, for each one delivered.

Mails go to memory and webhooks to nginx: what is measured is PostgreSQL, which does not care.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import asyncpg
from msgspec import Struct

from homing.app import Homing
from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.outbox import new_token
from homing.lines import Line
from homing.proof.bench.sample_mails import sample_mail
from homing.proof.bench.servers import fresh_database, postgres
from homing.proof.bench.webhook_homing import fill_jobs, webhook_settings
from homing.proof.bench.webhook_race import webhook_sink
from homing.settings import load_settings
from homing.telemetry import Telemetry

Step = Callable[[str], None]
Fill = Callable[[Homing, int], Awaitable[None]]

_AT_ONCE = 1000
_SIZES = """
SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint AS wal, sum(pg_table_size(oid))::bigint AS tables,
    sum(pg_indexes_size(oid))::bigint AS indexes
FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""


class StorageLine(Struct, frozen=True):
    """Bytes for each message."""

    lane: str
    wal_to_create: float
    wal_to_deliver: float
    table: float
    indexes: float


class StorageTable(Struct, frozen=True):
    messages: int
    lines: tuple[StorageLine, ...]
    budgets: tuple[()] = ()


async def storage(messages: int, step: Step, *, postgres_url: str | None = None) -> StorageTable:
    with postgres(postgres_url) as server, webhook_sink() as sink:

        async def fill_webhooks(homing: Homing, count: int) -> None:
            await fill_jobs(homing, count, sink.port)

        step("mails")
        with fresh_database(server) as url:
            settings = load_settings({"database_url": url, "mail_url": "memory://"}, environ={})
            homing = Homing(settings, Telemetry())
            mails = await _measured(homing, messages, _fill_mails, lambda homing: homing.mail)
        step("webhooks")
        with fresh_database(server) as url:
            homing = Homing(webhook_settings(url), Telemetry())
            webhooks = await _measured(homing, messages, fill_webhooks, lambda homing: homing.webhooks)
    return StorageTable(messages, (mails, webhooks))


async def _measured(homing: Homing, count: int, fill: Fill, line_of: Callable[[Homing], Line]) -> StorageLine:
    await homing.migrate()
    empty = await _sizes(homing)
    await fill(homing, count)
    filled = await _sizes(homing)
    line = line_of(homing)
    await line.worker().drain()
    await line.deliverer.drain(5)
    delivered = await _sizes(homing)
    await homing.close()
    return StorageLine(
        line.lane.name,
        (filled["wal"] - empty["wal"]) / count,
        (delivered["wal"] - filled["wal"]) / count,
        (delivered["tables"] - empty["tables"]) / count,
        (delivered["indexes"] - empty["indexes"]) / count,
    )


async def _fill_mails(homing: Homing, count: int) -> None:
    for first in range(0, count, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, count))
        await homing.outbox.enqueue([_mail(number) for number in numbers])


def _mail(number: int) -> NewMail:
    mail = sample_mail(number)
    return NewMail(
        token=new_token(), to_address=mail.to, subject=mail.subject, text_body=mail.text, html_body=mail.html
    )


async def _sizes(homing: Homing) -> asyncpg.Record:
    connection = await asyncpg.connect(homing.settings.database_url)
    try:
        row = await connection.fetchrow(_SIZES)
        assert row is not None
        return row
    finally:
        await connection.close()
