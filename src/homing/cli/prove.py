"""bench · chaos: the claims of the README, to be repeated on your machine."""

from __future__ import annotations

import typer


def add_to(app: typer.Typer) -> None:
    pass
