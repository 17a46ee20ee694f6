"""Databases, not tables."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from homing.db.database import Database, Row, instant, iso
from homing.db.postgres import PostgresDatabase, redact
from homing.db.queries import Dialect, Queries, Query, load_queries
from homing.db.sqlite import SqliteDatabase
from homing.errors import SettingsError

__all__ = [
    "Database",
    "Dialect",
    "Queries",
    "Query",
    "Row",
    "connect",
    "instant",
    "iso",
    "load_queries",
    "redact",
]

_HOW = (
    "use sqlite:///path/to/file.db or postgresql://user:password@host:5432/name; "
    "for dispatch jobs also mongodb://user:password@host:27017/name"
)
_MONGODB = frozenset({"mongodb", "mongodb+srv"})


def connect(url: str, *, pool_size: int = 4, makes_file: bool = True) -> Database:
    """The database that a URL names. Nothing is opened before the first statement."""
    parts = urlsplit(url)
    # Drivers know schemes in small letters only.
    url = url.replace(url.partition(":")[0], parts.scheme, 1) if parts.scheme else url
    if parts.scheme in _MONGODB:
        return _mongodb(url, pool_size)
    if parts.scheme in {"postgresql", "postgres"}:
        return PostgresDatabase(url, pool_size=pool_size)
    if parts.scheme == "sqlite":
        return _sqlite(url, makes_file=makes_file)
    raise SettingsError(f"{redact(url)!r} is no database URL that Homing knows; {_HOW}")


def _mongodb(url: str, pool_size: int) -> Database:
    try:
        from homing.db.mongo import MongoDatabase  # noqa: PLC0415 - its driver is an extra
    except ImportError:
        raise SettingsError("MongoDB needs its driver: install homing[mongodb]") from None
    return MongoDatabase(url, pool_size=pool_size)


def _sqlite(url: str, *, makes_file: bool) -> SqliteDatabase:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    # sqlite:///homing.db is relative, sqlite:////var/lib/homing.db absolute, as SQLAlchemy reads them.
    path = unquote(parts.path[1:])
    if parts.netloc or not path:
        raise SettingsError(f"{url!r} names no file; {_HOW}")
    try:
        wait = float(options.pop("busy_timeout", "10"))
    except ValueError:
        raise SettingsError(f"busy_timeout in {url!r} is no number of seconds") from None
    if options:
        raise SettingsError(
            f"{url!r} has an unknown option {next(iter(options))!r}; only busy_timeout is known"
        )
    return SqliteDatabase(path, busy_timeout=wait, makes_file=makes_file)
