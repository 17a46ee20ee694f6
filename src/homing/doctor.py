"""The checks behind `homing doctor`. Each says what it looked at and, when it is not well, how to mend it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from stat import S_IMODE

from homing.app import Homing, opened, unusable_links, warnings_for
from homing.brokers.findings import broker_findings
from homing.brokers.router import queue_of
from homing.db import Database, Query, redact
from homing.desk.checkup import Finding
from homing.errors import DatabaseError, HomingError, SettingsError
from homing.lanes.dispatch_jobs.credentials import Credentials, Secrets, UnreadableSecrets
from homing.lanes.dispatch_jobs.credentials.signing import is_unlimited
from homing.messages.model import LANES, LaneName
from homing.own_files import exposed
from homing.senders.egress import parse_networks
from homing.senders.providers import PROVIDERS, check_provider
from homing.senders.smtp_protocol import Limits
from homing.senders.smtp_relay import Closed, Relay, enter, tls_context
from homing.settings import Settings, is_loopback
from homing.vault import Vault, file_of, key_file_of, load_or_make_key
from homing.workers.model import Pause

_MOST_SKEW = 2.0
#: Credentials that are looked at together.
_AT_ONCE = 500
_MOST_COUNTED = 10_000
_WEEKS_AHEAD = 4
_MOST_NAMED = 5
#: Seconds: what is due may be looked after by a command that is run every minute.
_UNCLAIMED = 60.0


__all__ = ["Finding", "examine", "findings"]


async def examine(settings: Settings) -> list[Finding]:
    return [finding async for finding in findings(settings)]


async def findings(settings: Settings) -> AsyncIterator[Finding]:
    """By connections of its own, also where a process is at work: some looks take seconds."""
    async with opened(settings) as homing:
        async for finding in _findings(homing):
            yield finding


async def _findings(homing: Homing) -> AsyncIterator[Finding]:
    try:
        await homing.database.fetch(Query("ping", "SELECT 1 AS one", (), writes=False), {})
    except DatabaseError as error:
        yield Finding("database", False, f"{error}; check HOMING_DATABASE_URL")
    else:
        yield Finding("database", True, redact(homing.settings.database_url))
        async for finding in _database_findings(homing):
            yield finding
    for finding in _files(homing.settings):
        yield finding
    async for finding in _other_databases(homing):
        yield finding
    # They are all compiled, and nobody else is to wait for that.
    yield await asyncio.to_thread(_notification_templates, homing)
    yield await _subscriber_links(homing)
    async for finding in _mail_findings(homing):
        yield finding
    async for finding in _brokers(homing):
        yield finding
    for told in homing.settings.removed:
        yield Finding("settings", False, told)
    yield _key(homing.settings)
    for finding in _egress(homing.settings):
        yield finding
    yield _proxy(homing.settings)
    yield _lease_finding(homing.settings)


async def _database_findings(homing: Homing) -> AsyncIterator[Finding]:
    for name, well, detail in await homing.database.findings():
        yield Finding(name, well, detail)
    migrated = await _migrations(homing)
    yield migrated
    yield await _clock(homing)
    if migrated.well:
        for told in await homing.unfilled():
            yield Finding("mail_outbox", False, told)
        yield await _credentials(homing)
        yield await _keys(homing)
        yield await _workers(homing)
        async for finding in _emails(homing):
            yield finding
        if homing.database.dialect == "postgres":
            yield await _attempt_weeks(homing)


async def _workers(homing: Homing) -> Finding:
    """A pause that somebody forgot looks like an outage."""
    pauses = await homing.fleet.pauses()
    if pauses:
        return Finding("workers", False, "; ".join(map(_paused, pauses)))
    if idle := await _left_alone(homing):
        return Finding("workers", False, f"{'; '.join(idle)}; start `homing work`, or `homing up`")
    workers = [one for one in await homing.fleet.workers() if one.state != "stopped"]
    kinds = Counter(one.state if one.lanes else "serving only" for one in workers if one.state != "lost")
    found = [f"{count} {kind}" for kind, count in kinds.items()] or ["none is up"]
    if lost := sum(one.state == "lost" for one in workers):
        found.append(f"{lost} lost (whose work others do)")
    return Finding("workers", True, ", ".join(found))


async def _emails(homing: Homing) -> AsyncIterator[Finding]:
    """What is lost between two programs, or two processes, that each leave it to the other."""
    found: dict[str, list[str]] = {}
    for worker in await homing.fleet.workers():
        if not worker.is_gone and (place := worker.report.brokers.get("email_log")) is not None:
            found.setdefault(place, []).append(worker.name)
    if len(found) > 1:
        told = "; ".join(f"{place} by {', '.join(names)}" for place, names in sorted(found.items()))
        mend = "give all of them the same HOMING_EMAIL_BROKER_URL and HOMING_EMAIL_QUEUE_PREFIX"
        yield Finding("email brokers", False, f"processes use different queues: {told}; {mend}")
    if count := await homing.emails_part.due.unpublished(_MOST_COUNTED):
        many = f"{_MOST_COUNTED:,} or more" if count == _MOST_COUNTED else f"{count:,}"
        mend = (
            "start `homing work email_log:schedule`"
            if homing.settings.email_publish_new
            else "their producer is to publish them, or Homing with HOMING_EMAIL_PUBLISH_NEW=true"
        )
        yield Finding("unpublished emails", False, f"{many} Pending for over an hour, never queued; {mend}")


def _paused(one: Pause) -> str:
    why = f" ({one.reason})" if one.reason else ""
    mend = f"homing workers resume {'--lane ' if one.scope == 'lane' else ''}{one.name}"
    return f"{one.name} is paused by {one.asked_by}{why}; `{mend}` ends it"


async def _left_alone(homing: Homing) -> list[str]:
    """Lanes that nobody works on though somebody did, or though something waits for more than a moment."""
    found = []
    crews = await homing.fleet.crews(LANES)
    for lane in LANES:
        crew = crews[lane]
        if crew.why is None:
            continue
        oldest = await _oldest_due(homing, lane)
        if crew.lost or oldest > _UNCLAIMED:
            due = f", and messages are due for {oldest:.0f} s" if oldest else ""
            found.append(f"{crew.why}{due}")
    return found


async def _oldest_due(homing: Homing, lane: LaneName) -> float:
    # A database that is away has a finding of its own.
    with suppress(DatabaseError):
        return await homing.desk.lanes[lane].oldest_due()
    return 0.0


async def _other_databases(homing: Homing) -> AsyncIterator[Finding]:
    """Where dispatch jobs have a database of their own, and where another program keeps its subscriptions."""
    settings = homing.settings
    for name, database, url in (
        ("jobs", homing.jobs_database, settings.jobs_database_url),
        ("notify", homing.notify_database, settings.notify_database_url),
    ):
        if url is not None:
            async for finding in _other_database(name, database, url):
                yield finding


async def _other_database(name: str, database: Database, url: str) -> AsyncIterator[Finding]:
    try:
        findings = await database.findings()
    except DatabaseError as error:
        yield Finding(f"{name} database", False, f"{error}; check HOMING_{name.upper()}_DATABASE_URL")
        return
    yield Finding(f"{name} database", True, url.partition("://")[2].rpartition("@")[2].partition("?")[0])
    for check, well, detail in findings:
        yield Finding(check, well, detail)


def _files(settings: Settings) -> Iterator[Finding]:
    """What is in the tables may be read in the files. Those of open_events may be another program's."""
    for name, url in (("database", settings.database_url), ("jobs database", settings.jobs_database_url)):
        if url is None or not url.startswith("sqlite:"):
            continue
        file = file_of(url)
        seen = exposed([file, *(file.with_name(file.name + end) for end in ("-wal", "-shm"))])
        told = f"others may read mails and tokens in it; run `chmod 600 {' '.join(map(str, seen))}`"
        yield Finding(f"{name} file", not seen, told if seen else f"nobody else may read {file}")


def _notification_templates(homing: Homing) -> Finding:
    try:
        homing.notifications_part.check_templates()
    except SettingsError as error:
        return Finding("notification templates", False, str(error))
    return Finding("notification templates", True, ", ".join(homing.notifications_part.locales))


async def _subscriber_links(homing: Homing) -> Finding:
    """Links that nobody can open are no fault where nobody gets any."""
    wrong = unusable_links(homing.settings)
    if wrong is None:
        return Finding("subscriber links", True, homing.settings.base_url or "no mail leaves this machine")
    if not await _has_subscribers(homing):
        return Finding("subscriber links", True, f"nobody has subscribed to a seat; before that: {wrong}")
    return Finding("subscriber links", False, wrong)


async def _has_subscribers(homing: Homing) -> bool:
    query = Query("subscribed", "SELECT 1 AS one FROM subscriptions LIMIT 1", (), writes=False)
    # A database that is away, or has no such table, has a finding of its own.
    with suppress(DatabaseError):
        return bool(await homing.notify_database.fetch(query, {}))
    return False


async def _brokers(homing: Homing) -> AsyncIterator[Finding]:
    """Those that are named; what is in memory is always there."""
    settings, emails = homing.settings, homing.email_queues
    jobs = queue_of(settings.jobs_queue, settings.jobs_visibility_seconds)
    for broker, setting, queues in (
        (homing.email_broker, "HOMING_EMAIL_BROKER_URL", [emails.send, emails.dead_letters]),
        (homing.jobs_broker, "HOMING_JOBS_BROKER_URL", [jobs]),
    ):
        if broker is not None and broker.name != "memory":
            for found in await broker_findings(broker, f"{setting} or HOMING_BROKER_URL", queues):
                yield Finding(*found)


async def _migrations(homing: Homing) -> Finding:
    try:
        await homing.require_schema()
    except HomingError as error:
        return Finding("migrations", False, str(error))
    return Finding("migrations", True, "all applied")


async def _clock(homing: Homing) -> Finding:
    """The database's clock decides what is due; ours is in headers and logs."""
    epoch = {
        "postgres": "SELECT extract(epoch FROM clock_timestamp())::double precision AS now",
        "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0 AS now",
    }
    asked = time.time()
    rows = await homing.database.fetch(Query("now", epoch[homing.database.dialect], (), writes=False), {})
    skew = rows[0]["now"] - (asked + time.time()) / 2
    well = abs(skew) <= _MOST_SKEW
    mend = "" if well else "; set both machines' clocks by NTP"
    return Finding("clock skew", well, f"the database is {skew:+.3f} s against this machine{mend}")


async def _mail_findings(homing: Homing) -> AsyncIterator[Finding]:
    for warning in warnings_for(homing.settings):
        # What is said of keys has a finding of its own.
        if "HOMING_MAIL" in warning:
            yield Finding("mail", False, warning)
    for url in homing.settings.mail_url.split(","):
        if url.startswith("smtp"):
            yield await _relay(Relay.from_url(url))
        elif url.partition(":")[0] in PROVIDERS:
            yield Finding(*await check_provider(url))


async def _relay(relay: Relay) -> Finding:
    entrance = await enter(relay, tls_context(relay), connect_timeout=10, probe=True)
    place = f"relay {relay.host}:{relay.port}"
    if isinstance(entrance, Closed):
        return Finding(place, False, f"{entrance.error.message}; check HOMING_MAIL_URL and the relay's log")
    entrance.transport.close()
    offers = "with" if entrance.features.pipelining else "without"
    return Finding(place, True, f"answers, tls={relay.tls}, {offers} PIPELINING")


# ── webhooks ─────────────────────────────────────────────────────────────────────────────────────


def _key(settings: Settings) -> Finding:
    """What seals the secrets of webhooks. Looked at, never made: that is left to who needs it."""
    try:
        if settings.encryption_key:
            Vault.from_setting(settings.encryption_key)
            count = len([part for part in settings.encryption_key.split(",") if part.strip()])
            return Finding("encryption key", True, f"HOMING_ENCRYPTION_KEY holds {_number(count, 'key')}")
        return _key_file(settings)
    except SettingsError as error:
        return Finding("encryption key", False, str(error))


def _key_file(settings: Settings) -> Finding:
    path = key_file_of(settings.database_url)
    if not is_loopback(settings.host) or not settings.database_url.startswith("sqlite"):
        return Finding(
            "encryption key",
            False,
            f"HOMING_ENCRYPTION_KEY is not set, and {path} is for trying out: other machines and folders "
            "do not have it, and open neither credentials nor the links of subscribers; make one for all "
            "with `openssl rand -base64 32`",
        )
    if not path.exists():
        return Finding("encryption key", True, f"none yet; {path} is made with the first credentials")
    load_or_make_key(path)
    return Finding("encryption key", True, f"{path}, mode {S_IMODE(path.stat().st_mode):04o}; back it up")


async def _credentials(homing: Homing) -> Finding:
    """Whether all of them can be opened by the keys at hand."""
    try:
        credentials = Credentials(homing.jobs_database, _vault(homing.settings))
    except SettingsError:
        return Finding("credentials", False, "they cannot be opened without a key: see encryption key")
    total = unreadable = plain = unlimited = 0
    before: int | None = None
    while rows := await credentials.page(before=before, limit=_AT_ONCE):
        before = rows[-1]["id"]
        opened_ones = await asyncio.gather(*(credentials.get(row["id"]) for row in rows))
        total += len(rows)
        unreadable += sum(isinstance(one, UnreadableSecrets) for one in opened_ones)
        plain += sum(isinstance(one, Secrets) and one.is_plain for one in opened_ones)
        unlimited += sum(one is not None and is_unlimited(one.allowed) for one in opened_ones)
    if not unreadable:
        seal = f"; {plain:,} in plain text, which `homing credentials rewrap` seals" if plain else ""
        limit = f"; {unlimited:,} for any target, until `homing credentials allow ID URL --only`"
        limited = limit if unlimited else ""
        return Finding("credentials", True, f"{total:,}, and each can be opened{seal}{limited}")
    return Finding(
        "credentials",
        False,
        f"{unreadable:,} of {total:,} cannot be opened: add the key that sealed them to "
        "HOMING_ENCRYPTION_KEY or restore the key file, else give them new secrets by "
        "`homing credentials rotate ID --grace-seconds 0`",
    )


async def _keys(homing: Homing) -> Finding:
    """Those of callers. What is wrong with the encryption key is told elsewhere."""
    try:
        keys = await homing.access.keys.list()
    except SettingsError:
        return Finding("access keys", False, "they cannot be looked at: see encryption key")
    unsealed = [f"{row['id']} ({row['name']})" for row in keys if row["state"] == "unsealed"]
    if not unsealed:
        valid = sum(row["state"] == "valid" for row in keys)
        return Finding("access keys", True, f"{valid:,} that count")
    return Finding(
        "access keys",
        False,
        f"{_listed(unsealed)} made without HOMING_ENCRYPTION_KEY, so refused since it is set: "
        "`homing keys seal ID` lets one count that you know, `homing keys revoke ID` ends any other",
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    told = ", ".join(names[:_MOST_NAMED])
    return f"{told} and {more:,} more were" if more > 0 else f"{told} {'was' if len(names) == 1 else 'were'}"


def _vault(settings: Settings) -> Vault:
    """By the keys at hand; where there is none, one that opens nothing, so that no key file is made."""
    if settings.encryption_key:
        return Vault.from_setting(settings.encryption_key)
    path = key_file_of(settings.database_url)
    return Vault([load_or_make_key(path) if path.exists() else secrets.token_bytes(32)])


def _egress(settings: Settings) -> list[Finding]:
    """Where webhooks may go."""
    local = is_loopback(settings.host) and settings.allow_http is not False
    networks = parse_networks(settings.egress_allow)
    places = ["public addresses", *(["loopback"] if local else []), *map(str, networks)]
    found = [Finding("egress", True, f"webhooks may go to {', '.join(places)}")]
    if wide := [str(network) for network in networks if not network.prefixlen]:
        found = [
            Finding(
                "egress",
                False,
                f"HOMING_EGRESS_ALLOW={wide[0]} lets webhooks reach every machine of your network; "
                "name the networks that are meant",
            )
        ]
    return [*found, _plain_http(settings, local=local)]


def _proxy(settings: Settings) -> Finding:
    """Homing has no TLS of its own, so where people come by https, a proxy is in front."""
    named = settings.trusted_proxies
    if any(not network.prefixlen for network in settings.proxies):
        told = "believes everybody: whoever calls may choose an address; name the proxies that are meant"
        return Finding("proxies", False, f"HOMING_TRUSTED_PROXIES={named} {told}")
    if named:
        return Finding("proxies", True, f"{named} may say whom they ask for")
    if not (settings.base_url or "").lower().startswith("https://"):
        return Finding("proxies", True, "none is trusted: who asks is who connects")
    return Finding(
        "proxies",
        False,
        "HOMING_BASE_URL is https, so a proxy is in front, and HOMING_TRUSTED_PROXIES does not name it: all "
        "people have its address, in the audit log and where one of them guesses passwords; name the address "
        "that it calls from, and let it add to X-Forwarded-For whom it was called by",
    )


def _plain_http(settings: Settings, *, local: bool) -> Finding:
    if local:
        how = f"allowed, because HOMING_HOST={settings.host} is loopback; HOMING_ALLOW_HTTP=false forbids it"
        return Finding("plain http", True, how)
    if not settings.allow_http:
        return Finding("plain http", True, "webhooks go to https only")
    return Finding(
        "plain http",
        False,
        "HOMING_ALLOW_HTTP is true: payloads and bearer tokens may go over the network unencrypted; "
        "unset it, unless all such targets are in a network of your own",
    )


async def _attempt_weeks(homing: Homing) -> Finding:
    """Attempts are kept by weeks; what has no week of its own cannot be dropped with it."""
    rows = await homing.database.fetch(_MISSING_WEEKS, {"ahead": _WEEKS_AHEAD})
    missing = [row["week"] for row in rows]
    if not missing:
        return Finding("attempt weeks", True, f"made for this week and the next {_WEEKS_AHEAD}")
    return Finding(
        "attempt weeks",
        False,
        f"{', '.join(missing)} missing: a worker of dispatch_jobs makes them while it runs; "
        "start one, or `SELECT homing_make_attempt_weeks(8)`",
    )


_MISSING_WEEKS = Query(
    "missing_weeks",
    """SELECT week FROM (
           SELECT to_char(date_trunc('week', now(), 'UTC') AT TIME ZONE 'UTC' + n * interval '7 days',
                          '"dispatch_attempt_"IYYY"w"IW') AS week
           FROM generate_series(0, $1::integer) AS n) AS weeks
       WHERE to_regclass(week) IS NULL ORDER BY week""",
    ("ahead",),
    writes=False,
)


def _number(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _lease_finding(settings: Settings) -> Finding:
    lease = settings.dispatch_lease_seconds
    well = lease >= 15
    longest = Limits().deadline
    detail = (
        f"DISPATCH_LEASE_SECONDS={lease:g}, renewed every {lease / 3:g} s while an attempt lasts "
        f"(SMTP may take up to {longest:g} s)"
    )
    if not well:
        detail += ": a pause of the process or the database for that long makes doubles; 120 is the default"
    return Finding("lease", well, detail)
