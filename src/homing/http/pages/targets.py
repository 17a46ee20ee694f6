"""`/targets`: whom webhooks go to, how they do, and what can be done for one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args
from urllib.parse import urlsplit

import msgspec
from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter
from msgspec import Struct

from homing.access.api import AuditEntry, shown
from homing.access.audit import AuditFilter
from homing.access.desk import Access
from homing.db import instant
from homing.errors import InvalidRequest
from homing.http.asking import AnyRequest, who_of
from homing.http.numbers import number_in
from homing.http.pages.deeds import OWN_AUDIT, REFUSALS, SPANS, Deed, tried
from homing.http.pages.forms import NOTHING_SENT, Form, Refused, Sent, chosen, refusal
from homing.http.pages.shell import gone_to, link, read_form, render
from homing.lanes.dispatch_jobs.mistakes import read
from homing.lanes.dispatch_jobs.target_desk import (
    HINTS,
    QUICKER,
    LimitRequest,
    PauseRequest,
    ProbeResult,
    ResumeRequest,
    State,
    TargetDesk,
    TargetView,
    ValidateRequest,
)
from homing.lanes.dispatch_jobs.target_look import COUNTED, Load, LoadedTarget, TargetFilter, TargetLook
from homing.messages.model import sees_whole

_STATES: tuple[State, ...] = get_args(State)
_TONES: Mapping[str, str] = {"closed": "good", "open": "bad", "half_open": "wait", "paused": "wait"}
_WORDS: Mapping[str, str] = {
    "closed": "answers",
    "open": "breaker open",
    "half_open": "being tried",
    "paused": "paused",
}
#: Of a target that nobody has sent to lately.
_UNKNOWN: Mapping[str, str] = {"word": "nothing known", "tone": "quiet"}
_OPERATES = {"scope": "jobs:operate", **OWN_AUDIT}
_LARGEST_FORM = 64 * 1024
#: Of a pause; nothing chosen is until somebody ends it.
_SPANS: Mapping[str, int | None] = {**SPANS, "": None}
_SHOWN_BODY = 2000
#: As the audit log names it; and of how many the newest are looked at.
_PAUSED, _LOOKED_AT = "dispatch.targets.pause", 50
_SAYS: Mapping[str, str] = {
    "credentialsId": "there are no such credentials; the page Credentials lists those there are"
}
_NUMBER = "write a number, or nothing for no limit;"
_OPEN = Form("/targets/one", {"targetUrl": "target", "credentialsId": "credentials"}, _SAYS, about="target")
_LIMITS = Form(
    "/targets/limits",
    {
        "at once": "max_concurrency",
        "maxConcurrency": "max_concurrency",
        "a second": "rate_per_second",
        "ratePerSecond": "rate_per_second",
    },
    # Named as on the page, since what is wrong is told above it, too.
    {
        **_SAYS,
        **dict.fromkeys(("at once", "maxConcurrency"), f"At once: {_NUMBER} it is from 1 to 10,000"),
        **dict.fromkeys(("a second", "ratePerSecond"), f"A second: {_NUMBER} it is from 0.001 to 100,000"),
    },
)
_PAUSE = Form("/targets/pause", {"seconds": "span"}, _SAYS)
_TEST = Form("/targets/test", {"targetUrl": "url"}, _SAYS, about="url")


class TargetPages(Controller):
    path = "/targets"
    include_in_schema = False
    opt: Mapping[str, Any] = {"scope": "jobs:read"}
    request_max_body_size = _LARGEST_FORM

    @get("/", media_type=MediaType.HTML)
    async def list(
        self,
        *,
        request: AnyRequest,
        target_look: NamedDependency[TargetLook],
        q: FromQuery[str] = "",
        in_state: Annotated[str, QueryParameter(name="state")] = "",
        after: FromQuery[str] = "",
    ) -> Response[str]:
        return await _page_of_all(request, target_look, q, in_state, after)

    @get("/one", media_type=MediaType.HTML)
    async def one(
        self,
        *,
        request: AnyRequest,
        targets_desk: NamedDependency[TargetDesk],
        target_look: NamedDependency[TargetLook],
        access: NamedDependency[Access],
        target: FromQuery[str],
        credentials_id: Annotated[str, QueryParameter(name="credentials")] = "",
    ) -> Response[str]:
        """What names no target is asked for again, where it was written."""
        named = _Named(target, credentials_id or None)
        try:
            return await _page_of(request, access, targets_desk, target_look, named)
        except REFUSALS as error:
            sent = _OPEN.sent({"target": target, "credentials": credentials_id}, refusal(error))
            return await _page_of_all(request, target_look, sent=sent)

    @post("/limits", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def limit(
        self,
        request: AnyRequest,
        targets_desk: NamedDependency[TargetDesk],
        target_look: NamedDependency[TargetLook],
        access: NamedDependency[Access],
    ) -> Response[str]:
        form = await read_form(request)
        named, texts = _named(form), (form.get("max_concurrency", ""), form.get("rate_per_second", ""))

        async def limit() -> TargetView:
            at_once, a_second = number_in(texts[0], "at once", int), number_in(texts[1], "a second")
            given = {"maxConcurrency": at_once, "ratePerSecond": a_second}
            version = form.get("limits_version") or None
            return await targets_desk.limit(named.order(LimitRequest, **given, limitsVersion=version))

        told = {"maxConcurrency": texts[0] or None, "ratePerSecond": texts[1] or None}
        done = await tried(request, access, Deed("dispatch.targets.limit", named.text, told), limit)
        if isinstance(done, Refused):
            sent = _LIMITS.sent(form, done)
            return await _page_of(request, access, targets_desk, target_look, named, sent=sent)
        return gone_to(named.path, "The limits hold from now on, over all processes.")

    @post("/pause", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def pause(
        self,
        request: AnyRequest,
        targets_desk: NamedDependency[TargetDesk],
        target_look: NamedDependency[TargetLook],
        access: NamedDependency[Access],
    ) -> Response[str]:
        form = await read_form(request)
        named, span = _named(form), form.get("span", "")
        said = {"seconds": _SPANS.get(span), "reason": form.get("reason", "").strip() or None}

        async def pause() -> TargetView:
            chosen(_SPANS, span, "span")
            return await targets_desk.pause(named.order(PauseRequest, **said))

        done = await tried(request, access, Deed(_PAUSED, named.text, said), pause)
        if isinstance(done, Refused):
            sent = _PAUSE.sent(form, done)
            return await _page_of(request, access, targets_desk, target_look, named, sent=sent)
        told = "Paused: it is sent nothing, and its jobs wait without losing attempts."
        return gone_to(named.path, told)

    @post("/resume", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def resume(
        self,
        request: AnyRequest,
        targets_desk: NamedDependency[TargetDesk],
        access: NamedDependency[Access],
    ) -> Response[str]:
        named = _named(await read_form(request))

        async def resume() -> TargetView:
            return await targets_desk.resume(named.order(ResumeRequest))

        done = await tried(request, access, Deed("dispatch.targets.resume", named.text), resume)
        if isinstance(done, Refused):
            return gone_to(named.path, done.text, is_good=False)
        return gone_to(named.path, "It is asked again: the pause is over and the breaker closed.")

    @post("/test", status_code=200, media_type=MediaType.HTML, opt=_OPERATES)
    async def validate(
        self,
        *,
        request: AnyRequest,
        targets_desk: NamedDependency[TargetDesk],
        target_look: NamedDependency[TargetLook],
        access: NamedDependency[Access],
    ) -> Response[str]:
        """The answer is shown at once and kept nowhere: it is of this moment."""
        form = await read_form(request)
        named, url = _named(form), form.get("url", "").strip()

        async def probe() -> ProbeResult:
            order: ValidateRequest = named.order(ValidateRequest, targetUrl=url)
            _, meant = await targets_desk.show(url, named.credentials)
            if meant.target != named.target:
                raise InvalidRequest(
                    f"this URL is not one of this target's, which go to {named.target}", "url"
                )
            return await targets_desk.validate(order, adds=who_of(request).may("credentials:admin"))

        result = await tried(request, access, Deed("dispatch.targets.validate", named.text), probe)
        if isinstance(result, Refused):
            sent = _TEST.sent(form, result)
            return await _page_of(request, access, targets_desk, target_look, named, sent=sent)
        return await _page_of(request, access, targets_desk, target_look, named, probe=result, url=url)


class _Named(Struct, frozen=True):
    """A target as pages name it."""

    target: str
    credentials: str | None

    @property
    def text(self) -> str:
        return f"{self.target} ({self.credentials})" if self.credentials else self.target

    @property
    def path(self) -> str:
        return link("/targets/one", target=self.target, credentials=self.credentials)

    def order(self, kind: Any, **more: Any) -> Any:
        """As a caller of the API would write it, so that it is checked like theirs."""
        named = {"targetUrl": self.target, "credentialsId": self.credentials}
        given = {name: value for name, value in {**named, **more}.items() if value is not None}
        return read(msgspec.json.encode(given), kind, HINTS)


def _named(form: Mapping[str, str]) -> _Named:
    return _Named(form.get("target", ""), form.get("credentials") or None)


async def _page_of_all(
    request: AnyRequest,
    look: TargetLook,
    q: str = "",
    in_state: str = "",
    after: str = "",
    *,
    sent: Sent = NOTHING_SENT,
) -> Response[str]:
    state = next((one for one in _STATES if one == in_state), None)
    found = await look.page(TargetFilter(q.strip(), state), _without_nul(after))
    chips = [("", "All"), *((one, _WORDS[one]) for one in _STATES)]
    return render(
        request,
        "targets.html",
        sent=sent,
        targets=[_listed(one) for one in found.items],
        chips=[(label, link("/targets", q=q, state=one), one == (state or "")) for one, label in chips],
        q=q,
        state=state or "",
        newest=link("/targets", q=q, state=state) if after else "",
        older=link("/targets", q=q, state=state, after=found.next) if found.next else "",
    )


async def _page_of(
    request: AnyRequest,
    access: Access,
    desk: TargetDesk,
    look: TargetLook,
    named: _Named,
    *,
    probe: ProbeResult | None = None,
    url: str | None = None,
    sent: Sent = NOTHING_SENT,
) -> Response[str]:
    whole = sees_whole(who_of(request).may, "jobs")
    key, view = await desk.show(named.target, named.credentials)
    one, last = LoadedTarget(key, view, await look.load(key)), await look.last_url(key, with_path=whole)
    listed = {**_listed(one), **({} if last is not None or _is_known(one) else _UNKNOWN)}
    paused = await _who_paused(access, view)
    return render(
        request,
        "target.html",
        sent=sent,
        target=listed,
        paused=paused,
        paused_at=instant(paused.at) if paused is not None else None,
        results=await look.results(key),
        spans=list(SPANS),
        url=url or (last and last.url) or view.target,
        is_cut=last is not None and last.is_cut,
        limits_version=_begun_with(view, sent),
        probe=probe,
        probe_body=(probe.body or "")[:_SHOWN_BODY] if probe is not None else "",
    )


async def _who_paused(access: Access, view: TargetView) -> AuditEntry | None:
    """As the audit log has it; None also of a target that asked for the pause itself."""
    if view.state != "paused":
        return None
    found = await access.audit.search(AuditFilter(action=_PAUSED, outcome="done"), limit=_LOOKED_AT)
    return next((entry for row in found.rows if _is_its(entry := shown(row), view)), None)


def _is_its(entry: AuditEntry, view: TargetView) -> bool:
    """The API tells the target in the detail, and pages as what it was done to."""
    detail = entry.detail or {}
    named = _Named(view.target, view.credentials_id).text
    by_api = (detail.get("target"), detail.get("credentialsId")) == (view.target, view.credentials_id)
    return (entry.object == named or by_api) and detail.get("reason") == view.reason


def _begun_with(view: TargetView, sent: Sent) -> str:
    """The version that the form of the limits goes on with.

    One that is refused for a mistake keeps its own, so that what somebody has changed meanwhile is only
    written over by who was told of it.
    """
    if sent.why.startswith(QUICKER):
        return view.limits_version
    return sent.of(_LIMITS.action).text("limits_version", view.limits_version)


def _is_known(one: LoadedTarget) -> bool:
    """One that answers and has no limits needs no row."""
    return one.view.updated_at is not None or one.load != Load()


def _listed(one: LoadedTarget) -> dict[str, Any]:
    view = one.view
    one_url = view.state == "closed" and view.until is not None
    return {
        "name": view.target,
        "credentials": view.credentials_id,
        "path": link("/targets/one", target=view.target, credentials=view.credentials_id),
        "state": view.state,
        "word": "one URL left alone" if one_url else _WORDS[view.state],
        "tone": _TONES["half_open" if one_url else view.state],
        "until": instant(view.until),
        "reason": view.reason,
        "failures": view.failures,
        "last_error": view.last_error,
        "max_concurrency": view.max_concurrency,
        "rate_per_second": view.rate_per_second,
        "updated_at": instant(view.updated_at),
        "waiting": f"{one.load.waiting:,}{'+' if one.load.waiting >= COUNTED else ''}",
        "in_flight": one.load.in_flight,
        "messages": link("/messages", q=f"lane:dispatch_jobs to:{_host(view.target)}"),
    }


def _host(target: str) -> str:
    try:
        return urlsplit(target).hostname or target
    except ValueError:
        return target


def _without_nul(text: str) -> str:
    return text.replace("\x00", "")
