"""How a key looks, and what is kept of it."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.access.key_text import KeyHashes, id_of, make_key
from homing.errors import SettingsError

OLD, NEW = b64encode(b"o" * 32).decode(), b64encode(b"n" * 32).decode()


def test_a_key_names_its_row_and_two_are_never_the_same() -> None:
    keys = [make_key() for _ in range(200)]
    assert all(id_of(key.text) == key.id for key in keys)
    assert len({key.id for key in keys}) == len({key.text for key in keys}) == 200
    assert {len(key.text) for key in keys} == {4 + 10 + 1 + 43 + 1 + 6}
    assert "text" not in repr(keys[0])
    assert keys[0].text not in repr(keys[0])


@given(place=st.integers(4, 64), letter=st.sampled_from("0aZz_- \x00é"))
def test_one_wrong_letter_is_no_key_at_all(place: int, letter: str) -> None:
    key = make_key().text
    changed = key[:place] + letter + key[place + 1 :]
    assert id_of(changed) == (id_of(key) if changed == key else None)


@given(st.text(max_size=100))
def test_any_other_text_is_no_key(text: str) -> None:
    assert id_of(text) is None
    assert id_of(f"hom_{text}") is None


def test_without_an_encryption_key_a_plain_hash_is_kept() -> None:
    hashes, key = KeyHashes(), make_key().text
    stored = hashes.of(key)
    assert stored.startswith("sha256:")
    assert key not in stored
    assert hashes.match(stored, key)
    assert not hashes.match(stored, make_key().text)
    assert not hashes.match(None, key)
    assert not hashes.match(None, "nobody")


def test_with_one_the_hash_cannot_be_made_without_it() -> None:
    key = make_key().text
    plain, keyed = KeyHashes.from_setting(None), KeyHashes.from_setting(NEW)
    assert keyed.of(key).startswith("hmac:")
    assert keyed.match(plain.of(key), key), "one that was made before there was an encryption key"
    assert not plain.match(keyed.of(key), key)
    assert not KeyHashes.from_setting(OLD).match(keyed.of(key), key)


def test_hashes_move_on_to_the_newest_encryption_key() -> None:
    key = make_key().text
    old, both = KeyHashes.from_setting(OLD), KeyHashes.from_setting(f"{NEW},{OLD}")
    stored = old.of(key)
    assert both.match(stored, key)
    assert not both.is_current(stored)
    assert not both.is_current(KeyHashes().of(key))
    assert both.is_current(both.of(key))
    assert KeyHashes.from_setting(NEW).match(both.of(key), key)
    assert KeyHashes().is_current(stored), "who has no encryption key leaves it as it is"


def test_a_bad_encryption_key_is_said_to_be_one() -> None:
    with pytest.raises(SettingsError, match="HOMING_ENCRYPTION_KEY"):
        KeyHashes.from_setting("short")
