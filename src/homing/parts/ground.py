"""What all parts of a process stand on."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from homing.db import Database
from homing.engine.room import Room
from homing.lanes.open_events.locales import PACKAGED_TEMPLATES
from homing.lines import Line
from homing.senders.templates import Templates
from homing.settings import Settings
from homing.telemetry import Telemetry

#: Attempts under way per connection: one that is sent, one whose envelope goes along, two being composed.
_ATTEMPTS_PER_CONNECTION = 4
#: Seconds. Asking the disk for every mail would cost as much as writing it.
_CHANGED_FILES_ARE_SEEN_AFTER = 1.0


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass
class Ground:
    settings: Settings
    telemetry: Telemetry
    database: Database
    #: Who holds what this process claims.
    owner: str = field(default_factory=_this_process)
    #: Where the API is served, once it is.
    address: str | None = None
    #: What large messages of all lanes share.
    room: Room = field(init=False)

    def __post_init__(self) -> None:
        self.room = Room(self.settings.bytes_at_once)
        self.telemetry.room(self.room.limit, lambda: self.room.held)

    @property
    def base_url(self) -> str:
        """How this process is reached: as it is told, as it is served, or as it would be."""
        settings = self.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return (settings.base_url or self.address or f"http://{host}:{settings.port}").rstrip("/")

    @property
    def mails_at_once(self) -> int:
        return self.settings.mail_connections * _ATTEMPTS_PER_CONNECTION

    def templates(self, packaged: Path = PACKAGED_TEMPLATES) -> Templates:
        """The operator's own files come before the packaged ones."""
        return Templates(
            Path(self.settings.template_dir),
            packaged,
            default_locale=self.settings.default_locale,
            recheck_seconds=_CHANGED_FILES_ARE_SEEN_AFTER,
        )

    def line(
        self, lane: Any, rows: Any, channel: str, *, concurrency: int, slots: int, **options: Any
    ) -> Line:
        database = options.pop("database", self.database)
        return Line(
            lane, rows, database, self.telemetry, channel=channel, concurrency=concurrency, slots=slots,
            room=self.room, **options,
        )  # fmt: skip
