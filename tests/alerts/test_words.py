"""What an alert says, and where it leads."""

from __future__ import annotations

import pytest

from homing.alerts.words import words_of


@pytest.mark.parametrize(
    ("target", "link"),
    [
        ("http://127.0.0.1:80", "/targets/one?target=http%3A%2F%2F127.0.0.1%3A80"),
        (
            "https://x.example:443#5",
            "/targets/one?target=https%3A%2F%2Fx.example%3A443&credentials=0000000000005",
        ),
        ("", "/targets"),
        (f"odd&#{'9' * 100}", "/targets/one?target=odd%26"),
    ],
)
def test_an_alert_of_a_target_leads_to_its_page(target: str, link: str) -> None:
    for event in ("fired", "resolved"):
        assert words_of("target", event, {"target": target, "failures": 3, "level": 50}).link == link


@pytest.mark.parametrize(("threshold", "said"), [(1, "10; one is too many"), (20, "10; 20 are too many")])
def test_how_many_are_too_many(threshold: int, said: str) -> None:
    facts = {"target": "http://x:80", "failures": 10, "level": 100, "threshold": threshold}
    assert ("Failures in a row", said) in words_of("target", "fired", facts).facts
