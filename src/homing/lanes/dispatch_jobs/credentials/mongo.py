"""dispatch_credentials on MongoDB. Every secret is sealed for its row and column before it comes here.

A sealed text never repeats: comparing it tells whether a document was changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from homing.db.mongo import Columns, Document, Session
from homing.lanes.dispatch_jobs.credentials.signing import CURRENT, SEALED
from homing.lanes.dispatch_jobs.mongo_documents import (
    GONE,
    JOBS,
    LIVE,
    NOW,
    Given,
    Operation,
    after,
    decoded,
    draw,
    exactly,
    rows,
    server_time,
    without_nothing,
)

CREDENTIALS = "dispatch_credentials"
_COUNTED = 1000
_SHOWN = ("algorithm", "name", "fingerprint", "created_at", "updated_at", "signing_key", "allowed_targets")
_SEALED = (
    "bearer_token", "signing_secret", "signing_key", "fingerprint", "previous_bearer_token",
    "previous_signing_secret", "previous_signing_key", "previous_until", "allowed_targets",
)  # fmt: skip


async def draw_id(session: Session, _given: Given) -> list[Columns]:
    return rows([{"id": (await draw(session, 1)).first}])


async def insert(session: Session, given: Given) -> list[Columns]:
    names = (*CURRENT, "algorithm", "name", "fingerprint")
    now = await server_time(session)
    document = {
        "_id": given["id"],
        **{name: given[name] for name in names},
        "allowed_targets": decoded(given["allowed_targets"]),
        "created_at": now,
        "updated_at": now,
    }
    await session.insert(CREDENTIALS, [without_nothing(document)])
    return await describe(session, given)


async def describe(session: Session, given: Given) -> list[Columns]:
    return rows(_shown(one) for one in await _with_time(session, {"_id": given["id"]}, 1))


async def page(session: Session, given: Given) -> list[Columns]:
    before = {} if given["before"] is None else {"_id": {"$lt": given["before"]}}
    return rows(_shown(one) for one in await _with_time(session, before, given["limit"], order=-1))


async def load(session: Session, given: Given) -> list[Columns]:
    found = await _with_time(session, {"_id": {"$in": decoded(given["ids"])}}, 0)
    return rows(_sealed(one) for one in found)


async def sealed_after(session: Session, given: Given) -> list[Columns]:
    found = await _with_time(session, {"_id": {"$gt": given["after"]}}, given["limit"])
    return rows(_sealed(one) for one in found)


async def _with_time(
    session: Session, filter: Mapping[str, Any], limit: int, order: int = 1
) -> list[Document]:
    """With whether the previous secrets still count, by the server's time."""
    grace = {"$gt": ["$previous_until", NOW]}
    steps: list[dict[str, Any]] = [{"$match": filter}, {"$sort": {"_id": order}}]
    steps += [{"$limit": limit}] if limit else []
    return await session.aggregate(CREDENTIALS, [*steps, {"$set": {"in_grace": grace}}])


def _shown(document: Document) -> dict[str, Any]:
    until = document["previous_until"] if document["in_grace"] else None
    return {
        "id": document["_id"],
        **{name: document.get(name) for name in _SHOWN},
        "previous_until": until,
    }


def _sealed(document: Document) -> dict[str, Any]:
    return {
        "id": document["_id"],
        **{name: document.get(name) for name in _SEALED},
        "in_grace": bool(document["in_grace"]),
    }


async def rotate(session: Session, given: Given) -> list[Columns]:
    """Nothing is written over what somebody else has rotated meanwhile."""
    grace = after(given["grace_seconds"])
    until = {"$max": ["$previous_until", grace]} if given["extends_previous"] else grace
    sets = {
        **{name: exactly(given[name]) for name in (*SEALED, "fingerprint")},
        "previous_until": until if given["keeps_previous"] else GONE,
        "updated_at": NOW,
    }
    seen = {"_id": given["id"], **{name: given[f"seen_{name}"] for name in CURRENT}}
    found = await session.update_one(CREDENTIALS, seen, [{"$set": sets}])
    return await describe(session, given) if found else []


async def end_grace(session: Session, given: Given) -> list[Columns]:
    """Only the new secrets count from now on."""
    gone = dict.fromkeys((*(f"previous_{name}" for name in CURRENT), "previous_until"), GONE)
    in_grace = {"_id": given["id"], "$expr": {"$gt": ["$previous_until", NOW]}}
    found = await session.update_one(CREDENTIALS, in_grace, [{"$set": {**gone, "updated_at": NOW}}])
    return await describe(session, given) if found else []


async def allow_targets(session: Session, given: Given) -> list[Columns]:
    """Beside those that are there. Where nobody has limited them there is nothing to add to."""
    wanted = {"_id": given["id"], "allowed_targets": {"$type": "array"}}
    union = {"$setUnion": ["$allowed_targets", {"$literal": decoded(given["targets"])}]}
    found = await session.update_one(CREDENTIALS, wanted, [{"$set": {"allowed_targets": union}}])
    return await describe(session, given) if found else []


async def replace_targets(session: Session, given: Given) -> list[Columns]:
    sets = {"$set": {"allowed_targets": decoded(given["targets"])}}
    found = await session.update_one(CREDENTIALS, {"_id": given["id"]}, sets)
    return await describe(session, given) if found else []


async def uses(session: Session, given: Given) -> list[Columns]:
    """Open jobs of each, counted up to a thousand."""
    counts = [
        {
            "id": id,
            "jobs": await session.collection(JOBS).count_documents(
                {"credentials_id": id, "status": LIVE},
                limit=_COUNTED,
                hint="homing_job_credentials",
                session=session.session,
            ),
        }
        for id in decoded(given["ids"])
    ]
    return rows(counts)


async def delete(session: Session, given: Given) -> list[Columns]:
    used = {"credentials_id": given["id"], "status": LIVE}
    if not given["force"] and await session.find(
        JOBS, used, {"_id": 1}, limit=1, hint="homing_job_credentials"
    ):
        return []
    done = await session.collection(CREDENTIALS).delete_one({"_id": given["id"]}, session=session.session)
    return rows([{"id": given["id"]}] if done.deleted_count else [])


async def count(session: Session, _given: Given) -> list[Columns]:
    found = await session.collection(CREDENTIALS).count_documents({}, session=session.session)
    return rows([{"count": found}])


async def reseal(session: Session, given: Given) -> list[Columns]:
    """The secrets stay what they are, so `updated_at` does too."""
    written = [one["id"] for one in decoded(given["batch"]) if await _reseal(session, one)]
    return rows({"id": id} for id in written)


async def _reseal(session: Session, one: Mapping[str, Any]) -> bool:
    sets = {name: exactly(one[name]) for name in (*SEALED, "fingerprint")}
    seen = {"_id": one["id"], **{name: one["seen"][name] for name in SEALED}}
    return bool(await session.update_one(CREDENTIALS, seen, [{"$set": sets}]))


QUERIES: Final[Mapping[str, Operation]] = {
    operation.__name__: operation
    for operation in (
        draw_id, insert, describe, page, load, rotate, end_grace, allow_targets, replace_targets, uses,
        delete, count, sealed_after, reseal,
    )
}  # fmt: skip
