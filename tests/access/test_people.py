"""People: users, logins that are throttled, sessions that end."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import asyncpg
import pytest
from tests.access.desk import CHEAP, PASSWORD, Desk, opened_desk
from tests.outbox import bench
from tests.workers.running import at_work

from homing.access.login import LoggedIn, LoginsBusy, TooManyLogins, WrongLogin
from homing.access.passwords import Cost, Passwords
from homing.access.scopes import ROLES
from homing.errors import InvalidRequest, NotAllowed, NotFound

HERE = "192.0.2.7"


async def ann(desk: Desk, role: Any = "operator") -> None:
    await desk.access.users.add("ann", PASSWORD, role, by="cli:root")


async def log_in(desk: Desk, name: str = "ann", password: str = PASSWORD, address: str = HERE) -> Any:
    return await desk.access.log_in(name, password, address)


# ── passwords ────────────────────────────────────────────────────────────────────────────────────


async def test_a_password_is_kept_by_scrypt_with_its_cost() -> None:
    passwords = Passwords(CHEAP)
    stored = await passwords.hash(PASSWORD)
    assert stored.startswith("scrypt$10$8$1$")
    assert stored != await passwords.hash(PASSWORD)
    assert await passwords.match(stored, PASSWORD)
    assert not await passwords.match(stored, PASSWORD + "x")
    assert not await passwords.match(None, PASSWORD)
    assert not await passwords.match("", PASSWORD)
    assert not await passwords.match(stored, "x" * 100_000)
    dearer = Passwords(Cost(log_n=11, r=8, p=1))
    assert await dearer.match(stored, PASSWORD), "one of another cost"
    assert (Cost().log_n, Cost().r, Cost().p) == (16, 8, 2), "as OWASP recommends"


async def test_letters_that_look_the_same_are_the_same() -> None:
    stored = await Passwords(CHEAP).hash("Ångström Ångström")
    assert await Passwords(CHEAP).match(stored, "Ångström Ångström")


# ── users ────────────────────────────────────────────────────────────────────────────────────────


async def test_users_are_added_listed_changed_and_removed(desk: Desk) -> None:
    users = desk.access.users
    await ann(desk, "viewer")
    with pytest.raises(NotAllowed, match="there is a user ann"):
        await ann(desk)
    await users.set_role("ann", "admin", by="cli:root")
    assert [(row["name"], row["role"]) for row in await users.list()] == [("ann", "admin")]
    await users.remove("ann", by="cli:root")
    assert await users.list() == []
    for call in (users.remove("ann", by="x"), users.set_password("ann", PASSWORD, by="x")):
        with pytest.raises(NotFound):
            await call
    assert isinstance(await log_in(desk), WrongLogin)
    await ann(desk)
    assert isinstance(await log_in(desk), LoggedIn)
    assert [action for _, action, _, _ in await desk.entries()] == [
        "users.add", "users.role", "users.remove", "session.open", "users.add", "session.open",
    ]  # fmt: skip
    assert await Desk(desk.database, desk.log).access.is_configured()


async def test_a_name_that_cannot_be_typed_safely_is_refused(desk: Desk) -> None:
    for name in ("", "Ann", "a b", "-a", "a" * 101, "ann\n", "ännchen"):
        with pytest.raises(InvalidRequest):
            await desk.access.users.add(name, PASSWORD, "viewer", by="x")


async def test_a_short_password_is_refused_and_nothing_is_written(desk: Desk) -> None:
    with pytest.raises(InvalidRequest, match="12 to 1000"):
        await desk.access.users.add("ann", "x" * 11, "viewer", by="x")
    assert await desk.access.users.list() == []
    assert await desk.entries() == []


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────


async def test_who_logs_in_may_what_the_role_may(desk: Desk) -> None:
    await ann(desk)
    for role in ROLES:
        await desk.access.users.set_role("ann", role, by="x")
        logged_in = await log_in(desk)
        assert isinstance(logged_in, LoggedIn)
        assert len(logged_in.token) == 43
        found = await desk.access.sessions.find(logged_in.token)
        assert found is not None
        assert (found.who, found.role, found.may("jobs:read")) == ("user:ann", role, True)
        assert found.may("jobs:operate") == (role != "viewer")
        assert found.may("credentials:admin") == (role == "admin")
        assert len(found.csrf) == 43
        assert found.csrf != logged_in.token
        kept = str(await desk.sql("SELECT * FROM homing_session"))
        assert logged_in.token not in kept + desk.log.text + repr(logged_in)
        assert found.csrf not in kept + repr(found)


async def test_a_session_ends_by_disuse_by_age_and_by_hand(desk: Desk) -> None:
    await ann(desk)
    sessions = desk.access.sessions

    async def lives(token: str) -> bool:
        desk.now += 2.1
        return await sessions.find(token) is not None

    token = (await log_in(desk)).token
    await desk.let_pass("homing_session", 400, "seen_at")
    assert await lives(token)
    await sessions.drained()
    await desk.let_pass("homing_session", 400, "seen_at")
    assert await lives(token), "being used was noted"
    await sessions.drained()
    await desk.let_pass("homing_session", 601, "seen_at")
    assert not await lives(token)

    token = (await log_in(desk)).token
    await desk.let_pass("homing_session", 3601, "created_at")
    assert not await lives(token)

    token = (await log_in(desk)).token
    await desk.access.log_in.forget_old()
    assert len(await desk.sql("SELECT hash FROM homing_session")) == 1, "those that ended are forgotten"
    await sessions.close(token, "user:ann", HERE)
    assert await sessions.find(token) is None
    assert (await desk.entries())[-1] == ("user:ann", "session.close", None, "done")


async def test_what_changes_a_user_logs_them_out_everywhere(desk: Desk) -> None:
    await ann(desk)
    users, elsewhere = desk.access.users, Desk(desk.database, desk.log)
    for change in ("password", "role", "remove"):
        tokens = [(await log_in(desk)).token for _ in range(2)]
        assert all([await elsewhere.access.sessions.find(token) for token in tokens])
        if change == "password":
            await users.set_password("ann", PASSWORD, by="x")
        elif change == "role":
            await users.set_role("ann", "viewer", by="x")
        else:
            await users.remove("ann", by="x")
        elsewhere.now += 2.1
        assert not any([await elsewhere.access.sessions.find(token) for token in tokens])


async def test_a_login_never_goes_on_with_an_older_session(desk: Desk) -> None:
    await ann(desk)
    first = (await log_in(desk)).token
    second = await desk.access.log_in("ann", PASSWORD, HERE, first)
    assert isinstance(second, LoggedIn)
    assert second.token != first
    assert await Desk(desk.database, desk.log).access.sessions.find(first) is None


# ── guessing ─────────────────────────────────────────────────────────────────────────────────────


async def fail(desk: Desk, count: int, name: str = "ann", address: str = HERE) -> None:
    """Guess wrong, with all the patience that it takes; a {} in name or address is the guess's number."""
    for number in range(count):
        tried = await log_in(desk, name.format(number), "wrong password", address.format(number))
        assert isinstance(tried, WrongLogin)
        await desk.let_pass("homing_login_failure", 1000, "blocked_until")


async def test_guessing_a_password_gets_slower_and_slower(desk: Desk) -> None:
    await ann(desk)
    # The first waits are of a few seconds: too short to be measured on a busy machine.
    await fail(desk, 10)
    waits = []
    for _ in range(5):
        assert isinstance(await log_in(desk, password="wrong password"), WrongLogin)
        refused = await log_in(desk)
        assert isinstance(refused, TooManyLogins), "the right password too, while it is blocked"
        waits.append(refused.retry_after)
        await desk.let_pass("homing_login_failure", 1000, "blocked_until")
    assert waits == sorted(waits)
    assert waits[0] <= 32
    assert 200 < waits[-1] <= 300, "and not for ever: whoever knows a name could keep its owner out"
    assert isinstance(await log_in(desk), LoggedIn)
    for _ in range(5):
        assert isinstance(await log_in(desk, password="wrong password"), WrongLogin), "forgiven"


async def test_a_hundred_guesses_at_once_are_no_way_around_it(desk: Desk) -> None:
    await ann(desk)
    elsewhere = Desk(desk.database, desk.log)
    guesses = [log_in(one, password="wrong password") for one in (desk, elsewhere) for _ in range(50)]
    began = time.monotonic()
    results = await asyncio.gather(*guesses)
    took = time.monotonic() - began
    # Six before the first wait, of a second; each of the next needs one that is twice as long.
    most = 6 + int(math.log2(took + 1))
    assert 6 <= sum(isinstance(result, WrongLogin) for result in results) <= most


async def test_who_waits_for_another_login_is_not_taken_for_a_guesser(postgres_url: str) -> None:
    """Many may share an address: who began before another was counted, and comes after it, is free, too."""
    async with opened_desk(postgres_url) as desk:
        await ann(desk)
        await fail(desk, 1)
        other = await asyncpg.connect(postgres_url)
        try:
            async with other.transaction():
                await other.execute("SELECT FROM homing_login_failure FOR UPDATE")
                waiting = asyncio.create_task(log_in(desk))
                await someone_waits(other)
                # As the other's own attempt, which costs nobody a wait.
                await other.execute("UPDATE homing_login_failure SET blocked_until = clock_timestamp()")
            assert isinstance(await waiting, LoggedIn)
        finally:
            await other.close()


async def someone_waits(connection: asyncpg.Connection) -> None:
    """For a lock that this connection has."""
    waits = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))"
    )
    async with asyncio.timeout(30):
        while not await connection.fetchval(waits):
            await asyncio.sleep(0.01)


async def failures(desk: Desk) -> dict[str, int]:
    rows = await desk.sql("SELECT subject, failures FROM homing_login_failure")
    return {row["subject"]: row["failures"] for row in rows}


async def test_who_is_refused_writes_nothing_and_is_not_counted_against_the_owner_of_a_name(
    desk: Desk,
) -> None:
    await ann(desk)
    await log_in(desk, password="wrong password", address="192.0.2.9")
    await fail(desk, 20, "user{}")
    assert isinstance(await log_in(desk, "bo", "wrong password"), WrongLogin)
    known, entries = await failures(desk), await desk.entries()
    for number in range(30):
        assert isinstance(await log_in(desk, f"other{number}", "wrong password"), TooManyLogins)
        assert isinstance(await log_in(desk, "ann", "wrong password"), TooManyLogins)
    assert await failures(desk) == known
    assert await desk.entries() == entries
    assert isinstance(await log_in(desk, address="192.0.2.8"), LoggedIn)


def held_up(desk: Desk) -> asyncio.Event:
    """No hash is done until it is set: as if each took very long."""
    passwords, go_on = desk.access.log_in._passwords, asyncio.Event()
    match = passwords.match

    async def slowly(stored: str | None, password: str) -> bool:
        await go_on.wait()
        return await match(stored, password)

    passwords.match = slowly  # type: ignore[method-assign] # the real one follows
    return go_on


async def turned_away(crowd: list[asyncio.Task[Any]], in_line: int) -> None:
    """Until so many are left in line."""
    async with asyncio.timeout(30):
        while sum(not one.done() for one in crowd) > in_line:
            await asyncio.sleep(0.01)
    assert all(one.result() == LoginsBusy(1.0) for one in crowd if one.done())


def guess(desk: Desk, names: str, addresses: str, count: int) -> list[asyncio.Task[Any]]:
    """All at once."""
    wrong = "wrong password"
    guesses = (log_in(desk, names.format(n), wrong, addresses.format(n)) for n in range(count))
    return [asyncio.create_task(one) for one in guesses]


async def test_a_crowd_that_guesses_makes_nobody_wait_for_its_hashes(desk: Desk) -> None:
    """60 at once would keep the right one waiting for 9 s: so few may be in line that it takes a second."""
    await ann(desk)
    go_on = held_up(desk)
    crowd = guess(desk, "user{}", "198.51.100.{}", 60)
    await turned_away(crowd, in_line=8)
    assert await log_in(desk) == LoginsBusy(1.0)
    go_on.set()
    assert [type(one) for one in await asyncio.gather(*crowd)].count(WrongLogin) == 8
    names = [subject for subject in await failures(desk) if subject.startswith("name:")]
    assert len(names) == 8, "who is turned away is not counted"
    assert isinstance(await log_in(desk), LoggedIn)


async def test_one_address_takes_few_places_in_the_line_and_fewer_once_it_failed(desk: Desk) -> None:
    await ann(desk)
    for number in range(8):
        await log_in(desk, "bo", "wrong password", f"198.51.100.{number}")
        await desk.let_pass("homing_login_failure", 1000, "blocked_until")
    go_on = held_up(desk)
    await turned_away(crowd := guess(desk, "user{}", HERE, 20), in_line=3)
    other = asyncio.create_task(log_in(desk, address="192.0.2.8"))
    async with asyncio.timeout(30):
        while desk.access.log_in._line._waiting.total() < 4:
            await asyncio.sleep(0.01)
    assert {await one for one in guess(desk, "cy{}", "198.51.100.{}", 8)} == {LoginsBusy(1.0)}
    go_on.set()
    assert isinstance(await other, LoggedIn)
    assert [type(one) for one in await asyncio.gather(*crowd)].count(WrongLogin) == 3


async def test_what_is_known_of_old_logins_goes_though_nobody_logs_in(database_url: str) -> None:
    async with bench(database_url, port=0) as lane:
        desk = Desk(lane.homing.database, lane.log)
        await ann(desk)
        assert isinstance(await log_in(desk), LoggedIn)
        await log_in(desk, "bo", "wrong password")
        await desk.let_pass("homing_login_failure", 86401, "last_at")
        await desk.let_pass("homing_session", 86401, "created_at")
        async with at_work(lane.homing, [], api=True), asyncio.timeout(30):
            while await failures(desk) or await desk.sql("SELECT hash FROM homing_session"):
                await asyncio.sleep(0.02)


async def test_one_address_cannot_try_many_names(desk: Desk) -> None:
    await ann(desk)
    await fail(desk, 25, "user{}")
    assert isinstance(await log_in(desk, name="bo"), WrongLogin)
    assert isinstance(await log_in(desk), TooManyLogins)
    assert isinstance(await log_in(desk, address="192.0.2.8"), LoggedIn)


async def test_a_password_of_ones_own_does_not_wash_guesses_away(desk: Desk) -> None:
    await ann(desk)
    await fail(desk, 25, "user{}")
    assert isinstance(await log_in(desk), LoggedIn)
    await log_in(desk, name="bo", password="x" * 12)
    assert isinstance(await log_in(desk, name="cy", password="x" * 12), TooManyLogins)


async def test_addresses_of_one_ipv6_network_are_one(desk: Desk) -> None:
    await fail(desk, 25, "user{}", "2001:db8::{}")
    await log_in(desk, name="bo", address="2001:db8::99")
    assert isinstance(await log_in(desk, name="x", address="2001:db8::ffff"), TooManyLogins)
    assert isinstance(await log_in(desk, name="x", address="2001:db8:0:1::1"), WrongLogin)


async def test_failures_are_forgotten_after_a_day(desk: Desk) -> None:
    await fail(desk, 8)
    await desk.let_pass("homing_login_failure", 86401, "last_at")
    for _ in range(5):
        assert isinstance(await log_in(desk, password="wrong password"), WrongLogin)


async def test_a_failed_login_is_told_without_what_was_typed(desk: Desk) -> None:
    await ann(desk)
    await log_in(desk, password="canary-password")
    await log_in(desk, name="canary-typed-in-the-wrong-field", password="x")
    told = [entry for entry in await desk.entries() if entry[1] == "session.open"]
    assert told == [
        ("user:ann", "session.open", None, "refused"),
        ("unknown", "session.open", None, "refused"),
    ]
    everything = [
        await desk.sql(f"SELECT * FROM {table}") for table in ("homing_audit", "homing_login_failure")
    ]
    assert "canary" not in str(everything) + desk.log.text
