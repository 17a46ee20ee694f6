"""`/api/messages`: a list by a query line, one message whole, and who may see them."""

from __future__ import annotations

import pytest
from tests.desk.rows import EMAILS, JOBS, MAILS
from tests.http.door import Door, opened_door

pytestmark = pytest.mark.clause("JOB-22", "RTY-15")


async def fill(door: Door) -> None:
    for script in (MAILS, JOBS, EMAILS):
        await door.homing.database.run_script(script)


async def test_a_query_line_finds_messages_of_all_lanes(database_url: str) -> None:
    async with opened_door(database_url) as door:
        await fill(door)
        page = (await door.ask("GET", "/api/messages", params={"q": "status:dead", "limit": 2})).json()
        assert [item["id"] for item in page["items"]] == ["outbox_5", "email_1"]
        assert (page["query"], page["lookedAt"], page["notes"]) == ("status:dead", None, [])
        params = {"q": "status:dead", "limit": 2, "cursor": page["next"]}
        following = (await door.ask("GET", "/api/messages", params=params)).json()
        assert [item["title"] for item in following["items"]] == ["order.created", "Hello Ann"]
        assert following["items"][1] == {
            "id": "outbox_1", "lane": "mail_outbox", "state": "failed", "phase": "dead", "title": "Hello Ann",
            "to": "Ann <ann@x.com>, bob@y.org", "attempts": 0, "error": "invalid_recipient",
            "createdAt": "2026-01-01T00:00:01.000Z", "dueAt": None,
        }  # fmt: skip
        looked = (await door.ask("GET", "/api/messages", params={"q": "unfindable"})).json()
        assert (looked["items"], looked["lookedAt"]) == ([], 10)


async def test_one_message_is_told_whole(sqlite_url: str) -> None:
    async with opened_door(sqlite_url) as door:
        await fill(door)
        mail = (await door.ask("GET", "/api/messages/outbox_2")).json()
        assert {"name": "Cc", "value": "DORA@Z.com"} in mail["fields"]
        assert [step["kind"] for step in mail["timeline"]] == ["created", "waits"]
        assert (mail["mail"]["text"], mail["mail"]["trouble"], mail["curl"]) == ("hi", None, None)
        assert "cancel" in mail["verbs"]
        page = (await door.ask("GET", "/api/messages", params={"q": "id:ext-1"})).json()
        job = (await door.ask("GET", f"/api/messages/{page['items'][0]['id']}")).json()
        assert job["payload"] == {"contentType": "application/json", "text": "no json", "length": 7}
        assert (job["curl"].startswith("curl"), job["mail"]) == (True, None)


async def test_mistakes_are_told(sqlite_url: str) -> None:
    async with opened_door(sqlite_url) as door:
        for path, status, told in (
            ("/api/messages?q=tpye:a", 400, "no field `tpye`; did you mean type?"),
            ("/api/messages?cursor=nonsense", 400, "take it from `next`"),
            ("/api/messages?limit=0", 400, "limit"),
            ("/api/messages/outbox_7", 404, "there is no message 'outbox_7'"),
            ("/api/messages/whatever", 404, "ids look like"),
        ):
            response = await door.ask("GET", path)
            assert (response.status_code, told in response.text) == (status, True), response.text


async def test_each_lane_has_its_own_scope(sqlite_url: str) -> None:
    async with opened_door(sqlite_url) as door:
        await fill(door)
        key = await door.key("desk:read", "emails:read")
        page = (await door.ask("GET", "/api/messages", key)).json()
        assert {item["lane"] for item in page["items"]} == {"email_log"}
        assert (await door.ask("GET", "/api/messages/email_1", key)).status_code == 200
        refused = await door.ask("GET", "/api/messages/outbox_1", key)
        assert (refused.status_code, "mail:read" in refused.text) == (403, True)
        assert (await door.ask("GET", "/api/messages", await door.key("emails:read"))).status_code == 403
        assert (await door.ask("GET", "/api/messages")).status_code == 401
