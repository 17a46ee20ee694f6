"""`/alerts`: what is wrong, what people were told of it, and what they want to hear nothing of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from msgspec import Struct

from homing.access.desk import Access
from homing.access.principal import Principal
from homing.alerts.desk import Alerts, AlertView, CauseView
from homing.desk.desk import Desk
from homing.http.asking import AnyRequest, who_of
from homing.http.pages.deeds import OWN_AUDIT, SPANS, Deed, tried
from homing.http.pages.forms import NOTHING_SENT, Form, Refused, Sent, chosen
from homing.http.pages.shell import gone_to, read_form, render
from homing.http.pages.sight import readable
from homing.lanes.dispatch_jobs.tsid import text_of

_LARGEST_FORM = 16 * 1024
_MOST_TOLD = 50
#: Of a silence; 0 ends it.
_SPANS: Mapping[str, int] = {"0": 0, **SPANS}
_SILENCE = Form("/alerts/silence", {"seconds": "span"}, about="span")
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
    async def list(
        self, request: AnyRequest, alerts: NamedDependency[Alerts], desk: NamedDependency[Desk]
    ) -> Response[str]:
        return await _page(request, alerts, desk)

    @post("/silence", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def silence(
        self,
        request: AnyRequest,
        alerts: NamedDependency[Alerts],
        access: NamedDependency[Access],
        desk: NamedDependency[Desk],
    ) -> Response[str]:
        form = await read_form(request)
        cause, span = form.get("cause", ""), form.get("span", "")
        seconds = _SPANS.get(span)

        async def silence() -> CauseView:
            return await alerts.silence(cause, chosen(_SPANS, span, "span"), by=who_of(request).who)

        done = await tried(request, access, Deed("alerts.silence", cause, {"seconds": seconds}), silence)
        if isinstance(done, Refused):
            return await _page(request, alerts, desk, sent=_SILENCE.sent(form, done))
        ended = f"{cause} is told of again."
        return gone_to("/alerts", f"Nobody is told of {cause} for {form['span']}." if seconds else ended)

    @post("/test", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def test(
        self, request: AnyRequest, alerts: NamedDependency[Alerts], access: NamedDependency[Access]
    ) -> Response[str]:
        done = await tried(request, access, Deed("alerts.test"), alerts.test)
        if isinstance(done, Refused):
            return gone_to("/alerts", done.text, is_good=False)
        troubles = alerts.troubles_of(done)
        way = f"is on its way: {', '.join(done.went)}" if done.went else "did not go out"
        return gone_to("/alerts", ". ".join([f"Alert {done.id} {way}", *troubles, ""]), is_good=not troubles)


async def _page(
    request: AnyRequest, alerts: Alerts, desk: Desk, *, sent: Sent = NOTHING_SENT
) -> Response[str]:
    may_see = _sight(desk, who_of(request))
    return render(
        request,
        "alerts.html",
        sent=sent,
        firing=[one for one in await alerts.firing() if may_see(one)],
        silenced=[one for one in await alerts.silenced() if may_see(one)],
        told=[_told_line(one) for one in await alerts.recent(_MOST_TOLD) if may_see(one)],
        ways=alerts.ways.all,
        spans=[name for name in SPANS if name != "5m"],
    )


def _sight(desk: Desk, user: Principal) -> Callable[[AlertView | CauseView], bool]:
    """Of a lane that somebody may not read they are told nothing, unless alerts are their business."""
    hidden = set() if user.may("ops") else set(desk.lanes) - set(readable(desk, user))
    return lambda one: one.lane not in hidden


def _told_line(alert: AlertView) -> ToldLine:
    mail = [("mail", f"outbox_{alert.mail_id}")] if alert.mail_id is not None else []
    webhook = [("webhook", text_of(alert.job_id))] if alert.job_id is not None else []
    return ToldLine(alert, _TONES.get(alert.event, "bad"), [*mail, *webhook])
