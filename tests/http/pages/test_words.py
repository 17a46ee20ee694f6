"""What pages say and offer, as somebody needs it who sees them for the first time, perhaps on a phone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest
import pytest_asyncio
from tests.access.desk import PASSWORD
from tests.http.door import Door, url_with_tables
from tests.http.pages.visitor import OWN, Visitor, door_with_people, visiting

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    """One for all, with a dead mail and a job whose target has a page."""
    async with door_with_people(url_with_tables(tmp_path_factory.mktemp("words"))) as door:
        await door.insert(status="failed", last_error="timeout: x")
        yield door


@pytest_asyncio.fixture(loop_scope="module")
async def operator(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "operator") as visitor:
        yield visitor


def offered(page: str) -> list[str]:
    return re.findall(r'href="/bulk/new\?[^"]*verb=(\w+)"', page)


async def test_only_what_can_be_done_with_all_that_match_is_offered(operator: Visitor) -> None:
    assert offered(await operator.read("/messages", q="status:dead")) == ["requeue"]
    assert offered(await operator.read("/messages", q="status:delivered")) == []
    assert offered(await operator.read("/messages", q="status:dead to:nobody@example.org")) == []
    assert offered(await operator.read("/messages")) == []
    page = await operator.read("/bulk/new", 422, q="status:delivered", verb="cancel")
    assert "names nothing that can be cancelled" in page
    assert "query:" not in page


def lit(page: str) -> list[str]:
    return re.findall(r'<a class="chip on[^>]*>([^<]+)', page)


async def test_a_lane_by_the_name_that_people_have_for_it_lights_its_chip(operator: Visitor) -> None:
    assert lit(await operator.read("/messages", q="lane:mails")) == ["Mails"]
    assert lit(await operator.read("/messages", q="lane:webhooks,mail_outbox")) == ["Mails", "Webhooks"]
    assert lit(await operator.read("/messages", q="lane:mails to:x")) == ["Mails", "to:x"]


async def test_every_page_that_a_key_opens_is_in_the_list_of_keys(door: Door) -> None:
    script = (await door.client.get("/static/desk.js")).text
    places, listed = script[script.index("const places") :].split("const help = [", 1)
    letters = re.findall(r"(\w): \"/", places)
    assert len(letters) > 10
    assert set(re.findall(r'"g (\w)"', listed)) == set(letters)


async def test_a_wrong_password_leaves_the_name_and_is_no_login(door: Door, operator: Visitor) -> None:
    form = {"name": "viewer", "password": f"{PASSWORD}!", "next": "/dead"}
    answer = await door.client.post("/login", data=form, headers=OWN)
    assert answer.status_code == 401
    assert 'value="viewer"' in answer.text
    assert answer.text.count("autofocus") == 1
    hostile = {**form, "name": '"><script>'}
    assert "<script>" not in (await door.client.post("/login", data=hostile, headers=OWN)).text
    page = await operator.read("/audit", action="session.open", outcome="refused")
    assert "tried to log in" in page
    assert "> logged in" not in page


async def test_who_may_not_is_told_which_role_may(door: Door) -> None:
    async with visiting(door, "viewer") as viewer:
        page = unescape(await viewer.read("/audit", 403))
        assert "the role operator has it" in page
    refused = await door.ask("GET", "/audit", await door.key("desk:read"))
    assert "role" not in refused.json()["error"]["message"]


async def test_a_run_that_is_over_says_when_in_the_card_that_is_live(door: Door, operator: Visitor) -> None:
    """The card that is updated tells it, so no other one says something else."""
    answer = await operator.send("/bulk", {"q": "status:dead lane:mail_outbox", "verb": "requeue"})
    path = answer.headers["location"]
    assert "Ended" not in await operator.read(path)
    await door.homing.bulk.runner().once()
    page = await operator.read(path)
    assert re.search(r'id="progress".*Ended <time', page, re.DOTALL)
    assert "not yet" not in page


async def test_what_pages_say_is_said_for_pages(door: Door) -> None:
    async with visiting(door, "admin") as admin:
        told = await admin.refused("/access/users", name="viewer", role="viewer", password="")
        assert told.count("there is a user viewer already; New password gives them another one") == 2
        assert "--scope" not in await admin.refused("/access/keys", name="shop", life="7 days")


async def test_the_target_of_a_job_leads_to_its_page(door: Door, operator: Visitor) -> None:
    key = await door.key("jobs:write")
    order = {
        "source": "shop",
        "type": "order.paid",
        "targetUrl": "https://example.org/hooks",
        "payload": "{}",
    }
    id = (await door.ask("POST", "/api/dispatch/jobs", key, json=order)).json()["id"]
    page = await operator.read(f"/messages/{id}")
    target = re.search(r'href="(/targets\?q=[^"]+)"', page)
    assert target is not None
    assert "example.org" in await operator.read(unescape(target[1]))
    assert f'href="/audit?object={id}"' in page
    assert "<strong>Due</strong>" in page


@pytest.mark.parametrize("path", ["/workers", "/dead", "/access", "/health", "/alerts", "/queues", "/audit"])
async def test_on_a_phone_each_cell_says_what_it_is(door: Door, path: str) -> None:
    """Rows are cards there, and what stood above a column stands in its cells."""
    async with visiting(door, "admin") as admin:
        page = await admin.read(path)
        tables = re.findall(r'<table class="cards">.*?</table>', page, re.DOTALL)
        assert len(tables) == page.count("<table")
        for table in tables:
            head, _, body = table.partition("</thead>")
            names = set(re.findall(r'data-name="([^"]+)"', body))
            assert names <= set(re.findall(r'scope="col"[^>]*>([^<]+)<', head))
            bare = re.findall(r"<td(?![^>]*(?:data-name|lead|actions-cell|colspan))[^>]*>", body)
            assert bare == [], "each says what it is, or needs no name"


async def test_every_place_of_the_menu_has_a_key(door: Door) -> None:
    async with visiting(door, "admin") as admin:
        menu = (await admin.read("/")).partition('id="menu"')[2].partition("</nav>")[0]
        script = (await admin.client.get("/static/desk.js")).text
    line = script.partition("const places = {")[2].partition("}")[0]
    keyed = dict(re.findall(r'(\w): "([^"]+)"', line))
    assert set(keyed.values()) == set(re.findall(r'href="([^"]+)"', menu)) - {"/docs"}
