"""Mails from templates: folders of files, one set for each language.

    FOLDER/open-seat/en.subject.txt      one line
    FOLDER/open-seat/en.txt              the text; made from the html where it is missing
    FOLDER/open-seat/en.html             the html; may be missing
    FOLDER/open-seat/v2/de.subject.txt   the same for a version that is asked for by name

Where no version is asked for, files outside of versions are meant, else those of `v1`. Several folders are
looked through file by file, so that one file in an operator's folder replaces just that one of ours.

Templates are written by whoever runs Homing, variables come from anywhere. So values are escaped in
html, cannot be called into mischief (a sandbox) nor blow up the output, and never stand in an error.
A mail has a budget of CPU time, which is looked at where a template may go on for long: at each turn of a
loop and at each call. In the event loop it is a short one; what needs more is rendered again in a thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from html import unescape
from itertools import islice
from pathlib import Path
from threading import local
from time import monotonic, thread_time
from typing import Any

from jinja2 import (
    FileSystemLoader,
    StrictUndefined,
    Template,
    TemplateError,
    TemplateSyntaxError,
    UndefinedError,
    nodes,
    pass_context,
)
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing
from msgspec import Struct

from homing.senders.addresses import CONTROL
from homing.senders.mail import SendErrorCode

#: The most that one part of a mail may become.
RENDER_LIMIT = 1_000_000
#: Seconds of CPU time for a mail: where all others wait for it, and where nobody does.
HURRIED_SECONDS, RENDER_SECONDS = 0.02, 2.0
#: The most html, in characters, of which a text is made in a hurry.
_HURRIED_HTML = 16 * 1024
#: Turns and calls between two looks at the clock, which takes as long as some turns.
_BETWEEN_LOOKS = 32
#: What takes a number for a width or a count.
_SIZED_FILTERS = ("batch", "center", "indent", "slice", "tojson", "truncate", "wordwrap")
#: What is meant where no version is asked for and no files stand outside of versions.
_FIRST_VERSION = "v1"
_MOST_KNOWN = 512

_NAME = re.compile(r"[a-z0-9]+(?:[_-]+[a-z0-9]+)*").fullmatch
_VERSION = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*").fullmatch
_LOCALE = re.compile(r"[A-Za-z]{1,8}(?:[-_][A-Za-z0-9]{1,8}){0,4}").fullmatch

#: What a template does wrong with the values it got; anything else is a bug of ours.
_RENDER_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Rendered(Struct, frozen=True, gc=False):
    """The parts of a mail in one language."""

    subject: str
    text: str
    html: str | None
    #: The language that was found, such as `de` where `de-AT` was asked for.
    locale: str


class _Compiled(Struct, frozen=True):
    """A template in one language, ready to be filled in; it has a text, an html or both."""

    subject: Template
    text: Template | None
    html: Template | None
    locale: str
    #: When the files were looked at, by the clock of `Templates`.
    looked_at: float


class TemplateProblem(Struct, frozen=True, gc=False):
    """Why there is no mail; trying again later changes nothing."""

    code: SendErrorCode
    #: One line for a person; names the template and the variable, never a value.
    message: str


class Templates:
    """The templates of some folders, the first one first. Changed files are picked up by themselves.

    To look at the files takes longer than to fill them in. So a worker that sends thousands a second looks
    at most every `recheck_seconds`; with 0 every mail does.
    """

    def __init__(
        self,
        *folders: Path,
        default_locale: str = "en",
        recheck_seconds: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._folders = folders
        self._default_locale = _canonical(default_locale)
        self._recheck_seconds = recheck_seconds
        self._clock = clock
        self._known: dict[tuple[str, str | None, str | None], _Compiled] = {}
        self._environment = _Environment(
            loader=FileSystemLoader(folders),
            autoescape=_is_html,
            undefined=_Missing,
            auto_reload=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def render(
        self,
        template: str,
        variables: Mapping[str, Any],
        locale: str | None = None,
        version: str | None = None,
        *,
        hurried: bool = False,
    ) -> Rendered | TemplateProblem:
        """Fill in a template in the best language there is: `de-AT`, else `de`, else the default.

        When `hurried`, as in the event loop, it raises `TakesLong` before others notice.
        """
        try:
            return self._fill(self._compiled(template, locale, version), variables, hurried=hurried)
        except _ProblemError as refused:
            return TemplateProblem(refused.code, f"template {_shown(template)}: {refused}")

    def missing(self, template: str, locale: str, version: str | None = None) -> list[str]:
        """Say what keeps a template from being used in exactly this language, one line for each reason."""
        try:
            found = self._compile(template, locale, version)
        except _ProblemError as refused:
            return [f"template {_shown(template)} in {locale}: {refused}"]
        if found.locale == _canonical(locale):
            return []
        return [f"template {_shown(template)} in {locale}: there is only {found.locale}"]

    # ── Finding ──────────────────────────────────────────────────────────────────────────────────

    def _compiled(self, template: str, locale: str | None, version: str | None) -> _Compiled:
        if not self._recheck_seconds:
            return self._compile(template, locale, version)
        key = (template, locale, version)
        known = self._known.get(key)
        now = self._clock()
        if known is None or known.looked_at + self._recheck_seconds <= now:
            # Locales come from outside: without an end to it they would fill the memory.
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self._compile(template, locale, version)
        return known

    def _compile(self, template: str, locale: str | None, version: str | None) -> _Compiled:
        base, found = self._best_locale(self._bases(template, version), locale)
        stem = f"{base}/{found}"
        text, html = self._optional(f"{stem}.txt"), self._optional(f"{stem}.html")
        if text is None and html is None:
            raise _ProblemError(f"it has neither {found}.txt nor {found}.html")
        return _Compiled(self._load(f"{stem}.subject.txt"), text, html, found, self._clock())

    def _bases(self, template: str, version: str | None) -> tuple[str, ...]:
        if not _NAME(template):
            raise _ProblemError("its name may consist of a-z, 0-9, - and _")
        if version is None:
            return template, f"{template}/{_FIRST_VERSION}"
        if not _VERSION(version):
            raise _ProblemError("its version may consist of a-z, 0-9, '.', - and _")
        return (f"{template}/{version}",)

    def _best_locale(self, bases: tuple[str, ...], locale: str | None) -> tuple[str, str]:
        """Find the language; one exists as soon as it has a subject."""
        candidates = _candidates(locale, self._default_locale)
        for base in bases:
            for candidate in candidates:
                if self._exists(f"{base}/{candidate}.subject.txt"):
                    return base, candidate
        if not self._exists(bases[0]):
            raise _ProblemError(f"there is no folder {bases[0]}")
        raise _ProblemError(
            f"it exists neither in the language asked for nor in {self._default_locale}",
            SendErrorCode.TEMPLATE_MISSING_LOCALE,
        )

    def _exists(self, name: str) -> bool:
        return any(os.access(f"{folder}/{name}", os.F_OK) for folder in self._folders)

    def _optional(self, name: str) -> Template | None:
        return self._load(name) if self._exists(name) else None

    def _load(self, name: str) -> Template:
        try:
            return self._environment.get_template(name)
        except _RENDER_ERRORS as failed:
            raise self._problem(name, failed) from None

    # ── Filling in ───────────────────────────────────────────────────────────────────────────────

    def _fill(self, found: _Compiled, variables: Mapping[str, Any], *, hurried: bool) -> Rendered:
        self._environment.begin(hurried=hurried)
        known = {**self._environment.globals, **variables}
        subject = self._render(found.subject, known).strip("\r\n ")
        if CONTROL.search(subject):
            raise _ProblemError("the subject contains a line break or another control character")
        html = self._render(found.html, known) if found.html else None
        if hurried and not found.text and len(html or "") > _HURRIED_HTML:
            raise TakesLong
        text = self._render(found.text, known) if found.text else text_from_html(html or "")
        return Rendered(subject, text, html, found.locale)

    def _render(self, template: Template, known: dict[str, Any]) -> str:
        # Its own `new_context` copies the environment's globals each time, which takes as long as the rest.
        context = Context(self._environment, known, template.name, template.blocks)
        try:
            return _within_limit(template.root_render_func(context))
        except _RENDER_ERRORS as failed:
            raise self._problem(template.name or "", failed) from None

    def _problem(self, name: str, failed: Exception) -> _ProblemError:
        file = name.rpartition("/")[2]
        match failed:
            case _MissingError():
                message = f"{file} needs {self._named(failed.message or '', name)}"
                return _ProblemError(message, SendErrorCode.TEMPLATE_VARIABLE_MISSING)
            case _TooSlowError():
                return _ProblemError(f"{file} takes longer than {RENDER_SECONDS:g} s")
            case TemplateSyntaxError():
                # Its message quotes the template, which may be long, so the line has to do.
                return _ProblemError(f"{file} has a syntax error in line {failed.lineno}")
            case _:
                # The error's own text often contains values.
                return _ProblemError(f"{file} cannot be rendered ({type(failed).__name__})")

    def _named(self, absent: str, name: str) -> str:
        """Name what is absent, unless that could be a value itself, as in `prices[customer]`."""
        if not absent.startswith("."):
            return f"the variable {absent}"
        if absent[1:].isidentifier() and re.search(rf"\.{absent[1:]}\b", self._source(name)):
            return f"the field {absent[1:]} of a variable"
        return "an entry that a variable does not have"

    def _source(self, name: str) -> str:
        path = next((folder / name for folder in self._folders if (folder / name).is_file()), None)
        return path.read_text(encoding="utf-8", errors="replace") if path else ""


class TakesLong(Exception):
    """A mail is not rendered in a moment."""


class _ProblemError(Exception):
    """How the methods above say why, on the way up to `render`, which returns it as a value."""

    def __init__(self, message: str, code: SendErrorCode = SendErrorCode.VALIDATION_ERROR) -> None:
        super().__init__(message)
        self.code = code


class _MissingError(UndefinedError):
    """A variable is not there."""


class _TooLargeError(SecurityError):
    """A part of the mail, or a value on its way there, grows past the limit."""


class _TooSlowError(SecurityError):
    """The mail takes more time than it has."""


class _Missing(StrictUndefined):
    """An undefined value that says its name and nothing else when it is used."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = missing,
        name: str | None = None,
        exc: type[TemplateRuntimeError] = UndefinedError,
    ) -> None:
        super().__init__(hint, obj, name, _MissingError if exc is UndefinedError else exc)

    @property
    def _undefined_message(self) -> str:
        # A dot tells what is looked up inside a variable from the variable itself.
        inside = self._undefined_obj is not missing or not self._undefined_name
        return f"{'.' if inside else ''}{self._undefined_name}"


class _Budget(local):
    """What is left of the time that a mail has; each thread renders one at a time."""

    def __init__(self) -> None:
        self.begin(hurried=False)

    def begin(self, *, hurried: bool) -> None:
        self._left = _BETWEEN_LOOKS
        self._hurried = hurried
        self._until = thread_time() + (HURRIED_SECONDS if hurried else RENDER_SECONDS)

    def spend(self) -> None:
        self._left -= 1
        if self._left:
            return
        self._left = _BETWEEN_LOOKS
        if thread_time() > self._until:
            raise TakesLong if self._hurried else _TooSlowError("too slow")


class _Generator(CodeGenerator):
    """Lets loops pass by the budget, and joined texts by the limit."""

    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:  # noqa: N802 - as Jinja calls it
        for loop in node.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_turns", [], [], None, None, lineno=loop.lineno)
        super().visit_Template(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:  # noqa: N802
        self.write("environment.filters['_limited'](")
        super().visit_Concat(node, frame)
        self.write(")")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox of Jinja, which also limits ranges, and nothing that makes huge values or takes long."""

    intercepted_binops = frozenset({"+", "*", "**"})
    code_generator_class = _Generator

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._budget = _Budget()
        self.begin = self._budget.begin
        # It makes as many paragraphs as it is asked for.
        self.globals.pop("lipsum", None)
        self.filters |= {name: _with_small_numbers(self.filters[name]) for name in _SIZED_FILTERS}
        self.filters |= {"_turns": self._turns, "_limited": _limited}

    @pass_context
    def _turns(self, _context: Context, items: Iterable[Any]) -> Iterator[Any]:
        spend = self._budget.spend
        for item in items:
            spend()
            yield item

    def call(self, context: Context, callee: Any, *args: Any, **kwargs: Any) -> Any:
        self._budget.spend()
        _require_small_numbers(args, kwargs)
        if isinstance(callee, LoopContext) and args:
            args = (self._turns(context, args[0]), *args[1:])
        return super().call(context, callee, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _grown(operator, left, right) > RENDER_LIMIT:
            raise _TooLargeError("too large")
        return super().call_binop(context, operator, left, right)


def _limited(text: str) -> str:
    if len(text) > RENDER_LIMIT:
        raise _TooLargeError("too large")
    return text


def _with_small_numbers(filter: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _require_small_numbers(args[1:], kwargs)
        return filter(*args, **kwargs)

    return checked


def _require_small_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """A number that is given to something may be a width, for which it makes as many blanks."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and value > RENDER_LIMIT:
            raise _TooLargeError("too large")


def _grown(operator: str, left: Any, right: Any) -> float:
    """Estimate the size of a sum, a product or a power; numbers count by their bits."""
    if operator == "+":
        return _weight(left) + _weight(right)
    if operator == "**":
        return _weight(left) * right if isinstance(right, int) else 0
    if isinstance(left, int) and isinstance(right, int):
        return _weight(left) + _weight(right)
    count = left if isinstance(left, int) else right
    return max(_weight(left), _weight(right)) * count if isinstance(count, int) else 0


def _weight(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _is_html(name: str | None) -> bool:
    return name is None or not name.endswith(".txt")


def _within_limit(pieces: Iterator[str]) -> str:
    whole = ""
    # In handfuls: to look at each piece would take as long as to make it.
    while handful := list(islice(pieces, 50)):
        whole += "".join(handful)
        if len(whole) > RENDER_LIMIT:
            raise _TooLargeError("too large")
    return whole


def _shown(template: str) -> str:
    return template if _NAME(template) and len(template) <= 80 else "?"


@lru_cache(maxsize=256)
def _candidates(locale: str | None, default: str) -> tuple[str, ...]:
    """The languages to try: the one asked for, then less and less exact, then the default."""
    try:
        subtags = _canonical(locale).split("-") if locale else []
    except ValueError as refused:
        raise _ProblemError(str(refused)) from None
    exact_first = ["-".join(subtags[:count]) for count in range(len(subtags), 0, -1)]
    return tuple(dict.fromkeys([*exact_first, default]))


def _canonical(locale: str) -> str:
    """Spell a language tag the usual way: `de-AT`, `zh-Hant-TW`."""
    if not _LOCALE(locale):
        raise ValueError("the language has to look like de or de-AT")
    language, *subtags = locale.replace("_", "-").split("-")
    spelled = [
        tag.title() if len(tag) == 4 else tag.upper() if len(tag) < 4 else tag.lower() for tag in subtags
    ]
    return "-".join([language.lower(), *spelled])


# ── Text from html ───────────────────────────────────────────────────────────────────────────────

#: Comments, declarations, elements that show nothing, and tags, each consumed in one pass: nothing
#: here can fail after it has begun, so the time is linear. The standard library's parser took 33 s
#: for 60 kB of `<a <a <a`.
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(?P<silent>head|script|style|title|template|svg|object)\b[^>]*+>"
    r".*?(?:</(?P=silent)\s*+>|(?=<body\b)|\Z)"
    r"|<[!?][^>]*+(?:>|\Z)"
    r"|<(?P<end>/?)(?P<tag>[a-z][^\s/>]*+)"
    r"""(?P<attributes>(?:[^>=]++|=\s*+"[^"]*+(?:"|\Z)|=\s*+'[^']*+(?:'|\Z)|=)*+)(?:>|\Z)""",
    re.IGNORECASE | re.DOTALL,
)
_NO_CHARACTER = re.compile(r"&#[0-9]{100,};?")
_ATTRIBUTE = re.compile(
    r"""([^\s=/>"']++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>]++)))?""",
)
_HIDDEN = re.compile(r"display\s*:\s*none", re.IGNORECASE)
_VOID = frozenset(
    {"br", "hr", "img", "input", "meta", "link", "area", "base", "col", "embed", "source", "wbr"}
)
_LINES = frozenset(
    {"div", "section", "article", "header", "footer", "main", "nav", "aside", "center", "address", "form"}
    | {"figure", "figcaption", "tr", "li", "dt", "dd", "body", "caption", "thead", "tbody", "tfoot"}
)
_PARAGRAPHS = frozenset(
    {"p", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "table", "pre", "dl", "ul", "ol"}
)
#: Deeper lists and quotations are not moved further to the right.
_DEEPEST = 8
_UNDERLINES = {"h1": "=", "h2": "-"}
_SHOWN_LINKS = ("http://", "https://", "mailto:", "tel:")


def text_from_html(html: str) -> str:
    """Make the text part of a mail that has only html: readable, with its links, without its looks."""
    writer = _TextWriter()
    position = 0
    for markup in _MARKUP.finditer(html):
        writer.text(html[position : markup.start()])
        position = markup.end()
        if markup["tag"]:
            writer.tag(markup["tag"].lower(), markup["attributes"], ends=bool(markup["end"]))
    writer.text(html[position:])
    return writer.finish()


class _TextWriter:
    """Collects lines while tags and text come by."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        #: Pieces, of which none is empty: a line may be as long as the mail.
        self._line: list[str] = []
        #: What has to stand between the line so far and the next word, once there is one.
        self._between = ""
        #: The number of the next item of each open list; None for a list with dashes.
        self._lists: list[int | None] = []
        self._marker = ""
        self._quotes = 0
        self._preformatted = 0
        self._link: str | None = None
        self._label: list[str] = []
        #: The element that is hidden, and how many of the same name are open inside.
        self._hidden: tuple[str, int] | None = None

    def finish(self) -> str:
        self._end_link()
        self._break_line()
        return "\n".join(self._lines).strip("\n")

    def text(self, data: str) -> None:
        if self._hidden or not data:
            return
        data = _unescaped(data)
        if not data:
            return
        if self._preformatted:
            self._preformatted_text(data)
            return
        words = " ".join(data.split())
        if data[0].isspace():
            self._between = self._between or " "
        if words:
            self._put(words)
            self._between = " " if data[-1].isspace() else ""

    def tag(self, name: str, attributes: str, *, ends: bool) -> None:
        if self._hidden:
            self._count_hidden(*self._hidden, name, ends=ends)
        elif ends:
            self._end(name)
        elif name not in _VOID and _is_hidden(attributes):
            self._hidden = (name, 1)
        else:
            self._start(name, attributes)

    def _count_hidden(self, hidden: str, depth: int, name: str, *, ends: bool) -> None:
        if name == hidden:
            depth += -1 if ends else 1
            self._hidden = (hidden, depth) if depth else None

    def _start(self, name: str, attributes: str) -> None:
        if name in _PARAGRAPHS:
            self._begin_block(name)
        elif name in _LINES:
            self._break_line()
        if name in {"td", "th"} and self._line:
            self._between = " | "
        elif name == "li":
            self._marker = self._next_marker()
        elif name in {"br", "hr"}:
            self._rule(name)
        elif name == "a":
            self._end_link()
            self._link, self._label = _link_target(attributes), []
        elif name == "img":
            self.text(_attribute(attributes, "alt"))

    def _begin_block(self, name: str) -> None:
        self._break_paragraph(nested=bool(self._lists) and name in {"ul", "ol"})
        if name in {"ul", "ol"}:
            self._lists.append(1 if name == "ol" else None)
        self._quotes += name == "blockquote"
        self._preformatted += name == "pre"

    def _end(self, name: str) -> None:
        if name == "a":
            self._end_link()
        elif name in _UNDERLINES and self._line:
            width = sum(map(len, self._line))
            self._break_line()
            self._lines.append(_UNDERLINES[name] * min(width, 72))
        if name in _PARAGRAPHS:
            self._end_block(name)
        elif name in _LINES:
            self._break_line()

    def _end_block(self, name: str) -> None:
        if name in {"ul", "ol"} and self._lists:
            self._lists.pop()
        self._break_paragraph(nested=bool(self._lists) and name in {"ul", "ol"})
        self._quotes = max(0, self._quotes - (name == "blockquote"))
        self._preformatted = max(0, self._preformatted - (name == "pre"))

    def _end_link(self) -> None:
        target, self._link = self._link, None
        if not target or target == "".join(self._label).strip():
            return
        if self._label:
            self._between = " "
        self._put(f"({target})" if self._label else target)

    def _next_marker(self) -> str:
        number = self._lists[-1] if self._lists else None
        if number is None:
            return "- "
        self._lists[-1] = number + 1
        return f"{number}. "

    def _rule(self, name: str) -> None:
        if name == "hr":
            self._break_paragraph()
            self._lines += ("-" * 40, "")
        elif self._line:
            self._break_line()
        else:
            self._blank()

    def _preformatted_text(self, data: str) -> None:
        first, *others = data.splitlines() or [""]
        self._put(first)
        for line in others:
            self._break_line()
            self._put(line)
        if data.endswith(("\n", "\r")):
            self._break_line()

    def _put(self, words: str) -> None:
        if self._link is not None:
            self._label += filter(None, (self._between if self._label else "", words))
        if self._line:
            self._line += filter(None, (self._between, words))
        else:
            quotes = "> " * min(self._quotes, _DEEPEST)
            indent = "  " * min(max(0, len(self._lists) - 1), _DEEPEST)
            self._line += filter(None, (f"{quotes}{indent}{self._marker}{words}",))
            self._marker = ""
        self._between = ""

    def _break_line(self) -> None:
        if self._line:
            self._lines.append("".join(self._line).rstrip())
        self._line, self._between = [], ""

    def _break_paragraph(self, *, nested: bool = False) -> None:
        self._break_line()
        if not nested and not self._marker:
            self._blank()

    def _blank(self) -> None:
        if self._lines and self._lines[-1]:
            self._lines.append("")


def _unescaped(text: str) -> str:
    """Python refuses to read a number of thousands of digits, and no character has such a one."""
    return unescape(_NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", text))


def _is_hidden(attributes: str) -> bool:
    if "hidden" not in attributes.lower() and "display" not in attributes.lower():
        return False
    found = _attributes(attributes)
    return "hidden" in found or bool(_HIDDEN.search(found.get("style", "")))


def _attributes(attributes: str) -> dict[str, str]:
    return {
        name.lower(): _unescaped(double or single or bare)
        for name, double, single, bare in _ATTRIBUTE.findall(attributes)
    }


def _attribute(attributes: str, name: str) -> str:
    return _attributes(attributes).get(name, "")


def _link_target(attributes: str) -> str:
    """Where a link leads, as a reader would type it; empty for what means nothing outside of html."""
    target = "".join(_attribute(attributes, "href").split())
    return target.removeprefix("mailto:") if target.lower().startswith(_SHOWN_LINKS) else ""
