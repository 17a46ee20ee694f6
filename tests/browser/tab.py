"""A browser's tab on the desk, which notes everything that is wrong with a page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any, Literal

from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
)
from tests.browser.seed import Seeded
from tests.emails import until
from tests.http.door import Door

from homing.access.scopes import Role

Scheme = Literal["light", "dark"]
WIDE, NARROW = 1280, 360
#: A busy machine may take its time.
expect.set_options(timeout=30_000)
#: The mail of somebody else, in a frame where nothing of it may run: that the browser says so is well.
_FOREIGN = re.compile(r"/messages/[^/]+/mail\.html|/caught/\d+/html")
#: How a request ends whose page is left, and one that our policy forbids to a foreign mail.
_ABORTED, _FORBIDDEN = "net::ERR_ABORTED", "csp"
_WATCH = """
if (window.top === window)
  document.addEventListener("securitypolicyviolation", (event) =>
    console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""
_AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
_RUN_AXE = """async (rules) => {
  const options = { resultTypes: ["violations"], iframes: false };
  if (rules.length) options.runOnly = { type: "rule", values: rules };
  const found = await axe.run(document, options);
  return found.violations
    .flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target} ${node.failureSummary}`));
}"""

_WIDTHS = """() => {
  const { clientWidth: room, scrollWidth: wide } = document.documentElement;
  const out = [...document.body.querySelectorAll("*")]
    .filter((one) => one.getBoundingClientRect().right > room + 1);
  return [wide, room, out.slice(0, 5).map((one) => one.outerHTML.slice(0, 100))];
}"""

#: Words that run out of what they stand in. What cuts or scrolls them is meant to.
_RUN_OUT = """() => {
  const right = (one) => one.getBoundingClientRect().right;
  const unseen = ".hidden, .skip, option, svg";
  const boxes = ":is(.user, .tag, .badge, .button, td, th, pre, .json, .figure)," +
    ":is(.notice, .panel, .top, .menu, main)";
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const place = document.createRange();
  const found = [];
  while (words.nextNode()) {
    const one = words.currentNode.parentElement, box = one.closest(boxes);
    if (!box || !words.currentNode.data.trim() || !one.checkVisibility() || one.closest(unseen)) continue;
    place.selectNodeContents(words.currentNode);
    if (right(place) > right(box) + 1 && getComputedStyle(box).overflowX === "visible")
      found.push(`runs out of ${box.className || box.localName}: ${one.outerHTML.slice(0, 100)}`);
  }
  return found.slice(0, 5);
}"""

_UNFOLD = """() => document.querySelectorAll("details:not([open])").forEach((one) => {
  one.dataset.unfolded = "";
  one.open = true;
})"""
_FOLD = "() => document.querySelectorAll('[data-unfolded]').forEach((one) => { one.open = false; })"


#: What can be pressed in a table, and is cut off by the box that the table scrolls in.
_CUT = """() => {
  const right = (one) => one.getBoundingClientRect().right;
  return [...document.querySelectorAll(".table-box :is(button, .button, input, select)")]
    .filter((one) => one.offsetParent && right(one) > right(one.closest(".table-box")))
    .map((one) => `cut off: ${one.ariaLabel ?? one.textContent}`);
}"""


#: Boxes that are narrower than the table in them.
_BESIDE = """() => [...document.querySelectorAll(".table-box")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => `beside the screen: ${one.ariaLabel}`)"""


class Tab:
    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.trouble: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.trouble.append(f"script: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def _heard(self, message: ConsoleMessage) -> None:
        told = f"{message.text} {message.location.get('url', '')}"
        if message.type in {"error", "warning"} and not _FOREIGN.search(told):
            self.trouble.append(f"console: {told}")

    def _failed(self, request: Request) -> None:
        is_foreign = _FOREIGN.search(request.frame.url) is not None
        if request.failure != _ABORTED and not (is_foreign and request.failure == _FORBIDDEN):
            self.trouble.append(f"request: {request.url} {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.trouble.append(f"answer: {response.status} {response.url}")

    async def open(self, path: str) -> None:
        await self.page.goto(f"{self.address}{path}", wait_until="load")

    def well(self) -> None:
        """Nothing was wrong so far."""
        assert not self.trouble, f"at {self.page.url}: {self.trouble}"

    async def forgive(self, status: int) -> None:
        """A refusal that a test has asked for; the console tells of it too, perhaps a moment later."""
        await until(partial(self._has_told_of, status))
        assert [told for told in self.trouble if str(status) not in told] == []
        self.trouble.clear()

    async def _has_told_of(self, status: int) -> bool:
        kinds = {told.partition(":")[0] for told in self.trouble if str(status) in told}
        return kinds == {"answer", "console"}

    async def barriers(self, *rules: str) -> list[str]:
        """What axe finds, also what it does not call serious, by all of its rules or by some."""
        await self.page.evaluate(_AXE)
        found: list[str] = await self.page.evaluate(_RUN_AXE, list(rules))
        return found

    async def overflow(self) -> list[str]:
        """What makes the page scroll sideways."""
        wide, room, widest = await self.page.evaluate(_WIDTHS)
        return [f"{wide} wide: {widest}"] if wide > room else []

    async def run_out(self) -> list[str]:
        """Words that lie over what is beside them."""
        found: list[str] = await self.page.evaluate(_RUN_OUT)
        return found

    async def too_wide(self) -> list[str]:
        """Whatever has not the room that it needs, also in what is folded."""
        await self.page.evaluate(_UNFOLD)
        found = [*await self.overflow(), *await self.run_out(), *await self.cut_off(), *await self.beside()]
        await self.page.evaluate(_FOLD)
        return found

    async def cut_off(self) -> list[str]:
        """What is to be pressed in tables and is out of sight."""
        found: list[str] = await self.page.evaluate(_CUT)
        return found

    async def tells(self, words: str) -> None:
        """The page that follows says so; the one before may say something else still."""
        await expect(self.page.locator("#flash")).to_contain_text(words)
        await self.page.wait_for_load_state()

    async def beside(self) -> list[str]:
        """Tables that have to be pushed sideways to be read."""
        found: list[str] = await self.page.evaluate(_BESIDE)
        return found

    def at(self, path: str) -> str:
        return f"{self.address}{path}"


class Desk:
    """The application, and what is on it."""

    def __init__(self, door: Door, seeded: Seeded) -> None:
        self.door = door
        self.seeded = seeded

    async def context(
        self, browser: Browser, role: Role | None, *, width: int = WIDE, scheme: Scheme = "light", **more: Any
    ) -> BrowserContext:
        made = await browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", **more
        )
        if role is not None:
            cookie = {"name": "homing_session", "value": self.seeded.cookies[role], "url": self.door.address}
            await made.add_cookies([cookie])  # type: ignore[list-item] # a dict of theirs, spelt out
        await made.add_init_script(_WATCH)
        return made

    @asynccontextmanager
    async def tab(self, browser: Browser, role: Role | None, **more: Any) -> AsyncIterator[Tab]:
        """A new browser window of somebody; at its end nothing may have been wrong."""
        context = await self.context(browser, role, **more)
        begun = len(self.crashes())
        try:
            tab = Tab(await context.new_page(), self.door.address)
            yield tab
            tab.well()
        finally:
            await context.close()
            bugs = self.crashes()[begun:]
            assert not bugs, bugs[0]

    def crashes(self) -> list[str]:
        """What the server's log has of bugs."""
        lines = self.door.log.all()
        return [f"{line['event']}: {str(line)[-3000:]}" for line in lines if line["level"] == "error"]

    async def audited(self, since: int = 0) -> Sequence[tuple[str, str, str | None, str]]:
        """Who did what to what, and how it ended; oldest first."""
        entries = await self.door.audit()
        return [(each["who"], each["action"], each["object"], each["outcome"]) for each in entries][since:]

    async def state(self, id: str) -> str:
        detail = await self.door.homing.desk.show(id, may=lambda _scope: True)
        assert detail is not None
        return detail.summary.state
