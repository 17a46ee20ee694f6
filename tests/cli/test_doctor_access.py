"""What `homing doctor` says of who may do what: proxies, keys, and files that others may read."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_doctor_webhooks import KEY, findings
from tests.command import Homing


def test_keys_that_count_no_more_are_named_with_what_to_do(homing: Homing) -> None:
    homing("migrate")
    made = json.loads(homing("keys", "create", "shop", "--scope", "ops", "--json").stdout)
    key = {"HOMING_ENCRYPTION_KEY": KEY}
    assert findings(homing)["access keys"] == {"check": "access keys", "ok": True, "detail": "1 that count"}
    told = findings(homing, **key)["access keys"]
    assert not told["ok"]
    assert f"{made['id']} (shop) was made without HOMING_ENCRYPTION_KEY" in told["detail"]
    assert "unsealed" in homing("keys", "list", **key).stdout
    sealed = json.loads(homing("keys", "seal", made["id"], "--json", **key).stdout)
    assert (sealed["id"], sealed["state"]) == (made["id"], "valid")
    assert findings(homing, **key)["access keys"]["ok"]


def test_files_that_others_may_read_are_named_with_what_to_do(homing: Homing, tmp_path: Path) -> None:
    homing("migrate")
    assert findings(homing)["database file"]["ok"]
    tmp_path.chmod(0o755)
    file = tmp_path / "homing.db"
    assert findings(homing)["database file"]["ok"], "it was made for its owner alone"
    file.chmod(0o644)
    told = findings(homing)["database file"]
    assert not told["ok"]
    assert "chmod 600" in told["detail"]
    assert "homing.db" in told["detail"]
    tmp_path.chmod(0o700)
    assert findings(homing)["database file"]["ok"], "nobody else comes into the folder"


def test_a_proxy_that_is_not_named_is_told_of_as_far_as_it_can_be_seen(homing: Homing) -> None:
    homing("migrate")
    https = {"HOMING_BASE_URL": "https://homing.example.com"}
    assert findings(homing)["proxies"]["ok"]
    unnamed = findings(homing, **https)["proxies"]
    assert not unnamed["ok"]
    assert "HOMING_TRUSTED_PROXIES does not name it" in unnamed["detail"]
    named = findings(homing, **https, HOMING_TRUSTED_PROXIES="10.1.0.9")["proxies"]
    assert (named["ok"], named["detail"]) == (True, "10.1.0.9 may say whom they ask for")
    everybody = findings(homing, HOMING_TRUSTED_PROXIES="10.1.0.9,::/0")["proxies"]
    assert not everybody["ok"]
    assert "believes everybody" in everybody["detail"]
