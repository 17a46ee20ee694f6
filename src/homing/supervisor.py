"""`homing work --processes N`: a parent that does nothing but keep N workers alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from homing.settings import Settings

_LONGEST_RESTART_PAUSE = 30.0
_HEALTHY_AFTER = 30.0
_TICK = 0.1


class _Child:
    """One worker process, started again when it dies, more slowly each time it dies young."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment
        self._pause = 0.5
        self._start_at = 0.0
        self._told = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.exit_code: int | None = None

    def tick(self, *, restart: bool) -> None:
        now = time.monotonic()
        if self.process is None:
            if self.exit_code is None and now >= self._start_at:
                self._started = now
                # A group of its own: Ctrl-C in a terminal reaches every process of the parent's group, and
                # with the parent's word that would be two signals, which mean an immediate end.
                self.process = subprocess.Popen(  # noqa: S603 - ourselves
                    self._command, env=dict(self._environment), process_group=0
                )
        elif (code := self.process.poll()) is not None:
            self.process = None
            if restart and code not in {0, 2}:
                self._plan_restart(code, now)
            else:
                self.exit_code = code

    def tell(self, signals: int) -> None:
        """Pass on what we were told, one signal at a time: two that are pending are seen as one."""
        if self.process is not None and self._told < signals:
            self._told += 1
            self.process.send_signal(signal.SIGTERM)

    def _plan_restart(self, code: int, now: float) -> None:
        self._pause = (
            0.5 if now - self._started > _HEALTHY_AFTER else min(self._pause * 2, _LONGEST_RESTART_PAUSE)
        )
        self._start_at = now + self._pause
        sys.stderr.write(f"homing: a worker ended with {code}; a new one starts in {self._pause:g} s\n")


class _Supervisor:
    def __init__(self, children: Sequence[_Child], grace_seconds: float) -> None:
        self._children = children
        self._grace_seconds = grace_seconds
        self._signals = 0
        self._kill_at = float("inf")

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Only noted here: a signal may come between a child's start and our knowing of it."""
        self._signals += 1
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_seconds + 10)

    @property
    def _stopping(self) -> bool:
        return self._signals > 0

    def run(self) -> int:
        while not all(self._ended(child) for child in self._children):
            for child in self._children:
                self._look_after(child)
            time.sleep(_TICK)
        return max((_severity(child.exit_code or 0) for child in self._children), default=0)

    def _look_after(self, child: _Child) -> None:
        if not (self._stopping and child.process is None):
            child.tick(restart=not self._stopping)
        child.tell(self._signals)
        if child.process is not None and time.monotonic() > self._kill_at:
            child.process.kill()

    def _ended(self, child: _Child) -> bool:
        return child.process is None and (self._stopping or child.exit_code is not None)


def _severity(code: int) -> int:
    # One that was told to stop before it had learnt to listen held nothing yet.
    return 0 if code == -signal.SIGTERM else abs(code)


def supervise(
    command: Sequence[str], processes: int, settings: Settings, overrides: Mapping[str, str]
) -> int:
    """Run `processes` workers until a signal comes or all have ended; the exit code of the worst."""
    children = []
    for number in range(processes):
        port = {"HOMING_METRICS_PORT": str(settings.metrics_port + number)} if settings.metrics_port else {}
        children.append(_Child(command, {**os.environ, **overrides, **port}))
    supervisor = _Supervisor(children, settings.grace_seconds)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.stop)
    return supervisor.run()
