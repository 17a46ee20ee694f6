"""Why a signature does not match: the same request once more, with one mistake after another undone.

Most mismatches are one of a few: a line end that an editor added, JSON that was parsed and written again, a
secret that one side decodes and the other takes as it is, or a signature of another scheme.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Any

from msgspec import Struct

from homing.signatures import (
    DEFAULT_HEADER_PREFIX,
    DEFAULT_TOLERANCE,
    ID,
    PUBLIC_KEY_PREFIX,
    SECRET_PREFIX,
    SIGNATURE,
    TIMESTAMP,
    Scheme,
    VerificationError,
    Verified,
    key_of,
    verify,
)

#: Bodies longer than this are not parsed and written again in search of a mistake.
_LARGEST_JSON = 1 << 20


class Finding(Struct, frozen=True):
    check: str
    well: bool
    detail: str


class Diagnosis(Struct, frozen=True, rename="camel"):
    """What was found about one request."""

    verified: bool
    #: None when no signature of a known scheme is there.
    scheme: Scheme | None
    id: str | None
    timestamp: str | None
    age_seconds: float | None
    #: The code of `VerificationError`, and its sentence.
    reason: str | None
    message: str | None
    findings: tuple[Finding, ...]

    @property
    def explanation(self) -> str | None:
        """What would make the signature match, where it does not."""
        return next((f.detail for f in self.findings if f.check == "explanation"), None)


class Request(Struct, frozen=True):
    """A request as it was received, and what is known of its sender. Shown, it shows no secret."""

    body: bytes
    #: In pairs: that one is there twice is worth knowing.
    headers: Sequence[tuple[str, str]]
    secrets: Sequence[str]
    now: datetime
    tolerance: float = DEFAULT_TOLERANCE
    header_prefix: str = DEFAULT_HEADER_PREFIX

    def verify(self, scheme: Scheme, now: datetime | None = None) -> Verified:
        return verify(
            self.body,
            self.headers,
            self.secrets,
            tolerance=self.tolerance,
            now=now or self.now,
            scheme=scheme,
            header_prefix=self.header_prefix,
        )

    def header(self, name: str) -> str | None:
        return next((value for given, value in self.headers if given.lower() == name.lower()), None)

    def __repr__(self) -> str:
        return f"Request({len(self.body)} bytes)"


def diagnose(request: Request) -> Diagnosis:
    """Verify each scheme that is there. The verdict is of `standard` where that is there."""
    present = list(_present(request))
    findings = [_schemes_found(present)]
    verdict: Verified | VerificationError | None = None
    for scheme in present:
        answer = _answer(request, scheme)
        verdict = verdict if verdict is not None else answer
        findings += _explained(request, scheme, answer)
    sent = _sent(request, present[0]) if present else None
    return _diagnosis(request, present, verdict, sent, findings)


def _diagnosis(
    request: Request,
    present: Sequence[Scheme],
    verdict: Verified | VerificationError | None,
    sent: datetime | None,
    findings: Sequence[Finding],
) -> Diagnosis:
    error = verdict if isinstance(verdict, VerificationError) else None
    return Diagnosis(
        verified=isinstance(verdict, Verified),
        scheme=present[0] if present else None,
        id=request.header(ID),
        timestamp=sent.isoformat().replace("+00:00", "Z") if sent else None,
        age_seconds=round((request.now - sent).total_seconds(), 3) if sent else None,
        reason=error.reason if error else None if present else "missing_header",
        message=str(error) if error else None if present else findings[0].detail,
        findings=tuple(findings),
    )


def _present(request: Request) -> Iterator[Scheme]:
    if request.header(SIGNATURE):
        yield "standard"
    if request.header(f"{request.header_prefix}-SIGNATURE"):
        yield "flowcatalyst"


def _schemes_found(present: Sequence[Scheme]) -> Finding:
    return Finding(
        "signature header",
        bool(present),
        " and ".join(present) or "there is no signature header of a scheme that is known here",
    )


def _answer(request: Request, scheme: Scheme, now: datetime | None = None) -> Verified | VerificationError:
    try:
        return request.verify(scheme, now)
    except VerificationError as error:
        return error


def _explained(request: Request, scheme: Scheme, answer: Verified | VerificationError) -> Iterator[Finding]:
    sent = _sent(request, scheme)
    if sent is None or isinstance(answer, Verified):
        yield Finding(scheme, isinstance(answer, Verified), _summary(request, answer))
        return
    age = (request.now - sent).total_seconds()
    yield Finding(f"{scheme} timestamp", abs(age) <= request.tolerance, _age(age, request.tolerance))
    # Whether the signature is right is another question than whether it is fresh.
    then = _answer(request, scheme, sent)
    yield Finding(f"{scheme} signature", isinstance(then, Verified), _summary(request, then))
    if isinstance(then, VerificationError) and then.reason == "no_match":
        yield from _mistakes(request, scheme)


def _summary(request: Request, answer: Verified | VerificationError) -> str:
    if isinstance(answer, VerificationError):
        return str(answer)
    which = f", by secret {answer.secret_index + 1}" if len(request.secrets) > 1 else ""
    return f"matches{which}"


def _age(age: float, tolerance: float) -> str:
    when = f"{age:.0f} s old" if age >= 0 else f"{-age:.0f} s ahead of this clock"
    return f"{when}; allowed is {tolerance:g} s"


def _sent(request: Request, scheme: Scheme) -> datetime | None:
    name = TIMESTAMP if scheme == "standard" else f"{request.header_prefix}-TIMESTAMP"
    text = request.header(name) or ""
    try:
        return datetime.fromtimestamp(int(text), UTC) if scheme == "standard" else _utc(text)
    except (ValueError, OverflowError, OSError):
        return None


def _utc(text: str) -> datetime | None:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else None


# ── one mistake after another ────────────────────────────────────────────────────────────────────

#: What was done wrong, if anything, and the value that comes of it.
Variant = tuple[str | None, bytes]


def _mistakes(request: Request, scheme: Scheme) -> Iterator[Finding]:
    found = min(_matching(request, scheme), key=len, default=None)
    if found is None:
        told = "no usual mistake explains it: another secret, or another body"
    elif not found:
        told = f"it is the right signature, but this scheme writes it {_FORMS[scheme]}"
    else:
        told = f"it would match {' and '.join(found)}"
    yield Finding("explanation", False, told)


_FORMS: dict[Scheme, str] = {"standard": "as v1, and base64", "flowcatalyst": "in hex"}


def _matching(request: Request, scheme: Scheme) -> Iterator[tuple[str, ...]]:
    """The mistakes that, made together, give the signature that is there."""
    given = set(_given_digests(request, scheme))
    bodies = list(_bodies(request.body))
    for secret in request.secrets:
        if secret.startswith(PUBLIC_KEY_PREFIX):
            continue
        for (wrong_key, key), (wrong_body, body) in product(_keys(secret, scheme), bodies):
            for wrong_text, text in _texts(request, scheme, body):
                if hmac.digest(key, text, "sha256") in given:
                    yield tuple(wrong for wrong in (wrong_key, wrong_body, wrong_text) if wrong)


def _given_digests(request: Request, scheme: Scheme) -> Iterator[bytes]:
    """What the header may mean: hex or base64, with or without a version before it."""
    name = SIGNATURE if scheme == "standard" else f"{request.header_prefix}-SIGNATURE"
    for part in (request.header(name) or "").replace("=,", "= ").split():
        for text in {part, part.partition(",")[2], part.partition("=")[2]}:
            for decode in (bytes.fromhex, _from_base64):
                digest = _attempted(decode, text)
                if digest is not None and len(digest) == hashlib.sha256().digest_size:
                    yield digest


def _from_base64(text: str) -> bytes:
    altchars = b"-_" if {"-", "_"} & set(text) else None
    return b64decode(text + "=" * (-len(text) % 4), altchars=altchars, validate=True)


def _attempted(decode: Callable[[str], bytes], text: str) -> bytes | None:
    try:
        return decode(text)
    except ValueError:
        return None


def _keys(secret: str, scheme: Scheme) -> Iterator[Variant]:
    raw, bare = secret.encode(), secret.removeprefix(SECRET_PREFIX)
    decoded = _attempted(_from_base64, bare)
    if scheme == "standard":
        yield None, key_of(secret)
        yield "with the secret's characters as the key, not the base64 after whsec_", raw
    else:
        yield None, raw
    if decoded:
        yield "with the secret decoded from base64 as the key", decoded
    if secret != secret.strip():
        yield "without the white space around the secret", key_of(secret.strip())
    if bare != secret:
        yield "with the characters after whsec_ as the key", bare.encode()
    if (binary := _attempted(bytes.fromhex, bare)) is not None:
        yield "with the secret decoded from hex as the key", binary


def _bodies(body: bytes) -> Iterator[Variant]:
    yield None, body
    for what, changed in (
        ("without the line end at the end of the body", body.removesuffix(b"\n").removesuffix(b"\r")),
        ("with a line end at the end of the body", body + b"\n"),
        ("without the white space around the body", body.strip()),
        ("with \\n in place of \\r\\n in the body", body.replace(b"\r\n", b"\n")),
        ("with \\r\\n in place of \\n in the body", body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")),
        ("without the byte order mark before the body", body.removeprefix(b"\xef\xbb\xbf")),
        ("with an empty body", b""),
    ):
        if changed != body:
            yield what, changed
    yield from _rewritten(body)


def _rewritten(body: bytes) -> Iterator[Variant]:
    """JSON as libraries write it."""
    if len(body) > _LARGEST_JSON:
        return
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return
    for spacing, sort, ascii_only in product(_SPACINGS, (False, True), (True, False)):
        written = json.dumps(value, sort_keys=sort, ensure_ascii=ascii_only, **_SPACINGS[spacing]).encode(
            "utf-8", "surrogatepass"
        )
        if written != body:
            order = " and sorted keys" if sort else ""
            yield f"with the body's JSON written anew, {spacing}{order}", written


_SPACINGS: dict[str, dict[str, Any]] = {
    "compact": {"separators": (",", ":")},
    "with spaces after , and :": {},
    "indented by 2": {"indent": 2},
    "indented by 4": {"indent": 4},
}


def _texts(request: Request, scheme: Scheme, body: bytes) -> Iterator[Variant]:
    """What may have been signed; the first is what the scheme says."""
    unix, iso = request.header(TIMESTAMP) or "", request.header(f"{request.header_prefix}-TIMESTAMP") or ""
    standard = f"{request.header(ID) or ''}.{unix}.".encode() + body
    specified = iso.encode() + body
    yield (None, standard) if scheme == "standard" else (None, specified)
    if scheme == "standard":
        yield (
            "as a signature of the timestamp and the body alone (flowcatalyst)",
            (iso or unix).encode() + body,
        )
    else:
        yield "as a signature of id.timestamp.body (standard)", standard
        yield "with a dot between timestamp and body", f"{iso}.".encode() + body
    yield "as a signature of the body alone", body
    yield "as a signature of base64 of the body", b64encode(body)
