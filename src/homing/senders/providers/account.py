"""What a provider's URL says: whom we are to them, where they are, and how they are to be used.

    sendgrid://:API_KEY@
    ses://ACCESS_KEY:SECRET@eu-central-1?configuration_set=outbound&timeout=10

Secrets are percent-decoded and shown to nobody. What is wrong is said at the start, without repeating
any part that may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import ip_address
from typing import NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from homing.errors import SettingsError

#: What every provider's URL may say.
_OPTIONS = ("endpoint", "timeout", "connections", "cafile")
_IS_SECRET = re.compile(r"[!-~]{1,500}").fullmatch
_YES, _NO = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A provider's URL, read."""

    scheme: str
    #: After the @: a host, a region, a domain; or empty.
    place: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: The API's root, where it is not the provider's own.
    endpoint: str | None = None
    #: Seconds for one request, its answer included.
    timeout: float = 30.0
    #: Most requests at a time, where the URL says so.
    connections: int | None = None
    #: A file with the certificates of a private authority, in place of the system's.
    cafile: str | None = None
    #: How such a URL is written.
    example: str = ""

    def wrong(self, problem: str) -> NoReturn:
        _refuse(self.scheme, problem, self.example)

    def key(self) -> str:
        """The one secret of a provider that knows no user."""
        secret = self.password or self.user
        if secret is None:
            self.wrong("has no API key")
        if self.password and self.user and self.user != "api":
            self.wrong("has a user beside the API key, which is not used")
        return secret

    def flag(self, name: str) -> bool:
        value = self.options.get(name, "false").lower()
        if value not in _YES | _NO:
            self.wrong(f"needs true or false for {name}")
        return value in _YES

    def words(self, name: str) -> tuple[str, ...]:
        """A list, its words parted by + or blanks."""
        return tuple(self.options.get(name, "").split())

    def choice(self, name: str, choices: Sequence[str]) -> str:
        value = self.options.get(name, choices[0]).lower()
        if value not in choices:
            self.wrong(f"needs {' or '.join(choices)} for {name}")
        return value


def read_account(url: str, *, options: Sequence[str], example: str) -> Account:
    """Read a URL; `options` are those that only this provider knows."""
    parts = _split(url, example)
    known = (*options, *_OPTIONS)
    given = _options(parts, known, example)
    return Account(
        scheme=parts.scheme,
        place=_place(parts, example),
        user=_secret(parts, parts.username, example),
        password=_secret(parts, parts.password, example),
        options=given,
        endpoint=_endpoint(parts, given.get("endpoint"), example),
        timeout=_number(parts, given, "timeout", (0.05, 600.0), example) or 30.0,
        connections=_whole(parts, given, example),
        cafile=given.get("cafile"),
        example=example,
    )


def _refuse(scheme: str, problem: str, example: str) -> NoReturn:
    raise SettingsError(
        f"the mail URL {scheme}://… {problem}; write {example}, with @ : / ? # , % in a secret as"
        " %40 %3A %2F %3F %23 %2C %25"
    )


def _split(url: str, example: str) -> SplitResult:
    scheme = url.partition(":")[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        # The reason may quote the URL, and with it the secret.
        parts = None
    if parts is None or parts.path not in {"", "/"} or parts.fragment:
        _refuse(scheme, "cannot be read", example)
    return parts


def _place(parts: SplitResult, example: str) -> str:
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", 0
    if port is not None or not all(char.isalnum() or char in ".-_" for char in host):
        _refuse(parts.scheme, "has something after the @ that does not belong there", example)
    return host


def _secret(parts: SplitResult, text: str | None, example: str) -> str | None:
    if not text:
        return None
    secret = unquote(text)
    if not _IS_SECRET(secret):
        _refuse(parts.scheme, "has a key with a blank or a character that is not ASCII", example)
    return secret


def _options(parts: SplitResult, known: Sequence[str], example: str) -> dict[str, str]:
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        _refuse(parts.scheme, "gives an option twice", example)
    for name in options:
        if name not in known:
            told = f"has an unknown option{_shown(name, known)}, there are {', '.join(known)}"
            _refuse(parts.scheme, told, example)
    return options


def _shown(name: str, known: Sequence[str]) -> str:
    """Show a mistyped option, but not the rest of a key that contained a question mark."""
    near = get_close_matches(name, known, n=1)
    return f" {name!r} (did you mean {near[0]!r}?)" if near and name.replace("_", "").isalpha() else ""


def _endpoint(parts: SplitResult, text: str | None, example: str) -> str | None:
    if text is None:
        return None
    try:
        given = urlsplit(text)
        host, _ = given.hostname, given.port
    except ValueError:
        host = None
    if not host or given.scheme not in {"http", "https"} or given.query or given.fragment or "@" in text:
        _refuse(parts.scheme, "needs an https:// address without user or query for endpoint", example)
    if given.scheme == "http" and not _is_loopback(host):
        _refuse(parts.scheme, "would send the key in the clear: use https:// for endpoint", example)
    return text.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _number(
    parts: SplitResult, options: Mapping[str, str], name: str, within: tuple[float, float], example: str
) -> float | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not within[0] <= value <= within[1]:
        _refuse(parts.scheme, f"needs a number from {within[0]:g} to {within[1]:g} for {name}", example)
    return value


def _whole(parts: SplitResult, options: Mapping[str, str], example: str) -> int | None:
    value = _number(parts, options, "connections", (1, 1000), example)
    if value is not None and value != int(value):
        _refuse(parts.scheme, "needs a whole number for connections", example)
    return None if value is None else int(value)
