"""alerts: what is wrong and what people were told, be silent for a while, and try whether alerts arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from rich.console import Console

from homing.cli.listener import printable
from homing.cli.operator import seconds_in, typist
from homing.cli.options import (
    Config,
    DatabaseUrl,
    Json,
    ListedByName,
    print_json,
    print_table,
    run_async,
    settings_from,
)
from homing.cli.tables import Column, listing
from homing.errors import InvalidRequest

if TYPE_CHECKING:
    from homing.alerts.desk import AlertView, CauseView
    from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)
#: Causes that a warning names, and how alike one is to what was typed to be named alone.
_MOST_TOLD = 3
_ALIKE = 0.6


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(cls=ListedByName, help="Alerts to people: dead letters, targets, backlogs.")
    group.command(name="list")(list_alerts)
    group.command(name="test")(send_test)
    group.command()(silence)
    app.add_typer(group, name="alerts")


class _Seen(Struct, frozen=True):
    firing: Sequence[CauseView]
    silenced: Sequence[CauseView]
    recent: Sequence[AlertView]


def list_alerts(
    limit: Annotated[int, typer.Option("--limit", "-l", "-n", min=1, max=1000, help="At most so many.")] = 20,
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """What is wrong now, what is silenced, and what people were told, newest first."""
    seen = run_async(_list(settings_from(config, database_url=database_url), limit))
    if json:
        print_json(seen)
        return
    now = [(one.title, one.cause, _time(one.since)) for one in seen.firing]
    print_table(listing(_FIRING, now, title="wrong now") if now else "nothing is wrong")
    silent = [(one.cause, _time(one.silenced_until), one.silenced_by or "") for one in seen.silenced]
    if silent:
        print_table(listing(_SILENCED, silent, title="silenced"))
    told = [(str(one.id), _time(one.at), one.event, one.title, " ".join(one.ways)) for one in seen.recent]
    print_table(listing(_TOLD, told, title="told") if told else "nobody was told of anything")


_FIRING = (Column("what"), Column("cause"), Column("since", whole=True, rank=1))
_SILENCED = (Column("cause"), Column("until", whole=True), Column("by", rank=1))
_TOLD = (
    Column("alert", right=True),
    Column("at", whole=True),
    Column("event", whole=True, rank=1),
    Column("what"),
    Column("ways", rank=2),
)


def _time(moment: datetime | None) -> str:
    from homing.db import iso

    return iso(moment) or ""


async def _list(settings: Settings, limit: int) -> _Seen:
    from homing.app import opened

    async with opened(settings) as homing:
        alerts = homing.alerts
        return _Seen(await alerts.firing(), await alerts.silenced(), await alerts.recent(limit))


def send_test(json: Json = False, database_url: DatabaseUrl = None, config: Config = None) -> None:
    """Send an alert by every way that is set, as a real one would go, and tell how to follow it."""
    alert, troubles = run_async(_send_test(settings_from(config, database_url=database_url)))
    if json:
        print_json(alert)
    elif alert.went:
        _tell_test(alert)
    for trouble in troubles:
        _err.print(trouble, style="red")
    if troubles:
        raise typer.Exit(1)


async def _send_test(settings: Settings) -> tuple[AlertView, Sequence[str]]:
    from homing.app import opened

    async with opened(settings) as homing:
        if not homing.alerts.ways.all:
            raise InvalidRequest(
                "alerts go nowhere by the settings of this shell, whatever a server elsewhere has: set "
                "HOMING_ALERT_MAIL_TO or HOMING_ALERT_WEBHOOK_URL here, or send the test from the desk"
            )
        alert = await homing.alerts.test()
        return alert, homing.alerts.troubles_of(alert)


def _tell_test(alert: AlertView) -> None:
    print_table(f"alert {alert.id} was handed over to: {', '.join(alert.went)}")
    for line in _followed(alert):
        print_table(line)
    _err.print("They are delivered by whoever works on their lanes: `homing up`, `homing work`.", style="dim")


def _followed(alert: AlertView) -> Iterator[str]:
    from homing.lanes.dispatch_jobs.tsid import text_of

    if alert.mail_id is not None:
        yield f"follow the mail:    homing show outbox_{alert.mail_id}"
    if alert.job_id is not None:
        yield f"follow the webhook: homing show {text_of(alert.job_id)}"


def silence(
    cause: Annotated[str, typer.Argument(help="As `homing alerts list` shows it.")],
    span: Annotated[str, typer.Option("--for", metavar="SPAN", help="30m, 2h, 7d; 0m ends a silence.")],
    json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    """Tell nobody of a cause for a while; what happens meanwhile is told of afterwards."""
    seconds = seconds_in(span, "--for")
    done, known = run_async(_silence(settings_from(config, database_url=database_url), cause, seconds))
    if done.silenced_until is not None and done.cause not in known:
        _warn(done.cause, known)
    if json:
        print_json(done)
    elif done.silenced_until is None:
        print_table(f"no longer silenced: {done.cause}")
    else:
        print_table(f"silenced until {_time(done.silenced_until)}: {done.cause}")


async def _silence(settings: Settings, cause: str, seconds: int) -> tuple[CauseView, Sequence[str]]:
    from homing.app import opened

    async with opened(settings) as homing:
        known = await homing.alerts.known()
        return await homing.alerts.silence(cause, seconds, by=typist()), known


def _warn(cause: str, known: Sequence[str]) -> None:
    """A typing mistake at night is a silence of nothing; but what never happened may be silenced, too."""
    from difflib import get_close_matches

    nearest = get_close_matches(cause, known, n=_MOST_TOLD, cutoff=_ALIKE)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else _known(known)
    told = f"no such cause has been seen so far, it is silenced all the same; {hint}"
    _err.print(printable(told), style="yellow", markup=False)


def _known(known: Sequence[str]) -> str:
    if not known:
        return "nothing has been wrong so far"
    more = f" and {len(known) - _MOST_TOLD} more" if len(known) > _MOST_TOLD else ""
    return f"known are {', '.join(known[:_MOST_TOLD])}{more}"
