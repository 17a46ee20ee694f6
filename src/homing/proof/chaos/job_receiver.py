"""The receiver of a chaos run with webhooks: it verifies, notes down, fails now and then, and takes its time.

A process of its own, `python -m homing.proof.chaos.job_receiver PLAN`. It writes one line when a request has
come in and one just before it is answered, so that requests that were there at the same time can be told.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import count
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.proof.chaos.processes import PeerProcess, Tail
from homing.signatures import VerificationError, verify
from homing.testing.http_sink import Answer, Faults, HttpSink, SinkRequest


class Keys(Struct, frozen=True):
    """What a receiver has of credentials."""

    signing_secret: str
    bearer_token: str

    def __repr__(self) -> str:
        return "Keys(…)"


class ReceiverPlan(Struct, frozen=True):
    log: str
    #: By path: each receiver has secrets of its own, so that a mix-up is seen.
    keys: Mapping[str, Keys]
    #: Seconds for which it holds every request.
    hold: float
    #: How many requests get a 500, from 0 to 1.
    fail: float = 0.0
    seed: int = 0
    #: How many requests are to be there at the same time, once. Until they were, it holds each for longer, so
    #: that this does not depend on how fast the machine is.
    crowd: int = 0


class Begun(Struct, frozen=True, tag="begun"):
    """A request came in whole, and this will be the answer."""

    number: int
    at: float
    webhook_id: str | None
    status: int
    sha256: str
    #: Why its signatures or its bearer token are not as they should be.
    refused: str | None = None


class Ended(Struct, frozen=True, tag="ended"):
    """The same request is answered now."""

    number: int
    at: float


class Receipt(Struct, frozen=True):
    """A request, from its last byte to its answer."""

    webhook_id: str | None
    status: int
    sha256: str
    refused: str | None
    begun: float
    ended: float

    @property
    def accepted(self) -> bool:
        return self.status == 200


#: Seconds for which a request waits for others while there was no crowd yet, and in a hurry.
_GATHERING = 1.0
_HURRY = 0.02

_read_line = msgspec.json.Decoder(Begun | Ended).decode
_encode = msgspec.json.Encoder().encode


class ReceiverProcess(PeerProcess):
    def __init__(self, folder: Path, plan: ReceiverPlan) -> None:
        # By a file, because everybody can see arguments; the folder is ours alone.
        file = folder / "receiver.json"
        file.write_bytes(_encode(plan))
        self._log = Path(plan.log)
        self._tail = Tail(self._log)
        self._accepted: Counter[str] = Counter()
        super().__init__(folder, [__name__, str(file)])

    def accepted(self) -> Counter[str]:
        """The webhook-ids that it has said yes to by now, or is about to, and how often."""
        lines = (_read_line(line) for line in self._tail.lines())
        self._accepted.update(
            line.webhook_id
            for line in lines
            if isinstance(line, Begun) and line.status == 200 and line.webhook_id is not None
        )
        return self._accepted

    def receipts(self) -> list[Receipt]:
        """All of them, in their order; read it when the senders are done."""
        return read_receipts(Tail(self._log).lines())


def read_receipts(lines: Iterable[bytes]) -> list[Receipt]:
    found: dict[int, Receipt] = {}
    for line in map(_read_line, lines):
        if isinstance(line, Begun):
            # What was never answered stays until the end.
            found[line.number] = Receipt(
                line.webhook_id, line.status, line.sha256, line.refused, line.at, float("inf")
            )
        else:
            found[line.number] = replace(found[line.number], ended=line.at)
    return list(found.values())


# ── in its own process ───────────────────────────────────────────────────────────────────────────


class _Receiver:
    """The script of an `HttpSink`."""

    def __init__(self, plan: ReceiverPlan) -> None:
        self._plan = plan
        self._answer = Faults(fail=plan.fail, seed=plan.seed, latency=plan.hold).script()
        self._numbers = count(1)
        self._there, self._most = 0, 0
        self._hold = plan.hold
        self._log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, request: SinkRequest) -> Answer:
        answer = self._answer(request) or Answer()
        number, hold = next(self._numbers), self._hold_one_more()
        self._write(
            Begun(
                number, request.at, request.header("webhook-id"), answer.status,
                sha256(request.body).hexdigest(), why_refused(request, self._plan.keys),
            )
        )  # fmt: skip
        # Set before the sink's own timer for the answer, so it comes first.
        asyncio.get_running_loop().call_later(hold, self._end, number)
        return replace(answer, delay=hold)

    def _hold_one_more(self) -> float:
        self._there += 1
        self._most = max(self._most, self._there)
        return self._hold if self._most >= self._plan.crowd else max(_GATHERING, self._hold)

    def hurry(self) -> None:
        self._hold = min(self._hold, _HURRY)

    def _end(self, number: int) -> None:
        self._there -= 1
        self._write(Ended(number, time.time()))

    def _write(self, line: Begun | Ended) -> None:
        os.write(self._log, _encode(line) + b"\n")


def why_refused(request: SinkRequest, keys: Mapping[str, Keys]) -> str | None:
    """What a careful receiver would find: both schemes, and the token. None when all is well."""
    expected = keys.get(request.path)
    if expected is None:
        return "unknown path"
    if request.header("authorization") != f"Bearer {expected.bearer_token}":
        return "another bearer token"
    try:
        verify(request.body, request.headers, expected.signing_secret, scheme="standard")
        verify(request.body, request.headers, expected.signing_secret, scheme="flowcatalyst")
    except VerificationError as error:
        return error.reason
    return None


async def _serve(plan: ReceiverPlan) -> None:
    receiver = _Receiver(plan)
    async with HttpSink(receiver, keep=False) as sink:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, receiver.hurry)
        sys.stdout.write(f"{sink.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    asyncio.run(_serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ReceiverPlan)))


if __name__ == "__main__":
    main()
