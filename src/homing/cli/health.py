"""health: asks a Homing that runs beside it. For health checks of containers, which have no curl."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException
from typing import Annotated, Any

import msgspec
import typer

from homing.cli.options import Config, Host, print_json, settings_from
from homing.errors import InvalidRequest

Port = Annotated[
    int | None,
    typer.Option(
        "--port", "-p", min=1, max=65535, help="Its port; left out: HOMING_PORT, or HOMING_METRICS_PORT."
    ),
]
Worker = Annotated[bool, typer.Option("--worker", help="It is a worker: asked on HOMING_METRICS_PORT.")]
Live = Annotated[bool, typer.Option("--live", help="Only whether it answers, not whether its database does.")]
AlwaysJson = Annotated[bool, typer.Option("--json", help="Print JSON, as it does anyway.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, max=60, help="Seconds to wait for the answer.")]


def add_to(app: typer.Typer) -> None:
    app.command()(health)


def health(
    live: Live = False,
    worker: Worker = False,
    timeout: Timeout = 5.0,
    host: Host = None,
    port: Port = None,
    json: AlwaysJson = True,
    config: Config = None,
) -> None:
    """Ask a running Homing whether it is ready. Exit 0 when it is, 1 when it is not."""
    del json
    settings = settings_from(config, host=host)
    chosen = port or (settings.metrics_port if worker else settings.port)
    if not chosen:
        raise InvalidRequest(
            "a worker answers on HOMING_METRICS_PORT, which is not set; set it there and here, or say --port"
        )
    status, answer = _ask(
        _reachable(settings.host), chosen, "/health/live" if live else "/health/ready", timeout
    )
    print_json({"status": status, "answer": _read(answer)})
    if status != 200:
        raise typer.Exit(1)


def _read(answer: str) -> Any:
    """As what it is, where it is JSON; another program may answer on that port."""
    try:
        return msgspec.json.decode(answer)
    except (msgspec.DecodeError, RecursionError):
        return answer


def _reachable(host: str) -> str:
    """Who listens everywhere listens on loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def _ask(host: str, port: int, path: str, timeout: float) -> tuple[int, str]:
    connection = HTTPConnection(host, port, timeout=timeout)
    try:
        # By a name that is served everywhere, whatever the address is called outside.
        connection.request("GET", path, headers={"Host": "localhost"})
        reply = connection.getresponse()
        return reply.status, reply.read(2000).decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        return 0, f"no answer from {host}:{port}: {error}"
    finally:
        connection.close()
