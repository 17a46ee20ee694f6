"""The benchmarks measure what they say: everybody delivers the same mails, and nothing is counted twice.

How fast anybody is stands in `docs/benchmarks.md` and is asserted nowhere: a busy machine is no bug.
"""

from __future__ import annotations

import email
import email.policy
from collections import Counter

import asyncpg
import pytest

from homing.errors import HomingError
from homing.proof.bench.child import in_child
from homing.proof.bench.contender import Job, Round
from homing.proof.bench.create import CreateJob, Load
from homing.proof.bench.latency import Latencies, LatencyJob
from homing.proof.bench.measure import Budget, Series, percentile
from homing.proof.bench.memory import MemoryJob, Weight
from homing.proof.bench.race import ENTRANTS, HOMING, LIMIT, Entrant, entrants_here, race, table_lines
from homing.proof.bench.scale import BATCH, scale
from homing.testing.components.postgres import Postgres
from homing.testing.components.smtp import SmtpSink as PostfixSink
from homing.testing.smtp_sink import SinkMail, SmtpSink

MAILS = 200


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────


def test_a_ratio_is_taken_round_by_round() -> None:
    slow_machine_then_fast = Series((100.0, 400.0, 200.0))
    twice_as_fast = Series((200.0, 800.0, 400.0))
    ratio = twice_as_fast.over(slow_machine_then_fast)
    assert ratio.values == (2.0, 2.0, 2.0)
    assert ratio.spread == 0
    assert slow_machine_then_fast.median == 200
    assert slow_machine_then_fast.spread == 1.5


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: int) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_a_budget_is_met_on_its_bound_and_on_the_right_side() -> None:
    assert Budget("ratio", 0.2, 0.2, "least", goal=0.25).met
    assert not Budget("ratio", 0.2, 0.2, "least", goal=0.25).reaches(0.25)
    assert not Budget("time", 1.51, 1.5, "most").met


def test_the_table_compares_with_the_limit_and_with_homing() -> None:
    rounds = {
        LIMIT: [Round(1000, 1.0, 0.5, 0)],
        HOMING: [Round(500, 2.0, 1.0, 5)],
        "peer": [Round(50, 2.0, 1.0, 100)],
    }
    _, homing, peer = table_lines(rounds)
    assert homing.of_limit.values == (0.25,)
    assert peer.homing_over.values == (10.0,)
    assert peer.cpu_micros.values == (20_000.0,)
    assert homing.transactions_each.values == (0.01,)


# ── everybody does the same work ─────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("entrant", ENTRANTS, ids=lambda entrant: entrant.name)
async def test_every_contender_delivers_each_mail_once(entrant: Entrant, postgres_url: str) -> None:
    if entrant not in entrants_here()[0]:
        pytest.skip(f"{entrant.needs} is not installed")
    async with SmtpSink() as sink:
        job = Job(f"homing.proof.bench.{entrant.contender}", MAILS, sink.port, postgres_url)
        measured = await in_child("homing.proof.bench.contender:run_round", job, Round, seconds=60)
    assert measured.delivered == sink.accepted == MAILS
    assert measured.seconds > 0
    assert measured.cpu_seconds > 0
    assert set(Counter(mail.recipients for mail in sink.mails).values()) == {
        2 if entrant.name == LIMIT else 1
    }
    assert _shapes(sink.mails) == _expected_shapes(entrant)


def _shapes(mails: list[SinkMail]) -> Counter[tuple[str, ...]]:
    return Counter(_shape(mail) for mail in mails)


def _shape(mail: SinkMail) -> tuple[str, ...]:
    """Its kinds of parts; each must say what was ordered, and the subject whom it is for."""
    message = email.message_from_bytes(mail.data, policy=email.policy.default)
    number = mail.recipients[0].removeprefix("user").partition("@")[0]
    assert message["subject"] == f"Order {number} has shipped"
    assert message["message-id"]
    parts = [part for part in message.walk() if not part.is_multipart()]
    assert all(part.get_content().count("Hello dear customer") == 7 for part in parts)
    return tuple(part.get_content_type() for part in parts)


def _expected_shapes(entrant: Entrant) -> Counter[tuple[str, ...]]:
    if entrant.contender.endswith("WithTemplates"):
        return Counter({("text/plain", "text/html"): MAILS})
    return Counter({("text/plain",): MAILS // 2, ("text/plain", "text/html"): MAILS // 2})


@pytest.mark.slow
async def test_a_run_goes_in_turns_and_has_a_line_for_everybody(
    postgres_server: Postgres, postfix_sink: PostfixSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tuple(entrant for entrant in ENTRANTS if entrant.needs is None)
    absent = Entrant("absent", "nowhere:Nobody", 1.0, 3.0, needs="a_package_that_is_not_there")
    monkeypatch.setattr("homing.proof.bench.race.ENTRANTS", (*ours, absent))
    steps: list[str] = []
    table = await race(200, 2, steps.append, postgres_url=postgres_server.url())
    assert [line.name for line in table.lines] == [entrant.name for entrant in ours]
    assert steps == [f"round {number} of 2: {entrant.name}" for number in (1, 2) for entrant in ours]
    assert all(min(line.rate.values) > 0 for line in table.lines)
    assert table.lines[0].of_limit.values == (1.0, 1.0)
    assert table.left_out == ("absent",)
    promised = {budget.what for budget in table.budgets}
    assert promised >= {
        "Homing, of the limit",
        "SQL statements per delivery",
        "Homing over EmailMessage loop",
    }


async def test_a_child_that_fails_says_why(postgres_url: str) -> None:
    job = Job("homing.proof.bench.limit:Limit", 1, smtp_port=1, postgres_url=postgres_url)
    with pytest.raises(HomingError, match="Connect"):
        await in_child("homing.proof.bench.contender:run_round", job, Round, seconds=60)


# ── the other measurements ───────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_claims_are_measured_without_taking_anything(
    postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.proof.bench.scale.HELD_BACK", 5000)
    table = await scale([1000, 5000], lambda _: None, postgres_url=postgres_server.url())
    assert [(cost.queued, cost.held_back) for cost in table.costs] == [(1000, 0), (5000, 0), (1000, 5000)]
    # A claim of a hundred rows touches each row at least once, and nowhere near the whole table's rows.
    assert all(BATCH <= cost.claim_buffers < 50 * BATCH for cost in table.costs)
    assert all(BATCH <= cost.settle_buffers < 50 * BATCH for cost in table.costs)
    assert all(cost.claim_ms > 0 and cost.settle_ms > 0 for cost in table.costs)
    assert len(table.budgets) == 8


@pytest.mark.slow
@pytest.mark.parametrize("notify", [False, True], ids=["in process", "NOTIFY"])
async def test_latency_is_taken_for_every_sample(notify: bool, postgres_url: str) -> None:
    job = LatencyJob(postgres_url, samples=10, notify=notify)
    found = await in_child("homing.proof.bench.latency:time_mails", job, Latencies, seconds=60)
    assert len(found.milliseconds) == 10
    assert min(found.milliseconds) > 0


@pytest.mark.slow
async def test_memory_is_looked_at_while_mails_are_delivered(
    postgres_url: str, postfix_sink: PostfixSink
) -> None:
    job = MemoryJob(postgres_url, postfix_sink.port, backlog=2000, delivered=1000)
    weight = await in_child("homing.proof.bench.memory:weigh", job, Weight, seconds=60)
    assert 1000 <= weight.delivered <= 2000
    assert 10 < weight.empty <= weight.working < 1000
    assert await _count(postgres_url, "sent") >= 1000
    assert await _count(postgres_url, "dispatching") == 0


@pytest.mark.slow
async def test_created_mails_are_in_the_table(postgres_url: str) -> None:
    job = CreateJob("mail_outbox", postgres_url, requests=MAILS, connections=8)
    load = await in_child("homing.proof.bench.create:serve_under_load", job, Load, seconds=60)
    assert load.requests == MAILS
    # The warm-up's are there as well.
    assert await _count(postgres_url, "queued") == MAILS + 500


@pytest.mark.slow
async def test_the_endpoint_without_a_database_answers_alike() -> None:
    job = CreateJob("mail_outbox", None, requests=MAILS, connections=8)
    load = await in_child("homing.proof.bench.create:serve_under_load", job, Load, seconds=60)
    assert load.requests == MAILS


async def _count(url: str, status: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        count: int = await connection.fetchval("SELECT count(*) FROM mail_outbox WHERE status = $1", status)
    finally:
        await connection.close()
    return count
