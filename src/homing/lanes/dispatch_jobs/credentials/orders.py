"""What may be asked for: new credentials, and new secrets for old ones. Everything is checked here."""

from __future__ import annotations

import re
import secrets as random_source
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from homing.errors import InvalidRequest
from homing.lanes.dispatch_jobs.credentials.signing import ANYWHERE
from homing.senders.egress import origin_of
from homing.signatures import (
    PRIVATE_KEY_PREFIX,
    PUBLIC_KEY_PREFIX,
    SECRET_PREFIX,
    MalformedKey,
    key_of,
    make_private_key,
    make_secret,
    private_key_of,
)

ALGORITHM = "HMAC_SHA256"
DAY = 86400
LONGEST_GRACE = 7 * DAY
BEARER_PREFIX = "hm_"
_LONGEST = 500
#: Bytes; the specification's example has 15.
_SHORTEST_SECRET = 8
_LONGEST_NAME = 100
MOST_TARGETS = 1000
#: A URL without path and query.
_BARE = re.compile(r"[^:]+://[^/?#]+/?")
_VISIBLE = re.compile(r"[!-~]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

Part = Literal["bearerToken", "signingSecret", "signingKey"]
#: A text is taken, null means none; what is left out depends on what is asked for.
Given = str | UnsetType | None

_COLUMNS: dict[Part, str] = {
    "bearerToken": "bearer_token",
    "signingSecret": "signing_secret",
    "signingKey": "signing_key",
}


class CreateCredentials(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """New credentials. A bearer token or signing secret that is left out is made, and shown once; null
    means none. `generate: ["signingKey"]` makes an ed25519 key, of which only the public one is shown.
    """

    bearer_token: Given = UNSET
    signing_secret: Given = UNSET
    signing_key: Given = UNSET
    generate: tuple[Part, ...] = ()
    algorithm: str = ALGORITHM
    name: str | None = None
    #: Origins that they may be used for: scheme, host and port. An empty list is none yet, `["*"]` is all.
    allowed_targets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "CreateCredentials(…)"


class AllowedTargets(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The origins that credentials may be used for, in place of those that were: scheme, host and port, as in
    `https://partner.example` or `https://partner.example:8443`. `["*"]` is all of them.
    """

    allowed_targets: tuple[str, ...]


class RotateCredentials(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """New secrets. What is given replaces, null removes, what `generate` names is made, the rest stays. When
    nothing is named, the signing secret is made anew, and the bearer token too if it was made here.

    For `graceSeconds` the previous secrets count beside the new ones. Rotating the same secret once more
    within that time drops the one before: of each secret there are the new and one previous, no more.
    """

    bearer_token: Given = UNSET
    signing_secret: Given = UNSET
    signing_key: Given = UNSET
    generate: tuple[Part, ...] = ()
    grace_seconds: int = DAY

    def __repr__(self) -> str:
        return "RotateCredentials(…)"


class Change(Struct, frozen=True):
    """The columns to write, in clear, and those of them that we have made and must show."""

    columns: dict[str, str | None]
    made: frozenset[str]

    def __repr__(self) -> str:
        return f"Change({', '.join(self.columns)})"


def creation_of(request: CreateCredentials) -> Change:
    """Check an order for new credentials; raises `InvalidRequest`."""
    _check_algorithm(request.algorithm)
    _check_name(request.name)
    given = _given(request)
    absent = [part for part in ("bearer_token", "signing_secret") if part not in given]
    made = frozenset({*_generated(request, given), *absent})
    columns = {"signing_key": None, **given, **{column: _make(column) for column in made}}
    if not any(columns.values()):
        raise InvalidRequest("credentials need a bearer token, a signing secret or a signing key")
    return Change(columns, made)


def rotation_of(request: RotateCredentials, held: Mapping[str, str | None]) -> Change:
    """Check an order for new secrets in place of those held; raises `InvalidRequest`."""
    if not 0 <= request.grace_seconds <= LONGEST_GRACE:
        raise InvalidRequest(f"graceSeconds must be from 0 to {LONGEST_GRACE} (7 days)", "graceSeconds")
    given = _given(request)
    generated = _generated(request, given)
    if not given and not generated:
        generated = _renewed_by_default(held)
    columns = {**given, **{column: _make(column) for column in generated}}
    columns = {column: secret for column, secret in columns.items() if secret != held.get(column)}
    if not columns:
        raise InvalidRequest("these are the secrets that are in use already: nothing would change")
    if not any({**held, **columns}[column] for column in _COLUMNS.values()):
        raise InvalidRequest("credentials need a bearer token, a signing secret or a signing key")
    return Change(columns, frozenset(generated))


def _renewed_by_default(held: Mapping[str, str | None]) -> set[str]:
    """A token that somebody else gave us, we cannot make anew."""
    ours = (held.get("bearer_token") or "").startswith(BEARER_PREFIX)
    return {"signing_secret", "bearer_token"} if ours else {"signing_secret"}


def _given(request: CreateCredentials | RotateCredentials) -> dict[str, str | None]:
    checks = (
        ("bearer_token", request.bearer_token, _check_bearer_token),
        ("signing_secret", request.signing_secret, _check_signing_secret),
        ("signing_key", request.signing_key, _check_signing_key),
    )
    given: dict[str, str | None] = {}
    for column, value, check in checks:
        if not isinstance(value, UnsetType):
            if value is not None:
                check(value)
            given[column] = value
    return given


def _generated(request: CreateCredentials | RotateCredentials, given: dict[str, str | None]) -> set[str]:
    for part in request.generate:
        if _COLUMNS[part] in given:
            raise InvalidRequest(f"{part} is both given and to be generated: choose one", part)
    return {_COLUMNS[part] for part in request.generate}


def _make(column: str) -> str:
    if column == "bearer_token":
        return BEARER_PREFIX + random_source.token_urlsafe(32)
    return make_secret() if column == "signing_secret" else make_private_key()


def targets_of(given: Iterable[str]) -> list[str]:
    """As they are kept; raises `InvalidRequest`."""
    targets = sorted({_target(one) for one in given})
    if len(targets) > MOST_TARGETS:
        raise InvalidRequest(
            f'allowedTargets: at most {MOST_TARGETS:,}; ["*"] allows all of them', "allowedTargets"
        )
    return targets


def _target(given: str) -> str:
    if given == ANYWHERE:
        return given
    origin = origin_of(given)
    if origin is None or not _BARE.fullmatch(given):
        raise InvalidRequest(
            "allowedTargets: write scheme, host and port without a path, such as https://partner.example or "
            "https://partner.example:8443, or * for all",
            "allowedTargets",
        )
    return origin


# ── one message for each mistake, and no secret in any ───────────────────────────────────────────


def _check_algorithm(algorithm: str) -> None:
    if algorithm == "HMAC_SHA512":
        raise InvalidRequest(
            "algorithm: HMAC_SHA512 is not supported: the signature header is defined with HMAC_SHA256",
            "algorithm",
        )
    if algorithm != ALGORITHM:
        raise InvalidRequest(f"algorithm must be {ALGORITHM}", "algorithm")


def _check_name(name: str | None) -> None:
    if name is not None and (not 1 <= len(name) <= _LONGEST_NAME or _CONTROL.search(name)):
        raise InvalidRequest(
            f"name must be from 1 to {_LONGEST_NAME} characters, without control characters", "name"
        )


def _check_length(part: Part, secret: str) -> None:
    if not secret:
        raise InvalidRequest(f"{part} must not be empty; null means none, leaving it out makes one", part)
    if len(secret) > _LONGEST:
        raise InvalidRequest(f"{part} must not be longer than {_LONGEST} characters", part)


def _check_bearer_token(token: str) -> None:
    _check_length("bearerToken", token)
    if not _VISIBLE.fullmatch(token):
        raise InvalidRequest(
            "bearerToken must be visible ASCII without spaces: it goes into a header, after the word Bearer",
            "bearerToken",
        )


def _check_signing_secret(secret: str) -> None:
    _check_length("signingSecret", secret)
    if _CONTROL.search(secret) or secret != secret.strip():
        raise InvalidRequest(
            "signingSecret must not hold control characters, nor begin or end with a space", "signingSecret"
        )
    if secret == SECRET_PREFIX:
        raise InvalidRequest(f"signingSecret holds nothing after {SECRET_PREFIX}", "signingSecret")
    # Both schemes sign with it, one of them by what the base64 stands for.
    if min(len(secret.removeprefix(SECRET_PREFIX).encode()), len(key_of(secret))) < _SHORTEST_SECRET:
        raise InvalidRequest(
            f"signingSecret must have at least {_SHORTEST_SECRET} bytes: shorter ones are found by trying; "
            "leaving it out makes one of 32",
            "signingSecret",
        )
    if secret.startswith((PRIVATE_KEY_PREFIX, PUBLIC_KEY_PREFIX)):
        raise InvalidRequest(
            f"signingSecret is an ed25519 key; give one that begins with {PRIVATE_KEY_PREFIX} as signingKey",
            "signingSecret",
        )


def _check_signing_key(key: str) -> None:
    _check_length("signingKey", key)
    try:
        private_key_of(key)
    except MalformedKey as error:
        raise InvalidRequest(f"signingKey: {error}", "signingKey") from None
