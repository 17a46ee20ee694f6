"""What the desk does with many jobs at once: dead letters by error class, verbs by the thousand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import json
from msgspec.structs import replace

from homing.db import load_queries
from homing.db.conditions import UNCLASSIFIED, Conditions, is_pattern, written
from homing.db.looking import Stream
from homing.db.walking import Walk
from homing.lanes.dispatch_jobs.desk_conditions import TABLE, conditions, is_indexed, states_of
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.messages.codes import told_apart
from homing.messages.dead import MOST_CODES, MOST_COUNTED, MOST_READ_OF_EACH, cause_of, groups_of
from homing.messages.model import DeadGroup, LaneName, Verb, Wanted
from homing.messages.searched import Searched, Way

FROM_STATES: Final[Mapping[Verb, tuple[str, ...]]] = {
    "requeue": ("ERROR", "CANCELLED"),
    "cancel": ("PENDING", "FAILED"),
    "send_now": ("PENDING", "FAILED"),
}
_BY_CLASS = "o.status = 'ERROR' AND o.error_class = :{}"
_UNCLASSIFIED = "o.status = 'ERROR' AND o.error_class IS NULL"


class JobDeadDesk(Searched):
    name: LaneName = "dispatch_jobs"
    from_states = FROM_STATES

    def __init__(self, jobs: DispatchJobs) -> None:
        super().__init__(jobs.database, load_queries(__package__ or "", jobs.database.dialect, "desk_dead"))
        self._jobs = jobs

    async def dead_groups(self) -> Sequence[DeadGroup]:
        rows = await self._ask("dead_codes", most=MOST_COUNTED, codes=MOST_CODES)
        causes = [cause_of(row, is_lower_bound=row["count"] >= MOST_COUNTED) for row in rows]
        said: dict[str | None, list[str]] = defaultdict(list)
        going: dict[str | None, list[str]] = defaultdict(list)
        for row in await self._ask("dead_words", most=MOST_READ_OF_EACH, codes=MOST_CODES) if rows else ():
            code = None if row["code"] is None else told_apart(row["code"])
            said[code].append(written(row["text"] or ""))
            going[code].append(row["target"])
        targets = {code: _most_frequent(some) for code, some in going.items()}
        return groups_of("dispatch_jobs", causes, said, id_of=text_of, targets=targets)

    async def _count_states(self, states: Sequence[str], most: int) -> int:
        """Jobs of a state lie in an index, but not in the order of ids, by which a walk goes."""
        given = {"states": json.encode(states).decode(), "most": most + 1}
        (row,) = await self._ask("count_states", **given)
        return int(row["count"])

    async def act(self, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        verbs = {"requeue": self._jobs.requeue, "cancel": self._jobs.cancel, "send_now": self._jobs.send_now}
        return await verbs[verb](numbers)

    def _walk(self, wanted: Wanted, *, newest_first: bool) -> Way | None:
        """By id through the dead of one class, or through all jobs: those of a state lie in another order."""
        if self._database.dialect == "mongodb":
            from homing.lanes.dispatch_jobs.mongo_desk_dead import walk_of  # noqa: PLC0415 - its driver is an extra

            return walk_of(self._database, wanted, newest_first=newest_first)
        found = conditions(wanted, self._database.dialect)
        if found is None:
            return None
        if states_of(wanted) == ("ERROR",) and (classes := _classes(wanted)) is not None:
            rest = replace(wanted, phases=(), states=(), error=None, codes=())
            others = conditions(rest, self._database.dialect)
            if others is not None:
                also = others + Conditions((), classes.values)
                return Walk(self._database, TABLE, Stream(classes.texts), also, newest_first)
        return Walk(self._database, TABLE, Stream(_named(found.texts)), found, newest_first)


def _classes(wanted: Wanted) -> Conditions | None:
    """The classes that are asked for, each as the index of the dead has it; None where it does not serve."""
    if wanted.codes:
        if wanted.error is not None or not all(map(is_indexed, wanted.codes)):
            return None
        values = {f"class{number}": code for number, code in enumerate(wanted.codes)}
        return Conditions(tuple(_BY_CLASS.format(name) for name in values), values)
    if wanted.error is None or is_pattern(wanted.error):
        return None
    if wanted.error == UNCLASSIFIED:
        return Conditions((_UNCLASSIFIED,))
    return Conditions((_BY_CLASS.format("error"),), {"error": wanted.error})


def _named(texts: Sequence[str]) -> tuple[str, ...]:
    """The one job that is asked for by its id."""
    return tuple(text for text in texts if text.startswith("o.id = "))


def _most_frequent(texts: Sequence[str]) -> str:
    return Counter(texts).most_common(1)[0][0]
