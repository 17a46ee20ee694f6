"""The query line: read, written, and mended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.desk import query
from homing.desk.query import Mistake, chips, read, suggestions, toggled, write
from homing.messages.model import LANES, PHASES, Wanted

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)

# What can be looked for: any text without control characters and halves of characters.
VALUES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40)
KEYS = st.from_regex(r"[A-Za-z][\w.-]{0,10}", fullmatch=True)
STATES = [state for states in query.STATES.values() for state in states]
TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds of Hypothesis are naive


def in_order(choices: list[str]) -> st.SearchStrategy[tuple[str, ...]]:
    known = tuple(dict.fromkeys(choices))
    return st.sets(st.sampled_from(known)).map(lambda some: tuple(one for one in known if one in some))


@st.composite
def wishes(draw: st.DrawFn) -> Wanted:
    times = sorted(draw(st.lists(TIMES, min_size=2, max_size=2)))
    some = st.none() | VALUES
    return Wanted(
        lanes=draw(in_order(list(LANES)).filter(bool)),  # type: ignore[arg-type]  # names of lanes
        phases=draw(in_order(list(PHASES))),  # type: ignore[arg-type]  # names of phases
        states=draw(in_order(STATES)),
        type=draw(some),
        source=draw(some),
        to=draw(some),
        error=draw(some),
        meta=dict(sorted(draw(st.dictionaries(KEYS | VALUES, VALUES, max_size=3)).items())),
        id=draw(some),
        words=tuple(draw(st.lists(VALUES, max_size=3, unique=True))),
        since=draw(st.none() | st.just(times[0])),
        until=draw(st.none() | st.just(times[1])),
    )


@given(wishes())
def test_what_is_written_is_read_again(wanted: Wanted) -> None:
    line = write(wanted)
    again = read(line, NOW)
    assert again == wanted, line
    assert write(wanted) == line


@given(st.text(max_size=80))
def test_any_text_is_read_or_told_what_is_wrong(line: str) -> None:
    found = read(line, NOW)
    if isinstance(found, Mistake):
        assert 0 <= found.start <= found.end <= max(len(line), query.LONGEST_LINE)
        assert found.message
        assert found.mended is None or isinstance(read(found.mended, NOW), Wanted)
    else:
        assert read(write(found), NOW) == found
    for chip in chips(line):
        assert chip.text in line
        assert len(chips(chip.without)) <= len(chips(line))


def test_the_example_of_the_documentation() -> None:
    line = "status:dead lane:dispatch_jobs type:order.* meta.tenantId:acme to:*@x.com since:2h"
    assert read(line, NOW) == Wanted(
        lanes=("dispatch_jobs",),
        phases=("dead",),
        type="order.*",
        meta={"tenantId": "acme"},
        to="*@x.com",
        since=NOW - timedelta(hours=2),
    )


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("", Wanted()),
        ("  two   words ", Wanted(words=("two", "words"))),
        ('"two words" again', Wanted(words=("two words", "again"))),
        ('to:"Ann Lee" type:"a\\"b"', Wanted(to="Ann Lee", type='a"b')),
        ("status:dead,PENDING status:waiting", Wanted(phases=("waiting", "dead"), states=("PENDING",))),
        ("status:completed", Wanted(states=("COMPLETED",))),
        ("status:Dead", Wanted(states=("Dead",))),
        ("status:pEnding", Wanted(states=("PENDING", "Pending", "pending"))),
        ("lane:email_log,mail_outbox", Wanted(lanes=("mail_outbox", "email_log"))),
        ("lane:Mails,webhooks", Wanted(lanes=("mail_outbox", "dispatch_jobs"))),
        ('lane:jobs,email,"Open seats"', Wanted(lanes=("dispatch_jobs", "email_log", "open_events"))),
        ("outbox_12", Wanted(id="outbox_12")),
        ("0ARYZVZXW372S", Wanted(id="0ARYZVZXW372S")),
        ("international", Wanted(words=("international",))),
        ('"outbox_12"', Wanted(words=("outbox_12",))),
        ("since:2026-11-01 until:2026-11-02T03:04:05+01:00", Wanted(
            since=datetime(2026, 11, 1, tzinfo=UTC), until=datetime(2026, 11, 2, 2, 4, 5, tzinfo=UTC)
        )),
        ("since:90m", Wanted(since=NOW - timedelta(minutes=90))),
        ("to:https://hooks.example.com:8443/a?b=c", Wanted(to="https://hooks.example.com:8443/a?b=c")),
        ("meta.a.b-c:1", Wanted(meta={"a.b-c": "1"})),
        ('meta."order id":"7 b" x', Wanted(meta={"order id": "7 b"}, words=("x",))),
        (r'meta."a\"b\\c:d=e":1', Wanted(meta={r'a"b\c:d=e': "1"})),
        ('meta."plain":1', Wanted(meta={"plain": "1"})),
        ('meta."no colon"', Wanted(words=("meta.no colon",))),
        ('"OR" "-status:dead"', Wanted(words=("OR", "-status:dead"))),
        ("terms and conditions -1", Wanted(words=("terms", "and", "conditions", "-1"))),
    ],
)  # fmt: skip
def test_lines(line: str, wanted: Wanted) -> None:
    assert read(line, NOW) == wanted


@pytest.mark.parametrize(
    ("line", "place", "told", "mended"),
    [
        ("to:a tpye:b", (5, 11), "no field `tpye`; did you mean type?", "to:a type:b"),
        ("type:a tpye:b", (7, 13), "no field `tpye`; did you mean type?", None),
        ("tpye:a OR b", (0, 6), "did you mean type?", None),
        ("tpye:a AND statuss:daed", (0, 6), "did you mean type?", "type:a status:dead"),
        ("status:daed", (0, 11), "no status `daed`; did you mean dead?", "status:dead"),
        ("status:dead,sentt", (0, 17), "no status `sentt`; did you mean sent?", "status:dead,sent"),
        ("lane:dispatch_job", (0, 17), "did you mean dispatch_jobs?", "lane:dispatch_jobs"),
        ("metadata.a:b", (0, 12), "did you mean meta.KEY?", None),
        ("zzzzzz:1", (0, 8), "no field `zzzzzz`; there are status,", None),
        ("since:yesterday", (0, 15), "`yesterday` is no time; write 2h", None),
        ("since:1h until:2h", (9, 17), "`until:` is before `since:`", None),
        ("to:a to:b", (5, 9), "`to:` is there twice", None),
        ("type:", (0, 5), "`type:` has no value", None),
        ("meta.:x", (0, 7), "metadata needs a key", None),
        ("since:999999w", (0, 13), "is no time", None),
        ("x" * 600, (0, 600), "longer than 500", None),
        ("lane:mail_", (0, 10), "no lane `mail_`; did you mean mail_outbox?", "lane:mail_outbox"),
        ("lane:dispatch", (0, 13), "did you mean dispatch_jobs?", "lane:dispatch_jobs"),
        ("status:deliv", (0, 12), "did you mean delivered?", "status:delivered"),
        ("err:x", (0, 5), "did you mean error?", "error:x"),
        ("status:dead OR status:waiting", (12, 14), "by commas: status:dead,waiting", "status:dead,waiting"),
        ("status:dead or type:x", (12, 14), "`or` is not understood", None),
        ("type:x AND to:y", (7, 10), "all terms have to hold", "type:x to:y"),
        ("NOT paid", (0, 3), "put it into quotes", None),
        (
            "a -status:dead",
            (2, 14),
            "nothing can be left out by `-`",
            "a status:waiting,running,delivered,stopped",
        ),
        ("-paid", (0, 5), "nothing can be left out by `-`", None),
        ('to:"abc', (0, 7), "a quote begins here and does not end", 'to:"abc"'),
        ('to:"abc\\', (0, 8), "does not end", None),
    ],
)
def test_mistakes_say_where_and_how_to_mend(
    line: str, place: tuple[int, int], told: str, mended: str | None
) -> None:
    found = read(line, NOW)
    assert isinstance(found, Mistake)
    assert (found.start, found.end) == place
    assert told in found.message
    assert found.mended == mended
    if mended is not None:
        assert isinstance(read(mended, NOW), Wanted)


def test_chips_are_the_terms_as_they_were_typed() -> None:
    line = 'status:dead  since:2h "two words"'
    assert [(chip.text, chip.field, chip.value, chip.without) for chip in chips(line)] == [
        ("status:dead", "status", "dead", 'since:2h "two words"'),
        ("since:2h", "since", "2h", 'status:dead "two words"'),
        ('"two words"', "", "two words", "status:dead  since:2h"),
    ]


def test_a_term_is_put_in_and_taken_out() -> None:
    assert toggled("", "status", "dead") == "status:dead"
    assert toggled("order status:dead", "status", "waiting") == "order status:dead,waiting"
    assert toggled("order status:dead,waiting", "status", "dead") == "order status:waiting"
    assert toggled("order status:dead", "status", "dead") == "order"
    assert toggled("lane:mails,email_log", "lane", "mail_outbox") == "lane:email_log"
    assert toggled("type:a", "type", "b c") == 'type:"b c"'
    assert toggled("type:a", "type", "a") == ""


def test_a_key_of_metadata_is_put_in_and_taken_out() -> None:
    line = toggled("status:dead", "meta.order id", "7")
    assert line == 'status:dead meta."order id":7'
    assert [chip.field for chip in chips(line)] == ["status", "meta.order id"]
    assert toggled(line, "meta.order id", "8") == 'status:dead meta."order id":8'
    assert toggled(line, "meta.order id", "7") == "status:dead"
    assert isinstance(read('meta."order id:7', NOW), Mistake), "an open quote"
    assert isinstance(read('meta."":7', NOW), Mistake), "no key"


def test_suggestions_are_lines_that_can_be_read() -> None:
    offered = suggestions()
    for field in offered["fields"]:
        assert isinstance(read(field["example"], NOW), Wanted), field
    for name, values in offered["values"].items():
        for value in values:
            assert isinstance(read(f"{name}:{value}", NOW), Wanted), (name, value)
