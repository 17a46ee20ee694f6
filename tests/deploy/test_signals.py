"""Metrics, dashboard and alerts: what one names the other has, as a real scrape of a Homing at work shows."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import require_program
from tests.deploy.commands import DEPLOY, ROOT
from tests.emails import EmailBench, email_bench

from homing.http.server import serving
from homing.lines import Line
from homing.senders.mail import Verdict
from homing.telemetry import Telemetry
from homing.testing.http_sink import HttpSink

DOCS = (ROOT / "docs/telemetry.md").read_text()
ALERTS: dict[str, Any] = msgspec.yaml.decode((DEPLOY / "prometheus/alerts.yml").read_text())
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboard.json").read_text())

Labels = Mapping[str, set[str]]


# ── a Homing at work, and what it exposes ────────────────────────────────────────────────────────

JOB = {"source": "shop", "type": "order.created", "payload": "{}"}
SEAT = {"termId": "2027-1", "campusCode": "NB", "indexNumber": "09214"}


@asynccontextmanager
async def served(database_url: str, **settings: Any) -> AsyncIterator[tuple[EmailBench, httpx.AsyncClient]]:
    async with (
        email_bench(database_url, **settings) as bench,
        serving(bench.homing.asgi(), "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
    ):
        yield bench, client


async def put_in(client: httpx.AsyncClient, path: str, **body: Any) -> None:
    response = await client.post(path, json=body)
    assert response.is_success, response.text


async def work(bench: EmailBench, client: httpx.AsyncClient, sink: str) -> None:
    """Traffic in all lanes: what is delivered, what fails, what is refused, what there is no use in."""
    mail = {"subject": "Hi", "text": "Hello."}
    bench.sender.answer("bo@example.org", Verdict("rejected", 550, "5.1.1", "nobody"))
    bench.sender.answer("cy@example.org", Verdict("deferred", 450, "4.2.0", "later"))
    for name in ("ann", "bo", "cy"):
        await put_in(client, "/api/mail", to=f"{name}@example.org", **mail)
    for url in (sink, "http://127.0.0.1:9/hooks"):
        await put_in(client, "/api/dispatch/jobs", **JOB, targetUrl=url)
    await put_in(client, "/api/emails", to="ann@example.org", subject="Hi", body="Hello.")
    for name in ("ann", "dan"):
        await put_in(client, "/api/notifications/subscriptions", **SEAT, email=f"{name}@example.org")
    subscribers = await bench.sql(
        "UPDATE subscriptions SET status = 'active' RETURNING subscription_id AS id"
    )
    await put_in(client, "/api/notifications/events", **SEAT, statusBefore="Closed", statusAfter="Open")
    await bench.sql(
        "UPDATE subscriptions SET status = 'unsubscribed' WHERE subscription_id = :id RETURNING 1 AS one",
        id=subscribers[0]["id"],
    )
    await bench.sql(
        "INSERT INTO homing_target (target, failures, open_until) "
        "VALUES ('https://down.example.com:443', 9, '2099-01-01T00:00:00.000Z') RETURNING target"
    )
    await put_in(client, "/api/dispatch/jobs", **JOB, targetUrl="https://down.example.com/hooks")
    for line in (bench.homing.mail, bench.homing.webhooks, bench.homing.notify):
        await attempt(line)
    await bench.deliver()


async def attempt(line: Line) -> None:
    await line.deliverer.settled(await line.deliverer.run_batch(100))


def what_is_rare(telemetry: Telemetry) -> None:
    """Events that take a crash, an outage or hours to come about, told by those who would tell of them."""
    telemetry.lease_lost("mail_outbox", 1, 1)
    telemetry.rescued("mail_outbox", 1, 0)
    telemetry.swept("mail_outbox", {"expired": 1})
    telemetry.pruned("mail_outbox", "sent", 1)
    telemetry.breaker_opened("http://127.0.0.1:9")
    telemetry.email_died("MaxAttemptsExceeded")
    telemetry.email_scheduled(1, 1, None, reason=None, again=True)
    telemetry.routed("DISPATCH-POOL", "done")
    telemetry.router_pool("DISPATCH-POOL", lambda: 0)
    telemetry.lane_paused("mail_outbox", is_on=False)
    telemetry.http_refused("slow")
    telemetry.loop_held("GET /api/mail", 0.06)


async def scrape(client: httpx.AsyncClient, into: dict[str, dict[str, set[str]]]) -> None:
    response = await client.get("/metrics")
    assert response.status_code == 200, response.text
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = into.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)


async def collect(database_url: str) -> dict[str, dict[str, set[str]]]:
    found: dict[str, dict[str, set[str]]] = {}
    async with HttpSink() as sink, served(database_url) as (bench, client):
        await work(bench, client, sink.url)
        what_is_rare(bench.homing.telemetry)
        await scrape(client, found)
    # With a broker for jobs there is one stage more.
    async with served(database_url, jobs_broker_url="memory://") as (bench, client):
        await put_in(client, "/api/dispatch/jobs", **JOB, targetUrl="http://127.0.0.1:9/hooks")
        assert bench.homing.queueing is not None
        await attempt(bench.homing.queueing)
        await scrape(client, found)
    return found


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """Every sample's name with its labels and their values."""
    return asyncio.run(collect(f"sqlite:///{tmp_path_factory.mktemp('signals') / 'homing.db'}"))


# ── what an expression names ─────────────────────────────────────────────────────────────────────

_TOKEN = re.compile(
    r'"(?P<text>(?:[^"\\]|\\.)*)"|(?P<range>\[[^\]]*\])|(?P<word>[A-Za-z_:][A-Za-z0-9_:]*)'
    r"|(?P<number>\d[\d.]*[smhdwy]?)|(?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){},])|(?P<space>\s+)"
)
#: Before these brackets hold labels.
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_AFTER_FUNCTIONS = {"(", "by", "without"}
_OPERATORS = {"and", "or", "unless", "offset", "bool"}


class Matcher(Struct, frozen=True):
    metric: str
    label: str
    sign: str
    value: str


class Named(Struct):
    """What an expression says that there is."""

    metrics: set[str]
    matchers: list[Matcher]
    grouped: set[str]
    #: Labels that label_replace makes.
    made: set[str]


def tokens_of(expression: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        assert match is not None, f"what is {expression[at:]!r}?"
        kind = match.lastgroup
        assert kind is not None
        if kind not in {"space", "range", "number"}:
            found.append((kind, match[kind]))
        at = match.end()
    return found


def named_in(expression: str) -> Named:
    tokens = [*tokens_of(expression), ("end", "")]
    named = Named(set(), [], set(), set())
    at = 0
    while (token := tokens[at])[0] != "end":
        at += 1
        kind, word = token
        if word == "label_replace":
            named.made.add(next(text for kind, text in tokens[at:] if kind == "text"))
        if kind == "word" and word in _GROUPING and tokens[at][1] == "(":
            end = tokens.index(("sign", ")"), at)
            named.grouped |= {word for kind, word in tokens[at:end] if kind == "word"}
            at = end
        elif kind == "word" and word not in _OPERATORS | _GROUPING and tokens[at][1] not in _AFTER_FUNCTIONS:
            named.metrics.add(word)
            at = _read_matchers(tokens, at, word, named)
    return named


def _read_matchers(tokens: list[tuple[str, str]], at: int, metric: str, named: Named) -> int:
    if tokens[at] != ("sign", "{"):
        return at
    end = tokens.index(("sign", "}"), at)
    inside = [token for token in tokens[at + 1 : end] if token != ("sign", ",")]
    for (_, label), (_, sign), (_, value) in zip(inside[::3], inside[1::3], inside[2::3], strict=True):
        named.matchers.append(Matcher(metric, label, sign, value))
    return end


def test_the_tokenizer_finds_every_name() -> None:
    named = named_in(
        'sum by (lane, le) (rate(a_bucket{lane!~"x|y", b="c"}[5m])) / on (lane) group_left'
        ' max(label_replace(d offset 30m, "family", "$1", "lane", "(.*)")) > 0.5 or up == 0'
    )
    assert named.metrics == {"a_bucket", "d", "up"}
    assert named.matchers == [
        Matcher("a_bucket", "lane", "!~", "x|y"),
        Matcher("a_bucket", "b", "=", "c"),
    ]
    assert (named.grouped, named.made) == ({"lane", "le"}, {"family"})


# ── the expressions ──────────────────────────────────────────────────────────────────────────────


def panels() -> Iterator[dict[str, Any]]:
    for panel in BOARD["panels"]:
        yield panel
        yield from panel.get("panels", ())


def board_expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel.get("targets", ()):
            yield f"{panel['id']} {panel['title']} {target['refId']}", target["expr"]


def alert_expressions() -> Iterator[tuple[str, str]]:
    yield from ((rule["alert"], rule["expr"]) for rule in RULES)


EXPRESSIONS = dict(chain(board_expressions(), alert_expressions()))
#: Prometheus adds these.
OF_PROMETHEUS = {"job": {"homing", "homing-worker"}, "instance": set[str]()}


@cache
def vocabulary() -> dict[str, set[str]]:
    """Values that a short scrape need not have met: of these, the code and its catalogue know."""
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    return {
        "event": set(re.findall(r"`([a-z]+\.[a-z_]+)`", DOCS.split("## Metrics")[0])),
        "error_code": {"", *re.findall(r'"([a-z]+(?:_[a-z]+)*)"', code)},
        "level": {"info", "warning", "error"},
        **OF_PROMETHEUS,
    }


def matches(matcher: Matcher, known: set[str]) -> bool:
    """Whether each of the words that it asks for is one that there is."""
    if matcher.value.startswith("$"):
        return any(f"${one['name']}" == matcher.value for one in BOARD["templating"]["list"])
    if matcher.sign in {"=", "!="}:
        return matcher.value in known
    return all(any(re.fullmatch(word, one) for one in known) for word in matcher.value.split("|"))


@pytest.mark.clause("JOB-22", "JOB-25", "RTY-18")
@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_every_name_in_an_expression_is_exposed(expression: str, exposed: dict[str, Labels]) -> None:
    there = {**exposed, "up": OF_PROMETHEUS}
    # Only Prometheus knows how often it scrapes.
    named = named_in(expression.replace("$__rate_interval", "5m"))
    assert named.metrics <= set(there), named.metrics - set(there)
    labels = {label for metric in named.metrics for label in there[metric]} | set(OF_PROMETHEUS)
    assert named.grouped <= labels | named.made, named.grouped - labels
    for matcher in named.matchers:
        values = {**there[matcher.metric], **OF_PROMETHEUS}
        assert matcher.label in values, matcher
        known = values[matcher.label] | vocabulary().get(matcher.label, set())
        assert matches(matcher, known), (matcher, known)


@pytest.mark.parametrize(
    "wrong",
    [
        "rate(homing_attempt_total[5m])",
        "sum by (queue) (homing_messages)",
        'homing_messages{status="sent"}',
        'homing_messages{state="Sent!"}',
        'homing_log_events_total{event=~"claim.failed|claim.fialed"}',
        'homing_messages{lane="$line"}',
    ],
)
def test_a_wrong_name_would_be_found(wrong: str, exposed: dict[str, Labels]) -> None:
    with pytest.raises(AssertionError):
        test_every_name_in_an_expression_is_exposed(wrong, exposed)


# ── documents, code, scrape ──────────────────────────────────────────────────────────────────────

_ROW = re.compile(
    r"^\| `(homing_[a-z_]+)` \| (counter|gauge|histogram) \| (?:`([a-z_ ]+)`)? ?\|", re.MULTILINE
)


def documented() -> dict[str, tuple[str, set[str]]]:
    return {name: (kind, set(labels.split())) for name, kind, labels in _ROW.findall(DOCS)}


def test_code_and_document_agree_on_types_and_labels() -> None:
    registry = CollectorRegistry()
    telemetry = Telemetry(registry=registry)
    defined = {
        metric.name + ("_total" if metric.type == "counter" else ""): metric.type
        for metric in registry.collect()
    }
    assert {name: kind for name, (kind, _) in documented().items()} == defined
    assert telemetry.registry is registry


def test_a_scrape_has_what_the_document_lists(exposed: dict[str, Labels]) -> None:
    found = {name: set(labels) - {"le"} for name, labels in exposed.items() if not name.endswith("_created")}
    for name, (kind, labels) in documented().items():
        samples = [f"{name}{end}" for end in ("_bucket", "_sum", "_count")] if kind == "histogram" else [name]
        for sample in samples:
            assert found.pop(sample) == labels, sample
    assert not found


def test_names_and_labels_keep_the_conventions(exposed: dict[str, Labels]) -> None:
    for name, (kind, labels) in documented().items():
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind != "histogram" or name.endswith("_seconds"), name
        assert not re.search(r"_(ms|millis|minutes|percent|count|sum|bucket)$", name), name
        assert not labels & {"id", "job", "instance", "le", "quantile", "url", "to", "address", "path"}, name
    values = {value for labels in exposed.values() for found in labels.values() for value in found}
    assert not [value for value in values if "@" in value], "no address is a label"


def test_there_is_traffic_in_all_lanes(exposed: dict[str, Labels]) -> None:
    attempts = exposed["homing_attempts_total"]
    stages = {"email_log:schedule", "email_log:send", "dispatch_queue"}
    assert attempts["lane"] == {"mail_outbox", "dispatch_jobs", "open_events", *stages}
    assert attempts["outcome"] == {"delivered", "retry", "reject", "skip"}
    assert exposed["homing_in_flight"]["lane"] == attempts["lane"]


# ── alerts ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_the_matter_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
    named = named_in(rule["expr"])
    told = set(re.findall(r"\$labels\.([a-z_]+)", rule["annotations"]["summary"]))
    assert told <= named.grouped | named.made | (set(OF_PROMETHEUS) if "up" in named.metrics else set())


def test_every_alert_has_a_runbook_and_a_trial() -> None:
    alerts = [rule["alert"] for rule in RULES]
    assert len(alerts) == len(set(alerts))
    assert re.findall(r"^### (Homing\w+)$", DOCS, re.MULTILINE) == alerts
    trials = msgspec.yaml.decode((DEPLOY / "prometheus/alerts_test.yml").read_text())["tests"]
    tried = {
        one["alertname"] for trial in trials for one in trial["alert_rule_test"] if one.get("exp_alerts")
    }
    assert tried == set(alerts)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [require_program("promtool", "prometheus"), *arguments],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# ── what Prometheus and Grafana are started with ─────────────────────────────────────────────────


def read(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = msgspec.yaml.decode((DEPLOY / name).read_text())
    return loaded


def test_prometheus_asks_the_services_of_the_compose_file() -> None:
    services = read("compose.yaml")["services"]
    serve, workers = read("prometheus/prometheus.yml")["scrape_configs"]
    ((asked,),) = (one["targets"] for one in serve["static_configs"])
    host, _, port = asked.partition(":")
    assert services[host]["ports"] == [f"127.0.0.1:8080:{port}"]
    (found,) = workers["dns_sd_configs"]
    (name,) = found["names"]
    assert services[name]["environment"]["HOMING_METRICS_PORT"] == str(found["port"])
    for job in (serve, workers):
        assert job["job_name"] in OF_PROMETHEUS["job"]
        secret = Path(job["authorization"]["credentials_file"])
        assert secret.parent == Path("/run/secrets")
        assert secret.name in services["prometheus"]["secrets"]


def test_prometheus_and_grafana_find_their_files() -> None:
    services = read("compose.yaml")["services"]
    assert all(
        (DEPLOY / "prometheus" / name).exists() for name in read("prometheus/prometheus.yml")["rule_files"]
    )
    (provider,) = read("grafana/provisioning/dashboards/homing.yaml")["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert Path(mounts["./grafana/dashboard.json"]).parent == Path(provider["options"]["path"])
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (chosen,) = [one for one in BOARD["templating"]["list"] if one["type"] == "datasource"]
    assert chosen["current"]["value"] == source["uid"]


def test_the_board_is_in_order() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    variables = {one["name"] for one in BOARD["templating"]["list"]} | {"__rate_interval"}
    for panel in panels():
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24, panel["title"]
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= named_in(target["expr"].replace("$__rate_interval", "5m")).grouped, panel["title"]


def test_the_board_shows_every_metric_that_is_documented() -> None:
    shown = {
        metric.removesuffix("_bucket") for _, text in board_expressions() for metric in named_in(text).metrics
    }
    assert shown == set(documented())
