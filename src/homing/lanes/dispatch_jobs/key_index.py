"""The unique index of idempotency keys, which knew nothing of credentials in the version before.

A process of that version names the columns of its index in ON CONFLICT, and a second unique index beside it
would make an error of two that create one job at the same time. So the former index stays until the last such
process has stopped. They are those that began before migration 0006: none of them starts after it. Until
then, a key that is used with other credentials is a conflict, as it was. Our inserts agree with both indexes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from homing.db import Database, Query, instant
from homing.db.queries import Dialect

_SINCE = (
    "SELECT applied_at FROM homing_migration WHERE component = 'dispatch_jobs' AND version = 6"
    " AND (({has_former}) OR NOT ({has_ours}))"
)
_FORMER, _OURS = "homing_job_idempotency", "homing_job_key"


def _since(exists: str) -> str:
    return _SINCE.format(has_former=exists.format(_FORMER), has_ours=exists.format(_OURS))


_FORMER_SINCE: Final[Mapping[Dialect, str]] = {
    "postgres": _since("to_regclass('{}') IS NOT NULL"),
    "sqlite": _since("EXISTS (SELECT 1 FROM sqlite_master WHERE name = '{}')"),
}
_REPLACE: Final = """{timeout}
DROP INDEX IF EXISTS homing_job_idempotency;
CREATE UNIQUE INDEX IF NOT EXISTS homing_job_key
    ON dispatch_job (idempotency_key, source, type, {url}, coalesce(credentials_id, 0))
    WHERE idempotency_key IS NOT NULL;
"""
_SCRIPTS: Final[Mapping[Dialect, str]] = {
    # Whoever wants to write waits behind us: not for long, it is tried again.
    "postgres": _REPLACE.format(timeout="SET LOCAL lock_timeout = '1s';", url="md5(target_url)"),
    "sqlite": _REPLACE.format(timeout="", url="target_url"),
}


async def former_key_index_until(database: Database) -> datetime | None:
    """Processes that began before then need the former index; None when ours has taken its place."""
    if database.dialect == "mongodb":
        # Its migration replaces the index: nothing names it by its columns there.
        return None
    query = Query("former_key_index", _FORMER_SINCE[database.dialect], (), writes=False)
    rows = await database.fetch(query, {})
    return instant(rows[0]["applied_at"]) if rows else None


async def replace_key_index(database: Database) -> None:
    """In one transaction: no job slips through without an index."""
    if database.dialect != "mongodb":
        await database.run_script(_SCRIPTS[database.dialect])
