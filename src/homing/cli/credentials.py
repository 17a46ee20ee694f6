"""credentials: the secrets that webhooks are signed and authorized with. None is ever taken from a flag."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import UNSET, Struct, to_builtins
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from homing.cli.files import read_secret
from homing.cli.operator import confirm
from homing.cli.options import (
    Config,
    DatabaseUrl,
    Json,
    print_json,
    print_table,
    run_async,
    settings_from,
)
from homing.errors import InvalidRequest

if TYPE_CHECKING:
    from homing.lanes.dispatch_jobs.credentials import Credentials, Rewrapped
    from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)


class Part(StrEnum):
    BEARER_TOKEN = "bearer-token"  # noqa: S105 - the name of a flag, no token
    SIGNING_SECRET = "signing-secret"  # noqa: S105 - as above
    SIGNING_KEY = "signing-key"


_JSON_NAMES = {
    Part.BEARER_TOKEN: "bearerToken",
    Part.SIGNING_SECRET: "signingSecret",
    Part.SIGNING_KEY: "signingKey",
}
_FROM_FILE = "A file that holds it; - is standard input."

CredentialsId = Annotated[str, typer.Argument(help="Their id, such as 0ARYZVZXW372S.")]
BearerTokenFile = Annotated[
    str | None, typer.Option("--bearer-token-file", metavar="FILE", help=_FROM_FILE, show_default=False)
]
SigningSecretFile = Annotated[
    str | None, typer.Option("--signing-secret-file", metavar="FILE", help=_FROM_FILE, show_default=False)
]
SigningKeyFile = Annotated[
    str | None, typer.Option("--signing-key-file", metavar="FILE", help="As above; whsk_…, for v1a.")
]
AllowedTargets = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-target",
        metavar="URL",
        help="Scheme, host and port that they may be used for, or * for all; may be repeated.",
    ),
]
Without = Annotated[list[Part] | None, typer.Option("--without", help="Have none of these; may be repeated.")]
Generate = Annotated[list[Part] | None, typer.Option("--generate", help="Make it; may be repeated.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="The secrets that webhooks are signed and authorized with."
    )
    group.command()(create)
    group.command(name="list")(list_credentials)
    for command in (show, allow, rotate, delete, rewrap):
        group.command()(command)
    app.add_typer(group, name="credentials")


def create(
    name: Annotated[str | None, typer.Option("--name", help="A label, to know them by.")] = None,
    bearer_token_file: BearerTokenFile = None,
    signing_secret_file: SigningSecretFile = None,
    signing_key_file: SigningKeyFile = None,
    without: Without = None,
    generate: Generate = None,
    allowed_target: AllowedTargets = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Make credentials. A bearer token or signing secret that is not given is made, and shown this once."""
    from homing.lanes.dispatch_jobs.credentials import CreateCredentials

    parts = _parts(bearer_token_file, signing_secret_file, signing_key_file, without)
    request = CreateCredentials(
        **parts, generate=_named(generate), name=name, allowed_targets=tuple(allowed_target or ())
    )
    _print(run_async(_create(settings_from(config, database_url=database_url), request)), json=json)


async def _create(settings: Settings, request: Any) -> Struct:
    from homing.lanes.dispatch_jobs.credentials.view import issued

    async with _credentials(settings) as credentials:
        return issued(await credentials.create(request), credentials)


def list_credentials(
    limit: Annotated[int, typer.Option("--limit", "-l", "-n", min=1, max=10000)] = 20,
    before: Annotated[str | None, typer.Option("--before", help="Go on after these.")] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Credentials, newest first, without their secrets."""
    rows = run_async(_list(settings_from(config, database_url=database_url), limit, before))
    if json:
        print_json(rows)
        return
    table = Table("id", "name", "fingerprint", "created", "updated", "previous count until")
    for row in rows:
        table.add_row(
            row.id, escape(row.name or ""), row.fingerprint or "", row.created_at, row.updated_at,
            row.previous_until or "",
        )  # fmt: skip
    print_table(table if rows else "no credentials")


async def _list(settings: Settings, limit: int, before: str | None) -> list[Any]:
    from homing.lanes.dispatch_jobs.credentials.view import cursor_of, shown

    async with _credentials(settings) as credentials:
        return [shown(row) for row in await credentials.page(before=cursor_of(before), limit=limit)]


def show(
    id: CredentialsId, json: Json = False, database_url: DatabaseUrl = None, config: Config = None
) -> None:
    """One of them, without its secrets."""
    _print(run_async(_show(settings_from(config, database_url=database_url), id)), json=json)


async def _show(settings: Settings, id: str) -> Struct:
    from homing.lanes.dispatch_jobs.credentials.view import credentials_number, shown

    async with _credentials(settings) as credentials:
        return shown(await credentials.describe(credentials_number(id)), credentials)


def allow(
    id: CredentialsId,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL]...", help="Scheme, host and port, such as https://partner.example; * is all."
        ),
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="These and no others; with none given, none.")] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Let credentials be used for more origins. Jobs for others are refused over HTTP, and end in ERROR."""
    if not targets and not only:
        raise InvalidRequest("name what they may be used for, such as https://partner.example")
    settings = settings_from(config, database_url=database_url)
    _print(run_async(_allow(settings, id, targets or [], only=only)), json=json)


async def _allow(settings: Settings, id: str, targets: list[str], *, only: bool) -> Struct:
    from homing.lanes.dispatch_jobs.credentials.view import credentials_number, shown

    async with _credentials(settings) as credentials:
        change = credentials.allow_only if only else credentials.allow
        return shown(await change(credentials_number(id), targets), credentials)


def rotate(
    id: CredentialsId,
    bearer_token_file: BearerTokenFile = None,
    signing_secret_file: SigningSecretFile = None,
    signing_key_file: SigningKeyFile = None,
    without: Without = None,
    generate: Generate = None,
    grace_seconds: Annotated[
        int, typer.Option("--grace-seconds", help="How long the previous ones count on; at most 7 days.")
    ] = 86400,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """New secrets. With nothing named: a signing secret, and a bearer token if the old one was made here."""
    from homing.lanes.dispatch_jobs.credentials import RotateCredentials

    parts = _parts(bearer_token_file, signing_secret_file, signing_key_file, without)
    request = RotateCredentials(**parts, generate=_named(generate), grace_seconds=grace_seconds)
    _print(run_async(_rotate(settings_from(config, database_url=database_url), id, request)), json=json)


async def _rotate(settings: Settings, id: str, request: Any) -> Struct:
    from homing.lanes.dispatch_jobs.credentials.view import credentials_number, issued

    async with _credentials(settings) as credentials:
        return issued(await credentials.rotate(credentials_number(id), request), credentials)


def delete(
    id: CredentialsId,
    force: Annotated[bool, typer.Option("--force", help="Also while open jobs use them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Delete credentials; refused while open jobs use them, unless forced: those jobs fail from then on."""
    settings = settings_from(config, database_url=database_url)
    if not yes:
        confirm(f"delete the credentials {id}?")
    run_async(_delete(settings, id, force=force))
    if json:
        print_json({"message": "Credentials deleted"})
    else:
        print_table("deleted")


async def _delete(settings: Settings, id: str, *, force: bool) -> None:
    from homing.lanes.dispatch_jobs.credentials.view import credentials_number

    async with _credentials(settings) as credentials:
        await credentials.delete(credentials_number(id), force=force)


def rewrap(json: Json = False, database_url: DatabaseUrl = None, config: Config = None) -> None:
    """Seal everything by the newest key of HOMING_ENCRYPTION_KEY; then the older ones may go.

    It may be stopped and begun again. Exit 1 when something could not be sealed anew.
    """
    done = run_async(_rewrap(settings_from(config, database_url=database_url)))
    if json:
        print_json(done)
    else:
        print_table(_told(done))
    if done.unreadable or done.missed:
        raise typer.Exit(1)


async def _rewrap(settings: Settings) -> Rewrapped:
    from homing.lanes.dispatch_jobs.credentials import Rewrapped

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done = Rewrapped(0)
    async with _credentials(settings) as credentials:
        with Progress(*columns, console=_err, transient=True) as progress:
            task = progress.add_task("rewrap")
            async for done in credentials.rewrap():
                progress.update(task, total=done.total, completed=done.seen)
    return done


def _told(done: Rewrapped) -> str:
    lines = [f"{done.seen:,} credentials, {done.resealed:,} sealed anew"]
    if done.unreadable:
        lines.append(f"{done.unreadable:,} cannot be opened by any key given: add the key that sealed them")
    if done.missed:
        lines.append(f"{done.missed:,} were changed meanwhile: run it again")
    return "\n".join(lines)


# ── what the commands share ──────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _credentials(settings: Settings) -> AsyncIterator[Credentials]:
    from homing.app import opened

    async with opened(settings) as homing:
        # Before the vault, which may make a key file: not beside a database that is not there.
        await homing.require_schema()
        yield homing.credentials


def _parts(
    bearer_token: str | None, signing_secret: str | None, signing_key: str | None, without: list[Part] | None
) -> dict[str, Any]:
    files = dict(zip(Part, (bearer_token, signing_secret, signing_key), strict=True))
    if list(files.values()).count("-") > 1:
        raise InvalidRequest("standard input can hold one secret only: put the others into files")
    for part in without or ():
        if files[part] is not None:
            raise InvalidRequest(f"--without {part} and --{part}-file contradict each other")
    parts: dict[str, str | None] = dict.fromkeys(without or ())
    parts.update({part: read_secret(path) for part, path in files.items() if path is not None})
    return {part.replace("-", "_"): parts.get(part, UNSET) for part in files}


def _named(generate: list[Part] | None) -> tuple[Any, ...]:
    return tuple(_JSON_NAMES[part] for part in generate or ())


def _print(view: Struct, *, json: bool) -> None:
    fields = to_builtins(view)
    if json:
        print_json(fields)
    else:
        table = Table(show_header=False, box=None)
        for name, value in fields.items():
            if value is not None:
                told = ", ".join(value) if isinstance(value, list) else str(value)
                table.add_row(name, escape(told))
        print_table(table)
    if fields.keys() & {"bearerToken", "signingSecret"}:
        _err.print("[yellow]keep what was made now:[/] it is shown this once")
