"""Another program holds its lock for longer than the database waits: commands wait, and lose nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from tests.lanes.open_events.test_adopt import FOREIGN
from tests.notifications import notification_bench, sqlite_path

from homing.app import Homing, opened
from homing.cli.jobs import Verb
from homing.cli.notifications import act_on_ids, check
from homing.errors import Conflict
from homing.settings import load_settings


def impatient(url: str) -> Any:
    given = {"database_url": f"{url}?busy_timeout=0.05", "mail_url": "memory://"}
    return opened(load_settings(given, environ={}), makes_file=True)


@contextmanager
def held(url: str, *, journal: str = "wal") -> Iterator[Callable[[], object]]:
    """A transaction of another program that writes; what is yielded ends it."""
    other = sqlite3.connect(sqlite_path(url), isolation_level=None)
    other.execute(f"PRAGMA journal_mode = {journal}")
    # Where there is no WAL this keeps readers out as well, as the last moments of each commit do.
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield lambda: other.execute("COMMIT")
    finally:
        other.close()


def let_go_after(
    conflicts: int, homing: Homing, let_go: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """End it when so many calls were in vain, so that no test depends on how quick a machine is."""
    seen: list[str] = []

    def watch(name: str) -> None:
        real = getattr(homing.notify_database, name)

        async def call(*given: Any) -> Any:
            try:
                return await real(*given)
            except Conflict:
                seen.append(name)
                if len(seen) == conflicts:
                    let_go()
                raise

        monkeypatch.setattr(homing.notify_database, name, call)

    for name in ("fetch", "fetch_all", "run_script"):
        watch(name)
    return seen


@pytest.mark.clause("NTF-01")
@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_migrate_waits(sqlite_url: str, journal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with sqlite3.connect(sqlite_path(sqlite_url)) as file:
        for statement in FOREIGN.values():
            file.execute(statement)
    file.close()
    async with impatient(sqlite_url) as homing:
        with held(sqlite_url, journal=journal) as let_go:
            seen = let_go_after(2, homing, let_go, monkeypatch)
            applied = await homing.migrate()
        assert len(seen) == 2
        assert "open_events 0001 open_events" in map(str, applied), "all that was applied is told"
        assert len(applied) == len(homing.migrations)


@pytest.mark.clause("NTF-16")
@pytest.mark.parametrize("journal", ["wal", "delete"])
@pytest.mark.parametrize(("verb", "before"), [("requeue", "failed"), ("cancel", "pending")])
async def test_requeue_and_cancel_wait(
    sqlite_url: str, verb: str, before: str, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with notification_bench(sqlite_url) as bench:
        id = await bench.notification(fanout_status=before)
    async with impatient(sqlite_url) as homing:
        with held(sqlite_url, journal=journal) as let_go:
            seen = let_go_after(2, homing, let_go, monkeypatch)
            await check(homing, cast(Verb, verb), [id])
            assert await act_on_ids(homing, cast(Verb, verb), [id]) == 1
        assert len(seen) == 2


async def test_patience_ends(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with notification_bench(sqlite_url) as bench:
        id = await bench.notification(fanout_status="failed")
    async with impatient(sqlite_url) as homing:
        with held(sqlite_url) as let_go:
            seen = let_go_after(100, homing, let_go, monkeypatch)
            with pytest.raises(Conflict, match="locked by another process"):
                await act_on_ids(homing, "requeue", [id])
        assert len(seen) == 4
