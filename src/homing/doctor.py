"""The checks behind `homing doctor`. Each says what it looked at and, when it is not well, how to mend it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from msgspec import Struct

from homing.app import Homing, opened, warnings_for
from homing.db import Query, redact
from homing.db.migrate import check
from homing.errors import DatabaseError, HomingError
from homing.senders.smtp_protocol import Limits
from homing.senders.smtp_relay import Closed, Relay, enter, tls_context
from homing.settings import Settings

_MOST_SKEW = 2.0


class Finding(Struct, frozen=True):
    check: str
    well: bool
    detail: str


async def examine(settings: Settings) -> list[Finding]:
    async with opened(settings) as homing:
        return [finding async for finding in _findings(homing)]


async def _findings(homing: Homing) -> AsyncIterator[Finding]:
    try:
        await homing.database.fetch(Query("ping", "SELECT 1 AS one", (), writes=False), {})
    except DatabaseError as error:
        yield Finding("database", False, f"{error}; check HOMING_DATABASE_URL")
    else:
        yield Finding("database", True, redact(homing.settings.database_url))
        async for finding in _database_findings(homing):
            yield finding
    async for finding in _mail_findings(homing):
        yield finding
    yield _lease_finding(homing.settings)


async def _database_findings(homing: Homing) -> AsyncIterator[Finding]:
    for name, well, detail in await homing.database.findings():
        yield Finding(name, well, detail)
    yield await _migrations(homing)
    yield await _clock(homing)


async def _migrations(homing: Homing) -> Finding:
    try:
        (await check(homing.database, homing.migrations)).require_none()
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
        yield Finding("mail", False, warning)
    for url in homing.settings.mail_url.split(","):
        if url.startswith("smtp"):
            yield await _relay(Relay.from_url(url))


async def _relay(relay: Relay) -> Finding:
    entrance = await enter(relay, tls_context(relay), connect_timeout=10, probe=True)
    place = f"relay {relay.host}:{relay.port}"
    if isinstance(entrance, Closed):
        return Finding(place, False, f"{entrance.error.message}; check HOMING_MAIL_URL and the relay's log")
    entrance.transport.close()
    offers = "with" if entrance.features.pipelining else "without"
    return Finding(place, True, f"answers, tls={relay.tls}, {offers} PIPELINING")


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
