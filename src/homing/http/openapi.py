"""The OpenAPI document. A route names what is special to it; what follows from its kind is added here.

    every route                  403 (by its Host), 500, 503
    one that asks for a scope    401, 429
    one with an id in its path   404
    one with a query             400
    one that changes something   400 and 413 (its body is read, wanted or not), 409 (a lock was lost)
    one that takes a body        415

`opt={"document": …}` names exceptions: `reads_nothing` needs no database, so it has no 503. `action` shows
the end of the path as a parameter with one value: OpenAPI takes `/{id}/requeue` and `/subscriptions/{id}`
for the same path, `/{id}/{action}` and `/subscriptions/{id}` not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import OpenAPI

from homing.http.access import OPEN
from homing.http.errors import status_at
from homing.http.guard import READING
from homing.replies import ErrorReply

#: By path and method what the route says in its `opt`.
Routes = Mapping[tuple[str, str], Mapping[str, Any]]

_REF = "#/components/{kind}/{name}"
_KNOWN: Mapping[int, tuple[str, str]] = {
    400: ("InvalidRequest", "Something is wrong with the request; the message says what, and how to fix it"),
    401: ("Unauthorized", "There is no key, or one that is unknown, expired or revoked"),
    403: ("Forbidden", "The key lacks a scope, another site's page asks, or the Host is not served here"),
    404: ("NotFound", "There is none with this id"),
    409: ("Conflict", "A lock was lost to another process; nothing was changed, so try again"),
    413: ("PayloadTooLarge", "The body is larger than 16 MiB"),
    415: ("UnsupportedMediaType", "The body is not declared to be application/json"),
    429: ("RateLimited", "The key asks too often"),
    500: ("InternalError", "Something went wrong in Homing; its log has more"),
    503: ("Unavailable", "The database cannot be reached, or as much as fits is being taken in"),
}
_HEADERS: Mapping[int, tuple[str, str]] = {
    401: ("WWW-Authenticate", "Which kind of key is needed"),
    429: ("Retry-After", "After how many seconds to ask again"),
    503: ("Retry-After", "After how many seconds to ask again"),
}
#: What Litestar tells of a 400 that nobody described; ours has another body.
_OF_LITESTAR = {"status_code", "detail", "extra"}


@dataclass
class DocumentConfig(OpenAPIConfig):
    #: Known when the application is built; the document is made when it is asked for.
    routes: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def to_openapi_schema(self) -> OpenAPI:
        plain = super().to_openapi_schema()
        return _Document(**{one.name: getattr(plain, one.name) for one in fields(plain)}, routes=self.routes)


@dataclass
class _Document(OpenAPI):
    routes: Routes = field(default_factory=dict)

    @property
    def _exclude_fields(self) -> set[str]:
        return super()._exclude_fields | {"routes"}

    def to_schema(self) -> dict[str, Any]:
        return completed(super().to_schema(), self.routes)


def completed(document: dict[str, Any], routes: Routes) -> dict[str, Any]:
    """With everything that a route need not say of itself."""
    document = _tidy(document)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(operation, path, method, routes[path, method])
    document["paths"] = {_shown(path, each, routes): each for path, each in document["paths"].items()}
    _, schemas = msgspec.json.schema_components([ErrorReply], ref_template="#/components/schemas/{name}")
    components = document["components"]
    components["schemas"] = dict(sorted({**schemas, **components["schemas"]}.items()))
    components["responses"] = {name: _response(status) for status, (name, _) in _KNOWN.items()}
    return document


def _tidy(node: Any) -> Any:
    """A choice of one is none: Litestar writes it where a field may be left out."""
    if isinstance(node, list):
        return [_tidy(one) for one in node]
    if not isinstance(node, dict):
        return node
    tidy = {key: _tidy(value) for key, value in node.items()}
    only = tidy.get("oneOf")
    return {**tidy.pop("oneOf")[0], **tidy} if isinstance(only, list) and len(only) == 1 else tidy


def _complete(operation: dict[str, Any], path: str, method: str, opt: Mapping[str, Any]) -> None:
    if path in OPEN:
        operation.setdefault("security", [])
    if body := operation.get("requestBody"):
        _describe_body(body, is_read_later=bool(opt.get("reads_own_body")))
    described = {int(status): one for status, one in operation["responses"].items() if not _is_litestars(one)}
    _share_headers(described)
    if 401 in described:
        # Whoever refuses says which kind of key is needed, the door or the route itself.
        described[401]["headers"] = _headers(401)
    known = _known(path, set(_plain_statuses(operation, path, method, opt)))
    operation["responses"] = {str(status): one for status, one in sorted({**known, **described}.items())}


def _known(path: str, plain: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Those that others tell apart may be one here, which is described as all of them then."""
    meanings: dict[int, list[int]] = {}
    for status in sorted(plain):
        meanings.setdefault(status_at(path, status), []).append(status)
    return {
        status: {"$ref": _REF.format(kind="responses", name=_KNOWN[status][0])}
        if meant == [status]
        else _response(*meant)
        for status, meant in meanings.items()
    }


def _plain_statuses(
    operation: dict[str, Any], path: str, method: str, opt: Mapping[str, Any]
) -> Iterator[int]:
    yield from (403, 500)
    if "reads_nothing" not in _exceptions(opt):
        yield 503
    if path not in OPEN:
        yield from (401, 429)
    if "{" in path:
        yield 404
    if any(one["in"] == "query" for one in operation.get("parameters", ())):
        yield 400
    if method.upper() not in READING:
        yield from (400, 409, 413)
    if "requestBody" in operation:
        yield 415


def _is_litestars(response: Mapping[str, Any]) -> bool:
    schemas = [content["schema"] for content in response.get("content", {}).values()]
    return any(set(schema.get("properties", ())) == _OF_LITESTAR for schema in schemas)


def _share_headers(responses: Mapping[int, dict[str, Any]]) -> None:
    """What a route says of its headers holds whenever it did what was asked for."""
    succeeded = [one for status, one in responses.items() if status < 300]
    headers = {name: header for one in succeeded for name, header in one.get("headers", {}).items()}
    for one in succeeded:
        one["headers"] = headers
    for one in responses.values():
        if not one.get("headers", True):
            del one["headers"]


def _describe_body(body: dict[str, Any], *, is_read_later: bool) -> None:
    """A body that its handler reads itself is optional for the framework, and needed for all that."""
    for content in body["content"].values():
        choices = content["schema"].get("oneOf", [])
        others = [one for one in choices if one != {"type": "null"}]
        if len(others) == len(choices):
            continue
        if not is_read_later:
            body["required"] = False
        else:
            content["schema"] = others[0] if len(others) == 1 else {"oneOf": others}


def shown_path(path: str, opt: Mapping[str, Any]) -> str:
    return f"{path.rpartition('/')[0]}/{{action}}" if "action" in _exceptions(opt) else path


def _shown(path: str, operations: Mapping[str, Any], routes: Routes) -> str:
    shown = path
    for method, operation in operations.items():
        shown = shown_path(path, routes[path, method])
        if shown != path:
            parameter = {"name": "action", "in": "path", "required": True, "schema": _only(path)}
            operation["parameters"] = [*operation.get("parameters", ()), parameter]
    return shown


def _only(path: str) -> dict[str, Any]:
    action = path.rpartition("/")[2]
    return {"type": "string", "const": action, "default": action}


def _exceptions(opt: Mapping[str, Any]) -> Collection[str]:
    names: Collection[str] = opt.get("document", ())
    return names


def _response(*meant: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(kind="schemas", name="ErrorReply")}
    response: dict[str, Any] = {
        "description": "; or: ".join(_KNOWN[status][1] for status in meant),
        "content": {"application/json": {"schema": schema}},
    }
    if headers := _headers(*meant):
        response["headers"] = headers
    return response


def _headers(*meant: int) -> dict[str, Any]:
    """Always there, unless the answer means something else as well."""
    return {
        name: {"description": description, "required": len(meant) == 1, "schema": {"type": "string"}}
        for status in meant
        if status in _HEADERS
        for name, description in [_HEADERS[status]]
    }
