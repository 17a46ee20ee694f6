"""The command line as a test calls it, and what came of it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class Result(Struct, frozen=True):
    returncode: int
    stdout: str
    stderr: str


Homing = Callable[..., Result]
