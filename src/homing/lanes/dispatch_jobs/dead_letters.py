"""Dead letters: a webhook of its own, or a message in a queue, for each job that ended in ERROR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from homing.brokers.base import Broker, Publication, Queue
from homing.db import Row, iso
from homing.errors import SettingsError
from homing.lanes.dispatch_jobs.job import OWN_SOURCE, NewJob, of_trace
from homing.lanes.dispatch_jobs.target import target_of
from homing.lanes.dispatch_jobs.tsid import number_of, text_of
from homing.tracing import Trace, read_trace

SOURCE, TYPE = OWN_SOURCE, "homing.job.dead"
#: Alerts to people, which are jobs too.
ALERT_TYPE = "homing.alert"
_MAX_RETRIES = 10
_QUEUE = "queue:"


def make_dead_letters(
    url: str | None, credentials_id: str | None, url_refusal: Callable[[str], str | None]
) -> Callable[[Row], NewJob | None] | None:
    """What turns a dead job into a letter, as the settings ask for; None when nobody is to be told."""
    if url is None or url.startswith(_QUEUE):
        return None
    if url.startswith(("sqs:", "amqp:", "amqps:", "kafka:")):
        raise SettingsError(
            "HOMING_JOBS_DEAD_LETTER_URL: name a webhook, or queue:NAME for a queue of the jobs' broker"
        )
    if (refusal := url_refusal(url)) is not None:
        raise SettingsError(f"HOMING_JOBS_DEAD_LETTER_URL cannot be used: {refusal}")
    credentials = _credentials(credentials_id)

    def letter(row: Row) -> NewJob | None:
        # A dead letter that cannot be delivered brings forth no other, and neither does an alert.
        if row["source"] == SOURCE and row["type"] in {TYPE, ALERT_TYPE}:
            return None
        return of_trace(_letter(row, url, credentials), _trace_of(row))

    return letter


class QueuedLetters:
    """The same event, as a message in a queue of the jobs' broker."""

    def __init__(self, queue: Queue, broker: Callable[[], Broker | None]) -> None:
        self._queue = queue
        self._broker = broker

    async def send(self, rows: Sequence[Row]) -> list[int]:
        """The ids of those that the broker keeps now; the others are tried again."""
        broker = self._broker()
        if broker is None:
            return []
        publications = [
            Publication(msgspec.json.encode(_event(row)), text_of(row["id"]), _once(row), _trace_of(row))
            for row in rows
        ]
        refused = await broker.publish(self._queue, publications)
        return [row["id"] for row, failure in zip(rows, refused, strict=True) if failure is None]


def make_queued_letters(url: str | None, broker: Callable[[], Broker | None]) -> QueuedLetters | None:
    """For `queue:NAME`; else None."""
    if url is None or not url.startswith(_QUEUE):
        return None
    name = url.removeprefix(_QUEUE)
    if not name:
        raise SettingsError("HOMING_JOBS_DEAD_LETTER_URL: name the queue, as in queue:homing-dead-letters")
    return QueuedLetters(Queue(name), broker)


def _once(row: Row) -> str:
    """One letter for each end: a job that is requeued and dies again is told of again."""
    return f"{row['id']}:{row['claim_seq']}:{row['attempt_count']}"


def _trace_of(row: Row) -> Trace | None:
    """A letter is a part of what began with its job."""
    return read_trace(row["traceparent"], row["tracestate"])


def _credentials(text: str | None) -> int | None:
    if text is None:
        return None
    number = number_of(text)
    if number is None:
        raise SettingsError(
            "HOMING_JOBS_DEAD_LETTER_CREDENTIALS_ID is no id of credentials: it has 13 characters"
        )
    return number


def _letter(row: Row, url: str, credentials_id: int | None) -> NewJob:
    return NewJob(
        source=SOURCE,
        type=TYPE,
        target_url=url,
        target=target_of(url, credentials_id),
        credentials_id=credentials_id,
        payload=msgspec.json.encode(_event(row)).decode(),
        max_retries=_MAX_RETRIES,
        idempotency_key=_once(row),
    )


def _event(row: Row) -> dict[str, Any]:
    return {
        "type": TYPE,
        "timestamp": iso(row["completed_at"]),
        "data": {
            "id": text_of(row["id"]),
            "source": row["source"],
            "type": row["type"],
            "groupId": row["group_id"],
            "targetUrl": row["target_url"],
            "attemptCount": row["attempt_count"],
            "errorClass": row["error_class"],
            "lastError": row["last_error"],
            "createdAt": iso(row["created_at"]),
            "completedAt": iso(row["completed_at"]),
        },
    }
