"""The units of systemd: what they run exists, they are closed, and systemd can read them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.conftest import require_program
from tests.deploy.commands import DEPLOY, parse

from homing.settings import FIELDS, load_settings

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
BINARY = "/opt/homing/bin/homing"


def analyze() -> str:
    return require_program("systemd-analyze", "systemd")


def directives(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def test_all_are_there() -> None:
    assert [unit.name for unit in UNITS] == [
        "homing-migrate.service",
        "homing-worker@.service",
        "homing.service",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_with_settings_that_there_are(unit: Path) -> None:
    (command,) = directives(unit, "ExecStart")
    binary, *arguments = command.split()
    assert binary == BINARY
    parse(arguments)
    environment = dict(one.split("=", 1) for one in directives(unit, "Environment"))
    ours = {name for name in environment if name.startswith("HOMING_")}
    assert ours <= {*FIELDS, *(f"{field}_FILE" for field in FIELDS)}
    given = {credential.split(":")[0] for credential in directives(unit, "LoadCredential")}
    read = {value.removeprefix("%d/") for value in environment.values() if value.startswith("%d/")}
    assert given == read, "each secret that is handed over is read, and none other"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_closed(unit: Path) -> None:
    expected = {
        "DynamicUser": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "NoNewPrivileges": "yes",
        "PrivateTmp": "yes", "PrivateDevices": "yes", "CapabilityBoundingSet": "", "RestrictSUIDSGID": "yes",
        "StateDirectory": "homing", "UMask": "0077", "LimitCORE": "0",
    }  # fmt: skip
    for name, value in expected.items():
        assert directives(unit, name) == [value], name
    assert directives(unit, "MemoryMax")
    assert directives(unit, "TasksMax")


def test_a_stop_waits_longer_than_homing_does() -> None:
    for unit in UNITS[1:]:
        assert float(directives(unit, "TimeoutStopSec")[0]) > load_settings(environ={}).grace_seconds
        assert directives(unit, "Requires") == ["homing-migrate.service"]


def test_workers_have_ports_of_their_own() -> None:
    (worker,) = [unit for unit in UNITS if "@" in unit.name]
    (port,) = [one for one in directives(worker, "Environment") if "METRICS_PORT" in one]
    ports = {
        load_settings(environ=dict([port.replace("%i", str(n)).split("=")])).metrics_port
        for n in range(1, 10)
    }
    assert ports == set(range(9101, 9110))


def test_systemd_can_read_them(tmp_path: Path) -> None:
    """With a program that exists in the place of ours, which is not installed here."""
    names = []
    for unit in UNITS:
        name = unit.name.replace("@.", "@1.")
        (tmp_path / name).write_text(unit.read_text().replace(BINARY, "/bin/true"))
        names.append(f"./{name}")
    done = subprocess.run(
        [analyze(), "verify", *names], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "homing" in line]
    assert ours == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_finds_little_exposed(unit: Path) -> None:
    command = [analyze(), "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:]
