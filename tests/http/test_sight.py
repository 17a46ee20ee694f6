"""What somebody sees is what their scopes allow: by a page, by JSON and by a live stream alike."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncIterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.http.door import Door, url_with_tables
from tests.http.pages.visitor import door_with_people, visiting

from homing.desk.bulk import Asker
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.messages.model import LANES
from homing.senders.caught_mail import CaughtMail
from homing.workers.model import Identity, LaneReport, Report

HTML = {"Accept": "text/html"}
SECRETS = ("query-canary", "header-canary")
ORDER = {
    "source": "shop",
    "type": "order.paid",
    "targetUrl": "https://example.org/hooks?token=query-canary",
    "payload": "{}",
    "headers": {"X-Pass": "header-canary", "X-Request-Id": "r-1"},
}
#: A chat's address is a secret from its path on.
CHAT = "https://hooks.chat.example/services/T0/path-canary?k=query-canary"


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with door_with_people(url_with_tables(tmp_path), alert_webhook_url=CHAT) as door:
        yield door


async def a_day_of_trouble(door: Door) -> None:
    """A dead message in two lanes, a paused target, a caught mail, and a run over each of the lanes."""
    await door.insert(status="failed", last_error="timeout: x", to_address="lost@example.org")
    await door.sql(
        "INSERT INTO dispatch_job (source, type, target_url, target, payload, status, error_class)"
        " VALUES ('shop', 'order.paid', 'https://shop.example/hooks', 'https://shop.example', '{}', 'ERROR',"
        " 'timeout') RETURNING id"
    )
    source = b64encode(b"Subject: caught\r\n\r\ntoken").decode()
    caught = CaughtMail("<1@example.org>", "a@example.org", ("caught@example.org",), "caught", source)
    await door.homing.shelf.keep([caught])
    everything = Asker("cli:test", lambda _scope: True)
    for line in ("lane:mail_outbox to:lost@example.org status:dead", "lane:dispatch_jobs status:dead"):
        await door.homing.bulk.runs.start(line, "requeue", everything)


async def seen(door: Door, key: str, path: str, expected: int = 200) -> str:
    answer = await door.ask("GET", path, key, headers=HTML)
    assert answer.status_code == expected, (path, answer.text)
    return answer.text


async def overview(door: Door, key: str) -> dict[str, Any]:
    found: dict[str, Any] = (await door.ask("GET", "/api/overview", key)).json()
    return found


async def test_a_key_for_the_desk_alone_sees_an_empty_desk(door: Door) -> None:
    await a_day_of_trouble(door)
    key = await door.key("desk:read")
    view = await overview(door, key)
    assert (view["lanes"], view["attention"]) == ([], [])
    page = await seen(door, key, "/")
    for canary in ("shop.example", "given up", "caught@example.org", 'id="lane-'):
        assert canary not in page
    assert "mail:read" in await seen(door, key, "/caught", 403)
    assert "mail:read" in await seen(door, key, "/caught/1", 403)
    assert "mail:read" in await seen(door, key, "/caught/1/html", 403)
    assert "lost@example.org" not in await seen(door, key, "/bulk")
    assert (await door.ask("GET", "/api/bulk", key)).json() == {"items": [], "next": None}
    for path in ("/bulk/1", "/api/bulk/1"):
        assert "mail:read" in await seen(door, key, path, 403)
    assert "mail:read" in await seen(door, key, "/events?topic=bulk&id=1", 403)


async def test_who_may_read_one_lane_sees_what_is_about_that(database_url: str) -> None:
    async with door_with_people(database_url) as door:
        await a_day_of_trouble(door)
        await require_only_mails(door)


async def require_only_mails(door: Door) -> None:
    key = await door.key("desk:read", "mail:read")
    view = await overview(door, key)
    assert [lane["lane"] for lane in view["lanes"]] == ["mail_outbox"]
    assert [item["title"] for item in view["attention"]] == ["1 mail given up: timeout"]
    page = await seen(door, key, "/")
    assert "caught@example.org" in page
    assert "shop.example" not in page
    assert "caught@example.org" in await seen(door, key, "/caught")
    runs = (await door.ask("GET", "/api/bulk", key)).json()["items"]
    assert [run["lanes"] for run in runs] == [["mail_outbox"]]
    assert "lost@example.org" in await seen(door, key, "/bulk")
    assert "jobs:read" in await seen(door, key, "/bulk/2", 403)


async def test_workers_and_queues_tell_figures_of_lanes_that_one_may_read(door: Door) -> None:
    lanes = (LaneReport("mail_outbox", 3, 100, 4321, 1200), LaneReport("email_log:send", 5, 200, 8765, 700))
    worker = Identity("ann:1", "ann", 1, "1.0", "first", ("mail_outbox", "email_log"), serves=False)
    await door.homing.fleet.beat(worker, "running", Report(lanes), up_seconds=3600.0)
    await door.insert(2)
    await door.outbox.claim(2)
    await door.sql("UPDATE mail_outbox SET locked_by = 'ben:2' RETURNING id")
    await door.homing.fleet.pause("lane", "mail_outbox", by="user:bo", reason="pause-canary")
    of_mails, of_emails = ("4,321", "1,200", "2 of Mails", "pause-canary"), ("8,765", "700")
    for scopes, shown, hidden in (
        (("desk:read", "router:read"), (), (*of_mails, *of_emails, "email_log:send")),
        (("desk:read", "router:read", "mail:read"), of_mails, of_emails),
        (("desk:read", "router:read", "emails:read"), of_emails, of_mails),
    ):
        key = await door.key(*scopes)
        page = await seen(door, key, "/workers")
        assert "ann:1" in page
        assert all(canary in page for canary in shown), scopes
        assert not any(canary in page for canary in hidden), scopes
        queues = await seen(door, key, "/queues")
        named = [lane for lane in LANES if f'mono">{lane}</small>' in queues]
        assert named == {"mail:read": ["mail_outbox"], "emails:read": ["email_log"]}.get(scopes[-1], [])


async def test_alerts_are_of_lanes_that_one_may_read(door: Door) -> None:
    for cause in (
        "dead:mail_outbox:timeout",
        "target:https://target-canary.example#7",
        "backlog:email_log",
        "idle:open_events",
        "worker:ann:1",
    ):
        await door.homing.alerts.silence(cause, 3600, by="user:bo")
    await door.homing.alerts.test()
    for scopes, shown in (
        (("desk:read",), ["worker:ann:1"]),
        (("desk:read", "mail:read"), ["dead:mail_outbox:timeout", "worker:ann:1"]),
        (("desk:read", "jobs:read"), ["target:https://target-canary.example#7", "worker:ann:1"]),
        (("desk:read", "emails:read"), ["backlog:email_log", "worker:ann:1"]),
        (("desk:read", "notifications:read"), ["idle:open_events", "worker:ann:1"]),
    ):
        page = await seen(door, await door.key(*scopes), "/alerts")
        assert sorted(re.findall(r'<th scope="row" class="mono wide">([^<]+)</th>', page)) == shown, scopes
        assert "This is a test" in page
    assert "target-canary" in await seen(door, await door.key("desk:read", "ops"), "/alerts")


async def test_all_of_it_is_there_for_who_may_read_all(door: Door) -> None:
    await a_day_of_trouble(door)
    async with visiting(door, "viewer") as viewer:
        page = await viewer.read("/")
        assert "1 webhook given up" in page
        assert "caught@example.org" in page
        view = (await viewer.client.get("/api/overview")).json()
        assert len(view["lanes"]) == 4
        assert len((await viewer.client.get("/api/bulk")).json()["items"]) == 2


async def test_nobody_follows_what_another_one_sees(door: Door) -> None:
    """Two who keep the same page open share one look only where they may see the same."""
    await a_day_of_trouble(door)
    little, much = await door.key("desk:read"), await door.key("desk:read", "jobs:read")
    async with (
        door.client.stream("GET", "/events?topic=overview", headers=bearer(much)) as first,
        door.client.stream("GET", "/events?topic=overview", headers=bearer(little)) as second,
    ):
        told = [await first_event(stream) for stream in (first, second)]
    assert ["dispatch_jobs" in text for text in told] == [True, False]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def first_event(stream: Any) -> str:
    told = ""
    async for part in stream.aiter_text():
        told += part
        if "event: pieces" in told and told.endswith("\n\n"):
            break
    return told


@pytest.mark.clause("JOB-01")
async def test_secrets_of_a_job_are_for_who_makes_jobs_or_mends_them(door: Door) -> None:
    """Whoever creates one gets it back as it is; whoever only looks gets what the page shows."""
    writer, reader = await door.key("jobs:write"), await door.key("jobs:read", "desk:read")
    operator = await door.key("jobs:read", "jobs:operate")
    created = await door.ask("POST", "/api/dispatch/jobs", writer, json=ORDER)
    assert (created.status_code, created.json()["targetUrl"]) == (201, ORDER["targetUrl"])
    assert created.json()["headers"] == ORDER["headers"]
    id = created.json()["id"]
    await door.sql("UPDATE dispatch_job SET status = 'ERROR', error_class = 'timeout' RETURNING id")
    paths = (
        f"/api/dispatch/jobs/{id}",
        "/api/dispatch/jobs",
        "/api/dispatch/dead?errorClass=timeout",
        "/api/dispatch/statistics",
    )
    for path in (*paths, f"/api/messages/{id}", f"/messages/{id}"):
        text = (await door.ask("GET", path, reader)).text
        assert id in text, path
        assert not any(secret in text for secret in SECRETS), path
    for path in paths:
        assert SECRETS[0] in (await door.ask("GET", path, operator)).text, path
    shown = (await door.ask("GET", paths[0], reader)).json()
    assert shown["targetUrl"] == "https://example.org/hooks?…"
    assert shown["headers"] == {"X-Pass": "…", "X-Request-Id": "r-1"}
    assert (await door.ask("GET", paths[0], operator)).json()["headers"] == ORDER["headers"]


async def test_where_alerts_go_is_told_to_nobody(door: Door) -> None:
    """It is a setting; its path alone lets anybody write into the chat."""
    await door.homing.alerts.test()
    (job,) = await door.sql("SELECT id, target_url FROM dispatch_job")
    assert job["target_url"] == CHAT
    id = text_of(job["id"])
    everything = await door.key()
    paths = ("/", "/messages", f"/messages/{id}", "/targets", "/alerts", "/health")
    calls = (f"/api/messages/{id}", "/api/dispatch/jobs", f"/api/dispatch/jobs/{id}")
    for path in (*paths, *calls):
        text = await seen(door, everything, path)
        assert "path-canary" not in text, path
        assert "query-canary" not in text, path
    shown = (await door.ask("GET", f"/api/dispatch/jobs/{id}", everything)).json()
    assert shown["targetUrl"] == "https://hooks.chat.example/…"
    requeued = await door.ask("POST", f"/api/dispatch/jobs/{id}/cancel", everything)
    assert (requeued.status_code, "path-canary" in requeued.text) == (200, False)


@pytest.mark.clause("JOB-28")
async def test_the_stack_trace_of_an_error_of_ours_is_for_administrators(door: Door) -> None:
    await a_day_of_trouble(door)
    ((id,),) = [tuple(row.values()) for row in await door.sql("SELECT id FROM dispatch_job")]
    await door.sql(
        "INSERT INTO dispatch_attempt"
        " (dispatch_job_id, attempt_number, attempted_at, status, error_stack_trace)"
        f" VALUES ({id}, 1, '2026-01-31T12:00:00.000Z', 'FAILURE', 'ValueError at trace-canary') RETURNING id"
    )
    path = f"/api/dispatch/jobs/{text_of(id)}/attempts"
    for scopes, shown in (
        (("jobs:read",), None),
        (("jobs:read", "jobs:write", "jobs:operate", "ops"), None),
        (("*",), "ValueError at trace-canary"),
    ):
        (attempt,) = (await door.ask("GET", path, await door.key(*scopes))).json()
        assert attempt["errorStackTrace"] == shown
    reader = await door.key("desk:read", "jobs:read", "jobs:operate")
    for page in (f"/messages/{text_of(id)}", f"/api/messages/{text_of(id)}"):
        assert "trace-canary" not in await seen(door, reader, page)


#: As an order of a mail has it, and what of it only the receiver should have.
RESET = "https://shop.example.org/reset?token=Zk81mQ4xT9vB"
CODE = "482-canary-913"
LEAVE = "https://shop.example.org/leave/W7pk20QzLm4d"
MAIL_SECRETS = ("Zk81mQ4xT9vB", CODE, "W7pk20QzLm4d", "834221")
ROW: dict[str, Any] = {
    "from_address": f'"Go: {RESET}" <shop@example.org>',
    "reply_to": f'"Go: {RESET}" <shop@example.org>',
    "attachments": '[{"filename": "reset-token=834221.txt", "content": "eA==", "contentType": "text/plain"}]',
    "subject": f"Reset: {RESET}",
    "html_body": f'<p>Go on: <a href="{RESET.replace("=", "&#61;")}">here</a></p>',
    "variables": f'{{"otp": "{CODE}", "link": "{RESET}"}}',
    "headers": f'{{"X-Reset-Code": "{CODE}"}}',
    "unsubscribe_url": LEAVE,
}


async def mails_with_secrets(door: Door) -> None:
    """A mail of each lane, and one that was caught."""
    (outbox,) = await door.insert(
        text_body=f"{RESET} or {LEAVE}",
        metadata=f'{{"token": "{CODE}"}}',
        idempotency_key="reset-token=834221",
        **ROW,
    )
    row = {
        "to_address": "ann@example.org",
        "body": f"{RESET} or {LEAVE}",
        "message_key": "reset-token=834221",
        **ROW,
    }
    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    (email,) = await door.sql(f"INSERT INTO email_log ({names}) VALUES ({marks}) RETURNING id", **row)
    message = EmailMessage()
    message["From"] = ROW["from_address"]
    message["Subject"], message["List-Unsubscribe"] = ROW["subject"], f"<{LEAVE}>"
    message["X-Reset-Code"] = CODE
    message.set_content(f"{RESET} or {LEAVE}")
    message.add_alternative(ROW["html_body"], subtype="html")
    message.add_attachment("x", filename="reset-token=834221.txt")
    source = b64encode(bytes(message)).decode()
    await door.homing.shelf.keep(
        [CaughtMail("<1@x>", f"{RESET} <a@x>", ("ann@example.org",), ROW["subject"], source)]
    )
    assert (outbox, email["id"]) == (1, 1)


#: Where something of a mail is shown.
MAIL_VIEWS = (
    *("/api/mail", "/api/mail/outbox_1", "/api/emails", "/api/emails/email_1"),
    *("/api/messages", "/api/messages/outbox_1", "/api/messages/email_1"),
    *("/", "/messages", "/messages/outbox_1", "/messages/email_1", "/messages/outbox_1/mail.html"),
    *("/messages/outbox_1/mail.txt", "/messages/outbox_1/mail.eml", "/messages/email_1/mail.eml"),
    *("/caught", "/caught/1", "/caught/1/html"),
)


async def test_who_may_only_look_finds_no_token_in_any_view_of_a_mail(database_url: str) -> None:
    async with door_with_people(database_url) as door:
        await mails_with_secrets(door)
        reader = await door.key("desk:read", "mail:read", "emails:read")
        async with visiting(door, "viewer") as viewer:
            for path in MAIL_VIEWS:
                by_key = await seen(door, reader, path)
                by_role = await viewer.client.get(path, headers=HTML)
                assert by_role.status_code == 200, path
                for secret in MAIL_SECRETS:
                    assert secret not in by_key, (path, secret)
                    assert secret not in by_role.text, (path, secret)
            for topic in ("overview", "messages", "message&q=outbox_1"):
                async with viewer.client.stream("GET", f"/events?topic={topic}") as stream:
                    told = await first_event(stream)
                assert not any(secret in told for secret in MAIL_SECRETS), topic


async def test_who_puts_mails_in_or_mends_them_sees_them_whole(door: Door) -> None:
    await mails_with_secrets(door)
    for area, path, body in (
        ("mail", "/api/mail/outbox_1", "text"),
        ("emails", "/api/emails/email_1", "body"),
    ):
        for more in ("write", "operate"):
            key = await door.key("desk:read", "mail:read", f"{area}:read", f"{area}:{more}")
            shown = (await door.ask("GET", path, key)).json()
            assert shown[body] == f"{RESET} or {LEAVE}"
            assert (shown["unsubscribeUrl"], shown["variables"]["otp"]) == (LEAVE, CODE)
            assert (RESET in await seen(door, key, "/caught/1")) == (area == "mail")
        other = await door.key(f"{area}:read", "jobs:operate", "notifications:write")
        assert "Zk81mQ4xT9vB" not in (await door.ask("GET", path, other)).text


async def test_the_path_of_a_url_is_for_who_makes_jobs_or_mends_them(door: Door) -> None:
    """For some receivers it is all that one needs to write to them. A key gets it, as specified."""
    order = {**ORDER, "targetUrl": "https://hooks.chat.example/services/T0/path-canary"}
    id = (await door.ask("POST", "/api/dispatch/jobs", await door.key("jobs:write"), json=order)).json()["id"]
    await door.sql("UPDATE dispatch_job SET status = 'ERROR', error_class = 'timeout' RETURNING id")
    (row,) = await door.sql("SELECT target FROM dispatch_job")
    pages = (
        "/",
        "/messages",
        f"/messages/{id}",
        f"/api/messages/{id}",
        f"/targets/one?{urlencode(row)}",
    )
    calls = (f"/api/dispatch/jobs/{id}", "/api/dispatch/jobs", "/api/dispatch/dead?errorClass=timeout")
    reader = await door.key("desk:read", "jobs:read")
    async with visiting(door, "viewer") as viewer, visiting(door, "operator") as operator:
        for path in (*pages, *calls):
            assert "path-canary" not in (await viewer.client.get(path)).text, path
        for path in (f"/messages/{id}", f"/api/messages/{id}", *calls):
            assert "path-canary" in (await operator.client.get(path)).text, path
    for path in pages:
        assert "path-canary" not in await seen(door, reader, path), path
    for path in calls:
        assert "path-canary" in (await door.ask("GET", path, reader)).text, path


async def test_a_search_does_not_spell_a_path_out_that_is_hidden(door: Door) -> None:
    order = {**ORDER, "targetUrl": "https://hooks.chat.example/services/T0/path-canary"}
    id = (await door.ask("POST", "/api/dispatch/jobs", await door.key("jobs:write"), json=order)).json()["id"]
    reader = await door.key("desk:read", "jobs:read")
    operator = await door.key("desk:read", "jobs:read", "jobs:operate")

    async def found(key: str, line: str) -> tuple[bool, list[str]]:
        page = (await door.ask("GET", f"/api/messages?{urlencode({'q': line})}", key)).json()
        assert page["next"] is None
        return [item["id"] for item in page["items"]] == [id], page["notes"]

    for line in ("to:https://hooks.chat.example/services/T0/p*", "to:*/T0/path-c*", "to:*canary*/*"):
        seen, notes = await found(reader, line)
        assert not seen, line
        assert "jobs:operate" in notes[0]
    assert await found(operator, "to:https://hooks.chat.example/services/T0/p*") == (True, [])
    for line in ("to:hooks.chat.*", f"to:{order['targetUrl']}"):
        assert await found(reader, line) == (True, []), "a host, and what one knows already"


async def test_a_search_does_not_spell_out_what_is_hidden_of_a_mail(database_url: str) -> None:
    """Letter by letter, or a code of six digits by a million guesses."""
    async with door_with_people(database_url) as door:
        (number,) = await door.insert(
            subject=f"Reset: {RESET}",
            template="reset",
            idempotency_key="reset-token=834221",
            metadata='{"otp": "834221", "tenant": "acme", "user": {"pin": "1234"}, "link": "https://x.example/reset/12"}',
        )
        await door.sql(
            "INSERT INTO email_log (to_address, subject, body, message_key)"
            f" VALUES ('ann@example.org', 'Reset: {RESET}', 'x', 'reset-token=834221') RETURNING id"
        )
        scopes = ("desk:read", "mail:read", "emails:read")
        reader = await door.key(*scopes)
        mender = await door.key(*scopes, "mail:operate", "emails:write")
        mail, email = f"outbox_{number}", "email_1"

        async def found(key: str | None, line: str) -> tuple[list[str], list[str]]:
            path = f"/api/messages?{urlencode({'q': line})}"
            page = (await (door.ask("GET", path, key) if key else viewer.client.get(path))).json()
            assert page["next"] is None
            return sorted(item["id"] for item in page["items"]), page["notes"]

        async with visiting(door, "viewer") as viewer:
            for asked, ids in (
                ('"token=Zk81"', [email, mail]),
                ("reset", [email, mail]),
                ("meta.otp:8*", [mail]),
                ("meta.otp:834221", [mail]),
                ("meta.tenant:ac*", [mail]),
                ("meta.link:https://x.example/reset/12", [mail]),
                ("id:reset-token=834221", [email, mail]),
            ):
                line = f"lane:mail_outbox,email_log {asked}"
                assert await found(mender, line) == (ids, []), line
                for key in (reader, None):
                    nothing, notes = await found(key, line)
                    assert nothing == [], line
                    assert "mail_outbox is left out" in notes[0], line
                    assert "needs the scope mail:write or mail:operate" in notes[0], line
            _, notes = await found(reader, 'lane:mail meta.user:"{\\"pin\\":\\"1234\\"}"')
            assert "metadata that is hidden" in notes[0]
            for key in (reader, None):
                for line in ("meta.tenant:acme", f"id:{mail}", "type:res*", "to:*@example.*"):
                    assert await found(key, f"lane:mail {line}") == ([mail], []), line
        path = "/api/emails?messageKey=reset-token%3D834221"
        assert "emails:write or emails:operate" in (await door.ask("GET", path, reader)).text
        assert [item["id"] for item in (await door.ask("GET", path, mender)).json()["items"]] == [email]


async def test_who_sees_less_gets_nothing_of_what_another_one_follows(door: Door) -> None:
    order = {**ORDER, "targetUrl": "https://hooks.chat.example/services/T0/path-canary"}
    id = (await door.ask("POST", "/api/dispatch/jobs", await door.key("jobs:write"), json=order)).json()["id"]
    await door.sql(
        "UPDATE dispatch_job SET status = 'IN_PROGRESS', last_attempt_at = created_at, locked_by = 'w:1'"
        " RETURNING id"
    )
    path = f"/events?topic=message&q={id}"
    much, little = (
        await door.key("desk:read", "jobs:read", "jobs:operate"),
        await door.key("desk:read", "jobs:read"),
    )
    async with (
        door.client.stream("GET", path, headers=bearer(much)) as first,
        door.client.stream("GET", path, headers=bearer(little)) as second,
    ):
        told = [await first_event(stream) for stream in (first, second)]
    assert ["path-canary" in text for text in told] == [True, False]
