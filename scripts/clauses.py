"""Which tests prove which clause of docs/contracts.md.

    python scripts/clauses.py [ROOT]

Reads the marks `@pytest.mark.clause("OUT-04", …)` without running a test, and how the tests ended from
what `make test` wrote (build/tests.json, by tests/rerun.py). A clause is proven when each of its tests,
with all its parameters, passed when it was run last; else the worst of them is printed in that place:

    FAILED    one of its tests failed
    skipped   one was skipped, or was expected to fail
    not run   no result is known of one: `make test` was not run yet, or only for other tests

Fails when a clause of a lane that exists has no test or one that failed, when a mark names a clause that
is not in the list, and when a mark stands where it proves nothing. A clause whose promise begins with
"*To come:*" is not asked for yet.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: The lane that a clause belongs to, by the letters it begins with.
LANES = {
    "OUT": "mail_outbox",
    "API": "mail_outbox",
    "NTF": "open_events",
    "RTY": "email_log",
    "JOB": "dispatch_jobs",
}
_LINE = re.compile(r"^\| ([A-Z]+-\d+) \| (.+) \|$", re.MULTILINE)
#: How the promise of a clause begins whose lane exists and whose code does not.
_TO_COME = "*To come:*"
_Function = ast.FunctionDef | ast.AsyncFunctionDef
#: How tests end, the worst first, and what is printed of their clause.
_WORDS: Final = {"failed": "FAILED", "skipped": "skipped", "not run": "not run", "passed": "proven"}


@dataclass(frozen=True)
class Mark:
    """One clause, named by one test."""

    clause: str
    test: str


@dataclass(frozen=True)
class Results:
    """How tests ended when they were run last, by where they are written."""

    ends: Mapping[str, frozenset[str]]
    #: When the first of them ended, and the last.
    times: tuple[str, str] | None = None

    def of(self, test: str) -> str:
        """The worst of all its parameters, and of all classes that inherit it."""
        ends = self.ends.get(test, frozenset())
        return next((end for end in _WORDS if end in ends), "not run")


@dataclass(frozen=True)
class Report:
    """What is proven by what, and what is wrong."""

    proofs: Mapping[str, tuple[str, ...]]
    #: The clauses that need a test now.
    due: frozenset[str]
    problems: tuple[str, ...] = field(default=())
    results: Results = field(default_factory=lambda: Results({}))

    def end_of(self, clause: str) -> str:
        """The worst that became of its tests."""
        ends = {self.results.of(test) for test in self.proofs[clause]}
        return next((end for end in _WORDS if end in ends), "not run")


# --- reading the tests -------------------------------------------------------------------------


def marks_of(path: Path, name: str) -> tuple[list[Mark], list[str]]:
    """The marks of one file, and the problems with them."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=name)
    reader = _Reader(name)
    reader.read_block(tree.body, inherited=(), prefix="")
    return reader.marks, reader.problems


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.marks: list[Mark] = []
        self.problems: list[str] = []

    def read_block(self, body: Iterable[ast.stmt], inherited: tuple[str, ...], prefix: str) -> int:
        """Read a module's or a class's statements; returns how many tests stand in it."""
        statements = list(body)
        inherited += tuple(clause for node in statements for clause in self._pytestmark(node))
        tests = 0
        for node in statements:
            if isinstance(node, ast.ClassDef):
                tests += self._read_class(node, inherited, prefix)
            elif isinstance(node, _Function):
                tests += self._read_function(node, inherited, prefix)
        if inherited and not tests and not prefix:
            self.problems.append(f"{self.name}: its pytestmark covers no test")
        return tests

    def _read_class(self, node: ast.ClassDef, inherited: tuple[str, ...], prefix: str) -> int:
        own = tuple(self._clauses_in(node.decorator_list))
        tests = self.read_block(node.body, inherited + own, f"{prefix}::{node.name}")
        # A class may inherit its tests from another file; then the class is what we can name.
        if not tests and node.name.startswith("Test"):
            self._note(inherited + own, f"{prefix}::{node.name}")
            return 1
        if own and not tests:
            self._complain(node, f"the mark on {node.name} covers no test")
        return tests

    def _read_function(self, node: _Function, inherited: tuple[str, ...], prefix: str) -> int:
        own = tuple(self._clauses_in(node.decorator_list))
        if node.name.startswith("test"):
            self._note(inherited + own, f"{prefix}::{node.name}")
            return 1
        if own:
            self._complain(node, f"{node.name} carries a clause, but is no test")
        return 0

    def _pytestmark(self, node: ast.stmt) -> Iterator[str]:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in targets):
            yield from self._clauses_in([node])

    def _clauses_in(self, nodes: Iterable[ast.AST]) -> Iterator[str]:
        """Marks also stand inside `pytest.param(…, marks=…)`, so the whole tree is searched."""
        for node in nodes:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call) and _is_clause_mark(inner.func):
                    yield from self._arguments(inner)

    def _arguments(self, call: ast.Call) -> Iterator[str]:
        if not call.args or call.keywords:
            self._complain(call, "a clause mark takes ids, such as OUT-04")
        for argument in call.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value
            else:
                self._complain(call, "write the ids of a clause mark as plain strings")

    def _note(self, clauses: Iterable[str], test: str) -> None:
        self.marks.extend(Mark(clause, f"{self.name}{test}") for clause in dict.fromkeys(clauses))

    def _complain(self, node: ast.stmt | ast.expr, what: str) -> None:
        self.problems.append(f"{self.name}:{node.lineno}: {what}")


def _is_clause_mark(function: ast.expr) -> bool:
    """`pytest.mark.clause` or `mark.clause`."""
    return ast.unparse(function) in {"pytest.mark.clause", "mark.clause"}


# --- comparing ---------------------------------------------------------------------------------


def examine(root: Path) -> Report:
    contracts = (root / "docs" / "contracts.md").read_text(encoding="utf-8")
    promises = _LINE.findall(contracts)
    clauses = [clause for clause, _ in promises]
    marks, problems = _read_all(root)
    proofs: dict[str, list[str]] = {clause: [] for clause in clauses}
    unknown: dict[str, list[str]] = defaultdict(list)
    for mark in marks:
        proofs.get(mark.clause, unknown[mark.clause]).append(mark.test)
    existing = {prefix for prefix, lane in LANES.items() if _exists(root, lane)}
    due = frozenset(
        clause
        for clause, promise in promises
        if _prefix(clause) in existing and not promise.startswith(_TO_COME)
    )
    return Report(
        {clause: tuple(tests) for clause, tests in proofs.items()},
        due,
        (
            *problems,
            *_list_problems(clauses),
            *_unknown(unknown),
            *_unproven(proofs, due),
            *_come(promises, proofs),
        ),
        read_results(root),
    )


def read_results(root: Path) -> Results:
    path = root / "build" / "tests.json"
    told = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    ends: dict[str, set[str]] = defaultdict(set)
    for name, one in told.items():
        # By its own name, and by that of its class: a class that inherits its tests stands for them.
        own = name.partition("[")[0]
        for test in {one["test"], own, own.rpartition("::")[0]}:
            ends[test].add(one["outcome"])
    times = sorted(one["at"] for one in told.values())
    return Results(
        {test: frozenset(found) for test, found in ends.items()},
        (times[0], times[-1]) if times else None,
    )


def _read_all(root: Path) -> tuple[list[Mark], list[str]]:
    marks: list[Mark] = []
    problems: list[str] = []
    for path in sorted((root / "tests").rglob("*.py")):
        found, wrong = marks_of(path, path.relative_to(root).as_posix())
        marks += found
        problems += wrong
    return marks, problems


def _exists(root: Path, lane: str) -> bool:
    """A folder that holds only what a deleted lane left in caches is no lane."""
    return any((root / "src" / "homing" / "lanes" / lane).glob("*.py"))


def _list_problems(clauses: list[str]) -> Iterator[str]:
    if not clauses:
        yield "docs/contracts.md: lists no clause"
    for clause in dict.fromkeys(clauses):
        if clauses.count(clause) > 1:
            yield f"docs/contracts.md: {clause} is listed twice"
        if _prefix(clause) not in LANES:
            yield f"docs/contracts.md: {clause} belongs to no lane"


def _unknown(unknown: Mapping[str, list[str]]) -> Iterator[str]:
    for clause, tests in sorted(unknown.items()):
        if tests:
            yield f"{clause} is not in docs/contracts.md, but named by {', '.join(tests)}"


def _unproven(proofs: Mapping[str, list[str]], due: frozenset[str]) -> Iterator[str]:
    for clause, tests in proofs.items():
        if not tests and clause in due:
            yield f"{clause} has no test, and its lane {LANES[_prefix(clause)]} exists"


def _come(promises: Iterable[tuple[str, str]], proofs: Mapping[str, list[str]]) -> Iterator[str]:
    for clause, promise in promises:
        if promise.startswith(_TO_COME) and proofs[clause]:
            yield f"{clause} is marked as to come, but named by {', '.join(proofs[clause])}"


def _prefix(clause: str) -> str:
    return clause.partition("-")[0]


# --- telling -----------------------------------------------------------------------------------


def table(report: Report) -> Iterator[str]:
    for prefix in dict.fromkeys(map(_prefix, report.proofs)):
        state = "" if any(_prefix(clause) == prefix for clause in report.due) else " (to come)"
        yield f"{prefix} · {LANES.get(prefix, 'no lane')}{state}"
        for clause, tests in report.proofs.items():
            if _prefix(clause) == prefix and (tests or clause in report.due):
                yield from _rows(report, clause)
        yield ""


def _rows(report: Report, clause: str) -> Iterator[str]:
    tests = report.proofs[clause]
    if not tests:
        yield f"  {clause:<8}NONE"
    for number, test in enumerate(tests):
        label, end = (clause, _WORDS[report.end_of(clause)]) if number == 0 else ("", "")
        own = report.results.of(test)
        yield f"  {label:<8}{end:<9}{test}{'' if own == 'passed' else f' ({own})'}"


def summary(report: Report) -> str:
    ends = Counter(report.end_of(clause) for clause in report.due)
    tests = {test for clause in report.due for test in report.proofs[clause]}
    to_come = len(report.proofs) - len(report.due)
    others = "".join(f"{ends[end]} {end}, " for end in ("failed", "skipped", "not run") if ends[end])
    when = " (results of {} to {})".format(*report.results.times) if report.results.times else ""
    return (
        f"clauses: {ends['passed']} of {len(report.due)} proven by {len(tests)} tests, {others}"
        f"{to_come} to come, {len(report.problems)} problems{when}"
    )


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    report = examine(root)
    print("\n".join(table(report)))
    for problem in report.problems:
        print(f"PROBLEM {problem}")
    print(summary(report))
    has_failed = any(report.end_of(clause) == "failed" for clause in report.due)
    return 1 if report.problems or has_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
