"""`/credentials`: what webhooks are signed with; made, limited, rotated, deleted; each secret shown once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery
from msgspec import UNSET
from msgspec.structs import replace

from homing.access.desk import Access
from homing.db import Row, instant
from homing.errors import InvalidRequest
from homing.http.asking import AnyRequest
from homing.http.pages.deeds import OWN_AUDIT, Deed, tried
from homing.http.pages.forms import NOTHING_SENT, Form, Refused, Sent, chosen
from homing.http.pages.shell import gone_to, link, read_form, render
from homing.lanes.dispatch_jobs.credentials import CreateCredentials, Credentials, Issued, RotateCredentials
from homing.lanes.dispatch_jobs.credentials.orders import Given, Part
from homing.lanes.dispatch_jobs.credentials.signing import listed_targets
from homing.lanes.dispatch_jobs.credentials.view import credentials_number, cursor_of
from homing.lanes.dispatch_jobs.tsid import text_of

_AT_ONCE = 50
#: So many open jobs are counted.
_COUNTED = 1000
_ADMINISTERS = {"scope": "credentials:admin", **OWN_AUDIT}
_LARGEST_FORM = 16 * 1024
_CREATE = Form(
    "/credentials/create",
    {"bearerToken": "bearer_token", "allowedTargets": "targets"},
    about="bearer",
    secrets=("bearer_token",),
)
_ROTATE = Form("/credentials/rotate", {"graceSeconds": "grace"}, about="part")
_ALLOW = Form("/credentials/allow", {"allowedTargets": "targets"}, about="targets")
_DELETE = Form("/credentials/delete", about="force")
#: Seconds, as the form offers them.
_GRACES: Mapping[str, int] = {"none": 0, "1 hour": 3600, "1 day": 86400, "7 days": 7 * 86400}
_USUAL_GRACE = "1 day"
_SECRETS: Mapping[str, str] = {"bearer_token": "Bearer token", "signing_secret": "Signing secret"}


class CredentialPages(Controller):
    path = "/credentials"
    include_in_schema = False
    opt: Mapping[str, Any] = {"scope": "credentials:read"}
    request_max_body_size = _LARGEST_FORM

    @get("/", media_type=MediaType.HTML)
    async def list(
        self, request: AnyRequest, credentials: NamedDependency[Credentials], before: FromQuery[str] = ""
    ) -> Response[str]:
        return await _page_of_all(request, credentials, before)

    @get("/one", media_type=MediaType.HTML)
    async def one(
        self, request: AnyRequest, credentials: NamedDependency[Credentials], id: FromQuery[str]
    ) -> Response[str]:
        return await _page_of(request, credentials, id)

    @post("/create", status_code=200, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def create(
        self, request: AnyRequest, credentials: NamedDependency[Credentials], access: NamedDependency[Access]
    ) -> Response[str]:
        form = await read_form(request)
        name = form.get("name", "").strip() or None

        async def create() -> Issued:
            if name is None:
                raise InvalidRequest("write a name: it is how people tell credentials apart", "name")
            return await credentials.create(_order(name, form))

        deed = Deed("dispatch.credentials.create", name)
        done = await tried(request, access, deed, create, result=_told)
        if isinstance(done, Refused):
            refused = replace(done, text=done.text.replace("bearerToken", "the bearer token"))
            return await _page_of_all(request, credentials, sent=_CREATE.sent(form, refused))
        return _issued(request, credentials, done, "Made. These secrets are shown this once.")

    @post("/rotate", status_code=200, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def rotate(
        self, request: AnyRequest, credentials: NamedDependency[Credentials], access: NamedDependency[Access]
    ) -> Response[str]:
        form = await read_form(request)
        id, grace = form.get("id", ""), form.get("grace") or _USUAL_GRACE
        parts: tuple[Part, ...] = ("signingKey",) if form.get("part") == "key" else ()

        async def rotate() -> Issued:
            order = RotateCredentials(generate=parts, grace_seconds=chosen(_GRACES, grace, "grace"))
            return await credentials.rotate(credentials_number(id), order)

        deed = Deed("dispatch.credentials.rotate", id, {"graceSeconds": _GRACES.get(grace)})
        done = await tried(request, access, deed, rotate, result=_told)
        if isinstance(done, Refused):
            return await _page_of(request, credentials, id, sent=_ROTATE.sent(form, done))
        return _issued(request, credentials, done, "Rotated. The new secrets are shown this once.")

    @post("/allow", status_code=303, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def allow_only(
        self, request: AnyRequest, credentials: NamedDependency[Credentials], access: NamedDependency[Access]
    ) -> Response[str]:
        form = await read_form(request)
        id, targets = form.get("id", ""), form.get("targets", "").split()

        async def allow_only() -> Row:
            return await credentials.allow_only(credentials_number(id), targets)

        deed = Deed("dispatch.credentials.allow_only", id, {"allowedTargets": targets})
        done = await tried(request, access, deed, allow_only)
        if isinstance(done, Refused):
            return await _page_of(request, credentials, id, sent=_ALLOW.sent(form, done))
        return gone_to(_path(id), "They may be used for these targets and no others.")

    @post("/end-grace", status_code=303, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def end_grace(
        self, request: AnyRequest, credentials: NamedDependency[Credentials], access: NamedDependency[Access]
    ) -> Response[str]:
        id = (await read_form(request)).get("id", "")

        async def end_grace() -> Row:
            return await credentials.end_grace(credentials_number(id))

        done = await tried(request, access, Deed("dispatch.credentials.end_grace", id), end_grace)
        if isinstance(done, Refused):
            return gone_to(_path(id), done.text, is_good=False)
        return gone_to(_path(id), "Only the new secrets count from now on.")

    @post("/delete", status_code=303, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def delete(
        self, request: AnyRequest, credentials: NamedDependency[Credentials], access: NamedDependency[Access]
    ) -> Response[str]:
        form = await read_form(request)
        id, force = form.get("id", ""), form.get("force") == "yes"

        async def delete() -> None:
            if form.get("sure") != "yes":
                raise InvalidRequest("tick that you are sure: deleted credentials do not come back", "sure")
            await credentials.delete(credentials_number(id), force=force)

        deed = Deed("dispatch.credentials.delete", id, {"force": force or None})
        done = await tried(request, access, deed, delete)
        if isinstance(done, Refused):
            return await _page_of(request, credentials, id, sent=_DELETE.sent(form, done))
        return gone_to("/credentials", f"The credentials {id} are deleted.")


async def _page_of_all(
    request: AnyRequest, credentials: Credentials, before: str = "", *, sent: Sent = NOTHING_SENT
) -> Response[str]:
    rows = await credentials.page(before=cursor_of(before or None), limit=_AT_ONCE)
    older = link("/credentials", before=text_of(rows[-1]["id"])) if len(rows) == _AT_ONCE else ""
    return render(
        request,
        "credentials.html",
        sent=sent,
        credentials=await _listed(credentials, rows),
        newest="/credentials" if before else "",
        older=older,
    )


async def _page_of(
    request: AnyRequest, credentials: Credentials, id: str, *, sent: Sent = NOTHING_SENT
) -> Response[str]:
    row = await credentials.describe(credentials_number(id))
    (shown,) = await _listed(credentials, [row])
    return render(
        request,
        "credential.html",
        sent=sent,
        one=shown,
        public_key=credentials.public_key(row),
        graces=list(_GRACES),
    )


def _path(id: str) -> str:
    return link("/credentials/one", id=id)


def _order(name: str | None, form: Mapping[str, str]) -> CreateCredentials:
    """What is not wanted is null, and what is wanted and not given is made."""
    token: Given = {"make": UNSET, "none": None}.get(form.get("bearer", "make"), form.get("bearer_token", ""))
    if token == "":
        raise InvalidRequest("the bearer token is to be given, and none is", "bearer_token")
    return CreateCredentials(
        name=name,
        bearer_token=token,
        signing_secret=UNSET if form.get("secret") == "yes" else None,
        generate=("signingKey",) if form.get("key") == "yes" else (),
        allowed_targets=tuple(form.get("targets", "").split()),
    )


def _told(one: Issued) -> dict[str, Any]:
    return {"id": text_of(one.row["id"]), "fingerprint": one.row["fingerprint"]}


def _issued(request: AnyRequest, credentials: Credentials, one: Issued, title: str) -> Response[str]:
    id = text_of(one.row["id"])
    return render(
        request,
        "credential_issued.html",
        title=title,
        id=id,
        name=one.row["name"],
        path=_path(id),
        secrets=[(label, one.made[part], part) for part, label in _SECRETS.items() if part in one.made],
        public_key=credentials.public_key(one.row),
    )


async def _listed(credentials: Credentials, rows: Sequence[Row]) -> list[dict[str, Any]]:
    uses = await credentials.uses([row["id"] for row in rows])
    return [_shown(row, uses.get(row["id"], 0)) for row in rows]


def _shown(row: Row, jobs: int) -> dict[str, Any]:
    return {
        "id": text_of(row["id"]),
        "path": _path(text_of(row["id"])),
        "name": row["name"],
        "algorithm": row["algorithm"],
        "fingerprint": row["fingerprint"],
        "has_key": row["signing_key"] is not None,
        "allowed_targets": listed_targets(row),
        "created_at": instant(row["created_at"]),
        "updated_at": instant(row["updated_at"]),
        "previous_until": instant(row["previous_until"]),
        "jobs": f"{jobs:,}{'+' if jobs >= _COUNTED else ''}",
        "is_used": jobs > 0,
    }
