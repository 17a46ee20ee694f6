"""The real servers that a benchmark runs against: a durable PostgreSQL, and Postfix's smtp-sink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from homing.errors import HomingError
from homing.testing.components.obtain import Missing
from homing.testing.components.postgres import Postgres, start_postgres
from homing.testing.components.smtp import SmtpSink, find_smtp_sink

#: A checkpoint in the middle of one contender's run would be charged to that one alone.
_QUIET = {"max_wal_size": "8GB", "checkpoint_timeout": "1h"}


@contextmanager
def postgres(url: str | None = None) -> Iterator[Postgres]:
    """The server that is named, or a private one with fsync on that ends with the benchmark."""
    if url is not None:
        yield Postgres(url)
        return
    server = start_postgres(settings=_QUIET)
    if isinstance(server, Missing):
        raise HomingError(f"{server}; name a server with --postgres-url")
    with server:
        yield server


@contextmanager
def fresh_database(server: Postgres) -> Iterator[str]:
    """An empty database, so that nobody inherits the table, the statistics or the dead rows of another."""
    url = server.create_database(f"homing_bench_{uuid4().hex}")
    try:
        yield url
    finally:
        server.drop_database(url)


@contextmanager
def smtp_sink() -> Iterator[SmtpSink]:
    """A peer in C, several times faster than anything that is measured."""
    program = find_smtp_sink()
    if isinstance(program, Missing):
        raise HomingError(str(program))
    with SmtpSink(program) as sink:
        yield sink
