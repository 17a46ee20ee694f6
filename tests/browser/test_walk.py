"""Chromium visits every page of the desk, as everybody who may: nothing is wrong with any of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from playwright.async_api import Browser, expect
from tests.browser.conftest import opened_desk
from tests.browser.places import NO_PAGES, places, routes_of
from tests.browser.tab import NARROW, WIDE, Desk, Scheme, Tab
from tests.conftest import IN_FULL

from homing.access.scopes import ROLES, Role
from homing.testing.http_sink import HttpSink

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

#: What depends on the colours; all else is the same in light and dark.
COLOURS = ("color-contrast", "link-in-text-block")
#: Thousands of words in one style: one look at them will do.
LONG_PAGE = "/docs"
MOST_EXAMINED = 8
ROLES_AND_WIDTHS = [(role, width) for role in ROLES for width in (WIDE, NARROW)]


async def test_no_page_is_forgotten(desk: Desk) -> None:
    served = {path for path, _ in routes_of(desk.door.app, "GET")}
    known = set(places(desk.door, desk.seeded))
    assert served - set(NO_PAGES) == known, "give tests/browser/places.py an example of each page"
    assert set(NO_PAGES) <= served


async def test_every_state_of_every_lane_is_sown(desk: Desk) -> None:
    for name, lane in desk.door.homing.desk.lanes.items():
        counts = await lane.counts()
        assert {state for state in lane.phases if not counts[state]} == set(), name


@pytest.mark.parametrize(("role", "width"), ROLES_AND_WIDTHS)
async def test_every_page_is_well(browser: Browser, desk: Desk, role: Role, width: int) -> None:
    async with desk.tab(browser, role, width=width) as tab:
        assert await Walk(desk, tab, role, width).all_that_is_wrong() == {}


async def test_every_page_is_well_on_postgresql(
    browser: Browser, migrated_postgres_url: str, receiver: HttpSink
) -> None:
    async with opened_desk(migrated_postgres_url, receiver) as desk, desk.tab(browser, "operator") as tab:
        assert await Walk(desk, tab, "operator", WIDE).all_that_is_wrong() == {}


class Walk:
    """Of somebody, through all pages that they may open."""

    def __init__(self, desk: Desk, tab: Tab, role: Role, width: int) -> None:
        self._desk, self._tab = desk, tab
        self._role, self._width = role, width

    async def all_that_is_wrong(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for route, paths in places(self._desk.door, self._desk.seeded).items():
            if may_open(self._desk, self._role, route):
                found |= await self._visit(paths)
            else:
                answer = await self._tab.page.request.get(self._tab.at(paths[0]))
                assert answer.status == 403, route
        return {path: wrong for path, wrong in found.items() if wrong}

    async def _visit(self, paths: Sequence[str]) -> dict[str, list[str]]:
        # Who may less sees the same pages with less on them.
        chosen = paths if IN_FULL or self._role == "admin" else paths[:4]
        found = {}
        for place, path in enumerate(chosen):
            await self._tab.open(path)
            await forgive_a_refusal(self._tab, path)
            found[path] = await wrong_with(self._tab)
            for scheme in self._examined(place, path):
                found[path] += await barriers_in(self._tab, scheme)
        return found

    def _examined(self, place: int, path: str) -> Sequence[Scheme]:
        """Axe takes longer than all else: an admin sees all there is, pages of one kind have one style."""
        if IN_FULL:
            return ("light", "dark")
        if self._role != "admin":
            return ()
        if self._width == WIDE and place == 0 and path != LONG_PAGE:
            return ("light", "dark")
        is_worth_it = place < MOST_EXAMINED if self._width == WIDE else place == 0 and path != LONG_PAGE
        return ("light",) if is_worth_it else ()


def may_open(desk: Desk, role: Role, route: str) -> bool:
    needed = dict(routes_of(desk.door.app, "GET"))[route].opt.get("scope")
    return needed is None or not ROLES[role].isdisjoint({needed, "*"})


#: Pages whose question may be one that nobody can answer; their examples have such.
REFUSING = ("/bulk/new", "/audit", "/subscriptions")


async def forgive_a_refusal(tab: Tab, path: str) -> None:
    """What was asked for cannot be, or not by this person: then the page says why."""
    if path.partition("?")[0] in REFUSING and any("422" in trouble for trouble in tab.trouble):
        await expect(tab.page.locator("#refused, #mistake").first).to_be_visible()
        await tab.forgive(422)


async def wrong_with(tab: Tab) -> list[str]:
    found = [*tab.trouble, *await tab.too_wide()]
    tab.trouble.clear()
    if await tab.page.title() == "owned":
        found.append("a script of somebody else has run")
    return found


async def barriers_in(tab: Tab, scheme: Scheme) -> list[str]:
    await tab.page.emulate_media(color_scheme=scheme)
    found = await tab.barriers(*(COLOURS if scheme == "dark" else ()))
    return [f"{scheme}: {barrier}" for barrier in found]
