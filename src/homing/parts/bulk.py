"""Bulk runs: ordered by people, done by whatever process has time."""

from __future__ import annotations

from typing import Any

from homing.access.desk import Access
from homing.desk.bulk import BulkRuns
from homing.desk.bulk_runner import BulkRunner
from homing.desk.desk import Desk
from homing.parts.ground import Ground


class Bulk:
    def __init__(self, ground: Ground, access: Access, desk: Desk) -> None:
        self._ground = ground
        self.runs = BulkRuns(ground.database, desk.lanes, access.audit, access.scopes_of)

    def runner(self) -> BulkRunner:
        return BulkRunner(self.runs, self._ground.telemetry, owner=self._ground.owner)

    def api(self) -> tuple[list[Any], dict[str, Any]]:
        from homing.http.bulk_api import BulkApi, MessageActions

        return [BulkApi, MessageActions], {"bulk_runs": self.runs}
