"""What an operator and an admin do beside messages, by clicking; database and audit log tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, Download, Page, expect
from tests.access.desk import PASSWORD
from tests.browser.places import asked
from tests.browser.seed import DESERTER, WORKER
from tests.browser.tab import NARROW, Desk, Tab
from tests.emails import until

from homing.lanes.dispatch_jobs.tsid import number_of
from homing.testing.http_sink import HttpSink

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def done_by(desk: Desk, who: str, *beginnings: str) -> list[tuple[str, str | None]]:
    """What somebody has done, of a kind: action and object, oldest first."""
    return [
        (action, about)
        for name, action, about, outcome in await desk.audited()
        if name == who and outcome == "done" and action.startswith(beginnings)
    ]


async def confirm(tab: Tab) -> None:
    await tab.page.click("#confirm-yes")


async def choose(tab: Tab, name: str) -> None:
    """Press the button of this name and see the page that follows."""
    await tab.page.get_by_role("button", name=name, exact=True).click()


# ── connect ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_target_is_paused_limited_tested_and_resumed(
    browser: Browser, desk: Desk, receiver: HttpSink
) -> None:
    target = desk.seeded.target
    async with desk.tab(browser, "operator") as tab:
        page = tab.page
        await tab.open(asked("/targets", q="127.0.0.1"))
        await page.locator("tbody a").first.click()
        await page.select_option("#span", "4h")
        await page.fill("#reason", "moving house")
        await page.click("#pause")
        await expect(page.locator("#why")).to_contain_text("moving house")
        assert (await target_row(desk, target))["paused_until"] is not None
        await page.fill("#max_concurrency", "7")
        await page.fill("#rate_per_second", "2.5")
        await page.click("#limit")
        await tab.tells("limits hold")
        row = await target_row(desk, target)
        assert (row["max_concurrency"], row["rate_per_second"]) == (7, 2.5)
        before = len(receiver.requests)
        await page.fill("#url", f"{target}/shop/orders")
        await page.click("#test")
        await expect(page.locator("#probe")).to_contain_text("it would have completed a job")
        assert b"homing.test" in receiver.requests[before].body
        await page.click("#resume")
        await expect(page.locator("#resume")).to_have_count(0)
    assert (await target_row(desk, target))["paused_until"] is None
    assert [action for action, _ in await done_by(desk, "user:operator", "dispatch.targets")] == [
        f"dispatch.targets.{verb}" for verb in ("pause", "limit", "validate", "resume")
    ]


async def target_row(desk: Desk, target: str) -> dict[str, object]:
    rows = await desk.door.homing.jobs.run("targets", after="", limit=100)
    return next(dict(row) for row in rows if str(row["target"]).startswith(target))


async def test_credentials_are_made_rotated_and_deleted(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, "admin") as tab:
        page = tab.page
        await tab.open("/credentials")
        await page.fill("#name", "made by hand")
        await page.click("#create")
        first = await page.locator("#signing_secret").inner_text()
        assert await tab.barriers() == []
        await tab.open("/credentials")
        await page.get_by_role("link", name="made by hand").click()
        await page.wait_for_url("**/credentials/one?id=*")
        id = page.url.rpartition("id=")[2]
        assert first not in await page.content()
        await page.click("#rotate")
        second = await page.locator("#signing_secret").inner_text()
        assert first != second
        await tab.open(asked("/credentials/one", id=id))
        await page.click("#end-grace")
        await confirm(tab)
        await expect(page.locator("#end-grace")).to_have_count(0)
        await page.check("input[name=sure]")
        await page.click("#delete")
        await confirm(tab)
        await page.wait_for_url("**/credentials")
    number = number_of(id)
    assert number is not None
    rows = await desk.door.sql("SELECT id FROM dispatch_credentials WHERE id = :id", id=number)
    assert rows == []
    done = [
        action.rpartition(".")[2] for action, _ in await done_by(desk, "user:admin", "dispatch.credentials")
    ]
    assert len(done) == 4, done


async def test_a_subscription_is_paused_resumed_and_ended(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, "operator") as tab:
        page = tab.page
        await tab.open("/subscriptions")
        await page.fill("#q", "ann@example.org")
        await choose(tab, "Find")
        await expect(page.locator("tbody tr")).to_have_count(2)
        await page.get_by_role("link", name=str(desk.seeded.subscription), exact=True).click()
        for button, state in (("#pause", "paused"), ("#resume", "active")):
            await page.click(button)
            await expect(page.locator(".heading .badge")).to_have_text(state)
            assert await subscription_state(desk) == state
        await page.check("input[name=sure]")
        await page.click("#end")
        await confirm(tab)
        await expect(page.locator(".heading .badge")).to_have_text("unsubscribed")
    assert await subscription_state(desk) == "unsubscribed"


async def subscription_state(desk: Desk) -> object:
    row = await desk.door.homing.notifications_part.subscriptions.get(desk.seeded.subscription)
    assert row is not None
    return row["status"]


# ── run ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_lane_and_a_worker_are_paused_and_leases_released(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, "operator") as tab:
        page = tab.page
        await tab.open("/workers")
        await page.get_by_label("Why Mails is paused").fill("the relay is moved")
        await choose(tab, "Pause Mails")
        await expect(page.get_by_role("button", name="Resume Mails")).to_be_visible()
        assert await pauses(desk) == [("lane", "mail_outbox", "the relay is moved")]
        await choose(tab, "Resume Mails")
        await expect(page.get_by_role("button", name="Pause Mails")).to_be_visible()
        await page.get_by_label(f"Why {WORKER} is paused").fill("the machine is moved")
        await choose(tab, f"Pause {WORKER}")
        await confirm(tab)
        await expect(page.get_by_role("button", name=f"Resume {WORKER}")).to_be_visible()
        assert await pauses(desk) == [("worker", WORKER, "the machine is moved")]
        await choose(tab, f"Resume {WORKER}")
        await expect(page.get_by_role("button", name=f"Pause {WORKER}")).to_be_visible()
        assert await pauses(desk) == []
        await choose(tab, f"Release the leases of {DESERTER}")
        await confirm(tab)
        await expect(page.get_by_role("button", name=f"Release the leases of {DESERTER}")).to_have_count(0)
    assert await desk.state(desk.seeded.ids["mail.running"]) == "queued"
    assert len(await done_by(desk, "user:operator", "workers.")) == 5


async def pauses(desk: Desk) -> list[tuple[str, str, str | None]]:
    return [(pause.scope, pause.name, pause.reason) for pause in await desk.door.homing.fleet.pauses()]


async def test_the_router_is_configured_by_a_form_and_as_json(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, "admin") as tab:
        page = tab.page
        await tab.open("/router")
        await page.locator("input[name^=pool_a_]").last.fill("slow")
        await page.locator("input[name^=pool_b_]").last.fill("3")
        await page.click("#save")
        await tab.tells("Every router")
        config, version = await desk.door.homing.router_configs.current()
        assert ("slow", 3) in [(pool.code, pool.concurrency) for pool in config.processing_pools]
        await page.get_by_text("The whole as JSON").click()
        text = await page.locator("#config").input_value()
        await page.fill("#config", text.replace('"concurrency": 3', '"concurrency": -3'))
        await page.click("#save-json")
        await expect(page.locator("#refused")).to_be_visible()
        await tab.forgive(422)
        assert (await desk.door.homing.router_configs.current())[1] == version, "nothing was changed"
        await page.fill("#config", text.replace('"concurrency": 3', '"concurrency": 4'))
        await page.click("#save-json")
        await tab.tells("Every router")
    config, _ = await desk.door.homing.router_configs.current()
    assert ("slow", 4) in [(pool.code, pool.concurrency) for pool in config.processing_pools]


# ── check ────────────────────────────────────────────────────────────────────────────────────────


async def test_alerts_are_tried_and_silenced(browser: Browser, desk: Desk) -> None:
    await desk.door.homing.alerts_part.watch.round()
    cause = (await desk.door.homing.alerts.firing())[0].cause
    async with desk.tab(browser, "operator", width=NARROW) as tab:
        await tab.open("/alerts")
        await choose(tab, f"Silence {cause}")
        await expect(tab.page.get_by_role("button", name=f"End the silence of {cause}")).to_be_visible()
        assert [one.cause for one in await desk.door.homing.alerts.silenced()] == [cause]
        await choose(tab, f"End the silence of {cause}")
        await expect(tab.page.get_by_role("button", name=f"Silence {cause}", exact=True)).to_be_visible()
        await choose(tab, "Send a test")
        await tab.tells("is on its way")
        assert await tab.overflow() == []
        assert await tab.barriers() == []
    mails = await desk.door.sql("SELECT id FROM mail_outbox WHERE to_address = 'oncall@example.org'")
    assert mails


async def test_the_audit_log_is_filtered_and_exported(browser: Browser, desk: Desk) -> None:
    homing = desk.door.homing
    await homing.access.users.add("filtered", PASSWORD, "viewer", by="user:zoe")
    await homing.access.users.remove("filtered", by="user:zoe")
    async with desk.tab(browser, "admin") as tab:
        page = tab.page
        await tab.open("/audit")
        await page.fill("#who", "user:zoe")
        await page.fill("#since", "2h")
        await choose(tab, "Filter")
        await expect(page.locator("tbody tr")).to_have_count(2)
        lines = (await downloaded(tab, "#export-csv")).splitlines()
        assert len(lines) == 3
        assert all("user:zoe" in line for line in lines[1:])
        entries = (await downloaded(tab, "#export-ndjson")).strip()
        assert entries.count("user:zoe") == 2


async def downloaded(tab: Tab, button: str) -> str:
    async with tab.page.expect_download() as waiting:
        await tab.page.click(button)
    download: Download = await waiting.value
    return _read(await download.path())


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


async def test_the_doctor_looks_again(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, "operator") as tab:
        page = tab.page
        await tab.open("/health")
        # The page loads itself again until the doctor is ready.
        await expect(page.locator("#verdict")).to_be_visible()
        await expect(page.locator("#run")).to_be_visible()
        await page.click("#run")
        await expect(page.locator("#flash, #running").first).to_be_visible()
        await desk.door.homing.health.checkup.ended()
        await expect(page.locator("#running")).to_have_count(0)
    assert ("health.run", None) in [
        (action, None) for action, _ in await done_by(desk, "user:operator", "health")
    ]


async def test_people_are_added_changed_and_removed(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, "admin") as tab:
        page = tab.page
        await tab.open("/access")
        await page.fill("#user-name", "zora")
        await page.select_option("#user-role", "viewer")
        await page.click("#add-user")
        password = await page.locator("#secret").inner_text()
        async with httpx.AsyncClient(base_url=desk.door.address, timeout=30) as client:
            assert await logs_in(client, "zora", password)
            await page.click("#done")
            await page.get_by_label("Role of zora", exact=True).select_option("operator")
            await choose(tab, "Change the role of zora")
            await tab.tells("zora")
            assert await role_of(desk, "zora") == "operator"
            assert await logs_in(client, "zora", password)
            assert await is_let_in(client)
            await choose(tab, "Log out zora everywhere")
            await tab.tells("zora is logged out everywhere.")
            await until(lambda: is_let_out(client))
            await choose(tab, "New password for zora")
            await confirm(tab)
            changed = await page.locator("#secret").inner_text()
            assert not await logs_in(client, "zora", password)
            assert await logs_in(client, "zora", changed)
        await page.click("#done")
        await choose(tab, "Remove zora")
        await confirm(tab)
        await tab.tells("zora is removed")
        await expect(page.get_by_text("zora", exact=True)).to_have_count(0)
    assert await role_of(desk, "zora") is None


async def logs_in(client: httpx.AsyncClient, name: str, password: str) -> bool:
    form = {"name": name, "password": password, "next": "/"}
    answer = await client.post("/login", data=form, headers={"Sec-Fetch-Site": "same-origin"})
    return answer.status_code == 303


async def is_let_in(client: httpx.AsyncClient) -> bool:
    return (await client.get("/messages", headers={"Accept": "text/html"})).status_code == 200


async def is_let_out(client: httpx.AsyncClient) -> bool:
    return not await is_let_in(client)


async def role_of(desk: Desk, name: str) -> object:
    row = await desk.door.homing.access.users.find(name)
    return row["role"] if row is not None else None


async def test_a_key_is_made_used_and_revoked(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, "admin") as tab:
        page = tab.page
        await tab.open("/access")
        await page.fill("#key-name", "made by hand")
        await page.check('input[value="jobs:read"]')
        await page.click("#create-key")
        key = await page.locator("#secret").inner_text()
        assert (await desk.door.ask("GET", "/api/dispatch/jobs", key)).status_code == 200
        assert (await desk.door.ask("GET", "/api/mail", key)).status_code == 403
        await page.click("#done")
        await choose(tab, "Revoke the key made by hand")
        await confirm(tab)
        await expect(page.get_by_role("button", name="Revoke the key made by hand")).to_have_count(0)
    assert (await desk.door.ask("GET", "/api/dispatch/jobs", key)).status_code == 401


# ── whoever it is ────────────────────────────────────────────────────────────────────────────────


async def test_somebody_logs_in_changes_the_theme_and_logs_out(browser: Browser, desk: Desk) -> None:
    async with desk.tab(browser, None, width=NARROW) as tab:
        page = tab.page
        await tab.open("/targets")
        await tab.forgive(401)
        await page.fill("#name", "operator")
        await page.fill("#password", "not this one")
        await choose(tab, "Log in")
        await expect(page.get_by_role("alert")).to_contain_text("do not belong together")
        assert await tab.barriers() == []
        await tab.forgive(401)
        await page.fill("#name", "operator")
        await page.fill("#password", PASSWORD)
        await choose(tab, "Log in")
        await page.wait_for_url("**/targets")
        for theme in ("dark", "light", "auto"):
            await page.click("#theme")
            await expect(page.locator("html")).to_have_attribute("data-theme", theme)
            # The browser stores a cookie a moment after a script has set it, and a reload may be earlier.
            await until(partial(has_cookie, page, "homing_theme", theme))
            await page.reload()
            await expect(page.locator("html")).to_have_attribute("data-theme", theme)
        await menu_leads_everywhere(tab)
        await page.click("#log-out")
        await page.wait_for_url("**/login")
        await tab.open("/")
        await expect(page.locator("#password")).to_be_visible()
        await tab.forgive(401)
    told = [(who, action, outcome) for who, action, _, outcome in await desk.audited()]
    assert ("user:operator", "session.close", "done") in told


async def has_cookie(page: Page, name: str, value: str) -> bool:
    stored = {cookie.get("name"): cookie.get("value") for cookie in await page.context.cookies()}
    return stored.get(name) == value


async def test_a_session_that_ends_over_a_form_leads_back_to_it(browser: Browser, desk: Desk) -> None:
    """It is the browser that says which page the form was on, with its filter."""
    async with desk.tab(browser, "operator") as tab:
        page = tab.page
        await tab.open("/bulk/new?q=status%3Adead&verb=requeue")
        await page.context.clear_cookies()
        await page.click("#start")
        await expect(page.get_by_role("alert")).to_contain_text("Your session has ended. Nothing was done")
        await tab.forgive(401)
        await page.fill("#name", "operator")
        await page.fill("#password", PASSWORD)
        await choose(tab, "Log in")
        await page.wait_for_url("**/bulk/new?q=status%3Adead&verb=requeue")
        await expect(page.locator("#start")).to_be_visible()


async def menu_leads_everywhere(tab: Tab) -> None:
    """On a phone it is behind a button."""
    page = tab.page
    await page.get_by_role("button", name="Menu").click()
    await expect(page.locator("#menu")).to_be_visible()
    assert await tab.barriers() == []
    links: Sequence[str] = await page.locator("#menu a").evaluate_all(
        "(all) => all.map((one) => one.pathname)"
    )
    assert {"/", "/messages", "/dead", "/workers", "/audit"} <= set(links)
    await page.locator('#menu a[href="/workers"]').click()
    await page.wait_for_url("**/workers")
