"""Credentials: sealed at rest, rotated without a gap, and seen in every process within seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import standardwebhooks
from tests.jobs import job
from tests.tables import Tables

from homing import VerificationError, verify
from homing.db import Database, Query, Row, connect
from homing.db.migrate import load_migrations, migrate
from homing.errors import InvalidRequest, NotAllowed, NotFound, Unreachable
from homing.lanes.dispatch_jobs.credentials import (
    CreateCredentials,
    Credentials,
    Issued,
    Rewrapped,
    RotateCredentials,
    Secrets,
    UnreadableSecrets,
)
from homing.lanes.dispatch_jobs.credentials.cache import Cache
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.target import Targets
from homing.lanes.dispatch_jobs.tsid import text_of, time_of
from homing.signatures import make_private_key, public_key_of
from homing.vault import Vault

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
BODY = b'{"orderId":"12345"}'
SEALED = (
    "bearer_token", "signing_secret", "signing_key",
    "previous_bearer_token", "previous_signing_secret", "previous_signing_key",
)  # fmt: skip
GIVEN = CreateCredentials(bearer_token="sk_live_abc123", signing_secret="whsec_xyz789...")


class Ticks:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Credentials on a database of the test's own, and plain SQL on its tables."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ticks = Ticks()
        self.credentials = self.another(KEY)

    def another(self, *keys: bytes) -> Credentials:
        """As another process has it, with its own cache and perhaps other keys."""
        return Credentials(self.database, Vault(keys or [KEY]), clock=self.ticks)

    @property
    def tables(self) -> Tables:
        return Tables(self.database)

    async def row(self, id: int) -> dict[str, Any]:
        (row,) = await self.tables.rows("dispatch_credentials", id=id)
        return {**dict.fromkeys(SEALED), **row}

    async def add_job(self, credentials_id: int, status: str) -> None:
        jobs = DispatchJobs(self.database, Targets(slots=1, connections=1), owner="test", lease_seconds=60)
        (made,) = await jobs.enqueue([job("https://a.example", credentials_id=credentials_id)])
        await self.tables.change("dispatch_job", {"status": status}, id=made.id)

    async def secrets(self, id: int, credentials: Credentials | None = None) -> Secrets:
        found = await (credentials or self.credentials).get(id)
        assert isinstance(found, Secrets)
        return found


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bench]:
    database = connect(url)
    try:
        await migrate(database, load_migrations(["homing.lanes.dispatch_jobs"], database.dialect))
        yield Bench(database)
    finally:
        await database.close()


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[Bench]:
    async with opened(database_url) as bench:
        yield bench


def id_of(issued: Issued) -> int:
    id: int = issued.row["id"]
    return id


# ── made, kept, read ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-05", "JOB-24")
async def test_secrets_are_sealed_in_their_rows(bench: Bench) -> None:
    first = await bench.credentials.create(msgspec.structs.replace(GIVEN, signing_key=make_private_key()))
    second = await bench.credentials.create(GIVEN)
    assert first.made == second.made == {}
    assert first.row["fingerprint"] == second.row["fingerprint"]
    row = await bench.row(id_of(first))
    for column in SEALED[:3]:
        assert row[column].startswith("v1:")
        assert not any(secret in row[column] for secret in ("sk_live", "whsec", "whsk"))
    assert abs(time_of(id_of(first)) - datetime.now(UTC)) < timedelta(minutes=5)
    assert id_of(second) > id_of(first)


@pytest.mark.clause("JOB-07")
async def test_the_headers_of_an_attempt(bench: Bench) -> None:
    id = id_of(await bench.credentials.create(GIVEN))
    now = datetime.now(UTC)
    headers = (await bench.secrets(id)).headers("msg_1", now, BODY)
    assert headers["Authorization"] == "Bearer sk_live_abc123"
    assert verify(BODY, headers, "whsec_xyz789...").id == "msg_1"
    assert verify(BODY, headers, "whsec_xyz789...", scheme="flowcatalyst").scheme == "flowcatalyst"


@pytest.mark.clause("JOB-24")
async def test_what_is_left_out_is_made_and_shown_once(bench: Bench) -> None:
    one = await bench.credentials.create(CreateCredentials())
    other = await bench.credentials.create(CreateCredentials())
    assert set(one.made) == {"bearer_token", "signing_secret"}
    assert one.made["bearer_token"].startswith("hm_")
    assert one.made["signing_secret"].startswith("whsec_")
    assert set(one.made.values()).isdisjoint(other.made.values())
    headers = (await bench.secrets(id_of(one))).headers("msg_1", datetime.now(UTC), BODY)
    assert headers["Authorization"] == f"Bearer {one.made['bearer_token']}"
    standardwebhooks.Webhook(one.made["signing_secret"]).verify(BODY.decode(), headers)


async def test_null_means_none(bench: Bench) -> None:
    now = datetime.now(UTC)
    unsigned = await bench.credentials.create(CreateCredentials(bearer_token="t", signing_secret=None))
    assert unsigned.made == {}
    assert unsigned.row["fingerprint"] is None
    assert (await bench.secrets(id_of(unsigned))).headers("m", now, BODY) == {"Authorization": "Bearer t"}
    silent = await bench.credentials.create(CreateCredentials(bearer_token=None))
    assert "Authorization" not in (await bench.secrets(id_of(silent))).headers("m", now, BODY)
    asymmetric = await bench.credentials.create(
        CreateCredentials(bearer_token=None, signing_secret=None, generate=("signingKey",))
    )
    public = bench.credentials.public_key(asymmetric.row)
    assert public is not None
    headers = (await bench.secrets(id_of(asymmetric))).headers("m", now, BODY)
    assert headers["webhook-signature"].startswith("v1a,")
    assert verify(BODY, headers, public).id == "m"


@pytest.mark.clause("JOB-24")
async def test_nothing_that_is_shown_shows_a_secret(bench: Bench) -> None:
    request = CreateCredentials(bearer_token="canary_1", signing_secret="canary_2")
    issued = await bench.credentials.create(request)
    made = await bench.credentials.create(CreateCredentials())
    rotation = RotateCredentials(bearer_token="canary_3", signing_secret="canary_4")
    rotated = await bench.credentials.rotate(id_of(issued), rotation)
    secrets = await bench.secrets(id_of(issued))
    shown = "".join(f"{one!r}{one}" for one in (request, issued, made, rotation, rotated, secrets))
    assert "canary" not in shown
    assert not any(secret in shown for secret in made.made.values())
    assert f"id={id_of(issued)}" in repr(secrets)
    with pytest.raises(AttributeError):
        secrets.id = 5  # type: ignore[misc] # that it is frozen is the point


async def test_looking_at_them(bench: Bench) -> None:
    ids = [id_of(await bench.credentials.create(CreateCredentials(name=f"n{n}"))) for n in range(5)]
    assert [row["id"] for row in await bench.credentials.page(limit=2)] == ids[:2:-1]
    assert [row["id"] for row in await bench.credentials.page(before=ids[3], limit=9)] == ids[2::-1]
    described = await bench.credentials.describe(ids[0])
    assert (described["name"], described["algorithm"]) == ("n0", "HMAC_SHA256")
    with pytest.raises(NotFound, match=text_of(7)):
        await bench.credentials.describe(7)
    assert await bench.credentials.get(7) is None


# ── checked ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-24")
@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (CreateCredentials(algorithm="HMAC_SHA512"), "algorithm", "HMAC_SHA512 is not supported"),
        (CreateCredentials(algorithm="none"), "algorithm", "must be HMAC_SHA256"),
        (CreateCredentials(name=""), "name", "from 1 to 100"),
        (CreateCredentials(name="n" * 101), "name", "from 1 to 100"),
        (CreateCredentials(name="a\nb"), "name", "control characters"),
        (CreateCredentials(bearer_token=""), "bearerToken", "must not be empty"),
        (CreateCredentials(bearer_token="t" * 501), "bearerToken", "longer than 500"),
        (CreateCredentials(bearer_token="canary\r\nX: y"), "bearerToken", "visible ASCII"),
        (CreateCredentials(bearer_token="Bearer canary"), "bearerToken", "after the word Bearer"),
        (CreateCredentials(bearer_token="canaryé"), "bearerToken", "visible ASCII"),
        (CreateCredentials(signing_secret=""), "signingSecret", "must not be empty"),
        (CreateCredentials(signing_secret="s" * 501), "signingSecret", "longer than 500"),
        (CreateCredentials(signing_secret="canary\n"), "signingSecret", "control characters"),
        (CreateCredentials(signing_secret=" canary"), "signingSecret", "begin or end with a space"),
        (CreateCredentials(signing_secret="whsec_"), "signingSecret", "nothing after whsec_"),
        (CreateCredentials(signing_secret="canary7"), "signingSecret", "at least 8 bytes"),
        (CreateCredentials(signing_secret="whsec_canary7"), "signingSecret", "at least 8 bytes"),
        (CreateCredentials(signing_secret="whsec_Y2FuYXJ5"), "signingSecret", "at least 8 bytes"),
        (CreateCredentials(signing_secret="whsk_canary"), "signingSecret", "as signingKey"),
        (CreateCredentials(signing_secret="whpk_canary"), "signingSecret", "as signingKey"),
        (CreateCredentials(signing_key="canary"), "signingKey", "whsk_ followed by base64"),
        (CreateCredentials(signing_key="whsk_Y2FuYXJ5"), "signingKey", "32 bytes"),
        (CreateCredentials(bearer_token=None, generate=("bearerToken",)), "bearerToken", "choose one"),
        (CreateCredentials(bearer_token=None, signing_secret=None), None, "need a bearer token"),
    ],
)
async def test_each_mistake_has_its_message(
    sqlite_url: str, request_: CreateCredentials, field: str | None, words: str
) -> None:
    async with opened(sqlite_url) as bench:
        with pytest.raises(InvalidRequest, match=words) as caught:
            await bench.credentials.create(request_)
        assert caught.value.field == field
        assert "canary" not in str(caught.value)
        assert await bench.credentials.page() == []


async def test_rotations_are_checked_too(bench: Bench) -> None:
    id = id_of(await bench.credentials.create(GIVEN))
    before = await bench.row(id)
    for request, words in (
        (RotateCredentials(grace_seconds=-1), "from 0 to 604800"),
        (RotateCredentials(grace_seconds=604801), "from 0 to 604800"),
        (RotateCredentials(bearer_token="a b"), "visible ASCII"),
        (RotateCredentials(bearer_token=None, signing_secret=None), "need a bearer token"),
        (RotateCredentials(bearer_token="sk_live_abc123"), "nothing would change"),
        (RotateCredentials(signing_key="k", generate=("signingKey",)), "whsk_"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            await bench.credentials.rotate(id, request)
    assert await bench.row(id) == before
    with pytest.raises(NotFound):
        await bench.credentials.rotate(7, RotateCredentials())


# ── rotated ──────────────────────────────────────────────────────────────────────────────────────


def accepts(secret: str, headers: dict[str, str], moment: datetime, scheme: Any = "standard") -> bool:
    try:
        verify(BODY, headers, secret, now=moment, scheme=scheme)
    except VerificationError:
        return False
    return True


@pytest.mark.clause("JOB-24", "JOB-25")
async def test_a_rotation_has_no_gap(bench: Bench) -> None:
    """Before its end receivers may know either secret; after it only the new one counts."""
    old_key = make_private_key()
    id = id_of(await bench.credentials.create(msgspec.structs.replace(GIVEN, signing_key=old_key)))
    rotated = await bench.credentials.rotate(
        id, RotateCredentials(bearer_token="sk_new", generate=("signingSecret", "signingKey"))
    )
    old, new = "whsec_xyz789...", rotated.made["signing_secret"]
    old_public, new_public = public_key_of(old_key), bench.credentials.public_key(rotated.row)
    assert new_public not in {None, old_public}
    secrets = await bench.secrets(id)
    now = datetime.now(UTC)
    for moment in (now, now + timedelta(hours=23, minutes=59)):
        headers = secrets.headers("msg_1", moment, BODY)
        assert all(accepts(s, headers, moment) for s in (old, new, old_public, str(new_public)))
        assert headers["Authorization"] == "Bearer sk_live_abc123"
        assert secrets.bearer_token(moment) == "sk_live_abc123"
        assert accepts(old, headers, moment, "flowcatalyst")
        assert not accepts(new, headers, moment, "flowcatalyst")
    moment = now + timedelta(hours=24, seconds=5)
    headers = secrets.headers("msg_1", moment, BODY)
    assert headers["Authorization"] == "Bearer sk_new"
    assert accepts(new, headers, moment)
    assert accepts(str(new_public), headers, moment)
    assert accepts(new, headers, moment, "flowcatalyst")
    assert not any(accepts(s, headers, moment) for s in (old, old_public))
    assert rotated.row["previous_until"] is not None


@pytest.mark.clause("JOB-24")
async def test_without_grace_the_change_is_at_once(bench: Bench) -> None:
    id = id_of(await bench.credentials.create(GIVEN))
    rotated = await bench.credentials.rotate(id, RotateCredentials(grace_seconds=0))
    now = datetime.now(UTC)
    headers = (await bench.secrets(id)).headers("msg_1", now, BODY)
    assert accepts(rotated.made["signing_secret"], headers, now)
    assert not accepts("whsec_xyz789...", headers, now)
    assert rotated.row["previous_until"] is None
    assert [(await bench.row(id))[f"previous_{column}"] for column in SEALED[:3]] == [None] * 3


async def test_what_a_rotation_renews(bench: Bench) -> None:
    theirs = id_of(await bench.credentials.create(GIVEN))
    ours = id_of(await bench.credentials.create(CreateCredentials()))
    # A token that somebody else gave us cannot be made anew by us.
    assert set((await bench.credentials.rotate(theirs, RotateCredentials())).made) == {"signing_secret"}
    assert set((await bench.credentials.rotate(ours, RotateCredentials())).made) == {
        "signing_secret",
        "bearer_token",
    }
    only = await bench.credentials.rotate(theirs, RotateCredentials(bearer_token="sk_2"))
    assert only.made == {}
    gone = await bench.credentials.rotate(theirs, RotateCredentials(bearer_token=None, grace_seconds=0))
    assert gone.made == {}
    assert (await bench.secrets(theirs)).bearer_token(datetime.now(UTC)) is None


async def test_rotating_again_within_the_grace_time(bench: Bench) -> None:
    """Of each secret there are the new and one previous; one secret's rotation leaves the others' alone."""
    id = id_of(
        await bench.credentials.create(CreateCredentials(bearer_token="b1", signing_secret="secret-1"))
    )
    await bench.credentials.rotate(id, RotateCredentials(signing_secret="secret-2", grace_seconds=1000))
    await bench.credentials.rotate(id, RotateCredentials(bearer_token="b2", grace_seconds=60))
    now = datetime.now(UTC)
    headers = (await bench.secrets(id)).headers("m", now, BODY)
    assert [s for s in ("secret-1", "secret-2") if accepts(s, headers, now)] == ["secret-1", "secret-2"]
    assert headers["Authorization"] == "Bearer b1"
    until = (await bench.credentials.describe(id))["previous_until"]
    await bench.credentials.rotate(
        id, RotateCredentials(signing_secret="secret-3", bearer_token="b3", grace_seconds=60)
    )
    headers = (await bench.secrets(id)).headers("m", now, BODY)
    assert [s for s in ("secret-1", "secret-2", "secret-3") if accepts(s, headers, now)] == [
        "secret-2",
        "secret-3",
    ]
    assert headers["Authorization"] == "Bearer b2"
    assert (await bench.credentials.describe(id))["previous_until"] < until, "its own grace time counts"


async def test_an_ended_grace_time_is_over(bench: Bench) -> None:
    id = id_of(
        await bench.credentials.create(CreateCredentials(bearer_token="b1", signing_secret="secret-1"))
    )
    await bench.credentials.rotate(id, RotateCredentials(signing_secret="secret-2"))
    await bench.tables.change("dispatch_credentials", {"previous_until": datetime(2020, 1, 1, tzinfo=UTC)})
    assert (await bench.credentials.describe(id))["previous_until"] is None
    await bench.credentials.rotate(id, RotateCredentials(bearer_token="b2"))
    now = datetime.now(UTC)
    headers = (await bench.secrets(id)).headers("m", now, BODY)
    assert [s for s in ("secret-1", "secret-2") if accepts(s, headers, now)] == ["secret-2"], (
        "it does not come back"
    )


async def test_two_who_rotate_at_once_lose_nothing(bench: Bench) -> None:
    id = id_of(await bench.credentials.create(CreateCredentials(signing_secret="secret-0", bearer_token="b")))
    both = [bench.another(), bench.another()]
    await asyncio.gather(
        *(one.rotate(id, RotateCredentials(signing_secret=f"secret-{n}")) for n, one in enumerate(both, 1))
    )
    now = datetime.now(UTC)
    headers = (await bench.secrets(id)).headers("m", now, BODY)
    assert [s for s in ("secret-0", "secret-1", "secret-2") if accepts(s, headers, now)] == [
        "secret-1",
        "secret-2",
    ]


# ── deleted ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-05")
@pytest.mark.parametrize("status", ["PENDING", "FAILED", "IN_PROGRESS"])
async def test_credentials_that_open_jobs_use_stay(bench: Bench, status: str) -> None:
    id = id_of(await bench.credentials.create(GIVEN))
    await bench.add_job(id, status)
    with pytest.raises(NotAllowed, match="open jobs use the credentials"):
        await bench.credentials.delete(id)
    assert await bench.credentials.get(id) is not None
    await bench.credentials.delete(id, force=True)
    assert await bench.credentials.get(id) is None
    with pytest.raises(NotFound):
        await bench.credentials.delete(id, force=True)


@pytest.mark.clause("JOB-05")
@pytest.mark.parametrize("status", ["COMPLETED", "ERROR", "CANCELLED"])
async def test_ended_jobs_hold_nothing(bench: Bench, status: str) -> None:
    id = id_of(await bench.credentials.create(GIVEN))
    await bench.add_job(id, status)
    await bench.credentials.delete(id)
    assert await bench.credentials.page() == []


# ── cached ───────────────────────────────────────────────────────────────────────────────────────


class CountingDatabase:
    """The real database, and how often it is asked for secrets."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.loads: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def fetch(self, query: Query, parameters: Any) -> Sequence[Row]:
        if query.name == "load":
            self.loads.append(msgspec.json.decode(parameters["ids"]))
        return await self._database.fetch(query, parameters)


@pytest.mark.clause("JOB-06")
async def test_secrets_are_kept_in_memory(bench: Bench) -> None:
    ids = [id_of(await bench.credentials.create(GIVEN)) for _ in range(50)]
    counting: Any = CountingDatabase(bench.database)
    worker = Credentials(counting, Vault([KEY]), clock=bench.ticks)
    found = await asyncio.gather(*(worker.get(id) for id in ids for _ in range(20)))
    assert all(isinstance(secrets, Secrets) for secrets in found)
    # The first goes alone; all that come meanwhile go together.
    assert [len(load) for load in counting.loads] in ([50], [1, 49])
    for _ in range(100):
        assert await worker.get(ids[0]) is found[0]
    assert len(counting.loads) <= 2


@pytest.mark.clause("JOB-06")
async def test_a_change_is_seen_everywhere_within_five_seconds(bench: Bench) -> None:
    here, elsewhere = bench.credentials, bench.another()
    id = id_of(await here.create(CreateCredentials(bearer_token="b1")))

    async def tokens() -> list[str | None]:
        now = datetime.now(UTC)
        return [(await bench.secrets(id, one)).bearer_token(now) for one in (here, elsewhere)]

    assert await tokens() == ["b1", "b1"]
    await here.rotate(id, RotateCredentials(bearer_token="b2", grace_seconds=0))
    assert await tokens() == ["b2", "b1"], "at once in the process that made it"
    bench.ticks.now += 4
    assert await tokens() == ["b2", "b2"]
    await here.delete(id, force=True)
    assert await here.get(id) is None
    bench.ticks.now += 4
    assert await elsewhere.get(id) is None


@pytest.mark.slow
@pytest.mark.clause("JOB-06")
async def test_a_change_is_seen_within_five_seconds_of_a_real_clock(bench: Bench) -> None:
    here, elsewhere = (Credentials(bench.database, Vault([KEY])) for _ in range(2))
    id = id_of(await here.create(CreateCredentials(bearer_token="b1")))

    async def token() -> str | None:
        return (await bench.secrets(id, elsewhere)).bearer_token(datetime.now(UTC))

    assert await token() == "b1"
    await here.rotate(id, RotateCredentials(bearer_token="b2", grace_seconds=0))
    began = asked = time.monotonic()
    while await token() != "b2":
        assert asked - began < 5
        await asyncio.sleep(0.05)
        asked = time.monotonic()


@pytest.mark.clause("JOB-06")
async def test_new_credentials_are_found_soon(bench: Bench) -> None:
    id = id_of(await bench.credentials.create(GIVEN))
    elsewhere = bench.another()
    row = await bench.row(id)
    await bench.credentials.delete(id)
    assert await elsewhere.get(id) is None
    await bench.tables.insert("dispatch_credentials", row)
    assert await elsewhere.get(id) is None, "for a second it is not looked for again"
    bench.ticks.now += 1.1
    assert isinstance(await elsewhere.get(id), Secrets)


class Source:
    """Loads that a test lets through one by one."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        self.version = 0

    async def __call__(self, ids: Sequence[int]) -> list[str | None]:
        self.calls.append(list(ids))
        seen = self.version
        await self.gate.wait()
        if self.error:
            raise self.error
        return [f"{id} v{seen}" for id in ids]


def cache_of(source: Source, ticks: Ticks, size: int = 100) -> Cache[str]:
    return Cache(source, keeps=3, keeps_missing=1, size=size, clock=ticks)


async def test_a_load_that_a_change_overtook_is_not_kept() -> None:
    source, ticks = Source(), Ticks()
    cache = cache_of(source, ticks)
    early = asyncio.create_task(cache.get(1))
    while not source.calls:
        await asyncio.sleep(0)
    source.version = 1
    cache.forget(1)
    late = asyncio.create_task(cache.get(1))
    await asyncio.sleep(0)
    source.gate.set()
    assert await early == "1 v0"
    assert await late == "1 v1"
    assert await cache.get(1) == "1 v1"


async def test_a_failed_load_is_not_kept() -> None:
    source, ticks = Source(), Ticks()
    cache = cache_of(source, ticks)
    source.gate.set()
    source.error = Unreachable("gone")
    with pytest.raises(Unreachable):
        await cache.get(1)
    source.error = None
    assert await cache.get(1) == "1 v0"


async def test_a_caller_that_gives_up_takes_nothing_from_the_others() -> None:
    source, ticks = Source(), Ticks()
    cache = cache_of(source, ticks)
    impatient, patient = (asyncio.create_task(cache.get(1)) for _ in range(2))
    while not source.calls:
        await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.sleep(0)
    source.gate.set()
    assert await patient == "1 v0"
    assert source.calls == [[1]]


async def test_the_cache_is_bounded() -> None:
    source, ticks = Source(), Ticks()
    source.gate.set()
    cache = cache_of(source, ticks, size=10)
    for id in range(25):
        await cache.get(id)
    assert sorted(cache._entries) == list(range(15, 25))
    await cache.get(20)
    assert len(source.calls) == 25
    ticks.now += 3.1
    await cache.get(20)
    assert len(source.calls) == 26


# ── a new encryption key ─────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-24")
async def test_secrets_that_cannot_be_opened_are_a_value(bench: Bench) -> None:
    id = id_of(await bench.credentials.create(GIVEN))
    stranger = bench.another(OTHER_KEY)
    found = await stranger.get(id)
    assert isinstance(found, UnreadableSecrets)
    assert found.id == id
    assert "is missing here" in found.message
    assert stranger.public_key(await stranger.describe(id)) is None
    with pytest.raises(NotAllowed, match="graceSeconds 0"):
        await stranger.rotate(id, RotateCredentials())
    made = (await stranger.rotate(id, RotateCredentials(grace_seconds=0))).made
    assert set(made) == {"signing_secret"}
    assert isinstance(await stranger.get(id), Secrets)


@pytest.mark.clause("JOB-24")
async def test_a_secret_moved_to_another_row_is_not_used(bench: Bench) -> None:
    victim, attacker = [id_of(await bench.credentials.create(GIVEN)) for _ in range(2)]
    sealed = (await bench.row(victim))["bearer_token"]
    await bench.tables.change("dispatch_credentials", {"bearer_token": sealed}, id=attacker)
    found = await bench.credentials.get(attacker)
    assert isinstance(found, UnreadableSecrets)
    assert "another row or column" in found.message


async def rewrapped(credentials: Credentials, batch: int = 200) -> list[Rewrapped]:
    return [progress async for progress in credentials.rewrap(batch)]


@pytest.mark.clause("JOB-24")
async def test_rewrap_seals_everything_by_the_newest_key(bench: Bench) -> None:
    ids = [id_of(await bench.credentials.create(CreateCredentials())) for _ in range(25)]
    await bench.credentials.rotate(ids[0], RotateCredentials(generate=("signingKey", "bearerToken")))
    tokens = {id: (await bench.secrets(id)).bearer_token(datetime.now(UTC)) for id in ids}
    before = await bench.row(ids[3])
    both, new = bench.another(OTHER_KEY, KEY), bench.another(OTHER_KEY)

    # Stopped after one batch, and begun again.
    async for progress in both.rewrap(10):
        assert progress == Rewrapped(25, 10, 10)
        break
    steps = await rewrapped(both, 10)
    assert [(p.seen, p.resealed) for p in steps] == [(10, 0), (20, 10), (25, 15)]
    assert [(p.seen, p.resealed) for p in await rewrapped(both)] == [(25, 0)]
    for id in ids:
        assert (await bench.secrets(id, new)).bearer_token(datetime.now(UTC)) == tokens[id]
    after = await bench.row(ids[3])
    assert after["updated_at"] == before["updated_at"]
    assert after["bearer_token"] != before["bearer_token"]


async def test_rewrap_leaves_what_it_cannot_open_or_what_was_just_changed(bench: Bench) -> None:
    lost = id_of(await bench.another(b"l" * 32).create(GIVEN))
    busy = id_of(await bench.credentials.create(GIVEN))
    both = bench.another(OTHER_KEY, KEY)
    rows = await both._run("sealed_after", after=-1, limit=10)
    await bench.credentials.rotate(busy, RotateCredentials(bearer_token="meanwhile", grace_seconds=0))
    progress = await both._rewrap(rows, Rewrapped(2))
    assert progress == Rewrapped(2, 2, 0, 1, 1)
    assert (await bench.secrets(busy)).bearer_token(datetime.now(UTC)) == "meanwhile"
    assert (await rewrapped(both))[-1] == Rewrapped(2, 2, 1, 1, 0)
    assert isinstance(await bench.another(b"l" * 32).get(lost), Secrets)


async def test_rewrap_drops_what_counts_no_more(bench: Bench) -> None:
    id = id_of(await bench.credentials.create(GIVEN))
    await bench.credentials.rotate(id, RotateCredentials())
    await bench.tables.change("dispatch_credentials", {"previous_until": None})
    await rewrapped(bench.another(OTHER_KEY, KEY))
    assert (await bench.row(id))["previous_signing_secret"] is None


# ── in plain text ────────────────────────────────────────────────────────────────────────────────


async def insert_plain(bench: Bench, id: int, **columns: Any) -> None:
    """As the specification's schema has them: another program knows no other columns."""
    now = await bench.tables.now()
    given = {
        "bearer_token": "sk_live_abc123",
        "signing_secret": "whsec_xyz789...",
        "algorithm": "HMAC_SHA256",
    }
    row = {"id": id, **given, "created_at": now, "updated_at": now, **columns}
    await bench.tables.insert("dispatch_credentials", row)


@pytest.mark.clause("JOB-31")
async def test_plain_secrets_are_used_as_they_are_and_left_so(bench: Bench) -> None:
    await insert_plain(bench, 4711)
    before = await bench.row(4711)
    headers = (await bench.secrets(4711)).headers("msg_1", datetime.now(UTC), BODY)
    assert headers["Authorization"] == "Bearer sk_live_abc123"
    assert verify(BODY, headers, "whsec_xyz789...").id == "msg_1"
    assert verify(BODY, headers, "whsec_xyz789...", scheme="flowcatalyst").scheme == "flowcatalyst"
    assert (await bench.credentials.describe(4711))["algorithm"] == "HMAC_SHA256"
    assert await bench.row(4711) == before


@pytest.mark.clause("JOB-31")
async def test_what_is_missing_or_empty_in_plain_is_not_there(bench: Bench) -> None:
    await insert_plain(bench, 1, signing_secret="")
    await insert_plain(bench, 2, bearer_token=None)
    only_token = (await bench.secrets(1)).headers("msg_1", datetime.now(UTC), BODY)
    assert [*only_token] == ["Authorization"]
    only_secret = (await bench.secrets(2)).headers("msg_1", datetime.now(UTC), BODY)
    assert "Authorization" not in only_secret
    assert verify(BODY, only_secret, "whsec_xyz789...").id == "msg_1"


@pytest.mark.clause("JOB-31")
async def test_only_rewrap_seals_plain_secrets(bench: Bench) -> None:
    await insert_plain(bench, 4711)
    sealed = id_of(await bench.credentials.create(GIVEN))
    assert [(p.seen, p.resealed) for p in await rewrapped(bench.credentials)] == [(2, 1)]
    row = await bench.row(4711)
    assert row["bearer_token"].startswith("v1:")
    assert row["signing_secret"].startswith("v1:")
    assert row["fingerprint"] == (await bench.row(sealed))["fingerprint"]
    headers = (await bench.secrets(4711, bench.another(KEY))).headers("msg_1", datetime.now(UTC), BODY)
    assert headers["Authorization"] == "Bearer sk_live_abc123"
    assert verify(BODY, headers, "whsec_xyz789...").id == "msg_1"
    assert [(p.seen, p.resealed) for p in await rewrapped(bench.credentials)] == [(2, 0)]


@pytest.mark.clause("JOB-31")
async def test_a_rotation_leaves_the_plain_secret_that_it_does_not_replace(bench: Bench) -> None:
    await insert_plain(bench, 4711)
    await bench.credentials.rotate(4711, RotateCredentials(signing_secret="another secret"))
    row = await bench.row(4711)
    assert row["bearer_token"] == "sk_live_abc123"
    assert row["signing_secret"].startswith("v1:")
    headers = (await bench.secrets(4711)).headers("msg_1", datetime.now(UTC), BODY)
    assert headers["Authorization"] == "Bearer sk_live_abc123"
    for secret in ("whsec_xyz789...", "another secret"):
        assert verify(BODY, headers, secret, scheme="standard").id == "msg_1"


@pytest.mark.clause("JOB-24", "JOB-31")
@pytest.mark.parametrize("damage", ["v1:000000000000:AAAA", "v9:0123456789ab:AAAA", "v1:0123456789ab:"])
async def test_a_sealed_secret_that_was_damaged_is_not_taken_for_a_plain_one(
    bench: Bench, damage: str
) -> None:
    await insert_plain(bench, 4711, bearer_token=damage)
    assert isinstance(await bench.credentials.get(4711), UnreadableSecrets)
