"""`/api/emails`: emails ordered, looked at, and sent again by a person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.apis import api_of
from tests.emails import EmailBench, email_bench

from homing.http.server import serving
from homing.senders.mail import Verdict

EMAIL = {"to": "ann@example.org", "subject": "Hi", "body": "Hello.", "messageKey": "order-1"}
NEVER = Verdict("rejected", 550, "5.1.1", "unknown")


class Api(EmailBench):
    client: httpx.AsyncClient

    async def post(self, body: Any, path: str = "") -> httpx.Response:
        return await self.client.post(f"/api/emails{path}", json=body)

    async def get(self, path: str = "", **parameters: Any) -> Any:
        response = await self.client.get(f"/api/emails{path}", params=parameters)
        assert response.status_code == 200, response.text
        return response.json()

    async def stored(self) -> int:
        return int((await self.sql("SELECT count(*) AS n FROM email_log"))[0]["n"])


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with email_bench(database_url) as lane:
        api = Api(lane.homing, lane.log)
        async with (
            serving(api_of(lane.homing, lane.homing.emails_part), "127.0.0.1", 0) as address,
            httpx.AsyncClient(base_url=address, timeout=30, follow_redirects=True) as api.client,
        ):
            yield api


async def test_an_email_is_accepted_before_anything_is_sent(api: Api) -> None:
    response = await api.post(EMAIL)
    assert response.status_code == 202
    assert response.json() == {
        "id": "email_1", "messageKey": "order-1", "status": "Pending", "verdict": "created",
    }  # fmt: skip
    assert response.headers["location"] == "/api/emails/email_1"
    assert api.sender.messages == []
    await api.deliver()
    shown = await api.get("/email_1")
    assert (shown["status"], shown["attemptCount"], shown["messageKey"]) == ("Sent", 0, "order-1")
    assert (shown["to"], shown["body"], shown["from"]) == ("ann@example.org", "Hello.", None)
    assert shown["completedAt"]
    assert shown["recipients"]["ann@example.org"]["status"] == "accepted"


async def test_a_repeated_key_is_answered_with_the_first_email_or_a_conflict(api: Api) -> None:
    await api.post(EMAIL)
    again = await api.post(EMAIL)
    assert (again.status_code, again.json()["id"], again.json()["verdict"]) == (200, "email_1", "duplicate")
    other = await api.post({**EMAIL, "body": "Another."})
    assert other.status_code == 409
    assert other.json()["error"]["code"] == "CONFLICT"
    assert "email_1" in other.json()["error"]["message"]
    assert await api.stored() == 1


async def test_concurrent_orders_are_all_taken_and_each_key_once(api: Api) -> None:
    bodies = [{**EMAIL, "messageKey": f"k{n % 40}"} for n in range(80)]
    answers = await asyncio.gather(*(api.post(body) for body in bodies))
    assert sorted(a.status_code for a in answers) == [200] * 40 + [202] * 40
    assert await api.stored() == 40
    await api.deliver()
    assert len(api.sender.messages) == 40


async def test_an_email_without_a_key_is_one_of_its_own(api: Api) -> None:
    body = {name: value for name, value in EMAIL.items() if name != "messageKey"}
    first, second = (await api.post(body)).json(), (await api.post(body)).json()
    assert first["id"] != second["id"]
    assert first["messageKey"] != second["messageKey"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"to": "not an address"}, "to"),
        ({"to": []}, "to"),
        ({"to": 5}, "to"),
        ({"body": None}, "body"),
        ({"messageKey": ""}, "messageKey"),
        ({"messageKey": "k" * 256}, "messageKey"),
        ({"messageKey": "nul \x00"}, "messageKey"),
        ({"messageKey": "two\nlines"}, "messageKey"),
        ({"subject": "two\r\nlines"}, "subject"),
        ({"headers": {"Bcc": "x@example.org"}}, "headers"),
        ({"headers": {"X-A": "a" * 65_536}}, "headers"),
        ({"variables": {"a": [1e308]}}, "variables"),
        ({"from": "nobody"}, "from"),
        ({"surprise": 1}, None),
        ({"body": "nul \x00"}, None),
    ],
)
async def test_what_could_never_be_sent_is_refused_and_nothing_is_stored(
    api: Api, change: dict[str, Any], field: str | None
) -> None:
    response = await api.post({**EMAIL, **change})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == "INVALID_REQUEST"
    if field is not None:
        assert error["details"]["field"].startswith(field)
    assert await api.stored() == 0


async def test_it_must_be_json(api: Api) -> None:
    response = await api.client.post("/api/emails", content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415


async def test_lists_by_state_and_key_and_page_by_page(api: Api) -> None:
    for number in range(5):
        await api.post({**EMAIL, "messageKey": f"k{number}"})
    page = await api.get(limit=2)
    assert [item["id"] for item in page["items"]] == ["email_5", "email_4"]
    page = await api.get(limit=2, before=page["next"])
    assert [item["id"] for item in page["items"]] == ["email_3", "email_2"]
    assert [item["id"] for item in (await api.get(messageKey="k2"))["items"]] == ["email_3"]
    assert (await api.get(messageKey="unknown"))["items"] == []
    assert len((await api.get(status="Pending"))["items"]) == 5
    assert (await api.get(status="Sent"))["items"] == []
    for parameters in ({"status": "nonsense"}, {"limit": 0}, {"limit": 101}):
        assert (await api.client.get("/api/emails", params=parameters)).status_code == 400
    assert (await api.client.get("/api/emails/email_99")).status_code == 404
    assert (await api.client.get("/api/emails/nonsense")).status_code == 404


@pytest.mark.clause("RTY-15")
async def test_the_dead_are_listed_with_their_reasons_and_requeued(api: Api) -> None:
    api.sender.answer("bo@example.org", NEVER)
    await api.post(EMAIL)
    await api.post({**EMAIL, "to": "bo@example.org", "messageKey": "order-2"})
    (over,) = await api.insert(1, status="Failed", attempt_count=8, last_error="gone")
    await api.deliver()
    await api.homing.email_schedule.maintenance.once()
    dead = await api.get("/dead")
    assert dead["reasons"] == {"InvalidRecipient": 1, "MaxAttemptsExceeded": 1}
    assert [(item["id"], item["deadReason"]) for item in dead["items"]] == [
        (f"email_{over}", "MaxAttemptsExceeded"),
        ("email_2", "InvalidRecipient"),
    ]
    only = await api.get("/dead", reason="InvalidRecipient")
    assert [item["id"] for item in only["items"]] == ["email_2"]
    requeued = await api.post(None, "/email_2/requeue")
    assert (requeued.status_code, requeued.json()["status"]) == (200, "Pending")
    refused = await api.post(None, "/email_1/requeue")
    assert refused.status_code == 409
    assert "Sent" in refused.json()["error"]["message"]
    api.sender.answer("bo@example.org", Verdict("accepted"))
    await api.deliver()
    assert (await api.get("/email_2"))["status"] == "Sent"


@pytest.mark.clause("RTY-15")
async def test_many_dead_are_counted_first_and_requeued_when_it_is_meant(api: Api) -> None:
    await api.insert(5, status="Dead", dead_reason="InvalidRecipient")
    await api.insert(3, status="Dead", dead_reason="MaxAttemptsExceeded")
    counted = (await api.post({"reason": "InvalidRecipient"}, "/requeue")).json()
    assert counted == {"matched": 5, "requeued": 0, "more": False, "dryRun": True}
    done = (await api.post({"reason": "InvalidRecipient", "dryRun": False, "limit": 4}, "/requeue")).json()
    assert done == {"matched": 4, "requeued": 4, "more": True, "dryRun": False}
    assert (await api.emails.counts())["Dead"] == 4
    everything = (await api.post({"all": True, "dryRun": False}, "/requeue")).json()
    assert everything["requeued"] == 4
    for wrong in ({}, {"all": True, "reason": "x"}, {"reasons": "x"}):
        assert (await api.post(wrong, "/requeue")).status_code == 400


async def test_the_document_describes_every_route(api: Api) -> None:
    paths = (await api.client.get("/openapi.json")).json()["paths"]
    ours = {name.removeprefix("/api/emails") for name in paths if name.startswith("/api/emails")}
    assert ours == {"", "/dead", "/requeue", "/{id}", "/{id}/requeue"}
    post = paths["/api/emails"]["post"]
    assert {"202", "200", "400", "409"} <= post["responses"].keys()
    parameters = {p["name"] for p in paths["/api/emails"]["get"]["parameters"]}
    assert parameters == {"status", "messageKey", "before", "limit"}


@pytest.mark.parametrize(("path", "field"), [("/dead", "reason"), ("", "messageKey")])
async def test_what_no_database_keeps_cannot_be_looked_for(api: Api, path: str, field: str) -> None:
    response = await api.client.get(f"/api/emails{path}?{field}=%00")
    assert response.status_code == 400, response.text
    assert response.json()["error"]["details"]["field"] == field


async def test_what_no_database_keeps_is_no_reason_to_requeue(api: Api) -> None:
    response = await api.post({"reason": "\0"}, "/requeue")
    assert response.status_code == 400, response.text
    assert response.json()["error"]["details"]["field"] == "reason"
