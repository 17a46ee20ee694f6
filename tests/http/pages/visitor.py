"""Somebody with a browser: logs in, reads pages, and sends their forms."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import httpx
from tests.access.desk import CHEAP, PASSWORD
from tests.http.door import Door, opened_door

from homing.access.passwords import Passwords
from homing.access.scopes import Role
from homing.access.sessions import csrf_of

OWN = {"Sec-Fetch-Site": "same-origin"}
_FORM = re.compile(r'<form[^>]*method="post"[^>]*action="([^"]+)"')
_INLINE = re.compile(r"<style|\sstyle=|\son[a-z]+=|<script(?! src=)", re.IGNORECASE)
_FLASH = re.compile(r'id="flash"[^>]*>(.*?)</p>', re.DOTALL)


class Visitor:
    """One browser with one session."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    @property
    def csrf(self) -> str:
        return csrf_of(str(self.client.cookies["homing_session"]))

    async def read(self, path: str, expected: int = 200, /, **query: Any) -> str:
        """A page; nothing in it is against our own policy."""
        response = await self.client.get(path, params=query or None, headers={"Accept": "text/html"})
        assert response.status_code == expected, response.text
        assert response.headers["content-type"].startswith("text/html")
        assert not _INLINE.search(response.text), "inline script or style"
        return response.text

    async def send(self, path: str, form: Mapping[str, Any]) -> httpx.Response:
        return await self.client.post(path, data={"csrf": self.csrf, **form}, headers=OWN)

    async def done(self, path: str, **form: Any) -> str:
        """What the page after it says."""
        response = await self.send(path, form)
        assert response.status_code == 303, response.text
        page = await self.read(response.headers["location"])
        told = _FLASH.search(page)
        assert told is not None, "nothing was told"
        return unescape(told[1])

    async def refused(self, path: str, **form: Any) -> str:
        """The page that a form comes back with."""
        response = await self.send(path, form)
        assert response.status_code == 422, response.text
        assert not _INLINE.search(response.text), "inline script or style"
        assert 'id="refused" role="alert"' in response.text
        return response.text


def forms_of(page: str) -> set[str]:
    """Where the forms of a page go, but those that every page has."""
    return set(_FORM.findall(page)) - {"/theme", "/logout"}


@asynccontextmanager
async def visiting(door: Door, role: Role) -> AsyncIterator[Visitor]:
    async with httpx.AsyncClient(base_url=door.address, timeout=30) as client:
        form = {"name": role, "password": PASSWORD, "next": "/"}
        answer = await client.post("/login", data=form, headers=OWN)
        assert answer.status_code == 303, answer.text
        yield Visitor(client)


@asynccontextmanager
async def door_with_people(url: str, **settings: Any) -> AsyncIterator[Door]:
    async with opened_door(url, encryption_key="A" * 43 + "=", **settings) as door:
        access = door.homing.access
        access.users._passwords = access.log_in._passwords = Passwords(CHEAP)
        for role in ("viewer", "operator", "admin"):
            await access.users.add(role, PASSWORD, role, by="cli:test")
        access._looked = -100.0
        yield door
