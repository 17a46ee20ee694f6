"""`make clauses` tells the truth: it sees every kind of mark, and what is missing or misplaced."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
SCRIPT = PROJECT / "scripts" / "clauses.py"
CONTRACTS = """
| id | promise |
|---|---|
| OUT-01 | claims |
| OUT-02 | settles |
| JOB-01 | creates |
"""
BOTH = '@pytest.mark.clause("OUT-01", "OUT-02")\ndef test_both(): ...\n'


class Project:
    """A folder with a list of clauses, a lane and tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("docs/contracts.md", CONTRACTS)
        self.write("src/homing/lanes/mail_outbox/__init__.py", "")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def clauses(self, test: str = "") -> tuple[int, str]:
        """Exit code and output with this one test file."""
        self.write("tests/deep/test_it.py", test)
        command = [sys.executable, str(SCRIPT), str(self.root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_names_the_tests_of_every_clause(project: Project) -> None:
    code, output = project.clauses(BOTH)
    assert code == 0
    assert "  OUT-01  tests/deep/test_it.py::test_both\n" in output
    assert "  OUT-02  tests/deep/test_it.py::test_both\n" in output
    assert output.endswith("clauses: 2 of 2 proven by 1 tests, 1 to come, 0 problems\n")


@pytest.mark.parametrize(
    ("test", "proof"),
    [
        ('pytestmark = pytest.mark.clause("OUT-02")\nasync def test_a(): ...', "::test_a"),
        ('pytestmark = [pytest.mark.slow, pytest.mark.clause("OUT-02")]\ndef test_a(): ...', "::test_a"),
        ('@mark.clause("OUT-02")\nclass TestA:\n    def test_b(self): ...', "::TestA::test_b"),
        ('class TestA:\n    @mark.clause("OUT-02")\n    def test_b(self): ...', "::TestA::test_b"),
        (
            'class TestA:\n    pytestmark = mark.clause("OUT-02")\n    def test_b(self): ...',
            "::TestA::test_b",
        ),
        ('@mark.clause("OUT-02")\nclass TestA(Suite): ...', "::TestA"),
        ('@mark.parametrize("n", [param(1, marks=mark.clause("OUT-02"))])\ndef test_a(n): ...', "::test_a"),
    ],
)
def test_sees_every_kind_of_mark(project: Project, test: str, proof: str) -> None:
    project.write("tests/test_first.py", '@pytest.mark.clause("OUT-01")\ndef test_claim(): ...\n')
    code, output = project.clauses(test)
    assert code == 0, output
    assert f"  OUT-02  tests/deep/test_it.py{proof}\n" in output


def test_fails_for_a_clause_without_test(project: Project) -> None:
    code, output = project.clauses('@pytest.mark.clause("OUT-01")\ndef test_claim(): ...')
    assert code == 1
    assert "  OUT-02  NONE\n" in output
    assert "PROBLEM OUT-02 has no test, and its lane mail_outbox exists\n" in output
    assert "PROBLEM JOB-01" not in output


def test_asks_for_the_clauses_of_a_lane_as_soon_as_it_exists(project: Project) -> None:
    (project.root / "src/homing/lanes/dispatch_jobs/__pycache__").mkdir(parents=True)
    assert project.clauses(BOTH)[0] == 0
    project.write("src/homing/lanes/dispatch_jobs/__init__.py", "")
    code, output = project.clauses(BOTH)
    assert code == 1
    assert "PROBLEM JOB-01 has no test, and its lane dispatch_jobs exists\n" in output


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        (
            '@mark.clause("OUT-99")\ndef test_a(): ...',
            "OUT-99 is not in docs/contracts.md, but named by tests",
        ),
        ('@mark.clause("OUT-01")\ndef helper(): ...', "tests/deep/test_it.py:2: helper carries a clause"),
        (
            '@mark.clause("OUT-01")\nclass Suite: ...',
            "tests/deep/test_it.py:2: the mark on Suite covers no test",
        ),
        ("@mark.clause(NAME)\ndef test_a(): ...", "tests/deep/test_it.py:1: write the ids"),
        ("@mark.clause()\ndef test_a(): ...", "tests/deep/test_it.py:1: a clause mark takes ids"),
        ('pytestmark = mark.clause("OUT-01")', "tests/deep/test_it.py: its pytestmark covers no test"),
    ],
)
def test_fails_for_a_mark_that_proves_nothing(project: Project, test: str, problem: str) -> None:
    project.write("tests/test_first.py", BOTH)
    code, output = project.clauses(test)
    assert code == 1
    assert f"PROBLEM {problem}" in output


def test_a_clause_that_is_to_come_needs_no_test_and_may_have_none(project: Project) -> None:
    project.write("docs/contracts.md", CONTRACTS + "| OUT-03 | *To come:* it sings |\n")
    assert project.clauses(BOTH)[0] == 0
    code, output = project.clauses(BOTH + '\n@pytest.mark.clause("OUT-03")\ndef test_song(): ...\n')
    assert code == 1
    assert "PROBLEM OUT-03 is marked as to come, but named by" in output


def test_fails_for_a_list_with_a_double(project: Project) -> None:
    project.write("docs/contracts.md", CONTRACTS + "| OUT-01 | again |\n| XYZ-01 | whose? |\n")
    code, output = project.clauses(BOTH)
    assert code == 1
    assert "PROBLEM docs/contracts.md: OUT-01 is listed twice\n" in output
    assert "PROBLEM docs/contracts.md: XYZ-01 belongs to no lane\n" in output


def test_our_own_list_is_complete() -> None:
    contracts = (PROJECT / "docs" / "contracts.md").read_text()
    ids = re.findall(r"^\| ([A-Z]{3}-\d\d) \|", contracts, re.MULTILINE)
    counts = {"OUT": 15, "API": 9, "NTF": 30, "RTY": 19, "JOB": 25}
    assert ids == [f"{lane}-{number:02}" for lane, count in counts.items() for number in range(1, count + 1)]
