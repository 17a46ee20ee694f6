"""What an attempt needs of its credentials: the secrets, opened, and the headers that they make."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import Struct

from homing.db import Row, instant
from homing.senders.egress import origin_of
from homing.signatures import MalformedKey, Signer
from homing.vault import Unreadable, Vault, is_sealed

CURRENT = ("bearer_token", "signing_secret", "signing_key")
PREVIOUS = tuple(f"previous_{column}" for column in CURRENT)
SEALED = (*CURRENT, *PREVIOUS)

#: Secrets in clear, by their column.
Opened = Mapping[str, str | None]


#: The origins that credentials may be used for, `*` for all; None where nobody has said.
Allowed = frozenset[str] | None
ANYWHERE = "*"


class UnreadableSecrets(Struct, frozen=True):
    """Credentials that are there and cannot be opened: an attempt fails as `credentials_unreadable`."""

    id: int
    #: One sentence for a person, with no secret in it.
    message: str
    allowed: Allowed = None


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Phase:
    """What is sent before the grace time has ended, or after."""

    bearer_token: str | None
    signer: Signer


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Secrets:
    """One row's secrets, ready to sign. Shown anywhere, it shows none of them.

    Until the grace time ends the previous secrets count as well: receivers may know either. The bearer token
    and the specification's header have room for one, so they stay the previous one until then.
    """

    id: int
    fingerprint: str | None
    _during: _Phase
    _after: _Phase
    _until: datetime | None
    #: Some of it stands in its row as plain text.
    is_plain: bool = False
    allowed: Allowed = None

    def headers(self, id: str, moment: datetime, payload: bytes) -> dict[str, str]:
        """`Authorization` and the signatures of one attempt; `id` is the message's, in every attempt."""
        phase = self._at(moment)
        headers = phase.signer.headers(id, moment, payload)
        if phase.bearer_token is not None:
            headers["Authorization"] = f"Bearer {phase.bearer_token}"
        return headers

    def bearer_token(self, moment: datetime) -> str | None:
        return self._at(moment).bearer_token

    def _at(self, moment: datetime) -> _Phase:
        return self._during if self._until is not None and moment < self._until else self._after

    def __repr__(self) -> str:
        return f"Secrets(id={self.id}, fingerprint={self.fingerprint!r})"


def secrets_of(row: Row, vault: Vault, header_prefix: str) -> Secrets | UnreadableSecrets:
    allowed = allowed_of(row)
    try:
        opened = opened_columns(row, vault)
        after = _phase(opened, {}, header_prefix)
        until = instant(row["previous_until"]) if row["in_grace"] else None
        during = _phase(opened, opened, header_prefix) if until else after
        return Secrets(row["id"], row["fingerprint"], during, after, until, any(plain_columns(row)), allowed)
    except (Unreadable, MalformedKey) as error:
        return UnreadableSecrets(row["id"], str(error), allowed)


def listed_targets(row: Row) -> list[str] | None:
    """As they stand in the row; MongoDB has an array, the others its text."""
    kept = row["allowed_targets"]
    if kept is None:
        return None
    return sorted(map(str, msgspec.json.decode(kept) if isinstance(kept, str) else kept))


def allowed_of(row: Row) -> Allowed:
    """Every origin as `origin_of` writes it: jobs of other programs had theirs written by the database."""
    listed = listed_targets(row)
    if listed is None:
        return None
    return frozenset(one if one == ANYWHERE else origin_of(one) or "" for one in listed)


def is_unlimited(allowed: Allowed) -> bool:
    return allowed is None or ANYWHERE in allowed


def refused_of(allowed: Allowed, origins: Collection[str]) -> frozenset[str]:
    """Those that are not listed, by somebody who has said."""
    return frozenset() if allowed is None or ANYWHERE in allowed else frozenset(origins) - allowed


def _phase(current: Opened, previous: Opened, header_prefix: str) -> _Phase:
    signer = Signer(
        _present(current["signing_secret"], previous.get("previous_signing_secret")),
        _present(current["signing_key"], previous.get("previous_signing_key")),
        header_prefix=header_prefix,
    )
    return _Phase(previous.get("previous_bearer_token") or current["bearer_token"], signer)


def _present(*secrets: str | None) -> list[str]:
    return [secret for secret in secrets if secret is not None]


# ── between the row and the clear ────────────────────────────────────────────────────────────────


def opened_columns(row: Row, vault: Vault) -> dict[str, str | None]:
    """Every secret that counts: the previous ones only while they do. Raises `Unreadable`."""
    counting = SEALED if row["in_grace"] else CURRENT
    return {**dict.fromkeys(SEALED), **{column: opened_column(row, column, vault) for column in counting}}


def opened_column(row: Row, column: str, vault: Vault) -> str | None:
    """Another program may have written it as plain text; where that is empty there is none."""
    kept: str | None = row[column]
    if not kept or not is_sealed(kept):
        return kept or None
    return vault.open(kept, row=row["id"], field=_field(column))


def plain_columns(row: Row) -> dict[str, str]:
    """What stands in the row as plain text."""
    return {column: kept for column in SEALED if (kept := row[column]) and not is_sealed(kept)}


def sealed_columns(id: int, columns: Opened, vault: Vault) -> dict[str, str | None]:
    return {
        column: vault.seal(secret, row=id, field=_field(column)) if secret is not None else None
        for column, secret in columns.items()
    }


def _field(column: str) -> str:
    return f"dispatch_credentials.{column}"


def fingerprint_of(signing_secret: str | None) -> str | None:
    """Tells secrets apart, without telling them."""
    if signing_secret is None:
        return None
    return hashlib.sha256(b"homing signing secret\0" + signing_secret.encode()).hexdigest()[:12]
