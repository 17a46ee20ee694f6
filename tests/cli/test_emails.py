"""status, list, show and requeue, for emails as for the other lanes: on both databases."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.command import Homing, Result
from tests.emails import EmailBench, email_bench

from homing.senders.mail import Verdict


class Office:
    """A database with emails in it, and the commands that look at them."""

    def __init__(self, homing: Homing, database_url: str) -> None:
        self.url = database_url
        self._homing = homing

    def __call__(self, *arguments: str) -> Result:
        return self._homing(*arguments, HOMING_DATABASE_URL=self.url)

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def fill(self) -> None:
        """One that was sent, one that is dead, one that waits for its turn."""

        async def run() -> None:
            async with email_bench(self.url) as lane:
                await _fill(lane)

        asyncio.run(run())


async def _fill(lane: EmailBench) -> None:
    lane.sender.answer("bo@example.org", Verdict("rejected", 550, "5.1.1", "unknown"))
    await lane.order(messageKey="a")
    await lane.order(messageKey="b", to="bo@example.org")
    await lane.deliver()
    await lane.order(messageKey="c")


@pytest.fixture
def office(homing: Homing, database_url: str) -> Office:
    office = Office(homing, database_url)
    office.fill()
    return office


@pytest.mark.clause("RTY-15")
def test_emails_are_counted_listed_and_shown(office: Office) -> None:
    counts = office.json("status")["email_log"]
    assert (counts["Sent"], counts["Dead"], counts["Pending"]) == (1, 1, 1)
    ids = [email["id"] for email in office.json("list", "--lane", "email_log")]
    assert ids == ["email_3", "email_2", "email_1"]
    (dead,) = office.json("list", "--status", "Dead")
    assert (dead["id"], dead["deadReason"], dead["attemptCount"]) == ("email_2", "InvalidRecipient", 1)
    assert [email["id"] for email in office.json("list", "--before", "email_2")] == ["email_1"]
    shown = office.json("show", "email_2")
    assert shown["recipients"]["bo@example.org"]["status"] == "rejected"
    told = office("show", "email_2").stdout
    assert "InvalidRecipient" in told
    assert "550 5.1.1" in told
    assert "InvalidRecipient" in office("list", "--status", "Dead").stdout
    assert office("show", "email_9").returncode == 1
    assert office("list", "--lane", "email_log", "--status", "nonsense").returncode == 2
    assert office("list", "--lane", "email_log", "--source", "shop").returncode == 2


@pytest.mark.clause("RTY-15")
def test_the_dead_are_requeued_by_name_or_all_at_once(office: Office) -> None:
    assert office.json("requeue", "email_2", "--dry-run") == {"dryRun": True, "requeue": 1}
    assert office.json("requeue", "email_2") == {"dryRun": False, "requeue": 1}
    assert office.json("show", "email_2")["status"] == "Pending"
    refused = office("requeue", "email_1")
    assert refused.returncode == 1
    assert "Sent" in refused.stderr
    assert office("requeue", "--all", "Sent").returncode == 2
    assert office.json("requeue", "--all", "Dead", "--dry-run") == {"dryRun": True, "requeue": 0}


def test_an_email_that_waits_is_cancelled(office: Office) -> None:
    assert office("cancel", "email_1").returncode == 1, "it is sent"
    assert office.json("cancel", "email_3") == {"dryRun": False, "cancel": 1}
    shown = office.json("show", "email_3")
    assert (shown["status"], shown["deadReason"]) == ("Dead", "Cancelled")
    assert office("cancel", "--all", "Failed").returncode == 2


def test_work_drains_emails_and_stages_can_be_named(office: Office) -> None:
    office("requeue", "--all", "Dead", "--yes")
    assert office("work", "email_log", "--once").returncode == 0
    assert office.json("status")["email_log"]["Sent"] == 3, "the catcher takes every recipient"
    assert office("work", "email_log:schedule", "--once").returncode == 0
    assert office("work", "email_log:nonsense", "--once").returncode == 2
