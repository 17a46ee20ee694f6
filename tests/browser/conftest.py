"""One Chromium for all tests of a process, and so one loop; desks on copies of what was sown once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright
from tests.browser.seed import ANSWERS, SETTINGS, Seed, Seeded, make_quick
from tests.browser.tab import Desk
from tests.conftest import require
from tests.http.door import Door, opened_door, url_with_tables

from homing.doctor import findings
from homing.testing.components.chromium import FLAGS, find_chromium, find_driver
from homing.testing.http_sink import HttpSink


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(pytestconfig: pytest.Config) -> AsyncIterator[Browser]:
    require(find_driver())
    program = require(find_chromium())
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield opened
        await opened.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def receiver() -> AsyncIterator[HttpSink]:
    """Whom webhooks go to; by several addresses of this machine it is several targets."""
    async with HttpSink(ANSWERS, host="0.0.0.0") as sink:
        yield sink


@asynccontextmanager
async def opened_desk(url: str, receiver: HttpSink, seeded: Seeded | None = None) -> AsyncIterator[Desk]:
    """The application on a database; sown, unless it was."""
    async with opened_door(url, **SETTINGS) as door:
        make_quick(door)
        door.homing.ground.address = door.address
        door.homing.health.examine = lambda: findings(door.homing.settings)
        yield Desk(door, seeded or await sown(door, receiver))
        await door.homing.webhooks.deliverer.drain(5)


async def sown(door: Door, receiver: HttpSink) -> Seeded:
    return await Seed(door, f"http://127.0.0.1:{receiver.port}").sow()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def seeded_file(receiver: HttpSink, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Seeded]:
    folder = tmp_path_factory.mktemp("seeded")
    async with opened_desk(url_with_tables(folder), receiver) as desk:
        seeded = desk.seeded
    return (folder / "homing.db").read_bytes(), seeded


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(
    receiver: HttpSink, seeded_file: tuple[bytes, Seeded], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Desk]:
    """For the tests of one file: each leaves alone what others use."""
    url = _copy(seeded_file[0], tmp_path_factory.mktemp("desk"))
    async with opened_desk(url, receiver, seeded_file[1]) as opened:
        yield opened


def _copy(content: bytes, folder: Path) -> str:
    path = folder / "homing.db"
    path.write_bytes(content)
    return f"sqlite:///{path}"
