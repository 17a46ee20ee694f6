"""Which parts of the schemas real values have been seen for.

JobView.metadata      a property, by the name of its schema
JobView.metadata{}    what a map has in it
JobPage.items[]       what a list has in it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

Schema = Mapping[str, Any]


class Places:
    def __init__(self, components: Mapping[str, Any]) -> None:
        self._components = components
        self.visited: set[str] = set()
        self.described: set[str] = set()

    def describe(self, schema: Schema, place: str) -> None:
        """All places that a value of this schema may have."""
        self.described.add(place)
        if "$ref" in schema:
            place, schema = self._named(schema)
            if place in self.described:
                return
            self.described.add(place)
        for choice in _choices(schema):
            self.describe(choice, place)
        for inner_place, inner, _ in _inside(schema, None, place):
            self.describe(inner, inner_place)

    def visit(self, schema: Schema, value: Any, place: str) -> None:
        """The places of this value; null is none."""
        if value is None:
            return
        self.visited.add(place)
        if "$ref" in schema:
            place, schema = self._named(schema)
            self.visited.add(place)
        for choice in self._chosen(schema, value):
            self.visit(choice, value, place)
        for inner_place, inner, values in _inside(schema, value, place):
            for one in values:
                self.visit(inner, one, inner_place)

    def _named(self, schema: Schema) -> tuple[str, Schema]:
        name = schema["$ref"].rpartition("/")[2]
        return name, self._components["schemas"][name]

    def _chosen(self, schema: Schema, value: Any) -> list[Schema]:
        choices = _choices(schema)
        if len(choices) < 2:
            return choices
        return [one for one in choices if self._validator(one).is_valid(value)]

    def _validator(self, schema: Schema) -> Draft202012Validator:
        return Draft202012Validator({**schema, "components": self._components})


def _choices(schema: Schema) -> list[Schema]:
    return [one for one in schema.get("oneOf", schema.get("anyOf", ())) if one != {"type": "null"}]


def _inside(schema: Schema, value: Any, place: str) -> Iterator[tuple[str, Schema, Iterable[Any]]]:
    """Each part of a schema with its place, and what this value has there."""
    fields = value if isinstance(value, dict) else {}
    properties = schema.get("properties", {})
    for name, inner in properties.items():
        yield f"{place}.{name}", inner, [fields[name]] if name in fields else []
    if "items" in schema:
        yield f"{place}[]", schema["items"], value if isinstance(value, list) else []
    if isinstance(others := schema.get("additionalProperties"), dict):
        yield f"{place}{{}}", others, [one for name, one in fields.items() if name not in properties]
