"""What several routes answer: the one format of errors, and the verdicts on what came in one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from homing.errors import Forbidden, InvalidRequest, PayloadTooLarge

if TYPE_CHECKING:
    from litestar.openapi.datastructures import ResponseSpec


class ErrorDetail(Struct, frozen=True):
    """What is wrong."""

    code: str
    #: A sentence for people: what is wrong and how to fix it.
    message: str
    #: `field` where it is about one.
    details: dict[str, Any]


class ErrorReply(Struct, frozen=True):
    """Every error of the API."""

    error: ErrorDetail


class Verdict(Struct, frozen=True, omit_defaults=True):
    """What became of one item of a batch."""

    verdict: Literal["created", "duplicate", "conflict", "invalid"]
    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    error: ErrorDetail | UnsetType = UNSET


class BatchReply(Struct, frozen=True):
    """A verdict for each item, in the order of the request."""

    created: int
    items: list[Verdict]


class RequeueReply(Struct, frozen=True, rename="camel"):
    """How many ended messages are sent again, or would be."""

    #: Up to the limit; when there are more, the same request again goes on.
    matched: int
    requeued: int
    more: bool
    dry_run: bool


def error_detail(code: str, message: str, field: str | None = None) -> ErrorDetail:
    return ErrorDetail(code, message, {"field": field} if field else {})


def invalid(error: InvalidRequest | Forbidden) -> ErrorDetail:
    """What is wrong with one item of a batch."""
    if isinstance(error, Forbidden):
        return error_detail("FORBIDDEN", str(error))
    code = "PAYLOAD_TOO_LARGE" if isinstance(error, PayloadTooLarge) else "INVALID_REQUEST"
    return error_detail(code, str(error), error.field)


def answers(*given: tuple[int, Any, str]) -> Mapping[int, ResponseSpec]:
    """Answers of a route beside its usual one, for the OpenAPI document: status, type and description."""
    # Workers and the command line use these types without the web framework.
    from litestar.openapi.datastructures import ResponseSpec  # noqa: PLC0415 - see above

    return {
        status: ResponseSpec(kind, description=description, generate_examples=False)
        for status, kind, description in given
    }


def errors(descriptions: Mapping[int, str]) -> Mapping[int, ResponseSpec]:
    """Errors that are special to a route. `http/openapi.py` adds those that follow from what a route is."""
    return answers(*((status, ErrorReply, text) for status, text in descriptions.items()))
