"""What failed in a run of all tests has one more try at its end, alone: `python -m tests.rerun [OPTIONS]`.

As a plugin (`-p tests.rerun`) it writes down what fails. Called after such a run, it runs the failed tests
again, in one process. A test that passes then is flaky: it is listed, and the run has not failed for it.
tests/flaky.md says what is done about it.

It also writes down how each test ended (`build/tests.json`), from which `make clauses` tells what is proven.
A run of all tests replaces the file; a run of some replaces what it says of these.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Report: TypeAlias = pytest.TestReport | pytest.CollectReport

#: More than these are no accident.
MOST_FLAKY = 3
BUILD = Path("build")
FAILED, FLAKY, ENDED = BUILD / "failed.json", BUILD / "flaky.txt", BUILD / "tests.json"
#: Any of these options leaves out tests.
_LEAVING_OUT = (
    "keyword",
    "markexpr",
    "deselect",
    "ignore",
    "ignore_glob",
    "lf",
    "stepwise",
    "without_servers",
)


class Outcomes:
    """Of the tests of one run."""

    def __init__(self) -> None:
        #: By test, what went wrong first.
        self.failed: dict[str, str] = {}
        self.passed: set[str] = set()
        #: How each test ended, as it goes into the file.
        self.ended: dict[str, dict[str, str]] = {}
        #: Why there is nothing to be tried again.
        self.broken = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # Where it runs, which may be another process. A report takes with it what it is given.
        report.__dict__["written"] = written(item)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, first_error(report))
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        self._note(report)

    def _note(self, report: pytest.TestReport) -> None:
        """The worst of its setup, its call and its teardown; none but a passed call proves anything."""
        before = self.ended.get(report.nodeid, {"outcome": "passed"})["outcome"]
        found = {before, report.outcome, *(["skipped"] if hasattr(report, "wasxfail") else [])}
        self.ended[report.nodeid] = {
            # Of a process that crashed nobody knows more than the name.
            "test": getattr(report, "written", report.nodeid.partition("[")[0]),
            "outcome": next(outcome for outcome in ("failed", "skipped", "passed") if outcome in found),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken = f"{report.nodeid} could not be collected"

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # As with `-x`.
        if stopped := session.shouldfail or session.shouldstop:
            self.broken = self.broken or f"the run was stopped: {stopped}"
        elif exitstatus not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            self.broken = self.broken or f"the run did not come to its end: exit code {int(exitstatus)}"

    def write(self, *, whole: bool) -> None:
        BUILD.mkdir(exist_ok=True)
        FAILED.write_text(json.dumps({"broken": self.broken, "failed": self.failed}), encoding="utf-8")
        note_ends(self.ended, whole=whole and not self.broken)


def note_ends(ended: Mapping[str, Mapping[str, str]], *, whole: bool) -> None:
    """After a run of all tests nothing else is known: what it did not run is not there any more."""
    before = {} if whole or not ENDED.exists() else json.loads(ENDED.read_text(encoding="utf-8"))
    ENDED.write_text(json.dumps({**before, **ended}, indent=0), encoding="utf-8")


def written(item: pytest.Item) -> str:
    """Where a test is written, which may be the suite that its class inherits it from."""
    function: Any = getattr(item, "function", None)
    if function is None:
        return item.nodeid
    name = function.__qualname__.replace(".", "::")
    return f"{function.__module__.replace('.', '/')}.py::{name}"


def is_whole(config: pytest.Config) -> bool:
    """Whether it was asked for all tests."""
    left_out = any(config.getoption(option, None) for option in _LEAVING_OUT)
    return config.args_source is not pytest.Config.ArgsSource.ARGS and not left_out


def first_error(report: Report) -> str:
    """In one line."""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    text = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)
    place = "" if report.when in {"call", "???"} else f"{report.when}: "
    return f"{place}{text.strip().partition(chr(10))[0]}"


def pytest_configure(config: pytest.Config) -> None:
    outcomes = Outcomes()
    config.pluginmanager.register(outcomes)
    if hasattr(config, "workerinput"):
        return
    for old in (FAILED, FLAKY):
        old.unlink(missing_ok=True)
    config.add_cleanup(lambda: outcomes.write(whole=is_whole(config)))


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
    note_ends(again.ended, whole=False)
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
