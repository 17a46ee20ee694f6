"""The one place that knows the route and who asks: lets in or refuses, and writes down what was changed.

A route says what it needs by `opt={"scope": "jobs:read"}`. One that says nothing and is not in `OPEN` is a
mistake of ours: the application is not built with it.

    scope         one of `access.scopes.SCOPES`, or `known`: any valid key or login
    local         whether it is also open to this machine itself, while we listen on loopback only
    audit         how a call that changes something is written down: "each" (when nothing is said), "counted"
                  (one entry for many: what puts messages in), "own" (the handler does it)
    audit_body    names of fields of the JSON body that are told
    audit_reply   names of fields of the JSON answer that are told
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from litestar import Litestar, Request
from litestar.exceptions import NotAuthorizedException, TooManyRequestsException
from litestar.handlers import HTTPRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, HTTPResponseStartEvent, Message, Receive, Scope, Send

from homing.access.audit import AuditLog, Entry, Outcome
from homing.access.desk import Access
from homing.access.limits import Allowance, RateLimits
from homing.access.principal import LOOPBACK, Principal
from homing.access.scopes import KNOWN, SCOPES
from homing.errors import Forbidden
from homing.http.guard import READING, AnyRequest, Site, refuse_foreign
from homing.http.json_depth import require_shallow
from homing.http.login import CSRF_FIELD, login_page

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
_CSRF_HEADER = "x-csrf-token"
_LONGEST_REPLY = 64 * 1024
_LOCAL = Principal("loopback", "loopback", "loopback", frozenset({"ops"}))
_WHY = {
    "unknown": "this key is not known here",
    "expired": "this key has expired; make another one with `homing keys create`",
    "revoked": "this key was revoked; make another one with `homing keys create`",
}


# ── every route says what it needs ───────────────────────────────────────────────────────────────


def require_scopes(app: Litestar) -> None:
    """Raise unless every route is in `OPEN` or names a scope that suits it."""
    for path, method, handler in _handlers(app):
        if mistake := _mistake(path, method, handler):
            raise RuntimeError(f"{method} {path}: {mistake}")


def _handlers(app: Litestar) -> Iterable[tuple[str, str, HTTPRouteHandler]]:
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


class AccessMiddleware(ASGIMiddleware):
    def __init__(self, access: Access, site: Site, *, rate_per_second: float = 0.0) -> None:
        self.access, self.site = access, site
        self._limits = RateLimits(rate_per_second)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        request: AnyRequest = Request(scope, receive, send)
        template = scope["path_template"]
        if template not in _FROM_ANYWHERE:
            self.site.require_served(request)
        if template in OPEN:
            if template not in _FROM_ANYWHERE:
                refuse_foreign(request)
            await next_app(scope, receive, send)
            return
        principal = await self._principal(request)
        if principal is None and _wants_page(request):
            page = login_page(request.url.path, status_code=401)
            await page.to_asgi_response(app=None, request=request)(scope, receive, send)
            return
        await self._serve(request, _required(principal), next_app, send)

    async def _principal(self, request: AnyRequest) -> Principal | None:
        if self.site.bound_to_loopback and not await self.access.is_configured():
            return LOOPBACK
        given = request.headers.get("authorization")
        if given is not None:
            return await self._of_key(given)
        token = self.site.session_cookie(request)
        found = await self.access.sessions.find(token) if token is not None else None
        if found is None and request.route_handler.opt.get("local") and self.site.is_local(request):
            return _LOCAL
        return found

    async def _of_key(self, header: str) -> Principal:
        if not header.lower().startswith(_BEARER):
            raise _unauthorized("a key is needed: Authorization: Bearer hom_…")
        found = await self.access.keys.authenticate(header[len(_BEARER) :].strip())
        if not isinstance(found, Principal):
            raise _unauthorized(_WHY[found], "invalid_token")
        return found

    async def _serve(self, request: AnyRequest, principal: Principal, next_app: ASGIApp, send: Send) -> None:
        request.scope["user"] = request.scope["auth"] = principal
        allowance = self._allow(principal)
        try:
            await self._require_allowed(request, principal)
        except Forbidden:
            if request.method not in READING:
                await self.access.audit.write(_entry(request, principal, "refused", {"status": 403}))
            raise
        answer = send if allowance is None else _with_headers(send, allowance.headers)
        await self._call(request, principal, next_app, answer)

    def _allow(self, principal: Principal) -> Allowance | None:
        if principal.kind != "key":
            return None
        allowance = self._limits.take(principal.id, principal.rate_per_second)
        if allowance is not None and allowance.retry_after:
            wait = {"Retry-After": str(max(1, round(allowance.retry_after + 0.5)))}
            raise TooManyRequestsException(
                "this key asks too often; try again later", headers={**allowance.headers, **wait}
            )
        return allowance

    async def _require_allowed(self, request: AnyRequest, principal: Principal) -> None:
        refuse_foreign(request)
        if principal.kind == "user" and request.method not in READING:
            self.site.require_own_page(request)
            await _require_token(request, principal.csrf)
        needed = request.route_handler.opt.get("scope", KNOWN)
        if not principal.may(needed):
            raise Forbidden(f"this needs the scope {needed}, which {principal.who} does not have")

    async def _call(self, request: AnyRequest, principal: Principal, next_app: ASGIApp, send: Send) -> None:
        if request.method in READING:
            await next_app(request.scope, request.receive, send)
            return
        body = await _shallow_body(request)
        if request.route_handler.opt.get("audit") == "own":
            await next_app(request.scope, request.receive, send)
            return
        witness = _Witness(self.access.audit, request, principal, body, send)
        await next_app(request.scope, request.receive, witness)


def _required(principal: Principal | None) -> Principal:
    if principal is None:
        raise _unauthorized("a key is needed: Authorization: Bearer hom_…; `homing keys create` makes one")
    return principal


def _unauthorized(why: str, error: str | None = None) -> NotAuthorizedException:
    told = f', error="{error}"' if error else ""
    return NotAuthorizedException(detail=why, headers={"WWW-Authenticate": f'Bearer realm="homing"{told}'})


def _wants_page(request: AnyRequest) -> bool:
    accepts = "text/html" in request.headers.get("accept", "")
    return request.method == "GET" and accepts and not request.url.path.startswith(("/api/", "/metrics"))


async def _require_token(request: AnyRequest, expected: str) -> None:
    given = request.headers.get(_CSRF_HEADER)
    if given is None and request.content_type[0] == "application/x-www-form-urlencoded":
        given = str((await request.form()).get(CSRF_FIELD, ""))
    if given is None or not _is_same(given, expected):
        raise Forbidden("the form is too old, or of another session: load the page again")


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


async def _shallow_body(request: AnyRequest) -> bytes:
    """Read here, for whoever may ask: a body that is too deep stops before any handler sees it."""
    if request.content_type[0] != "application/json":
        return b""
    body = await request.body()
    require_shallow(body)
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

    def __init__(
        self, audit: AuditLog, request: AnyRequest, principal: Principal, body: bytes, send: Send
    ) -> None:
        self._audit, self._request, self._principal = audit, request, principal
        self._body, self._send = body, send
        self._start: HTTPResponseStartEvent | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # Held until the first of the body, which may say what came of it.
            self._start = message
            return
        if message["type"] == "http.response.body" and self._start is not None:
            start, self._start = self._start, None
            await self._write(start["status"], message["body"])
            await self._send(start)
        await self._send(message)

    async def _write(self, status: int, reply: bytes) -> None:
        opt = self._request.route_handler.opt
        outcome: Outcome = "done" if status < 400 else "refused" if status < 500 else "failed"
        if opt.get("audit") == "counted":
            self._audit.count(_entry(self._request, self._principal, outcome))
            return
        detail = {
            "status": status,
            **_fields(self._body, opt.get("audit_body", ())),
            **_fields(reply, opt.get("audit_reply", ())),
        }
        await self._audit.write(_entry(self._request, self._principal, outcome, detail))


def _entry(
    request: AnyRequest, principal: Principal, outcome: Outcome, detail: Mapping[str, Any] | None = None
) -> Entry:
    object = "/".join(str(value) for value in request.path_params.values()) or None
    address = request.client.host if request.client is not None else None
    return Entry(principal.who, action_of(request), object, address, detail, outcome)


def action_of(request: AnyRequest) -> str:
    """`dispatch.jobs.requeue`: the controller's path and the handler's name."""
    handler = request.route_handler
    place = getattr(handler.owner, "path", "") or ""
    words = [word for word in place.split("/") if word and word not in {"api", "admin"}]
    name = handler.handler_name
    return ".".join([*words, name])


def _fields(text: bytes, names: Sequence[str]) -> dict[str, Any]:
    """Those of a JSON object; what cannot be read was refused, and there is nothing to tell."""
    if not names or len(text) > _LONGEST_REPLY:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {name: found[name] for name in names if name in found}
