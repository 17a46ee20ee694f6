"""prune: what it tells, what it deletes, and what it refuses; on both databases."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from tests.command import Homing, Result
from tests.outbox import bench
from tests.tables import Tables

from homing.access.audit import Entry

Prune = Callable[..., Result]


async def fill(database_url: str) -> None:
    """Mails that were sent, or failed, 40 and 20 days ago, and some that wait."""
    async with bench(database_url) as lane:
        tables = Tables(lane.homing.database)
        for days in (40, 20):
            then = tables.time(await tables.now() - timedelta(days=days))
            for status in ("sent", "failed", "queued"):
                await lane.insert(status=status, created_at=then, next_attempt_at=then)


def command(homing: Homing, database_url: str) -> Prune:
    asyncio.run(fill(database_url))
    return lambda *arguments, **changes: homing(
        "prune", *arguments, HOMING_DATABASE_URL=database_url, **changes
    )


@pytest.fixture
def prune(homing: Homing, database_url: str) -> Prune:
    return command(homing, database_url)


@pytest.fixture
def prune_sqlite(homing: Homing, sqlite_url: str) -> Prune:
    """For what does not depend on the database."""
    return command(homing, sqlite_url)


def told(result: Result) -> dict[tuple[str, str], int]:
    assert result.returncode == 0, result.stderr
    return {
        (one["lane"], one["state"]): one["count"]
        for one in json.loads(result.stdout)["pruned"]
        if one["count"]
    }


BOTH = {("mail_outbox", "sent"): 1, ("mail_outbox", "failed"): 1}


def test_a_dry_run_tells_and_the_other_deletes(prune: Prune) -> None:
    assert told(prune("--older-than", "30d", "--dry-run", "--json")) == BOTH
    text = prune("--older-than", "30d", "--dry-run").stdout
    assert "mail_outbox" in text
    assert "2 rows would be deleted" in text
    assert told(prune("--older-than", "30d", "--yes", "--json")) == BOTH
    none = "prune: 0 rows; nothing that has ended is old enough\n"
    for flag in ("--yes", "--dry-run"):
        assert prune("--older-than", "30d", flag).stdout == none
    assert told(prune("--older-than", "1w", "--yes", "--json")) == BOTH, "those of 20 days ago"


def test_a_lane_and_a_state_are_chosen(prune_sqlite: Prune) -> None:
    assert told(prune_sqlite("--older-than", "30d", "--lane", "dispatch_jobs", "--dry-run", "--json")) == {}
    failed = ("--older-than", "30d", "--lane", "mail_outbox", "--state", "failed", "--json")
    assert told(prune_sqlite(*failed, "--yes")) == {("mail_outbox", "failed"): 1}
    assert told(prune_sqlite("--older-than", "30d", "--dry-run", "--json")) == {("mail_outbox", "sent"): 1}


def test_the_setting_is_used(prune_sqlite: Prune) -> None:
    ages = {"HOMING_RETENTION": "mail_outbox.sent=30d, mail_outbox.failed=90d"}
    assert told(prune_sqlite("--dry-run", "--json", **ages)) == {("mail_outbox", "sent"): 1}
    flag = ("--dry-run", "--json", "--older-than", "30d")
    assert told(prune_sqlite(*flag, **ages)) == BOTH, "a flag goes first"


def test_nothing_is_deleted_without_a_yes(prune_sqlite: Prune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("n\n"))
    result = prune_sqlite("--older-than", "30d")
    assert result.returncode == 1
    assert "delete 2 rows for good?" in result.stderr
    assert told(prune_sqlite("--older-than", "30d", "--dry-run", "--json")) == BOTH


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> str:
    async def make(url: str) -> str:
        async with bench(url):
            return url

    return asyncio.run(make(f"sqlite:///{tmp_path_factory.mktemp('prune')}/homing.db"))


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        ((), {}, "HOMING_RETENTION"),
        (("--older-than", "2h"), {}, "24h"),
        (("--older-than", "soon"), {}, "such as 30d"),
        (("--older-than", "30d", "--lane", "mails"), {}, "mail_outbox"),
        (("--older-than", "30d", "--state", "queued"), {}, "sent"),
        (("--older-than", "30d", "--lane", "email_log", "--state", "sent"), {}, "Sent"),
        ((), {"HOMING_RETENTION": "mail_outbox.snet=30d"}, "did you mean mail_outbox.sent"),
        ((), {"HOMING_RETENTION": "mail_outbox=1h"}, "24h"),
    ],
)
def test_a_wrong_call_is_told_how_to_be_right(
    homing: Homing, migrated: str, arguments: tuple[str, ...], changes: dict[str, Any], words: str
) -> None:
    result = homing("prune", *arguments, "--yes", HOMING_DATABASE_URL=migrated, **changes)
    assert result.returncode == 2
    assert words in result.stderr


def test_a_database_without_tables_is_told_of(homing: Homing, sqlite_url: str) -> None:
    result = homing("prune", "--older-than", "30d", HOMING_DATABASE_URL=sqlite_url)
    assert result.returncode == 3
    assert "homing migrate" in result.stderr


async def entries(database_url: str, *, age: timedelta | None = None) -> int:
    """How many entries the audit log has; of an age, if that is given."""
    async with bench(database_url) as lane:
        tables = Tables(lane.homing.database)
        if age is not None:
            then = tables.time(await tables.now() - age)
            await lane.homing.access.audit.write(Entry("user:ann", "messages.requeue"))
            await tables.change("homing_audit", {"at": then})
        return len(await tables.rows("homing_audit"))


def test_the_audit_log_goes_only_where_it_is_named(prune_sqlite: Prune, sqlite_url: str) -> None:
    assert asyncio.run(entries(sqlite_url, age=timedelta(days=400))) == 1
    assert told(prune_sqlite("--older-than", "30d", "--yes", "--json")) == BOTH
    assert asyncio.run(entries(sqlite_url)) > 1, "and that it was pruned is in it"
    one = {("audit", "done"): 1}
    assert told(prune_sqlite("--dry-run", "--json", HOMING_RETENTION="audit=1w")) == one
    assert told(prune_sqlite("--older-than", "30d", "--lane", "audit", "--yes", "--json")) == one
