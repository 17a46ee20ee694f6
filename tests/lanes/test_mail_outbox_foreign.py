"""Beside another program: a producer, a dispatcher as specified, and a person at the SQL console.

None of them knows anything of Homing. They use plain drivers, plain SQL and a mail client of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from email import message_from_bytes
from email.message import EmailMessage
from typing import Any

import aiosmtplib
import pytest
from tests.emails import until
from tests.lanes.test_mail_outbox_adopt import TABLES, made
from tests.notifications import OtherProgram, other_program
from tests.outbox import Bench, bench
from tests.workers.running import at_work

from homing.testing.smtp_sink import Act, SmtpSink, Stage, reply

MAILS = 120
MAX_ATTEMPTS = 5

#: The specification's statement, to the letter.
CLAIM_ON_POSTGRES = """
WITH candidates AS (
  SELECT id
  FROM mail_outbox
  WHERE status = 'queued'
    AND next_attempt_at <= NOW()
    AND retry_count < :max_attempts
  ORDER BY next_attempt_at ASC, id ASC
  LIMIT :batch_size
  FOR UPDATE SKIP LOCKED
)
UPDATE mail_outbox
SET status = 'dispatching',
    last_attempt_at = NOW()
FROM candidates
WHERE mail_outbox.id = candidates.id
RETURNING mail_outbox.*
"""
#: The same where there is no SKIP LOCKED, with the other program's own notion of now.
CLAIM_ON_SQLITE = """
WITH candidates AS (
  SELECT id
  FROM mail_outbox
  WHERE status = 'queued'
    AND next_attempt_at <= {now}
    AND retry_count < :max_attempts
  ORDER BY next_attempt_at ASC, id ASC
  LIMIT :batch_size
)
UPDATE mail_outbox
SET status = 'dispatching',
    last_attempt_at = {now}
FROM candidates
WHERE mail_outbox.id = candidates.id
RETURNING *
"""


class Foreign:
    """Everything that the other program does: its dispatcher has a connection of its own."""

    def __init__(self, other: OtherProgram, dispatcher: OtherProgram, relay: SmtpSink, table: str) -> None:
        self._other, self._dispatcher = other, dispatcher
        self._relay = relay
        if other.dialect == "postgres":
            self._now, self._claim = "now()", CLAIM_ON_POSTGRES
            self._later, self._long_ago = (
                f"now() {span}" for span in ("+ interval '1 s'", "- interval '1 h'")
            )
        else:
            form = "datetime({0})" if table == "specified" else "strftime('%Y-%m-%dT%H:%M:%fZ', {0})"
            self._now, self._later, self._long_ago = (
                form.format(f"'now', '{span}'") for span in ("+0 seconds", "+1 second", "-1 hour")
            )
            self._claim = CLAIM_ON_SQLITE.format(now=self._now)
        self.sent = 0

    async def order(self, number: int, kind: str) -> None:
        await self._other.sql(
            "INSERT INTO mail_outbox (status, to_address, subject, text_body, retry_count, next_attempt_at) "
            f"VALUES ('queued', :to, :subject, 'Hello.', 0, {self._now})",
            to=f"{kind}{number}@example.org", subject=str(number),
        )  # fmt: skip

    async def produce(self) -> None:
        for number in range(MAILS):
            await self.order(number, {3: "later", 7: "never"}.get(number % 10, "ann"))
            await asyncio.sleep(0)

    async def claim(self) -> list[dict[str, Any]]:
        return await self._dispatcher.sql(self._claim, max_attempts=MAX_ATTEMPTS, batch_size=3)

    async def dispatch(self) -> None:
        """Until it is cancelled."""
        while True:
            claimed = await self.claim()
            for row in claimed:
                await self._attempt(row["id"], row["to_address"], row["subject"])
            await asyncio.sleep(0 if claimed else 0.02)

    async def _attempt(self, id: int, to: str, subject: str) -> None:
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = "shop@example.com", to, subject
        mail.set_content("Hello.")
        try:
            await aiosmtplib.send(mail, hostname=self._relay.host, port=self._relay.port, start_tls=False)
        except aiosmtplib.SMTPRecipientsRefused as error:
            code = error.recipients[0].code
            status = "failed" if code >= 500 else "queued"
            await self._settle(id, status, charged=1, error=str(code))
        else:
            self.sent += 1
            await self._settle(id, "sent")

    async def _settle(self, id: int, status: str, charged: int = 0, error: str | None = None) -> None:
        at = f", next_attempt_at = {self._later}" if status == "queued" else ""
        await self._dispatcher.sql(
            "UPDATE mail_outbox SET status = :status, retry_count = retry_count + :charged, "
            f"last_error = :error{at} WHERE id = :id",
            status=status, charged=charged, error=error, id=id,
        )  # fmt: skip

    async def let_time_pass(self) -> None:
        await self._other.sql(f"UPDATE mail_outbox SET last_attempt_at = {self._long_ago}")

    async def states(self) -> Counter[str]:
        rows = await self._other.sql("SELECT status, count(*) AS count FROM mail_outbox GROUP BY status")
        return Counter({row["status"]: row["count"] for row in rows})

    async def put_back(self, condition: str) -> None:
        """What a person types."""
        await self._other.sql(
            f"UPDATE mail_outbox SET status = 'queued', retry_count = 0, next_attempt_at = {self._now} "
            f"WHERE {condition}"
        )


@asynccontextmanager
async def side_by_side(url: str, table: str, relay: SmtpSink) -> AsyncIterator[tuple[Bench, Foreign]]:
    settings = {"mail_url": relay.url, "dispatch_backoff_max_seconds": 1, "port": 0, "mail_batch": 3}
    async with AsyncExitStack() as stack:
        if table != "ours":
            await stack.enter_async_context(made(url, TABLES[table]))
        lane = await stack.enter_async_context(bench(url, **settings))
        other, dispatcher = await other_program(url), await other_program(url)
        stack.push_async_callback(other.close)
        stack.push_async_callback(dispatcher.close)
        yield lane, Foreign(other, dispatcher, relay, table)


def refuse_as_told() -> tuple[SmtpSink, set[str]]:
    """A relay that wants some mails a second time, and refuses others for good as long as they are told."""
    greylisted: set[str] = set()
    refused: set[str] = {"never"}

    def script(stage: Stage, argument: str) -> Act | None:
        if stage != "rcpt":
            return None
        if any(word in argument for word in refused):
            return reply("550 5.1.1 no such user")
        if "later" in argument and argument not in greylisted:
            greylisted.add(argument)
            return reply("450 4.2.0 later")
        return None

    return SmtpSink(script=script), refused


@pytest.mark.clause("OUT-14", "OUT-15", "OUT-02", "OUT-04", "OUT-06", "OUT-07")
@pytest.mark.parametrize("table", ["ours", "specified"])
async def test_another_program_produces_dispatches_and_puts_back_beside_ours(
    database_url: str, table: str
) -> None:
    relay, refused = refuse_as_told()
    async with relay, side_by_side(database_url, table, relay) as (lane, foreign):
        async with at_work(lane.homing, ["mail_outbox"]):
            theirs = asyncio.create_task(foreign.dispatch())
            await foreign.produce()

            async def states_are(**wanted: int) -> bool:
                assert not theirs.done(), theirs
                return await foreign.states() == Counter(wanted)

            never = MAILS // 10
            await until(lambda: states_are(sent=MAILS - never, failed=never), 240)
            # Those who were refused can be reached now, and ten mails are to go out once more.
            refused.clear()
            await foreign.put_back("status = 'failed' OR subject IN ('0', '1', '2', '4', '5')")
            await until(lambda: states_are(sent=MAILS), 240)
            theirs.cancel()
            await asyncio.gather(theirs, return_exceptions=True)
        got = Counter(str(message_from_bytes(mail.data)["subject"]) for mail in relay.mails)
        twice = {"0", "1", "2", "4", "5"}
        assert got == Counter({str(n): 2 if str(n) in twice else 1 for n in range(MAILS)})
        ours = sum(row["delivered_by"] is not None for row in await lane.sql("SELECT * FROM mail_outbox"))
        assert foreign.sent > 0
        assert ours > 0, "both have a share"
        for row in await lane.sql("SELECT * FROM mail_outbox"):
            assert row["last_attempt_at"] is not None
            assert row["last_error"] is None
            assert row["retry_count"] == (1 if "later" in row["to_address"] else 0)


@pytest.mark.clause("OUT-14", "OUT-13")
@pytest.mark.parametrize("table", ["ours", "specified"])
async def test_a_mail_that_a_foreign_dispatcher_left_behind_is_rescued(database_url: str, table: str) -> None:
    async with SmtpSink() as relay, side_by_side(database_url, table, relay) as (lane, foreign):
        await foreign.order(1, "ann")
        assert len(await foreign.claim()) == 1
        assert await lane.outbox.rescue(10) == 0, "it has as long as a worker of ours would have"
        await foreign.let_time_pass()
        assert await lane.outbox.rescue(10) == 1

        async def is_delivered() -> bool:
            return len(await lane.deliver()) == 1

        # A column of milliseconds rounds up: it may be due in half of one.
        await until(is_delivered)
