"""When somebody is told: pure, one step after the other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.alerts.rules import LEVELS, Cause, Kind, Seen, Terms, judge

BEGAN = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
TERMS = Terms(cooldown=600, target_failures=20, backlog_age=900, most_per_hour=30)


class Story:
    """A cause, and what is told of it as time goes by."""

    def __init__(self, kind: Kind) -> None:
        self.cause = Cause(f"{kind}:x", kind, BEGAN)
        self.now = BEGAN
        self.events: list[str] = []

    def see(
        self, value: float, *, after: float = 10, silenced: bool = False, room: bool = True
    ) -> str | None:
        """What is told when this is seen so many seconds later."""
        self.now += timedelta(seconds=after)
        before = replace(self.cause, silenced=silenced)
        if before.kind == "dead":
            before = replace(before, pending=before.pending + int(value))
        seen = Seen(before.cause, before.kind, value, {"value": value}) if value else None
        verdict = judge(before, seen, TERMS, self.now)
        verdict = verdict if room else verdict.without_alert()
        self.cause = verdict.cause
        self.events += [verdict.event] if verdict.event else []
        return verdict.event


def test_the_first_death_is_told_at_once_and_the_others_together() -> None:
    story = Story("dead")
    assert story.see(1) == "fired"
    assert [story.see(5, after=60) for _ in range(9)] == [None] * 9
    assert story.see(0, after=60) == "again"
    assert story.cause.facts["count"] == 45
    assert story.see(0, after=600) is None
    assert story.cause.state == "quiet"
    assert story.see(1, after=86400) == "fired"


def test_what_is_gone_is_wrong_no_more_and_what_dies_after_it_is_not_lost() -> None:
    story = Story("dead")
    assert story.see(3) == "fired"
    none_left = Seen("dead:x", "dead", 0.0)
    over = judge(story.cause, none_left, TERMS, story.now)
    assert (over.event, over.cause.state, over.cause.level) == (None, "quiet", 0)
    one_left = Seen("dead:x", "dead", 1.0)
    soon = judge(replace(over.cause, pending=1), one_left, TERMS, story.now)
    assert (soon.event, soon.cause.pending) == (None, 1), "it waits for the cool-down"
    later = judge(soon.cause, one_left, TERMS, story.now + timedelta(seconds=600))
    assert later.event == "fired"
    nobody = judge(soon.cause, none_left, TERMS, story.now + timedelta(seconds=600))
    assert (nobody.event, nobody.cause.state, nobody.cause.pending) == (None, "quiet", 0)


@pytest.mark.parametrize("spared", ["silenced", "room"])
def test_what_dies_while_nobody_may_be_told_is_told_afterwards(spared: str) -> None:
    story = Story("dead")
    for _ in range(3):
        assert story.see(2, silenced=spared == "silenced", room=spared != "room") is None
    assert story.see(0) == "fired"
    assert story.cause.facts["count"] == 6


def test_each_level_of_a_target_is_told_once_per_episode() -> None:
    story = Story("target")
    told = [story.see(failures) for failures in range(1, 31)]
    assert [n for n, event in enumerate(told, 1) if event] == [10, 14, 18, 20]
    assert story.events == ["fired", "level", "level", "level"]
    assert story.cause.facts["level"] == 100
    assert story.see(0) == "resolved"
    assert story.see(0) is None


def test_of_several_levels_at_once_the_highest_is_told() -> None:
    story = Story("target")
    assert story.see(100) == "fired"
    assert story.cause.level == 100
    assert story.see(400, after=86400) is None


def test_a_target_that_comes_and_goes_is_told_of_once_per_cool_down() -> None:
    story = Story("target")
    for _ in range(20):
        story.see(11)
        story.see(0)
    assert story.events == ["fired", "resolved"]
    assert story.see(11, after=300) == "fired"


def test_a_target_that_fails_a_little_is_nobodys_business() -> None:
    story = Story("target")
    assert [story.see(9), story.see(0)] == [None, None]


def test_who_was_not_told_of_the_beginning_is_not_told_of_the_end() -> None:
    story = Story("target")
    assert story.see(20, silenced=True) is None
    assert story.see(0) is None


def test_a_level_that_was_reached_in_silence_is_told_when_it_ends() -> None:
    story = Story("target")
    assert story.see(20, silenced=True) is None
    assert story.see(21, after=3600) == "fired"


def test_an_end_without_room_is_told_when_there_is_some() -> None:
    story = Story("target")
    story.see(20)
    assert story.see(0, room=False) is None
    assert story.see(0) == "resolved"


def test_a_backlog_is_told_of_when_it_lasts_and_again_until_it_is_over() -> None:
    story = Story("backlog")
    assert [story.see(1000) for _ in range(6)] == [None] * 6
    assert story.see(1000) == "fired"
    assert [story.see(1000, after=100) for _ in range(6)] == [None] * 5 + ["again"]
    assert story.see(0) == "resolved"


def test_a_backlog_that_is_gone_within_a_minute_was_none() -> None:
    story = Story("backlog")
    for _ in range(20):
        story.see(1000, after=50)
        story.see(0, after=5)
    assert story.events == []


def test_a_worker_that_was_lost_is_told_of_once() -> None:
    story = Story("worker")
    assert story.see(1) == "fired"
    assert [story.see(1, after=3600) for _ in range(3)] == [None] * 3
    assert story.see(0) is None


@given(
    kind=st.sampled_from(["dead", "target", "backlog", "idle", "worker"]),
    values=st.lists(st.integers(0, 40), max_size=200),
)
def test_whatever_happens_there_are_few_alerts(kind: Kind, values: Sequence[int]) -> None:
    """Per cool-down at most one of each level, and an end for each beginning."""
    story = Story(kind)
    for value in values:
        story.see(value)
    windows = len(values) * 10 // int(TERMS.cooldown) + 1
    most = len(LEVELS) if kind == "target" else 1
    assert len([event for event in story.events if event != "resolved"]) <= windows * most
    assert story.events.count("resolved") <= len(story.events) / 2
