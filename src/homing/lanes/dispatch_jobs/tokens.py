"""The token of a job's message: only who knows it may have the job processed.

It is an HMAC of the job's id, so nothing is stored, and one that leaks opens one job only.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from hashlib import sha256

from homing.vault import Vault, key_file_of, load_or_make_key

#: A key is used for one thing only: this one is made of the key that seals credentials.
_LABEL = b"homing dispatch process token v1"


class ProcessTokens:
    """The newest key makes them, all keys accept them: so the key can be changed while messages wait."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = [hmac.digest(key, _LABEL, sha256) for key in keys]

    def token(self, job: str) -> str:
        return _mac(self._keys[0], job)

    def accepts(self, job: str, token: str) -> bool:
        given = token.encode("utf-8", "replace")
        # All keys are tried, so that the time says nothing of which one it was.
        matches = [hmac.compare_digest(_mac(key, job).encode(), given) for key in self._keys]
        return any(matches)

    def __repr__(self) -> str:
        return f"<ProcessTokens of {len(self._keys)} keys>"


def _mac(key: bytes, job: str) -> str:
    return hmac.new(key, job.encode(), sha256).hexdigest()


def open_tokens(setting: str | None, database_url: str) -> ProcessTokens:
    """By the keys that seal credentials: those that are set, else the one in the key file."""
    if not setting:
        return ProcessTokens([load_or_make_key(key_file_of(database_url))])
    # It says what is wrong with a key, better than a decoder would.
    Vault.from_setting(setting)
    return ProcessTokens([_decoded(part) for part in setting.split(",") if part.strip()])


def _decoded(text: str) -> bytes:
    plain = text.strip().translate(str.maketrans("+/", "-_")).rstrip("=")
    return urlsafe_b64decode(plain + "=" * (-len(plain) % 4))
