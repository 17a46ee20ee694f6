"""How a component is had that is not there: from the system's packages, where that needs no password.

Whatever is installed is said on standard error before it happens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

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


def install_package(component: str, package: str) -> Missing | None:
    """Install a Debian package; None when it is there now."""
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
