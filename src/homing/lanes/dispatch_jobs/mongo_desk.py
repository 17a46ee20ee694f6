"""Finds jobs for the desk on MongoDB: what the indexes leave over, as conditions on documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from homing.db import Query
from homing.db.conditions import LONGEST_CODE, UNCLASSIFIED, is_pattern
from homing.db.mongo import Columns, Session
from homing.lanes.dispatch_jobs.desk_conditions import (
    HIDDEN_QUERY,
    PHASES,
    Asked,
    is_by_id,
    is_indexed,
    states_of,
    without_lead,
)
from homing.lanes.dispatch_jobs.desk_find import JobFinder
from homing.lanes.dispatch_jobs.job import OWN_SOURCE
from homing.lanes.dispatch_jobs.mongo_documents import JOBS, Given, rows
from homing.lanes.dispatch_jobs.tsid import number_of
from homing.messages.model import Wanted

Match = dict[str, Any]


class MongoJobFinder(JobFinder):
    def _also(self, asked: Asked) -> Any:
        return left_over(asked) or None

    async def _named(self, wanted: Wanted, before: int | None, limit: int) -> list[int]:
        id = wanted.id or ""
        names: list[Match] = [{"external_id": id}, {"idempotency_key": id}]
        if (number := number_of(id)) is not None:
            names.append({"_id": number})
        below: list[Match] = [{"_id": {"$lt": before}}] if before is not None else []
        conditions = [{"$or": names}, *below, *all_of(replace(wanted, id=None))]
        found = await self._jobs.database.fetch(_NAMED, {"match": {"$and": conditions}, "limit": limit})
        return [row["id"] for row in found]


async def _named(session: Session, given: Given) -> list[Columns]:
    steps = [
        {"$match": given["match"]},
        {"$sort": {"_id": -1}},
        {"$limit": given["limit"]},
        {"$project": {"_id": 1}},
    ]
    return rows({"id": one["_id"]} for one in await session.aggregate(JOBS, steps))


_NAMED: Final = Query("desk_named", "", (), False, _named)


def left_over(asked: Asked) -> list[Match]:
    """What the index of a stream leaves over."""
    state, lead = asked.state, asked.lead
    rest = replace(without_lead(asked.wanted, lead), phases=(), states=())
    if not is_by_id(lead):
        rest = replace(rest, since=None, until=None)
    needs_state = state is not None and lead.status is None and lead.error_class is None
    return [*([{"status": state}] if needs_state else []), *all_of(rest)]


def all_of(wanted: Wanted) -> list[Match]:
    states = states_of(wanted)
    found: list[Match] = [] if len(states) == len(PHASES) else [{"status": {"$in": list(states)}}]
    for name, value in (("type", wanted.type), ("source", wanted.source)):
        found += [] if value is None else [{name: _matching(value)}]
    for sign, moment in (("$gte", wanted.since), ("$lte", wanted.until)):
        found += [] if moment is None else [{"created_at": {sign: moment}}]
    found += _error(wanted.error) if wanted.error is not None else []
    found += [_code(wanted.codes)] if wanted.codes else []
    found += [_entry(key, value) for key, value in wanted.meta.items()]
    return [*found, *_target_and_words(wanted)]


def _matching(value: str) -> Any:
    """A value, or a pattern of `*`, which does not tell capitals."""
    if not is_pattern(value):
        return value
    return {"$regex": f"^{_expression(value)}$", "$options": "is"}


def _expression(pattern: str) -> str:
    return ".*".join(re.escape(part) for part in pattern.split("*"))


def _error(error: str) -> list[Match]:
    return [{"error_class": None if error == UNCLASSIFIED else _matching(error)}]


def _code(codes: Sequence[str]) -> Match:
    """To the letter; a long one was cut, and so is what it is compared with."""
    if all(map(is_indexed, codes)):
        return {"error_class": {"$in": list(codes)}}
    beginning = {"$substrCP": ["$error_class", 0, LONGEST_CODE]}
    known: Match = {"error_class": {"$type": "string"}}
    return {"$and": [known, {"$expr": {"$in": [beginning, {"$literal": list(codes)}]}}]}


def _entry(key: str, value: str) -> Match:
    return {"metadata": {"$elemMatch": {"k": key, "v": _matching(value)}}}


def _target_and_words(wanted: Wanted) -> list[Match]:
    found = [_word(word) for word in wanted.words]
    return found if wanted.to is None else [*found, _to(wanted.to)]


def _word(word: str) -> Match:
    inside = {"$regex": _expression(word), "$options": "is"}
    return {"$or": [{name: inside} for name in ("type", "source", "group_id")]}


def _to(to: str) -> Match:
    if "/" in to:
        return _to_url(to)
    return {"target": {"$regex": f"://{_expression(to.lower())}([:#]|$)", "$options": "i"}}


def _to_url(to: str) -> Match:
    """As the SQL has it: a pattern finds nothing out that is hidden."""
    if not is_pattern(to):
        shown = re.escape(to.removesuffix(HIDDEN_QUERY))
        return {"$or": [{"target_url": to}, {"target_url": {"$regex": f"^{shown}([?#]|$)", "$options": "s"}}]}
    if any(letter in to for letter in _NOT_SHOWN):
        return {"target_url": {"$in": []}}
    shown = f"[^{_NOT_SHOWN}]*".join(re.escape(part) for part in to.split("*"))
    return {"source": {"$ne": OWN_SOURCE}, "target_url": {"$regex": f"^{shown}([?#]|$)", "$options": "is"}}


#: These begin what is hidden of a URL, or end it.
_NOT_SHOWN: Final = "?#@"
