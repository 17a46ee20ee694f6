"""Credentials go where somebody who administers them has said, whoever names them in a job or a probe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from tests.http.door import Door, opened_door
from tests.jobs import JobBench, job, job_bench
from tests.lanes.dispatch_jobs.test_credentials import Bench, id_of, opened
from tests.tables import Tables

from homing.errors import InvalidRequest, NotAllowed, NotFound
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.credentials.signing import listed_targets
from homing.lanes.dispatch_jobs.credentials.store import Credentials, NotListed
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.senders.egress import origin_of
from homing.testing.http_sink import HttpSink
from homing.vault import Vault

LANE = "homing.lanes.dispatch_jobs"
TOKEN = "sk_live_canary"
JOBS, VALIDATE = "/api/dispatch/jobs", "/api/dispatch/targets/validate"
ORDER: dict[str, Any] = {"source": "shop", "type": "order.created", "payload": "{}"}


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(database_url) as opened:
        yield opened


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[Bench]:
    async with opened(database_url) as bench:
        yield bench


@pytest.fixture(params=["sqlite", "postgres"])
async def door(request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    async with opened_door(request.getfixturevalue(f"{request.param}_url")) as door:
        yield door


@pytest.fixture
async def partner() -> AsyncIterator[HttpSink]:
    async with HttpSink() as opened:
        yield opened


@pytest.fixture
async def thief() -> AsyncIterator[HttpSink]:
    async with HttpSink() as opened:
        yield opened


async def made(homing: Any, *targets: str) -> int:
    request = CreateCredentials(bearer_token=TOKEN, allowed_targets=targets)
    return id_of(await homing.credentials.create(request))


async def listed(homing: Any, id: int) -> list[str] | None:
    return listed_targets(await homing.credentials.describe(id))


# ── how an origin is written ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://partner.example/hooks?a=b", "https://partner.example:443"),
        ("HTTPS://Partner.EXAMPLE.:443", "https://partner.example:443"),
        ("https://partner.example:8443/", "https://partner.example:8443"),
        ("http://partner.example", "http://partner.example:80"),
        ("https://bücher.example/x", "https://xn--bcher-kva.example:443"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example:443"),
        ("https://[2001:DB8:0:0::1]:8443/", "https://[2001:db8::1]:8443"),
        ("https://partner.example@thief.example/", None),
        ("https://partner.example\\@thief.example/", None),
        ("https://0x7f.1/", None),
        ("ftp://partner.example/", None),
    ],
)
def test_one_origin_is_written_in_one_way(url: str, origin: str | None) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "target", ["partner.example", "https://partner.example/hooks", "https://*.example", "", "https://a?b/"]
)
async def test_what_names_no_origin_is_refused(bench: Bench, target: str) -> None:
    with pytest.raises(InvalidRequest, match="scheme, host and port without a path"):
        await bench.credentials.create(CreateCredentials(allowed_targets=(target,)))
    assert await bench.credentials.page() == []


async def test_a_list_has_an_end(bench: Bench) -> None:
    id = id_of(await bench.credentials.create(CreateCredentials()))
    many = [f"https://{n}.example" for n in range(1001)]
    with pytest.raises(InvalidRequest, match="at most 1,000"):
        await bench.credentials.allow_only(id, many)
    assert len(listed_targets(await bench.credentials.allow_only(id, many[1:])) or ()) == 1000
    with pytest.raises(InvalidRequest, match="at most 1,000"):
        await bench.credentials.admit(id, {"https://more.example:443"}, adds=True)


# ── whoever asks ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-24")
async def test_a_key_that_may_create_jobs_cannot_have_the_token_sent_to_itself(
    door: Door, partner: HttpSink, thief: HttpSink
) -> None:
    id = await made(door.homing, partner.url)
    named = {**ORDER, "credentialsId": text_of(id)}
    writer, admin = await door.key("jobs:write"), await door.key("jobs:write", "credentials:admin")
    refused = await door.ask("POST", JOBS, writer, json={**named, "targetUrl": f"{thief.url}/collect"})
    assert refused.status_code == 403, refused.text
    error = refused.json()["error"]
    assert error["code"] == "FORBIDDEN"
    assert f"homing credentials allow {text_of(id)} {thief.url}" in error["message"]
    assert f"/api/admin/dispatch/credentials/{text_of(id)}/allowed-targets" in error["message"]
    assert partner.url not in error["message"], "what is allowed is for who may read credentials"
    assert await door.homing.jobs.counts() == dict.fromkeys(await door.homing.jobs.counts(), 0)

    allowed = await door.ask("POST", JOBS, writer, json={**named, "targetUrl": f"{partner.url}/hooks"})
    assert allowed.status_code == 201
    added = await door.ask("POST", JOBS, admin, json={**named, "targetUrl": f"{thief.url}/now-a-partner"})
    assert added.status_code == 201
    assert await listed(door.homing, id) == sorted([partner.url, thief.url])
    again = await door.ask("POST", JOBS, writer, json={**named, "targetUrl": f"{thief.url}/hooks"})
    assert again.status_code == 201, "from then on it is allowed for all"
    (line,) = door.log.all("credentials.targets_added")
    assert (line["credentials"], line["targets"]) == (text_of(id), [thief.url])


@pytest.mark.clause("JOB-24")
async def test_a_probe_sends_the_token_to_nobody_else(door: Door, partner: HttpSink, thief: HttpSink) -> None:
    named = {"credentialsId": text_of(await made(door.homing, partner.url))}
    operator = await door.key("jobs:operate")
    refused = await door.ask("POST", VALIDATE, operator, json={**named, "targetUrl": thief.url})
    assert (refused.status_code, thief.count) == (403, 0), refused.text
    assert "homing credentials allow" in refused.json()["error"]["message"]
    well = await door.ask("POST", VALIDATE, operator, json={**named, "targetUrl": f"{partner.url}/hooks"})
    assert well.json()["completes"] is True
    assert partner.requests[0].header("Authorization") == f"Bearer {TOKEN}"


async def test_without_keys_and_users_the_origin_is_added(door: Door, partner: HttpSink) -> None:
    id = await made(door.homing)
    assert await listed(door.homing, id) == []
    order = {**ORDER, "credentialsId": text_of(id), "targetUrl": f"{partner.url}/hooks"}
    assert (await door.ask("POST", JOBS, json=order)).status_code == 201
    assert await listed(door.homing, id) == [partner.url]


async def test_each_item_of_a_batch_is_judged(door: Door, partner: HttpSink, thief: HttpSink) -> None:
    named = {**ORDER, "credentialsId": text_of(await made(door.homing, partner.url))}
    writer = await door.key("jobs:write")
    items = [
        {**named, "targetUrl": url} for url in (f"{partner.url}/a", f"{thief.url}/b", f"{partner.url}/c")
    ]
    reply = (await door.ask("POST", f"{JOBS}/batch", writer, json=items)).json()
    assert [item["verdict"] for item in reply["items"]] == ["created", "invalid", "created"]
    assert reply["items"][1]["error"]["code"] == "FORBIDDEN"
    assert "allowedTargets" in reply["items"][1]["error"]["message"]
    together = await door.ask("POST", f"{JOBS}/batch", writer, json={"atomic": True, "jobs": items})
    assert (together.status_code, together.json()["error"]["code"]) == (403, "FORBIDDEN")
    both = [*items, {**named, "targetUrl": "https://10.0.0.1/"}]
    mixed = await door.ask("POST", f"{JOBS}/batch", writer, json={"atomic": True, "jobs": both})
    codes = [one["code"] for one in mixed.json()["error"]["details"]["problems"]]
    assert (mixed.status_code, codes) == (400, ["FORBIDDEN", "INVALID_REQUEST"])
    assert (await door.homing.jobs.counts())["PENDING"] == 2


async def test_the_list_is_for_who_administers_credentials(door: Door) -> None:
    id = text_of(await made(door.homing, "https://partner.example"))
    path = f"/api/admin/dispatch/credentials/{id}"
    body = {"allowedTargets": ["https://thief.example"]}
    reader = await door.key("credentials:read", "jobs:write", "jobs:operate")
    assert (await door.ask("PUT", f"{path}/allowed-targets", reader, json=body)).status_code == 403
    shown = (await door.ask("GET", path, reader)).json()
    assert shown["allowedTargets"] == ["https://partner.example:443"]
    admin = await door.key("credentials:admin")
    changed = await door.ask("PUT", f"{path}/allowed-targets", admin, json={"allowedTargets": ["*"]})
    assert (changed.status_code, changed.json()["allowedTargets"]) == (200, ["*"])
    assert changed.json()["updatedAt"] == shown["updatedAt"], "the secrets are what they were"
    (refused, done) = [one for one in await door.audit() if one["action"].endswith("allow_only")]
    assert (refused["outcome"], done["outcome"]) == ("refused", "done")
    assert done["detail"]["allowedTargets"] == ["*"]
    gone = await door.ask("PUT", path.replace(id, "0" * 12 + "1") + "/allowed-targets", admin, json=body)
    assert gone.status_code == 404


# ── whoever sends ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-33")
async def test_a_row_for_an_unlisted_origin_ends_in_error_unsent(
    lane: JobBench, partner: HttpSink, thief: HttpSink
) -> None:
    used = await made(lane.homing, partner.url)
    # As another program writes it: nobody was asked, and its target is what it says.
    stolen, well = job(thief.url, credentials_id=used), job(f"{partner.url}/hooks", credentials_id=used)
    lying = replace(job(f"{thief.url}/lies", credentials_id=used), target=well.target)
    ids = [one.id for one in await lane.order([stolen, well, lying])]
    await lane.run_batch()
    assert await lane.states(ids) == ["ERROR", "COMPLETED", "ERROR"]
    assert (thief.count, partner.count) == (0, 1)
    row = await lane.row(ids[0])
    assert (row["error_class"], row["attempt_count"]) == ("credential_not_allowed", 0)
    assert f"homing credentials allow {text_of(used)} {thief.url}" in row["last_error"]


async def test_what_was_allowed_a_moment_ago_elsewhere_is_sent(
    lane: JobBench, partner: HttpSink, thief: HttpSink
) -> None:
    """A job may be claimed before the memory of its worker knows of the origin that came with it."""
    used = await made(lane.homing, partner.url)
    await lane.create(partner.url, credentials_id=used)
    await lane.run_batch()
    elsewhere = Credentials(lane.homing.jobs_database, Vault.from_setting("A" * 43 + "="))
    await elsewhere.allow_only(used, [thief.url])
    (id,) = await lane.create(thief.url, credentials_id=used)
    await lane.run_batch()
    assert (await lane.states([id]), thief.count) == (["COMPLETED"], 1)


async def test_a_star_switches_the_check_off_for_one(lane: JobBench, thief: HttpSink) -> None:
    anywhere, nowhere = await made(lane.homing, "*"), await made(lane.homing)
    ids = [(await lane.create(thief.url, credentials_id=used))[0] for used in (anywhere, nowhere)]
    await lane.run_batch()
    assert await lane.states(ids) == ["COMPLETED", "ERROR"]


@pytest.mark.clause("JOB-31")
async def test_where_nobody_has_said_sql_is_served_and_a_key_is_refused(
    door: Door, partner: HttpSink
) -> None:
    """Another program's schema has no such column: what it writes is sent as before."""
    tables = Tables(door.homing.jobs_database)
    await tables.insert("dispatch_credentials", {"id": 4711, "bearer_token": TOKEN})
    order = {**ORDER, "credentialsId": text_of(4711), "targetUrl": f"{partner.url}/hooks"}
    writer, admin = await door.key("jobs:write"), await door.key("jobs:write", "credentials:admin")
    assert (await door.ask("POST", JOBS, writer, json=order)).status_code == 403
    assert (await door.ask("POST", JOBS, admin, json=order)).status_code == 201
    assert await listed(door.homing, 4711) is None, "an entry would stop what that program writes"
    await door.homing.jobs.enqueue([job(f"{partner.url}/by-sql", credentials_id=4711)])
    await door.homing.webhooks.deliverer.settled(await door.homing.webhooks.deliverer.run_batch(10))
    assert partner.count == 2


async def test_what_a_setting_sends_somewhere_goes_there(database_url: str, partner: HttpSink) -> None:
    async with job_bench(database_url) as before:
        used = await made(before.homing)
    settings = {"jobs_dead_letter_url": partner.url, "jobs_dead_letter_credentials_id": text_of(used)}
    async with job_bench(database_url, **settings) as lane:
        (dead,) = await lane.create("ftp://nowhere.example/")
        await lane.run_batch()
        assert await lane.states([dead]) == ["ERROR"]
        await lane.jobs.sweep(100)
        await lane.run_batch()
        assert partner.requests[0].header("Authorization") == f"Bearer {TOKEN}"


# ── the list itself ──────────────────────────────────────────────────────────────────────────────


async def test_origins_that_come_at_once_are_all_added(bench: Bench) -> None:
    id = id_of(await bench.credentials.create(CreateCredentials()))
    processes = [bench.another() for _ in range(8)]
    await asyncio.gather(
        *(one.admit(id, {f"https://{n}.example:443"}, adds=True) for n, one in enumerate(processes))
    )
    row = await bench.credentials.describe(id)
    assert listed_targets(row) == [f"https://{n}.example:443" for n in range(8)]
    assert row["updated_at"] == row["created_at"]


async def test_an_origin_that_was_taken_away_is_refused_elsewhere_within_seconds(bench: Bench) -> None:
    url = "https://partner.example/hooks"
    id = id_of(
        await bench.credentials.create(CreateCredentials(allowed_targets=("https://partner.example",)))
    )
    other = bench.another()
    assert not isinstance(await other.for_url(id, url), NotListed)
    await bench.credentials.allow_only(id, [])
    bench.ticks.now += 3.1
    assert isinstance(await other.for_url(id, url), NotListed)
    origins = frozenset({"https://partner.example:443"})
    assert await other.admit(id, origins, adds=False) == origins
    assert await other.admit(id + 1, origins, adds=True) is None


async def test_more_is_allowed_beside_what_is_there(bench: Bench) -> None:
    id = id_of(await bench.credentials.create(CreateCredentials(allowed_targets=("https://a.example",))))
    row = await bench.credentials.allow(id, ["https://B.example", "https://a.example:443"])
    assert listed_targets(row) == ["https://a.example:443", "https://b.example:443"]
    with pytest.raises(NotFound):
        await bench.credentials.allow(id + 1, ["https://a.example"])
    await Tables(bench.database).insert("dispatch_credentials", _plain_row(bench, 4711))
    with pytest.raises(NotAllowed, match="set the whole list"):
        await bench.credentials.allow(4711, ["https://a.example"])
    assert listed_targets(await bench.credentials.allow_only(4711, ["*"])) == ["*"]


def _plain_row(bench: Bench, id: int) -> dict[str, Any]:
    row: dict[str, Any] = {"id": id, "bearer_token": TOKEN}
    if bench.database.dialect == "mongodb":
        now = datetime.now(UTC)
        row |= {"algorithm": "HMAC_SHA256", "created_at": now, "updated_at": now}
    return row
