"""The receiver of the webhook race: nginx, which answers every POST with 200 and counts them.

One worker process of it answers several times more POSTs than anything that is measured sends.
"""

from __future__ import annotations

import http.client
import re
import shutil
import socket
from pathlib import Path
from typing import IO, Self

from homing.testing.components.obtain import Missing, find_or_install
from homing.testing.components.processes import (
    account_for_servers,
    free_port,
    guard,
    hold,
    make_home,
    wait_until,
)

#: Administrators' folders, which an ordinary user's PATH leaves out.
_FOLDERS = "/usr/sbin:/usr/local/sbin:/usr/local/bin:/opt/homebrew/bin"

_CONFIGURATION = """
daemon off;
worker_processes 1;
pid {home}/pid;
{account}
events {{ worker_connections 2048; }}
http {{
    access_log off;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{ return 200 "ok"; }}
        location = /counted {{ stub_status; }}
    }}
}}
"""


def find_nginx() -> Path | Missing:
    """The program, installed first where that is possible."""
    return find_or_install("nginx", "nginx", _installed)


def _installed() -> Path | None:
    found = shutil.which("nginx") or shutil.which("nginx", path=_FOLDERS)
    return Path(found) if found else None


class WebhookSink:
    """A running nginx on loopback. It ends with the process that started it."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._home: Path | None = None
        self._hold: IO[str] | None = None
        self.port = free_port()

    def start(self) -> None:
        # As root it drops its privileges itself, so it starts as we are.
        account = account_for_servers("www-data", "nginx")
        home = self._home = make_home("homing-nginx-", account)
        self._hold = hold(home / "holders")
        user = f"user {account.name};" if account else ""
        text = _CONFIGURATION.format(home=home, account=user, port=self.port)
        (home / "nginx.conf").write_text(text)
        error_log = str(home / "error.log")
        command = (self._program, "-p", home, "-e", error_log, "-c", home / "nginx.conf")
        guard("run", home / "holders", home, command)
        wait_until(self._answers, f"starting nginx on port {self.port}")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._hold is None or self._home is None:
            return
        home, self._home = self._home, None
        self._hold.close()
        self._hold = None
        wait_until(lambda: not home.exists(), "stopping nginx")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ArrivalCounter:
    """How many POSTs the sink has answered since it was asked for the first time, by its own count."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self._asked = 0
        self._before = self._requests()

    def arrived(self) -> int:
        """Our own questions are requests too."""
        return self._requests() - self._before - self._asked + 1

    def _requests(self) -> int:
        self._connection.request("GET", "/counted")
        found = re.search(r"\n \d+ \d+ (\d+) ", self._connection.getresponse().read().decode())
        assert found is not None, "nginx tells how many requests it has had"
        self._asked += 1
        return int(found[1])

    def close(self) -> None:
        self._connection.close()
