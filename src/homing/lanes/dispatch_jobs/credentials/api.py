"""`/api/admin/dispatch/credentials`: made, looked at without their secrets, limited, rotated, deleted."""

from __future__ import annotations

from litestar import Controller, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Struct

from homing.errors import InvalidRequest
from homing.lanes.dispatch_jobs.credentials.orders import AllowedTargets, CreateCredentials, RotateCredentials
from homing.lanes.dispatch_jobs.credentials.store import Credentials
from homing.lanes.dispatch_jobs.credentials.view import (
    IssuedCredentials,
    ShownCredentials,
    credentials_number,
    cursor_of,
    issued,
    shown,
)
from homing.replies import errors

_MOST_LISTED = 100
#: A reply that holds a secret is for the caller alone.
_NOT_KEPT = {"Cache-Control": "no-store"}


class CredentialsPage(Struct, frozen=True):
    items: list[ShownCredentials]
    #: What to ask for as `before` to go on; null at the end.
    next: str | None


class Message(Struct, frozen=True):
    message: str


class CredentialsApi(Controller):
    """Credentials that webhooks are signed and authorized with."""

    path = "/api/admin/dispatch/credentials"
    tags = ("dispatch_credentials",)

    @post(
        "/",
        summary="Make credentials; secrets that are left out are made, and shown this once",
        opt={
            "scope": "credentials:admin",
            "audit_body": ("name", "allowedTargets"),
            "audit_reply": ("id", "fingerprint"),
        },
    )
    async def create(
        self, credentials: NamedDependency[Credentials], data: JSONBody[CreateCredentials]
    ) -> Response[IssuedCredentials]:
        """`allowedTargets` are the origins that jobs may use them for: scheme, host and port. Who may
        administer credentials adds one by using them there.
        """
        made = issued(await credentials.create(data), credentials)
        return Response(made, status_code=201, headers=_NOT_KEPT)

    @get(
        "/",
        summary="Credentials, newest first, without their secrets",
        opt={"scope": "credentials:read"},
    )
    async def list(
        self,
        credentials: NamedDependency[Credentials],
        before: FromQuery[str | None] = None,
        limit: FromQuery[int] = 20,
    ) -> CredentialsPage:
        if not 1 <= limit <= _MOST_LISTED:
            raise InvalidRequest(f"limit must be from 1 to {_MOST_LISTED}", "limit")
        items = [shown(row) for row in await credentials.page(before=cursor_of(before), limit=limit)]
        return CredentialsPage(items, items[-1].id if len(items) == limit else None)

    @get(
        "/{credentials_id:str}",
        summary="One of them, without its secrets",
        opt={"scope": "credentials:read"},
    )
    async def get(
        self, credentials: NamedDependency[Credentials], credentials_id: FromPath[str]
    ) -> ShownCredentials:
        return shown(await credentials.describe(credentials_number(credentials_id)), credentials)

    @delete(
        "/{credentials_id:str}",
        status_code=200,
        summary="Delete; a 409 while open jobs use them",
        opt={"scope": "credentials:admin"},
        responses=errors({409: "Open jobs use them"}),
    )
    async def delete(
        self,
        credentials: NamedDependency[Credentials],
        credentials_id: FromPath[str],
        force: FromQuery[bool] = False,
    ) -> Message:
        """With `force`, also while jobs use them: their next attempts fail."""
        await credentials.delete(credentials_number(credentials_id), force=force)
        return Message("Credentials deleted")

    @put(
        "/{credentials_id:str}/allowed-targets",
        status_code=200,
        summary="Set the origins that they may be used for",
        opt={"scope": "credentials:admin", "audit_body": ("allowedTargets",)},
    )
    async def allow_only(
        self,
        credentials: NamedDependency[Credentials],
        credentials_id: FromPath[str],
        data: JSONBody[AllowedTargets],
    ) -> ShownCredentials:
        """Scheme, host and port, in place of those that were; `["*"]` is all of them, an empty list is none.

        Jobs that wait for an origin that is not listed any more end in ERROR as `credential_not_allowed`.
        """
        row = await credentials.allow_only(credentials_number(credentials_id), data.allowed_targets)
        return shown(row, credentials)

    @post(
        "/{credentials_id:str}/rotate",
        status_code=200,
        summary="New secrets, beside the old for a time",
        opt={"scope": "credentials:admin", "audit_body": ("graceSeconds",), "audit_reply": ("fingerprint",)},
    )
    async def rotate(
        self,
        credentials: NamedDependency[Credentials],
        credentials_id: FromPath[str],
        data: JSONBody[RotateCredentials | None] = None,
    ) -> Response[IssuedCredentials]:
        """What is given replaces, null removes, what `generate` names is made, the rest stays; with nothing
        named, the signing secret is made anew, and the bearer token if it was made here.

        For `graceSeconds` (a day, at most a week, 0 for at once) `webhook-signature` carries both signatures;
        the bearer token and the specification's header stay the previous ones until then. Rotating a secret
        again within that time drops the one before the previous.
        """
        one = await credentials.rotate(credentials_number(credentials_id), data or RotateCredentials())
        return Response(issued(one, credentials), headers=_NOT_KEPT)
