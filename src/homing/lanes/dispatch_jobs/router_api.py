"""What the message router needs of the API: jobs processed by their messages, and its queues and pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from litestar import Controller, Request, Response, get, post, put
from litestar.di import NamedDependency
from litestar.exceptions import NotAuthorizedException
from litestar.params import JSONBody
from msgspec import Meta, Struct

from homing.brokers.router_config import RouterConfig, check_config
from homing.engine.aside import aside
from homing.lanes.dispatch_jobs.mistakes import read
from homing.lanes.dispatch_jobs.processing import STATUS, UNKNOWN, Processing, ProcessReply
from homing.lanes.dispatch_jobs.router_store import RouterConfigs
from homing.lanes.dispatch_jobs.tokens import ProcessTokens
from homing.lanes.dispatch_jobs.tsid import number_of
from homing.replies import ErrorReply, answers
from homing.strict_json import require_json

AnyRequest = Request[Any, Any, Any]

_OWN_BODY = {"reads_own_body": True}
_BEARER = "bearer "
_LARGEST_MESSAGE = 4 * 1024

_PROCESS_HINTS: Mapping[str, str] = {
    "": 'the body must be {"messageId": "…"}',
    "messageId": "the id of the job, as its message has it",
}
CONFIG_HINTS: Mapping[str, str] = {
    "": "the body must be an object with queues and processingPools",
    "queues": 'an array such as [{"queueUri": "flow-catalyst-dispatch.fifo"}]',
    "processingPools": 'an array such as [{"code": "DISPATCH-POOL", "concurrency": 5}]',
    "connections": "receivers for each queue that names no number of its own, from 1 to 50",
}


class ProcessRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    message_id: Annotated[str, Meta(min_length=1, max_length=255)]


class Process(Controller):
    """For message routers."""

    path = "/api/dispatch/process"
    tags = ("router",)

    @post(
        "/",
        status_code=200,
        summary="Process the job of a message",
        opt=_OWN_BODY,
        # The token is checked against the id in the body, so whoever has none is read, too.
        request_max_body_size=_LARGEST_MESSAGE,
        security=[{"message": []}],
        responses=answers(
            (
                400,
                ProcessReply | ErrorReply,
                "It stays in its queue for `delaySeconds`; or the request itself is wrong",
            ),
            (401, ErrorReply, "The bearer token is not that of this job"),
            (413, ErrorReply, "The body is larger than 4 KiB"),
        ),
    )
    async def process(
        self,
        job_processing: NamedDependency[Processing],
        process_tokens: NamedDependency[ProcessTokens],
        request: AnyRequest,
        data: JSONBody[ProcessRequest | None] = None,  # noqa: ARG002 - documents the body
    ) -> Response[ProcessReply]:
        """200: delivered, ended or unknown, so the message can go. 400: failed, not due, or not now."""
        token = _bearer(request)
        require_json(request.headers.get("content-type"))
        asked: ProcessRequest = read(await request.body(), ProcessRequest, _PROCESS_HINTS)
        if not process_tokens.accepts(asked.message_id, token):
            raise _unauthorized("the bearer token is not that of this job")
        number = number_of(asked.message_id)
        if number is None:
            return Response(UNKNOWN)
        reply = await job_processing(number)
        return Response(reply, status_code=STATUS[reply.ack])


def _bearer(request: AnyRequest) -> str:
    given = request.headers.get("authorization", "")
    if not given.lower().startswith(_BEARER):
        raise _unauthorized("a bearer token is needed: the authToken of the message")
    return given[len(_BEARER) :].strip()


def _unauthorized(why: str) -> NotAuthorizedException:
    return NotAuthorizedException(detail=why, headers={"WWW-Authenticate": "Bearer"})


class RouterApi(Controller):
    """Queues and pools of the message router."""

    path = "/api/config"
    tags = ("router",)

    @get(
        "/",
        summary="The queues and pools of the message router",
        opt={"scope": "router:read"},
    )
    async def show(self, router_configs: NamedDependency[RouterConfigs]) -> RouterConfig:
        return await router_configs.read()

    @put(
        "/",
        summary="Set the queues and pools of the message router",
        opt={
            **_OWN_BODY,
            "scope": "router:admin",
            "audit_body": ("queues", "processingPools", "connections"),
        },
    )
    async def change(
        self,
        router_configs: NamedDependency[RouterConfigs],
        request: AnyRequest,
        data: JSONBody[RouterConfig | None] = None,  # noqa: ARG002 - documents the body
    ) -> RouterConfig:
        """The whole configuration. Every router takes it up within seconds, without a restart.

        Pools are resized in place. What a queue or pool that is gone has begun comes to its end.
        """
        require_json(request.headers.get("content-type"))
        body = await request.body()
        config: RouterConfig = await aside(len(body), read, body, RouterConfig, CONFIG_HINTS)
        check_config(config, router_configs.broker)
        await router_configs.put(config)
        return config


ROUTES = (Process, RouterApi)
