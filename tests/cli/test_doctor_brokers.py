"""What the doctor says of brokers."""

from __future__ import annotations

from pathlib import Path

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
