"""The links in mails: for one purpose, one subscription and one address."""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.errors import SettingsError
from homing.lanes.open_events.links import (
    LinkKeys,
    Links,
    Purpose,
    contact_hash,
    is_same_token,
    open_link_keys,
    read_token,
)

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
KEY, OLD_KEY = secrets.token_bytes(32), secrets.token_bytes(32)
KEYS = LinkKeys([KEY])
ANN = "ann@example.org"
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


def token_in(url: str) -> str:
    return url.partition("?token=")[2]


@pytest.fixture
def links() -> Links:
    return Links(lambda: KEYS, lambda: "https://seats.example/")


def test_links_go_where_they_should(links: Links) -> None:
    assert re.fullmatch(r"https://seats\.example/subscriptions/12\?token=[\w-]+", links.manage_url(12, ANN))
    assert re.fullmatch(r"https://seats\.example/unsubscribe\?token=[\w-]+", links.unsubscribe_url(12, ANN))
    assert re.fullmatch(r"https://seats\.example/confirm\?token=[\w-]+", links.confirm_url(12, ANN, now=NOW))
    assert len(token_in(links.unsubscribe_url(2**31, ANN))) <= 32


@given(st.integers(1, 2**63 - 1), st.sampled_from(PURPOSES), st.emails())
def test_a_link_is_good_for_its_purpose_its_subscription_and_its_address(
    id: int, purpose: Purpose, address: str
) -> None:
    expires = int(NOW.timestamp()) + 1 if purpose == "confirm" else None
    token = read_token(KEYS.sign(purpose, id, address, expires))
    assert token is not None
    assert (token.purpose, token.subscription_id, token.expires) == (purpose, id, expires)
    for asked in PURPOSES:
        expected = "valid" if asked == purpose else "invalid"
        assert KEYS.check(token, asked, address, now=NOW) == expected
    assert KEYS.check(token, purpose, f" {address.upper()}", now=NOW) == "valid", "as the hash sees it"
    assert KEYS.check(token, purpose, f"x{address}", now=NOW) == "invalid"
    assert KEYS.check(token, purpose, None, now=NOW) == "invalid"


def test_only_a_confirmation_expires(links: Links) -> None:
    confirm = read_token(token_in(links.confirm_url(5, ANN, now=NOW)))
    in_time, late = NOW + timedelta(hours=23, minutes=59), NOW + timedelta(hours=24)
    assert KEYS.check(confirm, "confirm", ANN, now=in_time) == "valid"
    assert KEYS.check(confirm, "confirm", ANN, now=late) == "expired"
    assert KEYS.check(confirm, "confirm", "b@example.org", now=late) == "invalid", "and not expired"
    manage = read_token(token_in(links.manage_url(5, ANN)))
    assert KEYS.check(manage, "manage", ANN, now=NOW + timedelta(days=36500)) == "valid"


def test_the_newest_key_signs_and_all_keys_verify() -> None:
    rotated = LinkKeys([KEY, OLD_KEY])
    old = read_token(LinkKeys([OLD_KEY]).sign("manage", 5, ANN))
    assert rotated.check(old, "manage", ANN, now=NOW) == "valid"
    assert rotated.sign("manage", 5, ANN) == KEYS.sign("manage", 5, ANN)
    assert KEYS.check(old, "manage", ANN, now=NOW) == "invalid"
    with pytest.raises(ValueError, match="key"):
        LinkKeys([])


@given(st.text(max_size=300) | st.binary(max_size=60).map(lambda b: b64encode(b, b"-_").decode().rstrip("=")))
def test_whatever_is_thrown_at_it_is_invalid(text: str) -> None:
    token = read_token(text)
    for purpose in PURPOSES:
        assert KEYS.check(token, purpose, ANN, now=NOW) == "invalid"


@pytest.mark.parametrize("purpose", PURPOSES)
def test_no_changed_character_goes_unnoticed(purpose: Purpose) -> None:
    expires = int(NOW.timestamp()) + 60 if purpose == "confirm" else None
    text = KEYS.sign(purpose, 70_000, ANN, expires)
    for place in range(len(text)):
        for other in ("A", "_", "9", "=", "", " "):
            changed = text[:place] + other + text[place + 1 :]
            if changed != text:
                token = read_token(changed)
                verdicts = {KEYS.check(token, asked, ANN, now=NOW) for asked in PURPOSES}
                assert verdicts == {"invalid"}, changed


def test_an_id_of_another_program_may_be_anything(links: Links) -> None:
    for id in (0, -5):
        assert read_token(token_in(links.manage_url(id, ANN))) is None


def test_a_token_that_another_program_wrote_is_compared_as_it_is() -> None:
    assert is_same_token("abc", "abc")
    assert not is_same_token("abc", "abd")
    for nothing in (None, ""):
        assert not is_same_token(nothing, "")
    assert not is_same_token("abc", "\ud800")


def test_the_contact_hash_is_the_one_of_the_table() -> None:
    assert contact_hash(" Ann@Example.org ") == contact_hash(ANN)
    assert contact_hash("a@b.c") == "e2d6a40c8b4d3e6a2779ba1802ef29d13940a051"


def test_keys_come_from_the_setting_or_the_key_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'homing.db'}"
    made = open_link_keys(None, url)
    assert (tmp_path / "homing.key").exists()
    assert open_link_keys(None, url).sign("manage", 1, ANN) == made.sign("manage", 1, ANN)
    setting = ",".join(b64encode(key).decode() for key in (KEY, OLD_KEY))
    given = open_link_keys(setting, url)
    assert given.sign("manage", 1, ANN) == KEYS.sign("manage", 1, ANN)
    assert repr(given) == "<LinkKeys of 2 keys>"
    with pytest.raises(SettingsError):
        open_link_keys("nonsense", url)
