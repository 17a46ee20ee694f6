"""What the OpenAPI document says of our routes beyond their types: parameters that are read here, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from litestar.datastructures import ResponseHeader
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import (
    OpenAPIFormat,
    OpenAPIType,
    Operation,
    Parameter,
    Reference,
    RequestBody,
    Schema,
)

from homing.lanes.dispatch_jobs.job import STATES
from homing.lanes.dispatch_jobs.orders import LONGEST_VALUE, METADATA_KEY
from homing.lanes.dispatch_jobs.view import ErrorReply

_DESCRIPTIONS: Mapping[int, str] = {
    400: "Something is wrong with the request; the message says what, and how to mend it",
    403: "Not from there: another site's page, or a Host that is not served here",
    404: "There is no such job",
    409: "The job is in a state in which that cannot be done, or the idempotency key is another job's",
    413: "The payload is larger than 1 MiB, or the body larger than 16 MiB",
    415: "The body is not declared to be application/json",
    500: "The database did not answer, or there is a mistake of ours",
}
LOCATION = ResponseHeader(
    name="Location", description="Where the job can be looked at", documentation_only=True
)


def errors(*statuses: int) -> dict[int, ResponseSpec]:
    """Those of a route beside the ones that every route has."""
    return {
        status: ResponseSpec(
            data_container=ErrorReply, description=_DESCRIPTIONS[status], generate_examples=False
        )
        for status in sorted({*statuses, HTTPStatus.FORBIDDEN, HTTPStatus.INTERNAL_SERVER_ERROR})
    }


def _text(longest: int = 500) -> Schema:
    return Schema(type=OpenAPIType.STRING, min_length=1, max_length=longest)


def _number(least: int, most: int, default: int) -> Schema:
    return Schema(type=OpenAPIType.INTEGER, minimum=least, maximum=most, default=default)


def _in_query(name: str, description: str, schema: Schema) -> Parameter:
    return Parameter(name=name, param_in="query", schema=schema, description=description, required=False)


_MOMENT = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.DATE_TIME)
_STATUS = Schema(type=OpenAPIType.STRING, enum=list(STATES))
_SIZE = _in_query("size", "Jobs on a page", _number(1, 100, 20))
_SOURCE = _in_query("source", "Jobs of this source", _text())
_TYPE = _in_query("type", "Jobs of this type", _text())
_METADATA = Parameter(
    name="metadata",
    param_in="query",
    style="form",
    explode=True,
    required=False,
    description="`metadata.KEY=VALUE`: jobs with this entry; of several, jobs with all of them",
    schema=Schema(
        type=OpenAPIType.OBJECT,
        property_names=Schema(pattern=rf"^metadata\.(?:{METADATA_KEY.pattern[:-1]}){{1,100}}$"),
        additional_properties=Schema(type=OpenAPIType.STRING, max_length=LONGEST_VALUE),
    ),
)

_SEARCH = (
    _in_query("status", "Jobs in this state", _STATUS),
    _SOURCE,
    _TYPE,
    _in_query("groupId", "Jobs of this group", _text()),
    _in_query("externalId", "Jobs with this id of yours", _text()),
    _in_query("errorClass", "Jobs in ERROR that died of this", _text()),
    _in_query("createdAfter", "Created then or later; with a zone", _MOMENT),
    _in_query("createdBefore", "Created then or earlier; with a zone", _MOMENT),
    _METADATA,
    _in_query("page", "From 0; up to the 10,000th job", _number(0, 10_000, 0)),
    _SIZE,
    _in_query("cursor", "`next` of the page before, with the same filters", _text(1000)),
)
_DEAD = (
    _in_query("errorClass", "List the jobs that died of this", _text()),
    _SOURCE,
    _TYPE,
    _in_query("before", "`next` of the list before", _text(13)),
    _SIZE,
)
_TARGETS = (_in_query("after", "`next` of the list before", _text()),)


@dataclass
class BodyOperation(Operation):
    """A body that a handler reads itself is optional for the framework, and required for its callers."""

    def __post_init__(self) -> None:
        if isinstance(self.request_body, RequestBody):
            for content in self.request_body.content.values():
                content.schema = _without_null(content.schema)


def _without_null(schema: Reference | Schema | None) -> Reference | Schema | None:
    if not isinstance(schema, Schema) or not schema.one_of:
        return schema
    others = [one for one in schema.one_of if not (isinstance(one, Schema) and one.type == OpenAPIType.NULL)]
    return others[0] if len(others) == 1 else Schema(one_of=others)


@dataclass
class SearchOperation(Operation):
    def __post_init__(self) -> None:
        self.parameters = [*(self.parameters or []), *_SEARCH]


@dataclass
class DeadOperation(Operation):
    def __post_init__(self) -> None:
        self.parameters = [*(self.parameters or []), *_DEAD]


@dataclass
class TargetsOperation(Operation):
    def __post_init__(self) -> None:
        self.parameters = [*(self.parameters or []), *_TARGETS]
