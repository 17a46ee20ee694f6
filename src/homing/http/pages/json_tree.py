"""A JSON text as a tree to look at. It is exact: numbers as they were written, and both of doubled keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

#: A page with more than this is no help; the text is shown as it is.
_LONGEST = 200_000
_MOST_NODES = 4000
_DEEPEST = 40

Kind = Literal["object", "array", "string", "number", "word"]


class Node(Struct, frozen=True):
    kind: Kind
    #: As it is written in JSON; of an object or an array, empty.
    text: str = ""
    #: With their keys, as they are written in JSON; those of an array have none.
    members: tuple[tuple[str | None, Node], ...] = ()


class _Raw(str):
    """A number, as it was written."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """An object, with every key that it was written with."""


class _TooMuchError(Exception):
    pass


def json_tree(text: str) -> Node | None:
    """None of what is no JSON, or too large or too deep to be looked at as a tree."""
    if len(text) > _LONGEST:
        return None
    try:
        value = json.loads(
            text, parse_int=_Raw, parse_float=_Raw, parse_constant=_refuse, object_pairs_hook=_Pairs
        )
        return _node(value, iter(range(_MOST_NODES)), 0)
    except (ValueError, RecursionError, _TooMuchError):
        return None


def _refuse(_word: str) -> Any:
    """NaN and Infinity are no JSON, whatever Python says."""
    raise _TooMuchError


def _node(value: Any, room: Iterator[int], depth: int) -> Node:
    if next(room, None) is None or depth > _DEEPEST:
        raise _TooMuchError
    if isinstance(value, _Raw):
        return Node("number", value)
    if isinstance(value, str):
        return Node("string", _written(value))
    if isinstance(value, _Pairs):
        return Node(
            "object", members=tuple((_written(key), _node(one, room, depth + 1)) for key, one in value)
        )
    if isinstance(value, list):
        return Node("array", members=tuple((None, _node(one, room, depth + 1)) for one in value))
    return Node("word", {True: "true", False: "false"}.get(value, "null"))


def _written(text: str) -> str:
    """Half a pair of surrogates can be written in JSON, and not on a page: there it stays an escape."""
    is_whole = not any("\ud800" <= letter <= "\udfff" for letter in text)
    return json.dumps(text, ensure_ascii=not is_whole)
