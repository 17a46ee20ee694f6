"""What commands read from files, or from standard input as `-`."""

from __future__ import annotations

import sys
from pathlib import Path

from homing.errors import InvalidRequest


def read_bytes(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None


def read_text(path: str) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is no text in UTF-8") from None


def read_secret(path: str) -> str:
    """Without the line end that editors and `echo` add."""
    return read_text(path).removesuffix("\n").removesuffix("\r")
