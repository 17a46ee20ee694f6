"""The guard of `tests/hang.py`: whatever a test waits for, it ends, is reported, and the others run.

Each case runs in a pytest of its own, with xdist as `make test` has it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parent.parent
SECONDS = 2
TOLD = f"Timeout (>{SECONDS} s)"
CONFTEST = """
from tests import hang
pytest_plugins = ("tests.hang",)
hang.AT_THE_END = {at_the_end}
"""
BEGIN = """
import asyncio
import threading
import time
import pytest
"""

#: All of these hang, and one does not.
HANGING = """
async def test_a_future_that_nobody_sets():
    await asyncio.get_running_loop().create_future()  # place 1

async def deep():
    await asyncio.sleep(600)  # place 2

async def test_a_task_of_the_test():
    async with asyncio.TaskGroup() as group:
        group.create_task(deep())

async def test_takes_its_end_for_something_else():
    try:
        await asyncio.sleep(600)  # place 3
    except asyncio.CancelledError:
        return

async def test_has_to_be_told_twice():
    try:
        await asyncio.sleep(600)  # place 4
    except asyncio.CancelledError:
        pass
    await asyncio.sleep(600)

async def test_blocks_the_loop():
    time.sleep(600)  # place 5

def test_has_no_loop():
    threading.Event().wait()  # place 6

def test_has_a_loop_of_its_own():
    asyncio.run(deep())

@pytest.fixture
async def before():
    await asyncio.sleep(600)  # place 7

async def test_whose_fixture_hangs_before_it(before):
    pass

@pytest.fixture
async def after():
    yield
    await asyncio.sleep(600)  # place 8

async def test_whose_fixture_hangs_after_it(after):
    pass

def test_another():
    pass
"""
STUBBORN = """
async def test_cannot_be_told():
    while True:
        try:
            await asyncio.sleep(600)  # place 1
        except BaseException:
            pass

def test_another():
    pass
"""
LEAVES_A_THREAD = """
def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait).start()
"""


def run(folder: Path, code: str, *, processes: int = 1, at_the_end: float = 120) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST.format(at_the_end=at_the_end))
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nfilterwarnings = ignore\n")
    (folder / "test_it.py").write_text(BEGIN + code)
    command = [sys.executable, "-m", "pytest", "-rA", "-n", str(processes), "--timeout", str(SECONDS)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", str(folder), "test_it.py"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_whatever_hangs_is_ended_and_told_of(tmp_path: Path) -> None:
    exit_code, output = run(tmp_path, HANGING)
    assert exit_code == 1, output
    failed = set(re.findall(r"^(?:FAILED|ERROR) test_it\.py::(\w+)", output, re.MULTILINE))
    hanging = set(re.findall(r"def (test_\w+)", HANGING)) - {"test_another"}
    assert failed == hanging, output
    assert "7 failed, 2 passed, 2 errors" in output, output
    assert output.count(f"Failed: {TOLD}") >= len(hanging)
    for place in range(1, 9):
        assert f"# place {place}" in output


def test_what_does_not_even_end_then_is_ended_with_its_process(tmp_path: Path) -> None:
    exit_code, output = run(tmp_path, STUBBORN)
    assert exit_code == 1, output
    assert re.search(r"worker 'gw0' crashed while running '.*test_cannot_be_told'", output), output
    assert "1 failed, 1 passed" in output
    assert TOLD in output
    assert "# place 1" in output


def test_a_thread_that_never_ends_does_not_hold_up_a_worker(tmp_path: Path) -> None:
    exit_code, output = run(tmp_path, LEAVES_A_THREAD)
    assert (exit_code, "1 passed" in output) == (0, True), output


def test_a_thread_that_never_ends_does_not_hold_up_the_run(tmp_path: Path) -> None:
    """It has passed, but whatever waits for its process would wait for ever."""
    exit_code, output = run(tmp_path, LEAVES_A_THREAD, processes=0, at_the_end=8)
    assert (exit_code, "1 passed" in output) == (1, True), output
    assert "Timeout (0:00:08)" in output
