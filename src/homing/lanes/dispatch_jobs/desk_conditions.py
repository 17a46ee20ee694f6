"""What the desk asks for, as conditions on `dispatch_job`; the table's alias is `o`.

An exact question becomes a `Filter`, which the indexes of the search serve. What they do not serve (patterns,
words, targets) becomes conditions that are looked for among the rows of the filter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from homing.db import Dialect
from homing.db.conditions import (
    LONGEST_CODE,
    UNCLASSIFIED,
    Conditions,
    created,
    either,
    every_word,
    has_code,
    is_like,
    is_one_of,
    is_pattern,
    like,
    matches,
    select,
)
from homing.db.looking import Table
from homing.lanes.dispatch_jobs.filters import Filter
from homing.lanes.dispatch_jobs.job import OWN_SOURCE
from homing.lanes.dispatch_jobs.tsid import number_of
from homing.messages.asking import states_of as of_phases
from homing.messages.model import Phase, Wanted

PHASES: Final[Mapping[str, Phase]] = {
    "PENDING": "waiting",
    "IN_PROGRESS": "running",
    "COMPLETED": "delivered",
    "FAILED": "waiting",
    "ERROR": "dead",
    "CANCELLED": "stopped",
}
TABLE: Final = Table(
    "dispatch_job",
    "o.id",
    "o.created_at",
    "o.id, o.external_id, o.idempotency_key, o.status, o.source, o.type, o.group_id, o.target, o.target_url,"
    " o.error_class, o.created_at",
)


def states_of(wanted: Wanted) -> tuple[str, ...]:
    return of_phases(PHASES, wanted)


class Asked(Struct, frozen=True):
    """The jobs of one stream, as one index gives them."""

    wanted: Wanted
    #: None of all states.
    state: str | None
    lead: Filter


def asked_for(wanted: Wanted) -> list[Asked]:
    """The streams in which what is asked for lies, all of them in the same order.

    Only the dead have an index by their error class, and it is in the order of ids. So it serves where
    nothing but the dead is asked for: merged with streams in the order of time, it would lose jobs.
    """
    states = states_of(wanted)
    if len(states) == len(PHASES):
        return [Asked(wanted, None, lead_of(wanted, None))]
    if states == ("ERROR",):
        return [Asked(one, "ERROR", _class_of(one) or lead_of(one, "ERROR")) for one in _by_class(wanted)]
    return [Asked(wanted, state, lead_of(wanted, state)) for state in states]


def _by_class(wanted: Wanted) -> list[Wanted]:
    """One for each code, where the index serves every one of them."""
    if not wanted.codes or not all(map(is_indexed, wanted.codes)):
        return [wanted]
    return [replace(wanted, codes=(code,)) for code in wanted.codes]


def is_indexed(code: str) -> bool:
    """A filter by that word means those without a class, and a long code is cut."""
    return code != UNCLASSIFIED and len(code) < LONGEST_CODE


def _class_of(wanted: Wanted) -> Filter | None:
    if len(wanted.codes) == 1 and is_indexed(wanted.codes[0]):
        return Filter(error_class=wanted.codes[0])
    error = _exact(wanted.error)
    return Filter(error_class=error) if error is not None else None


def conditions(wanted: Wanted, dialect: Dialect) -> Conditions | None:
    """All that is asked for, for who reads the table itself; None when no job can be that."""
    states = states_of(wanted)
    if not states:
        return None
    state = () if len(states) == len(PHASES) else (is_one_of("o.status", states),)
    found = Conditions(state) + created(dialect, "o.created_at", wanted.since, wanted.until)
    if wanted.id is not None:
        found += by_id(wanted.id)
    for column, value in (("type", wanted.type), ("source", wanted.source)):
        if value is not None:
            found += matches(dialect, f"o.{column}", column, value)
    found += _errors(wanted, dialect)
    return found + _metadata(dialect, wanted.meta) + _target_and_words(wanted, dialect)


def lead_of(wanted: Wanted, state: str | None) -> Filter:
    """As much of it as one index serves: by it the jobs are read, and what is left over is asked of each.

    Two conditions at once may be rare together though each is frequent, and a table be read for them.
    """
    type, source = _exact(wanted.type), _exact(wanted.source)
    every = Filter(created_after=wanted.since, created_before=wanted.until)
    if pairs := sorted((key, value) for key, value in wanted.meta.items() if not is_pattern(value)):
        return Filter(metadata=(pairs[0],))
    if source is not None and state is not None:
        return replace(every, source=source, status=state)
    if state not in {None, "COMPLETED"}:
        return replace(every, status=state)
    if type is not None:
        return replace(every, type=type)
    return replace(every, source=source) if source is not None else replace(every, status=state)


def is_by_id(lead: Filter) -> bool:
    """Whether its index is in the order of ids, and knows no times."""
    return lead.error_class is not None or bool(lead.metadata)


def left_over(asked: Asked, dialect: Dialect) -> Conditions:
    """What the index of a stream leaves over."""
    wanted, state, lead = asked.wanted, asked.state, asked.lead
    rest = without_lead(wanted, lead)
    needs_state = state is not None and lead.status is None and lead.error_class is None
    found = Conditions((is_one_of("o.status", (state,)),) if needs_state and state else ())
    if is_by_id(lead):
        found += created(dialect, "o.created_at", wanted.since, wanted.until)
    for column, value in (("type", rest.type), ("source", rest.source)):
        if value is not None:
            found += matches(dialect, f"o.{column}", column, value)
    found += _errors(rest, dialect)
    return found + _metadata(dialect, rest.meta) + _target_and_words(rest, dialect)


def without_lead(wanted: Wanted, lead: Filter) -> Wanted:
    """What is asked for beside what the lead answers; states and times apart."""
    return replace(
        wanted,
        type=None if lead.type is not None else wanted.type,
        source=None if lead.source is not None else wanted.source,
        error=None if lead.error_class == wanted.error else wanted.error,
        codes=() if (lead.error_class,) == wanted.codes else wanted.codes,
        meta={key: value for key, value in wanted.meta.items() if (key, value) not in lead.metadata},
    )


def _exact(value: str | None) -> str | None:
    return None if value is None or is_pattern(value) else value


def by_id(id: str) -> Conditions:
    """A job's own id, or what its creator calls it."""
    if (number := number_of(id)) is not None:
        return Conditions(("o.id = :number",), {"number": number})
    return Conditions(("(o.external_id = :key OR o.idempotency_key = :key)",), {"key": id})


def _target_and_words(wanted: Wanted, dialect: Dialect) -> Conditions:
    found = every_word(dialect, ("o.type", "o.source", "o.group_id"), wanted.words)
    return found if wanted.to is None else found + _to(dialect, wanted.to)


def _to(dialect: Dialect, to: str) -> Conditions:
    """A URL is one; else it is a host, with its port or without. `target` is `scheme://host:port#credentials`."""
    if "/" in to:
        return _to_url(dialect, to)
    host = like(to.lower())
    return either(
        is_like(dialect, "o.target", "to", f"%://{host}:%"),
        is_like(dialect, "o.target", "to_port", f"%://{host}"),
        is_like(dialect, "o.target", "to_port_of", f"%://{host}#%"),
    )


def _to_url(dialect: Dialect, to: str) -> Conditions:
    """As it is shown, or whole. A pattern is compared with what is shown alone (`masking.shown_url`).

    Else it would spell out letter by letter what is hidden: a query, a password, where our own jobs go.
    """
    shown = _SHOWN_URL[dialect]
    if not is_pattern(to):
        seen = matches(dialect, shown, "shown", to.removesuffix(HIDDEN_QUERY))
        return either(matches(dialect, "o.target_url", "to", to), seen)
    hidden = Conditions((f"o.source <> '{OWN_SOURCE}'", f"{shown} NOT LIKE '%@%'"))
    return hidden + is_like(dialect, shown, "to", like(to))


#: What `look.without_query` shows in place of a query.
HIDDEN_QUERY: Final = "?…"
_SHOWN_URL: Final[Mapping[Dialect, str]] = {
    "postgres": "split_part(replace(o.target_url, '#', '?'), '?', 1)",
    "sqlite": "substr(o.target_url, 1, instr(replace(o.target_url, '#', '?') || '?', '?') - 1)",
}


def _errors(wanted: Wanted, dialect: Dialect) -> Conditions:
    found = Conditions()
    if wanted.error == UNCLASSIFIED:
        found += Conditions(("o.error_class IS NULL",))
    elif wanted.error is not None:
        found += matches(dialect, "o.error_class", "error", wanted.error)
    return found + has_code("o.error_class", wanted.codes)


def _metadata(dialect: Dialect, meta: Mapping[str, str]) -> Conditions:
    found = Conditions()
    for number, (key, value) in enumerate(meta.items()):
        entry = matches(dialect, "e.meta_value", f"meta_value{number}", value)
        mine = ("e.dispatch_job_id = o.id", f"e.meta_key = :meta_key{number}", *entry.texts)
        inside = select("1", "dispatch_job_metadata AS e", mine)
        found += Conditions((f"EXISTS ({inside})",), {**entry.values, f"meta_key{number}": key})
    return found
