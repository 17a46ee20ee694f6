"""What the doctor says of brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.emails import email_bench

from homing.app import opened
from homing.doctor import Finding, examine
from homing.settings import load_settings


async def broker_findings(tmp_path: Path, **settings: str) -> dict[str, Finding]:
    chosen = load_settings({"database_url": f"sqlite:///{tmp_path}/homing.db", **settings}, environ={})
    async with opened(chosen, makes_file=True) as homing:
        await homing.migrate()
    found = {finding.check: finding for finding in await examine(chosen)}
    return {name: finding for name, finding in found.items() if name.startswith(("broker", "queue"))}


async def test_a_broker_that_answers_is_well_and_its_queues_are_counted(
    tmp_path: Path, rabbitmq_url: str
) -> None:
    found = await broker_findings(
        tmp_path, email_broker_url=rabbitmq_url, email_queue_prefix="doctor.dispatcher"
    )
    assert all(finding.well for finding in found.values())
    assert found["broker rabbitmq"].detail == "answers"
    assert found["queue doctor.dispatcher.send"].detail == "0 messages wait"


async def test_a_broker_that_is_away_names_its_setting_and_no_password(tmp_path: Path) -> None:
    found = await broker_findings(tmp_path, jobs_broker_url="amqp://user:geheim@127.0.0.1:1/")
    finding = found["broker rabbitmq"]
    assert not finding.well
    assert "HOMING_JOBS_BROKER_URL" in finding.detail
    assert "geheim" not in finding.detail


async def test_what_is_in_memory_needs_no_finding(tmp_path: Path) -> None:
    assert await broker_findings(tmp_path) == {}


async def email_findings(database_url: str, **settings: object) -> dict[str, str]:
    found = await examine(load_settings({"database_url": database_url, **settings}, environ={}))
    return {one.check: one.detail for one in found if one.check in {"email brokers", "unpublished emails"}}


@pytest.mark.clause("RTY-20")
async def test_processes_with_different_brokers_are_named(database_url: str, rabbitmq_url: str) -> None:
    async with (
        email_bench(database_url, email_broker_url=rabbitmq_url) as worker,
        email_bench(database_url, email_broker_url="memory://") as server,
    ):
        # Two benches are one process, which has one name.
        server.homing.ground.owner = "server"
        heartbeats = []
        for lane, serves in ((worker, False), (server, True)):
            heartbeat = lane.homing.operations.heartbeat([], worked=[], serves=serves)
            await heartbeat.begin()
            heartbeats.append(heartbeat)
        told = (await email_findings(database_url))["email brokers"]
        assert worker.homing.ground.owner in told
        assert server.homing.ground.owner in told
        assert "memory:// email.dispatcher.send" in told
        assert "HOMING_EMAIL_BROKER_URL" in told
        assert "guest:" not in told
        await heartbeats[1].stopped()
        assert await email_findings(database_url) == {}, "it is gone"


@pytest.mark.clause("RTY-22")
async def test_new_emails_that_nobody_publishes_are_counted_after_an_hour(database_url: str) -> None:
    async with email_bench(database_url, email_publish_new=False) as lane:
        old, _new, queued = await lane.insert(3)
        for id in (old, queued):
            await lane.shift(id, 4000, "created_at", "next_attempt_at")
        await lane.shift(queued, 4000, "last_queued_at")
        told = await email_findings(database_url, email_publish_new=False)
        assert told["unpublished emails"].startswith("1 Pending for over an hour")
        assert "HOMING_EMAIL_PUBLISH_NEW" in told["unpublished emails"]
        assert "homing work" in (await email_findings(database_url))["unpublished emails"]
