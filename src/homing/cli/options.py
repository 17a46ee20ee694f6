"""The flags that several commands share, and how a command gets its settings and its loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

if TYPE_CHECKING:
    from homing.settings import Settings

Result = TypeVar("Result")

_PIPE_WIDTH = 500

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url", metavar="URL", envvar="HOMING_DATABASE_URL", help="sqlite:///… or postgresql://…"
    ),
]
MailUrl = Annotated[
    str | None,
    typer.Option("--mail-url", metavar="URL", envvar="HOMING_MAIL_URL", help="The way out for mails."),
]
Host = Annotated[str | None, typer.Option("--host", envvar="HOMING_HOST", help="Address to listen on.")]
Port = Annotated[
    int | None, typer.Option("--port", "-p", envvar="HOMING_PORT", help="Port to listen on; 0: a free one.")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="HOMING_CONFIG", help="Settings file in place of homing.toml."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class ListedByName(TyperGroup):
    """`homing workers` is `homing workers list`. A flag before another command of the group is refused."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names_none = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        # A shell that completes the line wants to hear of all commands.
        lists = names_none and not ctx.resilient_parsing
        return super().parse_args(ctx, ["list", *args] if lists else args)


def settings_from(config: Path | None = None, **flags: Any) -> Settings:
    # Not at the top: who asks for help needs no settings, and they take a third of the time to start.
    from homing.settings import environment_name, load_settings

    environ = environment()
    # The parser gives what it read from the environment as if it had been a flag.
    given = {
        name: value for name, value in flags.items() if str(value) != environ.get(environment_name(name))
    }
    return load_settings(given, environ=environ, config=config)


def tell_database(settings: Settings) -> None:
    """Where it was looked: in the wrong folder nothing but zeros looks like peace."""
    from homing.db import redact

    where = f"database {redact(settings.database_url)}"
    Console(stderr=True, highlight=False, soft_wrap=True).print(where, style="dim", markup=False)


def environment() -> dict[str, str]:
    """The environment without the names of command flags, which are no settings, in effect or not."""
    from homing.cli import ENV_PREFIX, command_line

    flags = set(_flag_names(command_line(), ENV_PREFIX))
    return {name: value for name, value in os.environ.items() if name not in flags}


def _flag_names(command: Any, prefix: str) -> Iterator[str]:
    """Click gives every flag a name in the environment: HOMING_WORK_PROCESSES, HOMING_BENCH_MAIL_ROUNDS."""
    for parameter in command.params:
        yield f"{prefix}_{parameter.name}".upper().replace("-", "_")
    for name, sub in getattr(command, "commands", {}).items():
        yield from _flag_names(sub, f"{prefix}_{name}")


def run_async(main: Coroutine[Any, Any, Result]) -> Result:
    """Run on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # Windows has none
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def print_table(table: Table | str) -> None:
    """For people; in a pipe nothing is left out."""
    console = Console(highlight=False, width=output_width())
    if sys.stdout.isatty() or isinstance(table, str):
        # A text goes out as it is, brackets included, for the terminal to wrap; a table knows where its
        # columns may be, and its cells are escaped.
        is_text = isinstance(table, str)
        console.print(table, soft_wrap=is_text, markup=not is_text)
        return
    with console.capture() as written:
        console.print(table)
    # A table is as wide as its widest line, and a file need not have the room beside the others.
    sys.stdout.write("\n".join(line.rstrip() for line in written.get().split("\n")))


def output_width() -> int:
    """Of the terminal; a pipe has room for everything."""
    return Console().width if sys.stdout.isatty() else _PIPE_WIDTH


def print_json(value: Any) -> None:
    plain = _with_our_times(msgspec.to_builtins(value, builtin_types=(datetime,), enc_hook=str))
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain)).decode() + "\n")


def _with_our_times(value: Any) -> Any:
    """As in all our JSON: UTC, to the millisecond."""
    from homing.db import iso

    match value:
        case datetime():
            return iso(value)
        case dict():
            return {name: _with_our_times(one) for name, one in value.items()}
        case list() | tuple():
            return [_with_our_times(one) for one in value]
    return value
