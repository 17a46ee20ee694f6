"""Messages on the desk: the list of all lanes, one of them, and what can be done; on both databases."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest
from tests.emails import EmailBench
from tests.http.door import Door
from tests.http.pages.visitor import Visitor, door_with_people, forms_of, visiting
from tests.jobs import JobBench

from homing.http.pages.messages import LISTED
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.testing.http_sink import Answer, HttpSink

HOSTILE = '<script>alert(1)</script>"><img src=x>'
ANSWERS = {
    "/broken": Answer(status=500, body=HOSTILE.encode()),
    "/gone": Answer(status=410, body=b"gone for good"),
}


@pytest.fixture
async def door(database_url: str) -> AsyncIterator[Door]:
    async with door_with_people(database_url, jobs_breaker_failures=50) as door:
        yield door


@pytest.fixture
async def operator(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "operator") as visitor:
        yield visitor


@pytest.fixture
async def viewer(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "viewer") as visitor:
        yield visitor


@pytest.fixture
async def jobs(door: Door) -> AsyncIterator[JobBench]:
    yield JobBench(door.homing, door.log)
    await door.homing.webhooks.deliverer.drain(5)


@pytest.fixture
async def sink() -> AsyncIterator[HttpSink]:
    async with HttpSink(ANSWERS) as sink:
        yield sink


def ids_of(page: str) -> list[str]:
    """Those that a list shows, from the top down."""
    return re.findall(r'<tr id="row-([^"]+)"', page)


# ── the list ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_list_has_all_lanes_and_its_address_is_the_filter(
    door: Door, jobs: JobBench, viewer: Visitor, sink: HttpSink
) -> None:
    assert "No message yet" in await viewer.read("/messages")
    mails = [f"outbox_{id}" for id in await door.insert(2, subject=HOSTILE)]
    emails = [f"email_{id}" for id in await EmailBench(door.homing, door.log).insert(1)]
    dead = [text_of(id) for id in await jobs.create(f"{sink.url}/gone", 2, type="order.cancelled")]
    await jobs.run_batch()
    page = await viewer.read("/messages")
    assert set(ids_of(page)) == {*mails, *emails, *dead}
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)" in page
    assert 'data-topic="/events?topic=messages"' in page

    assert set(ids_of(await viewer.read("/messages", q="status:dead"))) == set(dead)
    assert set(ids_of(await viewer.read("/messages", q="lane:mail_outbox"))) == set(mails)
    # The chip that is on leads to the list without it.
    page = await viewer.read("/messages", q="status:dead type:order.*")
    assert '<a class="chip on" href="/messages?q=type%3Aorder.%2A" aria-current="true">dead' in page
    assert 'href="/messages?q=status%3Adead" aria-label="Remove type:order.*"' in page
    assert "Nothing matches" in await viewer.read("/messages", q="lane:email_log status:dead")

    page = await viewer.read("/messages", q="lane:mail_outbox statsu:dead")
    assert "<mark>statsu:dead</mark>" in page
    assert "did you mean status?" in page
    assert 'href="/messages?q=lane%3Amail_outbox+status%3Adead" id="mended"' in page
    assert "data-topic" not in page
    page = await viewer.read("/messages", q=HOSTILE + ":x")
    assert "<script>alert" not in page


async def test_what_is_selected_is_requeued_by_who_may(
    door: Door, jobs: JobBench, operator: Visitor, viewer: Visitor, sink: HttpSink
) -> None:
    dead = await jobs.create(f"{sink.url}/gone", 3)
    await jobs.run_batch()
    (mail,) = await door.insert(1)
    ids = [*(text_of(id) for id in dead[:2]), f"outbox_{mail}", "outbox_999999", "nonsense"]
    form = {"verb": "requeue", "id": ids, "next": "/messages?q=status%3Adead"}

    assert "/messages/act" not in forms_of(await viewer.read("/messages"))
    assert (await viewer.send("/messages/act", form)).status_code == 403
    assert await jobs.states(dead) == ["ERROR"] * 3

    assert "/messages/act" in forms_of(await operator.read("/messages"))
    told = await operator.done("/messages/act", **form)
    states = "ERROR or CANCELLED or failed or cancelled or expired"
    assert told == f"2 requeued. 3 could not be: this needs one that is {states}."
    assert await jobs.states(dead) == ["PENDING", "PENDING", "ERROR"]
    entries = [entry for entry in await door.audit() if entry["action"] == "messages.requeue"]
    assert [(entry["who"], entry["outcome"]) for entry in entries] == [
        ("user:viewer", "refused"),
        ("user:operator", "done"),
    ]
    assert entries[1]["detail"] == {"done": 2, "ids": ids}


# ── one message ──────────────────────────────────────────────────────────────────────────────────


async def test_a_webhook_tells_its_story_and_keeps_its_secrets(
    jobs: JobBench, operator: Visitor, sink: HttpSink
) -> None:
    secrets = CreateCredentials(
        bearer_token="canary-bearer",
        signing_secret="canary-signing-secret-0123456789",
        allowed_targets=(sink.url,),
    )
    issued = await jobs.homing.credentials.create(secrets)
    (id,) = await jobs.create(
        f"{sink.url}/broken?token=canary-query",
        type="order.<b>created</b>",
        credentials_id=issued.row["id"],
        headers={"X-Api-Key": "canary-header"},
        metadata={"tenantId": "<acme>"},
        payload='{"id":12345678901234567890,"note":"<img src=x>","amount":1.50}',
    )
    await jobs.run_batch()
    page = await operator.read(f"/messages/{text_of(id)}")
    assert "canary" not in page
    assert "<b>created" not in page
    assert "order.&lt;b&gt;created&lt;/b&gt;" in page
    assert "http_500" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page, "the answer, as text"
    assert "&lt;acme&gt;" in page
    for exact in ("12345678901234567890", "1.50", "&lt;img src=x&gt;"):
        assert exact in page.partition('id="payload-tree"')[2]
    assert 'id="waits"' in page
    assert 'data-copy="curl"' in page
    assert forms_of(page) >= {f"/messages/{text_of(id)}/cancel", f"/messages/{text_of(id)}/send_now"}


async def test_a_payload_with_half_a_pair_of_surrogates_is_shown(
    jobs: JobBench, operator: Visitor, sink: HttpSink
) -> None:
    (id,) = await jobs.create(f"{sink.url}/gone", payload='{"a":"\\ud800","\\udc00<b>":1}')
    page = (await operator.read(f"/messages/{text_of(id)}")).partition('id="payload-tree"')[2]
    assert "&#34;\\ud800&#34;" in page
    assert '<span class="key">&#34;\\udc00&lt;b&gt;&#34;</span>' in page


async def test_a_message_is_requeued_and_cancelled_by_a_button(
    door: Door, jobs: JobBench, operator: Visitor, viewer: Visitor, sink: HttpSink
) -> None:
    (id,) = await jobs.create(f"{sink.url}/gone")
    await jobs.run_batch()
    path = f"/messages/{text_of(id)}"
    assert forms_of(await viewer.read(path)) == set()
    assert (await viewer.send(f"{path}/requeue", {})).status_code == 403
    assert await operator.done(f"{path}/requeue") == f"{text_of(id)} is requeued."
    assert await operator.done(f"{path}/cancel") == f"{text_of(id)} is cancelled."
    assert await jobs.states([id]) == ["CANCELLED"]
    again = await operator.send(f"{path}/cancel", {})
    assert again.status_code == 409
    for wrong, status in (
        (f"{path}/explode", 400),
        ("/messages/outbox_7777/requeue", 409),
        ("/messages/x/requeue", 404),
    ):
        assert (await operator.send(wrong, {})).status_code == status, wrong
    told = [(entry["action"], entry["object"], entry["outcome"]) for entry in await door.audit()]
    for entry in (("messages.requeue", text_of(id), "refused"), ("messages.requeue", text_of(id), "done")):
        assert entry in told


async def test_a_mail_is_shown_but_can_do_nothing(door: Door, operator: Visitor) -> None:
    (id,) = await door.insert(
        1, subject=HOSTILE, html_body=f"<h1>Hello</h1>{HOSTILE}", text_body="Plain & simple"
    )
    page = await operator.read(f"/messages/outbox_{id}")
    assert f'src="/messages/outbox_{id}/mail.html"' in page
    assert 'sandbox="allow-popups allow-popups-to-escape-sandbox"' in page
    assert "Plain &amp; simple" in page
    frame = await operator.client.get(f"/messages/outbox_{id}/mail.html")
    assert "<h1>Hello</h1>" in frame.text
    assert "sandbox" in frame.headers["content-security-policy"]
    assert "script-src" not in frame.headers["content-security-policy"]
    text = await operator.client.get(f"/messages/outbox_{id}/mail.txt")
    assert text.headers["content-type"].startswith("text/plain")
    assert text.text.strip() == "Plain & simple"
    source = await operator.client.get(f"/messages/outbox_{id}/mail.eml")
    assert source.headers["content-disposition"] == f"attachment; filename*=UTF-8''outbox_{id}.eml"
    assert "MIME-Version: 1.0" in source.text
    for path in ("mail.html", "mail.txt", "mail.eml"):
        assert (await operator.client.get(f"/messages/outbox_99999/{path}")).status_code == 404

    key = await door.key("desk:read", "jobs:read")
    assert ids_of((await door.ask("GET", "/messages", key)).text) == []
    assert (await door.ask("GET", f"/messages/outbox_{id}", key)).status_code == 403


async def test_older_messages_come_page_by_page(
    door: Door, jobs: JobBench, viewer: Visitor, sink: HttpSink
) -> None:
    numbers = sorted(await door.insert(LISTED + 5), reverse=True)
    first = await viewer.read("/messages")
    assert ids_of(first) == [f"outbox_{id}" for id in numbers[:LISTED]]
    older = re.search(r'href="(/messages\?cursor=[^"]+)" id="older"', first)
    assert older is not None
    second = await viewer.read(unescape(older[1]))
    assert ids_of(second) == [f"outbox_{id}" for id in numbers[LISTED:]]
    assert 'id="newest"' in second
    assert 'id="older"' not in second
    assert "data-topic" not in second, "what is older does not move"
    assert "belongs to another query" in await viewer.read(unescape(older[1]) + "&q=status%3Adead", 400)

    # What is there but is no URL breaks no page, and what is not there is not found.
    (id,) = await jobs.create(f"{sink.url}/ok")
    await jobs.change(id, target_url="http://[odd/hook")
    for path in ("/", "/messages", f"/messages/{text_of(id)}"):
        await viewer.read(path)
    for wrong in (
        "0000000000001",
        "nonsense",
        "<script>",
        "outbox_" + "9" * 30,
        "outbox_-1",
        "%00",
        "email_7",
    ):
        await viewer.read(f"/messages/{wrong}", 404)
    moved = await viewer.client.get(f"/jobs/{text_of(id)}")
    assert (moved.status_code, moved.headers["location"]) == (308, f"/messages/{text_of(id)}")
