"""audit: what was done, by whom, from where; and what makes sure that the commands are in it.

Keys and users write their entries in the same transaction; bulk runs and pauses of workers write theirs as
the pages do. For every other command that changes something the entry is written when it has ended, here, in
one place: `watch` wraps those that `AUDITED` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.markup import escape

from homing.cli.operator import moment_since, opened_access, typist
from homing.cli.options import Config, DatabaseUrl, Json, print_json, print_table, run_async, settings_from
from homing.cli.tables import Column, listing
from homing.errors import DatabaseError, HomingError

if TYPE_CHECKING:
    from homing.access.api import AuditEntry
    from homing.access.audit import AuditFilter, Entry, Outcome
    from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)

#: `Outcome`, which is not worth an import for who asks for help.
Ended = Literal["done", "refused", "failed"]


class Told(Struct, frozen=True):
    """Which parameters of a command name what it is about, and which others are told; none that is secret."""

    objects: tuple[str, ...] = ()
    detail: tuple[str, ...] = ()


_FILTER = ("all_", "lane", "source", "type", "group", "external_id", "error_class", "metadata", "since")
#: The commands that change something.
AUDITED: Mapping[str, Told] = {
    "requeue": Told(("ids",), _FILTER),
    "cancel": Told(("ids",), _FILTER),
    "prune": Told(("lane",), ("state", "older_than")),
    "migrate": Told(),
    "credentials create": Told(("name",), ("without", "generate", "allowed_target")),
    "credentials allow": Told(("id",), ("targets", "only")),
    "credentials rotate": Told(("id",), ("without", "generate", "grace_seconds")),
    "credentials delete": Told(("id",), ("force",)),
    "credentials rewrap": Told(),
    "alerts test": Told(),
    "alerts silence": Told(("cause",), ("span",)),
}
#: With these a command only tells what it would do.
_ONLY_LOOKS = ("dry_run", "check")


def add_to(app: typer.Typer) -> None:
    app.command()(audit)


def audit(
    since: Annotated[
        str | None, typer.Option("--since", metavar="SPAN", help="2h, 7d, or a time with its zone.")
    ] = None,
    who: Annotated[
        str | None,
        typer.Option(
            "--who", help="A name; key:ID, user:NAME, cli:NAME@HOST or loopback; or its beginning and *."
        ),
    ] = None,
    action: Annotated[
        str | None, typer.Option("--action", help="What was done, such as workers.pause.")
    ] = None,
    object: Annotated[str | None, typer.Option("--object", help="To what, as the log has it.")] = None,
    outcome: Annotated[Ended | None, typer.Option("--outcome", help="How it ended.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=10000, help="At most so many.")] = 50,
    before: Annotated[
        int | None, typer.Option("--before", min=1, max=2**63 - 1, help="Go on after this entry.")
    ] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """What was done, newest first: by the API, the dashboard and this command line."""
    from homing.access.audit import AuditFilter

    moment = moment_since(since, datetime.now(UTC)) if since is not None else None
    settings = settings_from(config, database_url=database_url)
    wanted = AuditFilter(moment, who, action, outcome, object)
    entries = run_async(_page(settings, wanted, before, limit))
    if json:
        print_json(entries)
    else:
        print_table(
            listing(_COLUMNS, [_cells(entry) for entry in entries]) if entries else "nothing is found"
        )


_COLUMNS = (
    Column("entry", rank=3, right=True),
    Column("at", whole=True),
    Column("who"),
    Column("from", rank=2),
    Column("action", whole=True),
    Column("object"),
    Column("outcome", whole=True),
    Column("detail", rank=1),
)


def _cells(entry: AuditEntry) -> tuple[str, ...]:
    detail = ", ".join(f"{name} {_plain(value)}" for name, value in (entry.detail or {}).items())
    who = f"{entry.who} ({entry.who_name})" if entry.who_name else entry.who
    return (
        str(entry.id), entry.at or "", who, entry.address or "", entry.action,
        entry.object or "", entry.outcome, detail,
    )  # fmt: skip


def _plain(value: Any) -> str:
    """As it would be written by hand; a list without the brackets of a program."""
    if isinstance(value, list):
        return " ".join(_plain(one) for one in value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def _page(settings: Settings, wanted: AuditFilter, before: int | None, limit: int) -> list[AuditEntry]:
    from homing.access.api import shown

    async with opened_access(settings) as access:
        wanted = await access.audit.meant(wanted)
        found = await access.audit.search(wanted, before=before, limit=limit)
        rows = list(found.rows)
        # A search looks so far and no further at a time.
        while found.next is not None and len(rows) < limit:
            found = await access.audit.search(wanted, before=found.next, limit=limit - len(rows))
            rows += found.rows
        return [shown(row) for row in rows]


# ── the other commands ───────────────────────────────────────────────────────────────────────────


def watch(app: typer.Typer) -> None:
    """Wrap every command of `AUDITED`; to be called when all have been added."""
    found = dict(_commands(app, ""))
    if missing := set(AUDITED) - set(found):
        raise RuntimeError(f"there is no command {', '.join(sorted(missing))} to be audited")
    for path, told in AUDITED.items():
        info = found[path]
        info.callback = _watched(info.callback, path, told)


def _commands(app: typer.Typer, before: str) -> Any:
    for info in app.registered_commands:
        name = info.name or (info.callback.__name__ if info.callback is not None else "")
        yield before + name.replace("_", "-"), info
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(group.typer_instance, f"{before}{group.name} ")


def _watched(command: Any, path: str, told: Told) -> Callable[..., None]:
    @wraps(command)
    def run(*arguments: Any, **flags: Any) -> None:
        outcome: Outcome = "failed"
        try:
            command(*arguments, **flags)
            outcome = "done"
        except typer.Exit:
            # It has run to its end, and tells by its code what it found.
            outcome = "done"
            raise
        except typer.Abort:
            # Somebody was asked, and said no.
            outcome = "refused"
            raise
        finally:
            if not any(flags.get(name) for name in _ONLY_LOOKS):
                _note(path, told, flags, outcome)

    return run


def _note(path: str, told: Told, flags: Mapping[str, Any], outcome: Outcome) -> None:
    from homing.access.audit import Entry

    detail = {name.strip("_"): flags[name] for name in told.detail if flags.get(name)}
    objects = _objects(told.objects, flags)
    entry = Entry(typist(), path.replace(" ", "."), objects, detail=detail or None, outcome=outcome)
    try:
        settings = settings_from(flags.get("config"), database_url=flags.get("database_url"))
        run_async(_write(settings, entry))
    except DatabaseError as error:
        if outcome == "done":
            _err.print(f"[yellow]warning:[/] this is not in the audit log: {escape(str(error))}")
    except HomingError:
        # A command that could not read its settings has done nothing, and has said so.
        return


async def _write(settings: Settings, entry: Entry) -> None:
    async with opened_access(settings) as access:
        await access.audit.insert(entry)


def _objects(names: tuple[str, ...], flags: Mapping[str, Any]) -> str | None:
    given = [flags[name] for name in names if flags.get(name)]
    texts = [str(text) for one in given for text in (one if isinstance(one, list) else [one])]
    return ", ".join(texts) or None
