"""The links in mails, as people, mailbox providers and programs that scan mail use them."""

from __future__ import annotations

import asyncio
import email
import email.policy
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.lanes.open_events.desk import SECTION, Desk, called_desk, served_desk

from homing.senders.mail import MailMessage
from homing.senders.mime import assemble

ANN = "ann@example.org"
TABLES = ("subscriptions", "subscription_events", "open_event_notifications")


@pytest.fixture
async def desk(seats_url: str) -> AsyncIterator[Desk]:
    async with called_desk(seats_url) as desk:
        yield desk


@pytest.fixture
async def served(seats_url: str) -> AsyncIterator[Desk]:
    """For clients that are not ours."""
    async with served_desk(seats_url) as desk:
        yield desk


@pytest.fixture
async def sqlite_desk(sqlite_url: str) -> AsyncIterator[Desk]:
    """For what is the same on every database."""
    async with called_desk(sqlite_url) as desk:
        yield desk


async def _everything(desk: Desk) -> Any:
    return [await desk.sql(f"SELECT * FROM {table} ORDER BY 1") for table in TABLES]


async def _status(desk: Desk, id: int) -> str:
    return str((await desk.row(id))["status"])


def _unsubscribe(desk: Desk, id: int, contact: str = ANN) -> str:
    return desk.links.unsubscribe_url(id, contact)


# ── one click, as Gmail does it ──────────────────────────────────────────────────────────────────


async def _raw(address: str, request: bytes) -> tuple[int, bytes]:
    """Write bytes, read bytes: no client that adds anything."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ", 2)[1]), answer


def _mail(desk: Desk, id: int) -> Any:
    message = MailMessage(
        message_id="<1@seats.example>", date=datetime.now(UTC), sender="seats@example.com",
        recipients=(ANN,), subject="A seat", text="Open.",
        # As the proxy with TLS that stands in front is called.
        unsubscribe_url=_unsubscribe(desk, id).replace("http:", "https:"),
    )  # fmt: skip
    return email.message_from_bytes(assemble(message), policy=email.policy.default)


MULTIPART = (
    b'--b0und\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--b0und--\r\n'
)


@pytest.mark.parametrize("form", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=b0und"])
async def test_one_click_works_from_the_headers_of_the_mail_alone(served: Desk, form: str) -> None:
    """RFC 8058: a POST to one header's URL with the other header as its body, and nothing else.

    No cookie, no referer, no question, no redirect.
    """
    id = await served.subscriber(ANN)
    queued = await served.notification(id)
    mail = _mail(served, id)
    url = urlsplit(re.findall(r"<([^>]+)>", mail["List-Unsubscribe"])[0])
    posted = str(mail["List-Unsubscribe-Post"]).encode()
    assert posted == b"List-Unsubscribe=One-Click"
    body = MULTIPART if form.startswith("multipart") else posted
    head = (
        f"POST {url.path}?{url.query} HTTP/1.1\r\nHost: seats.example\r\nContent-Type: {form}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    status, answer = await _raw(served.address, head.encode() + body)
    assert status == 200
    assert b"set-cookie" not in answer.lower()
    assert await _status(served, id) == "unsubscribed"
    rows = await served.sql(
        "SELECT fanout_status FROM open_event_notifications WHERE notification_id = :id", id=queued
    )
    assert rows[0]["fanout_status"] == "skipped"
    assert ("unsubscribed", {"from": "active", "via": "one-click"}) in await served.events(id)
    before = await _everything(served)
    assert (await _raw(served.address, head.encode() + body))[0] == 200, "once more is fine"
    assert await _everything(served) == before


async def test_a_get_shows_a_page_with_a_button_and_changes_nothing(desk: Desk) -> None:
    """Programs that scan mail open every link in it, with whatever they like in the headers."""
    id = await desk.subscriber(ANN)
    await desk.notification(id)
    await desk.subscribe("ben@example.org")
    before = await _everything(desk)
    links = [_unsubscribe(desk, id), desk.links.manage_url(id, ANN), desk.mails[0].url]
    for link in links:
        for _ in range(2):
            response = await desk.client.get(link, headers={"purpose": "prefetch"})
            assert response.status_code == 200
            assert "<button" in response.text
    assert await _everything(desk) == before


async def test_the_button_of_the_page_unsubscribes(desk: Desk) -> None:
    id = await desk.subscriber(ANN)
    form = _Form(await desk.client.get(_unsubscribe(desk, id)))
    assert form.method == "post"
    # What a browser says of a form on a page that allows no referrer.
    headers = {"origin": "null", "sec-fetch-site": "same-origin"}
    response = await desk.client.post(form.action, data=form.fields, headers=headers)
    assert response.status_code == 200
    assert "a***@example.org" in response.text
    assert ANN not in response.text
    assert await desk.events(id) == [("unsubscribed", {"from": "active", "via": "link"})]
    again = await desk.client.get(_unsubscribe(desk, id))
    assert again.text == response.text, "nobody is asked for what is done"


async def test_a_token_that_another_program_wrote_into_the_row_works_too(desk: Desk) -> None:
    token = "bfF-foreign_token"
    id = await desk.subscriber(ANN, unsubscribe_token=token)
    await desk.subscriber("ben@example.org", unsubscribe_token="")
    other = await desk.subscriber("cy@example.org", unsubscribe_token=None)
    assert (await desk.client.get(f"/unsubscribe?token={token}")).status_code == 200
    for wrong in (f"{token}x", token[:-1], token.lower(), "", "%00", "%"):
        assert (await desk.client.post(f"/unsubscribe?token={wrong}")).status_code == 404
    assert (await desk.client.get(f"/subscriptions/{id}?token={token}")).status_code == 404
    assert (await desk.client.get(f"/confirm?token={token}")).status_code == 404
    answer = await desk.client.post(f"/unsubscribe?token={token}", data={"List-Unsubscribe": "One-Click"})
    assert answer.status_code == 200
    assert [await _status(desk, n) for n in (id, other)] == ["unsubscribed", "active"]


# ── links that are no good ───────────────────────────────────────────────────────────────────────


async def test_whatever_is_wrong_with_a_link_the_same_page_says_so(desk: Desk) -> None:
    id, other = await desk.subscriber(ANN), await desk.subscriber("ben@example.org")
    good = desk.token(desk.links.manage_url(id, ANN))
    moved = await desk.subscriber("old@example.org")
    stale = desk.token(desk.links.manage_url(moved, "old@example.org"))
    await desk.sql(
        "UPDATE subscriptions SET contact_value = 'new@example.org' WHERE subscription_id = :id", id=moved
    )
    before = await _everything(desk)
    wrong = [
        f"/subscriptions/{id}", f"/subscriptions/{id}?token=", f"/subscriptions/{id}?token={good}x",
        f"/subscriptions/{id}?token={'A' * 5000}", f"/subscriptions/{id}?token=%F0%9F%90%A6%00",
        f"/subscriptions/{other}?token={good}", f"/subscriptions/99?token={good}",
        f"/subscriptions/{2**80}?token={good}",
        f"/subscriptions/{moved}?token={stale}",
        f"/subscriptions/{id}?token={desk.token(_unsubscribe(desk, id))}",
        f"/unsubscribe?token={good}", f"/confirm?token={good}", "/unsubscribe", "/confirm",
    ]  # fmt: skip
    answers = [await desk.client.get(path) for path in wrong]
    answers += [await desk.client.post(path, data={"do": "unsubscribe"}) for path in wrong]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.text for answer in answers}) == 1
    assert "This link does not work" in answers[0].text
    assert await _everything(desk) == before


async def _confirmed(desk: Desk) -> tuple[int, str]:
    """A subscription, and where the page leads that tells of its confirmation."""
    await desk.subscribe(ANN)
    ((id,),) = [row.values() for row in await desk.sql("SELECT subscription_id FROM subscriptions")]
    told = await desk.client.post(desk.mails[0].url)
    onward = re.search(rf"/subscriptions/{id}\?token=[\w-]+", told.text)
    assert onward is not None
    return id, onward[0]


async def test_what_is_behind_a_link_to_confirm_ends_with_it(desk: Desk) -> None:
    """Whoever once saw that link must not hold the subscription for good."""
    id, manage = await _confirmed(desk)
    link = desk.mails[0].url
    paused = await desk.client.post(manage, data={"do": "pause"})
    assert (paused.status_code, await _status(desk, id)) == (200, "paused")
    assert _Form(await desk.client.get(link), "save").fields["token"] == desk.token(manage)
    desk.clock.advance(hours=24)
    before = await _everything(desk)
    for path in (link, manage):
        for answer in (await desk.client.get(path), await desk.client.post(path, data={"do": "resume"})):
            assert answer.status_code == 410
    assert await _everything(desk) == before
    assert (await desk.client.get(desk.links.manage_url(id, ANN))).status_code == 200, "that of a mail lasts"


async def test_it_ends_also_when_the_subscription_ends(desk: Desk) -> None:
    id, manage = await _confirmed(desk)
    assert (await desk.client.get(manage)).status_code == 200
    await desk.client.post(_unsubscribe(desk, id))
    assert (await desk.client.get(manage)).status_code == 404


async def test_a_confirmation_expires(sqlite_desk: Desk) -> None:
    await sqlite_desk.subscribe(ANN)
    link = sqlite_desk.mails[0].url
    sqlite_desk.clock.advance(hours=24)
    for response in (await sqlite_desk.client.get(link), await sqlite_desk.client.post(link)):
        assert response.status_code == 410
        assert "This link has expired" in response.text
    assert await _status(sqlite_desk, 1) == "pending"


async def test_a_problem_is_told_in_the_language_of_the_browser(sqlite_desk: Desk) -> None:
    answer = await sqlite_desk.client.get(
        "/unsubscribe", headers={"accept-language": "zh-TW,zh;q=0.9,en;q=0.8"}
    )
    assert 'lang="zh-CN"' in answer.text
    odd = await sqlite_desk.client.get("/unsubscribe", headers={"accept-language": "../../etc;;,*" * 50})
    assert 'lang="en-US"' in odd.text


# ── confirm ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_click_on_the_button_confirms(desk: Desk) -> None:
    await desk.subscribe(ANN)
    form = _Form(await desk.client.get(desk.mails[0].url))
    for _ in range(2):
        response = await desk.client.post(form.action, data=form.fields)
        assert response.status_code == 200
        assert "Your alerts are on" in response.text
    assert await _status(desk, 1) == "active"
    assert [type for type, _ in await desk.events(1)].count("verified") == 1
    manage = re.search(r'href="([^"]+/subscriptions/1\?token=[^"]+)"', response.text)
    assert manage is not None
    assert (await desk.client.get(manage[1])).status_code == 200


async def test_one_mail_confirms_all_that_waits_for_its_address_and_is_ticked(desk: Desk) -> None:
    for index in ("1", "2", "3"):
        await desk.subscribe(ANN, indexNumber=index)
    await desk.subscribe("ben@example.org")
    page = await desk.client.get(desk.mails[0].url)
    assert re.findall(r'name="id" value="(\d+)" checked', page.text) == ["1", "2", "3"]
    token = desk.token(desk.mails[0].url)
    answer = await desk.client.post("/confirm", data={"token": token, "id": ["1", "3", "4", "x", "9" * 30]})
    assert answer.status_code == 200
    states = [await _status(desk, id) for id in (1, 2, 3, 4)]
    assert states == ["active", "pending", "active", "pending"], "2 was not ticked, 4 is somebody else's"


async def test_a_confirmation_does_not_undo_an_unsubscription(desk: Desk) -> None:
    await desk.subscribe(ANN)
    await desk.client.post(_unsubscribe(desk, 1))
    for response in (await desk.client.get(desk.mails[0].url), await desk.client.post(desk.mails[0].url)):
        assert response.status_code == 404
    assert await _status(desk, 1) == "unsubscribed"


async def test_a_link_from_before_an_unsubscription_confirms_nothing_afterwards(desk: Desk) -> None:
    """Somebody else may have asked again: only the mail about that confirms it."""
    await desk.subscribe(ANN)
    for times in (1, 2):
        await desk.client.post(_unsubscribe(desk, 1))
        await desk.subscribe(ANN)
        assert len(desk.mails) == times + 1, "a mail whose link is void is not waited for"
        for mail in desk.mails[:-1]:
            assert (await desk.client.get(mail.url)).status_code == 404
            assert (await desk.client.post(mail.url)).status_code == 404
    assert await _status(desk, 1) == "pending"
    assert "Your alerts are on" in (await desk.client.post(desk.mails[-1].url)).text
    assert await _status(desk, 1) == "active"


@pytest.mark.parametrize(("status", "words"), [("suppressed", "Stopped"), ("paused", "Paused")])
async def test_who_confirms_what_is_not_to_be_confirmed_sees_what_it_is(
    desk: Desk, status: str, words: str
) -> None:
    id = await desk.subscriber(ANN, status=status)
    link = desk.links.confirm_url(id, ANN, now=desk.clock())
    for response in (await desk.client.get(link), await desk.client.post(link)):
        assert response.status_code == 200
        assert words in response.text
        assert "Your alerts are on" not in response.text
    assert await _status(desk, id) == status
    # What else waits for the address is confirmed by it all the same.
    other = await desk.subscriber(ANN, status="pending", index_number="54321")
    form = _Form(await desk.client.get(link))
    answer = await desk.client.post(form.action, data=form.fields)
    assert "Your alerts are on" in answer.text
    assert "54321" in answer.text
    assert "12345" not in answer.text
    assert [await _status(desk, one) for one in (id, other)] == [status, "active"]


# ── manage ───────────────────────────────────────────────────────────────────────────────────────


async def _manage(desk: Desk, id: int, do: str, **fields: str) -> httpx.Response:
    form = {"token": desk.token(desk.links.manage_url(id, ANN)), "do": do, **fields}
    return await desk.client.post(f"/subscriptions/{id}", data=form)


async def test_preferences_are_changed_by_the_form(desk: Desk) -> None:
    id = await desk.subscriber(ANN, metadata='{"source":"app"}')
    fields = {
        "notifyOn": "open", "windowStart": "22:00", "windowEnd": "06:30", "timeZone": "America/New_York",
        "snoozeUntil": "2030-07-01T08:00", "maxNotifications": "12", "locale": "zh-CN",
    }  # fmt: skip
    response = await _manage(desk, id, "save", **fields)
    assert response.status_code == 200
    row = await desk.row(id)
    assert json.loads(row["metadata"]) == {
        "source": "app",
        "preferences": {
            "notifyOn": ["open"], "maxNotifications": 12, "snoozeUntil": "2030-07-01T12:00:00.000Z",
            "deliveryWindow": {"startMinutes": 1320, "endMinutes": 390, "timeZone": "America/New_York"},
        },
    }  # fmt: skip
    assert row["locale"] == "zh-CN"
    assert 'lang="zh-CN"' in response.text
    shown = _Form(await desk.client.get(desk.links.manage_url(id, ANN)), "save").fields
    assert {name: shown[name] for name in fields} == fields, "and the form shows what was saved"
    await _manage(desk, id, "save", **dict.fromkeys(fields, ""))
    assert json.loads((await desk.row(id))["metadata"]) == {"source": "app", "preferences": {"notifyOn": []}}


async def test_a_snooze_without_a_window_keeps_its_time_zone(sqlite_desk: Desk) -> None:
    id = await sqlite_desk.subscriber(ANN)
    fields = {"notifyOn": "open", "timeZone": "Asia/Tokyo", "snoozeUntil": "2030-07-01T08:00"}
    for _ in range(2):
        shown = _Form(await _manage(sqlite_desk, id, "save", **fields), "save").fields
        assert {name: shown[name] for name in fields} == fields
        fields = {name: shown[name] for name in fields}
    wishes = json.loads((await sqlite_desk.row(id))["metadata"])["preferences"]
    assert wishes["snoozeUntil"] == "2030-06-30T23:00:00.000Z"


async def test_mistakes_are_shown_with_what_was_typed_and_nothing_is_saved(sqlite_desk: Desk) -> None:
    id = await sqlite_desk.subscriber(ANN)
    before = await _everything(sqlite_desk)
    wrong = {
        "windowStart": "25:00", "windowEnd": "", "timeZone": "Mars/Olympus", "snoozeUntil": "tomorrow",
        "maxNotifications": "1001", "locale": "xx",
    }  # fmt: skip
    response = await _manage(sqlite_desk, id, "save", **wrong)
    assert response.status_code == 200
    for words in (
        "Give both times",
        "Choose a time zone",
        "Give a date",
        "Give a whole number",
        "a language",
    ):
        assert words in response.text
    assert 'value="Mars/Olympus"' in response.text
    for field, odd in (("snoozeUntil", "9999-01-01T00:00"), ("maxNotifications", "²"), ("timeZone", "\x00")):
        assert "mistake" in (await _manage(sqlite_desk, id, "save", **{field: odd})).text
    assert await _everything(sqlite_desk) == before


async def test_pause_resume_and_unsubscribe_by_the_buttons(desk: Desk) -> None:
    id = await desk.subscriber(ANN)
    assert "Paused" in (await _manage(desk, id, "pause")).text
    assert await _status(desk, id) == "paused"
    assert "Alerts are on" in (await _manage(desk, id, "resume")).text
    assert await _status(desk, id) == "active"
    assert "You are unsubscribed" in (await _manage(desk, id, "unsubscribe")).text
    assert await _status(desk, id) == "unsubscribed"
    before = await _everything(desk)
    for verb in ("resume", "pause", "save", "nonsense", ""):
        assert (await _manage(desk, id, verb)).status_code == 200
    assert await _everything(desk) == before


# ── the pages themselves ─────────────────────────────────────────────────────────────────────────


async def test_a_page_allows_nothing_but_itself(sqlite_desk: Desk) -> None:
    course = await sqlite_desk.insert(
        "courses", "course_id", title="<script>alert(1)</script>", course_string='"><x'
    )
    await sqlite_desk.insert("sections", "section_id", **SECTION, course_id=course, section_number="'07")
    id = await sqlite_desk.subscriber(ANN)
    for link in (_unsubscribe(sqlite_desk, id), sqlite_desk.links.manage_url(id, ANN), "/unsubscribe"):
        response = await sqlite_desk.client.get(link)
        style = re.search("<style>(.*)</style>", response.text, re.DOTALL)
        assert style is not None
        digest = b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
        policy = response.headers["content-security-policy"]
        assert policy == (
            f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; base-uri 'none'; "
            "frame-ancestors 'none'"
        )
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in response.headers
        assert "<script" not in response.text
        assert not re.search(r"(src|href)=\"(?!http://127)", response.text), "nothing is fetched"


async def test_what_is_no_form_is_no_crash(sqlite_desk: Desk) -> None:
    id = await sqlite_desk.subscriber(ANN)
    link = sqlite_desk.links.manage_url(id, ANN)
    bodies = [
        ("multipart/form-data; boundary=x", b"--x\r\nnonsense"),
        ("multipart/form-data", b"--x\r\n"),
        ("multipart/form-data; boundary=x",
         b'--x\r\nContent-Disposition: form-data; name="do"; filename="f"\r\n\r\nunsubscribe\r\n--x--\r\n'),
        ("application/x-www-form-urlencoded", b"do=unsubscribe&do=save&%FF%FE=%00&=&&&"),
        ("application/json", b"{"),
        ("", b"\xff\xfe"),
    ]  # fmt: skip
    before = await _everything(sqlite_desk)
    for kind, body in bodies:
        response = await sqlite_desk.client.post(link, content=body, headers={"content-type": kind})
        assert response.status_code == 200, (kind, body)
    assert await _everything(sqlite_desk) == before
    large = await sqlite_desk.client.post(link, data={"do": "x" * 70_000})
    assert large.status_code == 413


async def test_the_desk_keeps_its_own_fence(sqlite_desk: Desk) -> None:
    """Only the pages of subscribers are for everybody: they ask for a token."""
    away = {"host": "seats.example"}
    assert (await sqlite_desk.client.get("/api/notifications/subscriptions", headers=away)).status_code == 403
    assert (await sqlite_desk.client.get("/unsubscribe", headers=away)).status_code == 404


class _Form(HTMLParser):
    """The form on a page: what a browser would post when a button is pressed."""

    def __init__(self, response: httpx.Response, button: str | None = None) -> None:
        super().__init__()
        self.action, self.method = "", ""
        self.fields: dict[str, str] = {}
        self._button, self._select = button, ""
        # One form at a time, and the one with the button that is meant.
        forms = re.findall(r"<form.*?</form>", response.text, re.DOTALL)
        wanted = [form for form in forms if button is None or f'value="{button}"' in form]
        self.feed(wanted[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, value = given.get("name") or "", given.get("value") or ""
        if tag == "form":
            self.action, self.method = given.get("action") or "", given.get("method") or ""
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and "selected" in given:
            self.fields[self._select] = value
        elif tag == "input" and (given.get("type") != "checkbox" or "checked" in given):
            self.fields[name] = value
