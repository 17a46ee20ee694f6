"""The benchmark of notifications: each is sent once, and the figures say what they are about."""

from __future__ import annotations

import email
import email.policy
from collections import Counter

import pytest

from homing.proof.bench.child import in_child
from homing.proof.bench.contender import Job, Round
from homing.proof.bench.measure import Series
from homing.proof.bench.notification_fanout import FannedOut, FanoutJob, fan_out
from homing.proof.bench.notifications import (
    ENTRANTS,
    OUTBOX,
    OUTBOX_ON_SQLITE,
    SAME_MAILS,
    FanoutCost,
    table_of,
    turns,
)
from homing.proof.bench.race import HOMING, LIMIT, ON_SQLITE, Entrant, table_lines
from homing.proof.bench.show import notification_table
from homing.testing.smtp_sink import SmtpSink

NOTIFICATIONS = 120
OURS = [entrant for entrant in ENTRANTS if entrant.contender.startswith("notification")]


@pytest.mark.slow
@pytest.mark.parametrize("entrant", OURS, ids=lambda entrant: entrant.name)
async def test_each_notification_is_sent_once(entrant: Entrant, postgres_url: str) -> None:
    async with SmtpSink() as sink:
        job = Job(f"homing.proof.bench.{entrant.contender}", NOTIFICATIONS, sink.port, postgres_url)
        measured = await in_child("homing.proof.bench.contender:run_round", job, Round, seconds=60)
    assert measured.delivered == NOTIFICATIONS
    assert measured.seconds > 0
    arrived = Counter(address for mail in sink.mails for address in mail.recipients)
    assert arrived == Counter(f"user{number}@example.org" for number in range(1, NOTIFICATIONS + 1))
    message = email.message_from_bytes(sink.mails[0].data, policy=email.policy.default)
    assert "Data Structures" in message["subject"]
    plain = message.get_body(("plain",))
    assert plain is not None
    assert "https://seats.example.com/unsubscribe?token=" in plain.get_content()
    if entrant.name != SAME_MAILS:
        assert "https://seats.example.com/unsubscribe?token=" in message["list-unsubscribe"]
    assert [part.get_content_type() for part in message.walk()] == [
        "multipart/alternative", "text/plain", "text/html"
    ]  # fmt: skip


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
async def test_a_fan_out_reaches_every_subscriber_while_others_write(
    database: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if database == "PostgreSQL" else None
    measured = await fan_out(FanoutJob(500, url))
    assert isinstance(measured, FannedOut)
    assert measured.seconds > 0
    assert measured.waited > 0, "somebody has written meanwhile"


def test_notifications_are_measured_by_the_mails_of_the_same_round() -> None:
    rates = {LIMIT: 9000, OUTBOX: 4000, SAME_MAILS: 2500, HOMING: 2000,
             OUTBOX_ON_SQLITE: 3000, ON_SQLITE: 1200}  # fmt: skip
    rounds = {name: [Round(rate, 1.0, 0.5, rate // 50)] for name, rate in rates.items()}
    fanout = FanoutCost("SQLite", 10, Series((0.5,)), Series((300.0,)), Series((2.0,)))
    table = table_of(table_lines(rounds), [fanout])
    assert (table.of_mails.values, table.of_mails_on_sqlite.values) == ((0.5,), (0.4,))
    assert table.of_same_mails.values == (0.8,)
    assert [budget.met for budget in table.budgets] == [True, False]
    assert notification_table(table) is not None


def test_every_step_of_a_run_is_foreseen() -> None:
    assert turns() == len(ENTRANTS) + 2
