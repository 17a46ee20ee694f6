"""Chromium visits every page of the desk, as everybody who may: nothing is wrong with any of them."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser
from tests.browser.places import NO_PAGES, places, routes_of
from tests.browser.tab import NARROW, WIDE, Desk, Tab
from tests.conftest import IN_FULL

from homing.access.scopes import ROLES, Role

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

#: What depends on the colours; all else is the same in light and dark.
COLOURS = ("color-contrast", "link-in-text-block")
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
    scopes = {path: handler.opt.get("scope") for path, handler in routes_of(desk.door.app, "GET")}
    async with desk.tab(browser, role, width=width) as tab:
        for route, paths in places(desk.door, desk.seeded).items():
            needed = scopes[route]
            if needed is not None and needed not in ROLES[role] and "*" not in ROLES[role]:
                answer = await tab.page.request.get(tab.at(paths[0]))
                assert answer.status == 403, route
                continue
            for path in paths:
                await tab.open(path)
                await look_at(tab, role, width)


async def look_at(tab: Tab, role: Role, width: int) -> None:
    """Everything in light; in dark what colours change."""
    tab.well()
    await tab.fits()
    assert await tab.page.title() != "owned"
    if IN_FULL or (role, width) in {("admin", WIDE), ("operator", NARROW)}:
        await tab.accessible()
    if IN_FULL or (role, width) in {("admin", WIDE), ("viewer", NARROW)}:
        await tab.page.emulate_media(color_scheme="dark")
        await tab.accessible(*COLOURS)
        await tab.fits()
        await tab.page.emulate_media(color_scheme="light")
