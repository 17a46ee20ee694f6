"""The documents of deployment: their command lines are those of the command line."""

from __future__ import annotations

import re

import pytest
from tests.deploy.commands import DEPLOY, ROOT, lines_of, parse


def blocks(page: str) -> str:
    return "\n".join(re.findall(r"```console\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL))


@pytest.mark.parametrize(("page", "least"), [("deployment.md", 8), ("retention.md", 2)])
def test_commands_that_are_told_of_exist(page: str, least: int) -> None:
    commands = list(lines_of(blocks(page)))
    assert len(commands) >= least
    for arguments in commands:
        parse(arguments)


def test_files_that_are_told_of_exist() -> None:
    named = set(
        re.findall(r"\bdeploy/[A-Za-z0-9_./-]+[A-Za-z0-9]", (ROOT / "docs/deployment.md").read_text())
    )
    # What kubectl calls a Deployment looks the same.
    named -= {name for name in named if name.startswith("deploy/homing-")}
    made = {name for name in named if name.startswith("deploy/secrets")}
    script = (DEPLOY / "make-secrets.sh").read_text()
    assert all(name.rpartition("/")[2] in script for name in made)
    assert all((ROOT / name).exists() for name in named - made), named
