"""One error format everywhere: `{"error": {"code", "message", "details"}}`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, NotFoundException

from homing.errors import (
    Busy,
    Conflict,
    DatabaseError,
    Forbidden,
    InvalidRequest,
    NotAllowed,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    Unreachable,
    WrongMediaType,
)
from homing.http.pages.shell import render, wants_page
from homing.telemetry import Telemetry

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (PayloadTooLarge, 413),
    (WrongMediaType, 415),
    (InvalidRequest, 400),
    (Forbidden, 403),
    (NotFound, 404),
    (NotAllowed, 409),
    (Conflict, 409),
    (Busy, 503),
    (RateLimited, 429),
)
_CODES = {
    400: "INVALID_REQUEST", 401: "UNAUTHORIZED", 403: "FORBIDDEN", 404: "NOT_FOUND", 405: "INVALID_REQUEST",
    409: "CONFLICT", 413: "PAYLOAD_TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE", 429: "RATE_LIMITED",
}  # fmt: skip
_TITLES = {
    403: "You may not do this",
    404: "There is nothing here",
    409: "Not in this state",
    413: "That is too large",
    429: "Too often",
    500: "Something went wrong here",
    503: "Not now",
}
#: This one knows four codes; everything that is wrong with a request is a 400.
_DISPATCH = "/internal/dispatch"
_DISPATCH_STATUS = {413: 400, 415: 400, 503: 500}
_DISPATCH_CODES = {400: "DISPATCH_INVALID_REQUEST", 409: "DISPATCH_CONFLICT", 429: "DISPATCH_RATE_LIMITED"}
#: What Litestar raises then, as it says it.
_LEFT = "client disconnected prematurely"
_INTERNAL = "something went wrong here; the log has more"
_AWAY = "the database cannot be reached; try again in a while"
#: Seconds after which it makes sense to ask again.
_AWAY_FOR = 5


class ErrorHandler:
    """Answers every exception that a route lets through."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def __call__(self, request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        status, message = _judge(error, request)
        if status >= 500 and not _is_expected(error):
            self._report(request, error)
        code = _CODES.get(status, "INTERNAL_ERROR")
        if request.url.path == _DISPATCH and status not in {401, 403, 405}:
            status = status_at(_DISPATCH, status)
            code = _DISPATCH_CODES.get(status, "DISPATCH_INTERNAL_ERROR")
        if wants_page(request):
            return _page(request, status, _for_people(error, message), _headers(error))
        body = {"error": {"code": code, "message": message, "details": _details(error)}}
        return Response(body, status_code=status, headers=_headers(error))

    def _report(self, request: Request[Any, Any, Any], error: Exception) -> None:
        if isinstance(error, DatabaseError):
            self._telemetry.log.error("http.failed", path=request.url.path, error=str(error))
        else:
            self._telemetry.crashed("http.failed", error, path=request.url.path)


def _is_expected(error: Exception) -> bool:
    """Whether it is no trouble of ours: there is no room, or who asked has left before all was said."""
    return isinstance(error, Busy) or getattr(error, "detail", None) == _LEFT


def status_at(path: str, status: int) -> int:
    """What a route answers where others answer that."""
    return _DISPATCH_STATUS.get(status, status) if path == _DISPATCH else status


def _judge(error: Exception, request: Request[Any, Any, Any]) -> tuple[int, str]:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status, str(error)
    if isinstance(error, Unreachable):
        return 503, _AWAY
    if isinstance(error, HTTPException) and error.status_code == 413:
        most = request.route_handler.resolve_request_max_body_size() or 0
        return 413, f"the body is larger than {_size(most)}; send it in several requests"
    if isinstance(error, HTTPException) and error.status_code < 500:
        return error.status_code, error.detail
    return 500, _INTERNAL


def _size(bytes: int) -> str:
    return f"{bytes >> 20} MiB" if bytes >= 1 << 20 else f"{bytes >> 10} KiB"


def _for_people(error: Exception, message: str) -> str:
    return "no page has this address" if isinstance(error, NotFoundException) else message


def _page(
    request: Request[Any, Any, Any], status: int, message: str, headers: Mapping[str, str]
) -> Response[Any]:
    title = _TITLES.get(status, "This did not work")
    return render(
        request,
        "error.html",
        status_code=status,
        headers=headers,
        status=status,
        title=title,
        message=message,
    )


def _details(error: Exception) -> dict[str, Any]:
    field = getattr(error, "field", None)
    return {"field": field} if field else {}


def _headers(error: Exception) -> dict[str, str]:
    if isinstance(error, RateLimited):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, Unreachable):
        return {"Retry-After": str(_AWAY_FOR)}
    return {str(k): str(v) for k, v in (getattr(error, "headers", None) or {}).items()}
