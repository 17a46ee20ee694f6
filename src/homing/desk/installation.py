"""What runs here, for the page about its health: no secret is in it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct


class Store(Struct, frozen=True):
    """A database, and what is kept in it."""

    keeps: str
    dialect: str
    #: Without user and password.
    place: str


class Kept(Struct, frozen=True):
    """How long what ended is kept."""

    lane: str
    state: str
    age: str


class Setting(Struct, frozen=True):
    name: str
    value: str
    #: flag, environment, file or default
    origin: str
    about: str


class Installation(Struct, frozen=True):
    process: str
    started_at: datetime
    stores: Sequence[Store]
    #: Empty: everything is kept.
    retention: Sequence[Kept]
    settings: Sequence[Setting]
