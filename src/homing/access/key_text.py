"""`hom_ID_SECRET_CHECK`: how a key looks, and what is kept of it.

The id finds the row, the secret (32 random bytes) proves it, the check lets a scanner of repositories tell a
key from noise and refuses most typing mistakes without a question to the database. What is kept is a hash:
so many random bits cannot be guessed, so it needs no salt and no slowness.
"""

from __future__ import annotations

import hmac
import re
import secrets
import string
import zlib
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from hashlib import sha256

from msgspec import Struct

from homing.vault import Vault

_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_LETTERS = string.digits + string.ascii_lowercase
_ID_LENGTH = 10
_SECRET_BYTES = 32
#: As many as 32 bytes and 4 bytes take in base 62.
_SECRET_LENGTH, _CHECK_LENGTH = 43, 6
_ID = re.compile(rf"[0-9a-z]{{{_ID_LENGTH}}}")
_KEY = re.compile(rf"hom_({_ID.pattern})_([0-9A-Za-z]{{{_SECRET_LENGTH}}})_([0-9A-Za-z]{{6}})")
_PLAIN = "sha256:"
#: A key is used for one thing only: this one is made of the key that seals credentials.
_LABEL = b"homing api key hash v1"


class NewKey(Struct, frozen=True):
    """A key that was just made, to be shown once."""

    id: str
    text: str

    def __repr__(self) -> str:
        return f"NewKey(id={self.id!r})"


def make_key() -> NewKey:
    id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    secret = _base62(int.from_bytes(secrets.token_bytes(_SECRET_BYTES)), _SECRET_LENGTH)
    body = f"hom_{id}_{secret}"
    return NewKey(id, f"{body}_{_check(body)}")


def id_of(text: str) -> str | None:
    """The id in a key; None where it is no key at all."""
    match = _KEY.fullmatch(text)
    if match is None or _check(text.rpartition("_")[0]) != match[3]:
        return None
    return match[1]


def is_id(text: str) -> bool:
    """Whether a key may have it: a question to the database is only asked for what can be."""
    return _ID.fullmatch(text) is not None


def _check(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECK_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


class KeyHashes:
    """`sha256:HEX`, or with encryption keys `hmac:FINGERPRINT:HEX` by the newest of them.

    Of an HMAC nobody makes one who can write to the database and nothing else. So once there is an encryption
    key a plain hash counts no more, also one from before, which cannot be told from one that was put there. A
    person can vouch for it: then it is `sealed:FINGERPRINT:HEX`, an HMAC of the plain one, until it is used.
    """

    def __init__(self, encryption_keys: Sequence[bytes] = ()) -> None:
        derived = [hmac.digest(key, _LABEL, sha256) for key in encryption_keys]
        self._keys = {sha256(key).hexdigest()[:12]: key for key in derived}
        self._newest = next(iter(self._keys), None)
        #: What an unknown id is compared with, so that it takes as long as a known one.
        self._nobody = self.of("nobody")

    @classmethod
    def from_setting(cls, text: str | None) -> KeyHashes:
        """By `HOMING_ENCRYPTION_KEY`; never by the key file, which processes elsewhere do not have."""
        if not text:
            return cls()
        # It says what is wrong with a key, better than a decoder would.
        Vault.from_setting(text)
        return cls([_decoded(part) for part in text.split(",") if part.strip()])

    def of(self, text: str) -> str:
        return _plain(text) if self._newest is None else self._keyed(self._newest, text)

    def match(self, stored: str | None, text: str) -> bool:
        """Whether it is the hash of this key. Without one it takes as long, and is not."""
        known = stored if stored is not None else self._nobody
        return hmac.compare_digest(known, self._again(known, text)) and stored is not None

    def counts(self, stored: str) -> bool:
        """Whether a key that matches it may be let in."""
        return self._newest is None or not stored.startswith(_PLAIN)

    def sealed(self, plain: str) -> str | None:
        """What a plain hash becomes where there is an encryption key; None of what needs no seal."""
        if self._newest is None or not plain.startswith(_PLAIN):
            return None
        return self._sealed(self._newest, plain)

    def is_current(self, stored: str) -> bool:
        return self._newest is None or stored.startswith(f"hmac:{self._newest}:")

    def _again(self, stored: str, text: str) -> str:
        form, _, rest = stored.partition(":")
        fingerprint = rest.partition(":")[0]
        if form in {"hmac", "sealed"} and fingerprint not in self._keys:
            return "unknown"
        if form == "hmac":
            return self._keyed(fingerprint, text)
        return self._sealed(fingerprint, _plain(text)) if form == "sealed" else _plain(text)

    def _sealed(self, fingerprint: str, plain: str) -> str:
        return f"sealed:{fingerprint}:{hmac.new(self._keys[fingerprint], plain.encode(), sha256).hexdigest()}"

    def _keyed(self, fingerprint: str, text: str) -> str:
        return f"hmac:{fingerprint}:{hmac.new(self._keys[fingerprint], text.encode(), sha256).hexdigest()}"

    def __repr__(self) -> str:
        return f"<KeyHashes by {len(self._keys)} keys>"


def _plain(text: str) -> str:
    return f"{_PLAIN}{sha256(text.encode()).hexdigest()}"


def _decoded(text: str) -> bytes:
    plain = text.strip().translate(str.maketrans("+/", "-_")).rstrip("=")
    return urlsafe_b64decode(plain + "=" * (-len(plain) % 4))
