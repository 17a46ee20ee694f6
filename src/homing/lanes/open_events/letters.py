"""One letter for all subscribers of an event: only their links differ, so the rest is rendered once.

A template may do anything with a link, so it is tried first, with two pairs of links of nobody: one that
prints them as they are gives the same text but for the links. Only such a text is cut at its links and used
again, until templates are looked at anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from markupsafe import escape
from msgspec import Struct
from msgspec.structs import replace

from homing.engine.model import Monotonic
from homing.senders.printed import Filled, Printed, print_text
from homing.senders.templates import Rendered, TemplateProblem

#: What a template is called with, but for the links.
Render = Callable[[Mapping[str, str]], Rendered | TemplateProblem]

_NAMES = ("manageUrl", "unsubscribeUrl")
#: Seconds. Files are looked at as often.
_FRESH = 1.0
_MOST = 512
#: What tells one subscriber's link from another's: numbers and the token.
_OWN = re.compile(r"(?<=token=)[^&#]+|\d+")


class _Letter(Struct, frozen=True, gc=False):
    """A rendered mail in pieces: every second one is the name of a link. None where it cannot be cut."""

    subject: str
    text: tuple[str, ...]
    html: tuple[str, ...] | None
    locale: str
    #: Text and html once more, ready for being sent; None where that depends on the links.
    printed: tuple[Printed | None, Printed | None] = (None, None)


class Letter(Struct, frozen=True, gc=False):
    """A rendered mail for one subscriber."""

    subject: str
    text: str | Filled
    html: str | Filled | None
    locale: str


class Letters:
    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until = 0.0
        #: With what they were made from: while it is kept, no other object has its number.
        self._letters: dict[Hashable, tuple[Mapping[str, Any], _Letter | None]] = {}

    def write(
        self, template: Hashable, shared: Mapping[str, Any], links: Mapping[str, str], render: Render
    ) -> Letter | Rendered | TemplateProblem:
        """What `render` would give for these links; `shared` is the same object for all who get the same."""
        self._forget_the_old()
        key = (template, id(shared))
        known = self._letters.get(key)
        if known is None:
            # Some are written in threads: what is found is held, whoever forgets it meanwhile.
            known = self._letters[key] = shared, _cut(links, render)
        letter = known[1]
        return render(links) if letter is None else _fill(letter, links)

    def _forget_the_old(self) -> None:
        now = self._monotonic()
        if now >= self._until or len(self._letters) >= _MOST:
            self._letters.clear()
            self._until = now + _FRESH


def _cut(links: Mapping[str, str], render: Render) -> _Letter | None:
    one, other = _strangers(links, "nobody-0"), _strangers(links, "1-somebody-else")
    first, second = render(one), render(other)
    if isinstance(first, TemplateProblem) or isinstance(second, TemplateProblem):
        return None
    letter = _letter(first, one)
    if letter != _letter(second, other):
        return None
    html = None if letter.html is None else print_text(letter.html)
    return replace(letter, printed=(print_text(letter.text), html))


def _strangers(links: Mapping[str, str], mark: str) -> dict[str, str]:
    """Links of nobody. They have in common with others what all links have, and nothing that is one's own.

    So a template that prints a part of a link, or its length, is found out.
    """
    return {name: _OWN.sub(mark, link) for name, link in links.items()}


def _letter(rendered: Rendered, links: Mapping[str, str]) -> _Letter:
    html = None if rendered.html is None else _pieces(rendered.html, links, lambda link: str(escape(link)))
    return _Letter(rendered.subject, _pieces(rendered.text, links, str), html, rendered.locale)


def _pieces(text: str, links: Mapping[str, str], written: Callable[[str], str]) -> tuple[str, ...]:
    """`str.split` twice: a pattern for both takes ten times as long."""
    first, second = _NAMES
    parts: list[str] = []
    for part in text.split(written(links[first])):
        for piece in part.split(written(links[second])):
            parts += (piece, second)
        parts[-1] = first
    return tuple(parts[:-1])


def _fill(letter: _Letter, links: Mapping[str, str]) -> Letter:
    printed_text, printed_html = letter.printed
    text = _joined(letter.text, links, printed_text)
    if letter.html is None:
        return Letter(letter.subject, text, None, letter.locale)
    escaped = {name: str(escape(link)) for name, link in links.items()}
    return Letter(letter.subject, text, _joined(letter.html, escaped, printed_html), letter.locale)


def _joined(pieces: tuple[str, ...], links: Mapping[str, str], printed: Printed | None) -> str | Filled:
    if printed is not None:
        return Filled(printed, links)
    parts = list(pieces)
    parts[1::2] = [links[name] for name in pieces[1::2]]
    return "".join(parts)
