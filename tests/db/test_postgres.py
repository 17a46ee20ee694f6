"""PostgreSQL as it is met in the wild: unreachable, refusing, hanging up in the middle, silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from time import monotonic
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from tests.engine.waiting import until
from tests.outbox import Bench, bench

from homing.db import Query, connect, redact
from homing.db.postgres import PostgresDatabase
from homing.engine.model import Complete, Failure, RetryIn
from homing.errors import Conflict, DatabaseError, SchemaError, Unreachable
from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.outbox import new_token
from homing.senders.mail import MailMessage, SendResult
from homing.testing.components.processes import free_port
from homing.testing.tcp_proxy import Fault, TcpProxy

ONE = Query("one", "SELECT 1 AS one", (), writes=False)
ECHO = Query("echo", "SELECT $1::text AS text", ("text",), writes=False)
#: The end of every answer: the server is ready for the next statement, so the last one is committed.
READY = b"Z\x00\x00\x00\x05I"


async def failure(url: str, query: Query = ONE) -> DatabaseError:
    database = connect(url)
    try:
        with pytest.raises(DatabaseError) as caught:
            await database.fetch(query, {})
    finally:
        await database.close()
    return caught.value


# ── what cannot be used ──────────────────────────────────────────────────────────────────────────


async def test_nobody_listens() -> None:
    error = await failure(f"postgresql://homing:hunter2@127.0.0.1:{free_port()}/x")
    assert isinstance(error, Unreachable)
    assert "cannot reach PostgreSQL at postgresql://homing:***@127.0.0.1" in str(error)
    assert "hunter2" not in str(error)


async def test_no_such_database(postgres_url: str) -> None:
    error = await failure(f"{postgres_url}_missing")
    assert isinstance(error, Unreachable)
    assert "does not exist" in str(error)


async def test_no_such_user(postgres_url: str) -> None:
    error = await failure(postgres_url.replace("postgres@", "nobody_of_ours:hunter2@"))
    assert isinstance(error, Unreachable)
    assert "nobody_of_ours" in str(error)
    assert "hunter2" not in str(error)


async def test_a_missing_table_says_what_to_do(postgres_url: str) -> None:
    error = await failure(postgres_url, Query("missing", "SELECT * FROM mail_outbox", (), writes=False))
    assert isinstance(error, SchemaError)
    assert "run `homing migrate`" in str(error)


async def test_a_refused_statement_names_its_state_and_the_next_one_works(postgres_url: str) -> None:
    database = connect(postgres_url)
    try:
        with pytest.raises(DatabaseError, match="SQLSTATE 22012"):
            await database.fetch(Query("zero", "SELECT 1 / 0", (), writes=False), {})
        assert (await database.fetch(ONE, {}))[0]["one"] == 1
    finally:
        await database.close()


@pytest.mark.slow
async def test_a_row_that_another_holds_too_long_is_a_conflict(postgres_url: str) -> None:
    async with bench(postgres_url) as opened:
        (held,) = await opened.insert()
        holder = PostgresDatabase(postgres_url)
        lock = "SELECT pg_sleep(18) FROM (SELECT id FROM mail_outbox FOR UPDATE) AS held"
        holding = asyncio.create_task(holder.fetch(Query("hold", lock, (), writes=True), {}))
        try:
            # Other tests may have somebody sleep on the same server.
            sleeping = (
                "SELECT 1 AS one FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event = 'PgSleep'"
            )
            await until(partial(_found, postgres_url, sleeping))
            assert await opened.outbox.claim(1) == [], "a claim steps over it"
            with pytest.raises(Conflict, match="holds the lock"):
                await opened.outbox.cancel([held])
        finally:
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            await holder.close()


async def test_texts(postgres_url: str) -> None:
    database = connect(postgres_url)
    try:
        for text in ("Grüße, 世界 🕊", "", "\u2028", "'; DROP TABLE x; --"):
            assert (await database.fetch(ECHO, {"text": text}))[0]["text"] == text
        for impossible in ("a\x00b", "\udc80"):
            with pytest.raises(DatabaseError):
                await database.fetch(ECHO, {"text": impossible})
        assert (await database.fetch(ONE, {}))[0]["one"] == 1
    finally:
        await database.close()


def test_a_url_is_shown_without_its_password() -> None:
    assert redact("postgresql://ann:p@ss@host/db").endswith("@host/db")
    assert "p@ss" not in redact("postgresql://ann:p@ss@host/db")
    assert redact("postgresql://host/db") == "postgresql://host/db"


# ── the network between ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[TcpProxy]:
    parts = urlsplit(postgres_url)
    assert parts.hostname
    assert parts.port
    async with TcpProxy(parts.hostname, parts.port) as opened:
        yield opened


def through(proxy: TcpProxy, url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{proxy.port}"))


async def direct(url: str, sql: str) -> list[dict[str, object]]:
    database = connect(url)
    try:
        return [dict(row) for row in await database.fetch(Query("direct", sql, (), writes=False), {})]
    finally:
        await database.close()


async def _found(url: str, sql: str) -> bool:
    return bool(await direct(url, sql))


def mail(key: str | None = None) -> NewMail:
    return NewMail(token=new_token(), to_address="a@example.org", text_body="x", idempotency_key=key)


async def test_connections_that_were_cut_are_replaced(proxy: TcpProxy, postgres_url: str) -> None:
    database = connect(through(proxy, postgres_url))
    try:
        await asyncio.gather(*(database.fetch(ONE, {}) for _ in range(8)))
        proxy.reset_all()
        async with asyncio.timeout(60):
            while True:
                try:
                    assert (await database.fetch(ONE, {}))[0]["one"] == 1
                except Unreachable:
                    continue
                break
        await asyncio.gather(*(database.fetch(ONE, {}) for _ in range(8)))
    finally:
        await database.close()


async def test_a_connection_cut_anywhere_gives_only_our_errors(proxy: TcpProxy, postgres_url: str) -> None:
    """After every so many bytes of the conversation, in both directions: login, prepare, answer."""
    failures = 0
    for direction in ("to_client", "to_server"):
        for cut in [*range(0, 60, 7), *range(60, 1200, 53)]:
            setattr(proxy, direction, Fault(cut_after=cut))
            database = connect(through(proxy, postgres_url))
            try:
                await database.fetch(ECHO, {"text": "x" * 300})
            except Unreachable:
                failures += 1
            finally:
                await database.close()
        proxy.heal()
    assert failures > 20


async def test_a_slow_and_sliced_connection_only_takes_longer(proxy: TcpProxy, postgres_url: str) -> None:
    proxy.to_client = Fault(delay=0.0005, largest_piece=11)
    proxy.to_server = Fault(largest_piece=7, bytes_per_second=200_000)
    async with bench(through(proxy, postgres_url)) as opened:
        await opened.insert(3)
        ends = await opened.deliver()
        assert [type(end) for end in ends.values()] == [Complete] * 3


async def test_a_refused_connection_heals(proxy: TcpProxy, postgres_url: str) -> None:
    proxy.refusing = True
    database = connect(through(proxy, postgres_url))
    try:
        with pytest.raises(Unreachable):
            await database.fetch(ONE, {})
        proxy.refusing = False
        assert (await database.fetch(ONE, {}))[0]["one"] == 1
    finally:
        await database.close()


async def test_an_enqueue_whose_reply_is_lost_and_is_repeated_gives_one_mail(
    proxy: TcpProxy, postgres_url: str
) -> None:
    """R6: the commit's outcome is unknown to the client; its idempotency key makes the repetition safe."""
    async with bench(through(proxy, postgres_url)) as opened:
        await opened.outbox.enqueue([mail()])
        for number in range(10):
            key = f"order-{number}"
            proxy.lose_reply_to(key.encode(), reply=READY)
            with pytest.raises(Unreachable):
                await opened.outbox.enqueue([mail(key)])
            (ordered,) = await opened.outbox.enqueue([mail(key)])
            assert ordered.verdict == "duplicate", "the first had been committed"
        assert proxy.sprung == 10
    assert await direct(postgres_url, "SELECT count(*) AS n FROM mail_outbox") == [{"n": 11}]


async def test_an_enqueue_that_is_lost_on_its_way_can_be_repeated(proxy: TcpProxy, postgres_url: str) -> None:
    async with bench(through(proxy, postgres_url)) as opened:
        await opened.outbox.enqueue([mail()])
        proxy.lose(b"order-1")
        with pytest.raises(Unreachable):
            await opened.outbox.enqueue([mail("order-1")])
        (ordered,) = await opened.outbox.enqueue([mail("order-1")])
        assert ordered.verdict == "created"


async def test_a_claim_whose_reply_is_lost_is_rescued(proxy: TcpProxy, postgres_url: str) -> None:
    async with bench(through(proxy, postgres_url)) as opened:
        ids = await opened.insert(3)
        assert await opened.outbox.claim(0) == []
        owner = opened.outbox._parameters["owner"]
        proxy.lose_reply_to(owner.encode(), reply=READY)
        with pytest.raises(Unreachable):
            await opened.outbox.claim(10)
        assert proxy.sprung == 1
        assert {(await opened.row(one))["status"] for one in ids} == {"dispatching"}, (
            "taken, and nobody knows"
        )
        assert await opened.outbox.claim(10) == []
        for one in ids:
            await opened.age(one, 1000)
        await opened.homing.mail.maintenance.once()
        assert len(await opened.deliver()) == 3
        rows = [await opened.row(one) for one in ids]
        assert [(row["status"], row["retry_count"], row["rescue_count"]) for row in rows] == [
            ("sent", 0, 1)
        ] * 3


async def _settle_through_a_cut(opened: Bench, proxy: TcpProxy) -> None:
    ids = await opened.insert(3)
    ends = await opened.deliver()
    rows = [await opened.row(one) for one in ids]
    assert [row["status"] for row in rows] == ["sent"] * 3
    assert len(opened.sender.delivered) == 4, "each was sent once"
    assert proxy.sprung == 1
    assert len(opened.log.all("settle.delayed")) == 1
    # The first try was committed, so the second finds nothing of its own: refused by the fence, not repeated.
    assert [row["retry_count"] for row in rows] == [0, 0, 0]
    assert set(ends) == set(ids)


async def test_a_settlement_whose_reply_is_lost_takes_effect_once(proxy: TcpProxy, postgres_url: str) -> None:
    async with bench(through(proxy, postgres_url)) as opened:
        await opened.insert()
        await opened.deliver()
        proxy.lose_reply_to(b'"status":"sent"', reply=READY)
        await _settle_through_a_cut(opened, proxy)


async def test_a_settlement_that_is_lost_on_its_way_is_made_again(proxy: TcpProxy, postgres_url: str) -> None:
    async with bench(through(proxy, postgres_url)) as opened:
        await opened.insert()
        await opened.deliver()
        proxy.lose(b'"status":"sent"')
        await _settle_through_a_cut(opened, proxy)


@pytest.mark.slow
async def test_a_hundred_settlements_with_cuts_are_each_charged_once(
    proxy: TcpProxy, postgres_url: str
) -> None:
    """Retries are counted: a settlement that took effect twice would show."""
    async with bench(through(proxy, postgres_url)) as opened:
        (one,) = await opened.insert()
        for number in range(100):
            await opened.sql("UPDATE mail_outbox SET retry_count = 0, next_attempt_at = now() RETURNING id")
            (claim,) = await opened.outbox.claim(1)
            settlement = RetryIn(0.0, Failure("network_error", f"cut-{number}"))
            if number % 2:
                proxy.lose_reply_to(b"COMMIT")
            else:
                proxy.lose(f"cut-{number}".encode())
            with pytest.raises(Unreachable):
                await opened.outbox.settle([(claim, settlement)])
            async with asyncio.timeout(60):
                settled = await opened.outbox.settle([(claim, settlement)])
            row = await opened.row(one)
            assert (row["status"], row["retry_count"]) == ("queued", 1), number
            assert settled == (set() if number % 2 else {one})
        assert proxy.sprung == 100
        kept = await opened.sql("SELECT message FROM homing_attempt ORDER BY fence")
        assert [row["message"] for row in kept] == [f"cut-{number}" for number in range(100)]


@pytest.mark.slow
async def test_a_silent_network_costs_no_lease(proxy: TcpProxy, postgres_url: str) -> None:
    """A renewal that hears nothing keeps nobody waiting: the next goes beside it, and gets through."""
    async with bench(through(proxy, postgres_url), dispatch_lease_seconds=6.0) as opened:
        (one,) = await opened.insert()
        hold = asyncio.Event()
        send = opened.sender.send

        async def slow(message: MailMessage) -> SendResult:
            await hold.wait()
            return await send(message)

        opened.sender.send = slow  # type: ignore[method-assign]
        claims = await opened.deliverer.claim(1)
        proxy.to_client = Fault(blackhole=True)
        renewals = opened.deliverer._renewer._renewals
        await until(lambda: bool(renewals))
        (unheard,) = renewals
        # Its request is on its way to a server whose answer nobody will hear.
        await until(
            partial(_found, postgres_url, "SELECT 1 AS one FROM mail_outbox WHERE status = 'dispatching'")
        )
        proxy.to_client = Fault()
        renewed = (
            "SELECT 1 AS one FROM mail_outbox WHERE lease_expires_at > last_attempt_at + '9.4 s'::interval"
        )
        await until(partial(_found, postgres_url, renewed))
        assert not unheard.done()
        hold.set()
        assert [type(end) for end in (await opened.deliverer.settled(claims)).values()] == [Complete]
        row = await opened.row(one)
        assert (row["status"], row["claim_seq"]) == ("sent", 1)


async def test_a_cancelled_statement_does_not_wait_for_its_answer(proxy: TcpProxy, postgres_url: str) -> None:
    database = connect(through(proxy, postgres_url))
    try:
        await database.fetch(ONE, {})
        proxy.to_client = Fault(blackhole=True)
        began = monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await database.fetch(ONE, {})
        assert monotonic() - began < 10, "a statement has twenty seconds"
        proxy.to_client = Fault()
        assert (await database.fetch(ONE, {}))[0]["one"] == 1
    finally:
        await database.close()


async def test_who_has_one_row_open_keeps_no_other_waiting(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settlements and leases: a console with `BEGIN; UPDATE …`, and nobody at it."""
    async with bench(postgres_url) as opened:
        ids = await opened.insert(3)
        console = await asyncpg.connect(postgres_url)
        transaction = console.transaction()
        is_open = asyncio.Event()
        send = opened.sender.send

        async def wait(message: MailMessage) -> SendResult:
            await is_open.wait()
            return await send(message)

        monkeypatch.setattr(opened.sender, "send", wait)
        claims = await opened.deliverer.claim(10)
        await transaction.start()
        await console.execute("SELECT FROM mail_outbox WHERE id = $1 FOR UPDATE", ids[0])
        is_open.set()
        await opened.deliverer.settled(claim for claim in claims if claim.id != ids[0])
        assert [(await opened.row(id))["status"] for id in ids] == ["dispatching", "sent", "sent"]
        await opened.insert(1)
        assert len(await opened.deliver()) == 1
        await transaction.rollback()
        await opened.deliverer.settled(claims)
        assert [(await opened.row(id))["status"] for id in ids] == ["sent"] * 3
        await console.close()
