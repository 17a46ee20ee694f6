"""The mails that everybody delivers: half with a text, half with a text and html; or all from a template."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from pathlib import Path

import asyncpg
from msgspec import Struct

from homing.db import Database
from homing.db.queries import parse_queries

SENDER = "shop@example.com"
_TEXT = "Hello dear customer, your order is on its way and will reach you soon.\n" * 7
_HTML = "<p>Hello dear customer, your order is <b>on its way</b> and will reach you soon.</p>\n" * 7


class SampleMail(Struct, frozen=True):
    to: str
    subject: str
    text: str
    html: str | None = None


def sample_mail(number: int) -> SampleMail:
    html = _HTML if number % 2 == 0 else None
    return SampleMail(f"user{number}@example.org", f"Order {number} has shipped", _TEXT, html)


def sample_mails(count: int) -> Iterator[SampleMail]:
    return map(sample_mail, range(1, count + 1))


def email_message(mail: SampleMail) -> EmailMessage:
    """As the standard library makes it, and as most programs in Python do."""
    message = EmailMessage()
    message["From"] = SENDER
    message["To"] = mail.to
    message["Subject"] = mail.subject
    message["Date"] = format_datetime(datetime.now(UTC))
    message["Message-ID"] = make_msgid(domain="example.com")
    message.set_content(mail.text)
    if mail.html is not None:
        message.add_alternative(mail.html, subtype="html")
    return message


# ── into mail_outbox ─────────────────────────────────────────────────────────────────────────────

_FILL = """
-- name: bodies
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
INSERT INTO mail_outbox (from_address, to_address, subject, text_body, html_body)
SELECT CAST(:sender AS text), 'user' || n || '@example.org', 'Order ' || n || ' has shipped',
    CAST(:text AS text), CASE WHEN n % 2 = 0 THEN CAST(:html AS text) END
FROM numbers

-- name: template
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
INSERT INTO mail_outbox (from_address, to_address, template, variables)
SELECT CAST(:sender AS text), 'user' || n || '@example.org', 'shipped',
    CAST('{"number": ' || n || '}' AS json)
FROM numbers
"""


async def fill_outbox(database: Database, count: int, kind: str = "bodies") -> None:
    """`count` mails, due now. One statement for both dialects."""
    text = _FILL if database.dialect == "postgres" else _FILL.replace("AS json", "AS text")
    query = {query.name: query for query in parse_queries(text, database.dialect)}[kind]
    await database.fetch(query, {"count": count, "sender": SENDER, "text": _TEXT, "html": _HTML})


def write_template(folder: Path) -> None:
    """The same mail as a template with one variable and a loop."""
    (folder / "shipped").mkdir(parents=True)
    loop = "{{% for line in range(7) %}}{}{{% endfor %}}"
    text = loop.format("Hello dear customer, your order {{ number }} is on its way.\n")
    html = loop.format("<p>Hello dear customer, your order {{ number }} is <b>on its way</b>.</p>\n")
    (folder / "shipped" / "en.subject.txt").write_text("Order {{ number }} has shipped")
    (folder / "shipped" / "en.txt").write_text(text)
    (folder / "shipped" / "en.html").write_text(html)


async def settle_down(url: str) -> None:
    """After filling: statistics as after a while of running, and no writing left over from the filling."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
