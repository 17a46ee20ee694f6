"""Ground for servers of our own: a place, a free port, an account, and a guardian that ends them."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_GUARDIAN = Path(__file__).with_name("guardian.py")
_MEMORY = Path("/dev/shm")
_PLENTY = 4 * 1024**3


@dataclass(frozen=True)
class Account:
    """Who a server runs as when we are root; some refuse to be root."""

    name: str
    uid: int
    gid: int


def account_for_servers(*names: str) -> Account | None:
    """The first of the accounts that exists; None when we are not root and stay who we are."""
    if os.geteuid() != 0:
        return None
    entries = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = next(entries[name] for name in (*names, "nobody") if name in entries)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_home(prefix: str, account: Account | None, *, in_memory: bool = False) -> Path:
    """A new directory that the account owns and can reach; in memory only where there is plenty."""
    place = _MEMORY if in_memory and _has_room(_MEMORY) else _reachable_temporary_directory()
    home = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    if account is not None:
        os.chown(home, account.uid, account.gid)
    home.chmod(0o755)
    return home


def _has_room(place: Path) -> bool:
    return os.access(place, os.W_OK) and shutil.disk_usage(place).free >= _PLENTY


def _reachable_temporary_directory() -> Path:
    """TMPDIR may lie in a home directory, where another account may not even pass through."""
    candidates = [Path(place).resolve() for place in (tempfile.gettempdir(), "/tmp", "/var/tmp")]
    if os.geteuid() != 0:
        return candidates[0]
    return next(place for place in candidates if reachable_by_all(place))


def reachable_by_all(path: Path) -> bool:
    return all(step.is_dir() and step.stat().st_mode & stat.S_IXOTH for step in (path, *path.parents))


def copy_where_reachable(folders: Iterable[Path], home: Path) -> None:
    for folder in folders:
        shutil.copytree(folder, home / folder.name, symlinks=True)


def hold(lock: Path) -> IO[str]:
    """Keep the server behind this lock file alive until the handle is closed or we are gone."""
    handle = lock.open("a")
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def guard(
    mode: str, lock: Path, home: Path, command: Sequence[str | Path], account: Account | None = None
) -> None:
    """Start the guardian of a server; see `guardian.py`. The lock must be held already."""
    environment = dict(os.environ)
    if account is not None:
        environment["GUARDIAN_ACCOUNT"] = f"{account.uid}:{account.gid}"
    arguments = [sys.executable, "-I", _GUARDIAN, mode, lock, home, home / "guardian.log", *command]
    # Its own session: Ctrl-C in the terminal is for the tests, the guardian has work to do then.
    subprocess.run(
        arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} took more than {seconds:g} s")
        time.sleep(0.02)
