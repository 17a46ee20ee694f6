"""While the database of one way is away alerts go by the other, however many wait for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.alerts.bench import NOWHERE, PEOPLE, AlertBench, alert_bench
from tests.http.pages.visitor import door_with_people, visiting
from typer.testing import CliRunner

from homing.alerts import store
from homing.cli import app
from homing.errors import Refused, Unreachable
from homing.lanes.dispatch_jobs.jobs import DispatchJobs


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[AlertBench]:
    async with alert_bench(database_url, alert_webhook_url=NOWHERE) as bench:
        yield bench


@contextmanager
def no_jobs(why: Exception) -> Iterator[list[int]]:
    """Nothing can be put into the lane of webhooks; how often it was asked."""
    asked: list[int] = []

    async def refuse(*_arguments: Any, **_named: Any) -> Any:
        asked.append(1)
        raise why

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DispatchJobs, "enqueue", refuse)
        yield asked


AWAY = Unreachable("cannot reach it")


async def tell(bench: AlertBench, count: int, *ways: str) -> None:
    for _ in range(count):
        await bench.watch.store.tell_test(ways or bench.alerts.ways.all)


async def of_alert(bench: AlertBench) -> list[tuple[bool, bool, bool]]:
    """Of each: whether it has a mail, a webhook, and is handed over."""
    rows = await bench.tables.sql("SELECT mail_id, job_id, handed_over FROM homing_alert ORDER BY id")
    return [(row["mail_id"] is not None, row["job_id"] is not None, bool(row["handed_over"])) for row in rows]


async def test_however_many_wait_for_webhooks_the_next_one_goes_by_mail(
    bench: AlertBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MOST_AT_ONCE", 3)
    with no_jobs(AWAY) as asked:
        await tell(bench, 7)
        await bench.alerts._post.hand_over()
        assert len(await bench.alert_mails()) == 7, "all in one go, not a page of them"
        assert len(asked) == 1, "whoever is away is not asked again for every alert"
        await bench.kill_mails(1)
        await bench.look_after_trouble()
        assert (await bench.alert_mails())[-1]["subject"].endswith("1 mail was given up: invalid_recipient")
        assert await of_alert(bench) == [(True, False, False)] * 8
    await bench.look_after_trouble()
    assert await of_alert(bench) == [(True, True, True)] * 8
    assert len(await bench.alert_mails()) == len(await bench.alert_jobs()) == 8, "once by each way"


async def test_an_alert_whose_mail_was_pruned_while_its_webhook_waited_goes_by_mail_once(
    bench: AlertBench,
) -> None:
    with no_jobs(AWAY):
        await tell(bench, 1)
        await bench.look_after_trouble()
        await bench.tables.sql("DELETE FROM mail_outbox RETURNING id")
        await bench.look_after_trouble()
    await bench.look_after_trouble()
    assert await bench.alert_mails() == []
    assert len(await bench.alert_jobs()) == 1


async def test_an_alert_that_was_to_go_by_a_way_that_is_away_goes_by_the_other_too(
    bench: AlertBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MOST_AT_ONCE", 3)
    with no_jobs(AWAY):
        await tell(bench, 7, "webhook")
        await bench.alerts._post.hand_over()
        assert await of_alert(bench) == [(True, False, False)] * 7
    await bench.look_after_trouble()
    assert await of_alert(bench) == [(True, True, True)] * 7
    assert [one.ways for one in await bench.told()] == [("mail", "webhook")] * 7


async def test_a_way_that_refuses_an_alert_is_not_asked_for_it_again(bench: AlertBench) -> None:
    with no_jobs(Refused("too long")) as asked:
        await tell(bench, 1, "webhook")
        await bench.look_after_trouble()
        await bench.look_after_trouble()
    assert len(asked) == 1
    assert await of_alert(bench) == [(True, False, True)]
    assert [one.ways for one in await bench.told()] == [("mail",)]


async def test_a_way_that_is_no_longer_set_keeps_no_alert_waiting(
    database_url: str, bench: AlertBench
) -> None:
    with no_jobs(AWAY):
        await tell(bench, 1)
        await bench.look_after_trouble()
    async with alert_bench(database_url) as later:
        await later.look()
        assert await of_alert(later) == [(True, False, True)]
        assert [one.ways for one in await later.told()] == [("mail",)]


async def test_a_test_tells_what_happened_by_which_way(bench: AlertBench) -> None:
    with no_jobs(AWAY):
        waiting = await bench.alerts.test()
        assert (waiting.mail_id is not None, waiting.waits) == (True, ("webhook",))
        assert bench.alerts.troubles_of(waiting) == [
            "webhook: waits, its database does not answer; it goes when that is back"
        ]
    with no_jobs(Refused("too long")):
        refused = await bench.alerts.test()
        assert bench.alerts.troubles_of(refused) == ["webhook: cannot go by it; the log says why"]
    assert bench.alerts.troubles_of(await bench.alerts.test()) == []


async def test_a_test_that_goes_by_no_way_at_all_says_so(database_url: str) -> None:
    async with alert_bench(database_url, alert_mail_to="", alert_webhook_url=NOWHERE) as bench:
        for why, said in ((AWAY, "webhook: waits"), (Refused("too long"), "webhook: cannot go by it")):
            with no_jobs(why):
                alert = await bench.alerts.test()
            (trouble,) = bench.alerts.troubles_of(alert)
            assert trouble.startswith(said)
            assert alert.went == ()


@pytest.mark.parametrize("people", [PEOPLE, ""])
def test_the_command_line_tells_what_happened_by_which_way(sqlite_url: str, people: str) -> None:
    environ = {
        "HOMING_DATABASE_URL": sqlite_url, "HOMING_ALERT_MAIL_TO": people,
        "HOMING_ALERT_WEBHOOK_URL": NOWHERE, "HOMING_ENCRYPTION_KEY": "A" * 43 + "=",
        "HOMING_MAIL_URL": "memory://", "HOMING_MAIL_FROM": "homing@example.com",
    }  # fmt: skip
    with no_jobs(AWAY):
        done = CliRunner().invoke(app, ["alerts", "test"], env=environ)
    assert done.exit_code == 1, "a way that is set does not work"
    assert ("was handed over to: mail\n" in done.stdout) == bool(people)
    assert ("homing show outbox_1" in done.stdout) == bool(people)
    assert "webhook: waits, its database does not answer" in done.output


@pytest.mark.parametrize(("people", "said"), [(PEOPLE, "is on its way: mail"), ("", "did not go out")])
async def test_the_page_tells_what_happened_by_which_way(sqlite_url: str, people: str, said: str) -> None:
    ways = {"alert_mail_to": people, "alert_webhook_url": NOWHERE}
    async with door_with_people(sqlite_url, **ways) as door, visiting(door, "operator") as operator:
        with no_jobs(AWAY):
            told = await operator.done("/alerts/test")
        assert f"{said}. webhook: waits, its database does not answer" in told
        page = await operator.read("/alerts")
        assert ("waits for webhook" in page, 'href="/messages/outbox_1"' in page) == (
            not people,
            bool(people),
        )
