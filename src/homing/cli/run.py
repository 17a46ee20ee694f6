"""up · demo · serve · work · migrate: what keeps running, and what it needs before."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from homing.cli.options import (
    Config,
    DatabaseUrl,
    Host,
    Json,
    MailUrl,
    Port,
    environment,
    print_json,
    run_async,
    settings_from,
)
from homing.errors import SettingsError

if TYPE_CHECKING:
    from homing.settings import Settings

_out = Console(stderr=True, highlight=False, soft_wrap=True)

Lanes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LANE",
        help="mail_outbox, dispatch_jobs, open_events, email_log (or one of its stages, email_log:schedule "
        "and email_log:send); all when none is named.",
    ),
]


def add_to(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(demo)
    app.command()(serve)
    app.command()(work)
    app.command()(migrate)


def up(
    database_url: DatabaseUrl = None,
    mail_url: MailUrl = None,
    host: Host = None,
    port: Port = None,
    config: Config = None,
) -> None:
    """Everything in one process: API, page and workers. Makes its tables itself on SQLite."""
    settings = settings_from(config, database_url=database_url, mail_url=mail_url, host=host, port=port)
    from homing.app import LANES

    run_async(_run(settings, api=True, work=LANES, migrates=settings.database_url.startswith("sqlite")))


def serve(
    database_url: DatabaseUrl = None,
    mail_url: MailUrl = None,
    host: Host = None,
    port: Port = None,
    config: Config = None,
) -> None:
    """The API and the page. Claims nothing by itself; sends what a call of /internal/dispatch claimed."""
    settings = settings_from(config, database_url=database_url, mail_url=mail_url, host=host, port=port)
    run_async(_run(settings, api=True, work=(), migrates=False))


def work(
    lanes: Lanes = None,
    processes: Annotated[int, typer.Option("--processes", "-n", min=1, max=64, help="Worker processes.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="Deliver what is due, then end.")] = False,
    database_url: DatabaseUrl = None,
    mail_url: MailUrl = None,
    config: Config = None,
) -> None:
    """Deliver, without an API."""
    chosen = _lanes(lanes)
    settings = settings_from(config, database_url=database_url, mail_url=mail_url)
    if processes > 1:
        from homing.supervisor import supervise

        run_async(_require_schema(settings))
        sys.exit(
            supervise(_child_command(lanes, config, once=once), processes, settings, _overrides(settings))
        )
    if once:
        count, trouble = run_async(_work_once(settings, chosen))
        _out.print(f"{count} claimed, until nothing was due; `homing status` tells how they ended")
        if trouble is not None:
            _out.print(f"[red]but not all of it:[/] {escape(trouble)}")
            raise typer.Exit(1)
    else:
        run_async(_run(settings, api=False, work=chosen, migrates=False))


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Only tell; exit 1 when something is missing.")
    ] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Make or update the tables. Safe to run from several places at once."""
    settings = settings_from(config, database_url=database_url)
    names, found = run_async(_migrate(settings, only_check=check))
    if json:
        print_json({"pending" if check else "applied": names})
    else:
        _tell_migrations(names, only_check=check)
        if found:
            typer.echo(found)
    if check and names:
        raise typer.Exit(1)


def demo(
    host: Host = None,
    port: Port = None,
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, max=1000, help="Sample mails, and webhooks, per second.")
    ] = 5.0,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="End after this time; 0: when stopped.")
    ] = 0.0,
) -> None:
    """Try it out: sample mails and webhooks, peers that fail on purpose, a page that shows what happens."""
    from homing.demo import run_demo
    from homing.doctor import findings

    flags = _flags(host=host, port=port)
    run_async(run_demo(flags, environment(), rate=rate, seconds=seconds, tell=_out.print, examine=findings))


def _flags(**flags: Any) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


async def _run(settings: Settings, *, api: bool, work: Sequence[str], migrates: bool) -> None:
    from homing.app import LANES, opened, warnings_for
    from homing.doctor import findings
    from homing.service import Stop, run
    from homing.settings import is_loopback, require_private_key

    if api or settings.metrics_port:
        require_private_key(settings)
    if api:
        _require_free_port(settings)
    async with opened(settings, makes_file=migrates) as homing:
        if migrates:
            await homing.migrate()
        await homing.require_schema()
        if (api or settings.metrics_port) and not is_loopback(settings.host):
            await homing.access.require_configured(settings.host)
        configured = await homing.access.is_configured()
        for warning in warnings_for(settings, LANES if api else work):
            _out.print(f"[yellow]warning:[/] {escape(warning)}")
        homing.health.examine = lambda: findings(settings)
        stop = Stop()
        stop.install()
        await run(
            homing,
            stop,
            api=api,
            work=work,
            ready=lambda address: _tell_ready(address, settings, work, api=api, configured=configured),
        )


def _require_free_port(settings: Settings) -> None:
    """Before anything is made: a start that fails is to leave no database in the folder."""
    from homing.http.server import listen

    listen(settings.host, settings.port).close()


def _tell_ready(
    address: str, settings: Settings, lanes: Sequence[str], *, api: bool, configured: bool
) -> None:
    from homing.db import redact

    if api:
        _out.print(f"[bold]Homing[/] is up: {address}/   (API: {address}/docs)")
        access = "Asks for a key or a login" if configured else "No access keys: served on loopback only"
        _out.print(f"{access}; {_reach(settings)}.", style="dim")
    else:
        _out.print(f"[bold]Homing[/] is working on {', '.join(lanes)}.")
    sender = ", ".join(redact(url) for url in settings.mail_url.split(","))
    words = [f"database {redact(settings.database_url)}", *_elsewhere(settings), f"mails go to {sender}"]
    _out.print(" · ".join([*words, "stop with Ctrl-C (twice: now)"]), style="dim", markup=False)


def _elsewhere(settings: Settings) -> list[str]:
    """Brokers, and a database that only jobs are in, where they are named."""
    from homing.brokers.address import redacted
    from homing.parts.jobs import jobs_broker_url

    found = []
    if settings.jobs_database_url is not None:
        found.append(f"jobs in {_place(settings.jobs_database_url)}")
    if not (emails := settings.email_broker_url or settings.broker_url).startswith("memory:"):
        found.append(f"emails by {redacted(emails)}")
    if (jobs := jobs_broker_url(settings)) is not None:
        found.append(f"jobs by {redacted(jobs)}")
    return found


def _place(url: str) -> str:
    """Who logs in and how is nobody's business on a screen."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def _reach(settings: Settings) -> str:
    from homing.parts.jobs import egress_guard

    everywhere = egress_guard(settings).refusal("127.0.0.1") is None
    return (
        "webhooks may go to plain http and to loopback" if everywhere else "webhooks go to public https only"
    )


async def _work_once(settings: Settings, lanes: Sequence[str]) -> tuple[int, str | None]:
    """How many were claimed, and what broker was away: a cron line should hear of it."""
    from homing.app import opened
    from homing.service import Stop, drain_once

    async with opened(settings) as homing:
        await homing.require_schema()
        stop = Stop()
        stop.install()
        count = await drain_once(homing, stop, lanes)
        failures = [await broker.check() for broker in homing.brokers_of(lanes)]
        return count, next((failure.message for failure in failures if failure is not None), None)


async def _require_schema(settings: Settings) -> None:
    from homing.app import opened

    async with opened(settings) as homing:
        await homing.require_schema()


async def _migrate(settings: Settings, *, only_check: bool) -> tuple[list[str], str | None]:
    """The migrations, and what their user should know of the rows of somebody else."""
    from homing.app import opened

    async with opened(settings, makes_file=not only_check) as homing:
        if only_check:
            return [str(m) for m in await homing.pending()], None
        done = await homing.migrate()
        is_new = any((one.component, one.version) == ("mail_outbox", 1) for one in done)
        counts = await homing.mails_part.outbox.counts() if is_new else {}
        if not any(counts.values()):
            return [str(one) for one in done], None
        return [str(one) for one in done], (
            f"mail_outbox was there already: its queued mails ({counts['queued']:,}) will be sent; rows in "
            "other states are left alone, also in those that only its program knows"
        )


def _tell_migrations(names: list[str], *, only_check: bool) -> None:
    for name in names:
        typer.echo(f"{'missing' if only_check else 'applied'}: {name}")
    if not names:
        typer.echo("the database is up to date")


def _lanes(named: list[str] | None) -> Sequence[str]:
    from homing.app import LANES, STAGES

    known = [*LANES, *(stage for stages in STAGES.values() for stage in stages)]
    for lane in named or []:
        if lane not in known:
            raise SettingsError(f"there is no lane {lane!r}; there are {', '.join(known)}")
    return list(dict.fromkeys(named)) if named else LANES


def _child_command(lanes: list[str] | None, config: Path | None, *, once: bool) -> list[str]:
    # One process each, said aloud: HOMING_WORK_PROCESSES of the parent holds for its children as well.
    command = [sys.executable, "-m", "homing", "work", *(lanes or []), "--processes", "1"]
    return command + (["--once"] if once else []) + (["--config", str(config)] if config else [])


def _overrides(settings: Settings) -> dict[str, str]:
    """What flags set for the parent holds for its children, by environment: `ps` must show no secret."""
    return {"HOMING_DATABASE_URL": settings.database_url, "HOMING_MAIL_URL": settings.mail_url}
