"""AWS Signature Version 4, computed anew from what arrived: "Signing AWS API requests" in the IAM user guide.

The senders sign with botocore; this is written from the description, so that each checks the other.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from urllib.parse import quote, unquote

from msgspec import Struct

from homing.testing.http_sink import SinkRequest


class Claim(Struct, frozen=True):
    """What an Authorization header says."""

    access_key: str
    date: str
    region: str
    service: str
    signed: tuple[str, ...]
    signature: str


def read_claim(authorization: str) -> Claim | None:
    scheme, _, rest = authorization.partition(" ")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    scope = parts.get("Credential", "").split("/")
    if scheme != "AWS4-HMAC-SHA256" or len(scope) != 5 or scope[4] != "aws4_request":
        return None
    signed = tuple(parts.get("SignedHeaders", "").split(";"))
    return Claim(scope[0], scope[1], scope[2], scope[3], signed, parts.get("Signature", ""))


def signature_of(request: SinkRequest, claim: Claim, secret: str) -> str:
    """What the signature has to be."""
    moment = request.header("x-amz-date") or ""
    scope = f"{claim.date}/{claim.region}/{claim.service}/aws4_request"
    digest = sha256(_canonical(request, claim.signed).encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
    return _sign(_signing_key(secret, claim), to_sign).hex()


def _signing_key(secret: str, claim: Claim) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (claim.date, claim.region, claim.service, "aws4_request"):
        key = _sign(key, part)
    return key


def _sign(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _canonical(request: SinkRequest, signed: tuple[str, ...]) -> str:
    path, _, query = request.path.partition("?")
    lines = [f"{name}:{' '.join((request.header(name) or '').split())}" for name in signed]
    return "\n".join(
        (
            request.method,
            quote(path, safe="/-_.~%"),
            _canonical_query(query),
            *lines,
            "",
            ";".join(signed),
            sha256(request.body).hexdigest(),
        )
    )


def _canonical_query(query: str) -> str:
    pairs = (pair.partition("=")[::2] for pair in query.split("&") if pair)
    encoded = (
        (quote(unquote(name), safe="-_.~"), quote(unquote(value), safe="-_.~")) for name, value in pairs
    )
    return "&".join(f"{name}={value}" for name, value in sorted(encoded))
