"""A form that is refused comes back as it was written, with the mistake beside its field."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Struct
from tests.http.door import Door, url_with_tables
from tests.http.pages.visitor import Visitor, door_with_people, visiting

from homing.http.pages.forms import Form, Refused
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.tsid import text_of

SEAT = {"termId": "20269", "campusCode": "NB", "indexNumber": "09214"}
TARGET = "http://127.0.0.1:9"
CAUSE = "dead:mail_outbox:timeout"
PASSWORD = "canary-password-0123"


#: Nothing that is refused changes anything, so all tests share what it is asked of.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    url = url_with_tables(tmp_path_factory.mktemp("refused"))
    async with door_with_people(url, jobs_broker_url="memory://refused") as door:
        yield door


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "admin") as visitor:
        yield visitor


class Field(Struct):
    """As a person finds it: what stands in it, and whether it is marked and read with the mistake."""

    values: list[str]
    is_marked: bool = False


class _Reader(HTMLParser):
    """The fields of the form that goes to one place, and that has one thing in it."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self.action, self.forms, self._is_inside = action, list[dict[str, Field]](), False
        self._select, self._text, self.mistake = "", "", ""
        self._in_mistake = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_inside = given.get("action") == self.action
            self.forms += [{}] if self._is_inside else []
        self._in_mistake = self._in_mistake or given.get("id") == "mistake"
        if not self._is_inside:
            return
        if tag in {"input", "select", "textarea"}:
            self._field(tag, given)
        elif tag == "option" and "selected" in given:
            self.forms[-1][self._select].values.append(given.get("value", "\x00text"))

    def _field(self, tag: str, given: Mapping[str, str]) -> None:
        field = self.forms[-1].setdefault(given["name"], Field([]))
        is_off = given.get("type") == "checkbox" and "checked" not in given
        if tag == "input" and not is_off:
            field.values.append(given.get("value", ""))
        self._select = given["name"]
        if given.get("aria-invalid") == "true":
            assert given["aria-describedby"] == "mistake"
            assert "autofocus" in given
            field.is_marked = True

    def handle_endtag(self, tag: str) -> None:
        self._in_mistake = self._in_mistake and tag != "p"

    def handle_data(self, data: str) -> None:
        if self._in_mistake:
            self.mistake += data
        chosen = self.forms[-1].get(self._select) if self.forms and self._is_inside else None
        if chosen is not None and chosen.values and chosen.values[-1] == "\x00text":
            chosen.values[-1] = data


def require_kept(
    page: str, action: str, field: str, why: str, sent: Mapping[str, str | Sequence[str]], **which: str
) -> dict[str, Field]:
    """All that was sent stands where it stood; one field is marked, and told what is wrong."""
    reader = _Reader(action)
    reader.feed(page)
    (form,) = [
        one for one in reader.forms if all(one[name].values == [value] for name, value in which.items())
    ]
    for name, value in sent.items():
        assert form[name].values == ([value] if isinstance(value, str) else list(value)), name
    marked = [name for one in reader.forms for name, found in one.items() if found.is_marked]
    assert marked == [field]
    assert why in reader.mistake
    assert page.count('id="mistake"') == 1
    assert why in re.findall(r'id="refused" role="alert">(.*?)</p>', page)[0]
    return form


async def test_a_target_to_be_opened(door: Door, admin: Visitor) -> None:
    sent = {"target": "ftp://example.org", "credentials": ""}
    page = await admin.read("/targets/one", 422, **sent)
    require_kept(page, "/targets/one", "target", "write a URL", sent)
    both = {"target": "ftp://example.org", "credentials": "nonsense"}
    page = await admin.read("/targets/one", 422, **both)
    require_kept(page, "/targets/one", "target", "write a URL", both)
    sent = {"target": "https://example.org", "credentials": "nonsense"}
    page = await admin.read("/targets/one", 422, **sent)
    require_kept(page, "/targets/one", "credentials", "there are no such credentials", sent)
    assert "credentialsId" not in page
    assert "POST" not in page, "nobody writes requests here"


async def test_limits_pauses_and_tests_of_a_target(door: Door, admin: Visitor) -> None:
    named = {"target": TARGET, "credentials": ""}
    sent = {**named, "max_concurrency": "20000", "rate_per_second": "7"}
    page = await admin.refused("/targets/limits", **sent)
    require_kept(page, "/targets/limits", "max_concurrency", "At once: write a number", sent)
    assert "null" not in page
    sent = {**named, "max_concurrency": "3", "rate_per_second": "<b>"}
    page = (await admin.send("/targets/limits", sent)).text
    assert "<b>" not in page
    require_kept(page, "/targets/limits", "rate_per_second", "write a number", sent)
    sent = {**named, "span": "4h", "reason": "x" * 501}
    page = await admin.refused("/targets/pause", **sent)
    require_kept(page, "/targets/pause", "reason", "500", sent)
    sent = {**named, "span": "", "reason": "x" * 501}
    page = await admin.refused("/targets/pause", **sent)
    require_kept(page, "/targets/pause", "reason", "500", sent)
    sent = {**named, "url": "http://127.0.0.1:1/elsewhere"}
    page = await admin.refused("/targets/test", **sent)
    require_kept(page, "/targets/test", "url", "is not one of", sent)
    assert await door.homing.jobs.run("targets", after="", limit=10) == []


async def test_new_credentials_but_never_their_token(door: Door, admin: Visitor) -> None:
    before = len(await door.homing.credentials.page())
    sent = {"name": "shop", "bearer": "none", "key": ()}
    page = await admin.refused("/credentials/create", **sent)
    form = require_kept(page, "/credentials/create", "bearer", "need a bearer token", sent)
    assert form["secret"].values == []
    sent = {"name": "x" * 101, "bearer": "given", "secret": "yes", "key": "yes"}
    page = await admin.refused("/credentials/create", **sent, bearer_token="canary-token")
    require_kept(page, "/credentials/create", "name", "1 to 100", sent)
    assert "canary" not in page
    page = await admin.refused(
        "/credentials/create", **sent | {"name": "shop"}, bearer_token="canary tok\u00e9n"
    )
    require_kept(page, "/credentials/create", "bearer_token", "visible ASCII", sent | {"name": "shop"})
    assert "bearerToken" not in page
    page = await admin.refused("/credentials/create", **sent | {"name": " "}, bearer_token="canary-token")
    require_kept(page, "/credentials/create", "name", "write a name", sent | {"name": " "})
    assert "canary" not in page
    assert len(await door.homing.credentials.page()) == before


async def test_credentials_that_are_rotated_or_deleted(door: Door, admin: Visitor) -> None:
    order = CreateCredentials(name="shop", generate=("signingKey",))
    id = text_of((await door.homing.credentials.create(order)).row["id"])
    before = len(await door.homing.credentials.page())
    sent = {"id": id, "grace": "for ever", "part": "key"}
    page = await admin.refused("/credentials/rotate", **sent)
    require_kept(page, "/credentials/rotate", "grace", "choose one of", sent | {"grace": ()})
    page = await admin.refused("/credentials/delete", id=id)
    require_kept(page, "/credentials/delete", "sure", "tick that you are sure", {"id": id, "sure": ()})
    assert len(await door.homing.credentials.page()) == before


async def test_a_subscription_to_be_ended(door: Door, admin: Visitor) -> None:
    body = {**SEAT, "email": "ann@example.org"}
    made = await door.ask("POST", "/api/notifications/subscriptions", await door.key(), json=body)
    assert made.is_success, made.text
    page = await admin.refused("/subscriptions/end", id="1")
    require_kept(page, "/subscriptions/end", "sure", "tick that you are sure", {"id": "1", "sure": ()})


async def test_a_key_and_a_user_but_never_a_password(door: Door, admin: Visitor) -> None:
    sent: dict[str, Any] = {"name": "shop", "life": "7 days", "rate": "0", "scope": ("jobs:read", "ops")}
    page = await admin.refused("/access/keys", **sent)
    require_kept(page, "/access/keys", "rate", "0.01 to", sent)
    sent |= {"rate": "5", "scope": ()}
    page = await admin.refused("/access/keys", **sent)
    require_kept(page, "/access/keys", "scope", "needs a scope", sent)
    user = {"name": "operator", "role": "admin"}
    page = await admin.refused("/access/users", **user, password=PASSWORD)
    require_kept(page, "/access/users", "name", "there is a user operator already", user)
    assert PASSWORD not in page
    page = await admin.refused("/access/users", **user | {"name": "cy"}, password="canary")
    require_kept(page, "/access/users", "password", "12 to", user | {"name": "cy"})
    assert "canary" not in page
    page = await admin.refused("/access/users/role", name="viewer", role="king")
    require_kept(page, "/access/users/role", "role", "a role is one of", {}, name="viewer")
    assert len(await door.homing.access.users.list()) == 3


async def test_a_silence_of_an_alert(door: Door, admin: Visitor) -> None:
    await door.insert()
    await door.sql("UPDATE mail_outbox SET status = 'failed', last_error = 'timeout: x' RETURNING id")
    await door.homing.alerts.look()
    page = await admin.refused("/alerts/silence", cause=CAUSE, span="a while")
    require_kept(page, "/alerts/silence", "span", "choose one of", {"cause": CAUSE, "span": ()})
    assert await door.homing.alerts.silenced() == []


async def test_a_pause_of_one_lane_among_others(door: Door, admin: Visitor) -> None:
    which = {"scope": "lane", "name": "email_log"}
    page = await admin.refused("/workers/pause", **which, reason="x" * 501)
    sent = {**which, "reason": "x" * 501}
    require_kept(page, "/workers/pause", "reason", "at most 500", sent, **which)
    assert page.count("x" * 501) == 1, "in the form of this lane alone"
    assert await door.homing.fleet.pauses() == []


ROUTER = {
    "queue_a_0": "orders", "queue_b_0": "Orders", "queue_c_0": "3", "queue_a_4": "others", "queue_c_4": "2",
    "pool_a_0": "P", "pool_b_0": "40", "pool_c_0": "600", "connections": "2",
}  # fmt: skip


async def test_the_configuration_of_the_router(door: Door, admin: Visitor) -> None:
    closer = {"queue_a_1": "others", "queue_c_1": "2"}
    for wrong, field, why in (
        ({"pool_b_0": "many"}, "pool_b_0", "Pool 1, at once: write a number"),
        ({"pool_b_0": ""}, "pool_b_0", "Pool 1, at once: must be at least 1"),
        ({"pool_c_0": "0"}, "pool_c_0", "Pool 1, a minute: must be at least 1"),
        ({"queue_b_0": "x" * 256}, "queue_b_0", "Queue 1, called: must have at most 255"),
        ({"queue_c_4": "99"}, "queue_c_1", "Queue 2, connections: must be at most 50"),
        ({"queue_a_4": "has a space"}, "queue_a_1", "Queue 2, name or URL: must have no spaces"),
        ({"queue_a_4": "orders"}, "queue_a_0", "orders is given 2 times"),
        ({"connections": "99"}, "connections", "must be at most 50"),
    ):
        page = await admin.refused("/router", version="0", **ROUTER | wrong)
        sent = {name.replace("_4", "_1"): text for name, text in (ROUTER | wrong).items()}
        require_lines_kept(page, field, why, closer | sent)
    assert (await door.homing.router_configs.current())[1] == 0


def require_lines_kept(page: str, field: str, why: str, sent: Mapping[str, str]) -> None:
    """There are two forms, one of lines and one of JSON."""
    reader = _Reader("/router")
    reader.feed(page)
    lines, as_json = reader.forms
    assert {name: lines[name].values for name in sent} == {name: [text] for name, text in sent.items()}
    assert [name for name, found in lines.items() if found.is_marked] == [field]
    assert not as_json["config"].is_marked
    assert why in reader.mistake


async def test_the_same_as_json(door: Door, admin: Visitor) -> None:
    for text, why in (("{canary", "JSON"), ('{"queues": [], "processingPools": [], "canary": 1}', "canary")):
        page = await admin.refused("/router", version="0", config=text)
        assert f">{text}</textarea>" in unescape(page)
        reader = _Reader("/router")
        reader.feed(page)
        assert reader.forms[1]["config"].is_marked
        assert why in reader.mistake
        (queue,) = (await door.homing.router_configs.current())[0].queues
        assert reader.forms[0]["queue_a_0"].values == [queue.queue_uri], "what holds is not lost beside it"


async def test_what_is_looked_for(admin: Visitor) -> None:
    sent = {"who": "user:ann", "action": "mail.*", "outcome": "failed", "object": "<b>", "since": "soon"}
    page = await admin.read("/audit", 422, **sent)
    assert "<b>" not in page
    require_kept(page, "/audit", "since", "is no time", sent)
    sent |= {"since": "2h", "who": "x" * 501}
    require_kept(await admin.read("/audit", 422, **sent), "/audit", "who", "at most 500", sent)
    for text, why in (("just words", "write a whole address"), ("@", "")):
        page = await admin.read("/subscriptions", 422, q=text)
        require_kept(page, "/subscriptions", "q", why, {"q": text})


async def test_the_line_of_a_bulk_run(door: Door, admin: Visitor) -> None:
    for line, why in (("statsu:dead", "did you mean status?"), ("", "an empty line"), ('to:<b>:"', "")):
        page = await admin.read("/bulk/new", 422, q=line, verb="cancel")
        assert "<b>" not in page
        require_kept(page, "/bulk/new", "q", why, {"q": line, "verb": "cancel"})
        page = await admin.refused("/bulk", q=line, verb="cancel")
        require_kept(page, "/bulk/new", "q", why, {"q": line, "verb": "cancel"})
    assert await door.homing.bulk.runs.page() == []


async def test_what_is_sent_to_a_thing_that_is_gone_is_told_as_that(admin: Visitor) -> None:
    for action, form, status in (
        ("/credentials/delete", {"id": "0ARYZVZXW372S"}, 404),
        ("/credentials/rotate", {"id": "nonsense"}, 404),
        ("/subscriptions/end", {"id": "7777"}, 404),
        ("/targets/limits", {"target": "nonsense"}, 400),
    ):
        assert (await admin.send(action, form)).status_code == status, action


async def test_a_page_that_answers_a_form_leads_on_to_one_that_can_be_asked_for(admin: Visitor) -> None:
    page = await admin.refused("/access/keys", name="")
    assert 'name="next" value="/access"' in page
    assert '<a href="/access" aria-current="page">' in page


async def test_a_secret_is_forgotten_where_it_is_sent() -> None:
    form = Form("/x", {"theSecret": "secret"}, about="name", secrets=("secret",))
    sent = form.sent({"name": "n", "secret": "canary"}, Refused("no", "theSecret"))
    assert "canary" not in repr(sent)
    fields = sent.of("/x")
    assert (fields.text("name", "otherwise"), fields.text("secret"), fields.text("left_out", "x")) == (
        "n",
        "",
        "",
    )
    assert fields.marks("secret")
    assert not fields.marks("name")
    assert sent.of("/y").text("name", 7) == "7"
    assert sent.of("/x", name="another").text("name", "other") == "other"
    assert (
        form.sent({}, Refused("<b>")).of("/x").mistake("name")
        == '<p class="error-text" id="mistake">&lt;b&gt;</p>'
    )
