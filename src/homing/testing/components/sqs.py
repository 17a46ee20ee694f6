"""An SQS of our own: ministack, which speaks its API, on a free port of loopback, ended with the run.

Where `HOMING_TEST_SQS_URL` names one, as `sqs://…`, tests use that one instead; see `shared.py`.
"""

from __future__ import annotations

import http.client
import importlib.util
import sys
from pathlib import Path
from typing import IO, Self

from homing.testing.components.obtain import Missing
from homing.testing.components.processes import free_port, guard, hold, make_home, wait_until

_PATIENCE = 60.0


class SqsServer:
    """A private ministack. It forgets everything when it ends, and it ends with its holder."""

    def __init__(self, holders: Path | None = None) -> None:
        self._shared_holders = holders
        self.port = free_port()
        self.home = make_home("homing-sqs-", None)
        self._hold: IO[str] | None = None
        self.url = f"sqs://127.0.0.1:{self.port}?region=us-east-1"

    def start(self) -> None:
        """Returns when it answers."""
        holders = self._shared_holders or self.home / "holders"
        if self._shared_holders is None:
            self._hold = hold(holders)
        command = ["env", *self._environment(), sys.executable, "-m", "ministack"]
        guard("run", holders, self.home, command)
        wait_until(self.running, f"starting ministack on port {self.port}", _PATIENCE)

    def running(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/_ministack/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def close(self) -> None:
        if self._hold is None:
            return
        self._hold.close()
        self._hold = None
        wait_until(lambda: not self.home.exists(), "stopping ministack")

    def _environment(self) -> list[str]:
        """All that names a place, a port or an address. What is not SQS must not listen at all."""
        variables = {
            "GATEWAY_PORT": self.port,
            "BIND_HOST": "127.0.0.1",
            "MINISTACK_HOST": "127.0.0.1",
            "SERVICES": "sqs",
            "SFTP_ENABLED": 0,
            "IOT_MTLS_ENABLED": 0,
            "STATE_DIR": self.home / "state",
            "S3_DATA_DIR": self.home / "s3",
            "TMPDIR": self.home,
            "LOG_LEVEL": "WARNING",
        }
        return [f"{name}={value}" for name, value in variables.items()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_sqs(holders: Path | None = None) -> SqsServer | Missing:
    """A private one, running; it ends with whoever holds `holders`, else with us."""
    if importlib.util.find_spec("ministack") is None:
        return Missing("SQS", "the PyPI package ministack is not installed")
    server = SqsServer(holders)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server
