"""Dead letters in a queue of the jobs' broker."""

from __future__ import annotations

import msgspec
import pytest
from tests.jobs import job_bench

from homing.app import Homing
from homing.brokers.base import Queue
from homing.brokers.open import open_broker
from homing.engine.model import Bury, Failure
from homing.errors import SettingsError
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.settings import load_settings
from homing.telemetry import Telemetry

BROKER = "memory://letters"
QUEUE = Queue("dead-webhooks")
URL = "https://partner.example/hook"


@pytest.mark.clause("JOB-25")
async def test_a_job_that_dies_is_told_of_in_the_queue_once(database_url: str) -> None:
    broker = open_broker(BROKER, Telemetry())
    consumer = await broker.consume(QUEUE, 10)
    settings = {"jobs_broker_url": BROKER, "jobs_dead_letter_url": f"queue:{QUEUE.name}"}
    async with job_bench(database_url, **settings) as lane:
        (id,) = await lane.create(URL)
        (claim,) = await lane.claim()
        await lane.jobs.settle([(claim, Bury(Failure("http_410", "HTTP 410")))])
        await lane.jobs.sweep(100)
        await lane.jobs.sweep(100)
        (message,) = await consumer.receive(10, 5.0)
        assert await consumer.receive(10, 0.05) == []
    event = msgspec.json.decode(message.body)
    assert (event["type"], event["data"]["id"]) == ("homing.job.dead", text_of(id))
    assert event["data"]["errorClass"] == "http_410"
    await consumer.close()
    await broker.close()


def test_a_queue_needs_a_broker() -> None:
    settings = load_settings({"jobs_dead_letter_url": "queue:dead"}, environ={})
    with pytest.raises(SettingsError, match="HOMING_JOBS_BROKER_URL"):
        Homing(settings)


def test_a_queue_needs_a_name() -> None:
    settings = load_settings({"jobs_dead_letter_url": "queue:", "jobs_broker_url": BROKER}, environ={})
    with pytest.raises(SettingsError, match="queue:homing-dead-letters"):
        Homing(settings)
