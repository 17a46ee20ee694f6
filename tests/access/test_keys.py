"""API keys: who has one gets in, for as long as it counts, and the database never has it."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Awaitable, Callable

import pytest
from tests.access.desk import Desk, opened_desk

from homing.access.key_text import KeyHashes, NewKey, _check, make_key
from homing.access.keys import IssuedKey, KeyOrder
from homing.access.principal import Principal
from homing.errors import InvalidRequest, NotAllowed, NotFound, Unreachable

OLD, NEW = b64encode(b"o" * 32).decode(), b64encode(b"n" * 32).decode()


async def make(
    desk: Desk, *scopes: str, expires_in: float | None = None, rate: float | None = None
) -> IssuedKey:
    order = KeyOrder("shop", scopes or ("jobs:write", "jobs:read"), expires_in, rate)
    return await desk.access.keys.create(order, by="cli:ann")


@pytest.mark.clause("JOB-25")
async def test_who_has_a_key_is_known_by_it(desk: Desk) -> None:
    issued = await make(desk, rate=5.0)
    found = await desk.access.keys.authenticate(issued.key)
    assert isinstance(found, Principal)
    assert (found.who, found.name, found.rate_per_second) == (f"key:{issued.row['id']}", "shop", 5.0)
    assert found.scopes == {"jobs:write", "jobs:read"}
    assert found.may("jobs:read")
    assert found.may("known")
    assert not found.may("jobs:operate")


async def test_the_database_has_a_hash_and_nothing_tells_the_key(desk: Desk) -> None:
    issued = await make(desk)
    rows = str(await desk.sql("SELECT * FROM homing_api_key")) + str(
        await desk.sql("SELECT * FROM homing_audit")
    )
    secret = issued.key.split("_")[2]
    assert secret not in rows + repr(issued) + desk.log.text
    assert "sha256:" in rows


async def test_what_does_not_count_is_refused(desk: Desk) -> None:
    keys = desk.access.keys
    issued, other = await make(desk), make_key().text
    assert await keys.authenticate("nonsense") == "unknown"
    assert await keys.authenticate("") == "unknown"
    assert await keys.authenticate(other) == "unknown"
    assert await keys.authenticate(issued.key[:-1] + ("0" if issued.key[-1] != "0" else "1")) == "unknown"
    # The id of one and the secret of another, with a check that is right.
    await desk.sql("UPDATE homing_api_key SET id = :id", id=other.split("_")[1])
    assert await keys.authenticate(other) == "unknown"


async def test_an_expired_key_says_so_to_who_has_it_only(desk: Desk) -> None:
    issued = await make(desk, expires_in=3600.0)
    assert isinstance(await desk.access.keys.authenticate(issued.key), Principal)
    await desk.let_pass("homing_api_key", 3601, "expires_at")
    desk.now += 2.1
    assert await desk.access.keys.authenticate(issued.key) == "expired"
    assert [row["state"] for row in await desk.access.keys.list()] == ["expired"]


async def test_a_revoked_key_is_refused_here_at_once_and_elsewhere_within_seconds(desk: Desk) -> None:
    elsewhere = Desk(desk.database, desk.log)
    issued = await make(desk)
    id = issued.row["id"]
    for one in (desk, elsewhere):
        assert isinstance(await one.access.keys.authenticate(issued.key), Principal)
    row = await desk.access.keys.revoke(id, by="cli:bo")
    assert (row["state"], row["revoked_by"]) == ("revoked", "cli:bo")
    assert await desk.access.keys.authenticate(issued.key) == "revoked"
    assert isinstance(await elsewhere.access.keys.authenticate(issued.key), Principal)
    elsewhere.now += 2.1
    assert await elsewhere.access.keys.authenticate(issued.key) == "revoked"
    with pytest.raises(NotAllowed):
        await desk.access.keys.revoke(id, by="cli:bo")
    with pytest.raises(NotFound):
        await desk.access.keys.revoke("0000000000", by="cli:bo")
    assert await desk.entries() == [
        ("cli:ann", "keys.create", id, "done"),
        ("cli:bo", "keys.revoke", id, "done"),
    ]


async def test_while_the_database_is_away_what_was_known_may_do_where_it_is_said_to(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise Unreachable("gone")

    keys, issued = desk.access.keys, await make(desk)
    assert isinstance(await keys.authenticate(issued.key), Principal)
    await keys.drained()
    monkeypatch.setattr(desk.database, "fetch", away)
    assert isinstance(await keys.authenticate(issued.key), Principal), "from memory"
    desk.now += 10
    with pytest.raises(Unreachable):
        await keys.authenticate(issued.key)
    assert isinstance(await keys.authenticate(issued.key, in_outage=11), Principal)
    with pytest.raises(Unreachable):
        await keys.authenticate(issued.key, in_outage=9)


async def test_the_last_use_is_written_at_most_once_a_minute(desk: Desk) -> None:
    keys, issued = desk.access.keys, await make(desk)

    async def last_use() -> object:
        await keys.drained()
        return (await keys.list())[0]["last_used_at"]

    assert await last_use() is None
    await keys.authenticate(issued.key)
    first = await last_use()
    assert first is not None
    await desk.let_pass("homing_api_key", 30, "last_used_at")
    earlier = await last_use()
    desk.now += 59
    await keys.authenticate(issued.key)
    assert await last_use() == earlier
    # A process that has just begun finds that another one has noted it within the minute.
    elsewhere = Desk(desk.database, desk.log)
    await elsewhere.access.keys.authenticate(issued.key)
    await elsewhere.access.keys.drained()
    assert await last_use() == earlier
    await desk.let_pass("homing_api_key", 31, "last_used_at")
    desk.now += 2
    await keys.authenticate(issued.key)
    assert await last_use() != earlier


async def test_hashes_follow_the_encryption_key_when_a_key_is_used(sqlite_url: str) -> None:
    async with opened_desk(sqlite_url, OLD) as desk:
        issued = await make(desk)
    async with opened_desk(sqlite_url, f"{NEW},{OLD}") as desk:
        assert isinstance(await desk.access.keys.authenticate(issued.key), Principal)
    async with opened_desk(sqlite_url, NEW) as desk:
        assert isinstance(await desk.access.keys.authenticate(issued.key), Principal)
    async with opened_desk(sqlite_url, OLD) as desk:
        assert await desk.access.keys.authenticate(issued.key) == "unknown"


async def plant(desk: Desk, key: NewKey) -> None:
    """As whoever can write to the database would: with a hash that anybody can compute."""
    hash = KeyHashes().of(key.text)
    await desk.sql(
        "INSERT INTO homing_api_key (id, name, hash, scopes, created_by)"
        " VALUES (:id, 'planted', :hash, '[\"access:admin\"]', 'cli:root') RETURNING id",
        id=key.id,
        hash=hash,
    )


@pytest.mark.parametrize("keys", [NEW, f"{NEW},{OLD}"])
async def test_a_key_that_somebody_put_into_the_database_does_not_count(database_url: str, keys: str) -> None:
    async with opened_desk(database_url, keys) as desk:
        planted = make_key()
        await plant(desk, planted)
        for _ in range(2):
            assert await desk.access.keys.authenticate(planted.text) == "unsealed"
            desk.now += 3
        assert await desk.access.scopes_of(f"key:{planted.id}") is None
        (row,) = await desk.sql("SELECT hash, last_used_at FROM homing_api_key")
        assert (row["hash"], row["last_used_at"]) == (KeyHashes().of(planted.text), None)
        other = f"hom_{planted.id}_{'0' * 43}"
        wrong = f"{other}_{_check(other)}"
        assert await desk.access.keys.authenticate(wrong) == "unknown", "what it is, is told to who has it"


async def test_a_key_from_before_the_encryption_key_counts_when_somebody_vouches_for_it(
    database_url: str,
) -> None:
    async with opened_desk(database_url) as desk:
        issued, revoked = await make(desk), await make(desk)
        await desk.access.keys.revoke(revoked.row["id"], by="cli:root")
        with pytest.raises(NotAllowed, match="needs no seal"):
            await desk.access.keys.seal(issued.row["id"], by="cli:root")
    async with opened_desk(database_url, OLD) as desk:
        keys = desk.access.keys
        assert {row["id"]: row["state"] for row in await keys.list()} == {
            issued.row["id"]: "unsealed",
            revoked.row["id"]: "revoked",
        }
        assert await keys.authenticate(issued.key) == "unsealed"
        await keys.seal(issued.row["id"], by="cli:root")
        (sealed,) = await desk.sql("SELECT hash FROM homing_api_key WHERE revoked_at IS NULL")
        for id in (issued.row["id"], revoked.row["id"]):
            with pytest.raises(NotAllowed, match="needs no seal"):
                await keys.seal(id, by="cli:root")
        with pytest.raises(NotFound):
            await keys.seal("0" * 10, by="cli:root")
        assert ("cli:root", "keys.seal", issued.row["id"], "done") in await desk.entries()
    async with opened_desk(database_url, NEW) as desk:
        assert await desk.access.keys.authenticate(issued.key) == "unknown", "sealed by a key that is gone"
    async with opened_desk(database_url, f"{NEW},{OLD}") as desk:
        assert isinstance(await desk.access.keys.authenticate(issued.key), Principal)
        (used,) = await desk.sql("SELECT hash FROM homing_api_key WHERE revoked_at IS NULL")
        assert (sealed["hash"][:7], used["hash"][:5]) == ("sealed:", "hmac:")
        assert [row["hash"] for row in await desk.access.keys.list()] == [None, None]


BAD_ORDERS = (
    (KeyOrder("", ["ops"]), "name"),
    (KeyOrder("a\nb", ["ops"]), "name"),
    (KeyOrder("x" * 101, ["ops"]), "name"),
    (KeyOrder("a", []), "scope"),
    (KeyOrder("a", ["job:read"]), "did you mean jobs:read"),
    (KeyOrder("a", ["ops"], 59), "expires"),
    (KeyOrder("a", ["ops"], 1e12), "expires"),
    (KeyOrder("a", ["ops"], None, 0), "rate"),
)


async def test_a_bad_order_makes_nothing(sqlite_url: str) -> None:
    async with opened_desk(sqlite_url) as desk:
        for order, what in BAD_ORDERS:
            with pytest.raises(InvalidRequest, match=what):
                await desk.access.keys.create(order, by="cli:ann")
        assert await desk.access.keys.list() == []
        assert await desk.entries() == []


async def test_once_there_was_a_key_the_door_is_never_open_again(desk: Desk) -> None:
    assert not await desk.access.is_configured()
    issued = await make(desk)
    assert not await desk.access.is_configured(), "from memory, for some seconds"
    desk.now += 2.1
    assert await desk.access.is_configured()
    await desk.access.keys.revoke(issued.row["id"], by="cli:ann")
    assert await Desk(desk.database, desk.log).access.is_configured()


async def test_an_unknown_id_takes_as_long_as_a_wrong_secret(sqlite_url: str) -> None:
    """Both are looked up, hashed and compared: the quickest of many shows no difference to be used."""
    async with opened_desk(sqlite_url) as desk:
        issued, stranger = await make(desk), make_key()
        known = f"hom_{issued.row['id']}_{stranger.text.split('_')[2]}"
        wrong = next(t for t in _checked(known))
        authenticate = desk.access.keys.authenticate
        assert await authenticate(wrong) == await authenticate(stranger.text) == "unknown"
        # From memory, then from the database each time.
        for passed in (0.0, 60.0):
            took: dict[str, list[float]] = {wrong: [], stranger.text: []}
            for text in [wrong, stranger.text] * 200:
                desk.now += passed
                took[text].append(await _seconds(authenticate, text))
            # A busy machine makes some slower and none quicker; a hash left out would show in the quickest.
            assert 0.5 < min(took[wrong]) / min(took[stranger.text]) < 2


async def _seconds(authenticate: Callable[[str], Awaitable[object]], text: str) -> float:
    began = time.perf_counter()
    await authenticate(text)
    return time.perf_counter() - began


def _checked(body: str) -> list[str]:
    from homing.access.key_text import _check

    return [f"{body}_{_check(body)}"]
