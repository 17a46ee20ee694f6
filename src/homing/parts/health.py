"""How a process is: its doctor; and its databases, retention and settings, without any secret."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from homing.db import Database
from homing.db.place import place_of
from homing.desk.checkup import Checkup, Examine
from homing.desk.installation import Installation, Kept, Setting, Store
from homing.engine.prune import Step, age_in_words
from homing.parts.ground import Ground
from homing.settings import FIELDS, Settings, is_secret

_HIDDEN = "set, and not shown"


class Health:
    """Of one process: its doctor, once somebody has brought one, and what there is to tell of it."""

    def __init__(
        self, ground: Ground, stores: Sequence[tuple[str, Database, str | None]], pruning: Sequence[Step]
    ) -> None:
        self._ground, self._stores, self._pruning = ground, stores, pruning
        self._started_at = datetime.now(UTC)
        #: The doctor stands above all that it looks at, so whoever starts a process brings it.
        self.examine: Examine | None = None
        self.checkup = Checkup(lambda: self.examine, ground.telemetry)

    def dependencies(self) -> dict[str, Any]:
        return {"checkup": self.checkup, "installation": self._installation()}

    def _installation(self) -> Installation:
        settings = self._ground.settings
        return Installation(
            self._ground.owner,
            self._started_at,
            [
                Store(keeps, base.dialect, place_of(url))
                for keeps, base, url in self._stores
                if url is not None
            ],
            list(_kept(self._pruning)),
            [_setting(settings, name, field) for name, field in FIELDS.items()],
        )


def _kept(pruning: Sequence[Step]) -> Iterator[Kept]:
    """Several tables of a lane may share a word."""
    seen = {
        (step.table.lane, state): age_in_words(step.ages[state])
        for step in pruning
        for state in step.table.states
        if state in step.ages
    }
    for (lane, state), age in seen.items():
        yield Kept(lane, state, age)


def _setting(settings: Settings, name: str, field: str) -> Setting:
    about = Settings.model_fields[field].description or ""
    value = getattr(settings, field)
    return Setting(name, _shown(field, value), settings.origin(field), about)


def _shown(field: str, value: Any) -> str:
    if value is None or value == "":
        return ""
    if is_secret(field):
        return _schemes(str(value))
    return place_of(value) if isinstance(value, str) and "://" in value else str(value)


def _schemes(value: str) -> str:
    """Of the URL of a relay or a broker what kind it is, which is no secret."""
    kinds = [urlsplit(part).scheme for part in value.split(",") if "://" in part]
    return f"{', '.join(f'{kind}://…' for kind in kinds)}" if kinds else _HIDDEN
