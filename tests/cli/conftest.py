"""What the tests of commands share: an environment without our settings, and the command line in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.command import Homing, Result

from homing.cli import main


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOMING_", "DISPATCH_"))
    }
    return {
        **kept,
        "HOMING_DATABASE_URL": f"sqlite:///{tmp_path}/homing.db",
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


@pytest.fixture
def homing(
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Homing:
    """The command line, called as its entry point is, in this process: starting forty would take a minute."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **changes: str) -> Result:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name in os.environ:
                patch.delenv(name)
            for name, value in {**environment, **changes}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["homing", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        output = capsys.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 0, output.out, output.err)

    return run
