"""status, list, show, requeue and cancel, for jobs as for mails: on both databases, with a real receiver."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from tests.command import Homing, Result
from tests.jobs import JobBench, job, job_bench

from homing.cli.operator import moment_since
from homing.errors import InvalidRequest
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.testing.http_sink import Answer, HttpSink

ANSWERS = {
    "/ok": Answer(body=b"thanks"),
    "/broken": Answer(status=500, body=b"\x1b[2Joops"),
    "/broken/too": Answer(status=500),
    "/gone": Answer(status=410),
    "/busy": Answer(status=429, headers=(("Retry-After", "600"),)),
    "/busy/too": Answer(status=429, headers=(("Retry-After", "600"),)),
}


class Shop:
    """A database with jobs in it, and the commands that look at them."""

    def __init__(self, homing: Homing, database_url: str) -> None:
        self.url = database_url
        self._homing = homing

    def __call__(self, *arguments: str, **changes: str) -> Result:
        return self._homing(*arguments, **{"HOMING_DATABASE_URL": self.url, **changes})

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def ids(self, *arguments: str) -> list[str]:
        return [message["id"] for message in self.json("list", *arguments)]

    def have(self, fill: Callable[[JobBench, str], Awaitable[list[int]]], **settings: Any) -> list[str]:
        """Fill the table, with a receiver to send to; the ids of what was made."""

        async def run() -> list[int]:
            async with HttpSink(ANSWERS) as sink, job_bench(self.url, **settings) as bench:
                return await fill(bench, sink.url)

        return [text_of(id) for id in asyncio.run(run())]


@pytest.fixture
def shop(homing: Homing, database_url: str) -> Shop:
    shop = Shop(homing, database_url)
    assert shop("migrate").returncode == 0
    return shop


#: A key as JOB-34 allows it.
ODD = 'order id/="x"'


async def six_jobs(bench: JobBench, url: str) -> list[int]:
    """Two of each: ended well, dead of a 410, waiting."""
    ended = await bench.create(f"{url}/ok", 2)
    dead = await bench.create(
        f"{url}/gone", 2, type="order.cancelled", metadata={"tenantId": "acme", "n": "1"}
    )
    await bench.run_batch()
    waiting = await bench.create(
        f"{url}/ok",
        2,
        metadata={ODD: "a=b"},
        source="billing",
        group_id="g1",
        scheduled_for="2999-01-01T00:00:00.000Z",
    )
    return [*ended, *dead, *waiting]


def test_status_shows_both_lanes_and_who_is_held_back(shop: Shop) -> None:
    async def fill(bench: JobBench, url: str) -> list[int]:
        for path in ("broken", "broken/too"):
            await bench.create(f"{url}/{path}", credentials_id=None)
            await bench.run_batch()
        (await bench.create(f"{url}/busy", type="paused"))
        return await bench.create(f"{url}/ok")

    shop.have(fill, jobs_breaker_failures=2)
    told = shop.json("status")
    assert told["mail_outbox"]["queued"] == 0
    assert (told["dispatch_jobs"]["PENDING"], told["dispatch_jobs"]["FAILED"]) == (2, 2)
    assert told["dispatch_jobs"]["oldestDueSeconds"] >= 0
    (held,) = told["dispatch_jobs"]["targetsHeldBack"]
    assert (held["state"], held["failures"], held["lastError"]) == ("open", 2, "HTTP 500")
    assert told["mail_outbox"]["heldBack"] == {"count": 0, "orMore": False, "since": None, "targets": []}
    text = shop("status").stdout
    for words in ("mail_outbox", "dispatch_jobs", "PENDING", "targets that are held back", held["target"]):
        assert words in text


def test_a_target_that_asked_for_a_pause_is_held_back(shop: Shop) -> None:
    async def fill(bench: JobBench, url: str) -> list[int]:
        for path in ("busy", "busy/too"):
            await bench.create(f"{url}/{path}")
            await bench.run_batch()
        return await bench.create(f"{url}/ok")

    (waiting,) = shop.have(fill)
    told = shop.json("status")["dispatch_jobs"]
    (held,) = told["targetsHeldBack"]
    assert held["state"] == "paused"
    due = told["heldBack"]
    assert (due["count"], due["orMore"], due["targets"]) == (1, False, [held["target"]])
    assert due["since"].endswith("Z")
    text = " ".join(shop("status").stdout.split())
    assert f"1 since {due['since']}" in text
    assert shop.json("show", waiting)["waitingFor"]["reason"] == "target_paused"
    shown = shop("show", waiting).stdout
    assert f"target_paused, until {held['until']}: its target is paused" in shown
    assert "no attempt so far" in shown


def test_jobs_are_listed_by_every_filter(shop: Shop) -> None:
    ids = shop.have(six_jobs)
    newest = ids[::-1]
    assert shop.ids("--lane", "dispatch_jobs") == newest
    for arguments, expected in (
        (("--status", "COMPLETED"), [ids[1], ids[0]]),
        (("--status", "error"), [ids[3], ids[2]]),
        (("--lane", "dispatch_jobs", "--status", "cancelled"), []),
        (("--source", "billing"), [ids[5], ids[4]]),
        (("--type", "order.cancelled"), [ids[3], ids[2]]),
        (("--group", "g1"), [ids[5], ids[4]]),
        (("--error-class", "http_410"), [ids[3], ids[2]]),
        (("--metadata", "tenantId=acme", "--metadata", "n=1"), [ids[3], ids[2]]),
        (("--metadata", "tenantId=acme", "--metadata", "n=2"), []),
        (("--metadata", '"order id/=\\"x\\""=a=b'), [ids[5], ids[4]]),
        (("--metadata", '"order id/=\\"x\\""=b'), []),
        (("--since", "1h"), newest),
        (("--since", "2999-01-01T00:00:00Z"), []),
        (("--since", "1h", "--status", "PENDING"), [ids[5], ids[4]]),
    ):
        assert shop.ids(*arguments) == expected, arguments
    text = shop("list", "--status", "ERROR").stdout
    assert all(words in text for words in (ids[2], "order.cancelled", "HTTP 410", "127.0.0.1:"))
    assert "no jobs" in shop("list", "--type", "unheard.of").stdout
    assert shop.ids() == [], "mails, unless jobs are asked for"


@pytest.mark.parametrize("filters", [("--lane", "dispatch_jobs"), ("--metadata", "of=all"), ("--type", "t")])
def test_pages_meet_without_a_gap(shop: Shop, filters: tuple[str, ...]) -> None:
    async def fill(bench: JobBench, url: str) -> list[int]:
        return await bench.create(f"{url}/ok", 8, type="t", metadata={"of": "all"})

    ids = shop.have(fill)[::-1]
    seen = first = shop.ids(*filters, "--limit", "3")
    while first:
        first = shop.ids(*filters, "--limit", "3", "--before", seen[-1])
        seen += first
    assert seen == ids
    more = shop("list", *filters, "--limit", "3")
    assert f"--before {ids[2]}" in more.stderr
    assert shop("list", *filters, "--limit", "9").stderr == ""


def test_show_tells_each_attempt_and_what_a_job_waits_for(shop: Shop) -> None:
    async def fill(bench: JobBench, url: str) -> list[int]:
        group: dict[str, Any] = {"ordering": "group", "group_id": "g"}
        ids = await bench.create(f"{url}/broken", max_retries=3, headers={"X-Shop": "1"}, **group)
        await bench.run_batch()
        return [*ids, *await bench.create(f"{url}/ok", payload="x" * 3000, **group)]

    first, second = shop.have(fill)
    shown = shop.json("show", first)
    assert (shown["status"], shown["waitingFor"]["reason"]) == ("FAILED", "retry")
    assert [(a["attemptNumber"], a["responseCode"]) for a in shown["attempts"]] == [(1, 500)]
    text = shop("show", first.lower()).stdout
    for words in ("retry, until ", "it is tried again after: HTTP 500", "X-Shop: 1", "FAILURE", "500"):
        assert words in text
    assert "\x1b" not in text, "an answer must not command the terminal"
    assert "[2Joops" in text
    behind = shop("show", second).stdout
    assert f"group: job {first} of its group comes first and is FAILED" in behind
    assert "(3,000 characters; --json shows them all)" in behind


@pytest.mark.clause("RTY-15", "JOB-22", "JOB-30")
def test_show_tells_that_a_lost_worker_may_have_delivered(shop: Shop) -> None:
    """When the receiver says that it came twice, the command line must not say that this cannot be."""

    async def lose(bench: JobBench, url: str) -> list[int]:
        ids = await bench.create(f"{url}/ok")
        await bench.claim()
        await bench.pass_time(1000)
        assert await bench.jobs.rescue(10) == 1
        return ids

    async def fill(bench: JobBench, url: str) -> list[int]:
        first = await lose(bench, url)
        assert [*await bench.run_batch()] == first
        return [*first, *await lose(bench, url)]

    delivered, waiting = shop.have(fill)
    shown = shop.json("show", waiting)
    (lost,) = shown["attempts"]
    assert (lost["status"], lost["errorMessage"]) == ("FAILURE", "outcome unknown: worker lost")
    assert lost["unknown"]
    assert lost["worker"]
    assert "outcome unknown: worker lost (it may have been processed)" in shop("show", waiting).stdout

    shown = shop.json("show", delivered)
    assert [one["status"] for one in shown["attempts"]] == ["FAILURE", "SUCCESS"]
    text = shop("show", delivered).stdout
    assert text.index("outcome unknown: worker lost") < text.index("SUCCESS")


def test_ids_of_both_lanes_are_acted_on_together_or_not_at_all(shop: Shop) -> None:
    ids = shop.have(six_jobs)
    asyncio.run(_mail(shop.url))
    assert "requeue: 2 jobs would be changed" in shop("requeue", ids[2], ids[3], "--dry-run").stdout
    for arguments, words in (
        (("cancel", "outbox_1", ids[0]), f"{ids[0]} is COMPLETED; cancel takes PENDING, FAILED"),
        (("cancel", ids[4], "outbox_7"), "there is no mail outbox_7"),
        (("cancel", "1", "0000000000001"), "there is no job 0000000000001"),
        (("requeue", ids[2], ids[4]), "nothing was changed"),
        (("show", "0000000000001"), "there is no job"),
        (("show", "0ARYZVZXW372SX"), "0ARYZVZXW372S (a job)"),
    ):
        result = shop(*arguments)
        assert result.returncode == 1, arguments
        assert words in result.stderr
    assert shop.json("status")["dispatch_jobs"]["CANCELLED"] == 0
    assert "cancel: 1 mail and 2 jobs" in shop("cancel", "1", ids[4], ids[5], ids[5]).stdout
    assert shop.json("requeue", *ids[2:4]) == {"dryRun": False, "requeue": 2}
    told = shop.json("status")
    assert told["mail_outbox"]["cancelled"] == 1
    assert (told["dispatch_jobs"]["CANCELLED"], told["dispatch_jobs"]["PENDING"]) == (2, 2)


async def _mail(url: str) -> None:
    async with job_bench(url) as bench:
        await bench.sql(
            "INSERT INTO mail_outbox (to_address, subject, text_body) VALUES ('ann@example.org', 'Hi', 'Hi') "
            "RETURNING id"
        )


def test_all_with_filters_counts_asks_and_acts(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = shop.have(six_jobs)
    answer = partial(monkeypatch.setattr, sys, "stdin")
    dead = ("--all", "ERROR", "--metadata", "tenantId=acme", "--since", "1h")
    assert shop.json("requeue", *dead, "--dry-run") == {"dryRun": True, "requeue": 2, "more": False}
    answer(io.StringIO("n\n"))
    refused = shop("requeue", *dead)
    assert refused.returncode == 1
    assert "requeue 2 jobs?" in refused.stderr
    assert shop.ids("--status", "ERROR") == [ids[3], ids[2]]
    answer(io.StringIO("y\n"))
    assert "requeue: 2 jobs" in shop("requeue", *dead).stdout
    assert shop.ids("--status", "ERROR") == []
    for none in (dead, ("--all", "failed"), ("--all", "Dead")):
        told = shop("requeue", *none)
        assert (told.returncode, told.stdout[:10], told.stderr.strip()) == (0, "requeue: 0", "")
    assert shop.json("cancel", "--all", "any", "--source", "billing", "-y")["cancel"] == 2
    assert shop.json("cancel", "--all", "any", "--lane", "dispatch_jobs", "-y")["cancel"] == 2
    assert shop.json("requeue", "--all", "CANCELLED", "--source", "billing", "-y")["requeue"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list", "--lane", "mail_outbox", "--source", "x"), "--source chooses jobs"),
        (("list", "--lane", "dispatch_jobs", "--status", "sent"), "dispatch_jobs has PENDING"),
        (("list", "--status", "odd"), "mail_outbox has queued"),
        (("list", "--metadata", "tenant"), "KEY=VALUE"),
        (("list", "--metadata", "a=1", "--metadata", "a=2"), "given twice"),
        (("list", "--since", "yesterday"), "is no time: write 90s"),
        (("requeue", "--all", "PENDING"), "only ERROR, CANCELLED, or any"),
        (("cancel", "--all", "any"), "--lane dispatch_jobs"),
        (("requeue", "--source", "x"), "name the messages to requeue"),
        (("requeue", "1", "--source", "x"), "name the messages to requeue"),
        (("requeue", "--all", "CANCELLED", "--error-class", "http_500"), "leave status out"),
    ],
)
def test_a_wrong_call_says_how_to_mend_it(homing: Homing, arguments: tuple[str, ...], words: str) -> None:
    homing("migrate")
    result = homing(*arguments)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr


def test_since_is_a_duration_or_a_time() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    assert moment_since("90s", now) == now - timedelta(seconds=90)
    assert moment_since("2h", now) == now - timedelta(hours=2)
    assert moment_since("1w", now) == now - timedelta(weeks=1)
    assert moment_since("2026-05-04T13:00:00+02:00", now) == datetime(2026, 5, 4, 11, tzinfo=UTC)
    assert moment_since("2026-05-04", now) == datetime(2026, 5, 4, tzinfo=UTC)
    for odd in (
        "2",
        "2y",
        "-2h",
        "2026-05-32",
        "2026-05",
        "2026-05-04T13:00:00",
        "999999w",
        "0001-01-01T00:00:00+14:00",
    ):
        with pytest.raises(InvalidRequest):
            moment_since(odd, now)


def test_what_another_program_wrote_is_shown_all_the_same(shop: Shop) -> None:
    async def fill(bench: JobBench, url: str) -> list[int]:
        (ordered,) = await bench.order([job(f"{url}/ok")])
        await bench.change(ordered.id, target_url="http://[odd/hook")
        return [ordered.id]

    (id,) = shop.have(fill)
    assert "not a URL" in shop("list", "--lane", "dispatch_jobs").stdout
    assert "http://[odd/hook" in shop("show", id).stdout
