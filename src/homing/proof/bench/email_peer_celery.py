"""Celery with RabbitMQ: a task gets an email's id, reads its row, sends it by SMTP and updates the row.

Messages are durable, confirmed when they are published, and acknowledged after the work. The worker is a
process of its own with more below it, each with one connection to the database and one to the SMTP peer that
stay open. They are warm and have nothing to do until the clock runs, and are told then which queue to take.
"""

from __future__ import annotations

import asyncio
import os
import signal
import smtplib
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from queue import Queue
from threading import Thread, main_thread
from uuid import uuid4

import asyncpg
import psycopg
from celery import Celery

from homing.errors import HomingError
from homing.proof.bench.email_contender import EmailJob
from homing.proof.bench.sample_mails import SampleMail, email_message, sample_mails

#: What a single node does not need.
_ALONE = ("--without-gossip", "--without-mingle", "--without-heartbeat")
#: Not an option of Celery's, but ours for its worker.
_EARLY = "--acknowledge-early"
#: Enough that every process of the pool has one.
_WARM_UP = 64
_LOOK_EVERY = 0.02
_PATIENCE = 300.0

_TABLE = """
CREATE TABLE email (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, to_address text NOT NULL, subject text NOT NULL,
    body text NOT NULL, html text, status text NOT NULL DEFAULT 'Pending', sent_at timestamptz
);
CREATE INDEX email_open ON email (id) WHERE status = 'Pending'
"""
_INSERT = "INSERT INTO email (to_address, subject, body, html) VALUES ($1, $2, $3, $4)"
_CREATE = "INSERT INTO email (to_address, subject, body, html) VALUES (%s, %s, %s, %s) RETURNING id"
_OPEN = "SELECT count(*) FROM email WHERE status = 'Pending'"

app = Celery("emails")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_delivery_mode="persistent",
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
)


@cache
def _database(url: str) -> psycopg.Connection[tuple[str, ...]]:
    """One in every process of the pool."""
    return psycopg.connect(url, autocommit=True)


@cache
def _smtp(port: int) -> smtplib.SMTP:
    return smtplib.SMTP("127.0.0.1", port, timeout=30)


def _send(url: str, smtp_port: int, id: int) -> None:
    database = _database(url)
    row = database.execute(
        "SELECT to_address, subject, body, html FROM email WHERE id = %s AND status = 'Pending'", (id,)
    ).fetchone()
    if row is None:
        return
    _smtp(smtp_port).send_message(email_message(SampleMail(*row)))
    database.execute("UPDATE email SET status = 'Sent', sent_at = now() WHERE id = %s", (id,))


task = app.task(name="send")(_send)


class CeleryPeer:
    """As a careful user runs it; two processes were faster than 3, 4, 6 and 8 on two cores."""

    options: tuple[str, ...] = ("--pool", "prefork", "--concurrency", "2")

    def __init__(self, job: EmailJob) -> None:
        self._job = job
        app.conf.broker_url = job.broker_url
        name = f"homing_bench_{uuid4().hex}"
        self._queue, self._warm_up_queue = name, f"{name}_warm_up"

    async def prepare(self) -> None:
        self._watching = await asyncpg.connect(self._job.postgres_url)
        await make_table(self._watching)
        await self._put_in(_WARM_UP, self._warm_up_queue)
        command = (sys.executable, "-m", __name__, app.conf.broker_url, self._warm_up_queue, *self.options)
        self._worker = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        await self._until_sent()
        await self._put_in(self._job.mails, self._queue)

    async def deliver(self) -> int:
        """Until the last row says so; the acknowledgement, a little later, is not charged."""
        app.control.add_consumer(self._queue)
        await self._until_sent()
        return self._job.mails

    async def _put_in(self, count: int, queue: str) -> None:
        mails = [(mail.to, mail.subject, mail.text, mail.html) for mail in sample_mails(count)]
        await self._watching.executemany(_INSERT, mails)
        for (id,) in await self._watching.fetch("SELECT id FROM email WHERE status = 'Pending'"):
            task.apply_async((self._job.postgres_url, self._job.smtp_port, id), queue=queue)

    async def _until_sent(self) -> None:
        async with asyncio.timeout(_PATIENCE):
            while await self._watching.fetchval(_OPEN):
                if self._worker.returncode is not None:
                    raise HomingError(f"Celery's worker ended with {self._worker.returncode}")
                await asyncio.sleep(_LOOK_EVERY)

    async def close(self) -> None:
        """A worker that is told to end acknowledges what it has done, so nothing may be left then."""
        await self._worker.communicate(b"")
        await self._watching.close()
        with app.connection_for_write() as connection:
            delete = connection.default_channel.queue_delete
            left = [delete(queue) for queue in (self._queue, self._warm_up_queue)]
        assert left == [0, 0], f"messages were left in the queues: {left}"


class EagerCelery(CeleryPeer):
    """At its fastest: acknowledged before the work, as is its default, so that a crash loses emails."""

    options = (*CeleryPeer.options, "--prefetch-multiplier", "32", _EARLY)


async def make_table(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    await connection.execute(_TABLE)


class CeleryCreating:
    """What a request handler does, in several threads: insert the row, then publish its message."""

    _threads = 8

    def __init__(self, job: EmailJob) -> None:
        self._job = job
        app.conf.broker_url = job.broker_url
        self._queue = f"homing_bench_{uuid4().hex}"
        self._pool = ThreadPoolExecutor(self._threads)
        self._connections: Queue[psycopg.Connection[tuple[int]]] = Queue()

    async def prepare(self) -> None:
        connection = await asyncpg.connect(self._job.postgres_url)
        await make_table(connection)
        await connection.close()
        for _ in range(self._threads):
            self._connections.put(psycopg.connect(self._job.postgres_url, autocommit=True))
        # The first publish opens the connection and declares the queue.
        task.apply_async(("", 0, 0), queue=self._queue)

    async def deliver(self) -> int:
        loop = asyncio.get_running_loop()
        mails = list(sample_mails(self._job.mails))
        shares = [mails[first :: self._threads] for first in range(self._threads)]
        await asyncio.gather(*(loop.run_in_executor(self._pool, self._create, share) for share in shares))
        return self._job.mails

    def _create(self, mails: list[SampleMail]) -> None:
        connection = self._connections.get()
        for mail in mails:
            row = connection.execute(_CREATE, (mail.to, mail.subject, mail.text, mail.html)).fetchone()
            assert row is not None, "an insert returns its row"
            task.apply_async((self._job.postgres_url, self._job.smtp_port, row[0]), queue=self._queue)
        self._connections.put(connection)

    async def close(self) -> None:
        while not self._connections.empty():
            self._connections.get().close()
        self._pool.shutdown()
        with app.connection_for_write() as connection:
            published = connection.default_channel.queue_delete(self._queue)
        assert published == self._job.mails + 1, f"{published} messages were published"


def main() -> None:
    """The worker. Its input ends with the process that started it, however that ends, and so does it."""
    app.conf.broker_url, queue, *options = sys.argv[1:]
    if _EARLY in options:
        options.remove(_EARLY)
        app.conf.task_acks_late = False
    Thread(target=_end_with_input, daemon=True).start()
    app.worker_main(["worker", "--queues", queue, *options, *_ALONE, "--loglevel", "WARNING"])


def _end_with_input() -> None:
    # Not by sys.stdin, whose lock the processes of the pool would inherit while we hold it.
    os.read(0, 1)
    # The thread that is told wakes up from its poll: it must be the main one.
    signal.pthread_kill(main_thread().ident or 0, signal.SIGTERM)


if __name__ == "__main__":
    main()
