"""What the stores need of a database, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from homing.db.instants import read_instant
from homing.db.queries import Dialect, Query


class Row(Protocol):
    """A row that is read by column name, or in the order of its columns."""

    def keys(self) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, key: Any, /) -> Any: ...


class Database(Protocol):
    """One statement at a time, committed when the call returns.

    No transaction outlives a call: there is no way to hold one open while the network is used.
    """

    @property
    def dialect(self) -> Dialect: ...

    async def fetch(self, query: Query, parameters: Mapping[str, Any]) -> Sequence[Row]:
        """Run a query; raises `errors.DatabaseError` and nothing else."""

    async def fetch_all(
        self, queries: Sequence[Query], parameters: Mapping[str, Any]
    ) -> Sequence[Sequence[Row]]:
        """Run several queries as one transaction, each seeing what was committed before it; their rows."""

    async def run_script(self, statements: str) -> None:
        """Run several statements as one transaction."""

    def listen(self, channel: str, wake: Callable[[], None]) -> None:
        """Call `wake` when someone announces the channel; hints only, some may be lost."""

    def announce(self, channel: str) -> None:
        """Tell listeners, here and in other processes, that something may be due."""

    async def findings(self) -> Sequence[tuple[str, bool, str]]:
        """For the doctor: (what was checked, whether it is well, what is so or how to mend it)."""

    async def close(self) -> None: ...


def instant(value: datetime | str | None) -> datetime | None:
    """A time as the database gave it: PostgreSQL a datetime, SQLite ISO text."""
    if value is None:
        return None
    moment = value if isinstance(value, datetime) else _read(value)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


#: Every zone has these.
_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


def _read(text: Any) -> datetime:
    """In SQLite another program may write anything: what is no time is the first, and stops no other row."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return read_instant(text) or _FIRST
    if 1 < moment.year < _LAST.year:
        return moment
    return min(max(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC), _FIRST), _LAST)


def iso(value: datetime | str | None) -> str | None:
    """UTC with milliseconds and `Z`, as our SQLite columns and all our JSON have it."""
    moment = instant(value)
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
