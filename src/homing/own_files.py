"""Files of ours that nobody else may read, or have written.

As ssh has it: what decides what we do belongs to us or to root, and nobody else may change it. A folder that
we were started in may be anybody's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE

from homing.errors import SettingsError

_OTHERS_READ = 0o077
_OTHERS_WRITE = 0o022
_OTHERS_ENTER = 0o011


def require_own(path: Path, status: os.stat_result, *, secret: bool) -> None:
    """Raise unless it is ours; of what is secret, unless nobody else may even read it."""
    if os.name != "posix":
        return
    if status.st_uid not in {0, os.geteuid()}:
        raise SettingsError(
            f"{path} belongs to another user (uid {status.st_uid}), who could decide what is done here: run "
            f"`chown {os.geteuid()} {path}`, or start homing as that user or in another folder"
        )
    if S_IMODE(status.st_mode) & (_OTHERS_READ if secret else _OTHERS_WRITE):
        what = "read" if secret else "changed"
        raise SettingsError(f"{path} may be {what} by others than its owner; run `chmod 600 {path}`")


def make_own(path: str) -> None:
    """Make an empty file that only we may read; where there is one, or none can be made, nothing happens.

    One that is there is not even opened: to close it would free the locks that this process has on it.
    """
    with suppress(OSError):
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def exposed(paths: Sequence[Path]) -> list[Path]:
    """Those that others may read, or change, because their folder lets them in."""
    return [path for path in paths if os.name == "posix" and path.exists() and _is_exposed(path)]


def _is_exposed(path: Path) -> bool:
    may_enter = S_IMODE(path.resolve().parent.stat().st_mode) & _OTHERS_ENTER
    return bool(may_enter and S_IMODE(path.stat().st_mode) & _OTHERS_READ)
