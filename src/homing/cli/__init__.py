"""The command line. Data goes to standard output, everything else to standard error.

Exit codes: 0 well · 1 something is not as it should be · 2 a wrong call or setting ·
3 the database cannot be used · 130 interrupted.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from homing.cli import chaos, doctor, mails, prove, run
from homing.errors import DatabaseError, HomingError, SettingsError

ENV_PREFIX = "HOMING"

app = typer.Typer(
    name="homing",
    help="Homing delivers outbound messages, emails and signed webhooks, and proves it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": ENV_PREFIX, "help_option_names": ["-h", "--help"]},
)
run.add_to(app)
mails.add_to(app)
doctor.add_to(app)
prove.add_to(app)
chaos.add_to(app)


def main() -> None:
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        app(standalone_mode=True)
    except SettingsError as error:
        errors.print(f"[red]homing:[/] {error}", markup=True)
        sys.exit(2)
    except DatabaseError as error:
        errors.print(f"[red]homing:[/] {error}")
        sys.exit(3)
    except HomingError as error:
        errors.print(f"[red]homing:[/] {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
