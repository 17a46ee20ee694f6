"""doctor: what is wrong, and how to mend it."""

from __future__ import annotations

import typer
from rich.markup import escape
from rich.table import Table

from homing.cli.options import (
    Config,
    DatabaseUrl,
    Json,
    MailUrl,
    print_json,
    print_table,
    run_async,
    settings_from,
)


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    json: Json = False, database_url: DatabaseUrl = None, mail_url: MailUrl = None, config: Config = None
) -> None:
    """Check database, migrations, clock, relay, keys, egress and settings. Exit 1 when something is wrong."""
    from homing.doctor import examine

    findings = run_async(examine(settings_from(config, database_url=database_url, mail_url=mail_url)))
    if json:
        print_json([{"check": f.check, "ok": f.well, "detail": f.detail} for f in findings])
    else:
        table = Table(show_header=False, box=None)
        for finding in findings:
            table.add_row(
                "[green]✔[/]" if finding.well else "[red]✖[/]", finding.check, escape(finding.detail)
            )
        print_table(table)
    if not all(f.well for f in findings):
        raise typer.Exit(1)
