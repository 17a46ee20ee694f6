"""`/api/admin/dispatch/credentials` over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from litestar import Litestar
from prometheus_client import CollectorRegistry
from tests.lanes.dispatch_jobs.test_credentials import Bench, opened
from tests.outbox import LogLines

from homing.db.mongo import MongoDatabase
from homing.http.app import build_app
from homing.http.server import serving
from homing.lanes.dispatch_jobs.credentials.api import CredentialsApi
from homing.lanes.dispatch_jobs.tsid import number_of, text_of
from homing.telemetry import Telemetry, make_logger

PATH = "/api/admin/dispatch/credentials"
SHOWN = {"id", "algorithm", "createdAt", "updatedAt", "fingerprint", "allowedTargets", "name"}
GIVEN = {"bearerToken": "sk_live_canary", "signingSecret": "whsec_canary...", "algorithm": "HMAC_SHA256"}


class Api:
    def __init__(self, bench: Bench, client: httpx.AsyncClient, log: LogLines) -> None:
        self.bench, self.client, self.log = bench, client, log

    async def create(self, **fields: Any) -> dict[str, Any]:
        response = await self.client.post(PATH, json=fields)
        assert response.status_code == 201, response.text
        created: dict[str, Any] = response.json()
        return created


def application(bench: Bench, telemetry: Telemetry) -> Litestar:
    dependencies = {"credentials": bench.credentials, "telemetry": telemetry}
    nothing = {"check_ready": None, "refresh_gauges": None}
    return build_app([CredentialsApi], {**dependencies, **nothing}, telemetry, static=False)


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    log = LogLines()
    telemetry = Telemetry(make_logger("json", 10, log.stream), CollectorRegistry())
    async with (
        opened(database_url) as bench,
        serving(application(bench, telemetry), "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address, timeout=30, follow_redirects=True) as client,
    ):
        yield Api(bench, client, log)


@pytest.mark.clause("JOB-05")
async def test_the_specifications_example(api: Api) -> None:
    response = await api.client.post(PATH, json=GIVEN)
    assert response.status_code == 201
    created = response.json()
    assert set(created) == SHOWN
    assert created["algorithm"] == "HMAC_SHA256"
    assert created["createdAt"] == created["updatedAt"]
    assert created["createdAt"].endswith("Z")
    assert number_of(created["id"]) is not None
    read = await api.client.get(f"{PATH}/{created['id']}")
    assert (read.status_code, read.json()) == (200, created)
    deleted = await api.client.delete(f"{PATH}/{created['id']}")
    assert (deleted.status_code, deleted.json()) == (200, {"message": "Credentials deleted"})
    assert (await api.client.get(f"{PATH}/{created['id']}")).status_code == 404


@pytest.mark.clause("JOB-05", "JOB-24")
async def test_what_was_made_is_shown_once(api: Api) -> None:
    response = await api.client.post(PATH, json={"generate": ["signingKey"], "name": "partner"})
    created = response.json()
    assert set(created) == SHOWN | {"bearerToken", "signingSecret", "publicKey"}
    assert response.headers["cache-control"] == "no-store"
    read = (await api.client.get(f"{PATH}/{created['id']}")).json()
    assert set(read) == SHOWN | {"publicKey"}
    assert (read["publicKey"], read["name"]) == (created["publicKey"], "partner")
    half = await api.create(bearerToken=None)
    assert set(half) == SHOWN | {"signingSecret"}


@pytest.mark.clause("JOB-05")
async def test_the_list_is_newest_first(api: Api) -> None:
    ids = [(await api.create(**GIVEN, name=str(n)))["id"] for n in range(5)]
    first = (await api.client.get(PATH, params={"limit": 3})).json()
    assert [one["id"] for one in first["items"]] == ids[:1:-1]
    assert all(set(one) == SHOWN for one in first["items"])
    rest = (await api.client.get(PATH, params={"limit": 3, "before": first["next"]})).json()
    assert [one["id"] for one in rest["items"]] == ids[1::-1]
    assert rest["next"] is None
    assert (await api.client.get(PATH, params={"limit": 101})).status_code == 400
    assert (await api.client.get(PATH, params={"before": "nonsense"})).status_code == 400


@pytest.mark.clause("JOB-24", "JOB-25")
async def test_rotation(api: Api) -> None:
    created = await api.create()
    response = await api.client.post(f"{PATH}/{created['id']}/rotate")
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    rotated = response.json()
    assert set(rotated) == SHOWN | {"bearerToken", "signingSecret", "previousUntil"}
    assert rotated["signingSecret"] != created["signingSecret"]
    assert rotated["fingerprint"] != created["fingerprint"]
    assert rotated["previousUntil"] > rotated["updatedAt"]
    given = await api.client.post(
        f"{PATH}/{created['id']}/rotate", json={"signingSecret": "whsec_canary...", "graceSeconds": 0}
    )
    # The token's grace time goes on.
    assert set(given.json()) == SHOWN | {"previousUntil"}
    read = (await api.client.get(f"{PATH}/{created['id']}")).json()
    assert read == given.json()


@pytest.mark.clause("JOB-05")
async def test_a_409_while_open_jobs_use_them(api: Api) -> None:
    created = await api.create(**GIVEN)
    await api.bench.add_job(number_of(created["id"]) or 0, "PENDING")
    refused = await api.client.delete(f"{PATH}/{created['id']}")
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "CONFLICT"
    assert (await api.client.delete(f"{PATH}/{created['id']}?force=true")).status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"algorithm": "HMAC_SHA512"}, "algorithm"),
        ({"bearerToken": 5}, "bearerToken"),
        ({"bearerToken": "a\nb"}, "bearerToken"),
        ({"signingSecret": ""}, "signingSecret"),
        ({"signingKey": "whsk_canary"}, "signingKey"),
        ({"secret": "canary"}, "secret"),
        ({"generate": ["canary"]}, "generate[0]"),
        ({"name": "x" * 101}, "name"),
    ],
)
async def test_mistakes_name_their_field(api: Api, body: Any, field: str) -> None:
    response = await api.client.post(PATH, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["details"].get("field")) == ("INVALID_REQUEST", field)
    assert "canary" not in response.text or body == {"generate": ["canary"]}
    assert (await api.client.get(PATH)).json()["items"] == []


async def test_ids_that_are_none(api: Api) -> None:
    for id in ("nonsense", text_of(5), "8" + "0" * 12):
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
            response = await api.client.request(method, f"{PATH}/{id}{path}")
            assert response.status_code == 404, response.text
            assert response.json()["error"]["code"] == "NOT_FOUND"


@pytest.mark.clause("JOB-24")
async def test_no_secret_is_in_an_answer_or_in_the_log(api: Api) -> None:
    created = await api.client.post(PATH, json=GIVEN)
    id = created.json()["id"]
    seen = [
        created,
        await api.client.get(f"{PATH}/{id}"),
        await api.client.get(PATH),
        await api.client.post(
            f"{PATH}/{id}/rotate", json={"bearerToken": "canary_2", "signingSecret": "canary_3"}
        ),
        await api.client.post(f"{PATH}/{id}/rotate", json={"bearerToken": "canary 4"}),
        await api.client.post(
            PATH, content=b'{"bearerToken": "canary_5"', headers={"content-type": "application/json"}
        ),
        await api.client.get("/openapi.json"),
    ]
    if isinstance(api.bench.database, MongoDatabase):
        nothing = {"bearer_token": {"$exists": False}}
        await api.bench.database.opened.command({"collMod": "dispatch_credentials", "validator": nothing})
    else:
        await api.bench.database.run_script("ALTER TABLE dispatch_credentials RENAME TO gone;")
    seen.append(await api.client.post(PATH, json=GIVEN))
    assert seen[-1].status_code == 500
    assert not any("canary" in response.text for response in seen)
    assert "canary" not in api.log.text
    assert api.log.all("http.failed")


async def test_the_document_describes_it(api: Api) -> None:
    document = (await api.client.get("/openapi.json")).json()
    paths = document["paths"]
    assert set(paths[PATH]) == {"get", "post"}
    assert set(paths[f"{PATH}/{{credentials_id}}"]) == {"get", "delete"}
    schemas = document["components"]["schemas"]
    create = next(schema for name, schema in schemas.items() if name.endswith("CreateCredentials"))
    assert set(create["properties"]) == {
        "bearerToken", "signingSecret", "signingKey", "generate", "algorithm", "name",
        "allowedTargets",
    }  # fmt: skip
    assert "required" not in create or create["required"] == []
    assert {kind.get("type") for kind in create["properties"]["bearerToken"]["oneOf"]} == {"string", "null"}
