"""Secrets at rest: AES-256-GCM, each bound to the row and the column it was sealed for.

A sealed secret is `v1:FINGERPRINT:BASE64`: the version, which key it was sealed by, and nonce, ciphertext and
tag. Several keys may be given, newest first: the first one seals, all of them open. What was moved to
another row or column, changed, or sealed by a key that is missing is `Unreadable`.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tempfile
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from homing.errors import HomingError, SettingsError
from homing.own_files import require_own

KEY_FILE = "homing.key"

_VERSION = "v1"
_IS_SEALED = re.compile(r"v\d+:[0-9a-f]{12}:").match
_KEY_BYTES = 32
_NONCE_BYTES = 12
_HOW = "make one with `openssl rand -base64 32`"


class Unreadable(HomingError):
    """A sealed secret cannot be opened."""


def is_sealed(text: str) -> bool:
    """Whether it has the form of what a vault seals, of any version; else it is plain text."""
    return _IS_SEALED(text) is not None


class Vault:
    """Seals and opens. `row` and `field` (table and column) are part of the seal, and cannot be changed."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != _KEY_BYTES for key in keys):
            raise ValueError("a vault needs keys of 32 bytes")
        self._ciphers = {_fingerprint(key): AESGCM(key) for key in keys}
        self._newest = _fingerprint(keys[0])

    @classmethod
    def from_setting(cls, text: str) -> Vault:
        """From `HOMING_ENCRYPTION_KEY`: base64 of 32 bytes; several by commas, newest first."""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            raise SettingsError(f"HOMING_ENCRYPTION_KEY holds no key; {_HOW}")
        return cls([_key_in_setting(part, place) for place, part in enumerate(parts, 1)])

    def seal(self, plaintext: str, *, row: int, field: str) -> str:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        bound = _bound_to(self._newest, row, field)
        sealed = nonce + self._ciphers[self._newest].encrypt(nonce, plaintext.encode(), bound)
        return f"{_VERSION}:{self._newest}:{urlsafe_b64encode(sealed).decode()}"

    def open(self, sealed: str, *, row: int, field: str) -> str:
        """Raises `Unreadable`, with a sentence that names no secret."""
        fingerprint, content = _parts(sealed)
        cipher = self._ciphers.get(fingerprint)
        if cipher is None:
            raise Unreadable(
                f"it was sealed by the key {fingerprint}, which is missing here: add it to "
                "HOMING_ENCRYPTION_KEY, or restore the key file"
            )
        try:
            opened = cipher.decrypt(
                content[:_NONCE_BYTES], content[_NONCE_BYTES:], _bound_to(fingerprint, row, field)
            )
        except (InvalidTag, ValueError):
            raise Unreadable("it was changed, or sealed for another row or column") from None
        return opened.decode()

    def is_current(self, sealed: str) -> bool:
        """Whether the newest key sealed it."""
        return sealed.startswith(f"{_VERSION}:{self._newest}:")


def _parts(sealed: str) -> tuple[str, bytes]:
    version, _, rest = sealed.partition(":")
    fingerprint, _, text = rest.partition(":")
    try:
        content = b64decode(text, altchars=b"-_", validate=True)
    except ValueError:
        content = b""
    # Written in one way only: base64 itself would overlook a change of its last, unused bits.
    if version != _VERSION or not content or urlsafe_b64encode(content).decode() != text:
        raise Unreadable("it is no sealed secret of a version that is known here")
    return fingerprint, content


def _bound_to(fingerprint: str, row: int, field: str) -> bytes:
    return f"homing\0{_VERSION}\0{fingerprint}\0{field}\0{row}".encode()


def _fingerprint(key: bytes) -> str:
    return hashlib.sha256(b"homing vault key\0" + key).hexdigest()[:12]


def _key_in_setting(text: str, place: int) -> bytes:
    key = _decoded(text)
    if key is None:
        raise SettingsError(f"HOMING_ENCRYPTION_KEY: key {place} is not base64 of 32 bytes; {_HOW}")
    return key


def _decoded(text: str) -> bytes | None:
    standard = text.translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        key = b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except ValueError:
        return None
    return key if len(key) == _KEY_BYTES else None


# ── a key of our own, where none is set ──────────────────────────────────────────────────────────


def open_vault(setting: str | None, database_url: str) -> Vault:
    """By the keys that are set, else by the key file beside the database, which is made when missing."""
    if setting:
        return Vault.from_setting(setting)
    return Vault([load_or_make_key(key_file_of(database_url))])


def key_file_of(database_url: str) -> Path:
    """Beside an SQLite file; for a server's database, in the current folder."""
    is_file = urlsplit(database_url).scheme == "sqlite"
    return file_of(database_url).parent / KEY_FILE if is_file else Path(KEY_FILE)


def file_of(sqlite_url: str) -> Path:
    return Path(unquote(urlsplit(sqlite_url).path[1:]))


def load_or_make_key(path: Path) -> bytes:
    """The key in a file that only its owner may read. Processes that start together agree on one."""
    if not path.exists():
        _make_key(path)
    try:
        with path.open("rb") as file:
            require_own(path, os.fstat(file.fileno()), secret=True)
            key = _decoded(file.read(1000).decode("ascii", "replace").strip())
    except OSError as error:
        raise SettingsError(f"the encryption key {path} cannot be read: {error.strerror}") from None
    if key is None:
        raise SettingsError(
            f"{path} holds no key (base64 of 32 bytes); restore it, or the stored credentials stay unreadable"
        )
    return key


def _make_key(path: Path) -> None:
    """Written whole under another name, then linked: nobody ever sees half a key, and the first one stays."""
    text = b64encode(secrets.token_bytes(_KEY_BYTES)) + b"\n"
    try:
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600, O_EXCL
    except OSError as error:
        raise _cannot_make(path, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_make(path, error) from None
    finally:
        Path(draft).unlink()


def _cannot_make(path: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"no encryption key can be kept at {path}: {error.strerror}; "
        f"set HOMING_ENCRYPTION_KEY instead, {_HOW}"
    )


def _sync_folder(folder: Path) -> None:
    """Or a power cut could keep what was sealed and forget the key."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
