"""`/health`: what the doctor found, and what runs here. The doctor works beside the page; nobody waits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency

from homing.access.desk import Access
from homing.desk.checkup import Checkup
from homing.desk.installation import Installation
from homing.http.asking import AnyRequest
from homing.http.pages.deeds import OWN_AUDIT, Deed, tried
from homing.http.pages.shell import gone_to, render

#: Seconds after which a browser asks again while the doctor looks.
_AGAIN = {"Refresh": "2"}


class HealthPages(Controller):
    path = "/health"
    include_in_schema = False
    opt: Mapping[str, Any] = {"scope": "desk:read"}

    @get("/", media_type=MediaType.HTML)
    async def show(
        self,
        request: AnyRequest,
        checkup: NamedDependency[Checkup],
        installation: NamedDependency[Installation],
    ) -> Response[str]:
        """The first visit, and one after a long time, makes the doctor look; others see what it found."""
        if checkup.is_old:
            checkup.start()
        report = checkup.last
        return render(
            request,
            "health.html",
            headers=_AGAIN if checkup.is_running else None,
            is_possible=checkup.is_possible,
            is_running=checkup.is_running,
            report=report,
            findings=sorted(report.findings, key=lambda one: one.finding.well) if report else [],
            installation=installation,
            changed=[one for one in installation.settings if one.origin != "default"],
            defaults=[one for one in installation.settings if one.origin == "default"],
            uptime=(datetime.now(UTC) - installation.started_at).total_seconds(),
        )

    @post("/run", status_code=303, media_type=MediaType.HTML, opt={"scope": "ops", **OWN_AUDIT})
    async def run(
        self, request: AnyRequest, checkup: NamedDependency[Checkup], access: NamedDependency[Access]
    ) -> Response[str]:
        async def start() -> bool:
            return checkup.start()

        began = await tried(request, access, Deed("health.run"), start)
        return gone_to("/health", "The doctor looks." if began is True else "The doctor is looking already.")
