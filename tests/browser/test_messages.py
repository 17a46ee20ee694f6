"""What an operator does with messages, by clicking and by keys; the database tells whether it happened."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest
from playwright.async_api import Browser, expect
from tests.browser.places import asked
from tests.browser.seed import HOSTILE
from tests.browser.tab import NARROW, Desk, Tab
from tests.emails import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

_LISTED = "() => [...document.querySelectorAll('#rows tr')].map((row) => row.dataset.id)"

#: What a button has said meanwhile; it says it for a second and a half.
_NOTE_ITS_WORDS = """(selector) => {
  const button = document.querySelector(selector);
  window.words = [];
  new MutationObserver(() => window.words.push(button.textContent)).observe(button, { childList: true });
}"""


async def listed(tab: Tab) -> list[str]:
    # The query line may be there before the rows are.
    await tab.page.wait_for_load_state()
    found: list[str] = await tab.page.evaluate(_LISTED)
    return found


async def search(tab: Tab, line: str) -> None:
    await tab.page.fill("#q", line)
    await tab.page.click(".query-line button")
    await tab.page.wait_for_load_state()


# ── the list ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_query_line_is_written_with_help_and_mistakes_are_mended(
    browser: Browser, desk: Desk
) -> None:
    async with desk.tab(browser, "operator") as tab:
        page = tab.page
        await tab.open("/messages")
        await page.click("#q")
        await page.keyboard.type("sta")
        await expect(page.locator("#suggestions li")).to_have_count(1)
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await page.keyboard.type("dea")
        await expect(page.locator("#suggestions li code").first).to_have_text("status:dead")
        await page.locator("#suggestions li").first.click()
        await expect(page.locator("#q")).to_have_value("status:dead ")
        assert await tab.barriers() == [], "while suggestions are open"
        await page.keyboard.press("Escape")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/messages?q=status%3Adead*")
        assert desk.seeded.ids["job.dead"] in await listed(tab)
        assert desk.seeded.ids["job.delivered"] not in await listed(tab)
        await search(tab, "lane:mail_outbox statsu:dead")
        await expect(page.locator("#q-mistake")).to_contain_text("did you mean")
        await page.click("#mended")
        await page.wait_for_url("**/messages?q=lane%3Amail_outbox+status%3Adead")
        assert all(id.startswith("outbox_") for id in await listed(tab))


async def test_chips_are_the_filter_and_older_pages_follow(browser: Browser, desk: Desk) -> None:
    await desk.door.insert(60, subject="One of many", status="sent")
    async with desk.tab(browser, "viewer") as tab:
        page = tab.page
        await tab.open("/messages")
        await page.get_by_role("link", name="delivered", exact=True).click()
        await expect(page.locator("#q")).to_have_value("status:delivered")
        await page.get_by_role("link", name="Mails", exact=True).click()
        await expect(page.locator("#q")).to_have_value("status:delivered lane:mail_outbox")
        first = await listed(tab)
        assert len(first) == 50
        await page.click("#older")
        await page.wait_for_url("**cursor=**")
        second = await listed(tab)
        assert second
        assert not set(first) & set(second)
        await expect(page.locator("#tail")).to_have_count(0)
        await page.click("#newest")
        await expect(page.locator("#newest")).to_have_count(0)
        await page.get_by_role("link", name="delivered", exact=False).click()
        await expect(page.locator("#q")).to_have_value("lane:mail_outbox")


async def test_a_new_message_appears_unless_somebody_works_with_the_list(
    browser: Browser, desk: Desk
) -> None:
    async with desk.tab(browser, "operator") as tab:
        page, live = tab.page, tab.page.locator("#live")
        await tab.open("/messages")
        await expect(live).to_have_text("Live")
        await page.evaluate("window.isSame = true")
        await appears(tab, desk, "First")
        await page.locator("#rows input").first.focus()
        (held,) = await desk.door.insert(1, subject="Held back")
        await expect(live).to_have_text("Not live, 1 new")
        await expect(page.locator(f"#row-outbox_{held}")).to_have_count(0)
        await page.locator("#rows input").first.blur()
        await expect(page.locator(f"#row-outbox_{held}")).to_be_visible()
        await page.click("#tail")
        await expect(live).to_have_text("Not live")
        await page.click("#tail")
        await expect(live).to_have_text("Live")
        await hide(tab, is_hidden=True)
        await expect(live).to_have_text("Not live")
        await desk.door.insert(1, subject="While nobody looks")
        await hide(tab, is_hidden=False)
        await appears(tab, desk, "Last")
        await expect(page.get_by_role("link", name="While nobody looks")).to_be_visible()
        assert await page.evaluate("window.isSame"), "the page was not loaded again"


async def appears(tab: Tab, desk: Desk, subject: str) -> None:
    (id,) = await desk.door.insert(1, subject=subject)
    await expect(tab.page.locator(f"#row-outbox_{id}")).to_be_visible()


async def hide(tab: Tab, *, is_hidden: bool) -> None:
    """As when another tab is looked at, which a browser without a screen cannot do."""
    await tab.page.evaluate(
        """(isHidden) => { Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange")); }""",
        is_hidden,
    )


async def test_keys_find_open_select_and_requeue(browser: Browser, desk: Desk) -> None:
    ids = [desk.seeded.ids[name] for name in ("mail.dead2", "mail.dead")]
    async with desk.tab(browser, "operator") as tab:
        page = tab.page
        await tab.open(asked("/messages", q="status:dead lane:mail_outbox error:invalid_recipient"))
        assert await listed(tab) == ids
        await page.keyboard.press("?")
        await expect(page.locator("dialog#keys")).to_be_visible()
        assert await tab.barriers() == []
        await page.keyboard.press("Escape")
        await expect(page.locator("dialog")).to_have_count(0)
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("x")
        await expect(page.locator("#selected-count")).to_have_text("1 selected:")
        await page.keyboard.press("k")
        await page.keyboard.press("x")
        await expect(page.locator("#selected-count")).to_have_text("2 selected:")
        await page.keyboard.press("x")
        await page.keyboard.press("r")
        await page.click("#confirm-yes")
        await tab.tells("1 requeued")
        assert [await desk.state(id) for id in ids] == ["failed", "queued"]
        await page.keyboard.press("j")
        await page.keyboard.press("o")
        await page.wait_for_url(f"**/messages/{ids[0]}")
        # The second key has to follow soon, which a busy machine cannot promise: so no time goes by.
        await page.clock.set_fixed_time(datetime.now(UTC))
        await page.keyboard.press("g")
        await page.keyboard.press("d")
        await page.wait_for_url("**/dead")
        await page.keyboard.press("/")
        await expect(page.locator("#top-search")).to_be_focused()
        await page.keyboard.type("status:stopped")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/messages?q=status%3Astopped")
    assert ("user:operator", "messages.requeue", None, "done") in [
        (who, action, None, outcome) for who, action, _, outcome in await desk.audited()
    ]


# ── one message ──────────────────────────────────────────────────────────────────────────────────


async def test_a_webhook_is_read_copied_requeued_and_cancelled(browser: Browser, desk: Desk) -> None:
    id = desk.seeded.ids["job.dead"]
    permissions = ["clipboard-read", "clipboard-write"]
    async with desk.tab(browser, "operator", permissions=permissions) as tab:
        page = tab.page
        await tab.open(asked("/messages", q="status:dead lane:dispatch_jobs"))
        await page.locator(f"#row-{id} a").click()
        await expect(page.locator("#timeline")).to_contain_text("HTTP 410")
        await page.locator("#timeline summary").click()
        await expect(page.locator("#timeline pre")).to_have_text("nobody subscribes here any more")
        await expect(page.locator("#payload-tree")).to_contain_text('"orderId"')
        assert "canary" not in await page.content()
        await page.evaluate(_NOTE_ITS_WORDS, '[data-copy="curl"]')
        await page.click('[data-copy="curl"]')
        await page.wait_for_function("window.words.includes('Copied')")
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert "curl" in copied
        assert "canary" not in copied
        await page.click("#do-requeue")
        await tab.tells(f"{id} is requeued.")
        assert await desk.state(id) == "PENDING"
        await page.click("#do-cancel")
        await page.get_by_role("button", name="Back").click()
        assert await desk.state(id) == "PENDING", "somebody thought better of it"
        await page.click("#do-cancel")
        await page.click("#confirm-yes")
        await expect(page.locator("#flash")).to_have_text(f"{id} is cancelled.")
        assert await desk.state(id) == "CANCELLED"
    done = [entry for entry in await desk.audited() if entry[2] == id]
    assert done == [
        ("user:operator", "messages.requeue", id, "done"),
        ("user:operator", "messages.cancel", id, "done"),
    ]


async def test_what_waits_is_sent_now_and_its_page_follows(browser: Browser, desk: Desk) -> None:
    id = desk.seeded.ids["job.scheduled"]
    async with desk.tab(browser, "operator") as tab:
        page = tab.page
        await tab.open(f"/messages/{id}")
        await expect(page.locator("#waits")).to_contain_text("scheduled for later")
        await page.click("#do-send_now")
        await tab.tells(f"{id} is due now.")
        await expect(page.locator("#live")).to_have_text("Live")
        deliverer = desk.door.homing.webhooks.deliverer
        await deliverer.settled(await deliverer.run_batch(100))
        await expect(page.locator("#message-state .badge")).to_have_text("COMPLETED")
        await expect(page.locator("#timeline")).to_contain_text("Delivered")
        # What can be done has changed with it.
        await expect(page.locator("#do-cancel")).to_have_count(0)
    assert await desk.state(id) == "COMPLETED"


async def test_a_mail_is_previewed_and_nothing_of_it_runs(browser: Browser, desk: Desk) -> None:
    id = desk.seeded.ids["mail.delivered"]
    async with desk.tab(browser, "viewer") as tab:
        page = tab.page
        await tab.open(f"/messages/{id}")
        frame = page.frame_locator("iframe.mail")
        await expect(frame.get_by_role("heading", name="Your order has shipped")).to_be_visible()
        assert "Your order has shipped" in await page.title()
        await page.locator("#mail summary", has_text="Text").click()
        await expect(page.locator("#mail pre").first).to_contain_text("it is on its way")
        await page.locator("#mail summary", has_text="Source").click()
        await expect(page.locator("#mail-source")).to_contain_text("MIME-Version: 1.0")
        async with page.expect_download() as download:
            await page.get_by_role("link", name="Download the source").click()
        assert (await download.value).suggested_filename == f"{id}.eml"
        await tab.open(f"/messages/{desk.seeded.ids['mail.hostile']}")
        await expect(page.locator("h1")).to_have_text(HOSTILE)
        await expect(page.frame_locator("iframe.mail").locator("p")).to_be_visible()
        for path in (f"/messages/{id}/mail.html", f"/caught/{desk.seeded.caught}/html"):
            await tab.open(path)
            assert await page.title() == ""


# ── dead letters and bulk runs ───────────────────────────────────────────────────────────────────


@asynccontextmanager
async def bulk_runner(desk: Desk) -> AsyncIterator[None]:
    runner = desk.door.homing.bulk.runner()
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        runner.stop()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_group_of_dead_letters_is_requeued_in_the_background(browser: Browser, desk: Desk) -> None:
    ids = [desk.seeded.ids[f"job.gone.{number}"] for number in range(3)]
    async with desk.tab(browser, "operator", width=NARROW) as tab:
        page = tab.page
        await tab.open("/dead")
        await page.get_by_role("link", name=re.compile("^Requeue all with http_410")).click()
        await expect(page.locator("#count")).to_contain_text("would be requeued")
        await page.click("#start")
        await page.wait_for_url(re.compile(r"/bulk/\d+$"))
        await page.evaluate("window.isSame = true")
        async with bulk_runner(desk):
            await expect(page.locator("#progress")).to_have_attribute("data-over", "yes")
        await expect(page.locator("#progress .badge")).to_have_text("done")
        await expect(page.locator("#stop-run")).to_have_count(0)
        for id in ids:
            await expect(page.locator(f'#changed a[href="/messages/{id}"]')).to_be_visible()
        assert await tab.overflow() == []
        assert await tab.barriers() == []
        assert await page.evaluate("window.isSame"), "it came by itself"
        run = page.url.rpartition("/")[2]
        await tab.open("/bulk")
        await expect(page.get_by_role("link", name=f"Requeue #{run}")).to_be_visible()
    assert [await desk.state(id) for id in ids] == ["PENDING"] * 3
    entries = [
        (who, action, outcome)
        for who, action, about, outcome in await desk.audited()
        if about == f"bulk_{run}"
    ]
    assert entries == [("user:operator", "bulk.start", "done"), ("user:operator", "bulk.end", "done")]


async def test_a_bulk_run_is_stopped_before_it_begins(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, "operator") as tab:
        page = tab.page
        await tab.open(asked("/messages", q="status:waiting lane:mail_outbox"))
        await page.get_by_role("link", name="Cancel all…").click()
        await page.click("#start")
        await page.wait_for_url(re.compile(r"/bulk/\d+$"))
        # Whoever stops is in a hurry, and what was done stays done: nothing is asked.
        await page.click("#stop-run")
        await expect(page.locator("#progress .badge")).to_have_text("cancelled")
        id = int(page.url.rpartition("/")[2])
    run = await desk.door.homing.bulk.runs.get(id)
    assert run is not None
    assert (run.state, run.done) == ("cancelled", 0)
    assert await desk.state(desk.seeded.ids["mail.waiting"]) == "queued"


async def test_it_all_works_without_script(browser: Browser, desk: Desk) -> None:
    id = desk.seeded.ids["email.dead"]
    async with desk.tab(browser, "operator", java_script_enabled=False) as tab:
        page = tab.page
        await tab.open("/messages")
        await page.fill("#q", "status:dead lane:email_log")
        await page.click(".query-line button")
        await page.wait_for_url("**/messages?q=*")
        await page.check(f'input[value="{id}"]')
        await page.get_by_role("button", name="Requeue", exact=True).click()
        await tab.tells("1 requeued")
        await page.click("#theme")
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await until(lambda: has_state(desk, id, "Pending"))


async def has_state(desk: Desk, id: str, state: str) -> bool:
    return await desk.state(id) == state
