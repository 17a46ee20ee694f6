"""When plain http and loopback are open to webhooks, and when not."""

from __future__ import annotations

import pytest

from homing.parts.jobs import egress_guard
from homing.settings import load_settings


@pytest.mark.clause("JOB-24")
@pytest.mark.parametrize(
    ("flags", "is_open"),
    [
        ({}, True),
        ({"allow_http": False}, False),
        ({"host": "0.0.0.0"}, False),
        ({"base_url": "https://homing.example.com"}, False),
        ({"base_url": "http://localhost:8080"}, True),
    ],
)
def test_trying_things_out_is_open_and_serving_others_is_not(flags: dict[str, object], is_open: bool) -> None:
    guard = egress_guard(load_settings(flags, environ={}))
    assert (guard.refusal("127.0.0.1") is None) is is_open
    assert (guard.url_refusal("http://partner.example/") is None) is is_open
    assert guard.url_refusal("https://partner.example/") is None
