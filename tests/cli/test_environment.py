"""Values of flags have names in the environment, switches have none; no such name is an unknown setting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homing.cli.options import settings_from


def test_flags_by_environment(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HOMING_DATABASE_URL": f"sqlite:///{tmp_path}/x[1].db",
        "HOMING_STATUS_JSON": "1",
        # The tag of an image, in many a container.
        "HOMING_VERSION": "0.1.0",
        "HOMING_BENCH_MAIL_ROUNDS": "3",
        "HOMING_WORK_PROCESSES": "2",
    }

    def homing(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "homing", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    missing = homing("status")
    assert missing.returncode == 3
    assert "homing migrate" in missing.stderr
    assert homing("migrate").returncode == 0
    told = homing("status")
    assert told.returncode == 0, told.stderr
    assert "mail_outbox" in told.stdout
    assert not told.stdout.startswith("{"), "a switch is set where somebody reads it"
    assert json.loads(homing("status", "--json").stdout)["mail_outbox"]["queued"] == 0
    odd = homing("migrate", "--database-url", "odd[1]://x")
    assert "odd[1]://x" in odd.stderr, "brackets are shown as they are"


def test_what_a_flag_may_come_from_is_shown_and_no_more() -> None:
    from homing.cli import command_line

    switches = dict(_options(command_line()))
    assert switches["prune --yes"] is switches["bulk requeue --yes"] is False
    assert switches["--version"] is switches["--install-completion"] is False
    assert switches["work --processes"] is True
    assert not [
        name for name, taken in switches.items() if taken and name.endswith((" --json", " --dry-run"))
    ]


def _options(command: Any, path: str = "") -> Iterator[tuple[str, bool]]:
    for parameter in command.params:
        for name in (name for name in parameter.opts if name.startswith("--")):
            yield f"{path}{name}", parameter.allow_from_autoenv
    for name, sub in getattr(command, "commands", {}).items():
        yield from _options(sub, f"{path}{name} ")


def test_settings_know_where_they_come_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The parser reads the environment too, and its values are no flags."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOMING_DATABASE_URL", "sqlite:///x.db")
    monkeypatch.setenv("HOMING_PORT", "8081")
    settings = settings_from(database_url="sqlite:///x.db", port=8081, host="127.0.0.2")
    fields = ("database_url", "port", "host", "mail_url")
    assert [settings.origin(field) for field in fields] == ["environment", "environment", "flag", "default"]
    assert settings_from(port=8082).origin("port") == "flag", "a flag wins over the environment"
