"""Credentials as the API and the command line show them: never a secret but one that was just made."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from homing.db import Row, iso
from homing.errors import InvalidRequest, NotFound
from homing.lanes.dispatch_jobs.credentials.signing import listed_targets
from homing.lanes.dispatch_jobs.credentials.store import Credentials, Issued
from homing.lanes.dispatch_jobs.tsid import number_of, text_of


class ShownCredentials(Struct, frozen=True, rename="camel"):
    """Credentials without their secrets."""

    id: str
    algorithm: str
    created_at: str | None
    updated_at: str | None
    #: Of the signing secret, to tell which one it is; null where there is none.
    fingerprint: str | None
    name: str | None
    #: The origins that they may be used for; null where nobody has said, which is all for admins.
    allowed_targets: list[str] | None
    #: Until then the previous secrets count as well.
    previous_until: str | UnsetType = UNSET
    #: For receivers of v1a signatures.
    public_key: str | UnsetType = UNSET


class IssuedCredentials(ShownCredentials, frozen=True, rename="camel"):
    """Credentials with what was made for them. It is shown this once."""

    bearer_token: str | UnsetType = UNSET
    signing_secret: str | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"IssuedCredentials(id={self.id!r})"


def credentials_number(text: str) -> int:
    number = number_of(text)
    if number is None:
        raise NotFound(f"there are no credentials {text[:40]!r}; ids look like 0ARYZVZXW372S")
    return number


def cursor_of(before: str | None) -> int | None:
    """Where a page goes on; raises `InvalidRequest`."""
    number = number_of(before) if before else None
    if before and number is None:
        raise InvalidRequest("before must be the id that the last page ended with", "before")
    return number


def shown(row: Row, credentials: Credentials | None = None) -> ShownCredentials:
    """With the public key where there are credentials to open the private one."""
    return ShownCredentials(*_columns(row), credentials.public_key(row) or UNSET if credentials else UNSET)


def issued(one: Issued, credentials: Credentials) -> IssuedCredentials:
    made = one.made
    return IssuedCredentials(
        *_columns(one.row),
        credentials.public_key(one.row) or UNSET,
        made.get("bearer_token", UNSET),
        made.get("signing_secret", UNSET),
    )


def _columns(
    row: Row,
) -> tuple[str, str, str | None, str | None, str | None, str | None, list[str] | None, str | UnsetType]:
    return (
        text_of(row["id"]),
        row["algorithm"],
        iso(row["created_at"]),
        iso(row["updated_at"]),
        row["fingerprint"],
        row["name"],
        listed_targets(row),
        iso(row["previous_until"]) or UNSET,
    )
