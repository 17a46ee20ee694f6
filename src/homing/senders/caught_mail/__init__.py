"""catch:// keeps mails for looking at, in `homing_caught_mail`, and sends nothing."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from homing.db import Database, Row, load_queries
from homing.engine.coalesce import Batched
from homing.errors import DatabaseError
from homing.senders.mail import MailMessage, SendError, SendErrorCode, SendResult, Verdict
from homing.senders.mime import Unassemblable, assemble

#: A shelf, not an archive: older mails make room.
KEPT = 10_000
_TIDY_EVERY = 500


class CaughtMail(Struct, frozen=True):
    message_id: str
    sender: str
    recipients: tuple[str, ...]
    subject: str
    #: base64 of the whole mail.
    source: str


class Shelf:
    """The caught mails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = load_queries(__name__, database.dialect)
        self._since_tidy = 0

    async def keep(self, mails: Sequence[CaughtMail]) -> list[int]:
        batch = msgspec.json.encode(mails).decode()
        rows = await self._database.fetch(self._queries["keep"], {"batch": batch})
        self._since_tidy += len(mails)
        if self._since_tidy >= _TIDY_EVERY:
            self._since_tidy = 0
            await self._database.fetch(self._queries["forget_old"], {"kept": KEPT})
        return [row["id"] for row in rows]

    async def list(self, limit: int = 50) -> Sequence[Row]:
        return await self._database.fetch(self._queries["list"], {"limit": limit})

    async def get(self, id: int) -> tuple[Row, bytes] | None:
        rows = await self._database.fetch(self._queries["get"], {"id": id})
        return (rows[0], b64decode(rows[0]["source"])) if rows else None


class CatchSender:
    name = "catch"

    def __init__(self, shelf: Shelf) -> None:
        self._keep = Batched(shelf.keep)

    async def send(self, message: MailMessage) -> SendResult:
        try:
            source = assemble(message)
        except Unassemblable as error:
            return _failed(SendErrorCode.VALIDATION_ERROR, str(error))
        mail = CaughtMail(
            message.message_id,
            message.sender,
            message.recipients,
            message.subject,
            b64encode(source).decode(),
        )
        try:
            await self._keep(mail)
        except DatabaseError as error:
            return SendResult(
                status="retryable",
                provider=self.name,
                error=SendError(SendErrorCode.NETWORK_ERROR, str(error)),
            )
        accepted = {address: Verdict("accepted") for address in message.recipients}
        return SendResult(
            status="sent", provider=self.name, provider_message_id=message.message_id, verdicts=accepted
        )

    def usable(self) -> bool:
        return True

    async def available(self) -> bool:
        return True

    async def close(self) -> None:
        await asyncio.sleep(0)


def _failed(code: SendErrorCode, message: str) -> SendResult:
    return SendResult(status="failed", provider=CatchSender.name, error=SendError(code, message))
