"""Flips and subscriptions on a database of the test's own, and plain SQL on it, as another program does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
from litestar import Litestar
from prometheus_client import CollectorRegistry

from homing.db import Database, connect
from homing.db.migrate import load_migrations, migrate
from homing.db.queries import parse_queries
from homing.http.app import build_app
from homing.http.server import serving
from homing.lanes.open_events.api import ROUTES
from homing.lanes.open_events.fanout import Fanout, FlipReply, FlipRequest, flip_of
from homing.lanes.open_events.links import LinkKeys, Links, contact_hash
from homing.lanes.open_events.notification import Terms
from homing.lanes.open_events.notifications import Notifications
from homing.lanes.open_events.pages import PageTerms, subscriber_pages
from homing.lanes.open_events.subscriptions import Confirmation, Subscriptions, new_token
from homing.lanes.open_events.wishes import SubscriptionRequest, order_of
from homing.telemetry import Telemetry

SECTION = {"term_id": "92026", "campus_code": "NB", "index_number": "12345"}
#: The same, as JSON has it.
WHERE = {"termId": "92026", "campusCode": "NB", "indexNumber": "12345"}
OPENED = {**WHERE, "statusBefore": "Closed", "statusAfter": "Open"}
KEYS = LinkKeys([b"k" * 32])


class Clock:
    """Stands still until it is told to go on; the database has its own."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **time: float) -> None:
        self.now += timedelta(**time)


class Desk:
    """What a test holds in its hands."""

    client: httpx.AsyncClient

    def __init__(self, database: Database) -> None:
        self.database = database
        self.telemetry = Telemetry(registry=CollectorRegistry())
        self.clock = Clock()
        self.address = "https://seats.example"
        self.links = Links(lambda: KEYS, lambda: self.address)
        #: Confirmations that were sent.
        self.mails: list[Confirmation] = []
        self.fanout = Fanout(database, self.telemetry)
        self.subscriptions = Subscriptions(
            database, self.links, send_confirmation=self._keep, clock=self.clock
        )

    async def _keep(self, mail: Confirmation) -> None:
        self.mails.append(mail)

    # ── the tables ───────────────────────────────────────────────────────────────────────────────

    async def sql(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        """Run plain SQL with `:name` parameters, outside of everything Homing knows."""
        query = next(parse_queries(f"-- name: plain\n{statement}", self.database.dialect))
        query = msgspec.structs.replace(query, writes=not statement.lstrip().upper().startswith("SELECT"))
        return [dict(row) for row in await self.database.fetch(query, parameters)]

    async def insert(self, table: str, key: str, **columns: Any) -> int:
        names, marks = ", ".join(columns), ", ".join(f":{name}" for name in columns)
        statement = f"INSERT INTO {table} ({names}) VALUES ({marks}) RETURNING {key} AS id"
        return int((await self.sql(statement, **columns))[0]["id"])

    async def subscriber(self, address: str = "ann@example.org", **columns: Any) -> int:
        """A subscription as another program would write it: active, unless said otherwise."""
        wishes = columns.pop("preferences", None)
        values = {
            **SECTION,
            "contact_type": "email",
            "contact_value": address,
            "contact_hash": contact_hash(address),
            "status": "active",
            "is_verified": 1,
            "metadata": json.dumps({"preferences": wishes}) if wishes is not None else None,
            **columns,
        }
        return await self.insert("subscriptions", "subscription_id", **values)

    async def notification(self, subscription: int, event: int = 1, **columns: Any) -> int:
        values = {
            "open_event_id": event,
            "subscription_id": subscription,
            "dedupe_key": "key",
            "fanout_status": "pending",
            **columns,
        }
        return await self.insert("open_event_notifications", "notification_id", **values)

    async def happened(self, subscription: int, *types: str) -> None:
        for type in types:
            await self.insert(
                "subscription_events", "event_id", subscription_id=subscription, event_type=type
            )

    async def told(self) -> list[int]:
        """Who has a notification."""
        rows = await self.sql("SELECT subscription_id AS id FROM open_event_notifications ORDER BY 1")
        return [row["id"] for row in rows]

    async def row(self, id: int) -> dict[str, Any]:
        return (await self.sql("SELECT * FROM subscriptions WHERE subscription_id = :id", id=id))[0]

    async def events(self, id: int) -> list[tuple[str, Any]]:
        """The history of a subscription, oldest first."""
        statement = """SELECT event_type, payload FROM subscription_events
            WHERE subscription_id = :id ORDER BY event_id"""
        rows = await self.sql(statement, id=id)
        return [(row["event_type"], row["payload"] and json.loads(row["payload"])) for row in rows]

    async def count(self, table: str) -> int:
        return int((await self.sql(f"SELECT count(*) AS n FROM {table}"))[0]["n"])

    # ── what the API does ────────────────────────────────────────────────────────────────────────

    async def flip(self, at: datetime | None = None, **fields: Any) -> FlipReply:
        given = {**OPENED, **fields, "eventAt": (at or self.clock()).isoformat()}
        request = msgspec.convert(given, FlipRequest)
        return await self.fanout.record(flip_of(request, self.clock()))

    async def subscribe(self, email: str = "ann@example.org", **fields: Any) -> None:
        request = msgspec.convert({**WHERE, "email": email, **fields}, SubscriptionRequest)
        await self.subscriptions.subscribe(order_of(request, new_token()))

    def token(self, url: str) -> str:
        return url.partition("?token=")[2]


@asynccontextmanager
async def opened_desk(database_url: str) -> AsyncIterator[Desk]:
    database = connect(database_url)
    try:
        await migrate(database, load_migrations(["homing.lanes.open_events"], database.dialect))
        yield Desk(database)
    finally:
        await database.close()


async def _nothing() -> None:
    """There is no health to look at."""


def _app(desk: Desk) -> Litestar:
    given = {
        "telemetry": desk.telemetry,
        "check_ready": _nothing,
        "refresh_gauges": _nothing,
        "notifications": Notifications(desk.database, None, terms=Terms("test", 120, 86400)),
        "fanout": desk.fanout,
        "subscriptions": desk.subscriptions,
        "page_terms": PageTerms(("en-US", "zh-CN")),
    }
    return build_app([*ROUTES, subscriber_pages()], given, desk.telemetry, static=False)


@asynccontextmanager
async def called_desk(database_url: str) -> AsyncIterator[Desk]:
    """The same behind the HTTP application, which is called without a socket: that is ten times as quick."""
    async with opened_desk(database_url) as desk:
        desk.address = "http://127.0.0.1"
        app: Any = _app(desk)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=desk.address) as desk.client:
            yield desk


@asynccontextmanager
async def served_desk(database_url: str) -> AsyncIterator[Desk]:
    """The same behind a real server."""
    async with (
        opened_desk(database_url) as desk,
        serving(_app(desk), "127.0.0.1", 0) as desk.address,
        httpx.AsyncClient(base_url=desk.address, timeout=30) as desk.client,
    ):
        yield desk
