"""The command line. Data goes to standard output, everything else to standard error.

Exit codes: 0 well · 1 something is not as it should be · 2 a wrong call or setting ·
3 the database cannot be used · 130 interrupted.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from homing import __version__
from homing.cli import (
    alerts,
    audit,
    bulk,
    chaos,
    copying,
    credentials,
    doctor,
    find,
    health,
    keys,
    mails,
    messages,
    prove,
    prune,
    receiver,
    run,
    users,
    workers,
)
from homing.errors import DatabaseError, HomingError, InvalidRequest, SettingsError

ENV_PREFIX = "HOMING"
_CONTEXT: dict[str, Any] = {"auto_envvar_prefix": ENV_PREFIX, "help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="homing",
    invoke_without_command=True,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)


@app.callback()
def homing(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True)
    ] = False,
) -> None:
    """Homing delivers outbound messages and proves it."""
    if version:
        typer.echo(f"homing {__version__}")
        raise typer.Exit


run.add_to(app)
messages.add_to(app)
find.add_to(app)
mails.add_to(app)
doctor.add_to(app)
health.add_to(app)
prune.add_to(app)
bulk.add_to(app)
prove.add_to(app)
chaos.add_to(app)
credentials.add_to(app)
copying.add_to(app)
receiver.add_to(app)
keys.add_to(app)
users.add_to(app)
workers.add_to(app)
alerts.add_to(app)
audit.add_to(app)
audit.watch(app)


@cache
def command_line() -> Any:
    """Built once: typer looks at every parameter of every command, which takes a small command's time."""
    command = typer.main.get_command(app)
    _leave_switches_to_the_command_line(command)
    _show_plainly(command)
    return command


def _show_plainly(command: Any) -> None:
    """In help a switch has no value, and only the environment that people set is named."""
    own_help = command.get_help_option(typer.Context(command, **_CONTEXT))
    for parameter in [*command.params, own_help]:
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or parameter.name.upper()
        elif parameter.is_flag:
            parameter.metavar = ""
        parameter.show_envvar = parameter.envvar is not None
    for sub in getattr(command, "commands", {}).values():
        _show_plainly(sub)


def _leave_switches_to_the_command_line(command: Any, *, is_first: bool = True) -> None:
    """A value may come from the environment (HOMING_WORK_PROCESSES). A switch, such as --yes, may not.

    HOMING_VERSION is often the tag of an image, and must not turn every command into `homing --version`.
    """
    for parameter in command.params:
        if is_first or getattr(parameter, "is_flag", False):
            parameter.allow_from_autoenv = False
    for sub in getattr(command, "commands", {}).values():
        _leave_switches_to_the_command_line(sub, is_first=False)


def main() -> None:
    try:
        command_line()(standalone_mode=True)
    except HomingError as error:
        _complain(str(error))
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _complain(message: str) -> None:
    # Escaped: a message may quote what somebody wrote, brackets included.
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]homing:[/] {escape(message)}")


def _exit_code(error: HomingError) -> int:
    if isinstance(error, SettingsError | InvalidRequest):
        return 2
    return 3 if isinstance(error, DatabaseError) else 1
