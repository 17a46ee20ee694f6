"""homing bulk: it counts, asks, acts, lists and stops."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Mapping
from io import StringIO
from typing import Any

import pytest
from tests.command import Homing, Result
from tests.desk.bulk import ANN, bulk_bench

DEAD = "status:dead lane:mail_outbox"
Bulk = Callable[..., Result]


@pytest.fixture
def bulk(homing: Homing, sqlite_url: str) -> Bulk:
    asyncio.run(fill(sqlite_url))
    return lambda *arguments: homing("bulk", *arguments, HOMING_DATABASE_URL=sqlite_url)


async def fill(url: str) -> None:
    async with bulk_bench(url) as bench:
        await bench.mails(5)
        await bench.mails(2, status="queued", error=None)


def states(url: str) -> dict[str, int]:
    async def read() -> dict[str, int]:
        async with bulk_bench(url) as bench:
            return await bench.states()

    return asyncio.run(read())


def told(result: Result) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_dry_run_tells_how_many_and_changes_nothing(bulk: Bulk, sqlite_url: str) -> None:
    assert told(bulk("requeue", DEAD, "--dry-run", "--json")) == {
        "dryRun": True, "total": 5, "isEstimate": False, "lanes": {"mail_outbox": 5},
    }  # fmt: skip
    plain = bulk("requeue", *DEAD.split(), "--dry-run")
    assert plain.returncode == 0
    assert "bulk: 5 messages would be requeued" in plain.stdout
    assert states(sqlite_url) == {"failed": 5, "queued": 2}


def test_a_line_that_means_nothing_says_so_and_a_mistake_where_it_is(bulk: Bulk) -> None:
    none = bulk("requeue", "status:waiting", "--yes")
    assert none.returncode == 0, none.stderr
    assert none.stdout == (
        "nothing was done: no message that is meant can be requeued; those that have ended and were not "
        "delivered can\n"
    )
    wrong = bulk("send-now", "sttus:waiting")
    assert wrong.returncode == 2
    assert "at character 1: no field `sttus`; did you mean status?" in wrong.stderr
    assert "write: homing bulk send-now 'status:waiting'" in wrong.stderr


def test_all_that_are_meant_are_changed_and_the_run_is_listed(bulk: Bulk, sqlite_url: str) -> None:
    done = bulk("requeue", DEAD, "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("run 1: done, 5 done in ")
    assert told(bulk("cancel", "lane:mail_outbox status:queued", "--yes", "--json"))["done"] == 7
    assert states(sqlite_url) == {"cancelled": 7}
    runs = told(bulk("list", "--json"))
    assert [(run["id"], run["verb"], run["state"], run["done"]) for run in runs] == [
        (2, "cancel", "done", 7),
        (1, "requeue", "done", 5),
    ]
    assert runs[0]["createdBy"].startswith("cli:")


def test_a_message_tells_the_runs_that_changed_it(bulk: Bulk, homing: Homing, sqlite_url: str) -> None:
    def show(id: str, *flags: str) -> Result:
        return homing("show", id, *flags, HOMING_DATABASE_URL=sqlite_url)

    assert bulk("requeue", DEAD, "--yes").returncode == 0
    assert DEAD in bulk("list").stdout
    homing("dispatch", HOMING_DATABASE_URL=sqlite_url, HOMING_MAIL_URL="memory://")
    shown = show("outbox_5").stdout
    # In the order of time: the attempt that it brought about stands below the run.
    assert shown.index("Requeued by bulk run 1 of cli:") < shown.index("delivered"), shown
    runs = told(show("outbox_5", "--json"))["bulkRuns"]
    assert [(one["run"], one["title"].partition(" of ")[0]) for one in runs] == [
        (1, "Requeued by bulk run 1"),
    ]
    assert "bulk run" not in show("outbox_6").stdout
    assert told(show("outbox_6", "--json"))["bulkRuns"] == []


def test_it_asks_before_it_acts(bulk: Bulk, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("n\n"))
    refused = bulk("requeue", DEAD)
    assert (refused.returncode, "requeue 5 messages?" in refused.stderr) == (1, True)
    assert "nothing was changed; with --yes it is not asked" in refused.stderr
    monkeypatch.setattr(sys, "stdin", StringIO(""))
    assert "nothing was changed; with --yes it is not asked" in bulk("requeue", DEAD).stderr
    assert states(sqlite_url) == {"failed": 5, "queued": 2}
    monkeypatch.setattr(sys, "stdin", StringIO("y\n"))
    assert bulk("requeue", DEAD).returncode == 0
    assert states(sqlite_url) == {"queued": 7}


def test_a_wrong_line_is_a_wrong_call(bulk: Bulk) -> None:
    wrong = bulk("requeue", "tpye:x", "--yes")
    assert (wrong.returncode, "did you mean" in wrong.stderr) == (2, True)
    assert bulk("stop", "99").returncode == 1
    assert bulk("send-now", "lane:mail_outbox status:failed", "--yes").returncode == 2


def test_waiting_messages_are_sent_now(bulk: Bulk) -> None:
    assert told(bulk("send-now", "lane:mail_outbox", "--yes", "--json"))["done"] == 2


def test_a_run_is_stopped(bulk: Bulk, sqlite_url: str) -> None:
    async def order() -> None:
        async with bulk_bench(sqlite_url) as bench:
            await bench.runs.start(DEAD, "requeue", ANN)

    asyncio.run(order())
    assert told(bulk("stop", "1", "--json"))["state"] == "cancelled"
    assert states(sqlite_url) == {"failed": 5, "queued": 2}


async def test_who_is_interrupted_leaves_the_rest_to_another(
    environment: Mapping[str, str], sqlite_url: str
) -> None:
    many = 40_000
    async with bulk_bench(sqlite_url) as bench:
        await bench.mails(many)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "homing", "bulk", "requeue", DEAD, "--yes",
            env={**environment, "HOMING_DATABASE_URL": sqlite_url},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        while not await bench.runs.page(limit=1) and process.returncode is None:
            await asyncio.sleep(0.02)
        await bench.until(1, lambda run: run.processed > 0)
        process.send_signal(signal.SIGINT)
        _, told = await process.communicate()
        assert process.returncode == 130, told.decode()
        assert "run 1 is left to `homing serve` or `homing work`" in " ".join(told.decode().split())
        left = await bench.now(1)
        assert left.finished_at is None
        runner = bench.runner()
        await runner.once(1)
        done = await bench.now(1)
        assert (done.state, done.done) == ("done", many)
        assert await bench.states() == {"queued": many}
