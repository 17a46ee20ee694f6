"""What the OpenAPI document says of our routes beyond their types: parameters that are read here."""

from __future__ import annotations

from dataclasses import dataclass

from litestar.datastructures import ResponseHeader
from litestar.openapi.spec import OpenAPIFormat, OpenAPIType, Operation, Parameter, Schema

from homing.lanes.dispatch_jobs.job import STATES
from homing.lanes.dispatch_jobs.orders import LONGEST_VALUE, METADATA_KEY

#: A value of that type is all that says which type the header has.
LOCATION = ResponseHeader(
    name="Location", description="Where the job can be looked at", value="", documentation_only=True
)


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
    _in_query(
        "createdAfter", "Created then or later; with a zone, or a date, which is its midnight in UTC", _MOMENT
    ),
    _in_query(
        "createdBefore",
        "Created then or earlier; with a zone, or a date, which is its midnight in UTC",
        _MOMENT,
    ),
    _METADATA,
    _in_query("page", "From 0; up to the 100,000th match", _number(0, 99_999, 0)),
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
