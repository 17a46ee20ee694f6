"""The benchmarks of emails and of the router: everybody does the same work, and once."""

from __future__ import annotations

import email
import email.policy
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.conftest import require

from homing.proof.bench.child import in_child
from homing.proof.bench.contender import Round
from homing.proof.bench.email_contender import EmailJob
from homing.proof.bench.email_race import CREATES, ENTRANTS, OUTBOX, budgets, create_rates
from homing.proof.bench.race import HOMING, LIMIT, Entrant, entrants_here, table_lines
from homing.proof.bench.router_race import ENTRANTS as ROUTER_ENTRANTS
from homing.proof.bench.router_race import ON_RABBITMQ, ON_SQS, SQS_ALONE, table_of
from homing.proof.bench.sample_jobs import sample_payload
from homing.proof.bench.sample_mails import sample_mail
from homing.proof.bench.webhook_contender import WebhookJob
from homing.testing.components.rabbitmq import start_rabbitmq
from homing.testing.components.sqs import start_sqs
from homing.testing.http_sink import HttpSink
from homing.testing.smtp_sink import SinkMail, SmtpSink

EMAILS = 100
JOBS = 100


@pytest.fixture(scope="module")
def broker_url() -> Iterator[str]:
    with require(start_rabbitmq()) as server:
        yield server.url


async def _round(entrant: Entrant, smtp_port: int, postgres_url: str, broker_url: str) -> Round:
    job = EmailJob(f"homing.proof.bench.{entrant.contender}", EMAILS, smtp_port, postgres_url, broker_url)
    return await in_child("homing.proof.bench.email_contender:run_round", job, Round, seconds=60)


@pytest.mark.slow
@pytest.mark.parametrize("entrant", ENTRANTS[1:], ids=lambda entrant: entrant.name)
async def test_every_contender_delivers_each_email_once(
    entrant: Entrant, postgres_url: str, broker_url: str
) -> None:
    if entrant not in entrants_here(ENTRANTS)[0]:
        pytest.skip(f"{entrant.needs} is not installed")
    async with SmtpSink() as sink:
        measured = await _round(entrant, sink.port, postgres_url, broker_url)
    assert measured.delivered == EMAILS
    assert measured.seconds > 0
    assert measured.cpu_seconds > 0
    assert measured.transactions > 0
    arrived = Counter(_content(mail) for mail in sink.mails)
    # Celery's processes have warmed up with the first ones.
    again = 2 if entrant.needs == "celery" else 1
    assert arrived == Counter({_expected(n): again if n <= 64 else 1 for n in range(1, EMAILS + 1)})


def _content(mail: SinkMail) -> tuple[str, str, bool]:
    message = email.message_from_bytes(mail.data, policy=email.policy.default)
    (address,) = mail.recipients
    return address, message["subject"], message.is_multipart()


def _expected(number: int) -> tuple[str, str, bool]:
    mail = sample_mail(number)
    return mail.to, mail.subject, mail.html is not None


@pytest.mark.slow
@pytest.mark.parametrize("entrant", CREATES, ids=lambda entrant: entrant.name)
async def test_everybody_creates_and_publishes_them_all(
    entrant: Entrant, postgres_url: str, broker_url: str
) -> None:
    """Who has published another number fails its round."""
    if entrant not in entrants_here(CREATES)[0]:
        pytest.skip(f"{entrant.needs} is not installed")
    async with SmtpSink() as sink:
        measured = await _round(entrant, sink.port, postgres_url, broker_url)
    assert measured.delivered == EMAILS
    assert sink.accepted == 0


# ── the router ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def sqs_url() -> Iterator[str]:
    with require(start_sqs()) as server:
        yield server.url


@pytest.mark.slow
@pytest.mark.parametrize("entrant", ROUTER_ENTRANTS[2:], ids=lambda entrant: entrant.name)
async def test_the_router_delivers_each_job_once(
    entrant: Entrant, postgres_url: str, request: pytest.FixtureRequest
) -> None:
    broker_url = request.getfixturevalue("broker_url" if entrant.name == ON_RABBITMQ else "sqs_url")
    async with HttpSink() as sink:
        job = WebhookJob(f"homing.proof.bench.{entrant.contender}", JOBS, sink.port, postgres_url, broker_url)
        measured = await in_child("homing.proof.bench.webhook_contender:run_round", job, Round, seconds=60)
    assert measured.delivered == JOBS
    arrived = Counter(received.body.decode() for received in sink.requests)
    expected = {} if entrant.name == SQS_ALONE else {sample_payload(n): 1 for n in range(1, JOBS + 1)}
    assert arrived == Counter(expected)


@pytest.mark.parametrize(("rate", "is_limit"), [(900, True), (300, False)])
def test_the_table_says_when_the_emulator_is_the_limit(rate: int, is_limit: bool) -> None:
    rates = {LIMIT: 9000, HOMING: 4000, ON_RABBITMQ: 900, ON_SQS: rate, SQS_ALONE: 1000}
    rounds = {name: [Round(count, 1.0, 0.5, 1)] for name, count in rates.items()}
    table = table_of(table_lines(rounds))
    assert table.of_emulator == rate / 1000
    assert table.emulator_is_the_limit is is_limit


# ── what is made of the figures ──────────────────────────────────────────────────────────────────


def test_celery_must_be_beaten_three_times_and_statements_be_few() -> None:
    rates = {LIMIT: 10_000, HOMING: 2000, OUTBOX: 4000, "Celery, late acks": 500, "Celery, early acks": 1000}
    rounds = {name: [Round(rate, 1.0, 0.5, rate // 100)] for name, rate in rates.items()}
    found = {budget.what: budget.met for budget in budgets(table_lines(rounds))}
    assert found == {
        "Homing over Celery, late acks": True,
        "Homing over Celery, early acks": False,
        "SQL statements per delivery": True,
    }


def test_creates_are_compared_with_homing() -> None:
    homing, celery = create_rates({HOMING: [Round(300, 1.0, 0.3, 3)], "Celery": [Round(100, 1.0, 0.5, 100)]})
    assert homing.homing_over.values == (1.0,)
    assert celery.homing_over.values == (3.0,)
    assert celery.cpu_micros.values == (5000.0,)
