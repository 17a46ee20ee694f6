"""`/access`: keys of programs and users of the desk, for those who may hand them out."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec
from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency

from homing.access.desk import Access
from homing.access.keys import IssuedKey, KeyOrder
from homing.access.passwords import LONGEST, SHORTEST
from homing.access.scopes import ROLES, SCOPES, Role
from homing.db import Row, instant
from homing.errors import InvalidRequest, NotAllowed
from homing.http.asking import AnyRequest, address_of, who_of
from homing.http.numbers import number_in
from homing.http.pages.deeds import OWN_AUDIT, Deed, tried
from homing.http.pages.forms import NOTHING_SENT, Form, Refused, Sent, chosen
from homing.http.pages.shell import gone_to, read_form, render

_ADMINISTERS = {"scope": "access:admin", **OWN_AUDIT}
_HERE = "/access"
_LARGEST_FORM = 16 * 1024
_KEY = Form("/access/keys", {"requests a second": "rate", "expires": "life"}, about="name")
_USER = Form("/access/users", about="name", secrets=("password",))
_ROLE = Form("/access/users/role", about="role")
_DAY = 86400.0
_LIVES: Mapping[str, float | None] = {
    "7 days": 7 * _DAY,
    "90 days": 90 * _DAY,
    "1 year": 365 * _DAY,
    "never": None,
}
_USUAL_LIFE = "90 days"
_TONES: Mapping[str, str] = {"valid": "good", "expired": "wait", "unsealed": "wait"}
_MEANING: Mapping[Role, str] = {
    "viewer": "looks at everything but the audit log and metrics",
    "operator": "also requeues, cancels, pauses and tests; reads the audit log",
    "admin": "everything, also credentials, keys and users",
}
#: Nobody reads a longer list; the command line has them all.
_MOST_KEYS = 200


class _By(TypedDict):
    """What entries of the audit log tell of whoever does it."""

    by: str
    address: str | None


class AccessPages(Controller):
    path = "/access"
    include_in_schema = False
    opt: Mapping[str, Any] = {"scope": "access:admin"}
    request_max_body_size = _LARGEST_FORM

    @get("/", media_type=MediaType.HTML)
    async def list(self, request: AnyRequest, access: NamedDependency[Access]) -> Response[str]:
        return await _page(request, access)

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────

    @post("/keys", status_code=200, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def create_key(self, request: AnyRequest, access: NamedDependency[Access]) -> Response[str]:
        form = await read_form(request)
        scopes = [str(scope) for scope in (await request.form()).getall("scope", [])]
        name = form.get("name", "").strip()

        async def create() -> IssuedKey:
            rate = number_in(form.get("rate", ""), "requests a second")
            life = chosen(_LIVES, form.get("life") or _USUAL_LIFE, "life")
            return await access.keys.create(KeyOrder(name, scopes, life, rate), **_by(request))

        done = await tried(request, access, Deed("keys.create", name, logs_itself=True), create)
        if isinstance(done, Refused):
            return await _page(request, access, sent=_KEY.sent({**form, "scope": scopes}, done))
        return _shown_once(request, f"The key of {name}", done.key, "Authorization: Bearer " + done.key)

    @post("/keys/revoke", status_code=303, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def revoke_key(self, request: AnyRequest, access: NamedDependency[Access]) -> Response[str]:
        id = (await read_form(request)).get("id", "")

        async def revoke() -> Row:
            return await access.keys.revoke(id, **_by(request))

        done = await tried(request, access, Deed("keys.revoke", id, logs_itself=True), revoke)
        return _back(done, f"The key {id} is revoked: every process refuses it within 5 seconds.")

    # ── users ────────────────────────────────────────────────────────────────────────────────────

    @post("/users", status_code=200, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def add_user(self, request: AnyRequest, access: NamedDependency[Access]) -> Response[str]:
        form = await read_form(request)
        name, password = form.get("name", "").strip().lower(), form.get("password", "") or _password()

        async def add() -> Row:
            if await access.users.find(name) is not None:
                raise NotAllowed(f"there is a user {name} already; New password gives them another one")
            return await access.users.add(name, password, _role(form), **_by(request))

        done = await tried(request, access, Deed("users.add", name, logs_itself=True), add)
        if isinstance(done, Refused):
            return await _page(request, access, sent=_USER.sent(form, done))
        if form.get("password"):
            return gone_to(_HERE, f"{name} can log in now.")
        return _shown_once(request, f"The password of {name}", password)

    @post("/users/password", status_code=200, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def set_password(self, request: AnyRequest, access: NamedDependency[Access]) -> Response[str]:
        name, password = (await read_form(request)).get("name", ""), _password()

        async def reset() -> None:
            await access.users.set_password(name, password, **_by(request))

        done = await tried(request, access, Deed("users.passwd", name, logs_itself=True), reset)
        if isinstance(done, Refused):
            return gone_to(_HERE, done.text, is_good=False)
        return _shown_once(request, f"The new password of {name}", password)

    @post("/users/role", status_code=303, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def set_role(self, request: AnyRequest, access: NamedDependency[Access]) -> Response[str]:
        form = await read_form(request)
        name = form.get("name", "")

        async def change() -> None:
            _require_another(request, name)
            await access.users.set_role(name, _role(form), **_by(request))

        done = await tried(request, access, Deed("users.role", name, logs_itself=True), change)
        if isinstance(done, Refused):
            return await _page(request, access, sent=_ROLE.sent(form, done))
        return gone_to(_HERE, f"{name} is {form.get('role')} now, and has to log in again.")

    @post("/users/end-sessions", status_code=303, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def end_sessions(self, request: AnyRequest, access: NamedDependency[Access]) -> Response[str]:
        name = (await read_form(request)).get("name", "")

        async def end() -> int:
            return await access.users.end_sessions(name, **_by(request))

        done = await tried(request, access, Deed("users.end_sessions", name, logs_itself=True), end)
        return _back(done, f"{name} is logged out everywhere.")

    @post("/users/remove", status_code=303, media_type=MediaType.HTML, opt=_ADMINISTERS)
    async def remove_user(self, request: AnyRequest, access: NamedDependency[Access]) -> Response[str]:
        name = (await read_form(request)).get("name", "")

        async def remove() -> None:
            _require_another(request, name)
            await access.users.remove(name, **_by(request))

        done = await tried(request, access, Deed("users.remove", name, logs_itself=True), remove)
        return _back(done, f"{name} is removed, and logged out everywhere.")


async def _page(request: AnyRequest, access: Access, *, sent: Sent = NOTHING_SENT) -> Response[str]:
    keys, users = await access.keys.list(), await access.users.list()
    return render(
        request,
        "access.html",
        sent=sent,
        keys=[_key(row) for row in keys[:_MOST_KEYS]],
        hidden_keys=max(0, len(keys) - _MOST_KEYS),
        users=[_user(row) for row in users],
        scopes=_areas(),
        lives=list(_LIVES),
        roles=_MEANING,
        shortest=SHORTEST,
        longest=LONGEST,
        is_open=who_of(request).kind == "loopback",
    )


def _by(request: AnyRequest) -> _By:
    return {"by": who_of(request).who, "address": address_of(request)}


def _back(done: object, told: str) -> Response[str]:
    if isinstance(done, Refused):
        return gone_to(_HERE, done.text, is_good=False)
    return gone_to(_HERE, told)


def _shown_once(request: AnyRequest, title: str, secret: str, use: str = "") -> Response[str]:
    return render(request, "access_issued.html", title=title, secret=secret, use=use)


def _password() -> str:
    return secrets.token_urlsafe(15)


def _role(form: Mapping[str, str]) -> Role:
    for role in ROLES:
        if role == form.get("role"):
            return role
    raise InvalidRequest(f"a role is one of {', '.join(ROLES)}", "role")


def _require_another(request: AnyRequest, name: str) -> None:
    """Whoever does it to themselves could lock everybody out; another admin or the command line can."""
    who = who_of(request)
    if who.kind == "user" and who.id == name:
        raise NotAllowed("not to yourself: ask another admin, or use `homing users` on the machine")


def _areas() -> list[tuple[str, list[tuple[str, str]]]]:
    """Scopes by what they are about."""
    areas: dict[str, list[tuple[str, str]]] = {}
    for scope, meaning in SCOPES.items():
        areas.setdefault(scope.partition(":")[0], []).append((scope, meaning))
    return list(areas.items())


def _key(row: Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "name": row["name"],
        "state": row["state"],
        "tone": _TONES.get(row["state"], "quiet"),
        "scopes": _scopes(msgspec.json.decode(row["scopes"], type=list[str])),
        "rate": row["rate_per_second"],
        "created_at": instant(row["created_at"]),
        "created_by": row["created_by"],
        "expires_at": instant(row["expires_at"]),
        "last_used_at": instant(row["last_used_at"]),
        "revoked_by": row["revoked_by"],
    }


def _scopes(named: list[str]) -> list[str]:
    return ["everything"] if set(named) >= set(SCOPES) else named


def _user(row: Row) -> dict[str, Any]:
    return {
        "name": row["name"],
        "role": row["role"],
        "created_at": instant(row["created_at"]),
        "password_at": instant(row["password_at"]),
        "last_login_at": instant(row["last_login_at"]),
    }
