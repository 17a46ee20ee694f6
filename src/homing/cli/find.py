"""`homing find`: messages of all lanes by a query line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from homing.cli.options import (
    Config,
    DatabaseUrl,
    Json,
    print_json,
    print_table,
    run_async,
    settings_from,
    tell_database,
)
from homing.cli.tables import Column, listing
from homing.errors import DatabaseError, InvalidRequest

if TYPE_CHECKING:
    from datetime import datetime

    from rich.table import Table

    from homing.desk.desk import Found
    from homing.desk.view import MessagePage
    from homing.messages.model import Wanted
    from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)

#: Of a query line, in what looks like a flag.
_LEFT_OUT = re.compile(r"-[A-Za-z][\w.]*:")


class QueryCommand(TyperCommand):
    """A command that takes a query line: `-status:dead` is a mistake in it, and not of an option -s."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        terms = [] if "--" in args else [one for one in args if _LEFT_OUT.match(one)]
        others = [one for one in args if one not in terms]
        return super().parse_args(ctx, [*others, "--", *terms] if terms else args)


Line = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUERY", help="Such as 'status:dead type:order.* meta.tenantId:acme since:2h'."),
]


def find(
    query: Line = None,
    limit: Annotated[int, typer.Option("--limit", "-l", "-n", min=1, max=200, help="At most so many.")] = 20,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where another page ended.")] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Mails, emails, notifications and jobs in one list, newest first, by a query line."""
    settings = settings_from(config, database_url=database_url)
    page = run_async(_find(settings, " ".join(query or ()), limit, cursor))
    if json:
        print_json(page)
    else:
        print_table(_listing(page) if page.items else "nothing is found")
        _tell(page)
        tell_database(settings)
    if page.notes:
        # A lane could not be asked: that nothing was found there says nothing.
        raise typer.Exit(1)


async def _find(settings: Settings, line: str, limit: int, cursor: str | None) -> MessagePage:
    from datetime import UTC, datetime

    from homing.app import opened
    from homing.desk.view import page_view

    wanted = wanted_in(line, "find", datetime.now(UTC))
    async with opened(settings) as homing:
        # Whoever has the database may read it all.
        found = await homing.desk.find(wanted, cursor=cursor, limit=limit, may=lambda _scope: True)
        _require_an_answer(found, wanted)
        return page_view(found, wanted)


def _require_an_answer(found: Found, wanted: Wanted) -> None:
    """Where no lane could be asked, an empty list would look like peace."""
    if wanted.lanes and set(wanted.lanes) == set(found.troubles):
        raise DatabaseError("; ".join(dict.fromkeys(found.troubles.values())))


def wanted_in(line: str, command: str, now: datetime) -> Wanted:
    """Raises with the place of a mistake, and with the command as it was probably meant."""
    from homing.desk.query import read, told
    from homing.messages.model import Wanted

    wanted = read(line, now)
    if isinstance(wanted, Wanted):
        return wanted
    better = f"; write: homing {command} '{wanted.mended}'" if wanted.mended else ""
    raise InvalidRequest(f"{told(wanted)}{better}", "query")


_COLUMNS = (
    Column("id", whole=True),
    Column("lane", rank=5, whole=True),
    Column("state", whole=True),
    Column("what"),
    Column("to", rank=2),
    Column("attempts", rank=4, right=True),
    Column("error", rank=1),
    Column("created", rank=3, whole=True),
)


def _listing(page: MessagePage) -> Table:
    return listing(
        _COLUMNS,
        [
            (m.id, m.lane, m.state, m.title, m.to, str(m.attempts), m.error or "", m.created_at)
            for m in page.items
        ],
    )


def _tell(page: MessagePage) -> None:
    for note in page.notes:
        _err.print(note, style="yellow", markup=False)
    if page.looked_at is not None:
        _err.print(f"no index serves this: {page.looked_at:,} messages were looked through", style="dim")
    if page.next is not None:
        _err.print(f"there may be more: --cursor {page.next}", style="dim")


def add_to(app: typer.Typer) -> None:
    app.command(cls=QueryCommand)(find)
