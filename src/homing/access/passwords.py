"""Passwords: scrypt, with the cost written beside the hash, so that it can grow."""

from __future__ import annotations

import asyncio
import hmac
import os
import unicodedata
from base64 import b64decode, b64encode

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from msgspec import Struct

from homing.errors import InvalidRequest

SHORTEST, LONGEST = 12, 1000
_SALT_BYTES = 16
_HASH_BYTES = 32
#: One takes 64 MiB while it is computed, so that a crowd at the door must not take all there is.
_AT_ONCE = 2


class Cost(Struct, frozen=True):
    """N is 2 to the power of `log_n`. The default is what OWASP recommends with 64 MiB."""

    log_n: int = 16
    r: int = 8
    p: int = 2


class Passwords:
    def __init__(self, cost: Cost | None = None) -> None:
        self._cost = cost or Cost()
        self._room = asyncio.Semaphore(_AT_ONCE)
        #: What an unknown name is compared with, so that it takes as long as a known one.
        self._nobody = _text(self._cost, bytes(_SALT_BYTES), bytes(_HASH_BYTES))

    async def hash(self, password: str) -> str:
        """Raises `InvalidRequest` for one that is too short."""
        require_length(password)
        salt = os.urandom(_SALT_BYTES)
        return _text(self._cost, salt, await self._derive(self._cost, salt, password))

    async def match(self, stored: str | None, password: str) -> bool:
        """Whether it is the password. Without a stored one it takes as long, and is not."""
        if len(password) > LONGEST:
            return False
        cost, salt, expected = _parts(stored or self._nobody)
        derived = await self._derive(cost, salt, password)
        return hmac.compare_digest(derived, expected) and bool(stored)

    async def _derive(self, cost: Cost, salt: bytes, password: str) -> bytes:
        # The same letters can be typed as different characters on two keyboards.
        typed = unicodedata.normalize("NFKC", password).encode("utf-8", "surrogatepass")
        async with self._room:
            return await asyncio.to_thread(_scrypt, cost, salt, typed)


def require_length(password: str) -> None:
    if not SHORTEST <= len(password) <= LONGEST:
        raise InvalidRequest(
            f"a password has {SHORTEST} to {LONGEST} characters; a few words are easy to remember",
            "password",
        )


def _scrypt(cost: Cost, salt: bytes, password: bytes) -> bytes:
    return Scrypt(salt, _HASH_BYTES, n=1 << cost.log_n, r=cost.r, p=cost.p).derive(password)


def _text(cost: Cost, salt: bytes, hash: bytes) -> str:
    return f"scrypt${cost.log_n}${cost.r}${cost.p}${b64encode(salt).decode()}${b64encode(hash).decode()}"


def _parts(stored: str) -> tuple[Cost, bytes, bytes]:
    _, log_n, r, p, salt, hash = stored.split("$")
    return Cost(int(log_n), int(r), int(p)), b64decode(salt), b64decode(hash)
