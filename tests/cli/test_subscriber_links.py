"""Links in mails that nobody could open: said at the start, and found by the doctor."""

from __future__ import annotations

import pytest
from tests.notifications import notification_bench

from homing.app import unusable_links, warnings_for
from homing.doctor import Finding, examine
from homing.settings import Settings, load_settings

SENDGRID = "sendgrid://:SG.key@?endpoint=http://127.0.0.1:1"


def settings_of(**given: str) -> Settings:
    return load_settings({"mail_url": "smtp://mail.example.org", **given}, environ={})


@pytest.mark.clause("NTF-19")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "HOMING_BASE_URL is not set"),
        ({"base_url": "https://localhost"}, "HOMING_BASE_URL is https://localhost"),
        ({"base_url": "http://127.0.0.1:8080"}, "nobody else can open"),
        ({"base_url": "http://seats.example"}, "plain http"),
        ({"mail_url": SENDGRID}, "HOMING_BASE_URL is not set"),
        ({"mail_url": f"memory://,{SENDGRID}"}, "HOMING_BASE_URL is not set"),
    ],
)
def test_links_that_nobody_can_open_are_warned_of(given: dict[str, str], words: str) -> None:
    settings = settings_of(**given)
    (warning,) = [one for one in warnings_for(settings) if "HOMING_BASE_URL" in one]
    assert words in warning
    assert "SG.key" not in warning


@pytest.mark.parametrize(
    "given",
    [{"base_url": "https://seats.example"}, {"mail_url": "catch://"}, {"mail_url": "memory://"}],
)
def test_links_that_work_or_go_nowhere_are_not(given: dict[str, str]) -> None:
    settings = settings_of(**given)
    assert unusable_links(settings) is None
    assert not [one for one in warnings_for(settings) if "HOMING_BASE_URL" in one]


def test_a_key_in_a_folder_signs_links_that_others_refuse() -> None:
    settings = settings_of(database_url="postgresql://db.example/homing")
    (warning,) = [one for one in warnings_for(settings) if "HOMING_ENCRYPTION_KEY" in one]
    assert "links of subscribers" in warning


async def links_finding(database_url: str) -> Finding:
    found = await examine(settings_of(database_url=database_url, mail_url="smtp://127.0.0.1:1"))
    return next(finding for finding in found if finding.check == "subscriber links")


@pytest.mark.clause("NTF-19")
async def test_the_doctor_minds_them_when_somebody_has_subscribed(database_url: str) -> None:
    async with notification_bench(database_url) as bench:
        finding = await links_finding(database_url)
        assert finding.well
        assert finding.detail.startswith("nobody has subscribed")
        await bench.subscription()
        finding = await links_finding(database_url)
        assert not finding.well
        assert "HOMING_BASE_URL is not set" in finding.detail
