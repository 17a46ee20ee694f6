"""The one place that knows the route and who asks: lets in or refuses, and writes down what was changed.

A route says what it needs by `opt={"scope": "jobs:read"}`. One that says nothing and is not in `OPEN` is a
mistake of ours: the application is not built with it.

    scope         one of `access.scopes.SCOPES`, or `known`: any valid key or login
    local         whether it is also open to this machine itself, while we listen on loopback only
    audit         how a call that changes something is written down: "each" (when nothing is said), "counted"
                  (one entry for many: what puts messages in), "own" (the handler does it)
    audit_body    names of fields of the JSON body that are told
    audit_reply   names of fields of the JSON answer that are told
    largest_form  of how many bytes a form may be, where that is not `LARGEST_FORM`
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Litestar, Request, Response
from litestar.datastructures import Headers
from litestar.exceptions import NotAuthorizedException, TooManyRequestsException
from litestar.handlers import HTTPRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, HTTPResponseStartEvent, Message, Receive, Scope, Send
from msgspec import Struct

from homing.access.audit import AuditLog, Entry, Outcome
from homing.access.desk import Access
from homing.access.limits import Allowance, RateLimits
from homing.access.principal import LOOPBACK, Principal
from homing.access.scopes import KNOWN, SCOPES
from homing.engine.aside import aside
from homing.errors import Forbidden, PayloadTooLarge
from homing.http.asking import AnyRequest, address_of
from homing.http.guard import READING, Site, refuse_foreign
from homing.http.json_depth import require_shallow
from homing.http.login import CSRF_FIELD, ended_page, login_page
from homing.http.pages.shell import LARGEST_FORM, wants_page

#: Routes that need no key: the short list. What stands beside them is why.
OPEN: Mapping[str, str] = {
    "/health/live": "probes have no key",
    "/health/ready": "probes have no key",
    "/login": "whoever logs in has no session yet",
    "/static/{file_path}": "style sheets and pictures of ours, the same for everybody",
    "/api/dispatch/process": "the token of the message is asked for",
    "/unsubscribe": "the token in the link is asked for",
    "/confirm": "the token in the link is asked for",
    "/subscriptions/{id}": "the token in the link is asked for",
}
#: Of these, where people and mailbox providers come to from anywhere, by any name of this host.
_FROM_ANYWHERE = frozenset({"/unsubscribe", "/confirm", "/subscriptions/{id}"})

_BEARER = "bearer "
_FORM = "application/x-www-form-urlencoded"
#: Fields cost more than bytes do. The longest form of ours has 500 messages that were selected.
_MOST_FIELDS = 2000
_CSRF_HEADER = "x-csrf-token"
#: What may stand in an address as it is, the sign of what was quoted included.
_QUOTED_ALREADY = "%/?:@!$&'()*+,;=[]"
_LONGEST_REPLY = 64 * 1024
#: Seconds for which a key still reads metrics while the database is away: that is when they are needed.
_OUTAGE = 3600.0
_LOCAL = Principal("loopback", "loopback", "loopback", frozenset({"ops"}))
_WHY = {
    "unknown": "this key is not known here",
    "expired": "this key has expired; make another one with `homing keys create`",
    "unsealed": "this key was made without HOMING_ENCRYPTION_KEY, and does not count since that is set; make "
    "another one, or let it count by `homing keys seal ID`",
    "revoked": "this key was revoked; make another one with `homing keys create`",
}


# ── every route says what it needs ───────────────────────────────────────────────────────────────


def require_scopes(app: Litestar) -> None:
    """Raise unless every route is in `OPEN` or names a scope that suits it."""
    for path, method, handler in handlers_of(app):
        if mistake := _mistake(path, method, handler):
            raise RuntimeError(f"{method} {path}: {mistake}")


def handlers_of(app: Litestar) -> Iterable[tuple[str, str, HTTPRouteHandler]]:
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            raise TypeError(f"{route.path}: only routes of HTTP are guarded")
        for method, (handler, _) in route.route_handler_map.items():
            yield route.path_format, method, handler


def _mistake(path: str, method: str, handler: HTTPRouteHandler) -> str | None:
    if path in OPEN or _is_preflight(method, handler):
        return None
    scope = handler.opt.get("scope")
    if scope is None:
        return "declares no scope"
    if scope not in SCOPES and scope != KNOWN:
        return f"there is no scope {scope!r}"
    if method not in READING and scope.endswith(":read"):
        return f"{scope} is not enough for what changes something"
    return None


def _is_preflight(method: str, handler: HTTPRouteHandler) -> bool:
    """Litestar makes these itself, for every path."""
    return method == "OPTIONS" and handler.handler_name == "options_handler"


# ── the middleware ───────────────────────────────────────────────────────────────────────────────


class _Route(Struct, frozen=True):
    """What a handler's `opt` says, read once."""

    action: str
    needs: str
    is_local: bool
    audit: str
    audit_body: tuple[str, ...]
    audit_reply: tuple[str, ...]
    largest_form: int


class _Visit(Struct, frozen=True):
    """A request and who makes it."""

    request: AnyRequest
    headers: Headers
    route: _Route
    principal: Principal

    @property
    def changes(self) -> bool:
        return self.request.method not in READING


class AccessMiddleware(ASGIMiddleware):
    def __init__(self, access: Access, site: Site, *, rate_per_second: float = 0.0) -> None:
        self.access, self.site = access, site
        self._limits = RateLimits(rate_per_second)
        self._routes: dict[Any, _Route] = {}
        self._told_of_proxy = False

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        request: AnyRequest = Request(scope, receive, send)
        # Once: Litestar makes them anew for everyone who asks.
        headers = request.headers
        if self.site.see_through(scope, headers):
            self._tell_of_proxy(scope)
        template = scope["path_template"]
        if template not in _FROM_ANYWHERE:
            self.site.require_served(headers.get("host", ""))
        if template in OPEN:
            if template not in _FROM_ANYWHERE:
                refuse_foreign(request.method, headers)
            await next_app(scope, receive, send)
            return
        route = self._route(request.route_handler)
        principal = await self._principal(request, headers, route)
        if principal is not None:
            await self._serve(_Visit(request, headers, route, principal), next_app, send)
        elif wants_page(request):
            page = self._login(request)
            await page.to_asgi_response(app=None, request=request)(scope, receive, send)
        else:
            raise _unauthorized(
                "a key is needed: Authorization: Bearer hom_…; `homing keys create` makes one"
            )

    def _tell_of_proxy(self, scope: Scope) -> None:
        """Once: whoever has set no proxy up may still be sent what a proxy would send."""
        if not self._told_of_proxy:
            self._told_of_proxy = True
            peer = scope["client"][0] if scope["client"] is not None else "unknown"
            self.access.telemetry.log.warning("proxy.untrusted", peer=peer)

    def _login(self, request: AnyRequest) -> Response[str]:
        """Afterwards one is where one wanted to go; of a form, on the page that it was on."""
        if request.method in READING:
            return login_page(request, _asked_for(request), status_code=401)
        refuse_foreign(request.method, request.headers)
        return ended_page(request, self.site)

    def _route(self, handler: Any) -> _Route:
        known = self._routes.get(handler)
        if known is None:
            known = self._routes[handler] = _read_route(handler)
        return known

    async def _principal(self, request: AnyRequest, headers: Headers, route: _Route) -> Principal | None:
        given = headers.get("authorization")
        # Before the database is asked: metrics are read while it is away, too.
        if route.is_local and given is None and self.site.is_local(request):
            return _LOCAL
        if self.site.bound_to_loopback and not await self.access.is_configured():
            return LOOPBACK
        if given is not None:
            return await self._of_key(given, _OUTAGE if route.is_local else 0.0)
        token = self.site.session_cookie(request) if "cookie" in headers else None
        return await self.access.sessions.find(token) if token is not None else None

    async def _of_key(self, header: str, in_outage: float) -> Principal:
        if header[: len(_BEARER)].lower() != _BEARER:
            raise _unauthorized("a key is needed: Authorization: Bearer hom_…")
        found = await self.access.keys.authenticate(header[len(_BEARER) :].strip(), in_outage=in_outage)
        if not isinstance(found, Principal):
            raise _unauthorized(_WHY[found], "invalid_token")
        return found

    async def _serve(self, visit: _Visit, next_app: ASGIApp, send: Send) -> None:
        visit.request.scope["user"] = visit.request.scope["auth"] = visit.principal
        allowance = self._allow(visit.principal)
        try:
            await self._require_allowed(visit)
        except Forbidden:
            if visit.changes:
                await _write_down(self.access.audit, visit, 403)
            raise
        headers = allowance.headers if allowance is not None else {}
        await self._call(visit, next_app, _with_headers(send, headers) if headers else send)

    def _allow(self, principal: Principal) -> Allowance | None:
        if principal.kind != "key":
            return None
        allowance = self._limits.take(principal.id, principal.rate_per_second)
        if allowance is not None and allowance.retry_after:
            wait = {"Retry-After": str(max(1, math.ceil(allowance.retry_after)))}
            raise TooManyRequestsException(
                "this key asks too often; try again later", headers={**allowance.headers, **wait}
            )
        return allowance

    async def _require_allowed(self, visit: _Visit) -> None:
        principal, needed = visit.principal, visit.route.needs
        refuse_foreign(visit.request.method, visit.headers)
        # Before anything is read of what they send.
        principal.require(needed)
        if visit.changes:
            await _require_small_form(visit)
        if principal.kind == "user" and visit.changes:
            self.site.require_own_page(visit.request)
            await _require_token(visit.request, principal.csrf)

    async def _call(self, visit: _Visit, next_app: ASGIApp, send: Send) -> None:
        request = visit.request
        if not visit.changes:
            await next_app(request.scope, request.receive, send)
            return
        body = await _shallow_body(visit)
        answer = send if visit.route.audit == "own" else _Witness(self.access.audit, visit, body, send)
        await next_app(request.scope, request.receive, answer)


def _read_route(handler: Any) -> _Route:
    opt = handler.opt
    return _Route(
        _action_of(handler),
        opt.get("scope", KNOWN),
        bool(opt.get("local")),
        opt.get("audit", "each"),
        tuple(opt.get("audit_body", ())),
        tuple(opt.get("audit_reply", ())),
        opt.get("largest_form", LARGEST_FORM),
    )


def _action_of(handler: Any) -> str:
    """`dispatch.jobs.requeue`: the controller's path and the handler's name."""
    place = getattr(handler.owner, "path", "") or ""
    words = [word for word in place.split("/") if word and word not in {"api", "admin"}]
    return ".".join([*words, handler.handler_name])


def _unauthorized(why: str, error: str | None = None) -> NotAuthorizedException:
    told = f', error="{error}"' if error else ""
    return NotAuthorizedException(detail=why, headers={"WWW-Authenticate": f'Bearer realm="homing"{told}'})


def _asked_for(request: AnyRequest) -> str:
    """With its query: a filter in a link is still there after the login."""
    path, query = (quote(request.scope[part], safe=_QUOTED_ALREADY) for part in ("raw_path", "query_string"))
    return f"{path}?{query}" if query else path


async def _require_small_form(visit: _Visit) -> None:
    """Before anybody parses it, which keeps everything else in this process waiting."""
    request, most = visit.request, visit.route.largest_form
    if not visit.headers.get("content-type", "").lower().startswith(_FORM):
        return
    if (request.content_length or 0) > most or len(body := await request.body()) > most:
        raise PayloadTooLarge(f"a form may have {most // 1024} KiB here")
    if body.count(b"&") > _MOST_FIELDS:
        raise PayloadTooLarge(f"a form may have {_MOST_FIELDS:,} fields")


async def _require_token(request: AnyRequest, expected: str) -> None:
    given = request.headers.get(_CSRF_HEADER)
    if given is None and request.content_type[0] == _FORM:
        given = str((await request.form()).get(CSRF_FIELD, ""))
    if given is None or not _is_same(given, expected):
        raise Forbidden("the form is too old, or of another session: load the page again")


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


async def _shallow_body(visit: _Visit) -> bytes:
    """Read here, for whoever may ask: a body that is too deep stops before any handler sees it."""
    if not visit.headers.get("content-type", "").lower().startswith("application/json"):
        return b""
    body = await visit.request.body()
    await aside(len(body), require_shallow, body)
    return body


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    more = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return add


# ── what was changed ─────────────────────────────────────────────────────────────────────────────


class _Witness:
    """Stands where the answer goes out: whoever gets it finds the entry written."""

    def __init__(self, audit: AuditLog, visit: _Visit, body: bytes, send: Send) -> None:
        self._audit, self._visit, self._body, self._send = audit, visit, body, send
        self._start: HTTPResponseStartEvent | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # Held until the first of the body, which may say what came of it.
            self._start = message
            return
        if message["type"] == "http.response.body" and self._start is not None:
            start, self._start = self._start, None
            await _write_down(self._audit, self._visit, start["status"], self._body, message["body"])
            await self._send(start)
        await self._send(message)


async def _write_down(
    audit: AuditLog, visit: _Visit, status: int, body: bytes = b"", reply: bytes = b""
) -> None:
    request, route, who = visit.request, visit.route, visit.principal.who
    address = address_of(request)
    outcome: Outcome = "done" if status < 400 else "refused" if status < 500 else "failed"
    if route.audit == "counted":
        audit.count(who, route.action, address, outcome)
        return
    object = "/".join(str(value) for value in request.path_params.values()) or None
    detail = {"status": status, **_fields(body, route.audit_body), **_fields(reply, route.audit_reply)}
    await audit.write(Entry(who, route.action, object, address, detail, outcome))


def _fields(text: bytes, names: Sequence[str]) -> dict[str, Any]:
    """Those of a JSON object; what cannot be read was refused, and there is nothing to tell."""
    if not names or len(text) > _LONGEST_REPLY:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {name: found[name] for name in names if name in found}
