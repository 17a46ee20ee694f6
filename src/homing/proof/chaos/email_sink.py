"""The receiver of a chaos run with emails: it refuses some at first, takes its time, and notes all down.

A process of its own, `python -m homing.proof.chaos.email_sink PLAN`. Whom it refuses, and how often, is drawn
from the seed and the address alone, so that a send too many can be told from one that was to be expected.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
from msgspec import Struct

from homing.proof.chaos.processes import PeerProcess, Tail
from homing.testing.smtp_sink import Act, SinkMail, SinkSettings, SmtpSink, Stage, reply

#: Of those that are refused at first, how many are so twice.
_TWICE = 0.2


class SinkPlan(Struct, frozen=True):
    log: str
    #: Seconds before it says yes to a mail.
    delay: float
    #: How many addresses are refused at first, from 0 to 1.
    refuse: float = 0.0
    seed: int = 0

    def refusals_of(self, address: str) -> int:
        """How often an address is told to come later before it is served."""
        chance = random.Random(f"{self.seed}:{address}")  # noqa: S311 - a fault need not be unguessable
        if chance.random() >= self.refuse:
            return 0
        return 2 if chance.random() < _TWICE else 1


class Contact(Struct, frozen=True):
    """A mail that somebody tried to hand over."""

    #: Unix time.
    at: float
    address: str
    taken: bool
    message_id: str | None = None


_read_contact = msgspec.json.Decoder(Contact).decode
_encode = msgspec.json.Encoder().encode


class EmailSinkProcess(PeerProcess):
    def __init__(self, folder: Path, plan: SinkPlan) -> None:
        file = folder / "sink.json"
        file.write_bytes(_encode(plan))
        self._log = Path(plan.log)
        super().__init__(folder, [__name__, str(file)])

    def contacts(self) -> list[Contact]:
        """All of them, in their order; read it when the senders are done."""
        return [_read_contact(line) for line in Tail(self._log).lines()]


# ── in its own process ───────────────────────────────────────────────────────────────────────────


class _Clerk:
    """Decides and writes down; its line is in the log before the sender hears of it."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._refused: Counter[str] = Counter()
        self._log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def answer(self, stage: Stage, address: str) -> Act | None:
        if stage != "rcpt" or self._refused[address] >= self._plan.refusals_of(address):
            return None
        self._refused[address] += 1
        self._write(Contact(time.time(), address, taken=False))
        return reply("450 4.2.1 mailbox busy")

    def take(self, mail: SinkMail) -> None:
        for address in mail.recipients:
            self._write(Contact(time.time(), address, taken=True, message_id=mail.message_id))

    def _write(self, contact: Contact) -> None:
        os.write(self._log, _encode(contact) + b"\n")


async def _serve(plan: SinkPlan) -> None:
    clerk = _Clerk(plan)
    settings = SinkSettings(delay=plan.delay, keep_data=False, keep_mails=False)
    async with SmtpSink(settings, script=clerk.answer, on_mail=clerk.take) as sink:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, sink.hurry)
        sys.stdout.write(f"{sink.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    asyncio.run(_serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=SinkPlan)))


if __name__ == "__main__":
    main()
