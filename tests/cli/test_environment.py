"""Every flag has a name in the environment, and none of them is taken for an unknown setting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_flags_by_environment(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HOMING_DATABASE_URL": f"sqlite:///{tmp_path}/x[1].db",
        "HOMING_STATUS_JSON": "1",
        "HOMING_BENCH_MAIL_ROUNDS": "3",
        "HOMING_WORK_PROCESSES": "2",
    }

    def homing(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "homing", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    missing = homing("status")
    assert missing.returncode == 3
    assert "homing migrate" in missing.stderr
    assert homing("migrate").returncode == 0
    assert json.loads(homing("status").stdout)["mail_outbox"]["queued"] == 0
    odd = homing("migrate", "--database-url", "odd[1]://x")
    assert "odd[1]://x" in odd.stderr, "brackets are shown as they are"
