"""Forms that were refused: each comes back with what stood in it, and the mistake beside its field.

A page is shown again by what shows it otherwise, and told what was `sent`. Its template asks for each field
what is to stand there. That needs no script.

    {% set limits = sent.of("/targets/limits") %}
    <input name="rate" value="{{ limits.text("rate", "10") }}"{{ limits.marks("rate") }}>
    {{ limits.mistake("rate") }}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

from markupsafe import Markup
from msgspec import Struct

from homing.errors import HomingError, InvalidRequest
from homing.http.pages.writing import ticks

Choice = TypeVar("Choice")

#: Of the element that says what is wrong; a page has one at most.
_MISTAKE = "mistake"


class Refused(Struct, frozen=True):
    """Why nothing was done, for a person."""

    text: str
    #: What it is about, as whoever refused it calls it.
    field: str | None = None


def refusal(error: HomingError) -> Refused:
    return Refused(str(error), getattr(error, "field", None))


class Fields(Struct, frozen=True):
    """What is to stand in the fields of one form: what was sent, or else what the page would show."""

    sent: Mapping[str, Sequence[str]] | None = None
    wrong: str = ""
    why: str = ""

    def text(self, name: str, otherwise: object = "") -> str:
        """Of a field to write into. One that was not sent was empty."""
        if self.sent is None:
            return str(otherwise)
        return next(iter(self.sent.get(name, ())), "")

    def has(self, name: str, value: str, *, otherwise: bool = False) -> bool:
        """Whether a box is ticked, or a choice made."""
        return otherwise if self.sent is None else value in self.sent.get(name, ())

    def marks(self, name: str) -> Markup:
        """Attributes of the field that is wrong: one can write at once, and hears why with its name."""
        if name != self.wrong:
            return Markup()
        return Markup(' aria-invalid="true" aria-describedby="{}" autofocus').format(_MISTAKE)

    def mistake(self, name: str) -> Markup:
        """What stands below the field that is wrong."""
        if name != self.wrong:
            return Markup()
        return Markup('<p class="error-text" id="{}">{}</p>').format(_MISTAKE, ticks(self.why))


class Sent(Struct, frozen=True):
    """A form as it was sent, and why nothing was done."""

    action: str = ""
    values: Mapping[str, Sequence[str]] = {}
    field: str = ""
    why: str = ""

    def of(self, action: str, **which: str) -> Fields:
        """`which` tells forms of a page apart that go to the same place: by fields that nobody changes."""
        is_it = action == self.action and all(
            list(self.values.get(name, ())) == [value] for name, value in which.items()
        )
        return Fields(self.values, self.field, self.why) if is_it else _UNTOUCHED


_UNTOUCHED: Final = Fields()
NOTHING_SENT: Final = Sent()


class Form(Struct, frozen=True):
    """A form, by where it goes."""

    action: str
    #: Names that mistakes have for its fields, where they are others.
    names: Mapping[str, str] = {}
    #: What is said of a field in place of a mistake that speaks to programs.
    says: Mapping[str, str] = {}
    #: What a mistake is about that names no field.
    about: str = ""
    #: What is never shown again: it has to be written anew.
    secrets: Collection[str] = ()

    def sent(self, given: Mapping[str, str | Sequence[str]], refused: Refused) -> Sent:
        values = {
            name: (value,) if isinstance(value, str) else tuple(value)
            for name, value in given.items()
            if name not in self.secrets
        }
        field = refused.field or self.about
        return Sent(self.action, values, self.names.get(field, field), self._why(refused))

    def _why(self, refused: Refused) -> str:
        """Without a name that stands nowhere on the page."""
        name = refused.field or ""
        text = refused.text.removeprefix(f"{name}: ") if name in self.names else refused.text
        return self.says.get(name, text)


def chosen(options: Mapping[str, Choice], text: str, field: str) -> Choice:
    """What a choice stands for; raises `InvalidRequest` for one that was not offered."""
    if text not in options:
        offered = ", ".join(name for name in options if name)
        raise InvalidRequest(f"{field}: choose one of {offered}", field)
    return options[text]
