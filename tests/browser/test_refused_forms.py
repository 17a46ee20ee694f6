"""Forms that are refused, as a person meets them; and a list that waits while somebody works with it."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect
from tests.browser.places import asked
from tests.browser.tab import NARROW, Desk, Tab

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def refused(tab: Tab, field: str, why: str) -> None:
    """The cursor is in the field that is wrong, which is told beside it and above; nothing else is wrong."""
    page = tab.page
    await expect(page.locator("#refused")).to_contain_text(why)
    await expect(page.locator(field)).to_be_focused()
    await expect(page.locator(f'{field}[aria-invalid="true"][aria-describedby="mistake"]')).to_have_count(1)
    await expect(page.locator("#mistake")).to_contain_text(why)
    await expect(page.locator("#mistake")).to_be_in_viewport()
    await tab.forgive(422)
    assert await tab.barriers() == []
    assert await tab.overflow() == []


async def test_what_was_written_is_still_there_and_can_be_mended(browser: Browser, desk: Desk) -> None:
    """Three forms; each is sent, mended where it was wrong, and sent again."""
    async with desk.tab(browser, "admin", width=NARROW) as tab:
        page = tab.page
        await tab.open("/access")
        await page.fill("#user-name", "operator")
        await page.select_option("#user-role", "operator")
        await page.fill("#user-password", "canary-password")
        await page.click("#add-user")
        await refused(tab, "#user-name", "there is a user operator already")
        await expect(page.locator("#user-name")).to_have_value("operator")
        await expect(page.locator("#user-role")).to_have_value("operator")
        await expect(page.locator("#user-password")).to_have_value("")
        await page.keyboard.press("End")
        await page.keyboard.type("-two")
        await page.click("#add-user")
        await expect(page.locator("#secret")).to_be_visible()

        await tab.open("/credentials")
        await page.fill("#name", "shop, by hand")
        await page.select_option("#bearer", "none")
        await page.uncheck("input[name=secret]")
        await page.click("#create")
        await refused(tab, "#bearer", "need a bearer token")
        await expect(page.locator("#name")).to_have_value("shop, by hand")
        await expect(page.locator("input[name=secret]")).not_to_be_checked()
        await page.select_option("#bearer", "make")
        await page.click("#create")
        await expect(page.locator("#bearer_token")).to_be_visible()

        await tab.open(asked("/targets/one", target=desk.seeded.target))
        await page.fill("#url", "http://127.0.0.1:1/elsewhere")
        await page.click("#test")
        await refused(tab, "#url", "is not one of")
        await expect(page.locator("#url")).to_have_value("http://127.0.0.1:1/elsewhere")
        await page.fill("#url", f"{desk.seeded.target}/shop/orders")
        await page.click("#test")
        await expect(page.locator("#probe")).to_be_visible()


async def test_the_same_without_a_script(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, "admin", java_script_enabled=False) as tab:
        page = tab.page
        await tab.open(asked("/bulk/new", q="statsu:dead lane:mail_outbox", verb="requeue"))
        await expect(page.locator("#mistake")).to_contain_text("did you mean status?")
        await page.fill("#q", "status:dead lane:mail_outbox")
        await page.click("#count-again")
        await expect(page.locator("#count")).to_contain_text("would be requeued")
        await tab.forgive(422)


async def test_a_list_that_waits_keeps_no_more_than_it_would_show(browser: Browser, desk: Desk) -> None:
    """Somebody has selected a message: what comes in meanwhile is counted, and what has gone again is not."""
    async with desk.tab(browser, "operator") as tab:
        page = tab.page
        await tab.open("/messages?q=lane:mail_outbox")
        await expect(page.locator("#live")).to_have_text("Live")
        await page.locator("#rows input[name=id]").first.check()
        await desk.door.insert(40)
        await expect(page.locator("#live")).to_have_text("Not live, 40 new")
        await desk.door.insert(40)
        await expect(page.locator("#live")).to_have_text("Not live, 50 new")
