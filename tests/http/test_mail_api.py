"""`/api/mail`: mails in, looked at, sent again, taken out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from litestar import Litestar
from tests.apis import api_of
from tests.outbox import Bench, bench

from homing.http.server import serving

MAIL = {"to": "ann@example.org", "subject": "Hi", "text": "Hello."}


class Api(Bench):
    client: httpx.AsyncClient

    async def post(self, body: Any) -> httpx.Response:
        return await self.client.post("/api/mail", json=body)

    async def stored(self) -> int:
        return int((await self.sql("SELECT count(*) AS n FROM mail_outbox"))[0]["n"])


@asynccontextmanager
async def opened(lane: Bench, application: Litestar) -> AsyncIterator[Api]:
    api = Api(lane.homing, lane.log)
    async with (
        serving(application, "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address, timeout=30, follow_redirects=True) as api.client,
    ):
        yield api


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with bench(database_url) as lane, opened(lane, api_of(lane.homing, lane.homing.mails_part)) as api:
        yield api


@pytest.fixture
async def whole(database_url: str) -> AsyncIterator[Api]:
    """With the pages, and what the other lanes offer."""
    async with bench(database_url) as lane, opened(lane, lane.homing.asgi()) as api:
        yield api


async def test_a_mail_is_put_in_and_delivered(api: Api) -> None:
    response = await api.post(MAIL)
    assert response.status_code == 201
    assert response.json() == {"id": "outbox_1", "status": "queued", "verdict": "created"}
    await api.deliver()
    shown = (await api.client.get("/api/mail/outbox_1")).json()
    assert (shown["status"], shown["to"], shown["retryCount"]) == ("sent", "ann@example.org", 0)
    assert shown["recipients"]["ann@example.org"]["status"] == "accepted"
    (message,) = api.sender.messages
    assert (message.subject, message.text, message.recipients) == ("Hi", "Hello.", ("ann@example.org",))


async def test_every_field_reaches_the_row(api: Api) -> None:
    full = {
        "to": ["Ann <ann@example.org>", "bo@example.org"],
        "from": "Shop <shop@example.com>",
        "cc": "cy@example.org",
        "bcc": ["di@example.org"],
        "replyTo": "help@example.com",
        "subject": "Grüße",
        "text": "t",
        "html": "<p>h</p>",
        "locale": "de-AT",
        "headers": {"X-A": "b"},
        "attachments": [{"filename": "a.txt", "contentType": "text/plain", "content": "aGVsbG8="}],
        "unsubscribeUrl": "https://example.com/u",
        "idempotencyKey": "k1",
        "expiresAt": "2999-01-01T00:00:00Z",
        "sendAt": "2998-01-01T00:00:00+02:00",
        "metadata": {"order": 42},
    }
    assert (await api.post(full)).status_code == 201
    shown = (await api.client.get("/api/mail/1")).json()
    assert shown["to"] == "Ann <ann@example.org>, bo@example.org"
    assert (shown["from"], shown["cc"], shown["bcc"]) == (
        "Shop <shop@example.com>",
        "cy@example.org",
        "di@example.org",
    )
    assert (shown["replyTo"], shown["subject"], shown["text"], shown["html"]) == (
        "help@example.com",
        "Grüße",
        "t",
        "<p>h</p>",
    )
    assert (shown["locale"], shown["headers"], shown["attachments"]) == ("de-AT", {"X-A": "b"}, ["a.txt"])
    assert (shown["unsubscribeUrl"], shown["idempotencyKey"]) == ("https://example.com/u", "k1")
    assert (shown["expiresAt"], shown["nextAttemptAt"]) == (
        "2999-01-01T00:00:00.000Z",
        "2997-12-31T22:00:00.000Z",
    )
    assert shown["metadata"] == {"order": 42}
    assert "aGVsbG8=" not in str(shown)


async def test_an_idempotency_key_is_honoured(api: Api) -> None:
    first = await api.post({**MAIL, "idempotencyKey": "order-1"})
    again = await api.post({**MAIL, "idempotencyKey": "order-1"})
    other = await api.post({**MAIL, "idempotencyKey": "order-1", "subject": "Other"})
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.json() == {"id": first.json()["id"], "status": "queued", "verdict": "duplicate"}
    assert other.json()["error"]["code"] == "CONFLICT"
    assert await api.stored() == 1


async def test_many_orders_with_one_key_at_once_are_one_mail(api: Api) -> None:
    responses = await asyncio.gather(*(api.post({**MAIL, "idempotencyKey": "same"}) for _ in range(30)))
    assert sorted({r.status_code for r in responses}) == [200, 201]
    assert sum(r.status_code == 201 for r in responses) == 1
    assert len({r.json()["id"] for r in responses}) == 1
    assert await api.stored() == 1


async def test_an_array_gets_a_verdict_per_item_and_a_bad_one_fails_alone(api: Api) -> None:
    await api.post({**MAIL, "idempotencyKey": "old"})
    response = await api.post(
        [
            MAIL,
            {"to": "nonsense", "text": "x"},
            {**MAIL, "idempotencyKey": "old"},
            {**MAIL, "idempotencyKey": "old", "text": "other"},
            {**MAIL, "surprise": 1},
            {**MAIL, "idempotencyKey": "twice"},
            {**MAIL, "idempotencyKey": "twice"},
            7,
        ]
    )
    assert response.status_code == 200
    body = response.json()
    verdicts = [item["verdict"] for item in body["items"]]
    assert verdicts == [
        "created",
        "invalid",
        "duplicate",
        "conflict",
        "invalid",
        "created",
        "duplicate",
        "invalid",
    ]
    assert body["created"] == 2
    assert body["items"][1]["error"]["details"] == {"field": "to"}
    assert body["items"][4]["error"]["details"] == {"field": "surprise"}
    assert body["items"][5]["id"] == body["items"][6]["id"]
    assert await api.stored() == 3


async def test_up_to_a_thousand(api: Api) -> None:
    response = await api.post([MAIL] * 1000)
    assert response.json()["created"] == 1000
    assert len({item["id"] for item in response.json()["items"]}) == 1000
    response = await api.post([MAIL] * 1001)
    assert response.status_code == 400
    assert (await api.post([])).status_code == 400
    assert await api.stored() == 1000


@pytest.mark.clause("OUT-09")
async def test_an_urgent_mail_goes_first_in_the_specified_order(api: Api) -> None:
    await api.post([MAIL] * 5)
    urgent = (await api.post({**MAIL, "urgent": True})).json()["id"]
    (claim,) = await api.outbox.claim(1)
    assert f"outbox_{claim.id}" == urgent


async def test_a_later_send_time_waits(api: Api) -> None:
    await api.post({**MAIL, "sendAt": "2999-01-01T00:00:00Z"})
    assert await api.deliver() == {}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"to": "no address"}, "to"),
        ({"to": []}, "to"),
        ({"to": ""}, "to"),
        ({"to": None}, "to"),
        ({"to": ["a@example.org", "b@"]}, "to"),
        ({"to": "a@example.org\r\nBcc: x@example.org"}, "to"),
        ({"cc": "x"}, "cc"),
        ({"from": "x"}, "from"),
        ({"replyTo": "x"}, "replyTo"),
        ({"subject": "A\nBcc: x@example.org"}, "subject"),
        ({"subject": "A =?UTF-8?Q?=0A?=Bcc: x@example.org"}, "subject"),
        ({"subject": "x" * 2001}, "subject"),
        ({"headers": {"X-A": "a\r\nb"}}, "headers.X-A"),
        ({"headers": {"Bcc": "a@example.org"}}, "headers.Bcc"),
        ({"headers": {"bad name": "x"}}, None),
        ({"headers": {"X-A": 1}}, "headers[...]"),
        ({"headers": {f"X-{n}": "ä" * 1000 for n in range(33)}}, "headers"),
        ({"variables": {"a": [{"b": 1e41}]}}, "variables"),
        ({"variables": {"a": -1e308}}, "variables"),
        ({"variables": {"a": 10**41}}, "variables"),
        ({"metadata": {"a": 1e-41}}, "metadata"),
        ({"attachments": [{"filename": "a", "content": "no base64!"}]}, "attachments[0].content"),
        ({"attachments": [{"filename": "a\nb", "content": ""}]}, "attachments[0].filename"),
        ({"unsubscribeUrl": "javascript:alert(1)"}, None),
        ({"expiresAt": "tomorrow"}, "expiresAt"),
        ({"expiresAt": "2999-01-01T00:00:00"}, "expiresAt"),
        ({"expiresAt": "9999-12-31T23:59:59-10:00"}, "expiresAt"),
        ({"sendAt": "0001-01-01T00:00:00+14:00"}, "sendAt"),
        ({"urgent": "yes"}, "urgent"),
        ({"urgent": True, "sendAt": "2999-01-01T00:00:00Z"}, "urgent"),
        ({"text": None}, "text"),
        ({"text": "a\x00b"}, None),
        ({"metadata": {"a": "\x00"}}, None),
        ({"idempotencyKey": ""}, "idempotencyKey"),
        ({"surprise": 1}, "surprise"),
    ],
)
async def test_bad_input_gets_a_clear_error_and_changes_nothing(
    api: Api, change: dict[str, Any], field: str | None
) -> None:
    response = await api.post({**MAIL, **change})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == "INVALID_REQUEST"
    if field is not None:
        assert error["details"] == {"field": field}
    assert await api.stored() == 0


async def test_text_with_a_backslash_before_u0000_is_no_nul(api: Api) -> None:
    assert (await api.post({**MAIL, "text": "\\u0000 is how JSON writes NUL"})).status_code == 201


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "INVALID_REQUEST"),
        (b"{}", "text/plain", 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b'"' + b"x" * (17 * 1024 * 1024) + b'"', "application/json", 413, "PAYLOAD_TOO_LARGE"),
        (b"", "application/json", 400, "INVALID_REQUEST"),
    ],
    ids=["broken", "not json", "too large", "empty"],
)
async def test_a_wrong_body(api: Api, content: bytes, kind: str, status: int, code: str) -> None:
    response = await api.client.post("/api/mail", content=content, headers={"content-type": kind})
    assert response.status_code == status
    assert response.json()["error"]["code"] == code


async def test_pages_of_mails_newest_first(api: Api) -> None:
    await api.post([MAIL] * 5)
    await api.outbox.cancel([2])
    first = (await api.client.get("/api/mail", params={"limit": 3})).json()
    assert [item["id"] for item in first["items"]] == ["outbox_5", "outbox_4", "outbox_3"]
    second = (await api.client.get("/api/mail", params={"limit": 3, "before": first["next"]})).json()
    assert [item["id"] for item in second["items"]] == ["outbox_2", "outbox_1"]
    assert second["next"] is None
    cancelled = (await api.client.get("/api/mail", params={"status": "cancelled"})).json()
    assert [item["id"] for item in cancelled["items"]] == ["outbox_2"]
    for wrong in ({"status": "nonsense"}, {"limit": 0}, {"limit": 101}, {"limit": "x"}):
        assert (await api.client.get("/api/mail", params=wrong)).status_code == 400


async def test_requeue_and_cancel(api: Api) -> None:
    await api.post(MAIL)
    post = api.client.post
    assert (await post("/api/mail/outbox_1/requeue")).status_code == 409
    cancelled = await post("/api/mail/outbox_1/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert (await post("/api/mail/outbox_1/cancel")).status_code == 409
    assert await api.deliver() == {}
    requeued = await post("/api/mail/outbox_1/requeue")
    assert (requeued.status_code, requeued.json()["status"], requeued.json()["retryCount"]) == (
        200,
        "queued",
        0,
    )
    await api.deliver()
    assert (await api.client.get("/api/mail/outbox_1")).json()["status"] == "sent"
    assert (await post("/api/mail/outbox_1/requeue")).status_code == 409


@pytest.mark.parametrize("id", ["outbox_99", "99", "nonsense", "outbox_", "outbox_-1", "9" * 40, "1;drop"])
async def test_a_mail_that_does_not_exist(api: Api, id: str) -> None:
    for request in (
        api.client.get(f"/api/mail/{id}"),
        api.client.post(f"/api/mail/{id}/requeue"),
        api.client.post(f"/api/mail/{id}/cancel"),
    ):
        response = await request
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "NOT_FOUND"


async def test_health_metrics_docs_and_pages(whole: Api) -> None:
    get = whole.client.get
    assert (await get("/health/live")).json() == {"status": "ok"}
    assert (await get("/health/ready")).json() == {"status": "ok"}
    assert "homing_attempts_total" in (await get("/metrics")).text
    schema = (await get("/openapi.json")).json()
    assert {"/internal/dispatch", "/api/mail", "/api/mail/{mail_id}"} <= set(schema["paths"])
    assert "attachments" in schema["components"]["schemas"]["MailRequest"]["properties"]
    docs = (await get("/docs")).text
    assert "/internal/dispatch" in docs
    assert "idempotencyKey" in docs
    assert "http://" not in docs.replace(str(whole.client.base_url), "")
    page = await get("/")
    assert page.status_code == 200
    assert "No message yet" in (await get("/messages")).text
    for name, value in page.headers.items():
        assert "unsafe" not in value, name
    assert (await get("/static/homing.css")).status_code == 200
    assert (await get("/static/../app.py")).status_code == 404
    assert (await get("/nowhere")).json()["error"]["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:8080"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "["}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
async def test_a_page_of_another_site_can_do_nothing(api: Api, headers: dict[str, str], status: int) -> None:
    response = await api.client.post("/internal/dispatch", headers=headers)
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "FORBIDDEN"


async def test_a_foreign_name_that_points_here_can_read_nothing(api: Api) -> None:
    assert (await api.client.get("/api/mail", headers={"host": "evil.example"})).status_code == 403
    assert (await api.client.get("/api/mail", headers={"sec-fetch-site": "cross-site"})).status_code == 200


async def test_odd_rows_and_odd_numbers_are_no_500(whole: Api) -> None:
    for files in ("[1]", "null", '[{"name": "x"}]', "{}"):
        (id,) = await whole.insert(attachments=files)
        assert (await whole.client.get(f"/api/mail/{id}")).status_code == 200, files
    assert (await whole.client.get(f"/caught/{10**20}")).status_code == 404


async def test_not_ready_without_tables(api: Api) -> None:
    await api.sql("DROP TABLE homing_migration")
    response = await api.client.get("/health/ready")
    assert response.status_code == 503
    assert "homing migrate" in response.json()["reason"]


async def test_a_page_shows_names_as_text(whole: Api) -> None:
    await whole.post({**MAIL, "subject": "<script>alert(1)</script>"})
    page = (await whole.client.get("/messages")).text
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
