"""MongoDB as a database of ours: transactions, contests, wake-ups, outages, and errors in our words."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Mapping
from importlib.resources import files
from typing import Any

import pytest
from tests.jobs import eventually, job_bench

from homing.app import Homing
from homing.db import Query, connect
from homing.db.migrate import check, load_migrations, migrate
from homing.db.mongo import MongoDatabase, Session
from homing.db.queries import load_queries
from homing.engine.model import Complete
from homing.errors import Conflict, DatabaseError, Refused, SettingsError, Unreachable
from homing.lanes.dispatch_jobs.job import Report
from homing.settings import load_settings
from homing.testing.components.mongodb import MongoDbServer

PACKAGE = "homing.lanes.dispatch_jobs"


@pytest.fixture
async def database(mongodb_url: str) -> AsyncIterator[MongoDatabase]:
    opened = MongoDatabase(mongodb_url)
    yield opened
    await opened.close()


def query(operation: Any) -> Query:
    return Query("test", "", (), True, operation)


async def add_one(session: Session, given: Mapping[str, Any]) -> list[Any]:
    """Reads, waits until the others have read, and writes: without transactions all but one were lost."""
    found = await session.find("counter", {"_id": 1})
    await asyncio.sleep(0.01)
    count = found[0]["count"] if found else 0
    await session.update_one("counter", {"_id": 1}, {"$set": {"count": count + 1}}, upsert=True)
    return []


async def test_transactions_that_meet_are_begun_again_until_each_has_its_turn(
    database: MongoDatabase,
) -> None:
    await asyncio.gather(*(database.fetch_all([query(add_one)], {}) for _ in range(8)))
    (counted,) = await database.opened["counter"].find().to_list()
    assert counted["count"] == 8


async def test_a_transaction_that_fails_leaves_nothing(database: MongoDatabase) -> None:
    async def refuse(_session: Session, _given: Mapping[str, Any]) -> list[Any]:
        raise Refused("not this one")

    with pytest.raises(Refused, match="not this one"):
        await database.fetch_all([query(add_one), query(refuse)], {})
    assert await database.opened["counter"].find().to_list() == []


async def test_who_is_in_the_way_for_too_long_is_a_conflict(
    database: MongoDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.db.mongo._CONTEST_TIMEOUT", 0.1)
    await database.opened["counter"].insert_one({"_id": 1, "count": 0})
    async with database.opened.client.start_session() as other, await other.start_transaction():
        await database.opened["counter"].update_one({"_id": 1}, {"$inc": {"count": 1}}, session=other)
        with pytest.raises(Conflict):
            await database.fetch_all([query(add_one)], {})


async def test_migrations_are_applied_once_by_however_many(mongodb_url: str) -> None:
    databases = [connect(mongodb_url) for _ in range(4)]
    try:
        migrations = load_migrations([PACKAGE], "mongodb")
        assert (await check(databases[0], migrations)).migrations == tuple(migrations)
        done = await asyncio.gather(*(migrate(one, migrations) for one in databases))
        assert sorted(applied for one in done for applied in one) == migrations, "each by one of them"
        assert (await check(databases[0], migrations)).migrations == ()
        assert await migrate(databases[0], migrations) == []
    finally:
        for one in databases:
            await one.close()


def test_every_query_of_sql_is_there() -> None:
    """Whoever writes a query for one database is told here of the others."""
    sql_only = {"router_config", "put_router_config"}
    for package in (PACKAGE, f"{PACKAGE}.credentials"):
        wanted = set(load_queries(package, "postgres")) - sql_only
        there = set(load_queries(package, "mongodb"))
        assert wanted <= there
        # What has a file of its own may be left to the databases of SQL, but has the same names.
        names = [file.name for file in files(package).iterdir() if file.name.endswith("_postgres.sql")]
        known = [name.removesuffix("_postgres.sql") for name in names]
        also = {name for subject in known for name in load_queries(package, "postgres", subject)}
        also |= set(load_queries("homing.alerts", "postgres", "deaths", deaths="homing_job_death"))
        assert there - wanted <= also
    assert set(load_queries(PACKAGE, "postgres", "targets")) <= set(load_queries(PACKAGE, "mongodb"))


async def test_wake_ups_reach_other_processes(mongodb_url: str) -> None:
    here, there = MongoDatabase(mongodb_url), MongoDatabase(mongodb_url)
    heard = asyncio.Event()
    try:
        there.listen("jobs", heard.set)
        # A listener is woken when it begins, for whatever it missed.
        await asyncio.wait_for(heard.wait(), 60)
        for _ in range(3):
            heard.clear()
            here.announce("jobs")
            await asyncio.wait_for(heard.wait(), 60)
    finally:
        await here.close()
        await there.close()


async def test_values_that_are_not_taken_are_refused_without_being_quoted(mongodb_url: str) -> None:
    async with job_bench(mongodb_url) as lane:
        for wrong in ({"source": "secret" * 50}, {"retry_strategy": "secret"}, {"max_retries": 2**70}):
            with pytest.raises(Refused) as refused:
                await lane.create("https://a.example/", **wrong)
            assert "secret" not in str(refused.value)
        with pytest.raises(Refused) as refused:
            await lane.create("https://a.example/", 2, payload="x" * 17_000_000)
        assert await lane.tables.rows("dispatch_job") == []


def close_what_the_driver_left() -> None:
    """Stopped while it connects, it leaves the socket to the garbage collector, which complains later."""
    for found in [one for one in gc.get_objects() if issubclass(type(one), socket.socket)]:
        if found.fileno() >= 0 and found.family == socket.AF_INET and found.getsockname() == ("0.0.0.0", 0):
            found.close()


async def test_a_crash_and_an_outage_lose_nothing_and_heal_by_themselves(
    private_mongodb: MongoDbServer,
) -> None:
    async with job_bench(private_mongodb.create_database()) as lane:
        ids = await lane.create("https://a.example/", 20)
        claims = await lane.claim(10)
        await lane.jobs.settle([(claim, Complete(Report(0.1, 200, "", {}))) for claim in claims[:5]])
        private_mongodb.stop(immediate=True)
        lost = asyncio.gather(*(lane.jobs.counts() for _ in range(3)), return_exceptions=True)
        private_mongodb.start()
        assert all(isinstance(one, dict | Unreachable) for one in await lost)

        async def is_back() -> bool:
            try:
                return bool(await lane.jobs.counts())
            except DatabaseError:
                return False

        await eventually(is_back, 30)
        counts = await lane.jobs.counts()
        assert (counts["COMPLETED"], counts["IN_PROGRESS"], counts["PENDING"]) == (5, 5, 10)
        assert len(await lane.jobs.renew(claims)) == 5
        assert len(ids) == sum(counts.values())
    close_what_the_driver_left()


async def test_a_server_that_hangs_up_is_unreachable_and_its_password_stays_untold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("homing.db.mongo._CONNECT_TIMEOUT", 0.2)

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        database = MongoDatabase(f"mongodb://user:hunter2@127.0.0.1:{port}/name")
        with pytest.raises(Unreachable, match=rf"mongodb://\*\*\*@127.0.0.1:{port}/name") as error:
            await database.fetch(load_queries(PACKAGE, "mongodb")["counts"], {})
        assert "hunter2" not in str(error.value)
        await database.close()
    close_what_the_driver_left()


def test_urls() -> None:
    assert MongoDatabase("mongodb://h1:1,h2:2/jobs?replicaSet=a")._name == "jobs"
    assert MongoDatabase("mongodb://h1")._name == "homing"
    with pytest.raises(SettingsError, match="no URL of MongoDB"):
        assert MongoDatabase("mongodb://").opened


async def test_the_doctor_looks_at_version_and_replica_set(database: MongoDatabase) -> None:
    findings = {name: well for name, well, _ in await database.findings()}
    assert findings == {"MongoDB version": True, "MongoDB replica set": True}


def test_only_jobs_can_be_in_mongodb() -> None:
    with pytest.raises(SettingsError, match="HOMING_JOBS_DATABASE_URL"):
        Homing(load_settings({"database_url": "mongodb://127.0.0.1/homing"}, environ={}))
