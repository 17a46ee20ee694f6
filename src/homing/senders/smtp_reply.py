"""What a relay's reply means: for one recipient, for the whole mail, and in one word for the metrics.

Which class a refusal has:

* 4yz is deferred, 5yz is rejected.
* Where the relay offers ENHANCEDSTATUSCODES and the code in the text is of the other class
  (`450 5.1.1`, `550 4.7.1`), the enhanced one holds: it is the one that was chosen with thought.
* A 2yz reply is a yes whatever its text says: the relay has taken the responsibility.
* 530, 534, 535 and 538 ask for a login or for TLS. That is our set-up, not the mail's fault, so the
  recipient stays open.

Which error code a refusal gets:

| reply | code |
|---|---|
| 530, 534, 535, 538 | unauthorized |
| 421, 454, 4.7.x, 4.3.2, 4.4.5 | rate_limited |
| other 4yz | provider_error |
| 5.1.x, 5.2.1, but not 5.1.7 and 5.1.8: those are the sender's address | invalid_recipient |
| 550, 551, 553 to RCPT, without an enhanced code | invalid_recipient |
| other 5yz | provider_error |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

from msgspec import Struct

from homing.senders.addresses import mask
from homing.senders.mail import SendError, SendErrorCode, Verdict

_LONGEST_TEXT = 200
#: Waits that a reply asks for are honoured up to this; a misread number must not park a mail for days.
_LONGEST_WAIT = 3600.0

_OUR_SETUP = frozenset({530, 534, 535, 538})
BUSY = frozenset({421, 454})

_ENHANCED = re.compile(r"([245]\.\d{1,3}\.\d{1,3})(?:\s+|$)").match
_RATE_LIMITED = re.compile(r"4\.(?:7\.\d+|3\.2|4\.5)").fullmatch
_BAD_RECIPIENT = re.compile(r"5\.(?:1\.(?![78]$)\d+|2\.1)").fullmatch
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
#: Bounded, so that a reply full of @ costs nothing to look through.
_ADDRESS = re.compile(r"""(?:"[^"@]{1,255}"|[^\s@<>()"',;]{1,255})@[^\s@<>()"',;:=]{1,255}""")
_WAIT = re.compile(r"\b(\d{1,5})\s*(s|m|h)(?:ec(?:ond)?s?|in(?:ute)?s?|ours?)?\b", re.IGNORECASE).search
_QUEUED_AS = re.compile(r"\bqueued as ([!-~]{1,100})").search
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Stage(Enum):
    """Which command a reply answers, as far as its meaning depends on it."""

    MAIL = auto()
    RCPT = auto()
    CONTENT = auto()


class Reply(Struct, frozen=True, gc=False):
    code: int
    enhanced: str | None
    #: One line, shortened, without addresses.
    text: str


def read_reply(code: int, lines: Sequence[bytes]) -> Reply:
    """Make one reply of its lines, each with its code still in front."""
    if len(lines) == 1:
        text, enhanced = _cut_enhanced(lines[0][4:].decode("utf-8", "replace"))
        return Reply(code, enhanced, clean_text(text))
    cut = [_cut_enhanced(line[4:].decode("utf-8", "replace")) for line in lines]
    return Reply(code, cut[-1][1], clean_text(" ".join(text.strip() for text, _ in cut)))


def _cut_enhanced(text: str) -> tuple[str, str | None]:
    found = _ENHANCED(text)
    return (text[found.end() :], found[1]) if found else (text, None)


def clean_text(text: str) -> str:
    """Make foreign text fit to be stored and logged: one line, no addresses, not long."""
    if not text.isprintable():
        text = _UNPRINTABLE.sub(" ", text)
    if "@" in text:
        # Cut first: what comes after could not be shown anyway. A cut address is masked all the same.
        text = _ADDRESS.sub(lambda found: mask(found[0]), text[: _LONGEST_TEXT * 4])
    return text.strip()[:_LONGEST_TEXT]


def is_permanent(reply: Reply, *, trust_enhanced: bool) -> bool:
    if reply.code in _OUR_SETUP:
        return False
    if trust_enhanced and reply.enhanced is not None and reply.enhanced[0] in "45":
        return reply.enhanced[0] == "5"
    return reply.code >= 500


def refusal(reply: Reply, *, trust_enhanced: bool) -> Verdict:
    permanent = is_permanent(reply, trust_enhanced=trust_enhanced)
    return Verdict(
        status="rejected" if permanent else "deferred",
        code=reply.code,
        enhanced=reply.enhanced,
        text=reply.text or None,
    )


def acceptance(reply: Reply) -> Verdict:
    return Verdict(status="accepted", code=reply.code, enhanced=reply.enhanced, text=reply.text or None)


def error_of(reply: Reply, verdict: Verdict, stage: Stage) -> SendError:
    permanent = verdict.status == "rejected"
    code = _code_of_rejection(reply, stage) if permanent else _code_of_deferral(reply)
    shown = f"{reply.code} {reply.enhanced or ''}".strip()
    return SendError(code, f"{shown} {reply.text}".strip())


def _code_of_deferral(reply: Reply) -> SendErrorCode:
    if reply.code in _OUR_SETUP:
        return SendErrorCode.UNAUTHORIZED
    if reply.code in BUSY or _RATE_LIMITED(reply.enhanced or ""):
        return SendErrorCode.RATE_LIMITED
    return SendErrorCode.PROVIDER_ERROR


def _code_of_rejection(reply: Reply, stage: Stage) -> SendErrorCode:
    if reply.enhanced is None:
        bad_recipient = stage is Stage.RCPT and reply.code in {550, 551, 553}
    else:
        bad_recipient = stage is not Stage.MAIL and _BAD_RECIPIENT(reply.enhanced) is not None
    return SendErrorCode.INVALID_RECIPIENT if bad_recipient else SendErrorCode.PROVIDER_ERROR


def wait_of(text: str) -> float | None:
    """How long the text asks us to wait ("greylisted, try again in 5 minutes"), in seconds."""
    found = _WAIT(text)
    return min(int(found[1]) * _UNITS[found[2].lower()], _LONGEST_WAIT) if found else None


def queue_id_of(text: str) -> str | None:
    """What the relay calls the mail from now on, where it says so."""
    found = _QUEUED_AS(text)
    return found[1] if found else None
