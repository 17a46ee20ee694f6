"""The OpenAPI document as a judge: whether a real answer is one that it describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from msgspec import Struct
from tests.http.places import Places

METHODS = ("get", "put", "post", "patch", "delete")
#: What a client acts on: an answer has one of these where the document says so, and nowhere else.
TELLING = frozenset({"www-authenticate", "retry-after", "location", "allow"})


class Operation(Struct, frozen=True, eq=False):
    method: str
    path: str
    told: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def has_body(self) -> bool:
        return "requestBody" in self.told

    @property
    def queries(self) -> list[Mapping[str, Any]]:
        return [one for one in self.told.get("parameters", ()) if one["in"] == "query"]

    @property
    def own(self) -> set[int]:
        """Statuses that the route itself describes; the others follow from what kind of route it is."""
        return {int(status) for status, one in self.told["responses"].items() if "$ref" not in one}

    @property
    def of_its_kind(self) -> set[int]:
        return {int(status) for status in self.told["responses"]} - self.own


class Document:
    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = closed(told)
        self.operations = {one.name: one for one in self._operations()}
        self.places = Places(self.told["components"])
        for operation in self.operations.values():
            self._describe_successes(operation)
        self._validator = cache(self._make_validator)

    def _operations(self) -> Iterator[Operation]:
        for path, methods in self.told["paths"].items():
            yield from (Operation(name.upper(), path, methods[name]) for name in METHODS if name in methods)

    def _describe_successes(self, operation: Operation) -> None:
        for status, response in operation.told["responses"].items():
            if int(status) < 300:
                for content in response["content"].values():
                    self.places.describe(content["schema"], f"{operation.name} {status}")

    def compare(self, operation: Operation, answer: httpx.Response) -> None:
        """Fails unless status, media type, headers and all of the body are described."""
        asked = f"{operation.name} answered {answer.status_code}: {answer.text[:500]}"
        status = str(answer.status_code)
        assert status in operation.told["responses"], f"the document does not name it: {asked}"
        media = answer.headers["content-type"].partition(";")[0]
        response = self._resolved(operation.told["responses"][status])
        assert media in response["content"], f"the document names no {media}: {asked}"
        self._compare_headers(response.get("headers", {}), answer, asked)
        body = answer.json() if media == "application/json" else answer.text
        wrong = [
            f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
            for error in self._validator(operation, status, media).iter_errors(body)
        ]
        assert not wrong, f"{wrong}: {asked}"
        if answer.is_success:
            schema = response["content"][media]["schema"]
            self.places.visit(schema, body, f"{operation.name} {status}")

    def _compare_headers(
        self, described: Mapping[str, Mapping[str, Any]], answer: httpx.Response, asked: str
    ) -> None:
        required = {name.lower() for name, header in described.items() if header["required"]}
        missing = required - answer.headers.keys()
        assert not missing, f"without {missing}: {asked}"
        undescribed = (TELLING & answer.headers.keys()) - {name.lower() for name in described}
        assert not undescribed, f"the document names no {undescribed}: {asked}"

    def _resolved(self, response: Mapping[str, Any]) -> Mapping[str, Any]:
        name = response.get("$ref", "").rpartition("/")[2]
        found: Mapping[str, Any] = self.told["components"]["responses"][name] if name else response
        return found

    def _make_validator(self, operation: Operation, status: str, media: str) -> Draft202012Validator:
        response = self._resolved(operation.told["responses"][status])
        schema = {**response["content"][media]["schema"], "components": self.told["components"]}
        Draft202012Validator.check_schema(schema)
        return Draft202012Validator(schema)


def closed(node: Any) -> Any:
    """A property that an object's schema does not name is not described, wherever JSON Schema allows it."""
    if isinstance(node, list):
        return [closed(one) for one in node]
    if not isinstance(node, dict):
        return node
    inner = {key: closed(value) for key, value in node.items()}
    if inner.get("type") == "object" and "properties" in inner:
        inner.setdefault("additionalProperties", False)
    return inner
