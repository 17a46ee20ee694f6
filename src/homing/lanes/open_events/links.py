"""The links in mails: who has one may do what it says with one subscription, and nothing else.

A token is the base64 of `purpose, id, [expiry,] MAC`. Nothing is stored: the MAC covers purpose, id, expiry
and the address, so a link is for one purpose, and void as soon as the subscription has another address. A
link to confirm is void also when the subscription has ended since. What it leads to, the page to manage the
subscription, is behind a token that ends with it: who once saw such a link does not hold that page for good.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Literal

from msgspec import Struct

from homing.vault import Vault, key_file_of, load_or_make_key

Purpose = Literal["confirm", "manage", "unsubscribe"]
Verdict = Literal["valid", "expired", "invalid"]

CONFIRM_WITHIN = timedelta(hours=24)

#: A key is used for one thing only: this one is made of the key that seals credentials.
_LABEL = b"homing open_events links v1"
#: By purpose, and whether it expires.
_MARKS: dict[tuple[Purpose, bool], bytes] = {
    ("confirm", True): b"c",
    ("manage", False): b"m",
    ("manage", True): b"t",
    ("unsubscribe", False): b"u",
}
_PURPOSES = {mark: known for known, mark in _MARKS.items()}
_MAC_BYTES = 16
_EXPIRY_BYTES = 5
_MOST_ID_BYTES = 8
#: What is longer is none of ours; a foreign token is not longer either.
LONGEST_TOKEN = 200


class Token(Struct, frozen=True):
    """What a token says of itself. Only `LinkKeys.check` says whether that is true."""

    purpose: Purpose
    subscription_id: int
    #: Seconds since 1970; None is never.
    expires: int | None
    mac: bytes


@lru_cache(maxsize=1024)
def contact_hash(address: str) -> str:
    """As the column `contact_hash` has it."""
    return hashlib.sha1(address.strip().lower().encode("utf-8", "replace"), usedforsecurity=False).hexdigest()


def read_token(text: str) -> Token | None:
    """What a token says of itself, unproven; None for whatever is no token."""
    content = _decoded(text)
    purpose, expires = _PURPOSES.get(content[:1], (None, False))
    body, mac = content[1:-_MAC_BYTES], content[-_MAC_BYTES:]
    expiry = body[-_EXPIRY_BYTES:] if expires else b""
    id = body[: len(body) - len(expiry)]
    # Written in one way only: an id without leading zeros, an expiry that is whole.
    well_formed = 1 <= len(id) <= _MOST_ID_BYTES and id[0] and len(expiry) in {0, _EXPIRY_BYTES}
    if purpose is None or not well_formed:
        return None
    return Token(purpose, int.from_bytes(id), int.from_bytes(expiry) if expiry else None, mac)


class LinkKeys:
    """The newest key signs, all keys verify: so the key can be changed while mails lie in mailboxes."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise ValueError("links need a key")
        # Each has taken its key in already; a copy of it costs half of what `hmac.digest` does.
        self._keys = [hmac.new(hmac.digest(key, _LABEL, "sha256"), digestmod="sha256") for key in keys]

    def sign(
        self,
        purpose: Purpose,
        subscription_id: int,
        contact: str,
        expires: int | None = None,
        *,
        since: int = 0,
    ) -> str:
        """`since` is a number that has changed when the token is to be void; it does not stand in it."""
        said = _said(purpose, subscription_id, expires)
        return urlsafe_b64encode(said + _mac(self._keys[0], said, contact, since)).decode().rstrip("=")

    def check(
        self, token: Token | None, purpose: Purpose, contact: str | None, *, now: datetime, since: int = 0
    ) -> Verdict:
        """Whether it is true. `contact` is the subscription's address, None where there is no such one."""
        # What cannot be valid is computed through as well, so that the time says nothing.
        shown = token or Token("unsubscribe", 1, None, b"")
        said = _said(shown.purpose, shown.subscription_id, shown.expires)
        macs = [_mac(key, said, contact or "", since) for key in self._keys]
        matches = [hmac.compare_digest(mac, shown.mac) for mac in macs]
        if not any(matches) or contact is None or token is None or shown.purpose != purpose:
            return "invalid"
        return "valid" if shown.expires is None or now.timestamp() < shown.expires else "expired"

    def __repr__(self) -> str:
        return f"<LinkKeys of {len(self._keys)} keys>"


class Links:
    """Where a subscription's links go. `base_url` is asked each time: it may be known only when serving."""

    def __init__(self, open_keys: Callable[[], LinkKeys], base_url: Callable[[], str]) -> None:
        self._open_keys = open_keys
        self._base_url = base_url

    @cached_property
    def keys(self) -> LinkKeys:
        """Opened with the first link: who has no subscriptions needs no key."""
        return self._open_keys()

    def manage_url(self, subscription_id: int, contact: str) -> str:
        token = self.keys.sign("manage", subscription_id, contact)
        return self.manage_url_by(subscription_id, token)

    def manage_url_by(self, subscription_id: int, token: str) -> str:
        return self._url(f"subscriptions/{subscription_id}", token)

    def manage_token(self, subscription_id: int, contact: str, expires: int | None, *, since: int) -> str:
        """For whoever came by a link to confirm: it ends when that does, whichever of both ways."""
        return self.keys.sign("manage", subscription_id, contact, expires, since=since)

    def unsubscribe_url(self, subscription_id: int, contact: str) -> str:
        return self._url("unsubscribe", self.keys.sign("unsubscribe", subscription_id, contact))

    def confirm_url(self, subscription_id: int, contact: str, *, now: datetime, since: int = 0) -> str:
        """`since` is the event by which the subscription last ended: a link from before it is void."""
        expires = int((now + CONFIRM_WITHIN).timestamp())
        token = self.keys.sign("confirm", subscription_id, contact, expires, since=since)
        return self._url("confirm", token)

    def _url(self, path: str, token: str) -> str:
        # A token consists of characters that need no quoting.
        return f"{self._base_url().rstrip('/')}/{path}?token={token}"


def is_same_token(kept: str | None, given: str) -> bool:
    """Whether a token is the one that another program wrote into the row; the time does not say how near."""
    return hmac.compare_digest((kept or "").encode(), given.encode("utf-8", "replace")) and bool(kept)


def open_link_keys(setting: str | None, database_url: str) -> LinkKeys:
    """By the keys that seal credentials: those that are set, else the one in the key file."""
    if not setting:
        return LinkKeys([load_or_make_key(key_file_of(database_url))])
    # It says what is wrong with a key, better than a decoder would.
    Vault.from_setting(setting)
    return LinkKeys([_key(part) for part in setting.split(",") if part.strip()])


def _key(text: str) -> bytes:
    plain = text.strip().translate(str.maketrans("+/", "-_")).rstrip("=")
    return urlsafe_b64decode(plain + "=" * (-len(plain) % 4))


def _said(purpose: Purpose, subscription_id: int, expires: int | None) -> bytes:
    # Another program's id may be anything; below 1 it gets a link that leads nowhere.
    number = max(0, subscription_id)
    id = number.to_bytes(max(1, (number.bit_length() + 7) // 8))
    mark = _MARKS[purpose, expires is not None]
    return mark + id + (b"" if expires is None else expires.to_bytes(_EXPIRY_BYTES))


def _mac(key: hmac.HMAC, said: bytes, contact: str, since: int) -> bytes:
    mac = key.copy()
    # The mark tells how `said` is cut and its length stands first, so no two claims share a text.
    mac.update(len(said).to_bytes(1) + said + contact_hash(contact).encode())
    if since:
        mac.update(str(since).encode())
    return mac.digest()[:_MAC_BYTES]


def _decoded(text: str) -> bytes:
    if len(text) > LONGEST_TOKEN or not text.isascii():
        return b""
    try:
        content = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
    # The decoder overlooks foreign characters and the last, unused bits.
    same = urlsafe_b64encode(content).decode().rstrip("=") == text
    return content if same else b""
