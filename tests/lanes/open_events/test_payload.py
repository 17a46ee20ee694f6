"""The job's payload: what is accepted as 1.0 is exactly what the specification's schema accepts."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace
from tests.notifications import KEY, notification_bench

from homing.lanes.open_events.links import LinkKeys, Links
from homing.lanes.open_events.notification import Meeting, Notification, OpenEvent, Subscriber
from homing.lanes.open_events.payload import (
    DeliveryPolicy,
    Jobs,
    check,
    complaints,
    summary_of,
)
from homing.senders.mail import SendErrorCode

SCHEMA_TEXT = files("homing.lanes.open_events").joinpath("mail_job.schema.json").read_text(encoding="utf-8")
SCHEMA = msgspec.json.decode(SCHEMA_TEXT)

EVENT = OpenEvent(
    7, 12, "20269", "NB", "09214", "CLOSED", "OPEN", datetime(2026, 11, 16, 10, 0, tzinfo=UTC), "poller",
    "trace-9", '{"courseTitle": "Data Structures", "sectionNumber": "03", "snapshotHash": "abc"}', False,
    "01", "198", "112", "01:198:112", "Stale title",
    '[{"day":"M","start":"620","end":"700","campus":"BUS","building":"HLL","room":"114"},{"day":"Th","start":"620.0"}]',
)  # fmt: skip
SUBSCRIBER = Subscriber(
    "Email", " ann@example.org ", "f" * 40, "zh_CN", "Active", "CLOSED",
    '{"preferences": {"maxNotifications": 5, "deliveryWindow": {"startMinutes": 480, "endMinutes": 1320, '
    '"timeZone": "America/New_York"}}}',
)  # fmt: skip
ITEM = Notification(
    7, 33, "d" * 40, False, False, datetime(2026, 11, 16, 10, 0, 1, tzinfo=UTC), 0.0, EVENT, SUBSCRIBER
)


def jobs(**options: Any) -> Jobs:
    links = Links(lambda: LinkKeys([KEY]), lambda: "https://seats.example.com")
    policy = DeliveryPolicy(3, 120, (0, 2000, 7000))
    return Jobs(links, policy, locales=("en-US", "zh-CN"), **options)


def job(event: OpenEvent = EVENT, subscriber: Subscriber = SUBSCRIBER, id: int = 41) -> dict[str, Any]:
    return jobs().build(id, ITEM, event, subscriber)


# ── building ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-06", "NTF-08", "NTF-10", "NTF-18", "NTF-19", "NTF-22")
def test_a_job_says_all_that_is_known() -> None:
    built = job()
    links = built["links"]
    assert links["manageUrl"].startswith("https://seats.example.com/subscriptions/33?token=")
    assert links["unsubscribeUrl"].startswith("https://seats.example.com/unsubscribe?token=")
    assert built == {
        "version": "1.0",
        "notificationId": 41,
        "openEventId": 7,
        "subscriptionId": 33,
        "dedupeKey": "d" * 40,
        "traceId": "trace-9",
        "locale": "zh-CN",
        "recipient": {"email": "ann@example.org"},
        "template": {
            "id": "open-seat",
            "version": "v1",
            "variables": {
                "courseTitle": "Data Structures",
                "courseString": "01:198:112",
                "sectionIndex": "09214",
                "sectionNumber": "03",
                "meetingSummary": "M 10:20-11:40 BUS HLL 114; Th 10:20",
                "campus": "NB",
                "eventDetectedAt": "2026-11-16T10:00:00.000Z",
                "eventDetectedText": built["template"]["variables"]["eventDetectedText"],
                **links,
            },
        },
        "event": {
            "sectionId": 12,
            "termId": "20269",
            "campusCode": "NB",
            "indexNumber": "09214",
            "sectionNumber": "03",
            "subjectCode": "198",
            "courseTitle": "Data Structures",
            "statusBefore": "CLOSED",
            "statusAfter": "OPEN",
            "eventAt": "2026-11-16T10:00:00.000Z",
            "detectedBy": "poller",
            "snapshotHash": "abc",
        },
        "subscription": {
            "status": "active",
            "contactType": "email",
            "contactValue": "ann@example.org",
            "contactHash": "f" * 40,
            "lastKnownSectionStatus": "CLOSED",
            "preferences": {
                "notifyOn": ["open"],
                "maxNotifications": 5,
                "deliveryWindow": {
                    "startMinutes": 480, "endMinutes": 1320, "timeZone": "America/New_York",
                },
            },
        },
        "links": links,
        "deliveryPolicy": {"maxAttempts": 3, "lockTtlSeconds": 120, "retryScheduleMs": [0, 2000, 7000]},
    }  # fmt: skip
    assert complaints(built) == []
    Draft202012Validator(SCHEMA).validate(built)


@pytest.mark.clause("NTF-08")
def test_what_was_detected_goes_before_what_the_tables_say_now() -> None:
    stale = msgspec.structs.replace(EVENT, payload='{"courseTitle": "Then", "sectionNumber": 7}')
    told = job(stale)
    assert (told["event"]["courseTitle"], told["event"]["sectionNumber"]) == ("Then", "7")
    assert told["template"]["variables"]["courseTitle"] == "Then"
    unknown = msgspec.structs.replace(EVENT, payload=None)
    now = job(unknown)
    assert (now["event"]["courseTitle"], now["event"]["sectionNumber"]) == ("Stale title", "01")
    assert "snapshotHash" not in now["event"]


@pytest.mark.clause("NTF-10", "NTF-14")
def test_each_required_variable_is_checked() -> None:
    for name in (
        "courseTitle",
        "courseString",
        "sectionIndex",
        "sectionNumber",
        "meetingSummary",
        "manageUrl",
    ):
        built = job()
        variables = {k: v for k, v in built["template"]["variables"].items() if k != name}
        problem = check({**built, "template": {**built["template"], "variables": variables}})
        assert problem is not None, name
        assert problem.code == SendErrorCode.TEMPLATE_VARIABLE_MISSING
        assert f"{name} is missing" in problem.message


def test_a_complaint_repeats_no_value() -> None:
    built = {**job(), "notificationId": "secret@example.org", "surprise": "secret@example.org"}
    problem = check(built)
    assert problem is not None
    assert problem.code == SendErrorCode.VALIDATION_ERROR
    assert "secret" not in problem.message
    assert "notificationId" in problem.message


@pytest.mark.parametrize(
    ("meetings", "summary"),
    [
        ([], "TBA"),
        ([Meeting()], "TBA"),
        ([Meeting("M", "600", "680", "", "HLL", "114")], "M 10:00-11:20 HLL 114"),
        ([Meeting("M", "0", "1439")], "M 00:00-23:59"),
        ([Meeting("M", "600", "680"), Meeting("W", "600", "680", "LIV")], "M 10:00-11:20; W 10:00-11:20 LIV"),
        ([Meeting("T", "x", "1e999", room="5")], "T TBA 5"),
        ([Meeting(None, "600", "680")], "10:00-11:20"),
        ([Meeting("F", "-5", "99999")], "F TBA"),
    ],
)
def test_when_a_section_meets(meetings: list[Meeting], summary: str) -> None:
    assert summary_of(meetings) == summary


@pytest.mark.clause("NTF-06", "NTF-08")
async def test_section_course_and_meetings_enrich_the_job(database_url: str) -> None:
    """By the section's id; and by term, campus and index where the event does not name it."""
    async with notification_bench(database_url) as bench:
        course = await bench.other.insert(
            "courses", "course_id",
            {"term_id": "20269", "campus_code": "NB", "subject_code": "198", "course_number": "112",
             "course_string": "01:198:112", "title": "Data Structures"},
        )  # fmt: skip
        section = await bench.other.insert(
            "sections", "section_id",
            {"course_id": course, "term_id": "20269", "campus_code": "NB", "index_number": "09214",
             "section_number": "03", "open_status": "OPEN"},
        )  # fmt: skip
        await bench.other.insert(
            "section_meetings", "meeting_id",
            {"section_id": section, "meeting_day": "M", "start_minutes": 620, "end_minutes": 700,
             "building_code": "HLL", "room_number": "114"},
        )  # fmt: skip
        named = await bench.event(section_id=section, index_number="x", payload=None)
        found = await bench.event(index_number="09214", payload="[1, 2]")
        for event in (named, found):
            await bench.notification(event)
        await bench.deliver()
        assert len(bench.memory.delivered) == 2
        for message in bench.memory.messages:
            variables = message.variables or {}
            assert variables["courseString"] == "01:198:112"
            assert variables["sectionNumber"] == "03"
            assert variables["meetingSummary"] == "M 10:20-11:40 HLL 114"


# ── versions ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-22")
def test_the_worker_builds_version_1_0_and_the_schema_takes_no_other() -> None:
    built = job()
    assert built["version"] == "1.0"
    assert complaints(built) == []
    for version in ("1.1", "2.0", "1", 1.0, None):
        assert complaints({**built, "version": version}) != []


# ── who it is for ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-06", "NTF-19")
@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        (None, None),
        ('{"name": "Ann Lee"}', "Ann Lee"),
        ('{"name": " 李\\r\\nBcc: x@example.org ", "preferences": {}}', "李 Bcc: x@example.org"),
        ('{"name": "", "preferences": {}}', None),
        ('{"name": {"first": "Ann"}}', None),
        ('{"name": "\\u0000"}', None),
    ],
)
def test_the_recipients_name_is_that_of_the_metadata(metadata: str | None, name: str | None) -> None:
    built = job(subscriber=replace(SUBSCRIBER, metadata=metadata))
    expected = {"email": "ann@example.org"} if name is None else {"email": "ann@example.org", "name": name}
    assert built["recipient"] == expected
    assert complaints(built) == []


# ── against another validator ────────────────────────────────────────────────────────────────────

#: In place of whatever stood there.
INSTEAD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 29, 30, 1.0, 0.5, -0.0, 1e300, 2**63, 10**30, -(10**30), "", "1.0", "1.1",
    "open-seat", "email", "active", "ACTIVE", "\u0000", "\U0001f600", "ünïcödé", "not-an-address", "x" * 5000,
    [], [1], ["a"], [0, -1], [1.5], [None], {}, {"a": 1}, {"": None}, [[]],
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to everything in a payload."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = copy.copy(value)
    copied[path[0]] = put(value[path[0]], path[1:], new)
    return copied


def without(value: Any, path: tuple[Any, ...]) -> Any:
    copied = copy.copy(value)
    if len(path) == 1:
        del copied[path[0]]
    else:
        copied[path[0]] = without(value[path[0]], path[1:])
    return copied


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def mutated(payload: Any, rand: random.Random) -> Any:
    """One change somewhere: something else instead, something less, or something more."""
    path = rand.choice(list(places(payload)))
    change = rand.random()
    if change < 0.25 and path:
        return without(payload, path)
    here = at(payload, path)
    if change < 0.5 and isinstance(here, dict):
        return put(
            payload,
            path,
            {**here, rand.choice(["extra", "name", "notes", "traceId", ""]): rand.choice(INSTEAD)},
        )
    return put(payload, path, rand.choice(INSTEAD))


def hand_made() -> Iterator[Any]:
    """Every place of a full payload: missing, each other thing instead, a key more."""
    whole = job()
    whole["recipient"]["name"] = "Ann"
    whole["subscription"]["preferences"]["snoozeUntil"] = "2026-11-16T10:00:00Z"
    yield whole
    yield from INSTEAD
    for path in places(whole):
        if path:
            yield without(whole, path)
            yield from (put(whole, path, instead) for instead in INSTEAD)
        if isinstance(at(whole, path), dict):
            yield put(whole, path, {**at(whole, path), "surprise": 1})


def generated(count: int, seed: int) -> Iterator[Any]:
    rand = random.Random(seed)
    base = job()
    small = {key: value for key, value in base.items() if key in SCHEMA["required"]}
    for _ in range(count):
        payload = rand.choice((base, small))
        for _ in range(rand.randint(0, 3)):
            payload = mutated(payload, rand)
        yield payload


@pytest.mark.clause("NTF-06", "NTF-07", "NTF-10", "NTF-18")
def test_what_is_accepted_is_what_the_schema_accepts() -> None:
    other = Draft202012Validator(SCHEMA)
    payloads = [*hand_made(), *generated(3200, seed=5)]
    verdicts = [(complaints(payload) == [], other.is_valid(payload)) for payload in payloads]
    different = [
        payload for payload, (ours, theirs) in zip(payloads, verdicts, strict=True) if ours != theirs
    ]
    assert different == []
    accepted = sum(ours for ours, _ in verdicts)
    assert len(payloads) >= 5000
    assert accepted >= 1000
    assert len(payloads) - accepted >= 1000


@pytest.mark.clause("NTF-06")
def test_the_schema_is_the_specification_s() -> None:
    assert SCHEMA["$id"] == "https://better-course-schedule/notify/mail_job.schema.json"
    Draft202012Validator.check_schema(SCHEMA)
    # Its text, byte for byte; whoever edits the file finds out here.
    assert (
        hashlib.sha256(SCHEMA_TEXT.encode()).hexdigest()
        == "4e3c943f12a90dc670cafdd8c1207f5b7730db6896bf88124de26a5cc1cd97b5"
    )
