"""What somebody must not see whom a mail is not for."""

from __future__ import annotations

import pytest

from homing.senders.hiding import hide_in_json

SECRETS = (
    '"otp": "CANARY1", "api_key": ["CANARY2", "CANARY3"], "pin": 4711, "user": {"password": "CAN\\"ARY4"}'
)


@pytest.mark.parametrize(
    "spoilt",
    [
        '{%s, "score": NaN}',
        '{%s, "score": 1e999}',
        '{%s, "half": "\\ud800"}',
        "{%s,}",
        "{%s",
        '{"a":' * 2000 + "{%s}" + "}" * 2000,
    ],
)
def test_what_we_cannot_read_keeps_its_secrets_as_well(spoilt: str) -> None:
    """Another program wrote it, by a reader and a writer of its own."""
    shown = hide_in_json(spoilt % SECRETS)
    assert "CANARY" not in shown
    assert "ARY4" not in shown
    assert "4711" not in shown
    assert shown.count("hidden-in-preview") == 4


def test_what_is_no_secret_stays_as_it_was_written() -> None:
    text = (
        '{"name": "Ann", "total": 1.10, "tags": ["a", "b"], "score": NaN, "link": "https://x.example/a?b=c"}'
    )
    assert hide_in_json(text) == text
    assert hide_in_json("not {json at: all") == "not {json at: all"
