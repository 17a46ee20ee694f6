"""Credentials on the desk: secrets are shown once, rotated with a grace, and never without the right."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from tests.http.door import Door
from tests.http.pages.visitor import Visitor, door_with_people, forms_of, visiting
from tests.jobs import JobBench

from homing.lanes.dispatch_jobs.credentials import CreateCredentials, Secrets
from homing.lanes.dispatch_jobs.credentials.signing import listed_targets
from homing.lanes.dispatch_jobs.tsid import number_of, text_of

MOMENT = datetime.now(UTC)
ACTIONS = (
    "/credentials/create",
    "/credentials/allow",
    "/credentials/rotate",
    "/credentials/end-grace",
    "/credentials/delete",
)


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    async with door_with_people(sqlite_url) as door:
        yield door


@pytest.fixture
async def admin(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "admin") as visitor:
        yield visitor


def secret_in(page: str, part: str) -> str:
    found = re.search(rf'<pre id="{part}"[^>]*>([^<]+)</pre>', page)
    assert found is not None, page
    return found[1]


async def made(door: Door) -> str:
    issued = await door.homing.credentials.create(CreateCredentials(name="shop"))
    return text_of(issued.row["id"])


async def sent_by(door: Door, id: str) -> tuple[str, list[str]]:
    """What a webhook carries: the authorization, and its signatures."""
    number = number_of(id)
    assert number is not None
    found = await door.homing.credentials.get(number)
    assert isinstance(found, Secrets)
    headers = {name.lower(): value for name, value in found.headers("m", MOMENT, b"{}").items()}
    return headers.get("authorization", ""), headers.get("webhook-signature", "").split()


@pytest.mark.clause("JOB-24")
async def test_secrets_are_shown_once_when_they_are_made(door: Door, admin: Visitor) -> None:
    assert "No credentials yet" in await admin.read("/credentials")
    answer = await admin.send("/credentials/create", {"name": "shop <b>", "secret": "yes", "key": "yes"})
    assert answer.status_code == 200
    assert "no-store" in answer.headers["cache-control"]
    token, secret = secret_in(answer.text, "bearer_token"), secret_in(answer.text, "signing_secret")
    assert token.startswith("hm_")
    assert secret.startswith("whsec_")
    assert secret_in(answer.text, "public_key").startswith("whpk_")
    page = await admin.read("/credentials")
    assert "shop &lt;b&gt;" in page
    assert "ed25519" in page
    (id,) = set(re.findall(r"/credentials/one\?id=(\w+)", page))
    page += await admin.read("/credentials/one", id=id)
    for hidden in (token, secret):
        assert hidden not in page
        assert hidden not in door.log.text
        assert hidden not in str(await door.audit())
    await given(door, admin)


async def given(door: Door, admin: Visitor) -> None:
    """The token of the receiver."""
    await door.sql("DELETE FROM dispatch_credentials WHERE true RETURNING id")
    form = {"name": "shop", "bearer": "given", "bearer_token": "canary-token"}
    answer = await admin.send("/credentials/create", form)
    assert answer.status_code == 200
    assert "canary-token" not in answer.text
    assert "signing_secret" not in answer.text
    (row,) = await door.homing.credentials.page()
    assert (await sent_by(door, text_of(row["id"])))[0] == "Bearer canary-token"
    told = await admin.refused("/credentials/create", name="none", bearer="given")
    assert "none is" in told
    assert "need a bearer token" in await admin.refused("/credentials/create", name="none", bearer="none")
    assert len(await door.homing.credentials.page()) == 1


@pytest.mark.clause("JOB-25")
async def test_they_are_rotated_with_a_grace_and_deleted_when_nobody_needs_them(
    door: Door, admin: Visitor
) -> None:
    await rotated(door, admin)
    await deleted(door, admin)


async def rotated(door: Door, admin: Visitor) -> None:
    id = await made(door)
    token, (first,) = await sent_by(door, id)
    answer = await admin.send("/credentials/rotate", {"id": id, "grace": "1 day"})
    assert answer.status_code == 200
    assert secret_in(answer.text, "signing_secret").startswith("whsec_")
    same_token, both = await sent_by(door, id)
    assert same_token == token
    assert len(both) == 2
    assert first in both
    page = await admin.read("/credentials/one", id=id)
    assert "End the grace now" in page
    assert "Only the new secrets" in await admin.done("/credentials/end-grace", id=id)
    new_token, last = await sent_by(door, id)
    assert new_token == f"Bearer {secret_in(answer.text, 'bearer_token')}"
    assert last == [one for one in both if one != first]
    assert "no previous secrets" in await admin.done("/credentials/end-grace", id=id)
    assert "End the grace now" not in await admin.read("/credentials/one", id=id)
    told = [(one["action"], one["object"], one["outcome"]) for one in await door.audit()][1:]
    assert told == [
        ("dispatch.credentials.rotate", id, "done"),
        ("dispatch.credentials.end_grace", id, "done"),
        ("dispatch.credentials.end_grace", id, "refused"),
    ]


async def deleted(door: Door, admin: Visitor) -> None:
    await door.sql("DELETE FROM dispatch_credentials RETURNING id")
    id = await made(door)
    jobs = JobBench(door.homing, door.log)
    await jobs.create("http://127.0.0.1:1/hook", 2, credentials_id=number_of(id))
    assert 'data-name="Open jobs">2</td>' in await admin.read("/credentials")
    page = await admin.read("/credentials/one", id=id)
    assert "2 open jobs use these credentials" in page
    assert "tick that you are sure" in await admin.refused("/credentials/delete", id=id, force="yes")
    assert "open jobs use" in await admin.refused("/credentials/delete", id=id, sure="yes")
    assert "are deleted" in await admin.done("/credentials/delete", id=id, sure="yes", force="yes")
    assert await door.homing.credentials.page() == []
    assert (await admin.client.get("/credentials/one", params={"id": id})).status_code == 404


async def test_who_may_not_change_them_looks_without_buttons(door: Door) -> None:
    id = await made(door)
    for role in ("viewer", "operator"):
        async with visiting(door, role) as visitor:
            assert forms_of(await visitor.read("/credentials")) == set()
            assert forms_of(await visitor.read("/credentials/one", id=id)) == set()
            for action in ACTIONS:
                answer = await visitor.send(action, {"id": id, "name": "x", "secret": "yes", "sure": "yes"})
                assert answer.status_code == 403
    assert len(await door.homing.credentials.page()) == 1
    refused = [one for one in await door.audit() if one["outcome"] == "refused"]
    assert len(refused) == 2 * len(ACTIONS)


async def test_where_they_may_be_used_is_shown_and_set(door: Door, admin: Visitor) -> None:
    answer = await admin.send(
        "/credentials/create",
        {"name": "shop", "secret": "yes", "targets": "https://a.example\r\nhttps://b.example"},
    )
    assert answer.status_code == 200
    (row,) = await door.homing.credentials.page()
    id = text_of(row["id"])
    assert "https://a.example:443\nhttps://b.example:443</textarea>" in await admin.read(
        "/credentials/one", id=id
    )
    page = await admin.refused("/credentials/allow", id=id, targets="https://a.example/hooks")
    assert "without a path" in page
    assert "https://a.example/hooks</textarea>" in page, "what was typed is there"
    await admin.done("/credentials/allow", id=id, targets="https://c.example:8443\r\n")
    assert listed_targets(await door.homing.credentials.describe(row["id"])) == ["https://c.example:8443"]
    entry = (await door.audit())[-1]
    assert (entry["action"], entry["outcome"]) == ("dispatch.credentials.allow_only", "done")
    assert entry["detail"]["allowedTargets"] == ["https://c.example:8443"]
