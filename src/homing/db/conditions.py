"""Conditions of a search, put together from what is asked for: texts of SQL and the values they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from homing.db.database import instant, iso
from homing.db.queries import Dialect

#: The error of those that have none, though they failed.
UNCLASSIFIED: Final = "unclassified"

#: Of a class or code that another program wrote, so much is told apart: longer ones are texts.
LONGEST_CODE: Final = 80

_NEVER = datetime.fromtimestamp(0, UTC)


class Conditions(Struct, frozen=True):
    """All of them have to hold."""

    texts: tuple[str, ...] = ()
    values: Mapping[str, Any] = {}

    def __add__(self, other: Conditions) -> Conditions:
        return Conditions((*self.texts, *other.texts), {**self.values, **other.values})


def select(
    columns: str, sources: str, conditions: Sequence[str] = (), order: str = "", limit: int | None = None
) -> str:
    where = ["WHERE", " AND ".join(conditions)] if conditions else []
    ordered = ["ORDER BY", order] if order else []
    limited = ["LIMIT", str(limit)] if limit is not None else []
    return " ".join(["SELECT", columns, "FROM", sources, *where, *ordered, *limited])


def is_pattern(value: str) -> bool:
    return "*" in value


def like(value: str) -> str:
    """A pattern of `*` as LIKE has it, with a backslash as its escape."""
    escaped = value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


def matches(dialect: Dialect, column: str, name: str, value: str, *, fold: bool = False) -> Conditions:
    """The column is this value, or like it where it is a pattern. Patterns do not tell capitals."""
    if is_pattern(value):
        return is_like(dialect, column, name, like(value))
    if fold:
        return Conditions((f"lower({column}) = :{name}",), {name: value.lower()})
    return Conditions((f"{column} = :{name}",), {name: value})


def is_like(dialect: Dialect, column: str, name: str, pattern: str) -> Conditions:
    word = "ILIKE" if dialect == "postgres" else "LIKE"
    return Conditions((f"{column} {word} :{name} ESCAPE '\\'",), {name: pattern})


def either(*some: Conditions) -> Conditions:
    """One of them has to hold."""
    texts = [" AND ".join(one.texts) for one in some]
    values = {name: value for one in some for name, value in one.values.items()}
    return Conditions((f"({' OR '.join(f'({text})' for text in texts)})",), values)


def has_code(code: str, codes: Sequence[str]) -> Conditions:
    """The code, an expression, is one of these, to the letter; cut to what is told apart."""
    if not codes:
        return Conditions()
    values = {f"code{number}": one for number, one in enumerate(codes)}
    listed = ", ".join(f":{name}" for name in values)
    return Conditions((f"substr({code}, 1, {LONGEST_CODE}) IN ({listed})",), values)


def has_no_code(code: str) -> Conditions:
    """Cut in the same way: SQLite takes a text for empty that begins with a zero byte, and only then."""
    return Conditions((f"coalesce(substr({code}, 1, {LONGEST_CODE}), '') = ''",))


def every_word(dialect: Dialect, columns: Sequence[str], words: Sequence[str]) -> Conditions:
    """Each word is in one of the columns."""
    found = Conditions()
    for number, word in enumerate(words):
        name = f"word{number}"
        pattern = f"%{like(word)}%"
        found += either(*(is_like(dialect, column, name, pattern) for column in columns))
    return found


def has_recipient(dialect: Dialect, columns: Sequence[str], to: str) -> Conditions:
    """The columns hold lists of addresses, some with names: each address stands between separators."""
    return either(*(is_like(dialect, _separated(column), "to", f"%,{like(to)},%") for column in columns))


def _separated(column: str) -> str:
    for letter in (" ", "<", ">"):
        column = f"replace({column}, '{letter}', ',')"
    return f"(',' || {column} || ',')"


def in_json(dialect: Dialect, column: str, meta: Mapping[str, str]) -> Conditions:
    """A JSON object has these keys with these values; what another program wrote may be any other JSON."""
    found = Conditions()
    for number, (key, value) in enumerate(meta.items()):
        found += Conditions((), {f"key{number}": key})
        if dialect == "postgres":
            found += matches(dialect, f"({column} ->> :key{number}::text)", f"value{number}", value)
            continue
        entry = matches(dialect, _JSON_TEXT, f"value{number}", value)
        # Where it is no JSON at all, SQLite would give up on all rows.
        readable = f"CASE WHEN json_valid({column}) THEN {column} END"
        inside = select("1", f"json_each({readable}) AS m", (f"m.key = :key{number}", *entry.texts))
        found += Conditions((f"EXISTS ({inside})",), entry.values)
    return found


#: As PostgreSQL writes it: SQLite has numbers for true and false.
_JSON_TEXT = "CASE m.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(m.value AS TEXT) END"


def is_one_of(column: str, choices: Sequence[str]) -> str:
    """For states, which are ours: as constants, because the small indexes ask for constants."""
    listed = ", ".join(f"'{choice}'" for choice in choices)
    return f"{column} = {listed}" if len(choices) == 1 else f"{column} IN ({listed})"


def created(dialect: Dialect, column: str, since: datetime | None, until: datetime | None) -> Conditions:
    """Within these times; both ends count. In SQLite another program may have written any form of a time."""
    found = Conditions()
    for name, sign, moment in (("since", ">=", since), ("until", "<=", until)):
        if moment is None:
            continue
        if dialect == "postgres":
            # Of another program's table the column may be without a zone.
            found += Conditions((f"{column} {sign} :{name}::timestamptz",), {name: moment})
        else:
            days = f"coalesce(julianday({column}), instant_julianday({column}))"
            found += Conditions((f"{days} {sign} julianday(:{name})",), {name: iso(moment)})
    return found


def written(value: object) -> str:
    """A text as the database gave it. SQLite gives bytes, or a number, where another program wrote them."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def readable(value: object) -> datetime | None:
    """A time as the database gave it; None where another program wrote something that is none."""
    if not isinstance(value, datetime | str):
        return None
    try:
        moment = instant(value)
        return None if moment is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def readable_or_never(value: object) -> datetime:
    """For where a time has to be shown; one that cannot be read is the beginning of 1970."""
    return readable(value) or _NEVER
