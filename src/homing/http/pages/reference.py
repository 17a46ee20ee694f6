"""The API in words, from its OpenAPI document."""

from __future__ import annotations

import re
from asyncio import to_thread
from collections.abc import Iterator
from typing import Any

from litestar import Controller, Litestar, MediaType, Response, get
from markupsafe import Markup

from homing.http.asking import AnyRequest
from homing.http.pages.shell import PAGE, render, render_part

_METHODS = ("get", "post", "put", "patch", "delete")


class ReferencePage(Controller):
    include_in_schema = False
    opt = PAGE

    @get("/docs", media_type=MediaType.HTML)
    async def docs(self, request: AnyRequest) -> Response[str]:
        state = request.app.state
        if "docs" not in state:
            # Long, and the same for everybody for as long as this process runs.
            state.docs = await to_thread(_calls, request.app)
        return render(request, "docs.html", calls=state.docs)


def _calls(app: Litestar) -> Markup:
    schema = app.openapi_schema.to_schema()
    areas: dict[str, list[dict[str, Any]]] = {}
    for operation in _operations(schema):
        areas.setdefault(operation["area"], []).append(operation)
    calls = render_part("docs_calls.html", areas=areas, schemas=schema["components"]["schemas"])
    return Markup(calls)  # noqa: S704 (made by our own template, which escapes)


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One call at a time."""
    for path, methods in schema["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield _operation(path, method, methods[method])


def _operation(path: str, method: str, told: dict[str, Any]) -> dict[str, Any]:
    parameters = told.get("parameters", [])
    body = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    names = re.findall(r"#/components/schemas/(\w+)", str(body)) if body else []
    return {
        "path": _as_asked(path, parameters),
        "method": method.upper(),
        "area": (told.get("tags") or ["other"])[0],
        "body": names[0] if names else None,
        "summary": told.get("summary", ""),
        "description": told.get("description", ""),
        "parameters": [_parameter(one) for one in parameters if not _is_fixed(one)],
    }


def _as_asked(path: str, parameters: list[dict[str, Any]]) -> str:
    """What has one value only stands in the path as it is: nobody chooses it."""
    for one in filter(_is_fixed, parameters):
        path = path.replace(f"{{{one['name']}}}", one["schema"]["const"])
    return path


def _is_fixed(parameter: dict[str, Any]) -> bool:
    return "const" in parameter.get("schema", {})


def _parameter(told: dict[str, Any]) -> dict[str, Any]:
    kind = told.get("schema", {}).get("type") or "string"
    return {"name": told["name"], "in": told["in"], "type": kind, "required": told.get("required", False)}
