"""The vault: what it seals only it opens, in the place it was sealed for."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.errors import SettingsError
from homing.vault import Unreadable, Vault, key_file_of, load_or_make_key, open_vault

OLD, NEW = bytes(range(32)), bytes(range(100, 132))
FIELD = "dispatch_credentials.signing_secret"


@pytest.mark.clause("JOB-24")
@given(st.text(), st.integers(-(2**63), 2**63 - 1))
def test_what_is_sealed_is_opened(text: str, row: int) -> None:
    vault = Vault([NEW])
    sealed = vault.seal(text, row=row, field=FIELD)
    assert vault.open(sealed, row=row, field=FIELD) == text
    assert sealed.isascii()
    assert sealed != vault.seal(text, row=row, field=FIELD), "the nonce is random"
    assert len(text) < 4 or text not in sealed


@pytest.mark.clause("JOB-24")
def test_a_seal_holds_in_its_place_only() -> None:
    vault = Vault([NEW])
    sealed = vault.seal("hush", row=1, field=FIELD)
    for row, field in ((2, FIELD), (1, "dispatch_credentials.bearer_token"), (11, FIELD[:-1])):
        with pytest.raises(Unreadable, match="another row or column"):
            vault.open(sealed, row=row, field=field)


@pytest.mark.clause("JOB-24")
def test_every_changed_character_is_noticed() -> None:
    vault = Vault([NEW])
    sealed = vault.seal("hush", row=1, field=FIELD)
    for place in range(len(sealed)):
        for other in (chr(ord(sealed[place]) + 1), "A", "B", ":", "é", ""):
            changed = sealed[:place] + other + sealed[place + 1 :]
            if changed != sealed:
                with pytest.raises(Unreadable) as caught:
                    vault.open(changed, row=1, field=FIELD)
                assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "v1", "v1:", "v1::", "v2:abc:AAAA", "plain text", "v1:x:AAAA", "v1:x:é"]
)
def test_what_was_never_sealed(text: str) -> None:
    with pytest.raises(Unreadable):
        Vault([NEW]).open(text, row=1, field=FIELD)


def test_what_was_cut_off() -> None:
    vault = Vault([NEW])
    sealed = vault.seal("hush", row=1, field=FIELD)
    for length in range(len(sealed)):
        with pytest.raises(Unreadable):
            vault.open(sealed[:length], row=1, field=FIELD)


@pytest.mark.clause("JOB-24")
def test_keys_are_rotated() -> None:
    before, during, after = Vault([OLD]), Vault([NEW, OLD]), Vault([NEW])
    sealed = before.seal("hush", row=1, field=FIELD)
    assert before.is_current(sealed)
    assert not during.is_current(sealed)
    assert during.open(sealed, row=1, field=FIELD) == "hush"
    with pytest.raises(Unreadable, match="which is missing here"):
        after.open(sealed, row=1, field=FIELD)
    again = during.seal("hush", row=1, field=FIELD)
    assert during.is_current(again)
    assert after.open(again, row=1, field=FIELD) == "hush"


def test_keys_by_setting() -> None:
    odd = bytes([0xFB, 0xEF, 0xBE] * 10 + [1, 2])  # base64 of it holds +, / and padding
    for text in (
        b64encode(odd).decode(),
        urlsafe_b64encode(odd).decode(),
        b64encode(odd).decode().rstrip("="),
        f" {b64encode(odd).decode()} , {b64encode(OLD).decode()},",
    ):
        sealed = Vault.from_setting(text).seal("hush", row=1, field=FIELD)
        assert Vault([odd]).open(sealed, row=1, field=FIELD) == "hush"


@pytest.mark.parametrize(
    "text", ["", " , ", "hunter2", b64encode(OLD[:31]).decode(), b64encode(OLD + b"x").decode(), "é" * 44]
)
def test_a_wrong_setting_says_how_to_make_a_right_one(text: str) -> None:
    with pytest.raises(SettingsError, match="openssl rand -base64 32") as caught:
        Vault.from_setting(text)
    assert not text.strip(" ,") or text not in str(caught.value)


def test_which_of_several_keys_is_wrong() -> None:
    with pytest.raises(SettingsError, match="key 2 is not"):
        Vault.from_setting(f"{b64encode(OLD).decode()},nonsense")
    with pytest.raises(ValueError, match="32 bytes"):
        Vault([b"short"])


# ── the key file ─────────────────────────────────────────────────────────────────────────────────


def test_a_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "homing.key"
    key = load_or_make_key(path)
    assert len(key) == 32
    assert load_or_make_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["homing.key"], "no draft stays behind"


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    path = tmp_path / "homing.key"
    code = (
        "import sys; from pathlib import Path; from homing.vault import load_or_make_key; "
        "sys.stdin.readline(); print(load_or_make_key(Path(sys.argv[1])).hex())"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    keys = {process.communicate(timeout=50)[0].strip() for process in processes}
    assert keys == {load_or_make_key(path).hex()}
    assert [file.name for file in tmp_path.iterdir()] == ["homing.key"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "homing.key"
    load_or_make_key(path)
    path.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        load_or_make_key(path)


def make_foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root can give a file away; for others, somebody else looks at it."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


def test_a_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever put it there could open what is sealed by it."""
    path = tmp_path / "homing.key"
    load_or_make_key(path)
    make_foreign(path, monkeypatch)
    with pytest.raises(SettingsError, match=r"belongs to another user \(uid \d+\).*chown"):
        load_or_make_key(path)


def test_a_key_file_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "homing.key"
    path.write_text("hush, no key\n")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="restore it") as caught:
        load_or_make_key(path)
    assert "hush" not in str(caught.value)
    with pytest.raises(SettingsError, match="set HOMING_ENCRYPTION_KEY instead"):
        load_or_make_key(tmp_path / "missing" / "homing.key")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_or_make_key(tmp_path)


def test_where_the_key_file_is(tmp_path: Path) -> None:
    assert key_file_of("sqlite:///homing.db") == Path("homing.key")
    assert key_file_of("sqlite:////var/lib/my%20homing/h.db?busy_timeout=3") == Path(
        "/var/lib/my homing/homing.key"
    )
    assert key_file_of("postgresql://u@host/db") == Path("homing.key")
    sealed = open_vault(None, f"sqlite:///{tmp_path}/h.db").seal("hush", row=1, field=FIELD)
    assert open_vault(None, f"sqlite:///{tmp_path}/h.db").open(sealed, row=1, field=FIELD) == "hush"
    assert os.listdir(tmp_path) == ["homing.key"]  # noqa: PTH208 - a list to compare with
    with pytest.raises(Unreadable):
        open_vault(b64encode(OLD).decode(), "sqlite:///h.db").open(sealed, row=1, field=FIELD)
