"""What a browser asks the desk for: every page that there is, and what people type into the query line.

Which pages there are is asked of the application's routes, so that none is forgotten: a new one that needs a
parameter ends the benchmark until a value for it stands here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from litestar.routes import HTTPRoute

from homing.app import Homing
from homing.desk.bulk import Asker
from homing.errors import HomingError
from homing.lanes.dispatch_jobs.credentials.orders import CreateCredentials
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.messages.model import LANES, LaneName, Phase, Wanted

#: Where no page is: for programs, files, streams and downloads.
_NO_PAGES = re.compile(
    r"/(api|static|internal|openapi\.json|events|health/|metrics|audit/export|theme|.*/export)"
)
#: Those that belong to somebody else than the operator, or lead elsewhere.
_LEFT_OUT = frozenset({"/login", "/confirm", "/unsubscribe", "/subscriptions/{id:int}", "/jobs/{id:str}"})
#: For programs, and asked often: they are measured as well.
_BESIDE = ("/metrics", "/api/overview", "/api/overview?hours=24", "/api/messages")

#: What people type: something frequent, something rare, patterns that no index serves, what is not there.
QUERIES: Final = (
    "status:dead",
    "status:waiting",
    "status:running",
    "status:delivered",
    "lane:mail_outbox",
    "lane:dispatch_jobs status:dead type:order.*",
    "type:order.created",
    "type:audit.sealed",
    "type:*.sealed",
    "type:order.* status:waiting",
    "source:rare-service",
    "source:shop status:dead since:2h",
    "meta.tenantId:acme",
    "meta.tenantId:tenant-77",
    "meta.tenantId:nobody",
    "meta.priority:urgent",
    "meta.tenantId:tenant-7* status:dead",
    "to:user4711@example.org",
    "to:*@x.com",
    "to:*@rare.example.net",
    "to:*@nowhere.example",
    "to:*partner-7.example.com*",
    "error:timeout",
    "error:http_503 since:1d",
    "error:network_*",
    "error:unclassified status:dead",
    "since:2h",
    "since:20d until:19d",
    "status:dead since:20d until:19d",
    "id:ext-4711",
    "id:nothing-like-this",
    "shipped",
    "Order 4711",
    "words that nobody wrote",
    "status:dead lane:dispatch_jobs type:order.* meta.tenantId:acme to:*@x.com since:2h",
)
#: What a bulk run is asked for; how many it would be is counted first.
_BULK: Final = (
    ("status:dead", "requeue"),
    ("status:waiting", "cancel"),
    ("status:waiting type:order.*", "cancel"),
    ("to:*@x.com status:dead", "requeue"),
)


async def paths_of(homing: Homing) -> list[str]:
    """Every page, with parameters where it needs them; the query lines; and what programs ask often."""
    samples = await _samples(homing)
    routes = [route.path for route in homing.asgi().routes if _is_page(route)]
    pages = [path for route in sorted(set(routes)) for path in _filled(route, samples)]
    lines = [f"/messages?{urlencode({'q': line})}" for line in QUERIES]
    return list(dict.fromkeys([*pages, "/?hours=24", *lines, *samples["/messages?cursor"], *_BESIDE]))


def _is_page(route: Any) -> bool:
    is_for_people = isinstance(route, HTTPRoute) and "GET" in route.methods
    return is_for_people and not _NO_PAGES.match(route.path) and route.path not in _LEFT_OUT


def _filled(route: str, samples: Mapping[str, Sequence[str]]) -> Sequence[str]:
    if route in samples:
        return samples[route]
    if "{" in route:
        raise HomingError(f"the page {route} has a parameter, and `homing bench desk` knows no value for it")
    return [route]


async def _samples(homing: Homing) -> dict[str, Sequence[str]]:
    """By route, the paths that are asked for in its place."""
    ids = [id for lane in LANES for phase in ("delivered", "dead") if (id := await _one(homing, lane, phase))]
    mails = [id for id in ids if id.startswith(("outbox_", "email_", "notification_"))]
    run = await homing.bulk.runs.start("lane:open_events status:expired", "requeue", EVERYBODY)
    issued = await homing.credentials.create(CreateCredentials(name="bench"))
    newest = await homing.desk.find(Wanted(), limit=50, may=_may)
    target = "https://partner-7.example.com"
    return {
        "/messages/{id:str}": [f"/messages/{id}" for id in ids],
        "/messages/{id:str}/mail.html": [f"/messages/{id}/mail.html" for id in mails],
        "/messages/{id:str}/mail.txt": [f"/messages/{id}/mail.txt" for id in mails],
        "/messages/{id:str}/mail.eml": [f"/messages/{id}/mail.eml" for id in mails],
        "/bulk/{id:int}": [f"/bulk/{run.id}"],
        "/bulk/new": [f"/bulk/new?{urlencode({'q': line, 'verb': verb})}" for line, verb in _BULK],
        "/targets/one": [f"/targets/one?target={quote(target)}"],
        "/credentials/one": [f"/credentials/one?id={text_of(issued.row['id'])}"],
        "/subscriptions/one": ["/subscriptions/one?id=7"],
        # Of mails that were caught there are none.
        "/caught/{id:int}": [],
        "/caught/{id:int}/html": [],
        "/messages?cursor": [f"/messages?{urlencode({'cursor': newest.next or ''})}"],
    }


async def _one(homing: Homing, lane: LaneName, phase: Phase) -> str | None:
    found = await homing.desk.find(Wanted(lanes=(lane,), phases=(phase,)), limit=1, may=_may)
    return found.rows[0].id if found.rows else None


def _may(_scope: str) -> bool:
    return True


#: Who orders bulk runs here.
EVERYBODY: Final = Asker("cli:bench", _may)
