"""Settings: precedence, ranges, unknown names, secrets."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.test_vault import make_foreign

from homing.app import warnings_for
from homing.errors import SettingsError
from homing.parts.mails import mail_policy
from homing.settings import FIELDS, Settings, default_config, environment_name, load_settings


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where a file that is written is nobody else's to change, as is usual."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.clause("OUT-11")
def test_the_parameters_of_the_specification_and_their_defaults() -> None:
    settings = load_settings(environ={})
    assert settings.dispatch_max_attempts == 5
    assert settings.dispatch_backoff_base_seconds == 30
    assert settings.dispatch_backoff_max_seconds == 3600
    assert settings.dispatch_backoff_jitter == 0.2
    changed = load_settings(
        environ={
            "DISPATCH_MAX_ATTEMPTS": "7",
            "DISPATCH_BACKOFF_BASE_SECONDS": "10",
            "DISPATCH_BACKOFF_MAX_SECONDS": "600",
            "DISPATCH_BACKOFF_JITTER": "0",
        }
    )
    assert (changed.dispatch_max_attempts, changed.dispatch_backoff_base_seconds) == (7, 10)
    assert (changed.dispatch_backoff_max_seconds, changed.dispatch_backoff_jitter) == (600, 0.0)


@pytest.mark.clause("OUT-11")
@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("DISPATCH_MAX_ATTEMPTS", "0", "1 to 1000"),
        ("DISPATCH_MAX_ATTEMPTS", "2.5", "1 to 1000"),
        ("DISPATCH_MAX_ATTEMPTS", "many", "1 to 1000"),
        ("DISPATCH_BACKOFF_BASE_SECONDS", "-1", "1 to 86400"),
        ("DISPATCH_BACKOFF_MAX_SECONDS", "0", "1 to 2592000"),
        ("DISPATCH_BACKOFF_JITTER", "1.5", "0.0 to 1.0"),
        ("DISPATCH_BACKOFF_JITTER", "nan", "0.0 to 1.0"),
        ("DISPATCH_LEASE_SECONDS", "0", "1.0 to 3600.0"),
        ("HOMING_PORT", "70000", "0 to 65535"),
    ],
)
def test_a_value_out_of_range_names_the_setting_the_value_and_the_range(
    name: str, value: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={name: value})
    message = str(caught.value)
    assert name in message
    assert value in message
    assert allowed in message


@pytest.mark.clause("OUT-09", "OUT-11")
def test_a_base_above_the_maximum_waits_the_maximum() -> None:
    """min(raw, max) defines it, whichever is the larger."""
    settings = load_settings(environ={"DISPATCH_BACKOFF_MAX_SECONDS": "10", "DISPATCH_BACKOFF_JITTER": "0"})
    policy = mail_policy(settings)
    assert [policy.backoff(failures, lambda: 0.0) for failures in (1, 2, 5)] == [10, 10, 10]


def test_a_first_cooldown_above_the_longest_one_starts() -> None:
    """As with the waits: what is set as the longest is the longest."""
    settings = load_settings(environ={"HOMING_JOBS_BREAKER_MAX_SECONDS": "1"})
    assert (settings.jobs_breaker_seconds, settings.jobs_breaker_max_seconds) == (5, 1)


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(tmp_path: Path) -> None:
    (tmp_path / "homing.toml").write_text('port = 1001\nhost = "127.0.0.3"\nmail_from = "file@example.org"\n')
    environ = {"HOMING_PORT": "1002", "HOMING_HOST": "127.0.0.2"}
    settings = load_settings({"port": 1003, "host": None}, environ=environ)
    assert (settings.port, settings.host, settings.mail_from) == (1003, "127.0.0.2", "file@example.org")
    assert settings.database_url == "sqlite:///homing.db"


def test_unset_is_not_default(tmp_path: Path) -> None:
    """A setting that only the file names is not overridden by the environment's silence."""
    (tmp_path / "homing.toml").write_text("dispatch_max_attempts = 9\n")
    assert load_settings(environ={"DISPATCH_MAX_ATTEMPTS": ""}).dispatch_max_attempts == 9


def test_an_unknown_name_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HOMING_DATABSE_URL; did you mean HOMING_DATABASE_URL"):
        load_settings(environ={"HOMING_DATABSE_URL": "x"})
    (tmp_path / "homing.toml").write_text("mail_ulr = 'catch://'\n")
    with pytest.raises(SettingsError, match="mail_ulr; did you mean mail_url"):
        load_settings(environ={})


def test_a_setting_that_is_gone_is_told_of_and_stops_nobody(tmp_path: Path) -> None:
    for place, named in (("environment", {"HOMING_EMAIL_SWEEP_SECONDS": "900"}), ("file", {})):
        settings = load_settings(environ=named)
        (told,) = settings.removed
        assert told in warnings_for(settings)
        assert told.startswith(f"HOMING_EMAIL_SWEEP_SECONDS ({place}) has no effect any more")
        assert "HOMING_EMAIL_LOST_AFTER_SECONDS" in told
        (tmp_path / "homing.toml").write_text("email_sweep_seconds = 900\n")
    assert "email_sweep_seconds" not in default_config()


def test_other_prefixes_and_test_names_are_left_alone() -> None:
    load_settings(environ={"DISPATCH_SOMETHING": "1", "HOMING_TEST_POSTGRES_URL": "x", "PATH": "/bin"})


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("smtp://user:hush@relay.example\n")
    settings = load_settings(environ={"HOMING_MAIL_URL_FILE": str(tmp_path / "url")})
    assert settings.mail_url == "smtp://user:hush@relay.example"
    with pytest.raises(SettingsError, match=r"HOMING_MAIL_URL_FILE names .* cannot be read"):
        load_settings(environ={"HOMING_MAIL_URL_FILE": str(tmp_path / "missing")})


def test_a_broken_or_missing_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "homing.toml").write_text("port = \n")
    with pytest.raises(SettingsError, match=r"homing\.toml cannot be read"):
        load_settings(environ={})
    with pytest.raises(SettingsError, match="there is no configuration file"):
        load_settings(environ={}, config=tmp_path / "other.toml")


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_of_this_folder_that_others_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "homing.toml"
    path.write_text("port = 1001\n")
    path.chmod(mode)
    with pytest.raises(SettingsError, match=r"may be changed by others.*chmod 600 homing\.toml"):
        load_settings(environ={})
    assert load_settings(environ={}, config=path).port == 1001, "who names a file knows whose it is"
    path.chmod(0o644)
    assert load_settings(environ={}).port == 1001


def test_a_file_of_this_folder_that_is_another_users_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "homing.toml"
    path.write_text("mail_url = 'smtp://hush.example'\n")
    make_foreign(path, monkeypatch)
    with pytest.raises(SettingsError, match=r"homing.toml belongs to another user \(uid \d+\)") as caught:
        load_settings(environ={})
    assert "hush" not in str(caught.value)
    assert load_settings(environ={}, config=path).mail_url == "smtp://hush.example"


def test_a_database_that_somebody_else_put_into_this_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its users and keys would count, and it would get our mails."""
    path = tmp_path / "homing.db"
    path.touch(0o644)
    assert load_settings(environ={}).database_url == "sqlite:///homing.db"
    path.chmod(0o666)
    with pytest.raises(SettingsError, match=r"homing\.db may be changed by others.*chmod 600 homing\.db"):
        load_settings(environ={})
    path.chmod(0o600)
    make_foreign(path, monkeypatch)
    with pytest.raises(SettingsError, match=r"homing\.db belongs to another user \(uid \d+\)"):
        load_settings(environ={})
    named = {"HOMING_DATABASE_URL": "sqlite:///homing.db"}
    assert load_settings(environ=named).origin("database_url") == "environment", (
        "who names a file knows whose it is"
    )


def test_errors_do_not_show_secrets(tmp_path: Path) -> None:
    (tmp_path / "homing.toml").write_text("mail_url = 5\nencryption_key = 7777\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={})
    assert "7777" not in str(caught.value)


def test_the_names_of_the_design_are_accepted() -> None:
    names = {
        *("HOMING_DATABASE_URL", "HOMING_JOBS_DATABASE_URL", "HOMING_NOTIFY_DATABASE_URL", "HOMING_MAIL_URL"),
        *(
            "HOMING_BROKER_URL",
            "HOMING_EMAIL_BROKER_URL",
            "HOMING_JOBS_BROKER_URL",
            "HOMING_HOST",
            "HOMING_PORT",
        ),
        *("HOMING_BASE_URL", "HOMING_MAIL_FROM", "HOMING_ENCRYPTION_KEY", "HOMING_EGRESS_ALLOW"),
        *("HOMING_ALLOW_HTTP", "HOMING_JOBS_BACKOFF_BASE_SECONDS", "HOMING_JOBS_BACKOFF_MAX_SECONDS"),
        "DISPATCH_LEASE_SECONDS",
    }
    assert names <= set(FIELDS)


def test_config_default_toml_is_the_code() -> None:
    """The file at the root of the repository lists every setting with its default and its comment."""
    text = (Path(__file__).parent.parent / "config.default.toml").read_text()
    assert text == default_config(), "run `make config` to write it anew"
    values = tomllib.loads(text)
    for field, info in Settings.model_fields.items():
        assert environment_name(field) in text
        assert values.get(field) == info.default
        assert re.search(rf"^#? ?{field} = ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"jobs_header_prefix": "Webhook"}, "clashes with Standard Webhooks"),
    ],
)
def test_settings_of_webhooks_that_cannot_work_together(flags: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(flags, environ={})
