"""What triggers do with the rights of the tables' owner, nobody else can make them do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

#: A message of each lane as another program would insert it, the state in which it is dead, and who notes it.
LANES = {
    "mail_outbox": ("(to_address) VALUES ('a@example.org')", "failed", "homing_mail_death"),
    "email_log": ("(to_address) VALUES ('a@example.org')", "Dead", "homing_email_death"),
    "dispatch_job": (
        "(source, type, target_url, target, payload) VALUES ('a', 'b', 'https://c.d/', 'x', '.')",
        "ERROR",
        "homing_job_death",
    ),
}
DEATH, TALLY = "message_id bigint, error text", "lane text, state text, count bigint"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def test_every_function_with_its_owners_rights_looks_at_temporary_tables_last(
    migrated_postgres_url: str,
) -> None:
    async with connected(migrated_postgres_url) as connection:
        rows = await connection.fetch(
            "SELECT p.oid::regprocedure::text AS name, p.proconfig AS settings FROM pg_proc AS p "
            "JOIN pg_namespace AS n ON n.oid = p.pronamespace "
            "WHERE p.prosecdef AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
        )
        assert len(rows) >= 6
        for row in rows:
            paths = [one for one in row["settings"] or [] if one.startswith("search_path=")]
            assert [path.rpartition(", ")[2] for path in paths] == ["pg_temp"], row["name"]


@pytest.mark.parametrize("table", LANES)
async def test_a_producer_cannot_put_a_table_of_its_own_in_the_way(
    table: str, migrated_postgres_url: str
) -> None:
    values, dead, deaths = LANES[table]
    role = f"shop_{migrated_postgres_url.rpartition('/')[2]}"[:60]
    async with connected(migrated_postgres_url) as connection:
        await connection.execute(
            f'CREATE ROLE "{role}"; GRANT INSERT, SELECT, UPDATE ON {table} TO "{role}"; '
            f'GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO "{role}"; SET ROLE "{role}"'
        )
        for name, columns in ((deaths, DEATH), ("homing_tally", TALLY)):
            await connection.execute(
                f"CREATE TEMP TABLE {name} ({columns}); GRANT ALL ON pg_temp.{name} TO PUBLIC"
            )
        await connection.execute(f"INSERT INTO {table} {values}")
        await connection.execute(f"UPDATE {table} SET status = '{dead}'")
        for name in (deaths, "homing_tally"):
            assert await connection.fetchval(f"SELECT count(*) FROM pg_temp.{name}") == 0
        await connection.execute(f'RESET ROLE; DROP OWNED BY "{role}"; DROP ROLE "{role}"')
        assert await connection.fetchval(f"SELECT count(*) FROM public.{deaths}") == 1
