"""What a form does: tried, written down in the audit log, and told to whoever sent it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from homing.access.audit import Entry, Outcome
from homing.access.desk import Access
from homing.errors import Conflict, Forbidden, InvalidRequest, NotAllowed, NotFound
from homing.http.asking import AnyRequest, address_of, who_of
from homing.http.pages.forms import Refused, refusal

Done = TypeVar("Done")

#: What is wrong with an order, and not with us.
REFUSALS = (InvalidRequest, NotAllowed, NotFound, Conflict, Forbidden)
#: For routes whose entries are written here.
OWN_AUDIT: Mapping[str, Any] = {"audit": "own"}
#: Seconds, as forms offer them.
SPANS: Mapping[str, int] = {"5m": 300, "1h": 3600, "4h": 14400, "1d": 86400, "7d": 7 * 86400}


class Deed(Struct, frozen=True):
    """As the log names it; by the same words as the API does."""

    action: str
    object: str | None = None
    #: Without secrets.
    detail: Mapping[str, Any] | None = None
    #: Whoever does it writes the entry, in the same transaction; here only what was refused is written.
    logs_itself: bool = False


async def tried(
    request: AnyRequest,
    access: Access,
    deed: Deed,
    work: Callable[[], Awaitable[Done]],
    *,
    result: Callable[[Done], Mapping[str, Any]] | None = None,
) -> Done | Refused:
    """Do it; whatever comes of it is in the log before it is told, with what `result` says of it."""
    try:
        done = await work()
    except REFUSALS as error:
        await _write(request, access, deed, "refused", {"why": str(error)})
        return refusal(error)
    except Exception:
        await _write(request, access, deed, "failed")
        raise
    if not deed.logs_itself:
        await _write(request, access, deed, "done", result(done) if result is not None else None)
    return done


async def _write(
    request: AnyRequest,
    access: Access,
    deed: Deed,
    outcome: Outcome,
    more: Mapping[str, Any] | None = None,
) -> None:
    told = {
        name: value for name, value in {**(deed.detail or {}), **(more or {})}.items() if value is not None
    }
    entry = Entry(who_of(request).who, deed.action, deed.object, address_of(request), told or None, outcome)
    await access.audit.write(entry)
