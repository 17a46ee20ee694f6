"""Celery with requests: a webhook task, durable messages in RabbitMQ, acknowledged after the POST.

Its worker is a process of its own with several more below it. They are warm and have nothing to do until
the clock runs, and are told then which queue to take from.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from threading import Thread, main_thread
from uuid import uuid4

import msgspec
import requests
from celery import Celery

from homing.errors import HomingError
from homing.proof.bench.sample_jobs import sample_jobs, signed_headers, warm_up_url
from homing.proof.bench.webhook_contender import WebhookJob
from homing.proof.bench.webhook_sink import ArrivalCounter

#: The best of prefork with 2, 3, 4, 6 and 8 processes, of 8 and 20 threads, and of gevent with 20 and 100.
_POOL = ("--pool", "prefork", "--concurrency", "4")
#: What a single node does not need.
_ALONE = ("--without-gossip", "--without-mingle", "--without-heartbeat")
_WARM_UP = 40
_LOOK_EVERY = 0.01
_PATIENCE = 300.0

app = Celery("webhooks")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_delivery_mode="persistent",
    broker_connection_retry_on_startup=True,
)
#: One in every process of the pool, whose connection stays open.
_session = requests.Session()


def _send(id: str, url: str, payload: str) -> None:
    headers = signed_headers(id, payload)
    _session.post(url, data=payload.encode(), headers=headers, timeout=30).raise_for_status()


_task = app.task(name="send")(_send)


class CeleryPeer:
    def __init__(self, job: WebhookJob) -> None:
        assert job.broker_url is not None, "Celery has its jobs in a broker"
        self._job = job
        app.conf.broker_url = job.broker_url
        name = f"homing_bench_{uuid4().hex}"
        self._queue, self._warm_up_queue = name, f"{name}_warm_up"

    async def prepare(self) -> None:
        for job in sample_jobs(self._job.jobs, self._job.sink_port):
            _task.apply_async(kwargs=msgspec.structs.asdict(job), queue=self._queue)
        for _ in range(_WARM_UP):
            _task.apply_async(("warm", warm_up_url(self._job.sink_port), "{}"), queue=self._warm_up_queue)
        counter = ArrivalCounter(self._job.sink_port)
        command = (sys.executable, "-m", __name__, app.conf.broker_url, self._warm_up_queue)
        self._worker = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        await self._until_arrived(counter, _WARM_UP)

    async def deliver(self) -> int:
        """Until the last one arrives; its acknowledgement, a little later, is not charged."""
        counter = ArrivalCounter(self._job.sink_port)
        app.control.add_consumer(self._queue)
        return await self._until_arrived(counter, self._job.jobs)

    async def _until_arrived(self, counter: ArrivalCounter, expected: int) -> int:
        async with asyncio.timeout(_PATIENCE):
            while (arrived := counter.arrived()) < expected:
                if self._worker.returncode is not None:
                    raise HomingError(f"Celery's worker ended with {self._worker.returncode}")
                await asyncio.sleep(_LOOK_EVERY)
        counter.close()
        return arrived

    async def close(self) -> None:
        """A worker that is told to end acknowledges what it has done, so nothing may be left then."""
        await self._worker.communicate(b"")
        with app.connection_for_write() as connection:
            delete = connection.default_channel.queue_delete
            left = [delete(queue) for queue in (self._queue, self._warm_up_queue)]
        assert left == [0, 0], f"messages were left in the queues: {left}"


def main() -> None:
    """The worker. Its input ends with the process that started it, however that ends, and so does it."""
    app.conf.broker_url, queue = sys.argv[1:]
    Thread(target=_end_with_input, daemon=True).start()
    app.worker_main(["worker", "--queues", queue, *_POOL, *_ALONE, "--loglevel", "WARNING"])


def _end_with_input() -> None:
    # Not by sys.stdin, whose lock the processes of the pool would inherit while we hold it.
    os.read(0, 1)
    # The thread that is told wakes up from its poll: it must be the main one.
    signal.pthread_kill(main_thread().ident or 0, signal.SIGTERM)


if __name__ == "__main__":
    main()
