"""Logging in and out: a plain page, which needs no script."""

from __future__ import annotations

import math
from collections.abc import Mapping

from litestar import Controller, MediaType, Response, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import FromQuery

from homing.access.desk import Access
from homing.access.login import LoggedIn, LoginsBusy, TooManyLogins
from homing.access.principal import Principal
from homing.errors import Forbidden
from homing.http.asking import AnyRequest, address_of
from homing.http.guard import Site, hostname
from homing.http.pages.shell import form_page, own_path, read_form, render
from homing.settings import is_loopback

CSRF_FIELD = "csrf"

_LARGEST_FORM = 16 * 1024
_HOME = "/"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
}
_LONGEST_NAME = 200
_WRONG = "This name and password do not belong together."
_ENDED = (
    "Your session has ended. Nothing was done, and what you typed is not kept: log in, and send it again."
)


class LoginPages(Controller):
    include_in_schema = False

    @get("/login", media_type=MediaType.HTML)
    async def ask(self, request: AnyRequest, next: FromQuery[str] = _HOME) -> Response[str]:
        return login_page(request, next)

    @post("/login", status_code=200, media_type=MediaType.HTML, request_max_body_size=_LARGEST_FORM)
    async def log_in(
        self, access: NamedDependency[Access], site: NamedDependency[Site], request: AnyRequest
    ) -> Response[str]:
        """A page elsewhere must not log a browser in under a name of its choice, so it must be ours."""
        site.require_own_page(request)
        _require_privacy(site, request)
        form = await read_form(request)
        result = await access.log_in(
            form.get("name", "").strip().lower(),
            form.get("password", ""),
            address_of(request),
            site.session_cookie(request),
        )
        match result:
            case LoggedIn(token=token):
                return _gone_to(own_path(form.get("next", _HOME)), _cookie(site, request, token))
            case TooManyLogins(retry_after=seconds):
                wait = max(1, round(seconds + 0.5))
                return _later(request, form, f"Too many attempts. Try again in {wait} seconds.", 429, wait)
            case LoginsBusy(retry_after=seconds):
                said = "Too many people are logging in just now. Try again in a moment."
                return _later(request, form, said, 503, max(1, math.ceil(seconds)))
            case _:
                name = form.get("name", "")
                return login_page(request, form.get("next", _HOME), _WRONG, name=name, status_code=401)

    @post(
        "/logout",
        status_code=200,
        media_type=MediaType.HTML,
        opt={"scope": "known", "audit": "own"},
        request_max_body_size=_LARGEST_FORM,
    )
    async def log_out(
        self, access: NamedDependency[Access], site: NamedDependency[Site], request: AnyRequest
    ) -> Response[str]:
        token, principal = site.session_cookie(request), request.user
        if token is not None and isinstance(principal, Principal) and principal.kind == "user":
            await access.sessions.close(token, principal.who, address_of(request))
        return _gone_to("/login", _cookie(site, request, ""))


def login_page(
    request: AnyRequest,
    next: str,
    message: str | None = None,
    *,
    name: str = "",
    status_code: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response[str]:
    """Where a person is asked who they are; afterwards they go on to `next`."""
    return render(
        request,
        "login.html",
        status_code=status_code,
        headers={**_HEADERS, **(headers or {})},
        message=message,
        name=name[:_LONGEST_NAME],
        next=own_path(next),
    )


def _later(
    request: AnyRequest, form: Mapping[str, str], said: str, status_code: int, seconds: int
) -> Response[str]:
    return login_page(
        request,
        form.get("next", _HOME),
        said,
        name=form.get("name", ""),
        status_code=status_code,
        headers={"Retry-After": str(seconds)},
    )


def ended_page(request: AnyRequest, site: Site) -> Response[str]:
    """For a form whose session is over: what it wanted is not done, also not after the login."""
    page = form_page(request, own_path(site.came_from(request)))
    return login_page(request, page, _ENDED, status_code=401)


def _require_privacy(site: Site, request: AnyRequest) -> None:
    if not site.is_secure(request) and not is_loopback(hostname(request.headers.get("host", ""))):
        raise Forbidden(
            "a password is taken by https only: put a proxy with TLS in front, and set "
            "HOMING_BASE_URL=https://… and HOMING_TRUSTED_PROXIES"
        )


def _gone_to(path: str, cookie: Cookie) -> Response[str]:
    return Response("", status_code=303, headers={"Location": path, **_HEADERS}, cookies=[cookie])


def _cookie(site: Site, request: AnyRequest, token: str) -> Cookie:
    """Gone with the browser; how long it counts is the server's business."""
    return Cookie(
        key=site.cookie_name(request),
        value=token,
        path="/",
        httponly=True,
        samesite="strict",
        secure=site.is_secure(request),
        max_age=None if token else 0,
    )
