"""Every page of the desk, as the application's own routes name them, with examples to visit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import quote, urlencode

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from tests.browser.seed import Seeded
from tests.http.door import Door

from homing.lanes.open_events.links import Links

#: What else answers to GET, and why nobody visits it as a page.
NO_PAGES: Mapping[str, str] = {
    "/events": "a stream, which pages listen to",
    "/messages/{id:str}/mail.html": "the frame of a message's page; its own test looks at it",
    "/messages/{id:str}/mail.txt": "a text",
    "/messages/{id:str}/mail.eml": "a download",
    "/caught/{id:int}/html": "the frame of a caught mail's page",
    "/audit/export": "a download",
    "/jobs/{id:str}": "moved to /messages",
    "/health/live": "for probes",
    "/health/ready": "for probes",
    "/metrics": "for Prometheus",
}
_PROGRAMS = ("/api/", "/internal/", "/openapi.json", "/static/")
#: Messages whose pages differ: by lane, by state, by what is in them.
_SHOWN = (
    *("job.delivered", "job.dead", "job.hostile", "job.retried", "job.down.0", "job.ordered.1", "job.long"),
    *("job.running", "mail.delivered", "mail.chinese", "mail.untemplated", "mail.hostile", "mail.long"),
    *("mail.running", "email.failed", "email.dead", "notification.sent", "notification.failed"),
)


def routes_of(app: Litestar, method: Literal["GET", "POST"]) -> Iterator[tuple[str, HTTPRouteHandler]]:
    """Those for people, not for programs."""
    for route in app.routes:
        if not isinstance(route, HTTPRoute) or f"{route.path}/".startswith(_PROGRAMS):
            continue
        if method in route.route_handler_map:
            yield route.path, route.route_handler_map[method][0]


def asked(path: str, **query: object) -> str:
    return f"{path}?{urlencode(query)}"


def places(door: Door, seeded: Seeded) -> Mapping[str, Sequence[str]]:
    """By route, what to visit of it."""
    links = door.homing.notifications_part.links
    own = [url.partition(door.address)[2] for url in _links(seeded, links)]
    return {
        "/": ["/", "/?hours=24"],
        "/messages": [
            "/messages",
            asked("/messages", q="status:dead lane:dispatch_jobs type:news* since:2h"),
            asked("/messages", q="lane:mail_outbox statsu:dead"),
            asked("/messages", q="nobody has written this"),
        ],
        "/messages/{id:str}": [f"/messages/{quote(seeded.ids[name])}" for name in _SHOWN],
        "/dead": ["/dead"],
        "/bulk": ["/bulk"],
        "/bulk/new": [
            asked("/bulk/new", q="status:dead", verb="requeue"),
            asked("/bulk/new", q="x:y", verb="cancel"),
        ],
        "/bulk/{id:int}": [f"/bulk/{seeded.run}"],
        "/caught": ["/caught"],
        "/caught/{id:int}": [f"/caught/{seeded.caught}"],
        "/docs": ["/docs"],
        "/alerts": ["/alerts"],
        "/audit": ["/audit", asked("/audit", since="nonsense")],
        "/access": ["/access"],
        "/credentials": ["/credentials"],
        "/credentials/one": [asked("/credentials/one", id=seeded.credentials)],
        "/health": ["/health"],
        "/subscriptions": ["/subscriptions", asked("/subscriptions", q="not known")],
        "/subscriptions/one": [asked("/subscriptions/one", id=seeded.subscription)],
        "/targets": ["/targets", asked("/targets", state="open")],
        "/targets/one": [
            asked("/targets/one", target=seeded.down),
            asked("/targets/one", target=seeded.paused),
            asked("/targets/one", target=seeded.target, credentials=seeded.credentials),
        ],
        "/queues": ["/queues"],
        "/workers": ["/workers"],
        "/router": ["/router"],
        "/login": ["/login"],
        "/subscriptions/{id:int}": own[:1],
        "/unsubscribe": own[1:2],
        "/confirm": own[2:],
    }


def _links(seeded: Seeded, links: Links) -> Iterator[str]:
    who = (seeded.subscription, "ann@example.org")
    yield links.manage_url(*who)
    yield links.unsubscribe_url(*who)
    yield links.confirm_url(*who, now=datetime.now(UTC))
