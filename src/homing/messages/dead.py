"""Dead letters by what they died of: the same groups, and the same words for them, in every lane."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from homing.db import Row
from homing.db.conditions import readable, written
from homing.engine.likeness import code_like, likeness
from homing.messages.codes import escaped, told_apart
from homing.messages.model import DeadGroup, LaneName

#: Of a lane with an index by error, so many of each error are counted, and so many read.
MOST_COUNTED: Final = 20_000
MOST_READ_OF_EACH: Final = 100
#: Codes that are told apart by the database, and groups that are shown.
MOST_CODES: Final = 2_000
_MOST_GROUPS = 200
_MOST_KINDS = 5
_LONGEST_EXAMPLE = 500
#: So long may the codes of a group be together, for its query line to hold them.
_LONGEST_CODES: Final = 1_500


class Cause(Struct, frozen=True):
    """What the database tells of those that died of one code."""

    code: str | None
    count: int
    first_at: datetime | None
    last_at: datetime | None
    #: The number of the newest, and what is written of it.
    newest: int
    text: str
    is_lower_bound: bool


def cause_of(row: Row, *, is_lower_bound: bool, words: Callable[[str], str] = str) -> Cause:
    return Cause(
        None if row["code"] is None else told_apart(row["code"]),
        row["count"],
        readable(row["first_at"]),
        readable(row["last_at"]),
        row["newest"],
        words(written(row["text"] or "")),
        is_lower_bound,
    )


def groups_of(
    lane: LaneName,
    causes: Sequence[Cause],
    said: Mapping[str | None, Sequence[str]],
    *,
    id_of: Callable[[int], str],
    targets: Mapping[str | None, str] | None = None,
) -> list[DeadGroup]:
    """The largest first. Codes that another program wrote with numbers or names in them fall together."""
    groups = [
        replace(_group(lane, some, id_of), kinds=_kinds(said, some), target=_target(targets or {}, some))
        for some in _alike(causes)
    ]
    return sorted(groups, key=lambda group: (-group.count, group.error or "", group.codes))[:_MOST_GROUPS]


def _alike(causes: Sequence[Cause]) -> Iterable[Sequence[Cause]]:
    """Causes that are one group: their codes are alike, and fit into one query line.

    A group is requeued by its codes. A pattern instead of them could mean others, too.
    """
    by_code: dict[str | None, list[Cause]] = defaultdict(list)
    for cause in causes:
        by_code[cause.code].append(cause)
    alike: dict[str | None, list[Sequence[Cause]]] = defaultdict(list)
    for code, some in by_code.items():
        alike[None if code is None else code_like(code)].append(some)
    for several in alike.values():
        yield from _portions(sorted(several, key=lambda some: -sum(cause.count for cause in some)))


def _portions(several: Sequence[Sequence[Cause]]) -> Iterable[Sequence[Cause]]:
    portion: list[Cause] = []
    length = 0
    for of_one_code in several:
        needed = _length(of_one_code[0].code)
        if portion and length + needed > _LONGEST_CODES:
            yield portion
            portion, length = [], 0
        portion, length = [*portion, *of_one_code], length + needed
    yield portion


def _length(code: str | None) -> int:
    """Of a code in a query line, when it is quoted."""
    if code is None:
        return 0
    text = escaped(code)
    return len(' code:""') + len(text) + text.count('"') + text.count("\\")


def _kinds(said: Mapping[str | None, Sequence[str]], causes: Sequence[Cause]) -> tuple[tuple[str, int], ...]:
    found: Counter[str] = Counter()
    for code in {cause.code for cause in causes}:
        # Most say the same to the letter, so each text is looked at once.
        for text, count in Counter(said.get(code, ())).items():
            found[likeness(text)] += count
    return tuple(found.most_common(_MOST_KINDS))


def _target(targets: Mapping[str | None, str], causes: Sequence[Cause]) -> str | None:
    """That of the most frequent code."""
    return targets.get(max(causes, key=lambda cause: cause.count).code)


def _group(lane: LaneName, causes: Sequence[Cause], id_of: Callable[[int], str]) -> DeadGroup:
    newest = max(causes, key=lambda cause: cause.newest)
    codes = tuple(dict.fromkeys(cause.code for cause in causes if cause.code is not None))
    return DeadGroup(
        lane,
        _name(codes),
        sum(cause.count for cause in causes),
        min((cause.first_at for cause in causes if cause.first_at is not None), default=None),
        max((cause.last_at for cause in causes if cause.last_at is not None), default=None),
        newest.text[:_LONGEST_EXAMPLE],
        id_of(newest.newest),
        is_lower_bound=any(cause.is_lower_bound for cause in causes),
        codes=codes,
    )


def _name(codes: Sequence[str]) -> str | None:
    if not codes:
        return None
    return codes[0] if len(codes) == 1 else code_like(codes[0])
