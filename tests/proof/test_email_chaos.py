"""Outages of the broker, in the short form of `homing chaos emails`; and that the checker sees them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec.structs import replace
from tests.conftest import require

from homing.app import opened
from homing.proof.chaos.checker import Verdict
from homing.proof.chaos.email_checker import (
    EmailEvidence,
    EmailFault,
    OrderedEmail,
    QueueEnd,
    check_emails,
)
from homing.proof.chaos.email_queue import ChaosBroker
from homing.proof.chaos.email_sink import Contact, EmailSinkProcess, SinkPlan
from homing.proof.chaos.email_table import EmailEnd, EmailTable
from homing.proof.chaos.email_testimony import (
    SCHEDULE,
    SEND,
    EmailTestimony,
    Publishing,
    Sending,
    read_email_testimony,
)
from homing.proof.chaos.emails import DEAD_LETTERS, SEND_QUEUE, EmailPlan, email_environment, run_emails
from homing.proof.chaos.processes import WorkerProcess, read_events
from homing.proof.chaos.table import Held
from homing.proof.chaos.waiting import until
from homing.settings import load_settings
from homing.testing.components.rabbitmq import RabbitMqServer, start_rabbitmq
from homing.testing.tcp_proxy import Fault, TcpProxy

# ── real processes ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def broker() -> Iterator[RabbitMqServer]:
    """A private one, which may be stopped and killed."""
    with require(start_rabbitmq()) as server:
        yield server


def assert_kept(verdict: Verdict) -> None:
    broken = [check for check in verdict.checks if not check.passed]
    assert not broken, f"{broken}\n{verdict.figures}"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.clause("RTY-16")
async def test_a_broker_that_is_stopped_killed_and_loses_its_queue_costs_no_email(
    postgres_url: str, broker: RabbitMqServer, tmp_path: Path
) -> None:
    plan = EmailPlan(
        emails=500, schedulers=2, senders=2, stops=1, outage=1.0, broker_kills=1, deletions=1, pause=1.0,
        lease=30.0, healing_limit=60.0, seed=1,
    )  # fmt: skip
    verdict = (await run_emails(plan, postgres_url, broker, tmp_path)).verdict
    assert_kept(verdict)
    figures = verdict.figures
    assert figures["waiting_in_deleted_queues"] > 0, "there was something to lose"
    assert figures["publishes_failed"] > 0, "somebody met an outage"
    assert figures["published_again_after_a_loss"] > 0
    assert figures["refused_sends"] > 0


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.clause("RTY-13")
async def test_schedulers_and_senders_that_are_killed_lose_no_email(
    postgres_url: str, broker: RabbitMqServer, tmp_path: Path
) -> None:
    plan = EmailPlan(
        emails=400, schedulers=2, senders=2, stops=0, broker_kills=0, deletions=0, kills=6, pause=1.0,
        lease=2.0, refuse=0.3, seed=2,
    )  # fmt: skip
    verdict = (await run_emails(plan, postgres_url, broker, tmp_path)).verdict
    assert_kept(verdict)
    assert verdict.figures["kills_that_hit"] > 0


class CuttingProxy(TcpProxy):
    """Once somebody has walked into a trap, nothing gets through any more."""

    def trap_for(self, piece: bytes) -> Any:
        trap = super().trap_for(piece)
        if trap is not None:
            self.refusing = True
            self.to_server = Fault(blackhole=True)
            self.reset_all()
        return trap


@pytest.mark.slow
@pytest.mark.clause("RTY-12", "RTY-07")
@pytest.mark.parametrize("message_is", ["kept", "lost"])
async def test_scheduler_killed_between_publish_and_settle(
    postgres_url: str, broker: RabbitMqServer, tmp_path: Path, message_is: str
) -> None:
    """Its settlement is the one thing that gets lost; then it dies, and another scheduler comes."""
    plan = EmailPlan(lease=2.0, refuse=0.0)
    sink = EmailSinkProcess(tmp_path, SinkPlan(str(tmp_path / "contacts.jsonl"), 0.0))
    table, queue = EmailTable(postgres_url), ChaosBroker(broker, SEND_QUEUE, DEAD_LETTERS)
    address = urlsplit(postgres_url)
    async with AsyncExitStack() as stack:
        stack.callback(sink.close)
        stack.push_async_callback(table.close)
        proxy = await stack.enter_async_context(CuttingProxy("127.0.0.1", address.port or 5432))
        await _place_one(postgres_url)
        behind = postgres_url.replace(f":{address.port}", f":{proxy.port}", 1)

        def start(name: str, stage: str, database_url: str) -> WorkerProcess:
            environment = email_environment(plan, database_url, sink.url, broker.url)
            process = WorkerProcess(tmp_path, name, environment, ["work", stage])
            stack.callback(process.kill)
            return process

        proxy.lose(b'"published":true')
        victim = start("victim", SCHEDULE, behind)
        assert await until(lambda: _is(proxy.sprung == 1), 60), victim.log.read_text()
        (held,) = await table.held()
        victim.kill()
        assert held.owner == victim.owner, "it had claimed the row, and had published: it came to settle"
        assert await _waiting(queue) == 1
        if message_is == "lost":
            await queue.delete(SEND_QUEUE)

        successor = start("successor", SCHEDULE, postgres_url)
        published = 1 if message_is == "lost" else 2
        assert await until(lambda: _waits(queue, published), 60), successor.log.read_text()
        sender = start("sender", SEND, postgres_url)
        assert await until(lambda: _all_sent(table), 60), sender.log.read_text()
        assert await until(lambda: _waits(queue, 0), 60)
        await asyncio.gather(successor.end(), sender.end())
        (end,) = await table.ends()
        assert (end.status, end.attempt_count, end.locked, end.completed) == ("Sent", 0, False, True)
        assert await _waiting(queue) == 0
    assert [contact.taken for contact in sink.contacts()] == [True]
    told = read_email_testimony(event for event in read_events(sender.log))
    assert told.dropped == (() if message_is == "lost" else (end.id,))


async def _place_one(postgres_url: str) -> None:
    settings = load_settings({"database_url": postgres_url, "mail_url": "memory://"}, environ={})
    async with opened(settings) as homing:
        await homing.migrate()
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(
        "INSERT INTO email_log (to_address, subject, body) VALUES ('ann@chaos.example', 'Once', 'Only.')"
    )
    await connection.close()


async def _is(condition: bool) -> bool:
    return condition


async def _waits(queue: ChaosBroker, messages: int) -> bool:
    return await _waiting(queue) == messages


async def _waiting(queue: ChaosBroker) -> int | None:
    crowd = await queue.look(SEND_QUEUE)
    return None if crowd is None else crowd.messages


async def _all_sent(table: EmailTable) -> bool:
    return not await table.open_rows()


# ── the checker ──────────────────────────────────────────────────────────────────────────────────

ANN, BOB = "ann@chaos.example", "bob@chaos.example"
ORDERED = (OrderedEmail(1, ANN), OrderedEmail(2, BOB))
#: Ann is served at once, Bob is refused once: three claims of senders, and one of the scheduler (Bob's 2).
ENDS = (
    EmailEnd(1, ANN, "Sent", 0, 1, locked=False, completed=True),
    EmailEnd(2, BOB, "Sent", 1, 3, locked=False, completed=True),
)
CONTACTS = (
    Contact(10.0, ANN, taken=True, message_id="<1@x>"),
    Contact(11.0, BOB, taken=False),
    Contact(14.0, BOB, taken=True, message_id="<2@x>"),
)
PUBLISHED = (
    Publishing((1, 0), 9.0, confirmed=True),
    Publishing((2, 0), 9.0, confirmed=True),
    Publishing((2, 1), 13.0, confirmed=True),
)
SENT = (
    Sending((1, 1), 1, took_effect=True, completes=True, charged=False),
    Sending((2, 1), 1, took_effect=True, completes=False, charged=True),
    Sending((2, 3), 2, took_effect=True, completes=True, charged=False),
)
WORDS = EmailTestimony(PUBLISHED, SENT)
GOOD = EmailEvidence(ORDERED, ENDS, CONTACTS, (), WORDS, (QueueEnd("send", 0),), (), (), 10.0)
DELETION = EmailFault("delete-queue", 20.0, 20.1, (), waiting=7, flowing=0.5, complete=1.0)
STOP = EmailFault("stop-broker", 20.0, 38.0, (), flowing=0.5, complete=1.0)
DOUBLE = replace(CONTACTS[0], at=12.0)
HELD = Held(1, 1, "host:1", ANN)


def broken(evidence: EmailEvidence) -> set[str]:
    return {found.name for found in check_emails(evidence).checks if not found.passed}


def said(**changes: object) -> EmailEvidence:
    return replace(GOOD, testimony=replace(WORDS, **changes))


def test_a_run_without_faults_passes() -> None:
    verdict = check_emails(GOOD)
    assert verdict.passed, verdict.checks
    assert verdict.figures["arrived"] == 2
    assert verdict.figures["refused_sends"] == verdict.figures["attempts_charged"] == 1
    assert verdict.figures["messages_published"] == 3


def test_an_email_that_never_arrived_is_lost() -> None:
    assert broken(replace(GOOD, contacts=CONTACTS[:2])) == {"lost"}


def test_an_email_whose_row_is_gone_is_lost() -> None:
    assert "lost" in broken(replace(GOOD, ends=ENDS[1:]))


def test_an_email_that_nobody_ordered_is_seen() -> None:
    stranger = Contact(12.0, "eve@chaos.example", taken=True)
    assert broken(replace(GOOD, contacts=(*CONTACTS, stranger))) == {"unexpected"}
    assert broken(replace(GOOD, ends=(*ENDS, replace(ENDS[0], id=3, address="eve@chaos.example")))) == {
        "unexpected"
    }


def test_an_email_that_is_not_sent_by_its_row_is_seen() -> None:
    for end in (replace(ENDS[0], status="Pending"), replace(ENDS[0], completed=False)):
        assert broken(replace(GOOD, ends=(end, ENDS[1]))) == {"all Sent"}


def test_a_lock_that_was_left_is_seen() -> None:
    assert broken(replace(GOOD, ends=(replace(ENDS[0], locked=True), ENDS[1]))) == {"left under a lock"}


def test_a_double_without_a_fault_is_seen() -> None:
    assert broken(replace(GOOD, contacts=(*CONTACTS, DOUBLE))) == {
        "doubles within what was in flight",
        "sends that no attempt and no fault explains",
    }


def test_a_double_of_what_was_in_flight_is_allowed() -> None:
    assert not broken(replace(GOOD, contacts=(*CONTACTS, DOUBLE), faults=(replace(STOP, held=(HELD,)),)))


def test_a_double_of_something_else_than_was_in_flight_is_seen() -> None:
    fault = replace(STOP, held=(replace(HELD, id=2),))
    assert "doubles within what was in flight" in broken(
        replace(GOOD, contacts=(*CONTACTS, DOUBLE), faults=(fault,))
    )


def test_a_double_must_have_the_same_message_id() -> None:
    other = replace(DOUBLE, message_id="<other@x>")
    fault = replace(STOP, held=(HELD,))
    assert broken(replace(GOOD, contacts=(*CONTACTS, other), faults=(fault,))) == {
        "doubles with another Message-ID"
    }


def test_two_settlements_of_one_email_are_seen() -> None:
    assert "settled more than once" in broken(said(sent=(*SENT, SENT[0])))
    stale = replace(SENT[0], claim=(1, 0))
    assert "settled more than once" in broken(said(sent=(stale, *SENT[1:])))


def test_an_attempt_count_that_is_wrong_is_seen() -> None:
    more = replace(GOOD, ends=(replace(ENDS[0], attempt_count=1), ENDS[1]))
    assert broken(more) == {"attempt_count is not the number of refusals"}
    less = replace(GOOD, ends=(ENDS[0], replace(ENDS[1], attempt_count=0)))
    assert broken(less) == {
        "attempt_count is not the number of refusals",
        "failures in a log that the row does not count",
        "sends that no attempt and no fault explains",
    }


def test_a_refusal_whose_sender_was_killed_need_not_be_charged() -> None:
    fault = EmailFault("kill", 11.0, 11.0, (Held(2, 1, "host:1", BOB),))
    ends = (ENDS[0], replace(ENDS[1], attempt_count=0))
    assert not broken(replace(said(sent=(SENT[0], SENT[2])), ends=ends, faults=(fault,)))


def test_a_repeat_without_a_loss_is_seen() -> None:
    again = replace(PUBLISHED[0], at=50.0)
    evidence = said(published=(*PUBLISHED, again))
    name = "published twice in a window without a loss"
    assert broken(evidence) == {name}
    assert broken(replace(evidence, faults=(STOP,))) == {name}, "a broker that is stopped loses nothing"
    assert broken(replace(evidence, faults=(replace(DELETION, begun=60.0, back=60.1),))) == {name}, "too late"


def test_a_repeat_by_the_sweep_is_allowed_if_both_messages_were_read() -> None:
    """So slow is a broker that was stopped, or a busy machine; what nobody has read was lost."""
    again = replace(PUBLISHED[0], at=50.0)
    late = replace(said(published=(*PUBLISHED, again), dropped=(1,)), sweep=40.0)
    name = "published twice in a window without a loss"
    assert not broken(late)
    assert broken(replace(late, sweep=60.0)) == {name}, "too early for the sweep"
    assert broken(replace(late, testimony=replace(late.testimony, dropped=()))) == {name}, "one is gone"


def test_a_repeat_of_what_was_cut_short_is_allowed() -> None:
    published = (*PUBLISHED, replace(PUBLISHED[0], at=12.0))
    assert not broken(said(published=published, lost=((1, 0),))), "by a sender"
    assert not broken(said(published=published, overtaken=(1,))), "by a publisher"


def test_a_repeat_after_a_loss_is_allowed_if_it_was_dropped() -> None:
    again = replace(PUBLISHED[0], at=50.0)
    evidence = replace(said(published=(*PUBLISHED, again)), faults=(DELETION,))
    assert not broken(evidence)
    assert check_emails(evidence).figures["published_again_after_a_loss"] == 1
    sent = (*SENT, replace(SENT[0], claim=(1, 0), completes=False))
    assert broken(replace(evidence, testimony=replace(evidence.testimony, sent=sent))) == {
        "sent twice in a window, so a repeat not dropped"
    }


def test_a_publish_that_failed_is_no_repeat() -> None:
    failed = replace(PUBLISHED[0], at=8.0, confirmed=False)
    evidence = said(published=(failed, *PUBLISHED))
    assert not broken(evidence)
    assert check_emails(evidence).figures["publishes_failed"] == 1


def test_an_email_of_whose_publishing_no_log_knows_is_seen() -> None:
    assert broken(said(published=PUBLISHED[1:])) == {"sent and in no log as published"}
    assert not broken(said(published=PUBLISHED[1:], overtaken=(1,))), "its publisher was overtaken"


def test_messages_that_are_left_are_seen() -> None:
    assert broken(replace(GOOD, queues=(QueueEnd("dead", 2),))) == {"messages left over"}


def test_a_process_that_ended_by_itself_is_seen() -> None:
    assert broken(replace(GOOD, deserters=("send-002: 1",))) == {"processes that ended by themselves"}


def test_a_fault_that_did_not_come_about_is_seen() -> None:
    wanted = (("stop-broker", 1), ("delete-queue", 1))
    assert broken(replace(GOOD, wanted=wanted, faults=(DELETION,))) == {"faults that did not come about"}
    assert not broken(replace(GOOD, wanted=wanted, faults=(DELETION, STOP)))


def test_a_fault_after_which_nothing_healed_is_seen() -> None:
    assert broken(replace(GOOD, faults=(replace(STOP, flowing=None),))) == {
        "faults after which nothing flowed"
    }
    assert broken(replace(GOOD, faults=(replace(STOP, complete=11.0),))) == {"everybody at work again"}


# ── what the checker reads ───────────────────────────────────────────────────────────────────────


def test_log_lines_are_read_by_stage() -> None:
    scheduled = {
        "event": "email.scheduled", "time": "2026-01-01T00:00:00.500Z", "EmailId": 7, "AttemptCount": 2,
        "Published": True,
    }  # fmt: skip
    attempted = {
        "event": "delivery.attempted", "lane": "email_log:send", "id": 7, "claim_seq": 4, "attempt": 3,
        "settlement": "complete", "settled": True, "charged": False,
    }  # fmt: skip
    lost = {"event": "lease.lost", "lane": "email_log:send", "id": 7, "claim_seq": 5}
    dropped = {"event": "email.dropped", "EmailId": 7, "Reason": "sent"}
    others = [{**attempted, "lane": "email_log:schedule"}, {**lost, "lane": "email_log:schedule", "id": 8}]
    read = read_email_testimony([scheduled, attempted, lost, dropped, *others, {"event": "service.stopped"}])
    (published,) = read.published
    assert (published.window, published.at % 1, published.confirmed) == ((7, 2), 0.5, True)
    assert read.sent == (Sending((7, 4), 3, took_effect=True, completes=True, charged=False),)
    assert read.lost == ((7, 5),)
    assert read.dropped == (7,)
    assert read.overtaken == (8,)


def test_whom_the_sink_refuses_is_known_by_the_seed() -> None:
    plan = SinkPlan("log", 0.0, refuse=0.2, seed=3)
    found = [plan.refusals_of(f"email{n}@chaos.example") for n in range(1000)]
    assert found == [replace(plan).refusals_of(f"email{n}@chaos.example") for n in range(1000)]
    assert 130 < sum(count > 0 for count in found) < 270
    assert set(found) == {0, 1, 2}


def test_faults_come_in_an_order_of_the_seed_and_queues_are_deleted_early() -> None:
    plan = EmailPlan(stops=3, broker_kills=1, deletions=1)
    orders = [plan.order_of_faults(random.Random(seed)) for seed in range(50)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) > 5
    assert max(order.index("delete-queue") for order in orders) <= 2
