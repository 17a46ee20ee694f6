"""What of a mail may be long does not come with its claim, and arrives whole."""

from __future__ import annotations

import json
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pytest
from tests.emails import email_bench
from tests.outbox import bench

from homing.engine.model import Claim
from homing.lanes.email_log.queues import Hint
from homing.testing.smtp_sink import SmtpSink

WORDS = " ".join(map(str, range(30_000)))
NAMED = ", ".join(f'"{"n" * 200} {n}" <a{n}@example.org>' for n in range(500))
LARGE: dict[str, Any] = {
    "to_address": NAMED,
    "cc_address": NAMED,
    "bcc_address": NAMED,
    "reply_to": NAMED,
    "subject": WORDS,
    "headers": json.dumps({"X-Words": WORDS}),
    # Of which PostgreSQL keeps a hundredth part.
    "variables": json.dumps({"a": "a" * 500_000}),
    "recipients": json.dumps({f"b{n}@example.org": {"status": "accepted"} for n in range(3000)}),
}


@pytest.mark.parametrize("column", LARGE)
async def test_what_is_large_does_not_come_with_the_claim_of_a_mail(database_url: str, column: str) -> None:
    async with SmtpSink() as sink, bench(database_url, mail_url=sink.url) as lane:
        await lane.insert(**{column: LARGE[column]})
        (claim,) = await lane.outbox.claim(10)
        assert getattr(claim.item, column) is None
        assert claim.size > 65536
        assert await lane.outbox.weigh(claim) >= len(LARGE[column]) > 65536
        await lane.outbox.release([claim])
        await lane.deliver()
        assert (await lane.outbox.counts())["sent"] == 1
        seen(column, sink)


@pytest.mark.parametrize("column", LARGE)
async def test_what_is_large_does_not_come_with_the_claim_of_an_email(database_url: str, column: str) -> None:
    async with SmtpSink() as sink, email_bench(database_url, mail_url=sink.url) as lane:
        (id,) = await lane.insert(**{column: LARGE[column]})
        await lane.schedule()
        row = await lane.row(id)
        (claim,) = await lane.emails.claim_these([Hint(id, row["message_key"])])
        assert isinstance(claim, Claim)
        assert getattr(claim.item, column) is None
        assert claim.size > 65536
        assert await lane.emails.weigh(claim) >= len(LARGE[column]) > 65536
        await lane.emails.release([claim])
        await lane.deliver()
        assert await lane.states([id]) == ["Sent"]
        seen(column, sink)


def seen(column: str, sink: SmtpSink) -> None:
    (mail,) = sink.mails
    message = message_from_bytes(mail.data, EmailMessage, policy=policy.compat32)
    if column in {"to_address", "cc_address", "bcc_address"}:
        assert {f"a{n}@example.org" for n in range(500)} <= set(mail.recipients)
    elif column == "reply_to":
        assert str(message["Reply-To"]).count("@example.org") == 500
    elif column in {"subject", "headers"}:
        written = str(message["Subject" if column == "subject" else "X-Words"])
        assert "".join(written.split()) == "".join(WORDS.split())
    else:
        assert mail.recipients == ("ann@example.org",)
