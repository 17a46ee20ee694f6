"""What is taken out of a mail before somebody sees it whom it is not for: what a link works by, and codes.

By their names (`reset_password_token=…`, `"otp": …`), by what stands before them (`/reset/…`), and by their
looks (`/a/9fK2xQ81Zr0pLm`), however a link is written: as browsers read it (`token&#61;…`, `%74oken=…`), as
JSON, without its beginning, or inside of another. Links stay readable.

Beside links, what a label tells (`Your code: 834221`, `Password: hunter22`, `834221 is your code`).

Not recognised are a code that nothing tells of so (`type in 834221`), and in a link a word or a short number
that is told by nothing (`/c/4711`), or a part of its host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape, unescape
from typing import Any, Final
from urllib.parse import unquote

import msgspec

HIDDEN: Final = "hidden-in-preview"

#: Names that contain one of these hold what nobody else should have.
_SECRET: Final = re.compile(
    r"token|key|code|secret|otp|pass(?:w|phrase|(?![a-z]))|pwd|auth(?!ors?(?![a-z]))|credential|nonce|session|hash|jwt|ticket"
    r"|signature"
    r"|(?<![A-Za-z])(?:sig|pin|tan|mac|magic|tok)(?![A-Za-z])"
    r"|(?-i:(?<=[a-z])(?:Sig|Pin|Tan|Mac|Tok)(?![a-z]))",
    re.IGNORECASE,
)
#: … and so do these, which are too short to be looked for inside of others.
_SHORT: Final = re.compile(r"(?:^|\[)[tkchsu]\]?$", re.IGNORECASE)
_SHORT_INSIDE: Final = re.compile(r"(?<![A-Za-z0-9])[tkchsu]\]?=", re.IGNORECASE)
#: A name and its value, a text, a list of plain values or a number, in what only looks like JSON.
_PAIR: Final = re.compile(
    r'"([^"\\]{1,100})"(\s*:\s*)("(?:[^"\\]|\\.)*"?|\[[^\[\]{}]*\]?|[^\s",{}\[\]]+)', re.DOTALL
)
#: Links are found among these; each is looked at once.
_WORD: Final = re.compile(r"[^\s\"'<>]+")
_ENTITY: Final = re.compile(r"&#(?:[xX][0-9a-fA-F]{1,6}|[0-9]{1,7});?|&[A-Za-z][A-Za-z0-9]{1,31};")
#: As programs write JSON that stands in a page.
_ESCAPE: Final = re.compile(r"\\(?:/|u00([2-7][0-9a-fA-F]))")
_AFTER: Final = ").,;:!?]}"
#: Without one of these there is nothing to look for.
_MARKED: Final = re.compile(r"[=/]|mailto:", re.IGNORECASE)
#: Also a place without a scheme, such as `shop.example.org/a`.
_LINK: Final = re.compile(r"//|^/|mailto:|(?<![\w.-])(?:[\w-]+\.)+[\w-]+(?::[0-9]+)?[/?#]", re.IGNORECASE)
_HOST: Final = re.compile(r"[^/=]*//[^/]*")
#: Who logs in by it, and with what.
_USER: Final = re.compile(r"//[^/?#]*@")
_BETWEEN_PARTS: Final = re.compile(r"([?&#;])")
_GOES_ON: Final = re.compile(r"[/?&#;=][^/?&#;=]")
#: Behind one of these a link goes on with what it is about.
_LEADS_TO_ONE: Final = re.compile(
    r"reset|confirm|verif|activat|invit|magic|unsubscribe|token|password|recover|optin|opt-in|login|signin"
    r"|sign-in|auth(?!ors?(?![a-z]))|one-time|session|share",
    re.IGNORECASE,
)
#: In one step with what leads to it: `reset-834221`.
_CODE_INSIDE: Final = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{4,}")
#: A browser takes line breaks and tabs out of a link, so it goes on behind them.
_ATTRIBUTE: Final = re.compile(
    r"""(?<![\w-])(?:href|src|action|formaction|ping|cite|background|poster)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""",
    re.IGNORECASE,
)
_BREAKS: Final = str.maketrans({"\t": None, "\n": None, "\r": None, " ": "%20"})
#: Between a label and its value, and around both: white space, and in HTML tags.
_GAP: Final = r"(?:\s{1,80}+|&nbsp;|<[^<>]{0,300}+>){0,12}+"
_LABEL: Final = (
    r"(?:code|token|secret|key|passwor[dt]|passphrase|kennwort|pwd|(?<![a-z])(?:otp|pin|tan))s?(?![a-z])"
)
#: Of these the value may be a word, where a colon tells it.
_ANY: Final = r"(?:passwor[dt]|passphrase|kennwort|pwd)"
_TELLS: Final = rf"{_GAP}[:=]{_GAP}[\"']?"
#: Else a value has a digit, and a few words may stand before it.
_LABELLED: Final = re.compile(
    rf"""(?P<label>(?P<any>{_ANY}["']?{_TELLS}|authorization["']?{_TELLS}(?:bearer|basic)\s{{1,8}}+)"""
    rf"""|{_LABEL}["']?(?:[ \t]{{1,8}}+[^\s:=<>/?&#.]{{1,40}}+){{0,8}}"""
    rf"""(?:{_TELLS}|{_GAP}(?<=[\s>;])is:?(?![\w:]){_GAP}["']?))"""
    r"""(?P<value>[0-9]{2,4}(?:[ -][0-9]{2,4}){1,3}+(?![\w-])|[^\s"'<>&]{4,200}+)""",
    re.IGNORECASE,
)
_TOLD_AFTER: Final = re.compile(
    rf"(?<![\w/=.-])(?:[a-z]{{1,3}}-)?[0-9]{{3,10}}+(?:[ -][0-9]{{2,4}}+)?"
    rf"(?={_GAP}is\s{{1,8}}your\s[^.<>]{{0,60}}?{_LABEL})",
    re.IGNORECASE,
)
#: A link in a link is written in a way of its own, and may be so again.
_MOST_QUOTED: Final = 4
#: To look for tokens in so much takes a third of a second of CPU time, and nobody reads more of a preview.
LONGEST: Final = 1 << 20
#: What is shorter tells nothing.
_SHORTEST: Final = 6
_UUID: Final = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_LONG: Final = re.compile(r"[A-Za-z0-9]{10,}")
#: Longer than a number or a word that people write.
_TOO_LONG: Final = re.compile(r"[0-9]{16}|[A-Za-z]{20}")
#: Where letters become digits, digits letters, and small letters capitals.
_TURN: Final = re.compile(r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]|(?<=[a-z])[A-Z]")
_MANY_TURNS: Final = 3
_CAPITAL_INSIDE: Final = re.compile(r"(?<=[a-z])[A-Z]")


def is_secret_name(name: str) -> bool:
    return bool(_SECRET.search(name) or _SHORT.search(name))


def looks_random(text: str) -> bool:
    """Letters and digits mixed, capitals all over, or more in a row than people write: no word, no date."""
    return bool(
        _TOO_LONG.search(text)
        or _UUID.search(text)
        or len(_TURN.findall(text)) >= _MANY_TURNS
        or any(_is_mixed(piece) for piece in _LONG.findall(text))
    )


def _is_mixed(piece: str) -> bool:
    return not (piece.isalpha() or piece.isdigit()) or len(_CAPITAL_INSIDE.findall(piece)) > 1


# ── links ────────────────────────────────────────────────────────────────────────────────────────


def hide_tokens(text: str) -> str:
    """Links in a text or in HTML stay readable, and lead to nothing. A very long text ends early."""
    if len(text) > LONGEST:
        return (
            f"{hide_tokens(text[:LONGEST].rpartition(' ')[0])} … ({HIDDEN}: it has {len(text):,} characters)"
        )
    whole = _ATTRIBUTE.sub(_without_breaks, text) if "=" in text else text
    return _TOLD_AFTER.sub(HIDDEN, _LABELLED.sub(_without_value, _WORD.sub(_without_use, whole)))


def _without_breaks(found: re.Match[str]) -> str:
    """As it was written, where it is one word or nothing is to be hidden."""
    written = found[1] or found[2] or ""
    plain = _as_read(written).strip()
    link = plain.translate(_BREAKS)
    cleaned = link if link == plain else _harmless(link)
    return found[0] if cleaned == link else found[0].replace(written, escape(cleaned))


def _without_value(found: re.Match[str]) -> str:
    value = found["value"]
    told = found["any"] or any(map(str.isdigit, value))
    if not told or "://" in value or HIDDEN in value:
        return found[0]
    return f"{found['label']}{HIDDEN}{value[len(value.rstrip(_AFTER)) :]}"


def _without_use(found: re.Match[str]) -> str:
    """As it was written, where nothing is to be hidden."""
    word = found[0]
    plain = _as_read(word)
    if plain == word:
        return _harmless(word)
    cleaned = _WORD.sub(lambda part: _harmless(part[0]), plain)
    return word if cleaned == plain else escape(cleaned)


def _as_read(word: str) -> str:
    """What a browser makes of it."""
    if "&" in word:
        word = _ENTITY.sub(lambda found: unescape(found[0]), word)
    return _ESCAPE.sub(lambda found: chr(int(found[1] or "2f", 16)), word) if "\\" in word else word


def _harmless(word: str) -> str:
    if len(word) < _SHORTEST or not _MARKED.search(word) or word.startswith("data:image/"):
        return word
    link = word.rstrip(_AFTER)
    return "".join(_harmless_parts(_USER.sub(f"//{HIDDEN}@", link))) + word[len(link) :]


def _harmless_parts(link: str) -> Iterator[str]:
    """The path, and each parameter; of what is no link only values that have a name."""
    is_link = _LINK.search(link) is not None
    head, *others = _BETWEEN_PARTS.split(link)
    found = _HOST.match(head)
    host = found[0] if found else ""
    yield host
    # The host of a link to an app is its first step.
    leads = "." not in host and _leads(host)
    for mark, part in zip(["", *others[::2]], [head[len(host) :], *others[1::2]], strict=True):
        names, equals, value = part.partition("=")
        shown, leads = _harmless_path(names, is_name=bool(equals), leads=leads) if is_link else (names, False)
        hides = value and (leads or is_secret_name(unquote(names.rpartition("/")[2])) or _exposes(value))
        # A value may be the beginning of a link that goes on.
        leads = leads or (is_link and _leads(value))
        yield f"{mark}{shown}{equals}{HIDDEN if hides else value}"


def _harmless_path(path: str, *, is_name: bool, leads: bool) -> tuple[str, bool]:
    """And whether it leads to one: then all that follows is hidden, but the names of parameters."""
    shown = []
    *steps, last = path.split("/")
    for step in steps:
        shown.append(HIDDEN if step and (leads or _exposes(step)) else step)
        leads = leads or _leads(step)
    is_parameter = is_name and not steps
    hides = last and ((leads and not is_parameter) or _exposes(last))
    return "/".join([*shown, HIDDEN if hides else last]), leads or (not is_name and _leads(last))


def _leads(step: str) -> bool:
    return bool(_LEADS_TO_ONE.search(unquote(step)))


def _exposes(text: str) -> bool:
    """Whether there is something to hide in it, which may be a link itself."""
    if len(text) < _SHORTEST:
        return False
    for _ in range(_MOST_QUOTED if "%" in text else 0):
        text = unquote(text)
    leads = _LEADS_TO_ONE.search(text)
    return bool(
        looks_random(text)
        or _USER.search(text)
        or _SECRET.search(text.rpartition("=")[0])
        or _SHORT_INSIDE.search(text)
        or (leads and (_GOES_ON.search(text, leads.end()) or _CODE_INSIDE.search(text, leads.end())))
    )


def hide_in_header(name: str, value: str) -> str:
    return HIDDEN if is_secret_name(name) else hide_tokens(value)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────


def hide_in_json(text: str) -> str:
    """Of an object the values whose names tell that they are secrets, at any depth, and tokens in links.

    Numbers stay as they were written. What is no JSON, or is by other readers only (`NaN`), stays a text,
    without the values that stand beside such names. Of a very large one only its size is told.
    """
    if len(text) > LONGEST:
        return msgspec.json.encode({HIDDEN: f"it has {len(text):,} characters"}).decode()
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
