"""The HTTP application: what the lanes offer, health, metrics and the page, under one error format."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal

from litestar import Litestar, Request, Response, Router, get
from litestar.config.response_cache import ResponseCacheConfig
from litestar.connection import ASGIConnection
from litestar.datastructures import CacheControlHeader
from litestar.di import NamedDependency, Provide
from litestar.exceptions import NotFoundException
from litestar.handlers import BaseRouteHandler
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, License, SecurityScheme
from litestar.static_files import create_static_files_router
from litestar.types import ControllerRouterHandler, Empty
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from homing import __version__
from homing.engine.aside import aside
from homing.errors import HomingError
from homing.http.access import AccessMiddleware, handlers_of, require_scopes
from homing.http.errors import ErrorHandler
from homing.http.guard import make_guard
from homing.http.intake import LARGEST_BODY, Intake
from homing.http.live import Streams
from homing.http.loop_watch import watched
from homing.http.openapi import DocumentConfig
from homing.http.outgoing import make_answer_guard
from homing.http.traces import keep_trace
from homing.replies import answers
from homing.strict_json import decode, require_json
from homing.telemetry import Telemetry

#: Of all requests at once, where the settings say nothing else.
LARGEST_INTAKE = 4 * LARGEST_BODY


class StrictRequest(Request[Any, Any, Any]):
    """Litestar converts leniently; this decodes into the handler's type before Litestar can."""

    async def json(self) -> Any:
        if self.route_handler.opt.get("reads_own_body"):
            return Empty
        require_json(self.headers.get("content-type"))
        field = self.route_handler.parsed_data_field
        body = await self.body()
        return await aside(len(body), decode, body, field.annotation if field else Any)


class Healthy(Struct, frozen=True):
    status: Literal["ok"]


class Unavailable(Struct, frozen=True):
    status: Literal["unavailable"]
    reason: str


@get(
    "/health/live",
    tags=["health"],
    summary="The process answers",
    opt={"document": ("reads_nothing",)},
)
async def live() -> Healthy:
    return Healthy("ok")


@get(
    "/health/ready",
    tags=["health"],
    summary="The database answers and has its tables",
    responses=answers(
        (200, Healthy, "It is ready"),
        (503, Unavailable, "It is not, and why"),
    ),
)
async def ready(
    check_ready: NamedDependency[Callable[[], Awaitable[None]]],
) -> Response[Healthy | Unavailable]:
    try:
        await check_ready()
    except HomingError as error:
        return Response(Unavailable("unavailable", str(error)), status_code=503)
    return Response(Healthy("ok"))


@get(
    "/metrics",
    tags=["health"],
    summary="Prometheus metrics",
    media_type="text/plain",
    opt={"scope": "ops", "local": True},
)
async def metrics(
    telemetry: NamedDependency[Telemetry], refresh_gauges: NamedDependency[Callable[[], Awaitable[None]]]
) -> Response[bytes]:
    await refresh_gauges()
    return Response(generate_latest(telemetry.registry), media_type=CONTENT_TYPE_LATEST)


def build_app(
    routes: Sequence[ControllerRouterHandler],
    dependencies: Mapping[str, Any],
    telemetry: Telemetry,
    *,
    door: AccessMiddleware | None = None,
    intake: int = LARGEST_INTAKE,
    static: bool = True,
) -> Litestar:
    """The ASGI application. `dependencies` are the objects that handlers ask for by name.

    Without a `door` nobody is asked for a key: for a test of some routes, or a benchmark of the framework.
    """
    pages = [_static_files()] if static else []
    document = _document()
    bounds = [keep_trace, Intake(intake, telemetry).bound]
    app = Litestar(
        [live, ready, metrics, *routes, *pages],
        dependencies={
            name: Provide(_always(value), use_cache=True)
            for name, value in (dict(dependencies) | _of_door(door)).items()
        },
        exception_handlers={Exception: ErrorHandler(telemetry)},
        request_class=StrictRequest,
        before_request=make_guard(None) if door is None else None,
        middleware=bounds if door is None else [*bounds, door],
        request_max_body_size=LARGEST_BODY,
        response_cache_config=ResponseCacheConfig(),
        before_send=[make_answer_guard(https=door is not None and door.site.is_https)],
        openapi_config=document,
        signature_types=[Callable, Awaitable, Telemetry],
        logging_config=None,
    )
    # Around everything, the errors' pages too.
    app.asgi_handler = watched(app.asgi_handler, telemetry)
    if door is not None:
        require_scopes(app)
    document.routes |= {(path, method.lower()): handler.opt for path, method, handler in handlers_of(app)}
    app.state.telemetry = telemetry
    # Who serves the application ends these before it ends.
    app.state.closing = [given.close for given in dependencies.values() if isinstance(given, Streams)]
    return app


def _document() -> DocumentConfig:
    return DocumentConfig(
        "Homing",
        __version__,
        license=License("Apache License 2.0", identifier="Apache-2.0"),
        openapi_router=Router(
            "/openapi.json",
            route_handlers=[],
            guards=[_make_document],
            include_in_schema=False,
            opt={"scope": "known"},
        ),
        render_plugins=[JsonRenderPlugin(path="/")],
        use_handler_docstrings=True,
        components=Components(
            security_schemes={
                "key": SecurityScheme(type="http", scheme="bearer", bearer_format="hom_…"),
                "message": SecurityScheme(
                    type="http", scheme="bearer", description="The `authToken` of a message of the router"
                ),
            }
        ),
        security=[{}, {"key": []}],
    )


async def _make_document(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
    """It takes a fifth of a second, once, in which the handler would let nobody else in."""
    await to_thread(connection.app.plugins.get("OpenAPIPlugin").provide_openapi_schema)


def _of_door(door: AccessMiddleware | None) -> dict[str, Any]:
    return {"access": door.access, "site": door.site} if door is not None else {}


def _always(value: Any) -> Callable[[], Awaitable[Any]]:
    async def provide() -> Any:
        return value

    return provide


def _static_files() -> Router:
    """Their addresses change with their content, so browsers need not ask again."""
    kept = CacheControlHeader(max_age=365 * 24 * 3600, public=True, immutable=True)
    folder = files("homing.http").joinpath("static")
    names = frozenset(file.name for file in folder.iterdir())

    def require_known(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
        """To look for a name that no file can have would raise."""
        if connection.scope["path"].removeprefix("/static/") not in names:
            raise NotFoundException

    return create_static_files_router("/static", [str(folder)], cache_control=kept, guards=[require_known])
