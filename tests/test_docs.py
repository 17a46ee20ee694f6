"""The documentation says what is: events, metrics, links, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from typer.main import get_command

from homing.cli import app
from homing.settings import FIELDS
from homing.telemetry import Telemetry

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


def test_the_catalogue_of_events_is_complete() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py") if "proof" not in path.parts)
    emitted = set(re.findall(r'(?:log\.(?:info|warning|error)|crashed)\)?\(\s*"([a-z]+\.[a-z_]+)"', code))
    catalogue = (ROOT / "docs/telemetry.md").read_text().split("## Metrics")[0]
    documented = set(re.findall(r"`([a-z]+\.[a-z_]+)`", catalogue))
    assert emitted == documented


def test_the_list_of_metrics_is_complete() -> None:
    registry = CollectorRegistry()
    Telemetry(registry=registry)
    exposed = {metric.name + ("_total" if metric.type == "counter" else "") for metric in registry.collect()}
    documented = set(re.findall(r"`(homing_[a-z_]+)`", (ROOT / "docs/telemetry.md").read_text()))
    assert exposed == documented


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in getattr(get_command(app), "commands", {}):
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
    known = {*FIELDS, *(f"{name}_FILE" for name in FIELDS)}
    lanes_to_come = {name for name in named if page.name == "contracts.md" and name not in known}
    unknown = {name for name in named - known - errors - lanes_to_come if not name.startswith("HOMING_TEST_")}
    assert not unknown
