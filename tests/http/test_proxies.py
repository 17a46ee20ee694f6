"""Who is behind a proxy: told by those that are trusted, and by nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from litestar.datastructures import Headers
from tests.access.desk import PASSWORD
from tests.http.door import Door, url_with_tables
from tests.http.pages.visitor import OWN, door_with_people

from homing.errors import SettingsError
from homing.http.guard import Site
from homing.settings import load_settings

PROXY = "10.1.0.9"


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    """Behind a proxy on this machine, which is behind another one."""
    url = url_with_tables(tmp_path)
    async with door_with_people(url, trusted_proxies="127.0.0.1, 10.1.0.0/16") as door:
        yield door


async def log_in(door: Door, *hops: str, name: str = "operator", password: str = PASSWORD) -> httpx.Response:
    """Each hop is a line of its own, as proxies may write it."""
    lines = [("X-Forwarded-For", hop) for hop in hops]
    form = {"name": name, "password": password}
    return await door.client.post("/login", data=form, headers=[*OWN.items(), *lines])


async def addresses(door: Door) -> list[str | None]:
    rows = await door.sql("SELECT address FROM homing_audit WHERE action = 'session.open' ORDER BY id")
    return [row["address"] for row in rows]


async def test_a_trusted_proxy_says_who_asks_and_not_the_client(door: Door) -> None:
    for hops in (
        ("192.0.2.7",),
        ("1.1.1.1, 192.0.2.7",),
        ("unknown, 192.0.2.7", PROXY),
        ("127.0.0.1", f"192.0.2.7:5123, {PROXY}"),
        ("::ffff:192.0.2.7",),
    ):
        assert (await log_in(door, *hops)).status_code == 303, hops
    assert await addresses(door) == ["192.0.2.7"] * 5
    assert (await log_in(door, "[2001:db8::1]:443")).status_code == 303
    assert (await log_in(door)).status_code == 303
    assert (await addresses(door))[5:] == ["2001:db8::1", "127.0.0.1"]


async def test_a_field_behind_the_body_is_not_the_proxys(door: Door) -> None:
    """A proxy hands it on as the client wrote it."""
    form = urlencode({"name": "operator", "password": PASSWORD}).encode()
    fields = [*OWN.items(), ("X-Forwarded-For", "192.0.2.7"), ("Transfer-Encoding", "chunked")]
    head = [f"{name}: {value}" for name, value in fields]
    kind = "Content-Type: application/x-www-form-urlencoded"
    host, _, port = door.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = ["POST /login HTTP/1.1", f"Host: {host}", "Connection: close", kind, *head, "", ""]
    body = b"%x\r\n%b\r\n0\r\nX-Forwarded-For: 198.51.100.9\r\n\r\n" % (len(form), form)
    writer.write("\r\n".join(lines).encode() + body)
    assert (await reader.readline()).startswith(b"HTTP/1.1 303 ")
    writer.close()
    assert await addresses(door) == ["192.0.2.7"]


@pytest.mark.parametrize("hop", ["unknown", ",", "192.0.2", "_hidden", "fe80::1%any text", "x" * 5000])
async def test_what_is_no_address_is_refused(door: Door, hop: str) -> None:
    answer = await log_in(door, f"192.0.2.7, {hop}")
    assert answer.status_code == 400
    assert "X-Forwarded-For" in answer.text
    assert hop == "," or hop not in answer.text
    assert await addresses(door) == []


async def test_who_guesses_behind_a_proxy_keeps_nobody_else_out(door: Door) -> None:
    """All of them have the proxy's address by themselves."""
    statuses = [
        (await log_in(door, "192.0.2.7", name=f"user{number}", password="wrong")).status_code
        for number in range(25)
    ]
    assert (statuses[0], statuses[-1]) == (401, 429)
    assert (await log_in(door, "192.0.2.8")).status_code == 303


async def test_who_is_no_trusted_proxy_is_not_believed(tmp_path: Path) -> None:
    """Also on this machine: what a proxy passes on that adds nothing, its client has chosen."""
    async with door_with_people(url_with_tables(tmp_path)) as door:
        for hop in ("192.0.2.7", "unknown"):
            assert (await log_in(door, hop)).status_code == 303
        assert await addresses(door) == ["127.0.0.1"] * 2
        (told,) = door.log.all("proxy.untrusted")
        assert told["peer"] == "127.0.0.1"
        assert "192.0.2.7" not in str(told)
        secure = {**OWN, "X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
        form = {"name": "viewer", "password": PASSWORD}
        answer = await door.client.post("/login", data=form, headers=secure)
        assert "__Host-" not in answer.headers["set-cookie"]


async def test_a_trusted_proxy_says_whether_the_browser_speaks_https(door: Door) -> None:
    form = {"name": "viewer", "password": PASSWORD}
    for scheme, cookie in (
        ("https", "__Host-homing="),
        ("http, https", "__Host-homing="),
        ("http", "homing_session="),
    ):
        answer = await door.client.post("/login", data=form, headers={**OWN, "X-Forwarded-Proto": scheme})
        assert answer.headers["set-cookie"].startswith(cookie)


async def test_metrics_are_not_open_to_who_comes_through_a_proxy(door: Door, tmp_path: Path) -> None:
    assert (await door.ask("GET", "/metrics")).status_code == 401
    (tmp_path / "other").mkdir()
    async with door_with_people(url_with_tables(tmp_path / "other")) as direct:
        assert (await direct.ask("GET", "/metrics")).status_code == 200
        headers = {"X-Forwarded-For": "192.0.2.7"}
        assert (await direct.ask("GET", "/metrics", headers=headers)).status_code == 401


def test_an_address_of_ipv4_is_one_also_by_a_socket_of_ipv6() -> None:
    """Or all of them were one network to whoever counts failures."""
    scope: Any = {"client": ("::ffff:192.0.2.7", 5123)}
    assert not Site().see_through(scope, Headers({}))
    assert scope["client"] == ("192.0.2.7", 5123)


def test_what_is_no_network_is_said_to_be_none() -> None:
    for wrong in ("proxy.example.com", "10.0.0.7/8", "10.0.0.1,*"):
        with pytest.raises(SettingsError, match=r"HOMING_TRUSTED_PROXIES.*10\.1\.0\.0/16"):
            load_settings(environ={"HOMING_TRUSTED_PROXIES": wrong})
