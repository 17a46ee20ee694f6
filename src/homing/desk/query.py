"""The query line: `status:dead lane:dispatch_jobs type:order.* meta.tenantId:acme to:*@x.com since:2h`.

Terms stand beside each other, and all of them have to hold. A value may stand in quotes, and a key of
metadata, too: `meta."order id":"7 b"`. `read` makes what is wanted of a line, or says what is wrong with it,
where, and how to mend it; `write` makes the line of what is wanted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from homing.db.conditions import UNCLASSIFIED
from homing.messages.codes import escaped, unescaped
from homing.messages.model import LANES, PHASES, DeadGroup, LaneName, Phase, Wanted

#: Nobody types a longer one.
LONGEST_LINE: Final = 2000
_LONGEST_VALUE: Final = 500
_MOST_WORDS: Final = 20
_MOST_META: Final = 20
_MOST_CODES: Final = 200
#: A line with more mistakes is not worth guessing at.
_MOST_MENDS: Final = 5
#: Each is a link that repeats the rest of the line, so there must be an end to them.
_MOST_CHIPS: Final = 30

#: The states of each lane in its own words. A test compares them with the lanes.
STATES: Final[Mapping[LaneName, tuple[str, ...]]] = {
    "mail_outbox": ("queued", "dispatching", "sent", "failed", "cancelled", "expired"),
    "dispatch_jobs": ("PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "ERROR", "CANCELLED"),
    "email_log": ("Pending", "RetryQueued", "Sent", "Failed", "Dead", "Cancelled"),
    "open_events": ("pending", "sent", "skipped", "failed", "expired"),
}
#: What people call the lanes, on the pages and elsewhere.
_CALLED: Final[Mapping[str, LaneName]] = {
    "mail": "mail_outbox",
    "mails": "mail_outbox",
    "webhook": "dispatch_jobs",
    "webhooks": "dispatch_jobs",
    "job": "dispatch_jobs",
    "jobs": "dispatch_jobs",
    "email": "email_log",
    "emails": "email_log",
    "emails by queue": "email_log",
    "notification": "open_events",
    "notifications": "open_events",
    "open seats": "open_events",
}
_EVERY_STATE = tuple(dict.fromkeys(state for states in STATES.values() for state in states))


class Field(Struct, frozen=True):
    """A field of the query line, for people."""

    name: str
    means: str
    example: str


FIELDS: Final = (
    Field(
        "status",
        "a phase, or a state in a lane's own word; several by commas",
        "status:dead",
    ),
    Field("lane", "one of the four lanes; several by commas", "lane:dispatch_jobs"),
    Field("type", "the type of a job, the template of a mail", "type:order.*"),
    Field("source", "the source of a job", "source:shop"),
    Field("to", "the address of a mail, the host or URL of a job", "to:*@example.com"),
    Field("error", "the class or code of the last error", "error:http_500"),
    Field("code", "the same to the letter, without patterns; several times: any of them", "code:http_500"),
    Field("meta.KEY", "metadata of a job or a mail", "meta.tenantId:acme"),
    Field("id", "an id, a key or an external id", "id:outbox_12"),
    Field("since", "created since then: 2h, 3d, or a date or time", "since:2h"),
    Field("until", "created until then", "until:2026-11-16T12:00:00Z"),
)
_NAMES = tuple(field.name for field in FIELDS if field.name != "meta.KEY")
_META = "meta."
#: Fields that take one value, which is kept as it is.
_SINGLE = frozenset({"type", "source", "to", "error", "id"})
_TIMES = frozenset({"since", "until"})

_AGE = re.compile(r"(\d{1,6})(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
#: What people paste to find one message. A word of letters alone is no job, though it may look like one.
_ID = re.compile(r"(?:outbox|email|notification)_\d{1,18}|[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{12}")
_FIELD = re.compile(r"[A-Za-z][\w.-]*:")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
#: What other query lines have, and this one has not.
_ANDS: Final = frozenset({"AND", "&&", "&"})
_ORS: Final = frozenset({"OR", "||", "|"})
_CONNECTIVES: Final = _ANDS | _ORS | {"NOT"}
_LEAVES_OUT = re.compile(r"[-!][A-Za-z]")
#: A shorter part is in too many names.
_SHORTEST_PART: Final = 3
#: A value that can stand without quotes.
_PLAIN = re.compile(r'[^\s"\\]+')
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Mistake(Struct, frozen=True):
    """What is wrong with a line."""

    #: Which part of it: from one character up to another.
    start: int
    end: int
    message: str
    #: The whole line as it was probably meant.
    mended: str | None = None


class Chip(Struct, frozen=True):
    """A term of a line, to be shown on its own."""

    text: str
    #: Empty for a word.
    field: str
    value: str
    #: The line without it.
    without: str


class Term(Struct, frozen=True):
    start: int
    end: int
    #: Empty for a word.
    field: str
    value: str
    quoted: bool = False
    #: A quote that begins in it has no end.
    is_open: bool = False


class _WrongError(Exception):
    """Leaves the reading of a line early; never this module."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(mistake.message)
        self.mistake = mistake


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def read(line: str, now: datetime) -> Wanted | Mistake:
    """What a line asks for; ages such as `2h` are counted back from `now`."""
    try:
        return _Reading(line, now).wanted()
    except _WrongError as wrong:
        return msgspec.structs.replace(wrong.mistake, mended=_mended(wrong.mistake.mended, now))


def _mended(line: str | None, now: datetime) -> str | None:
    """What is offered has to be understood: of several mistakes all are mended, or there is no such line."""
    for _ in range(_MOST_MENDS):
        if line is None:
            return None
        try:
            _Reading(line, now).wanted()
        except _WrongError as wrong:
            line = wrong.mistake.mended
        else:
            return line
    return None


def terms(line: str) -> tuple[Term, ...]:
    """The terms of a line as they stand there, whether they mean something or not. Raises nothing."""
    found, place = [], 0
    while (place := _next_start(line, place)) < len(line):
        term = _term_at(line, place)
        found.append(term)
        place = term.end
    return tuple(found)


def _next_start(line: str, place: int) -> int:
    while place < len(line) and line[place].isspace():
        place += 1
    return place


def _term_at(line: str, start: int) -> Term:
    field, value_start = _field_at(line, start)
    value, end, quoted, is_open = _value_at(line, value_start)
    return Term(start, end, field, value, quoted, is_open)


def _field_at(line: str, start: int) -> tuple[str, int]:
    """A field's name, and where its value begins."""
    if line.startswith(_META, start) and (key := quoted_key(line, start + len(_META), ":")):
        return f"{_META}{key[0]}", key[1]
    named = _FIELD.match(line, start)
    return (named[0][:-1], named.end()) if named else ("", start)


def quoted_key(line: str, start: int, sign: str) -> tuple[str, int] | None:
    """What stands here in quotes, and where what follows the sign behind it begins."""
    found = _QUOTED.match(line, start)
    if found is None or not line.startswith(sign, found.end()):
        return None
    return re.sub(r"\\(.)", r"\1", found[1]), found.end() + len(sign)


def _value_at(line: str, start: int) -> tuple[str, int, bool, bool]:
    """Up to the next space that is not within quotes. An open quote ends with the line."""
    value, place, inside, quoted = [], start, False, False
    while place < len(line) and (inside or not line[place].isspace()):
        letter = line[place]
        if letter == "\\" and inside and place + 1 < len(line):
            place += 1
            value.append(line[place])
        elif letter == '"':
            inside, quoted = not inside, True
        else:
            value.append(letter)
        place += 1
    return "".join(value), place, quoted, inside


class _Reading:
    """A line while it is read, term by term."""

    def __init__(self, line: str, now: datetime) -> None:
        self._line, self._now = line, now
        self._terms: tuple[Term, ...] = ()
        self._given: dict[str, Any] = {}
        self._meta: dict[str, str] = {}
        self._lists: dict[str, list[str]] = {
            "lanes": [],
            "phases": [],
            "states": [],
            "words": [],
            "codes": [],
        }

    def wanted(self) -> Wanted:
        if len(self._line) > LONGEST_LINE:
            raise _WrongError(
                Mistake(LONGEST_LINE, len(self._line), f"longer than {LONGEST_LINE:,} characters")
            )
        self._terms = terms(self._line)
        for term in self._terms:
            self._take(term)
        self._check_times()
        lanes = tuple(lane for lane in LANES if lane in self._lists["lanes"]) or LANES
        return Wanted(
            lanes=lanes,
            phases=tuple(phase for phase in PHASES if phase in self._lists["phases"]),
            states=tuple(state for state in _EVERY_STATE if state in self._lists["states"]),
            meta=dict(sorted(self._meta.items())),
            words=tuple(self._lists["words"]),
            codes=tuple(self._lists["codes"]),
            **self._given,
        )

    def _take(self, term: Term) -> None:
        self._check(term)
        if not term.field:
            self._take_word(term)
        elif term.field.startswith(_META):
            self._take_meta(term)
        elif term.field in _SINGLE:
            self._keep(term, term.value)
        elif term.field in _TIMES:
            self._keep(term, self._time(term))
        elif term.field == "code":
            self._take_code(term)
        else:
            self._take_list(term)

    def _check(self, term: Term) -> None:
        known = term.field in _NAMES or term.field.startswith(_META) or not term.field
        if not known:
            raise _unknown_field(self._line, term)
        if term.is_open:
            closed = None if self._line.endswith("\\") else f'{self._line}"'
            raise _wrong(term, "a quote begins here and does not end", closed)
        if not term.value:
            raise _no_value(term) if term.field else _wrong(term, "an empty pair of quotes")
        if len(term.value) > _LONGEST_VALUE:
            raise _wrong(term, f"longer than {_LONGEST_VALUE} characters")
        if _CONTROL.search(term.value + term.field):
            raise _wrong(term, "there is a character in it that cannot be looked for")

    def _take_word(self, term: Term) -> None:
        if not term.quoted and _LEAVES_OUT.match(term.value):
            raise _left_out(self._line, term)
        if not term.quoted and self._is_connective(term.value):
            raise _connective(self._line, term)
        if not term.quoted and _ID.fullmatch(term.value) and "id" not in self._given:
            self._given["id"] = term.value
            return
        if len(self._lists["words"]) >= _MOST_WORDS:
            raise _wrong(term, f"more than {_MOST_WORDS} words; to find a phrase, quote it")
        if term.value not in self._lists["words"]:
            self._lists["words"].append(term.value)

    def _is_connective(self, word: str) -> bool:
        """In small letters it may be a word that is looked for, where there are no fields beside it."""
        if word.upper() not in _CONNECTIVES:
            return False
        return word in _CONNECTIVES or any(term.field for term in self._terms)

    def _take_meta(self, term: Term) -> None:
        key = term.field.removeprefix(_META)
        if not key:
            raise _wrong(term, "metadata needs a key: `meta.tenantId:acme`")
        if self._meta.get(key, term.value) != term.value:
            raise _wrong(term, f"`{term.field}` is asked for twice, and has one value")
        if len(self._meta) >= _MOST_META and key not in self._meta:
            raise _wrong(term, f"at most {_MOST_META} keys of metadata")
        self._meta[key] = term.value

    def _take_code(self, term: Term) -> None:
        code = unescaped(term.value)
        if code is None:
            raise _wrong(term, "what stands behind a % is no text; a percent sign itself is %25")
        if len(self._lists["codes"]) >= _MOST_CODES:
            raise _wrong(term, f"at most {_MOST_CODES} codes")
        if code not in self._lists["codes"]:
            self._lists["codes"].append(code)

    def _keep(self, term: Term, value: Any) -> None:
        if self._given.get(term.field, value) != value:
            raise _wrong(term, f"`{term.field}:` is there twice; one value is looked for")
        self._given[term.field] = value

    def _take_list(self, term: Term) -> None:
        values = list(filter(None, term.value.split(",")))
        if not values:
            raise _no_value(term)
        for value in values:
            if term.field == "lane":
                self._lists["lanes"].append(self._known(term, lane_called(value), LANES, "lane"))
            elif value in PHASES:
                self._lists["phases"].append(value)
            else:
                self._lists["states"] += self._states(term, value)

    def _states(self, term: Term, value: str) -> list[str]:
        """In this spelling; or in any, when no lane has it in this one."""
        if value in _EVERY_STATE:
            return [value]
        alike = [state for state in _EVERY_STATE if state.lower() == value.lower()]
        return alike or [self._known(term, value, (*PHASES, *_EVERY_STATE), "status")]

    def _known(self, term: Term, value: str, choices: Iterable[str], what: str) -> str:
        names = list(choices)
        if value in names:
            return value
        raise _unknown(self._line, term, value, names, what)

    def _time(self, term: Term) -> datetime:
        moment = _moment(term.value, self._now)
        if moment is None:
            raise _wrong(
                term, f"`{term.value[:40]}` is no time; write 2h, 3d, 2026-11-16 or 2026-11-16T12:00:00Z"
            )
        return moment

    def _check_times(self) -> None:
        since, until = self._given.get("since"), self._given.get("until")
        if since is not None and until is not None and until < since:
            term = next(term for term in self._terms if term.field == "until")
            raise _wrong(term, "`until:` is before `since:`, so there can be nothing")


def lane_called(value: str) -> str:
    """By the name that it goes by among people, too."""
    return _CALLED.get(value.lower(), value)


def _moment(text: str, now: datetime) -> datetime | None:
    """A date without a time is its beginning, and a time without a zone is UTC."""
    try:
        if age := _AGE.fullmatch(text):
            return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────


def _wrong(term: Term, message: str, mended: str | None = None) -> _WrongError:
    return _WrongError(Mistake(term.start, term.end, message, mended))


def _no_value(term: Term) -> _WrongError:
    return _wrong(term, f"`{term.field}:` has no value; write a word behind it")


def _unknown_field(line: str, term: Term) -> _WrongError:
    near = _nearest(term.field.lower(), (*_NAMES, "meta"))
    known = ", ".join(field.name for field in FIELDS)
    if not near:
        return _wrong(
            term, f"no field `{term.field[:40]}`; there are {known}. To find it as a word, put it into quotes"
        )
    name = "meta.KEY" if near[0] == "meta" else near[0]
    text = f"{name}:{_written(term.value)}" if near[0] != "meta" else None
    mended = _replaced(line, term, text) if text else None
    return _wrong(term, f"no field `{term.field[:40]}`; did you mean {name}?", mended)


def _unknown(line: str, term: Term, value: str, names: list[str], what: str) -> _WrongError:
    lower = {name.lower(): name for name in reversed(names)}
    near = _nearest(value.lower(), [name.lower() for name in names])
    if not near:
        return _wrong(term, f"no {what} `{value[:40]}`; there are {', '.join(names)}")
    better = lower[near[0]]
    values = [better if given == value else given for given in term.value.split(",")]
    mended = _replaced(line, term, f"{term.field}:{','.join(values)}")
    return _wrong(term, f"no {what} `{value[:40]}`; did you mean {better}?", mended)


def _nearest(given: str, names: Sequence[str]) -> list[str]:
    """Of a name people write the beginning, or a part, sooner than something of the same length."""
    begun = [name for name in names if name.startswith(given)]
    within = [name for name in names if given in name and len(given) >= _SHORTEST_PART]
    return (begun or within or difflib.get_close_matches(given, names, n=1, cutoff=0.5))[:1]


def _left_out(line: str, term: Term) -> _WrongError:
    """`-status:dead` would be taken for a word, and find nothing."""
    meant = _term_at(term.value, 1)
    choices: Sequence[str] = {"status": PHASES, "lane": LANES}.get(meant.field, ())
    others = ",".join(choice for choice in choices if choice != meant.value)
    mended = _replaced(line, term, f"{meant.field}:{others}") if meant.value in choices else None
    return _wrong(
        term,
        f"nothing can be left out by `{term.value[0]}`; ask for what is wanted. As a word, quote it",
        mended,
    )


def _connective(line: str, term: Term) -> _WrongError:
    said = (
        "all terms have to hold; several values of a field stand by commas: status:dead,waiting. "
        "To find it as a word, put it into quotes"
    )
    return _wrong(term, f"`{term.value}` is not understood: {said}", _without_connective(line, term))


def _without_connective(line: str, term: Term) -> str | None:
    """What was probably meant, where that can be said in a line."""
    word = term.value.upper()
    if word in _ANDS:
        return _without(line, term)
    before = [one for one in terms(line) if one.end <= term.start][-1:]
    after = [one for one in terms(line) if one.start >= term.end][:1]
    fields = {one.field for one in (*before, *after)}
    if word in _ORS and before and after and fields in ({"status"}, {"lane"}):
        joined = f"{before[0].field}:{before[0].value},{after[0].value}"
        return f"{line[: before[0].start]}{joined}{line[after[0].end :]}"
    return None


def told(mistake: Mistake) -> str:
    """A mistake in one sentence, for where the place cannot be marked."""
    return f"the query line, at character {mistake.start + 1}: {mistake.message}"


def _replaced(line: str, term: Term, text: str) -> str:
    return " ".join(f"{line[: term.start]}{text}{line[term.end :]}".split(" ")).strip()


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def write(wanted: Wanted) -> str:
    """The line that asks for it. Times are absolute, so that it means the same at any time."""
    parts = [_listed("status", (*wanted.phases, *wanted.states))]
    parts.append("" if wanted.lanes == LANES else _listed("lane", wanted.lanes))
    parts += [_single(name, getattr(wanted, name)) for name in ("type", "source", "to", "error", "id")]
    parts += [_single("code", escaped(code)) for code in wanted.codes]
    parts += [_single(f"{_META}{key}", value) for key, value in wanted.meta.items()]
    parts += [_single(name, _stamp(getattr(wanted, name))) for name in ("since", "until")]
    parts += [_word(word) for word in wanted.words]
    return " ".join(part for part in parts if part)


def _listed(field: str, values: Iterable[str]) -> str:
    joined = ",".join(values)
    return f"{field}:{joined}" if joined else ""


def _single(field: str, value: str | None) -> str:
    return "" if value is None else f"{_named(field)}:{_written(value)}"


def _named(field: str) -> str:
    """Metadata may have any key."""
    if not field.startswith(_META) or _FIELD.fullmatch(f"{field}:"):
        return field
    return f"{_META}{_in_quotes(field.removeprefix(_META))}"


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _written(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else _in_quotes(value)


def _in_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _word(word: str) -> str:
    """Quoted where it would be taken for a field or for an id."""
    plain = _written(word)
    is_other = (
        _FIELD.match(word) or _ID.fullmatch(word) or _LEAVES_OUT.match(word) or word.upper() in _CONNECTIVES
    )
    return f'"{plain}"' if is_other and not plain.startswith('"') else plain


def of_group(group: DeadGroup) -> Wanted:
    """Just the messages of a group of dead letters, and no others."""
    dead = Wanted(lanes=(group.lane,), phases=("dead",))
    if not group.codes:
        return msgspec.structs.replace(dead, error=UNCLASSIFIED)
    return msgspec.structs.replace(dead, codes=group.codes)


# ── for the page ─────────────────────────────────────────────────────────────────────────────────


def chips(line: str) -> tuple[Chip, ...]:
    """The first terms of a line, each with the line without it. `since:2h` stays what it is."""
    return tuple(_chip(line, term) for term in terms(line)[:_MOST_CHIPS])


def _chip(line: str, term: Term) -> Chip:
    text = line[term.start : term.end]
    return Chip(text, term.field, term.value, _without(line, term))


def _without(line: str, term: Term) -> str:
    before, after = line[: term.start].rstrip(), line[term.end :].lstrip()
    return f"{before} {after}".strip()


def toggled(line: str, field: str, value: str) -> str:
    """The line with this value of a field, or without it where it was there."""
    for term in terms(line):
        if term.field != field:
            continue
        values = list(filter(None, term.value.split(","))) if field in {"status", "lane"} else [term.value]
        if field not in {"status", "lane"}:
            return _without(line, term) if value in values else _put(line, term, field, value)
        named = [lane_called(one) if field == "lane" else one for one in values]
        values = [one for one in named if one != value] if value in named else [*values, value]
        return _put(line, term, field, ",".join(values)) if values else _without(line, term)
    return f"{line.strip()} {_named(field)}:{_written(value)}".strip()


def _put(line: str, term: Term, field: str, value: str) -> str:
    return f"{line[: term.start]}{_named(field)}:{_written(value)}{line[term.end :]}".strip()


def suggestions() -> dict[str, Any]:
    """For completing a line: the fields with what they mean, and the values of those that have a few."""
    ages = ["15m", "1h", "24h", "7d"]
    return {
        "fields": [msgspec.to_builtins(field) for field in FIELDS],
        "values": {
            # A state that is called like a phase would stand below it a second time.
            "status": [*PHASES, *(state for state in _EVERY_STATE if state.lower() not in PHASES)],
            "lane": list(LANES),
            "since": ages,
            "until": ages,
        },
    }


#: Kept in step with the model: a lane or a phase that is new there is known here.
assert get_args(LaneName) == LANES, "the lanes of the model"
assert get_args(Phase) == PHASES, "the phases of the model"
