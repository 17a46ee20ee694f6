"""A program that knows the specification and nothing of Homing: its tables, its messages, its endpoint.

A producer and an operator's console by plain SQL, and a message router with an SQS client of its own. Nothing
of Homing is imported here.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx

# They ship no types, so that they are Any to us.
_session: Any = import_module("botocore.session")
_errors: Any = import_module("botocore.exceptions")

Statement = tuple[str, Sequence[Any]]


class Console:
    """Plain SQL, each call in one transaction of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_postgres = url.startswith("postgresql")

    async def run(self, *statements: Statement) -> list[dict[str, Any]]:
        """The rows of the last one."""
        return await (self._on_postgres if self.is_postgres else self._on_sqlite)(statements)

    async def _on_postgres(self, statements: Sequence[Statement]) -> list[dict[str, Any]]:
        connection = await asyncpg.connect(self._url)
        try:
            async with connection.transaction():
                for text, values in statements:
                    rows = await connection.fetch(_numbered(text), *values)
                return [dict(row) for row in rows]
        finally:
            await connection.close()

    async def _on_sqlite(self, statements: Sequence[Statement]) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._in_file, statements)

    def _in_file(self, statements: Sequence[Statement]) -> list[dict[str, Any]]:
        connection = sqlite3.connect(urlsplit(self._url).path, timeout=60, isolation_level=None)
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("BEGIN IMMEDIATE")
            for text, values in statements:
                rows = connection.execute(text, values).fetchall()
            connection.execute("COMMIT")
            return [dict(row) for row in rows]
        finally:
            connection.close()

    def in_an_hour(self) -> str:
        """As this database's console would be asked for it."""
        return "now() + interval '1 hour'" if self.is_postgres else "datetime('now', '+1 hour')"

    def an_hour_ago(self) -> str:
        return "now() - interval '1 hour'" if self.is_postgres else "datetime('now', '-1 hour')"


def _numbered(text: str) -> str:
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", text)


class Producer:
    """Writes what the specification's schema has, and reads it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._next_id = 1_000

    async def create_credentials(self, bearer_token: str, signing_secret: str) -> int:
        self._next_id += 1
        text = (
            "INSERT INTO dispatch_credentials (id, bearer_token, signing_secret, algorithm)"
            " VALUES (?, ?, ?, 'HMAC_SHA256')"
        )
        await self.console.run((text, [self._next_id, bearer_token, signing_secret]))
        return self._next_id

    async def create_job(self, target_url: str, *also: Statement, **columns: Any) -> int:
        """With an id of its own, metadata and headers, all in one transaction; `also` runs in it, too."""
        self._next_id += 1
        values = {
            "id": self._next_id, "source": "order-service", "type": "order.created", "target_url": target_url,
            "payload": '{"orderId":"12345"}', "status": "PENDING", "max_retries": 2,
            "retry_strategy": "fixed", "protocol": "HTTP_WEBHOOK", **columns,
        }  # fmt: skip
        marks = ", ".join("?" for _ in values)
        job = f"INSERT INTO dispatch_job ({', '.join(values)}) VALUES ({marks})"
        metadata = "INSERT INTO dispatch_job_metadata VALUES (?, ?, ?, ?)"
        header = (
            "INSERT INTO dispatch_job_headers (dispatch_job_id, header_name, header_value) VALUES (?, ?, ?)"
        )
        await self.console.run(
            (job, [*values.values()]),
            (metadata, [self._next_id * 10, self._next_id, "tenant id", "acme corp"]),
            (header, [self._next_id, "X-Custom-Header", "value"]),
            *((text, [*given, self._next_id]) for text, given in also),
        )
        return self._next_id

    async def job(self, id: int) -> dict[str, Any]:
        (row,) = await self.console.run(("SELECT * FROM dispatch_job WHERE id = ?", [id]))
        return row

    async def status(self, id: int) -> str:
        status: str = (await self.job(id))["status"]
        return status

    async def attempts(self, id: int) -> list[dict[str, Any]]:
        text = "SELECT * FROM dispatch_attempt WHERE dispatch_job_id = ? ORDER BY attempt_number"
        return await self.console.run((text, [id]))

    async def find_by_metadata(self, key: str, value: str) -> list[int]:
        """The specification's query."""
        text = (
            "SELECT DISTINCT j.* FROM dispatch_job j JOIN dispatch_job_metadata m ON m.dispatch_job_id = j.id"
            " WHERE m.meta_key = ? AND m.meta_value = ?"
        )
        return sorted(row["id"] for row in await self.console.run((text, [key, value])))


def is_signed(headers: dict[str, str], body: bytes, bearer_token: str, signing_secret: str) -> bool:
    """The specification's algorithm."""
    timestamp = headers["X-FLOWCATALYST-TIMESTAMP"]
    expected = hmac.new(signing_secret.encode(), timestamp.encode() + body, sha256).hexdigest()
    return headers["Authorization"] == f"Bearer {bearer_token}" and hmac.compare_digest(
        expected, headers["X-FLOWCATALYST-SIGNATURE"]
    )


class Router:
    """Takes messages from the queue, calls what they name, deletes on 200, and leaves them on 400."""

    def __init__(self, endpoint: str, queue: str) -> None:
        self._queue = queue
        self._sqs = _session.Session().create_client(
            "sqs", region_name="us-east-1", endpoint_url=endpoint,
            aws_access_key_id="foreign", aws_secret_access_key="foreign",
        )  # fmt: skip
        self.answers: list[tuple[str, int]] = []

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=120) as client:
            while True:
                url, messages = await asyncio.to_thread(self._receive)
                await asyncio.gather(*(self._mediate(client, url, message) for message in messages))

    def _receive(self) -> tuple[str, list[dict[str, Any]]]:
        with suppress(_errors.ClientError):
            url = self._sqs.get_queue_url(QueueName=self._queue)["QueueUrl"]
            found = self._sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, VisibilityTimeout=2
            )
            return url, found.get("Messages", [])
        return "", []

    async def _mediate(self, client: httpx.AsyncClient, url: str, message: dict[str, Any]) -> None:
        pointer = json.loads(message["Body"])
        response = await client.post(
            pointer["mediationTarget"],
            json={"messageId": pointer["id"]},
            headers={"Authorization": f"Bearer {pointer['authToken']}"},
        )
        self.answers.append((pointer["id"], response.status_code))
        if response.status_code == httpx.codes.OK:
            receipt = message["ReceiptHandle"]
            await asyncio.to_thread(self._sqs.delete_message, QueueUrl=url, ReceiptHandle=receipt)
