"""`/router`: which queues are read into which pools, what runs there now, and the form that changes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from msgspec import Struct
from msgspec.structs import replace

from homing.access.desk import Access
from homing.brokers.router_config import PoolConfig, QueueConfig, RouterConfig, check_config
from homing.errors import InvalidRequest, NotAllowed
from homing.http.asking import AnyRequest
from homing.http.numbers import number_in
from homing.http.pages.deeds import OWN_AUDIT, Deed, tried
from homing.http.pages.forms import NOTHING_SENT, Form, Refused, Sent
from homing.http.pages.queues import pool_lines
from homing.http.pages.shell import gone_to, read_form, render
from homing.lanes.dispatch_jobs.mistakes import read
from homing.lanes.dispatch_jobs.router_api import CONFIG_HINTS
from homing.lanes.dispatch_jobs.router_store import RouterConfigs
from homing.workers.fleet import Fleet
from homing.workers.model import WarningReport, WorkerView

_LARGEST_FORM = 1024 * 1024
_CHANGES = {"scope": "router:admin", **OWN_AUDIT}
#: Lines of the form; with more than this the whole is edited as JSON.
_MOST_LINES, _SPARE_LINES = 50, 2
#: How a field of a line is named where it is checked: `queues[2].queueName`.
_IN_LINE = re.compile(r"\w+\[(\d+)\]\.(\w+)")
_FIELDS: Mapping[str, str] = {
    "queueUri": "queue_a",
    "queueName": "queue_b",
    "connections": "queue_c",
    "code": "pool_a",
    "concurrency": "pool_b",
    "rateLimitPerMinute": "pool_c",
}
#: The same, as the page calls them.
_LABELS: Mapping[str, str] = {
    "queueUri": "name or URL",
    "queueName": "called",
    "concurrency": "at once",
    "rateLimitPerMinute": "a minute",
}
_BY_LINES = Form("/router", {"queues": "queue_a_0", "processingPools": "pool_a_0"})
_AS_JSON = Form("/router", about="config")
_QUICKER = "Somebody has changed it since you opened this page. What stands below is yours; above is theirs."


class Draft(Struct, frozen=True):
    """What stands in the form: the configuration that holds, or what somebody has tried."""

    #: Uri, name, connections; and code, concurrency, rate; as text.
    queues: Sequence[Sequence[str]]
    pools: Sequence[Sequence[str]]
    connections: str
    json: str
    #: That each of the two forms was begun with. It comes back with a form that is refused for a mistake, so
    #: that what somebody has changed meanwhile is only written over by who was told of it.
    version: str
    json_version: str
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
        return await _page(request, router_configs, fleet)

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
            return await _page(request, router_configs, fleet, form, _sent(form, done))
        return gone_to("/router", "Every router takes it up within seconds, without a restart.")


async def _page(
    request: AnyRequest,
    configs: RouterConfigs,
    fleet: Fleet,
    form: Mapping[str, str] | None = None,
    sent: Sent = NOTHING_SENT,
) -> Response[str]:
    config, version = await configs.current()
    workers = [worker for worker in await fleet.workers() if not worker.is_gone]
    return render(
        request,
        "router.html",
        sent=sent,
        config=config,
        version_number=version,
        broker=configs.broker,
        draft=_draft(config, version) if form is None else _tried(form, config, version, sent),
        has_form=max(len(config.queues), len(config.processing_pools)) <= _MOST_LINES,
        pools={pool.code: pool for pool in pool_lines(workers)},
        routers=[worker for worker in workers if worker.report.pools],
        warnings=_warnings(workers),
    )


def _warnings(workers: Sequence[WorkerView]) -> list[Warned]:
    found = [Warned(worker.name, one) for worker in workers for one in worker.report.warnings]
    return sorted(found, key=lambda one: one.warning.at, reverse=True)[:20]


# ── the form ─────────────────────────────────────────────────────────────────────────────────────


def _draft(config: RouterConfig, version: int) -> Draft:
    return Draft(
        [*([q.queue_uri, q.queue_name or "", _text(q.connections)] for q in config.queues), *_spare()],
        [
            *([p.code, str(p.concurrency), _text(p.rate_limit_per_minute)] for p in config.processing_pools),
            *_spare(),
        ],
        str(config.connections),
        _pretty(config),
        str(version),
        str(version),
    )


def _spare() -> list[list[str]]:
    return [["", "", ""] for _ in range(_SPARE_LINES)]


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


def _pretty(config: RouterConfig) -> str:
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


def _tried(form: Mapping[str, str], config: RouterConfig, version: int, sent: Sent) -> Draft:
    """As it was sent, so that nobody has to write it again."""
    begun = str(version) if sent.why == _QUICKER else form.get("version", "")
    if "config" in form:
        return replace(_draft(config, version), json=form["config"], json_version=begun, opens_json=True)
    queues, pools = [*_lines(form, "queue"), *_spare()], [*_lines(form, "pool"), *_spare()]
    return Draft(queues, pools, form.get("connections", ""), _encoded(form), begun, begun)


def _sent(form: Mapping[str, str], refused: Refused) -> Sent:
    """What is wrong in JSON is wrong in its one field."""
    if "config" in form:
        return _AS_JSON.sent(form, Refused(refused.text))
    told = _IN_LINE.sub(_line_of, refused.text, count=1)
    return _BY_LINES.sent(form, Refused(told, _field_of(refused.field)))


def _line_of(place: re.Match[str]) -> str:
    """`queues[1].queueUri` as people count: queue 2, URI."""
    kind = "Queue" if place[0].startswith("queues") else "Pool"
    return f"{kind} {int(place[1]) + 1}, {_LABELS.get(place[2], place[2])}"


def _field_of(place: str | None) -> str | None:
    """Lines without anything are left out when it is sent, so that both count alike."""
    found = _IN_LINE.fullmatch(place or "")
    return f"{_FIELDS[found[2]]}_{found[1]}" if found and found[2] in _FIELDS else place


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
    body = (
        form["config"].encode("utf-8", "replace") if "config" in form else msgspec.json.encode(_given(form))
    )
    config: RouterConfig = read(body, RouterConfig, CONFIG_HINTS)
    return config


def _given(form: Mapping[str, str]) -> dict[str, Any]:
    connections = number_in(form.get("connections", "") or "1", "connections", int)
    return {
        "queues": [_queue(f"queues[{n}]", *line) for n, line in enumerate(_lines(form, "queue"))],
        "processingPools": [
            _pool(f"processingPools[{n}]", *line) for n, line in enumerate(_lines(form, "pool"))
        ],
        "connections": connections,
    }


def _queue(place: str, uri: str, name: str, at_once: str) -> QueueConfig:
    connections = number_in(at_once, f"{place}.connections", int)
    given = {"queueUri": uri, "queueName": name or None, "connections": connections}
    queue: QueueConfig = _read_line(place, given, QueueConfig)
    return queue


def _pool(place: str, code: str, at_once: str, rate: str) -> PoolConfig:
    given = {
        "code": code,
        "concurrency": number_in(at_once, f"{place}.concurrency", int) or 0,
        "rateLimitPerMinute": number_in(rate, f"{place}.rateLimitPerMinute", int),
    }
    pool: PoolConfig = _read_line(place, given, PoolConfig)
    return pool


def _read_line(place: str, given: Mapping[str, Any], kind: Any) -> Any:
    """Each by itself: of a whole array it would not be told which line is wrong."""
    try:
        return read(msgspec.json.encode(given), kind, {})
    except InvalidRequest as error:
        raise InvalidRequest(f"{place}.{error}", f"{place}.{error.field}") from None


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
