"""Every page, and what they need besides the parts."""

from __future__ import annotations

from typing import Any

from litestar import Router

from homing.http.live import Piece, Streams
from homing.http.pages.alerts import AlertPages
from homing.http.pages.audit import AuditPages
from homing.http.pages.bulk import BulkPages
from homing.http.pages.caught import CaughtPages
from homing.http.pages.credentials import CredentialPages
from homing.http.pages.dead import DeadPage
from homing.http.pages.events import LiveEvents
from homing.http.pages.health import HealthPages
from homing.http.pages.message import MessagePage
from homing.http.pages.messages import MessageList
from homing.http.pages.overview import OverviewPage
from homing.http.pages.people import AccessPages
from homing.http.pages.queues import QueuePages
from homing.http.pages.reference import ReferencePage
from homing.http.pages.router import RouterPages
from homing.http.pages.shell import LARGEST_FORM, render_part
from homing.http.pages.subscriptions import SubscriptionPages
from homing.http.pages.targets import TargetPages
from homing.http.pages.theme import ThemeChoice
from homing.http.pages.workers import WorkerPages
from homing.lanes.dispatch_jobs.statistics import JobStatistics
from homing.telemetry import Telemetry

#: Every page and what its forms do.
PAGES = (
    OverviewPage,
    MessageList,
    MessagePage,
    DeadPage,
    BulkPages,
    LiveEvents,
    CaughtPages,
    ReferencePage,
    ThemeChoice,
    AlertPages,
    AuditPages,
    CredentialPages,
    HealthPages,
    AccessPages,
    SubscriptionPages,
    TargetPages,
    QueuePages,
    WorkerPages,
    RouterPages,
)


def page_router() -> Router:
    """All of them, so that none forgets how much it reads."""
    return Router("/", route_handlers=PAGES, request_max_body_size=LARGEST_FORM)


def page_dependencies(telemetry: Telemetry, statistics: JobStatistics) -> dict[str, Any]:
    return {
        "streams": Streams(telemetry, _written),
        "job_figures": statistics.look,
    }


def _written(piece: Piece) -> str:
    return render_part(piece.template, **piece.values)
