"""What is taken out of a mail before somebody sees it whom it is not for: what a link works by, and codes.

By their names (`reset_password_token=…`, `"otp": …`), by what stands before them (`/reset/…`), and by their
looks (`/a/9fK2xQ81Zr0pLm`). Links stay readable. A code in the middle of a sentence is not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

HIDDEN: Final = "hidden-in-preview"

#: Names that contain one of these hold what nobody else should have.
_SECRET: Final = re.compile(
    r"token|key|code|secret|otp|pass(?:w|phrase|$)|pwd|auth|credential|nonce|session|hash|jwt|ticket"
    r"|signature|(?:^|[_-])(?:sig|pin|tan|mac|magic)(?:$|[_-])",
    re.IGNORECASE,
)
#: … and so do these, which are too short to be looked for inside of others.
_SHORT: Final = frozenset("tkchsu")
_PARAMETER: Final = re.compile(r"([?&#;](?:amp;)?)([\w.\[\]-]{1,100})=([^&#;\s\"'<>)\]]+)")
#: A name and its value, a text, a list of plain values or a number, in what only looks like JSON.
_PAIR: Final = re.compile(
    r'"([^"\\]{1,100})"(\s*:\s*)("(?:[^"\\]|\\.)*"?|\[[^\[\]{}]*\]?|[^\s",{}\[\]]+)', re.DOTALL
)
#: In steps: a text that has no link is looked at once.
_LINK: Final = re.compile(r"(https?://[^\s/?#\"'<>]+)(/[^\s?#\"'<>]*)", re.IGNORECASE)
#: Behind one of these a path goes on with what it is about.
_LEADS_TO_ONE: Final = re.compile(
    r"reset|confirm|verif|activat|invit|magic|unsubscribe|token|password|recover|optin|opt-in|login|signin"
    r"|sign-in|auth|one-time|session|share",
    re.IGNORECASE,
)
_UUID: Final = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_PIECE: Final = re.compile(r"[A-Za-z0-9]{10,}")
_CAPITAL_INSIDE: Final = re.compile(r"[a-z][A-Z].*[a-z][A-Z]")


def is_secret_name(name: str) -> bool:
    return bool(_SECRET.search(name)) or name.lower() in _SHORT


def looks_random(text: str) -> bool:
    """Letters and digits mixed, or capitals all over, in a long piece: no word, and no date."""
    return bool(_UUID.search(text)) or any(_is_mixed(piece) for piece in _PIECE.findall(text))


def _is_mixed(piece: str) -> bool:
    has_both = any(letter.isdigit() for letter in piece) and any(letter.isalpha() for letter in piece)
    return has_both or bool(_CAPITAL_INSIDE.search(piece))


def hide_tokens(text: str) -> str:
    """Links in a text stay readable, and lead to nothing."""
    return _LINK.sub(_without_path, _PARAMETER.sub(_without_value, text))


def _without_value(found: re.Match[str]) -> str:
    start, name, value = found.groups()
    hides = is_secret_name(name) or looks_random(value)
    return f"{start}{name}={HIDDEN}" if hides else found[0]


def _without_path(found: re.Match[str]) -> str:
    host, path = found.groups()
    parts = path.split("/")
    kept = [
        HIDDEN if part and (looks_random(part) or (before and _LEADS_TO_ONE.search(before))) else part
        for before, part in zip(["", *parts], parts, strict=False)
    ]
    return f"{host}{'/'.join(kept)}"


def hide_in_json(text: str) -> str:
    """Of an object the values whose names tell that they are secrets, at any depth, and tokens in links.

    Numbers stay as they were written. What is no JSON, or is by other readers only (`NaN`), stays a text,
    without the values that stand beside such names.
    """
    try:
        return msgspec.json.encode(_cleaned(text.encode())).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return hide_tokens(_PAIR.sub(_without_secret, text))


def _without_secret(found: re.Match[str]) -> str:
    name, colon, _ = found.groups()
    return f'"{name}"{colon}"{HIDDEN}"' if is_secret_name(name) else found[0]


def _cleaned(text: bytes, name: str = "") -> Any:
    begin = text.lstrip()[:1]
    if begin == b"{":
        fields: Mapping[str, msgspec.Raw] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {key: _cleaned(bytes(value), _inner(name, key)) for key, value in fields.items()}
    if begin == b"[":
        return [_cleaned(bytes(one), name) for one in msgspec.json.decode(text, type=list[msgspec.Raw])]
    if begin == b'"':
        return _cleaned_text(msgspec.json.decode(text, type=str), name)
    if name and is_secret_name(name) and begin not in b"tfn":
        return HIDDEN
    msgspec.json.decode(text)
    return msgspec.Raw(text)


def _inner(outer: str, name: str) -> str:
    """What is inside of a secret is one, whatever it is called."""
    return outer if outer and is_secret_name(outer) else name


def _cleaned_text(text: str, name: str) -> str:
    is_link = text.lower().startswith(("https://", "http://"))
    return HIDDEN if name and is_secret_name(name) and not is_link else hide_tokens(text)
