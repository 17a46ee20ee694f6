"""users: who may log in to the dashboard. A password is asked for, or read from standard input."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from homing.cli.operator import opened_access, typist
from homing.cli.options import Config, DatabaseUrl, Json, print_json, print_table, run_async, settings_from
from homing.cli.tables import Column, listing
from homing.errors import InvalidRequest

if TYPE_CHECKING:
    from homing.settings import Settings

RoleName = Literal["viewer", "operator", "admin"]

UserName = Annotated[str, typer.Argument(help="What they log in as.")]
Role = Annotated[
    RoleName,
    typer.Option("--role", help="viewer looks; operator also requeues, cancels and pauses; admin may all."),
]
NewRole = Annotated[RoleName, typer.Argument(help="viewer, operator or admin.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="People who log in to the dashboard.")
    group.command()(add)
    group.command(name="list")(list_users)
    for command in (passwd, role, remove):
        group.command()(command)
    app.add_typer(group, name="users")


def add(
    name: UserName,
    role: Role = "viewer",
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Let somebody log in. The password is asked for, or read from standard input."""
    settings = settings_from(config, database_url=database_url)
    _do(
        _add(settings, name, _password(), role), f"added: {name} ({role})", {"name": name, "role": role}, json
    )


async def _add(settings: Settings, name: str, password: str, role: RoleName) -> None:
    async with opened_access(settings) as access:
        await access.users.add(name, password, role, by=typist())


def list_users(json: Json = False, database_url: DatabaseUrl = None, config: Config = None) -> None:
    """Who may log in."""
    rows = run_async(_list(settings_from(config, database_url=database_url)))
    if json:
        print_json(rows)
        return
    cells = [tuple(value or "never" for value in row.values()) for row in rows]
    print_table(listing(_COLUMNS, cells) if cells else "no users; `homing users add NAME --role admin`")


_COLUMNS = (
    Column("user", whole=True),
    Column("role", whole=True),
    Column("last login", rank=1, whole=True),
    Column("password of", rank=2, whole=True),
    Column("added", rank=3, whole=True),
    Column("added by", rank=4),
)


async def _list(settings: Settings) -> list[dict[str, Any]]:
    from homing.db import iso

    async with opened_access(settings) as access:
        return [
            {
                "name": row["name"],
                "role": row["role"],
                "lastLoginAt": iso(row["last_login_at"]),
                "passwordAt": iso(row["password_at"]),
                "createdAt": iso(row["created_at"]),
                "createdBy": row["created_by"],
            }
            for row in await access.users.list()
        ]


def passwd(
    name: UserName, json: Json = False, database_url: DatabaseUrl = None, config: Config = None
) -> None:
    """Give somebody another password; they are logged out everywhere."""
    settings = settings_from(config, database_url=database_url)
    _do(_passwd(settings, name, _password()), f"changed: {name}", {"name": name}, json)


async def _passwd(settings: Settings, name: str, password: str) -> None:
    async with opened_access(settings) as access:
        await access.users.set_password(name, password, by=typist())


def role(
    name: UserName,
    role: NewRole,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Give somebody another role; they log in again."""
    settings = settings_from(config, database_url=database_url)
    _do(_role(settings, name, role), f"changed: {name} ({role})", {"name": name, "role": role}, json)


async def _role(settings: Settings, name: str, role: RoleName) -> None:
    async with opened_access(settings) as access:
        await access.users.set_role(name, role, by=typist())


def remove(
    name: UserName, json: Json = False, database_url: DatabaseUrl = None, config: Config = None
) -> None:
    """Let somebody log in no more; they are logged out everywhere."""
    settings = settings_from(config, database_url=database_url)
    _do(_remove(settings, name), f"removed: {name}", {"name": name}, json)


async def _remove(settings: Settings, name: str) -> None:
    async with opened_access(settings) as access:
        await access.users.remove(name, by=typist())


def _do(work: Coroutine[Any, Any, None], told: str, shown: dict[str, Any], json: bool) -> None:
    run_async(work)
    if json:
        print_json(shown)
    else:
        print_table(told)


def _long_enough(typed: str) -> str:
    """Told before it has to be typed again; then it is asked for anew."""
    from homing.access.passwords import require_length

    try:
        require_length(typed)
    except InvalidRequest as error:
        # The prompt itself does not tell what is wrong with a text that is not shown.
        typer.echo(f"\n{error}", err=True)
        raise typer.BadParameter(str(error)) from None
    return typed


def _password() -> str:
    """Asked for on a terminal, twice; else the first line of standard input."""
    if sys.stdin.isatty():
        # Asked outside of the event loop, which would keep Ctrl-C from a question.
        typed: str = typer.prompt(
            "Password", hide_input=True, confirmation_prompt=True, err=True, value_proc=_long_enough
        )
        return typed
    line = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not line:
        raise InvalidRequest("no password on standard input; type the command on a terminal, or pipe one in")
    return line
