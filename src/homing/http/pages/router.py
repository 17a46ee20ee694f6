"""`/router`: which queues are read into which pools, what runs there now, and the form that changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from msgspec import Struct

from homing.access.desk import Access
from homing.brokers.router_config import PoolConfig, QueueConfig, RouterConfig, check_config
from homing.errors import InvalidRequest, NotAllowed
from homing.http.numbers import number_in
from homing.http.pages.deeds import OWN_AUDIT, Deed, Refused, tried
from homing.http.pages.queues import pool_lines
from homing.http.pages.shell import AnyRequest, gone_to, read_form, render
from homing.lanes.dispatch_jobs.mistakes import read
from homing.lanes.dispatch_jobs.router_api import CONFIG_HINTS
from homing.lanes.dispatch_jobs.router_store import RouterConfigs
from homing.workers.fleet import Fleet
from homing.workers.model import WarningReport, WorkerView

_LARGEST_FORM = 1024 * 1024
_CHANGES = {"scope": "router:admin", **OWN_AUDIT}
#: Lines of the form; with more than this the whole is edited as JSON.
_MOST_LINES, _SPARE_LINES = 50, 2
_QUICKER = "Somebody has changed it since you opened this page. What stands below is yours; above is theirs."


class Draft(Struct, frozen=True):
    """What stands in the form: the configuration that holds, or what somebody has tried."""

    #: Uri, name, connections; and code, concurrency, rate; as text.
    queues: Sequence[Sequence[str]]
    pools: Sequence[Sequence[str]]
    connections: str
    json: str
    error: str = ""
    opens_json: bool = False


class Warned(Struct, frozen=True):
    worker: str
    warning: WarningReport


class RouterPages(Controller):
    path = "/router"
    include_in_schema = False
    opt: Mapping[str, Any] = {"scope": "router:read", "largest_form": _LARGEST_FORM}
    request_max_body_size = _LARGEST_FORM

    @get("/", media_type=MediaType.HTML)
    async def show(
        self,
        request: AnyRequest,
        router_configs: NamedDependency[RouterConfigs],
        fleet: NamedDependency[Fleet],
    ) -> Response[str]:
        return await _page(request, router_configs, fleet, None)

    @post("/", status_code=303, media_type=MediaType.HTML, opt=_CHANGES)
    async def change(
        self,
        request: AnyRequest,
        router_configs: NamedDependency[RouterConfigs],
        fleet: NamedDependency[Fleet],
        access: NamedDependency[Access],
    ) -> Response[str]:
        form = await read_form(request)

        async def change() -> RouterConfig:
            config = _config_of(form)
            check_config(config, router_configs.broker)
            if not await router_configs.replace(config, _version(form)):
                raise NotAllowed(_QUICKER)
            return config

        done = await tried(request, access, Deed("router.change", "router", _told(form)), change)
        if isinstance(done, Refused):
            return await _page(request, router_configs, fleet, _tried(form, done.text))
        return gone_to("/router", "Every router takes it up within seconds, without a restart.")


async def _page(
    request: AnyRequest, configs: RouterConfigs, fleet: Fleet, draft: Draft | None
) -> Response[str]:
    config, version = await configs.current()
    workers = [worker for worker in await fleet.workers() if not worker.is_gone]
    return render(
        request,
        "router.html",
        config=config,
        version_number=version,
        broker=configs.broker,
        draft=draft or _draft(config),
        has_form=max(len(config.queues), len(config.processing_pools)) <= _MOST_LINES,
        pools={pool.code: pool for pool in pool_lines(workers)},
        routers=[worker for worker in workers if worker.report.pools],
        warnings=_warnings(workers),
    )


def _warnings(workers: Sequence[WorkerView]) -> list[Warned]:
    found = [Warned(worker.name, one) for worker in workers for one in worker.report.warnings]
    return sorted(found, key=lambda one: one.warning.at, reverse=True)[:20]


# ── the form ─────────────────────────────────────────────────────────────────────────────────────


def _draft(config: RouterConfig) -> Draft:
    return Draft(
        [*([q.queue_uri, q.queue_name or "", _text(q.connections)] for q in config.queues), *_spare()],
        [
            *([p.code, str(p.concurrency), _text(p.rate_limit_per_minute)] for p in config.processing_pools),
            *_spare(),
        ],
        str(config.connections),
        _pretty(config),
    )


def _spare() -> list[list[str]]:
    return [["", "", ""] for _ in range(_SPARE_LINES)]


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


def _pretty(config: RouterConfig) -> str:
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


def _tried(form: Mapping[str, str], error: str) -> Draft:
    """As it was sent, so that nobody has to write it again."""
    as_json = "config" in form
    queues, pools = _lines(form, "queue"), _lines(form, "pool")
    text = form["config"] if as_json else _encoded(form)
    return Draft([*queues, *_spare()], [*pools, *_spare()], form.get("connections", ""), text, error, as_json)


def _encoded(form: Mapping[str, str]) -> str:
    """Of what can be read; else nothing, since there is no JSON of it."""
    try:
        return _pretty(_config_of(form))
    except InvalidRequest:
        return ""


def _lines(form: Mapping[str, str], kind: str) -> list[list[str]]:
    """Three fields of each line that has something in its first."""
    lines = [[form.get(f"{kind}_{name}_{n}", "").strip() for name in "abc"] for n in range(_MOST_LINES + 10)]
    return [line for line in lines if any(line)]


def _config_of(form: Mapping[str, str]) -> RouterConfig:
    """Raises `InvalidRequest`, in the same words as the API."""
    body = form["config"].encode() if "config" in form else msgspec.json.encode(_given(form))
    config: RouterConfig = read(body, RouterConfig, CONFIG_HINTS)
    return config


def _given(form: Mapping[str, str]) -> dict[str, Any]:
    queues = [
        {"queueUri": uri, "queueName": name or None, "connections": number_in(at_once, "connections", int)}
        for uri, name, at_once in _lines(form, "queue")
    ]
    pools = [
        {
            "code": code,
            "concurrency": number_in(at_once, "at once", int) or 0,
            "rateLimitPerMinute": number_in(rate, "a minute", int),
        }
        for code, at_once, rate in _lines(form, "pool")
    ]
    connections = number_in(form.get("connections", "") or "1", "connections", int)
    return {"queues": queues, "processingPools": pools, "connections": connections}


def _version(form: Mapping[str, str]) -> int:
    return int(number_in(form.get("version", ""), "version", int) or 0)


def _told(form: Mapping[str, str]) -> dict[str, Any]:
    """For the log: what was asked for, as far as it can be read."""
    try:
        config = _config_of(form)
    except InvalidRequest:
        return {}
    return {
        "queues": [_named(queue) for queue in config.queues],
        "processingPools": [_sized(pool) for pool in config.processing_pools],
        "connections": config.connections,
    }


def _named(queue: QueueConfig) -> str:
    return queue.queue_uri


def _sized(pool: PoolConfig) -> str:
    rate = f", {pool.rate_limit_per_minute} a minute" if pool.rate_limit_per_minute else ""
    return f"{pool.code}: {pool.concurrency} at once{rate}"
