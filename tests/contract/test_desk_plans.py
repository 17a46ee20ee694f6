"""What the desk reads of dead letters: the newest by their index, wherever in the table they lie."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.desk.bulk import BulkBench, bulk_bench
from tests.http.door import url_with_tables

from homing.db import Dialect, load_queries
from homing.db.queries import Queries
from homing.messages.searched import BY_INDEX
from homing.messages.table_desk import dead_queries

ROWS = 6000
INDEXES = {"mail_outbox": "mail_outbox_ended", "dispatch_jobs": "homing_job_dead"}
QUERIES: Mapping[str, Callable[[str, Dialect], Queries]] = {
    "mail_outbox": dead_queries,
    "dispatch_jobs": lambda package, dialect: load_queries(package, dialect, "desk_dead"),
}
#: The dead are the oldest: who reads all from the newest on reads the whole table.
MAILS = (
    "SELECT 'ann@example.org', CASE WHEN i <= {rows} / 2 THEN 'failed' ELSE 'sent' END, 'timeout: x' FROM {n}"
)
JOBS = """
SELECT {id} i, 's', 't', 'http://127.0.0.1:9/', 'http://127.0.0.1:9', '{{}}',
    CASE WHEN i <= {rows} / 2 THEN 'ERROR' ELSE 'COMPLETED' END, 'timeout' FROM {n}
"""
NUMBERS = {
    "postgres": ("", f"generate_series(1, {ROWS}) AS n(i)", "homing_tsid() +"),
    "sqlite": (
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS}) ",
        "n WHERE true",
        "900000000000000000 +",
    ),
}


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return url_with_tables(tmp_path)


@pytest.fixture
def postgres_url(migrated_postgres_url: str) -> str:
    return migrated_postgres_url


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[BulkBench]:
    async with bulk_bench(database_url) as bench:
        before, numbers, id = NUMBERS[bench.homing.database.dialect]
        mails, jobs = (text.format(rows=ROWS, n=numbers, id=id) for text in (MAILS, JOBS))
        await bench.sql(
            f"INSERT INTO mail_outbox (to_address, status, last_error) {before}{mails} RETURNING 1 AS one"
        )
        columns = "id, source, type, target_url, target, payload, status, error_class"
        await bench.sql(f"INSERT INTO dispatch_job ({columns}) {before}{jobs} RETURNING 1 AS one")
        await bench.sql("ANALYZE")
        yield bench


async def plan(desk: BulkBench, lane: str, name: str, given: dict[str, Any]) -> str:
    """As the desk has it made, with what it sets for the transaction."""
    database = desk.homing.database
    queries = QUERIES[lane](f"homing.lanes.{lane}", database.dialect)
    word = "EXPLAIN" if database.dialect == "postgres" else "EXPLAIN QUERY PLAN"
    query = replace(queries[name], sql=f"{word} {queries[name].sql}")
    before = [BY_INDEX] if database.dialect == "postgres" else []
    rows = (await database.fetch_all([*before, query], given))[-1]
    return "\n".join(str(tuple(row)) for row in rows)


@pytest.mark.parametrize("lane", ["mail_outbox", "dispatch_jobs"])
@pytest.mark.parametrize("name", ["dead_codes", "dead_words"])
async def test_dead_letters_are_read_by_their_index(desk: BulkBench, lane: str, name: str) -> None:
    told = await plan(desk, lane, name, {"most": 100, "codes": 100})
    assert INDEXES[lane] in told, told
    for everything in ("Seq Scan on mail_outbox", "Seq Scan on dispatch_job", "SCAN mail_outbox", "SCAN j\n"):
        assert everything not in told, told
    # PostgreSQL reads rows that it knows the ids of by the key; from its end it reads everything.
    for from_the_end in ("Backward using mail_outbox_pkey", "Backward using dispatch_job_pkey"):
        assert from_the_end not in told, told
