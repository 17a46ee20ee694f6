"""Nothing in `src/` is there only for tests: other code of `src/` names each function, method and class.

By name, wherever it stands: as code, in a text (`getattr`, a query's function, a module's path), in a page's
template, in `pyproject.toml`. What only unused code names is unused too. What a framework calls is told by
its decorator, by the method of a library's class that it takes the place of, or stands below with the reason.
`homing.testing` is left out: it is there for tests.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).parent.parent
#: By name: who calls it, since nothing in `src/` does.
EXCEPTIONS: Final[Mapping[str, str]] = {
    "on_message_complete": "httptools calls it",
    "answer_next": "memory:// is a sender for tests, of ours and of others: they say how it answers",
    "finished": "a test waits for all that was taken on; a process drains, with a limit",
    "topics": "tests see by it that nothing is looked at for those who have left",
}
#: These change how something is called, and call nothing.
_PLAIN: Final = frozenset(
    {
        "abstractmethod", "asynccontextmanager", "cache", "cached_property", "classmethod", "contextmanager",
        "dataclass", "final", "lru_cache", "overload", "override", "property", "setter", "staticmethod",
        "total_ordering", "wraps",
    }
)  # fmt: skip
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_PATH: Final = re.compile(r"[\w.:]+")
_FOR_TESTS: Final = "src/homing/testing/"
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(eq=False)
class Defined:
    """A definition, and the names that its own lines hold."""

    name: str
    place: str
    #: The class it is a method of, by its module and name.
    owner: str | None
    called_by_decorator: bool
    #: What it stands in.
    outer: tuple[Defined, ...]
    uses: Counter[str] = field(default_factory=Counter)


class _Reader(ast.NodeVisitor):
    """Finds definitions and the names in them; of nested ones all the outer ones hold them too."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Defined] = []
        self.uses: Counter[str] = Counter()
        self._open: list[Defined] = []
        self._classes: list[str] = []

    def _use(self, name: str) -> None:
        self.uses[name] += 1
        for one in self._open:
            one.uses[name] += 1

    def _owner(self) -> str | None:
        if not self._classes:
            return None
        return f"{self.file.removeprefix('src/').removesuffix('.py').replace('/', '.')}:{self._classes[-1]}"

    def _define(self, node: Definition) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        called = any(_last_name(decorator) not in _PLAIN for decorator in node.decorator_list)
        one = Defined(node.name, f"{self.file}:{node.lineno}", self._owner(), called, tuple(self._open))
        self.found.append(one)
        self._open.append(one)
        if isinstance(node, ast.ClassDef):
            self._classes.append(node.name)
        for part in ast.iter_child_nodes(node):
            if part not in node.decorator_list:
                self.visit(part)
        if isinstance(node, ast.ClassDef):
            self._classes.pop()
        self._open.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _define  # noqa: N815 - as ast names them

    def visit_Name(self, node: ast.Name) -> None:
        self._use(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._use(node.attr)
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        # A name, or a path such as module:name. A sentence names nothing.
        if isinstance(node.value, str) and _PATH.fullmatch(node.value):
            for word in _WORD.findall(node.value):
                self._use(word)


def _last_name(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).rpartition(".")[2]


def unused(root: Path, exceptions: Mapping[str, str] = EXCEPTIONS) -> list[str]:
    found, uses = deepcopy(_read(root))
    dead: list[Defined] = []
    while more := [one for one in found if _is_unused(one, uses, exceptions)]:
        for one in more:
            found.remove(one)
            # What it names is named by nobody there; with a class its methods are gone already.
            if not any(outer in dead for outer in one.outer):
                for names in (uses, *(outer.uses for outer in one.outer)):
                    names.subtract(one.uses)
            dead.append(one)
    return sorted(f"{one.place}: {one.name}" for one in dead)


def _is_unused(one: Defined, uses: Counter[str], exceptions: Mapping[str, str]) -> bool:
    is_special = one.name.startswith("__") and one.name.endswith("__")
    named_elsewhere = uses[one.name] > one.uses[one.name]
    is_called = one.called_by_decorator or is_special or one.name in exceptions
    return not (named_elsewhere or is_called or one.place.startswith(_FOR_TESTS) or _overrides(one))


def _overrides(one: Defined) -> bool:
    """Whether it takes the place of a method of somebody else's class, which calls it."""
    if one.owner is None:
        return False
    module, _, name = one.owner.partition(":")
    try:
        owner = getattr(import_module(module), name)
    except ImportError:
        # Of a peer in a benchmark that is not installed.
        return False
    return any(hasattr(base, one.name) for base in owner.__mro__ if not base.__module__.startswith("homing"))


@cache
def _read(root: Path) -> tuple[list[Defined], Counter[str]]:
    found: list[Defined] = []
    uses: Counter[str] = Counter()
    for path in sorted((root / "src").rglob("*.py")):
        reader = _Reader(path.relative_to(root).as_posix())
        reader.visit(ast.parse(path.read_text(encoding="utf-8")))
        found += reader.found
        uses += reader.uses
    for text in _texts(root):
        uses.update(_WORD.findall(text))
    return found, uses


def _texts(root: Path) -> Iterator[str]:
    """Where else names of ours are called from: the pages' templates, and the commands that are installed."""
    for path in sorted((root / "src").rglob("*.html")):
        yield from re.findall(r"\{[{%].*?[%}]\}", path.read_text(encoding="utf-8"), re.DOTALL)
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    yield project.partition("[project.scripts]")[2].partition("\n[")[0]


def test_nothing_is_called_only_by_tests() -> None:
    assert unused(ROOT) == []


def test_no_exception_is_left_of_what_was_deleted_or_is_called_by_now() -> None:
    found = unused(ROOT, {})
    assert [name for name in EXCEPTIONS if not any(line.endswith(f": {name}") for line in found)] == []


SAMPLE = """
import typer
from json import JSONEncoder

app = typer.Typer()

@app.command()
def called_by_a_decorator(): return named_in_code() + getattr(app, "named_in_a_text")

def named_in_code(): return "package.module:named_in_a_path"
def named_in_a_text(): ...
def named_in_a_path(): ...
def named_in_a_template(): "not for_tests, and this sentence is no use of it"

def for_tests(): return only_for_that()
def only_for_that(): ...
def recursive(): return recursive()

class Encoder(JSONEncoder):
    @property
    def read_by_tests(self): ...

    def default(self, o): return only_for_that, Encoder, shared()

def shared(): ...
def uses_shared(): return shared(), uses_shared
app.command()(uses_shared)
"""


def test_what_is_unused_is_found(tmp_path: Path) -> None:
    (tmp_path / "src/homing").mkdir(parents=True)
    (tmp_path / "src/homing/sample.py").write_text(SAMPLE)
    (tmp_path / "src/homing/page.html").write_text("for_tests {{ one.named_in_a_template }} recursive")
    (tmp_path / "pyproject.toml").write_text("[project.scripts]\nhoming = 'homing:main'\n[tool]\n")
    found = [line.rpartition(" ")[2] for line in unused(tmp_path, {"default": "json calls it"})]
    assert sorted(found) == ["Encoder", "for_tests", "only_for_that", "read_by_tests", "recursive"]
