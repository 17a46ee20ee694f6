"""What failed in a run of all tests has one more try at its end, alone: `python -m tests.rerun [OPTIONS]`.

As a plugin (`-p tests.rerun`) it writes down what fails. Called after such a run, it runs the failed tests
again, in one process. A test that passes then is flaky: it is listed, and the run has not failed for it.
tests/flaky.md says what is done about it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Report: TypeAlias = pytest.TestReport | pytest.CollectReport

#: More than these are no accident.
MOST_FLAKY = 3
BUILD = Path("build")
FAILED, FLAKY = BUILD / "failed.json", BUILD / "flaky.txt"


class Outcomes:
    """Of the tests of one run."""

    def __init__(self) -> None:
        #: By test, what went wrong first.
        self.failed: dict[str, str] = {}
        self.passed: set[str] = set()
        #: Why there is nothing to be tried again.
        self.broken = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, first_error(report))
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken = f"{report.nodeid} could not be collected"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # As with `-x`.
        if stopped := session.shouldfail or session.shouldstop:
            self.broken = self.broken or f"the run was stopped: {stopped}"

    def write(self) -> None:
        BUILD.mkdir(exist_ok=True)
        FAILED.write_text(json.dumps({"broken": self.broken, "failed": self.failed}), encoding="utf-8")


def first_error(report: Report) -> str:
    """In one line."""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    text = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)
    place = "" if report.when in {"call", "???"} else f"{report.when}: "
    return f"{place}{text.strip().partition(chr(10))[0]}"


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    for old in (FAILED, FLAKY):
        old.unlink(missing_ok=True)
    outcomes = Outcomes()
    config.pluginmanager.register(outcomes)
    config.add_cleanup(outcomes.write)


# ── once more ────────────────────────────────────────────────────────────────────────────────────


def main(arguments: list[str]) -> int:
    """With the options of the first run, but for what says which tests to run."""
    options = [one for one in arguments if not Path(one.partition("::")[0]).exists()]
    if not FAILED.exists():
        return _fails("the run did not get as far as to tell what has failed")
    told = json.loads(FAILED.read_text(encoding="utf-8"))
    failed: dict[str, str] = told["failed"]
    if told["broken"] or not failed:
        return _fails(told["broken"] or "no test has failed, but the run has")
    if len(failed) > MOST_FLAKY:
        return _fails(f"{len(failed)} tests failed, and more than {MOST_FLAKY} are not tried again")
    print(f"\nonce more, alone, what failed: {len(failed)} of the tests", flush=True)
    again = Outcomes()
    code = pytest.main([*options, "-n", "0", *failed], plugins=[again])
    flaky = [test for test in failed if test in again.passed and test not in again.failed]
    _list({test: failed[test] for test in flaky})
    return 1 if code or len(flaky) < len(failed) else 0


def _fails(why: str) -> int:
    print(f"\nnothing is tried again: {why}")
    return 1


def _list(flaky: dict[str, str]) -> None:
    if not flaky:
        return
    lines = [f"{test}\n    {error}" for test, error in flaky.items()]
    FLAKY.write_text("\n".join([*lines, ""]), encoding="utf-8")
    print("\nflaky:", *lines, sep="\n")
    print(f"({FLAKY} has this list. tests/flaky.md says what is done about each.)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
