"""Every setting, in one frozen object. No other module reads the environment.

A setting `mail_url` is `HOMING_MAIL_URL` in the environment and `mail_url` in `homing.toml`; the names
that a specification gives (`DISPATCH_*`) are kept as they are. A flag goes before the environment, the
environment before the file, the file before the default. `NAME_FILE` names a file that holds the value.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic_core import ErrorDetails

from homing.engine.policy import read_milliseconds, read_schedule
from homing.engine.prune import read_retention
from homing.errors import SettingsError
from homing.own_files import require_own

_OURS = "HOMING_"
#: Left to the test suite.
_NOT_OURS = "HOMING_TEST_"
#: Where `homing.toml` is looked for when no other place is named.
CONFIG_FILE = "homing.toml"
#: Where the tables are when no place is named.
DATABASE_FILE = "homing.db"
CONFIG_VARIABLE = "HOMING_CONFIG"


def _schedule(value: str) -> str:
    read_schedule(value)
    return value


def _milliseconds(value: str) -> str:
    read_milliseconds(value)
    return value


def _time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"there is no time zone {value!r}; write one such as America/New_York") from None
    return value


def _retention(value: str) -> str:
    read_retention(value)
    return value


def _comma_list(value: str) -> str:
    return ",".join(part.strip() for part in value.split(",") if part.strip())


def _networks(value: str) -> str:
    listed = _comma_list(value)
    for part in listed.split(",") if listed else ():
        try:
            ip_network(part)
        except ValueError:
            raise ValueError(
                f"{part!r} is no network; write addresses and networks such as 10.0.0.7 or 10.1.0.0/16"
            ) from None
    return listed


def _lower_scheme(value: str) -> str:
    """A scheme may be written in capitals. What follows it may be a secret, and is left alone."""
    scheme, mark, rest = value.partition(":")
    return f"{scheme.lower()}{mark}{rest}"


def _mail_urls(value: str) -> str:
    return ",".join(map(_lower_scheme, _comma_list(value).split(",")))


#: Of a database or a broker.
Url = Annotated[str, AfterValidator(_lower_scheme)]


class Settings(BaseModel):
    """Each field's description is its comment in `config.default.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)

    database_url: Url = Field(
        f"sqlite:///{DATABASE_FILE}",
        description="Where the tables are: sqlite:///file.db or postgresql://user@host/name.",
    )
    jobs_database_url: Url | None = Field(
        None,
        description="Another database for dispatch jobs, their credentials and targets; may also be "
        "mongodb://user:password@host/name (a replica set).",
        json_schema_extra={"secret": True},
    )
    notify_database_url: Url | None = Field(
        None,
        description="Another database for open_events: the SQLite file that another program writes to, or "
        "postgresql://….",
        json_schema_extra={"secret": True},
    )

    mail_url: Annotated[str, AfterValidator(_mail_urls)] = Field(
        "catch://",
        description="The way out for mails: catch:// (kept to look at, not sent), memory://, "
        "smtp://user:password@host (STARTTLS required unless loopback; ?tls=none|opportunistic, without a "
        "password), smtps://…, "
        "sendgrid://KEY@, ses://REGION, postmark://TOKEN@, mailgun://:KEY@DOMAIN (docs/mail_providers.md); "
        "several, by commas, for failover.",
        json_schema_extra={"secret": True},
    )
    mail_from: str = Field("homing@localhost", description="The sender of mails that name none.")
    mail_connections: int = Field(20, ge=1, le=1000, description="Connections per relay and process.")
    bytes_at_once: int = Field(
        134217728,
        ge=1048576,
        le=1099511627776,
        description="Bytes of large messages (webhooks above 16 KiB, mails above 64 KiB) that one process "
        "has in memory at once; others wait, unread. Each takes about five times its size while it is sent.",
    )
    mail_batch: int = Field(500, ge=1, le=10000, description="Mails that one process holds claimed at once.")
    template_dir: str = Field("templates", description="The folder of mail templates.")
    default_locale: str = Field(
        "en", description="The locale of mails that name none, and the last to fall back to."
    )

    dispatch_max_attempts: int = Field(5, ge=1, le=1000, description="Attempts per mail before it is failed.")
    dispatch_backoff_base_seconds: int = Field(
        30, ge=1, le=86400, description="Wait base·2^n seconds after the n-th failed attempt."
    )
    dispatch_backoff_max_seconds: int = Field(
        3600, ge=1, le=2592000, description="The longest wait, before jitter."
    )
    dispatch_backoff_jitter: float = Field(
        0.2, ge=0.0, le=1.0, description="Spread waits by up to this share."
    )
    dispatch_lease_seconds: float = Field(
        120.0, ge=1.0, le=3600.0, description="A mail whose worker died is due again after this time."
    )
    dispatch_rate_limit_per_minute: int = Field(
        0, ge=0, le=1000000, description="Calls of POST /internal/dispatch per minute; 0 is no limit."
    )

    broker_url: Url = Field(
        "memory://",
        description="The broker of email_log, and where it is not memory:// of dispatch jobs: memory://, "
        "amqp://… or sqs://… (docs/brokers.md); each may have one of its own.",
        json_schema_extra={"secret": True},
    )
    email_broker_url: Url | None = Field(
        None,
        description="Another broker for email_log: amqp://…; memory:// serves one process.",
        json_schema_extra={"secret": True},
    )
    email_retry_interval_seconds: float = Field(
        60.0,
        ge=0.05,
        le=3600.0,
        description="The scheduler of email_log looks for what is due at least this often.",
    )
    email_max_attempts: int = Field(8, ge=1, le=1000, description="Attempts per email before it is Dead.")
    email_backoff_schedule: Annotated[str, AfterValidator(_schedule)] = Field(
        "1m,5m,15m,1h,3h,6h,12h,24h",
        description="The waits after the first, the second, … failed attempt (s, m, h, d); then the last.",
    )
    email_lease_seconds: float = Field(
        120.0, ge=1.0, le=3600.0, description="An email whose worker died is due again after this time."
    )
    email_publish_new: bool = Field(
        True,
        description="Whether the scheduler queues new rows that other programs insert into email_log; false "
        "where their producer publishes them itself.",
    )
    email_lost_after_seconds: float = Field(
        21600.0,
        ge=1.0,
        le=2592000.0,
        description="A message that no sender has answered for so long is published again, also where its "
        "queue was never seen missing or empty; with memory:// after a minute.",
    )
    email_queue_type: Literal["quorum", "classic"] = Field(
        "quorum",
        description="How RabbitMQ's queues of emails are made: quorum, or classic, which any client can "
        "declare without arguments.",
    )
    email_prefetch: int = Field(
        200, ge=1, le=10000, description="Messages that one process takes from the queue of emails at once."
    )
    email_queue_prefix: str = Field(
        "email.dispatcher",
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="How the queues of emails begin: email.dispatcher.send and email.dispatcher.dlq.",
    )
    notify_max_attempts: int = Field(
        3, ge=1, le=1000, description="Attempts per notification before it is failed."
    )
    notify_lock_ttl_seconds: int = Field(
        120, ge=30, le=3600, description="A notification whose worker died is due again after this time."
    )
    notify_retry_schedule_ms: Annotated[str, AfterValidator(_milliseconds)] = Field(
        "0,2000,7000",
        description="Milliseconds to wait after the first, the second, … failed attempt; then the last. At "
        "most the lock's time.",
    )
    notify_expire_after_seconds: int = Field(
        86400, ge=60, le=31536000, description="Nobody is told of a seat that opened longer ago than this."
    )
    notify_batch: int = Field(
        800, ge=1, le=10000, description="Notifications that one process holds claimed at once."
    )
    notify_rate_per_second: float = Field(
        5.0, ge=0.0, le=100000.0, description="Notifications a second and process; 0 is no limit."
    )
    notify_rate_burst: int = Field(
        10, ge=1, le=100000, description="Notifications that may go out at once after a pause."
    )
    notify_send_retries_ms: Annotated[str, AfterValidator(_milliseconds)] = Field(
        "0,2000,7000",
        description="Milliseconds to wait after the first, the second, … try of a provider within one "
        "attempt; it is tried as often as there are entries.",
    )
    notify_send_jitter: float = Field(
        0.25, ge=0.0, le=1.0, description="Prolong these waits by up to this share."
    )
    notify_locales: Annotated[str, AfterValidator(_comma_list)] = Field(
        "en-US,zh-CN",
        description="The locales that notifications are written in; the first is for those who want another.",
    )
    notify_time_zone: Annotated[str, AfterValidator(_time_zone)] = Field(
        "UTC", description="The time zone of delivery windows that name none, such as America/New_York."
    )
    notify_template_version: str = Field(
        "v1", pattern=r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$", description="The version of the open-seat template."
    )
    jobs_broker_url: Url | None = Field(
        None,
        description="A broker for dispatch jobs: sqs://…, amqp://…, memory://. Left out: HOMING_BROKER_URL; "
        "where that is memory://, none: jobs are then taken from the database.",
        json_schema_extra={"secret": True},
    )
    jobs_queue: str = Field(
        "flow-catalyst-dispatch.fifo",
        min_length=1,
        max_length=2048,
        description="The queue of jobs that name no other: its name or its URL.",
    )
    jobs_pool_concurrency: int = Field(
        5,
        ge=1,
        le=10000,
        description="Jobs that DISPATCH-POOL processes at once, until /api/config was told otherwise.",
    )
    jobs_requeue_seconds: float = Field(
        300.0,
        ge=1.0,
        le=86400.0,
        description="A due job whose message is not heard of for so long is sent to its queue again.",
    )
    jobs_visibility_seconds: float = Field(
        30.0,
        ge=1.0,
        le=43200.0,
        description="How long a queue hides a message that somebody took; extended while it is processed.",
    )
    jobs_process_url: str | None = Field(
        None,
        description="Where the router has jobs processed. Left out: /api/dispatch/process of this API.",
    )
    jobs_mediation: Literal["direct", "http"] = Field(
        "direct",
        description="direct: the router's own process sends the webhooks; http: it calls that URL.",
    )
    jobs_backoff_base_seconds: float = Field(
        30.0, gt=0, le=86400, description="The first wait of a job's retry; retryStrategy says how it grows."
    )
    jobs_backoff_max_seconds: float = Field(
        3600.0, gt=0, le=2592000, description="The longest wait of the strategy exponential, before jitter."
    )
    jobs_timeout_seconds: float = Field(
        30.0,
        ge=0.1,
        le=300.0,
        description="Seconds for one webhook, from name lookup to the last byte; a job may say otherwise.",
    )
    jobs_lease_seconds: float = Field(
        60.0, ge=1.0, le=3600.0, description="A job whose worker died is due again after this time."
    )
    jobs_batch: int = Field(2000, ge=2, le=10000, description="Jobs that one process holds claimed at once.")
    jobs_connections_per_target: int = Field(
        100, ge=1, le=10000, description="Webhooks that one process sends to one target at once."
    )
    jobs_breaker_failures: int = Field(
        10, ge=1, le=100000, description="Failures in a row after which a target is left alone for a while."
    )
    jobs_breaker_seconds: float = Field(
        5.0, gt=0, le=86400, description="For how long at first; it doubles with each failed probe."
    )
    jobs_breaker_max_seconds: float = Field(300.0, gt=0, le=86400, description="For how long at most.")
    jobs_header_prefix: str = Field(
        "X-FLOWCATALYST",
        pattern=r"^[A-Za-z0-9-]{1,50}$",
        description="How the specification's signature headers begin.",
    )
    jobs_dead_letter_url: Url | None = Field(
        None,
        description="Is told of each job that ends in ERROR: a webhook, or queue:NAME of the jobs' broker.",
        json_schema_extra={"secret": True},
    )
    jobs_dead_letter_credentials_id: str | None = Field(
        None, description="The credentials that those webhooks are signed with."
    )
    reject_4xx: bool = Field(
        False, description="Whether a 4xx ends a job at once (408, 425 and 429 never do)."
    )

    host: str = Field("127.0.0.1", description="The address that the API listens on.")
    port: int = Field(8080, ge=0, le=65535, description="Its port; 0 takes a free one.")
    api_rate_per_second: float = Field(
        1000.0,
        ge=0.0,
        le=1_000_000.0,
        description="Requests a second that each process takes from one API key; 0: no limit. A key may have "
        "a rate of its own.",
    )
    api_header_seconds: float = Field(
        10.0,
        ge=1.0,
        le=600.0,
        description="Seconds that a client has for the head of a request, and for its body and the answer "
        "beyond 8 KiB a second.",
    )
    api_idle_seconds: int = Field(
        5, ge=1, le=3600, description="How long a connection is kept open between two requests."
    )
    api_connections_per_address: int = Field(
        500,
        ge=8,
        le=2048,
        description="Connections that one address, or /64 of IPv6, may have open; a proxy needs those of all "
        "clients.",
    )
    api_intake_mib: int = Field(
        64,
        ge=16,
        le=65536,
        description="MiB of bodies over 64 KiB that the API takes in at once; then 503 with Retry-After. As "
        "much of its answers may be unread; then the slowest reader's connection ends.",
    )
    session_idle_minutes: float = Field(
        60.0, ge=5.0, le=10080.0, description="Whoever does nothing for so long has to log in again."
    )
    session_hours: float = Field(
        12.0, ge=0.1, le=720.0, description="After so long everybody has to log in again."
    )
    base_url: str | None = Field(
        None,
        description="How this API is reached through a proxy: its host is served too.",
    )
    trusted_proxies: Annotated[str, AfterValidator(_networks)] = Field(
        "",
        description="Proxies (addresses and CIDRs, by commas) that X-Forwarded-For and X-Forwarded-Proto are "
        "believed from; each has to add the address that it was called from. Empty: nobody.",
    )
    metrics_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Workers without an API serve /metrics here, each process one port higher; 0: off.",
    )
    encryption_key: str | None = Field(
        None,
        description="Seals credentials: base64 of 32 bytes (openssl rand -base64 32); several, newest first, "
        "by commas. Without one, on loopback, homing.key beside the database is made and used.",
        json_schema_extra={"secret": True},
    )
    egress_allow: str = Field("", description="Private networks (CIDRs, by commas) that webhooks may reach.")
    allow_http: bool | None = Field(
        None,
        description="Whether webhooks may go to plain http. Left out: only while HOMING_HOST is loopback, "
        "and then to loopback targets too; false forbids both.",
    )

    alert_mail_to: Annotated[str, AfterValidator(_comma_list)] = Field(
        "",
        description="Who is told by mail when something is wrong: addresses, by commas.",
        json_schema_extra={"secret": True},
    )
    alert_webhook_url: str | None = Field(
        None,
        description="Is told by webhook when something is wrong; besides the mail, where there is one.",
        json_schema_extra={"secret": True},
    )
    alert_webhook_credentials_id: str | None = Field(
        None, description="The credentials that those webhooks are signed with."
    )
    alert_cooldown_seconds: float = Field(
        1800.0, ge=1.0, le=604800.0, description="Of the same cause people are told once in this time."
    )
    alert_backlog_age_seconds: float = Field(
        900.0,
        ge=1.0,
        le=604800.0,
        description="People are told when the oldest due message of a lane has waited for so long.",
    )
    alert_target_failures: int = Field(
        20,
        ge=1,
        le=100000,
        description="Failures in a row that are too many of a target: people are told at 50, 70, 90 and 100 "
        "% of it.",
    )
    alert_most_per_hour: int = Field(
        30,
        ge=1,
        le=10000,
        description="Alerts of all causes together; what is more waits, or is on the page.",
    )
    alert_interval_seconds: float = Field(
        10.0,
        ge=0.1,
        le=3600.0,
        description="How often one of all processes looks whether something is wrong.",
    )

    retention: Annotated[str, AfterValidator(_retention)] = Field(
        "",
        description="What is deleted how long after its end, by lane and state or by lane: "
        "mail_outbox.sent=30d,mail_outbox.failed=90d,dispatch_jobs=90d (h, d or w; at least 24h, for so long "
        "idempotency keys are known). Empty: everything is kept.",
    )
    grace_seconds: float = Field(
        30.0, ge=0.0, le=3600.0, description="How long a stop waits for attempts that have begun."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="json, console, or auto: console on a terminal."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="What is logged.")
    tracing: Literal["off", "otlp"] = Field(
        "off",
        description="otlp: spans for OpenTelemetry, to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names "
        "(pip install 'homing[otel]'; docs/telemetry.md).",
    )
    trace_sample: float = Field(
        1.0, ge=0.0, le=1.0, description="The share of traces that begin here and are told of."
    )

    @property
    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(part) for part in self.trusted_proxies.split(",") if part)

    def coming_from(self, origins: Mapping[str, str]) -> Settings:
        self._origins = origins
        return self

    def origin(self, field: str) -> str:
        """Where its value comes from: flag, environment, file or default."""
        return self._origins.get(field, "default")

    @property
    def removed(self) -> list[str]:
        """Of the settings that are gone and still set, a sentence each."""
        return [
            f"{environment_name(field)} ({self.origin(field)}) has no effect any more: unset it, and see "
            f"{environment_name(successor)}"
            for field, successor in REMOVED.items()
            if field in self._origins
        ]


def environment_name(field: str) -> str:
    return field.upper() if field.startswith("dispatch_") else _OURS + field.upper()


FIELDS: Mapping[str, str] = {environment_name(field): field for field in Settings.model_fields}
#: Settings that there were, and what to look at instead. They have no effect, and keep nobody from starting.
REMOVED: Mapping[str, str] = {"email_sweep_seconds": "email_lost_after_seconds"}
_READ = {**FIELDS, **{environment_name(field): field for field in REMOVED}}


def load_settings(
    flags: Mapping[str, Any] | None = None, *, environ: Mapping[str, str], config: Path | None = None
) -> Settings:
    """The settings in force; raises `SettingsError` with a sentence per mistake."""
    named = config or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    layers = {
        "flag": {name: value for name, value in (flags or {}).items() if value is not None},
        "environment": _from_environment(environ),
        "file": _from_file(named),
    }
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers.items():
        for field, value in layer.items():
            values.setdefault(field, value)
            origins.setdefault(field, origin)
    for field in REMOVED:
        values.pop(field, None)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsError("\n".join(_complaint(e, origins) for e in error.errors())) from None
    _check_together(settings)
    if "database_url" not in origins:
        _require_own_database()
    return settings.coming_from(origins)


def is_secret(field: str) -> bool:
    """Whether the value may be shown to nobody."""
    extra = Settings.model_fields[field].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("secret"))


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    _refuse_unknown(environ)
    found: dict[str, Any] = {}
    for name, field in _READ.items():
        if environ.get(name):
            found[field] = environ[name]
        elif environ.get(name + "_FILE"):
            found[field] = _read_secret(name, Path(environ[name + "_FILE"]))
    return found


def _refuse_unknown(environ: Iterable[str]) -> None:
    known = {*FIELDS, *(name + "_FILE" for name in FIELDS), CONFIG_VARIABLE}
    for name in environ:
        if name.removesuffix("_FILE") in _READ:
            continue
        if name.startswith(_OURS) and not name.startswith(_NOT_OURS) and name not in known:
            raise SettingsError(f"there is no setting {name}{_nearest(name, known)}")
        # Names that begin so may be another program's, unless they are nearly one of ours.
        if name.startswith("DISPATCH_") and name not in known and _is_a_slip(name, known):
            raise SettingsError(f"there is no setting {name}{_nearest(name, known)}")


def _is_a_slip(name: str, known: Iterable[str]) -> bool:
    return bool(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.92))


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else "; config.default.toml lists them all"


def _read_secret(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"{name}_FILE names {path}, which cannot be read: {error.strerror}") from None


def _from_file(named: Path | None) -> dict[str, Any]:
    path = named or Path(CONFIG_FILE)
    if not path.is_file():
        if named is not None:
            raise SettingsError(f"there is no configuration file {named}")
        return {}
    try:
        with path.open("rb") as file:
            # Who names a file knows whose it is; this one lay in the folder that we were started in.
            if named is None:
                require_own(path, os.fstat(file.fileno()), secret=False)
            values = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    for key in values:
        if key not in Settings.model_fields and key not in REMOVED:
            near = _nearest(key.lower().removeprefix(_OURS.lower()), Settings.model_fields)
            raise SettingsError(f"{path}: there is no setting {key}{near}")
    return values


def _require_own_database() -> None:
    """Nobody named it: it lay in the folder that we were started in, and says who may do what."""
    path = Path(DATABASE_FILE)
    if path.exists():
        require_own(path, path.stat(), secret=False)


def _complaint(error: ErrorDetails, origins: Mapping[str, str]) -> str:
    field = str(error["loc"][0])
    value = "***" if is_secret(field) else repr(error["input"])
    return (
        f"{environment_name(field)}={value} ({origins.get(field, 'default')}): {error['msg']}{_range(field)}"
    )


def _range(field: str) -> str:
    bounds = {type(m).__name__: m for m in Settings.model_fields[field].metadata}
    low = getattr(bounds.get("Ge"), "ge", getattr(bounds.get("Gt"), "gt", None))
    high = getattr(bounds.get("Le"), "le", None)
    return f"; allowed is {low} to {high}" if low is not None else ""


def _check_together(settings: Settings) -> None:
    if settings.jobs_header_prefix.lower() == "webhook":
        raise SettingsError(
            "HOMING_JOBS_HEADER_PREFIX=webhook clashes with Standard Webhooks; choose another"
        )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def require_private_key(settings: Settings) -> None:
    """Whoever serves others keeps the key that seals secrets away from them."""
    if not is_loopback(settings.host) and settings.encryption_key is None:
        raise SettingsError(
            f"HOMING_HOST={settings.host} is not a loopback address, and HOMING_ENCRYPTION_KEY is not set: "
            "secrets would be sealed with a key that lies beside them; make one: `openssl rand -base64 32`"
        )


def require_loopback(settings: Settings) -> None:
    """For what has no keys, so that whoever reaches the port may do everything: the demo."""
    if not is_loopback(settings.host):
        raise SettingsError(
            f"HOMING_HOST={settings.host} is not a loopback address: a demo has no access keys, so it serves "
            "only 127.0.0.1, ::1 or localhost"
        )


def default_config() -> str:
    """The text of `config.default.toml`."""
    lines = ["# Every setting of Homing, with its default. Copy what you change into homing.toml.", ""]
    for name, field in FIELDS.items():
        info = Settings.model_fields[field]
        lines += [f"# {_comment(field)}", f"# {name}", _toml_line(field, info.default), ""]
    return "\n".join(lines)


def _comment(field: str) -> str:
    description = (Settings.model_fields[field].description or "").rstrip(".")
    return description + _range(field) + "."


def _toml_line(field: str, default: Any) -> str:
    if default is None:
        return f'# {field} = ""'
    if isinstance(default, bool):
        return f"{field} = {str(default).lower()}"
    return f'{field} = "{default}"' if isinstance(default, str) else f"{field} = {default}"
