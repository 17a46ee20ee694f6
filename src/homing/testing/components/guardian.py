"""Ends a server when the last process that holds its lock file is gone, however that process ended.

    python guardian.py stop LOCK HOME LOG COMMAND…   COMMAND stops the server
    python guardian.py run  LOCK HOME LOG COMMAND…   COMMAND is the server, and a child of ours

Users of the server hold a shared lock; the guardian waits for the exclusive one, which the kernel
grants when all of them have let go or died, SIGKILL included. Then it ends the server and removes
HOME and the folder of LOCK. It knows no process id that could be somebody else's by then.
With GUARDIAN_ACCOUNT (uid:gid) the command runs as that account. This file runs on its own, apart
from the tests, and needs only the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO


def main() -> None:
    mode, lock, home, log, *command = sys.argv[1:]
    os.chdir("/")
    # The starter waits for the process it started; the one that stays is a child of that one, and
    # nobody has to collect it.
    with Path(lock).open() as handle, Path(log).open("a") as output:
        if os.fork() == 0:
            watch(mode, handle, output, command)
            for folder in (home, Path(lock).parent):
                shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def watch(mode: str, lock: IO[str], log: IO[str], command: list[str]) -> None:
    child = start(command, log) if mode == "run" else None
    fcntl.flock(lock, fcntl.LOCK_EX)
    if child is not None:
        end(child)
        return
    # Whoever closed the server in an orderly way has removed it, and maybe the program, too.
    with contextlib.suppress(OSError):
        start(command, log).wait()


def start(command: list[str], log: IO[str]) -> subprocess.Popen[bytes]:
    account = os.environ.get("GUARDIAN_ACCOUNT")
    if account is None:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    uid, gid = map(int, account.split(":"))
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=uid, group=gid, extra_groups=[]
    )


def end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
