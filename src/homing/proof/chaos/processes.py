"""The processes that a chaos run starts: a receiver that outlives everybody, and workers that do not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from homing.proof.chaos.waiting import until

_READY = ("is working on", "is up:")
#: Much longer than a process takes to start, or to end, on a machine that has many other things to do.
_PATIENCE = 120.0

_read_json = msgspec.json.Decoder().decode


class Delivery(Struct, frozen=True):
    """A mail that the sink took, as its log tells it."""

    to: tuple[str, ...]
    message_id: str | None


_read_delivery = msgspec.json.Decoder(Delivery).decode


class Tail:
    """Complete lines of a file that another process appends to, each given out once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[bytes]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return whole.split(b"\n") if newline else []


class PeerProcess:
    """A receiver in a process of its own, which prints its URL when it is ready."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        whole = [sys.executable, "-m", *command]
        self._process = _start(whole, cwd=folder, environment=dict(os.environ), stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()

    def hurry(self) -> None:
        """It answers at once from now on: there is nothing more to be interrupted."""
        self._process.send_signal(signal.SIGUSR1)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class SinkProcess(PeerProcess):
    """`homing.testing.smtp_sink` as a process; its log has the line before the sender hears of it."""

    def __init__(self, folder: Path, *, delay: float) -> None:
        self._log = folder / "accepted.jsonl"
        self._tail = Tail(self._log)
        self._taken: Counter[str] = Counter()
        options = ["--log", str(self._log), "--delay", f"{delay:.4f}"]
        super().__init__(folder, ["homing.testing.smtp_sink", *options])

    def addresses(self) -> Counter[str]:
        """Everybody who has got something by now, and how often."""
        for line in self._tail.lines():
            self._taken.update(_read_delivery(line).to)
        return self._taken

    def deliveries(self) -> list[Delivery]:
        """All of them, in their order; read it when the senders are done."""
        return [_read_delivery(line) for line in Tail(self._log).lines()]


class WorkerProcess:
    """A real `homing` child. Its log is read from the file that its standard error goes to."""

    def __init__(
        self, folder: Path, name: str, environment: Mapping[str, str], arguments: Sequence[str]
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.stopped = False
        #: Whether its end is our doing.
        self.ended_by_us = False
        self._is_ready = False
        with self.log.open("ab") as stderr:
            command = [sys.executable, "-m", "homing", *arguments]
            self._process = _start(command, cwd=folder, environment=environment, stderr=stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def owner(self) -> str:
        """What the rows that it holds have in `locked_by`."""
        return f"{socket.gethostname()}:{self.pid}"

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def ready(self) -> bool:
        """Whether it has said that it works."""
        if not self._is_ready:
            said = self.log.read_text(encoding="utf-8", errors="replace")
            self._is_ready = any(words in said for words in _READY)
        return self._is_ready

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self.ended_by_us = True
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP, and wait until the kernel says that it took hold."""
        self.stopped = True
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self.stopped = False
        self._process.send_signal(signal.SIGCONT)

    async def end(self, number: signal.Signals = signal.SIGTERM, patience: float = _PATIENCE) -> int | None:
        """Ask it to stop; its exit code, or None when it had to be killed."""
        self.ended_by_us = True
        self.send(number)
        return await self.exited(patience)

    async def exited(self, patience: float = _PATIENCE) -> int | None:
        if not await until(self._has_ended, patience):
            self.kill()
            return None
        return self.exit_code

    async def _has_ended(self) -> bool:
        return self.exit_code is not None

    async def until_ready(self, patience: float = _PATIENCE) -> None:
        if not await until(self._is_ready_or_gone, patience) or not self.ready:
            raise RuntimeError(f"{self.name} did not start ({self.exit_code}):\n{self.log.read_text()}")

    async def _is_ready_or_gone(self) -> bool:
        return self.ready or self.exit_code is not None

    def events(self) -> Iterator[dict[str, Any]]:
        return read_events(self.log)


def read_events(log: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a log; the last may have been cut off by a SIGKILL."""
    for line in log.read_bytes().splitlines():
        if line.startswith(b"{") and line.endswith(b"}"):
            yield _read_json(line)


def worker_environment(database_url: str, mail_url: str, **settings: object) -> dict[str, str]:
    """Ours and nothing else: what is set in the shell for another Homing must not reach into a run."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("HOMING_", "DISPATCH_"))}
    ours = {"HOMING_DATABASE_URL": database_url, "HOMING_MAIL_URL": mail_url, "HOMING_LOG_FORMAT": "json"}
    return {**inherited, **ours, **{name.upper(): str(value) for name, value in settings.items()}}


def _start(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdout: int = subprocess.DEVNULL,
    stderr: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C is for us, and we end our children ourselves.
    return subprocess.Popen(  # noqa: S603 - our own interpreter and modules
        command, cwd=cwd, env=dict(environment), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        start_new_session=True,
    )  # fmt: skip
