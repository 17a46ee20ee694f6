"""On a phone a row is a card to the eye; to a reader of the screen it is the row of a table, as anywhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import pytest
from playwright.async_api import Browser, expect
from tests.browser.tab import NARROW, Desk, Tab

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

PAGES = ("/audit", "/targets", "/queues", "/workers", "/access", "/messages", "/dead", "/subscriptions")
ROLES = {"table", "row", "cell", "rowheader", "columnheader"}
#: Where the columns' names are written into the cells.
_WRITTEN = """() => [...document.querySelectorAll(".cards td[data-name]")]
  .filter((one) => getComputedStyle(one, "::before").content.includes(one.dataset.name)).length"""


async def heard(tab: Tab) -> Mapping[str, Counter[str]]:
    """What Chromium tells a reader of the screen of the page's tables: names, by role."""
    session = await tab.page.context.new_cdp_session(tab.page)
    tree = await session.send("Accessibility.getFullAXTree")
    await session.detach()
    found: dict[str, Counter[str]] = {role: Counter() for role in ROLES}
    for node in tree["nodes"]:
        role = node.get("role", {}).get("value")
        if role in ROLES and not node.get("ignored"):
            found[role][_timeless(node.get("name", {}).get("value", ""))] += 1
    return found


def _timeless(name: str) -> str:
    """Times tick from one look to the next."""
    return re.sub(r"(next |due )?(\bin \d+ \w+|\d+ \w+ ago|\bnow\b)", "some time", name)


@pytest.mark.parametrize("path", PAGES)
async def test_a_card_is_heard_as_the_row_of_a_table(browser: Browser, desk: Desk, path: str) -> None:
    async with desk.tab(browser, "admin") as tab:
        await tab.open(path)
        told = await heard(tab)
        await tab.page.set_viewport_size({"width": NARROW, "height": 900})
        on_a_phone = await heard(tab)
        assert told["table"]
        assert told["cell"]
        assert on_a_phone == told
        if path != "/messages":
            assert await tab.page.evaluate(_WRITTEN) > 0


async def test_all_messages_of_a_page_are_selected_on_a_phone(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, "operator", width=NARROW) as tab:
        page = tab.page
        await tab.open("/messages?q=status:dead")
        rows = await page.locator("#rows tr").count()
        await expect(page.locator("#select-all")).to_be_in_viewport()
        await page.check("#select-all")
        await expect(page.locator("#selected-count")).to_have_text(f"{rows} selected:")
        await expect(page.get_by_role("button", name="Requeue", exact=True)).to_be_in_viewport()
