"""`/alerts`: what is wrong, what people were told of it, and what they want to hear nothing of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from msgspec import Struct

from homing.access.desk import Access
from homing.alerts.desk import Alerts, AlertView
from homing.http.pages.deeds import OWN_AUDIT, SPANS, Deed, Refused, tried, who_of
from homing.http.pages.shell import AnyRequest, gone_to, read_form, render
from homing.lanes.dispatch_jobs.tsid import text_of

_LARGEST_FORM = 16 * 1024
_MOST_TOLD = 50
_OPERATES = {"scope": "alerts:operate", **OWN_AUDIT}
_TONES: Mapping[str, str] = {"resolved": "good", "test": "quiet"}


class ToldLine(Struct, frozen=True):
    alert: AlertView
    tone: str
    #: The messages that it became: by which way, and which.
    messages: Sequence[tuple[str, str]]


class AlertPages(Controller):
    path = "/alerts"
    include_in_schema = False
    opt: Mapping[str, Any] = {"scope": "desk:read"}
    request_max_body_size = _LARGEST_FORM

    @get("/", media_type=MediaType.HTML)
    async def list(self, request: AnyRequest, alerts: NamedDependency[Alerts]) -> Response[str]:
        return render(
            request,
            "alerts.html",
            firing=await alerts.firing(),
            silenced=await alerts.silenced(),
            told=[_told_line(alert) for alert in await alerts.recent(_MOST_TOLD)],
            ways=alerts.ways.all,
            spans=[name for name in SPANS if name != "5m"],
        )

    @post("/silence", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def silence(
        self, request: AnyRequest, alerts: NamedDependency[Alerts], access: NamedDependency[Access]
    ) -> Response[str]:
        form = await read_form(request)
        cause, seconds = form.get("cause", ""), SPANS.get(form.get("span", ""), 0)
        deed = Deed("alerts.silence", cause, {"seconds": seconds})
        done = await tried(
            request, access, deed, lambda: alerts.silence(cause, seconds, by=who_of(request).who)
        )
        if isinstance(done, Refused):
            return gone_to("/alerts", done.text, is_good=False)
        ended = f"{cause} is told of again."
        return gone_to("/alerts", f"Nobody is told of {cause} for {form['span']}." if seconds else ended)

    @post("/test", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def test(
        self, request: AnyRequest, alerts: NamedDependency[Alerts], access: NamedDependency[Access]
    ) -> Response[str]:
        done = await tried(request, access, Deed("alerts.test"), alerts.test)
        if isinstance(done, Refused):
            return gone_to("/alerts", done.text, is_good=False)
        return gone_to("/alerts", f"Alert {done.id} is on its way: {', '.join(done.ways)}.")


def _told_line(alert: AlertView) -> ToldLine:
    mail = [("mail", f"outbox_{alert.mail_id}")] if alert.mail_id is not None else []
    webhook = [("webhook", text_of(alert.job_id))] if alert.job_id is not None else []
    return ToldLine(alert, _TONES.get(alert.event, "bad"), [*mail, *webhook])
