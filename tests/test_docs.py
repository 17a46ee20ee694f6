"""The documentation says what is: events, metrics, links, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from homing.cli import command_line
from homing.settings import FIELDS, REMOVED, environment_name
from homing.telemetry import Telemetry

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


def _exposed() -> set[str]:
    registry = CollectorRegistry()
    Telemetry(registry=registry)
    return {metric.name + ("_total" if metric.type == "counter" else "") for metric in registry.collect()}


METRICS = _exposed()


def test_the_catalogue_of_events_is_complete() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py") if "proof" not in path.parts)
    emitted = set(re.findall(r'(?:log\.(?:info|warning|error)|crashed)\)?\(\s*"([a-z]+\.[a-z_]+)"', code))
    catalogue = (ROOT / "docs/telemetry.md").read_text().split("## Metrics")[0]
    documented = set(re.findall(r"`([a-z]+\.[a-z_]+)`", catalogue))
    assert emitted == documented


def test_the_list_of_metrics_is_complete() -> None:
    documented = set(re.findall(r"`(homing_[a-z_]+)`", (ROOT / "docs/telemetry.md").read_text()))
    assert documented == METRICS


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_metrics_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"\b(homing_[a-z_]+_(?:seconds|total|bytes|fds))\b", page.read_text()))
    assert named <= METRICS


def _shown(page: Path) -> Iterator[list[str]]:
    """Every call of `homing` with something behind it: in a sentence, or at a prompt."""
    text = page.read_text().replace("\\\n", " ")
    calls = [
        *re.findall(r"`homing ([^`]+)`", text),
        *re.findall(r"^\$ (?:\.venv/bin/)?homing (.+)$", text, re.MULTILINE),
    ]
    for call in calls:
        # Without what a shell does with it, remarks, and the choice of `add|list`.
        yield re.split(r"\s[|>&#]|\|", call.replace("'", "").replace('"', ""))[0].split()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_that_are_shown_exist_with_their_flags(page: Path) -> None:
    for words in _shown(page):
        command: Any = command_line()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if words[:1] == ["…"]:
            continue
        assert not (words and hasattr(command, "commands")), f"there is no command {words}"
        flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert flags <= {"--help", *(name for parameter in command.params for name in parameter.opts)}


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in getattr(command_line(), "commands", {}):
        assert name in readme, name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_settings_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"\b((?:HOMING|DISPATCH)_[A-Z_]+[A-Z])\b", page.read_text()))
    errors = {
        "DISPATCH_INVALID_REQUEST",
        "DISPATCH_CONFLICT",
        "DISPATCH_RATE_LIMITED",
        "DISPATCH_INTERNAL_ERROR",
    }
    known = {
        *FIELDS,
        *(f"{name}_FILE" for name in FIELDS),
        *(map(environment_name, REMOVED) if page.name == "CHANGELOG.md" else ()),
    }
    lanes_to_come = {name for name in named if page.name == "contracts.md" and name not in known}
    unknown = {name for name in named - known - errors - lanes_to_come if not name.startswith("HOMING_TEST_")}
    assert not unknown
