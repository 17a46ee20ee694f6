"""The list of all messages: a filter, its newest fifty, and what can be done with those that are selected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery
from msgspec import Struct

from homing.access.desk import Access
from homing.access.principal import Principal
from homing.desk import query
from homing.desk.bulk import BulkRuns
from homing.desk.desk import Desk, Found
from homing.http.asking import AnyRequest
from homing.http.live import Piece
from homing.http.messages_api import wanted_of
from homing.http.pages.acting import DONE, MOST_SELECTED, act, allowed_verbs, verb_of
from homing.http.pages.shell import LANE_NAMES, PAGE, VERB_NAMES, gone_to, link, own_path, render
from homing.messages.model import LANES, PHASES, Verb, Wanted

LISTED: Final = 50
#: The scope depends on the lanes of what was selected, so it is asked for where they are known.
_ACT = {"scope": "known", "audit": "own"}


class FilterChip(Struct, frozen=True):
    label: str
    href: str
    is_on: bool = False


class Filters(Struct, frozen=True):
    phases: tuple[FilterChip, ...]
    lanes: tuple[FilterChip, ...]
    #: Everything else that the line says; each is a link to the line without it.
    terms: tuple[FilterChip, ...]


class MessageList(Controller):
    include_in_schema = False
    opt = PAGE

    @get("/messages", media_type=MediaType.HTML)
    async def messages(
        self,
        request: AnyRequest,
        desk: NamedDependency[Desk],
        bulk_runs: NamedDependency[BulkRuns],
        q: FromQuery[str] = "",
        cursor: FromQuery[str] = "",
    ) -> Response[str]:
        user: Principal = request.user
        wanted = query.read(q, datetime.now(UTC))
        mistake = wanted if isinstance(wanted, query.Mistake) else None
        found = Found(rows=(), next=None)
        if isinstance(wanted, Wanted):
            found = await desk.find(wanted, cursor=cursor or None, limit=LISTED, may=user.may)
        return render(
            request,
            "messages.html",
            q=q,
            mistake=mistake,
            found=found,
            # What was refused is shown as it stands, and nothing is built upon it.
            filters=filters("" if mistake else q),
            verbs=[(verb, VERB_NAMES[verb]) for verb in allowed_verbs(desk, user)],
            for_all=_for_all(bulk_runs, wanted, allowed_verbs(desk, user)) if found.rows else [],
            suggestions=query.suggestions(),
            syntax=[(field.example, field.means) for field in query.FIELDS],
            base=str(request.base_url).rstrip("/"),
            here_link=link("/messages", q=q, cursor=cursor),
            older=link("/messages", q=q, cursor=found.next) if found.next else "",
            newest=link("/messages", q=q) if cursor else "",
            is_live=mistake is None and not cursor,
        )

    @post("/messages/act", status_code=303, media_type=MediaType.HTML, opt=_ACT)
    async def act_on_selected(
        self, request: AnyRequest, desk: NamedDependency[Desk], access: NamedDependency[Access]
    ) -> Response[str]:
        form = await request.form()
        verb, back = verb_of(str(form.get("verb", ""))), own_path(str(form.get("next", "/messages")))
        ids = [str(id) for id in form.getall("id", [])][:MOST_SELECTED]
        if not ids:
            return gone_to(back, "Nothing was selected.", is_good=False)
        acted = await act(desk, access.audit, request, verb, ids)
        left = f" {acted.left:,} could not be: {acted.why_not}." if acted.left else ""
        return gone_to(back, f"{acted.done:,} {DONE[verb]}.{left}", is_good=acted.done > 0)


def _for_all(runs: BulkRuns, wanted: Wanted | query.Mistake, verbs: Sequence[Verb]) -> list[Verb]:
    """What can be done with messages that a line means; one that means everything is for nothing."""
    if not isinstance(wanted, Wanted) or wanted == Wanted():
        return []
    return [verb for verb in verbs if runs.plan(wanted, verb)]


def filters(line: str) -> Filters:
    """The chips over the list. Each is a link, so that the address always says what is shown."""
    chips = query.chips(line)
    on = {(chip.field, value) for chip in chips for value in _values(chip)}
    return Filters(
        tuple(_choice(line, "status", phase, phase, on) for phase in PHASES),
        tuple(_choice(line, "lane", lane, LANE_NAMES[lane], on) for lane in LANES),
        tuple(
            FilterChip(chip.text, link("/messages", q=chip.without), is_on=True)
            for chip in chips
            if not _is_choice(chip)
        ),
    )


def _choice(line: str, field: str, value: str, label: str, on: set[tuple[str, str]]) -> FilterChip:
    href = link("/messages", q=query.toggled(line, field, value))
    return FilterChip(label, href, (field, value) in on)


def _is_choice(chip: query.Chip) -> bool:
    """Whether the chips for phases and lanes tell it already."""
    known: tuple[str, ...] = {"status": PHASES, "lane": LANES}.get(chip.field, ())
    return all(value in known for value in _values(chip))


def _values(chip: query.Chip) -> list[str]:
    """A lane goes by several names."""
    values = chip.value.split(",")
    return [query.lane_called(value) for value in values] if chip.field == "lane" else values


async def message_pieces(desk: Desk, line: str, may: Callable[[str], bool]) -> list[Piece]:
    """The newest messages of a line, for those who watch them come in."""
    found = await desk.find(wanted_of(line), cursor=None, limit=LISTED, may=may)
    return [Piece(f"row-{row.id}", "message_row.html", {"row": row}) for row in found.rows]
