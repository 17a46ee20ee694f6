"""keys: what programs call the API with. A key is shown once, when it is made, and kept nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from homing.cli.operator import opened_access, seconds_in, typist
from homing.cli.options import Config, DatabaseUrl, Json, print_json, print_table, run_async, settings_from
from homing.cli.tables import Column, listing

if TYPE_CHECKING:
    from homing.access.keys import KeyOrder
    from homing.db import Row
    from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)

KeyId = Annotated[str, typer.Argument(help="Its id, the ten characters after hom_.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Keys that programs call the API with.")
    group.command()(create)
    group.command(name="list")(list_keys)
    group.command()(revoke)
    group.command()(seal)
    group.command()(scopes)
    app.add_typer(group, name="keys")


def create(
    name: Annotated[str, typer.Argument(help="To know it by: who uses it, and for what.")],
    scope: Annotated[
        list[str],
        typer.Option("--scope", "-s", help="jobs:write, jobs:*, …; may be repeated. `homing keys scopes`."),
    ],
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="SPAN", help="90d, 12h; left out: never.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Requests a second; left out: HOMING_API_RATE_PER_SECOND.")
    ] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Make a key. It is shown this once: whoever loses it makes another."""
    from homing.access.keys import KeyOrder

    seconds = float(seconds_in(expires, "--expires")) if expires is not None else None
    order = KeyOrder(name, scope, seconds, rate)
    key, row, is_first = run_async(_create(settings_from(config, database_url=database_url), order))
    if json:
        print_json({"key": key, **row})
        return
    typer.echo(key)
    _err.print(
        f"The key {row['id']} may: {', '.join(row['scopes'])}. It is shown this once; send it as "
        "`Authorization: Bearer …`.",
        style="dim",
    )
    if is_first:
        _err.print(
            "It is the first: within 5 seconds every call needs a key, and the pages need a login, also on "
            "this machine. `homing users add NAME --role admin` adds a person.",
            style="yellow",
        )


async def _create(settings: Settings, order: KeyOrder) -> tuple[str, dict[str, Any], bool]:
    """The key, what there is to say of it, and whether anybody was let in before it."""
    async with opened_access(settings) as access:
        is_first = not await access.is_configured()
        issued = await access.keys.create(order, by=typist())
        return issued.key, _shown(issued.row), is_first


def list_keys(json: Json = False, database_url: DatabaseUrl = None, config: Config = None) -> None:
    """Keys, newest first, without their secrets; also those that are revoked."""
    rows = run_async(_list(settings_from(config, database_url=database_url)))
    if json:
        print_json(rows)
        return
    cells = [
        (
            row["id"],
            row["name"],
            row["state"],
            ", ".join(row["scopes"]),
            row["expiresAt"] or "never",
            row["lastUsedAt"] or "never",
            row["createdBy"],
        )
        for row in rows
    ]
    print_table(
        listing(_COLUMNS, cells) if cells else "no keys; `homing keys create NAME --scope jobs:write`"
    )


_COLUMNS = (
    Column("key", whole=True),
    Column("name"),
    Column("state", whole=True),
    Column("scopes", rank=1),
    Column("expires", rank=2, whole=True),
    Column("last used", rank=3, whole=True),
    Column("made by", rank=4),
)


async def _list(settings: Settings) -> list[dict[str, Any]]:
    async with opened_access(settings) as access:
        return [_shown(row) for row in await access.keys.list()]


def revoke(id: KeyId, json: Json = False, database_url: DatabaseUrl = None, config: Config = None) -> None:
    """Take a key back: every process refuses it within 5 seconds, for good."""
    row = run_async(_revoke(settings_from(config, database_url=database_url), id))
    if json:
        print_json(row)
    else:
        print_table(f"revoked: {row['id']} ({row['name']})")


async def _revoke(settings: Settings, id: str) -> dict[str, Any]:
    from homing.access.key_text import id_of

    async with opened_access(settings) as access:
        # Whoever has the whole key at hand may give it.
        return _shown(await access.keys.revoke(id_of(id) or id[:40], by=typist()))


def seal(id: KeyId, json: Json = False, database_url: DatabaseUrl = None, config: Config = None) -> None:
    """Let a key count that was made before HOMING_ENCRYPTION_KEY was set.

    Only one that you know: whoever can write to the database may have put others there.
    """
    row = run_async(_seal(settings_from(config, database_url=database_url), id))
    if json:
        print_json(row)
    else:
        print_table(f"sealed: {row['id']} ({row['name']}) counts again, within 5 seconds")


async def _seal(settings: Settings, id: str) -> dict[str, Any]:
    from homing.access.key_text import id_of

    async with opened_access(settings) as access:
        return {**_shown(await access.keys.seal(id_of(id) or id[:40], by=typist())), "state": "valid"}


def scopes(json: Json = False) -> None:
    """What a key can be allowed."""
    from homing.access.scopes import SCOPES

    if json:
        print_json(SCOPES)
    else:
        print_table(listing((Column("scope", whole=True), Column("allows to")), list(SCOPES.items())))


def _shown(row: Row) -> dict[str, Any]:
    from homing.db import iso

    return {
        "id": row["id"],
        "name": row["name"],
        "state": row["state"],
        "scopes": msgspec.json.decode(row["scopes"]),
        "ratePerSecond": row["rate_per_second"],
        "createdAt": iso(row["created_at"]),
        "createdBy": row["created_by"],
        "expiresAt": iso(row["expires_at"]),
        "lastUsedAt": iso(row["last_used_at"]),
        "revokedAt": iso(row["revoked_at"]),
        "revokedBy": row["revoked_by"],
    }
