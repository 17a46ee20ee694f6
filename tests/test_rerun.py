"""`make test` after a failure: what has one more try, what is listed as flaky, and what fails the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parent.parent
#: Fails at its first try, whichever process that is in.
ONCE = """
import os
from pathlib import Path
import pytest

def once(name):
    tried = Path(f"tried-{name}")
    if not tried.exists():
        tried.touch()
        return True
"""
FLAKY = """
def test_flaky():
    assert not once("flaky"), "the first error"
"""
CRASHES = """
def test_crashes():
    if once("crash"):
        os._exit(1)
"""
FLAKY_FIXTURES = """
@pytest.fixture
def before():
    assert not once("before")

@pytest.fixture
def after():
    yield
    assert not once("after")

def test_before(before):
    pass

def test_after(after):
    pass
"""
WRONG = """
def test_wrong():
    assert 1 == 2
"""
RIGHT = """
def test_right():
    pass
"""


class Outcome:
    def __init__(self, folder: Path, code: str, *arguments: str) -> None:
        """As the Makefile has it."""
        self._folder = folder
        (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = ignore\n")
        (folder / "test_it.py").write_text(ONCE + RIGHT + code)
        self.first, self.output = self._run("pytest", "-p", "tests.rerun", "-n", "2", *arguments)
        self.last = self.first
        self.said = ""
        if self.first == 1:
            self.last, self.said = self._run("tests.rerun", *arguments)
        flaky = folder / "build/flaky.txt"
        self.flaky = flaky.read_text() if flaky.exists() else ""
        ended = json.loads((folder / "build/tests.json").read_text())
        self.ended = {name.partition("::")[2]: one["outcome"] for name, one in ended.items()}

    def _run(self, *command: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout


def test_what_passes_then_is_listed_with_its_first_error(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, FLAKY)
    assert (outcome.first, outcome.last) == (1, 0), outcome.said
    (test, error) = outcome.flaky.splitlines()
    assert test == "test_it.py::test_flaky"
    assert error.startswith("    ")
    assert error.endswith("AssertionError: the first error")
    assert outcome.flaky.strip() in outcome.said.replace("\r", "")
    assert outcome.ended == {"test_right": "passed", "test_flaky": "passed"}, "the second try counts"


def test_how_each_test_ended_is_written_down(tmp_path: Path) -> None:
    skipped = "def test_skipped():\n    pytest.skip('no server')\n"
    expected = "@pytest.mark.xfail\ndef test_expected():\n    assert False\n"
    teardown = "@pytest.fixture\ndef after():\n    yield\n    assert False\n\ndef test_after(after): ...\n"
    outcome = Outcome(tmp_path, WRONG + skipped + expected + teardown)
    assert outcome.ended == {
        "test_right": "passed",
        "test_wrong": "failed",
        "test_skipped": "skipped",
        "test_expected": "skipped",
        "test_after": "failed",
    }, "what failed as it was expected to proves nothing"


GONE = "test_gone.py::test_gone"


@pytest.mark.parametrize(
    ("arguments", "broken", "keeps"),
    [
        ((), "", False),
        (("-k", "right"), "", True),
        (("test_it.py::test_right",), "", True),
        (("-x",), WRONG, True),
    ],
    ids=["all tests", "some by a word", "some by name", "broken off"],
)
def test_only_a_run_of_all_tests_forgets_what_it_did_not_run(
    tmp_path: Path, arguments: tuple[str, ...], broken: str, *, keeps: bool
) -> None:
    (tmp_path / "build").mkdir()
    before = {GONE: {"test": GONE, "outcome": "passed", "at": "2026-11-19T05:00:00+00:00"}}
    (tmp_path / "build/tests.json").write_text(json.dumps(before))
    outcome = Outcome(tmp_path, broken, "-n", "0", *arguments)
    assert outcome.ended["test_right"] == "passed"
    assert ("test_gone" in outcome.ended) == keeps


def test_a_process_that_crashed_and_fixtures_count_as_their_test(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, CRASHES + FLAKY_FIXTURES)
    assert (outcome.first, outcome.last) == (1, 0), outcome.output + outcome.said
    assert {line for line in outcome.flaky.splitlines() if not line.startswith(" ")} == {
        f"test_it.py::test_{name}" for name in ("crashes", "before", "after")
    }
    assert "setup: " in outcome.flaky
    assert "teardown: " in outcome.flaky


def test_one_that_fails_again_fails_the_run_and_the_other_is_listed(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, FLAKY + WRONG)
    assert (outcome.first, outcome.last) == (1, 1)
    assert "1 failed, 1 passed" in outcome.said
    assert outcome.flaky.startswith("test_it.py::test_flaky\n")
    assert "test_wrong" not in outcome.flaky


def test_the_options_of_the_first_run_hold_for_the_second(tmp_path: Path) -> None:
    warns = "import warnings\ndef test_warns():\n    warnings.warn('old')\n"
    outcome = Outcome(tmp_path, warns, "test_it.py", "-W", "error:old")
    assert (outcome.first, outcome.last) == (1, 1), outcome.said
    assert "collected 1 item" in outcome.said


def test_more_than_three_are_no_accident(tmp_path: Path) -> None:
    some = "".join(FLAKY.replace("flaky", f"flaky_{number}") for number in range(4))
    outcome = Outcome(tmp_path, some)
    assert (outcome.first, outcome.last) == (1, 1)
    assert "4 tests failed, and more than 3 are not tried again" in outcome.said
    assert outcome.flaky == ""


@pytest.mark.parametrize(
    ("code", "arguments", "why"),
    [
        ("raise OSError('cannot be read')", (), "test_it.py could not be collected"),
        (FLAKY, ("-n", "0", "-x"), "the run was stopped: stopping after 1 failures"),
    ],
)
def test_a_run_that_was_not_whole_is_not_saved(
    tmp_path: Path, code: str, arguments: tuple[str, ...], why: str
) -> None:
    outcome = Outcome(tmp_path, code, *arguments)
    assert (outcome.first, outcome.last) == (1, 1)
    assert f"nothing is tried again: {why}" in outcome.said


def test_a_list_of_an_earlier_run_is_gone(tmp_path: Path) -> None:
    assert Outcome(tmp_path, FLAKY).flaky
    outcome = Outcome(tmp_path, RIGHT)
    assert (outcome.last, outcome.flaky) == (0, "")
