"""What `homing doctor` says of who may do what: proxies, keys, and files that others may read."""

from __future__ import annotations

from tests.cli.test_doctor_webhooks import findings
from tests.command import Homing


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
