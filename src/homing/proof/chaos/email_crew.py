"""The processes of a chaos run with emails: the API, schedulers and senders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec.json import decode

from homing.proof.chaos.email_testimony import SCHEDULE, SEND, EmailTestimony, read_email_testimony
from homing.proof.chaos.processes import Tail, WorkerProcess, read_events

_ATTEMPTED = b'"event":"delivery.attempted"'


class EmailCrew:
    """Each as many as planned. Only those whom we have killed are replaced; who ends otherwise is missed."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], *, schedulers: int, senders: int
    ) -> None:
        self._folder, self._environment = folder, environment
        self._wanted = {SCHEDULE: schedulers, SEND: senders}
        self._started = 0
        self._working: dict[str, list[WorkerProcess]] = {SCHEDULE: [], SEND: []}
        self._tails: dict[str, Tail] = {}
        self._newest: dict[str, int] = {}
        self.deserters: list[str] = []
        self.api = self._start("api", "serve")

    @property
    def port(self) -> int:
        """Where the API listens."""
        return int(self._environment["HOMING_PORT"])

    @property
    def senders(self) -> list[WorkerProcess]:
        return self._working[SEND]

    @property
    def everybody(self) -> list[WorkerProcess]:
        return [self.api, *self._working[SCHEDULE], *self._working[SEND]]

    def begin(self) -> None:
        for stage, count in self._wanted.items():
            self._working[stage] += [self._worker(stage) for _ in range(count)]

    async def until_ready(self) -> None:
        await asyncio.gather(*(worker.until_ready() for worker in self.everybody))

    def at_work(self) -> list[WorkerProcess]:
        """Schedulers and senders: who may be killed."""
        return [w for w in self.everybody[1:] if w.exit_code is None and w.ready and not w.stopped]

    def newest_sent(self) -> list[int]:
        """Of each sender the youngest email that it has tried to send by now, 0 for none."""
        for sender in self.senders:
            tail = self._tails.setdefault(sender.name, Tail(sender.log))
            tried = [decode(line)["id"] for line in tail.lines() if _ATTEMPTED in line]
            self._newest[sender.name] = max([self._newest.get(sender.name, 0), *tried])
        return [self._newest[sender.name] for sender in self.senders]

    @contextmanager
    def senders_held(self) -> Iterator[None]:
        """They stand still meanwhile, so that messages pile up."""
        held = [sender for sender in self.senders if sender.exit_code is None]
        for sender in held:
            sender.pause()
        try:
            yield
        finally:
            for sender in held:
                sender.resume()

    def muster(self) -> None:
        for stage, workers in self._working.items():
            for worker in [w for w in workers if w.exit_code is not None and w.ended_by_us]:
                workers.remove(worker)
                workers.append(self._worker(stage))

    async def dismiss(self) -> None:
        """End them in an orderly way; who had ended before, or ends in another way, has deserted."""
        for worker in self.everybody:
            if worker.exit_code is not None and not worker.ended_by_us:
                self.deserters.append(f"{worker.name}: {worker.exit_code}")
        alive = [worker for worker in self.everybody if worker.exit_code is None]
        # Who has just taken somebody's place cannot end in an orderly way before it has begun.
        await asyncio.gather(*(worker.until_ready() for worker in alive))
        codes = await asyncio.gather(*(worker.end() for worker in alive))
        self.deserters += [f"{w.name}: {c} at the end" for w, c in zip(alive, codes, strict=True) if c != 0]

    def testimony(self) -> EmailTestimony:
        logs = sorted(self._folder.glob("*.log"))
        return read_email_testimony(event for log in logs for event in read_events(log))

    def close(self) -> None:
        for worker in self.everybody:
            worker.kill()

    def _worker(self, stage: str) -> WorkerProcess:
        return self._start(stage.partition(":")[2], "work", stage)

    def _start(self, role: str, *arguments: str) -> WorkerProcess:
        self._started += 1
        return WorkerProcess(self._folder, f"{role}-{self._started:03d}", self._environment, arguments)
