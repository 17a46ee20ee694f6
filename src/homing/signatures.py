"""Signatures of webhooks: how we sign, and how a receiver verifies.

Two schemes go out side by side:

standard       `webhook-id`, `webhook-timestamp`, `webhook-signature` of Standard Webhooks: what is signed is
               `id.timestamp.body`, by HMAC-SHA256 (`v1`) or ed25519 (`v1a`). The header may hold several.
flowcatalyst   `X-FLOWCATALYST-SIGNATURE`, hex HMAC-SHA256 of `X-FLOWCATALYST-TIMESTAMP` and the body.

A secret is any text; `whsec_` and base64 is the form of Standard Webhooks. `whsk_` is an ed25519 private
key, `whpk_` the public key that its receivers get.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets as random_source
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from homing.errors import HomingError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SECRET_PREFIX = "whsec_"  # noqa: S105 - the name of a form, no secret
PRIVATE_KEY_PREFIX = "whsk_"
PUBLIC_KEY_PREFIX = "whpk_"

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
DEFAULT_HEADER_PREFIX = "X-FLOWCATALYST"
DEFAULT_TOLERANCE = 300.0

Scheme = Literal["standard", "flowcatalyst"]
Reason = Literal[
    "missing_header", "duplicate_header", "malformed_header", "malformed_timestamp", "malformed_body",
    "too_old", "too_new", "no_match", "bad_secret", "bad_argument", "malformed",
]  # fmt: skip

# Padding may be left out, as all libraries of Standard Webhooks allow.
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_ED25519_BYTES = 32


class MalformedKey(HomingError):
    """A text is no ed25519 key."""


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


def make_secret() -> str:
    return SECRET_PREFIX + b64encode(random_source.token_bytes(32)).decode()


def make_private_key() -> str:
    private = _ed25519().Ed25519PrivateKey.generate()
    return PRIVATE_KEY_PREFIX + b64encode(private.private_bytes_raw() + _public_bytes(private)).decode()


def key_of(secret: str) -> bytes:
    """The key of `v1`: the base64 after `whsec_` where it is valid base64, else the secret's UTF-8 bytes."""
    decoded = _decoded(secret.removeprefix(SECRET_PREFIX)) if secret.startswith(SECRET_PREFIX) else None
    return decoded or secret.encode()


def private_key_of(text: str) -> Ed25519PrivateKey:
    """From `whsk_` and the base64 of the private key, alone or followed by the public one."""
    raw = _key_bytes(text, PRIVATE_KEY_PREFIX)
    if len(raw) not in {_ED25519_BYTES, 2 * _ED25519_BYTES}:
        raise MalformedKey(f"a signing key holds 32 bytes, or 64 with its public half, and not {len(raw)}")
    private: Ed25519PrivateKey = _ed25519().Ed25519PrivateKey.from_private_bytes(raw[:_ED25519_BYTES])
    if raw[_ED25519_BYTES:] not in {b"", _public_bytes(private)}:
        raise MalformedKey("the second half of the signing key is not the public key of the first")
    return private


def public_key_of(text: str) -> str:
    """What receivers get, of a `whsk_` key."""
    return PUBLIC_KEY_PREFIX + b64encode(_public_bytes(private_key_of(text))).decode()


def _public_bytes(private: Ed25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def _key_bytes(text: str, prefix: str) -> bytes:
    raw = _decoded(text.removeprefix(prefix)) if text.startswith(prefix) else None
    if raw is None:
        raise MalformedKey(f"a key of this kind is {prefix} followed by base64")
    return raw


def _decoded(text: str) -> bytes | None:
    if not _BASE64.fullmatch(text) or (len(text) % 4 and "=" in text):
        return None
    try:
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return None


def _ed25519() -> Any:
    # Takes a while to load, and only `v1a` wants it.
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - see above

    return ed25519


# ── signing ──────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=4)
def timestamp_of(moment: datetime) -> str:
    """As the specification writes it: 2025-10-04T14:30:45.123Z. Whoever signs much does so in crowds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def sign_timestamped(timestamp: str, payload: bytes, secret: str) -> str:
    """The specification's signature: hex HMAC-SHA256 of timestamp + payload, by the secret as written."""
    return hmac.digest(secret.encode(), timestamp.encode() + payload, "sha256").hex()


def _signed(id: str, timestamp: str, payload: bytes) -> bytes:
    return f"{id}.{timestamp}.".encode() + payload


def _v1(digest: bytes) -> str:
    return "v1," + b64encode(digest).decode()


class Signer:
    """The signatures of one attempt after another, with the keys prepared once.

    Secrets and keys stand newest first. All of them sign `webhook-signature`, so that a receiver may know any
    one. The specification's header has room for a single signature: the oldest secret's, which receivers who
    have not changed over yet still know.
    """

    __slots__ = ("_keys", "_oldest", "_private_keys", "_signature", "_timestamp")

    def __init__(
        self,
        secrets: Sequence[str],
        private_keys: Sequence[str] = (),
        *,
        header_prefix: str = DEFAULT_HEADER_PREFIX,
    ) -> None:
        self._keys = [hmac.new(key_of(secret), digestmod=hashlib.sha256) for secret in secrets]
        self._oldest = hmac.new(secrets[-1].encode(), digestmod=hashlib.sha256) if secrets else None
        self._private_keys = [private_key_of(text) for text in private_keys]
        self._signature = f"{header_prefix}-SIGNATURE"
        self._timestamp = f"{header_prefix}-TIMESTAMP"

    def headers(self, id: str, moment: datetime, payload: bytes) -> dict[str, str]:
        """Everything but `Authorization`; nothing when there is nothing to sign with."""
        headers: dict[str, str] = {}
        if self._keys or self._private_keys:
            seconds = str(int(moment.timestamp()))
            headers = {
                ID: id,
                TIMESTAMP: seconds,
                SIGNATURE: " ".join(self._signatures(_signed(id, seconds, payload))),
            }
        if self._oldest is not None:
            timestamp = timestamp_of(moment)
            timestamped = self._oldest.copy()
            timestamped.update(timestamp.encode() + payload)
            headers[self._signature] = timestamped.hexdigest()
            headers[self._timestamp] = timestamp
        return headers

    def _signatures(self, signed: bytes) -> Iterator[str]:
        for key in self._keys:
            signature = key.copy()
            signature.update(signed)
            yield _v1(signature.digest())
        for private in self._private_keys:
            yield "v1a," + b64encode(private.sign(signed)).decode()


# ── verifying ────────────────────────────────────────────────────────────────────────────────────


class VerificationError(HomingError):
    """A request is not what one of the secrets has signed just now; `reason` is for programs."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class Verified:
    """What is proven about a request: somebody who has the secret sent it, then."""

    #: The same for every attempt of a message, so keep it to tell repetitions; flowcatalyst signs none.
    id: str | None
    #: When the attempt was signed.
    timestamp: datetime
    scheme: Scheme
    #: Which of the secrets it was.
    secret_index: int


_UNIX_TIME = re.compile(r"[0-9]{1,11}")
#: From Python 3.14 on `fromisoformat` takes 24:00:00 for the next day's midnight.
_ISO_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?!24)[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3})?Z")
# A dot in an id would let somebody move the border between id, timestamp and body.
_SIGNED_ID = re.compile(r"[!-\-/-~]{1,256}")
#: Far more than a rotation needs, and few enough that nobody keeps us busy with them.
_MOST_SIGNATURES = 20
_MOST_SECRETS = 100
_MOST_HEADERS = 1000

Headers = Mapping[Any, Any] | Iterable[tuple[Any, Any]]


def verify(
    body: bytes | str,
    headers: Headers,
    secrets: str | Sequence[str],
    *,
    tolerance: float = DEFAULT_TOLERANCE,
    now: datetime | None = None,
    scheme: Literal["auto", "standard", "flowcatalyst"] = "auto",
    header_prefix: str = DEFAULT_HEADER_PREFIX,
) -> Verified:
    """Verify a request; raises `VerificationError` and nothing else, whatever it is given.

    `body` is what came over the wire: JSON that was parsed and written again is another text. `headers` is a
    mapping, or pairs; upper and lower case are the same. With several secrets any one will do.

    `auto` is `standard`. The specification's header is accepted only by its name, `flowcatalyst`: it signs no
    id, so a request that was captured could be stripped of the others, and pass for a new one.
    """
    try:
        question = _Question(tolerance, _moment(now), header_prefix)
        return question.answer(_payload(body), headers, _receiver_secrets(secrets), scheme)
    except VerificationError:
        raise
    except Exception:  # noqa: BLE001 - promised: a receiver has one exception to catch, whoever sends what
        raise VerificationError("malformed", "the request cannot be read: it is no webhook") from None


@dataclass(frozen=True, slots=True)
class _Question:
    tolerance: float
    now: datetime
    header_prefix: str

    def answer(
        self, payload: bytes, headers: Headers, secrets: Sequence[_ReceiverSecret], scheme: str
    ) -> Verified:
        signature, timestamp = (f"{self.header_prefix}-{name}".lower() for name in ("SIGNATURE", "TIMESTAMP"))
        found = _found(headers, {ID, TIMESTAMP, SIGNATURE, signature, timestamp})
        if scheme not in {"auto", "standard", "flowcatalyst"}:
            raise VerificationError("bad_argument", "scheme must be auto, standard or flowcatalyst")
        if scheme == "flowcatalyst":
            return self._flowcatalyst(payload, _the(found, signature), _the(found, timestamp), secrets)
        if SIGNATURE not in found and signature not in found:
            raise VerificationError("missing_header", f"there is neither {SIGNATURE} nor {signature}")
        if SIGNATURE not in found:
            raise VerificationError(
                "missing_header",
                f'there is no {SIGNATURE}; only scheme="flowcatalyst" takes {signature}, which signs no id',
            )
        return self._standard(payload, found, secrets)

    def _standard(
        self, payload: bytes, found: Mapping[str, str], secrets: Sequence[_ReceiverSecret]
    ) -> Verified:
        id, timestamp, header = (_the(found, name) for name in (ID, TIMESTAMP, SIGNATURE))
        if not _SIGNED_ID.fullmatch(id):
            raise VerificationError(
                "malformed_header", f"{ID} must be visible ASCII without a dot, up to 256 characters"
            )
        sent = self._fresh(_unix_time(timestamp))
        signed = _signed(id, timestamp, payload)
        index = _first_match(_signatures_in(header), secrets, signed)
        if index is None:
            raise VerificationError("no_match", _why_none_matches(header, secrets))
        return Verified(id, sent, "standard", index)

    def _flowcatalyst(
        self, payload: bytes, signature: str, timestamp: str, secrets: Sequence[_ReceiverSecret]
    ) -> Verified:
        sent = self._fresh(_iso_time(timestamp))
        given = signature.lower().encode()
        index = None
        for secret in secrets:
            # Every secret is compared, and in constant time: how long it takes tells nothing.
            matches = secret.matches_timestamped(timestamp, payload, given)
            index = secret.index if matches and index is None else index
        if index is None:
            raise VerificationError(
                "no_match", f"the signature was not made with {_counted(secrets)}; {_ADVICE}"
            )
        return Verified(None, sent, "flowcatalyst", index)

    def _fresh(self, sent: datetime) -> datetime:
        if type(self.tolerance) not in {int, float} or not 0 <= self.tolerance < math.inf:
            raise VerificationError("bad_argument", "tolerance must be a number of seconds, 0 or more")
        age = self.now.timestamp() - sent.timestamp()
        if age > self.tolerance:
            raise VerificationError("too_old", f"it was signed {age:.0f} s ago; {self._allowed()}")
        if -age > self.tolerance:
            raise VerificationError("too_new", f"it was signed {-age:.0f} s ahead of now; {self._allowed()}")
        return sent

    def _allowed(self) -> str:
        return f"allowed is {self.tolerance:g} s: a replay, or the clocks are apart"


_ADVICE = "is it the right one, and the body byte for byte what came over the wire?"


@dataclass(frozen=True, slots=True, repr=False)
class _ReceiverSecret:
    """A secret for `v1`, or a public key for `v1a`, and never one taken for the other: everybody may know
    the public key, and could sign with it as if it were a secret.
    """

    index: int
    secret: str | None
    public_key: Ed25519PublicKey | None

    def matches_timestamped(self, timestamp: str, payload: bytes, given: bytes) -> bool:
        if self.secret is None:
            return False
        return hmac.compare_digest(sign_timestamped(timestamp, payload, self.secret).encode(), given)

    def matches(self, version: str, given: str, signed: bytes) -> bool:
        if version == "v1" and self.secret is not None:
            expected = b64encode(hmac.digest(key_of(self.secret), signed, "sha256"))
            return hmac.compare_digest(expected, given.encode())
        if version == "v1a" and self.public_key is not None:
            return _is_signed_by(self.public_key, given, signed)
        return False


def _is_signed_by(key: Ed25519PublicKey, given: str, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - as _ed25519

    try:
        key.verify(_decoded(given) or b"", signed)
    except InvalidSignature:
        return False
    return True


def _first_match(
    signatures: Sequence[tuple[str, str]], secrets: Sequence[_ReceiverSecret], signed: bytes
) -> int | None:
    """Every signature is compared with every secret: how long it takes tells nothing."""
    index = None
    for secret in secrets:
        for version, given in signatures:
            matches = secret.matches(version, given, signed)
            index = secret.index if matches and index is None else index
    return index


def _signatures_in(header: str) -> list[tuple[str, str]]:
    parts = header.split(" ")
    if len(parts) > _MOST_SIGNATURES:
        raise VerificationError("malformed_header", f"{SIGNATURE} holds more than {_MOST_SIGNATURES}")
    return [(version, given) for version, _, given in (part.partition(",") for part in parts)]


def _why_none_matches(header: str, secrets: Sequence[_ReceiverSecret]) -> str:
    versions = {version for version, _ in _signatures_in(header)}
    if "v1a" in versions and "v1" not in versions and not any(secret.public_key for secret in secrets):
        return f"{SIGNATURE} holds v1a only, which needs the sender's public key, {PUBLIC_KEY_PREFIX}…"
    if versions.isdisjoint({"v1", "v1a"}):
        return f"{SIGNATURE} holds neither a v1 nor a v1a signature"
    return f"no signature in it was made with {_counted(secrets)}; {_ADVICE}"


def _counted(secrets: Sequence[_ReceiverSecret]) -> str:
    return "the secret given" if len(secrets) == 1 else f"any of the {len(secrets)} secrets given"


# ── reading what anybody may have written ────────────────────────────────────────────────────────


def _found(headers: Headers, wanted: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    pairs = headers.items() if hasattr(headers, "items") else headers
    for name, value in islice(pairs, _MOST_HEADERS):
        lower = _header_text(name, "a name").lower() if isinstance(name, str | bytes) else ""
        if lower not in wanted:
            continue
        text = _header_text(value, lower)
        if found.setdefault(lower, text) != text:
            raise VerificationError("duplicate_header", f"{lower} is there twice, with different values")
    return found


def _header_text(value: Any, name: str) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise VerificationError("malformed_header", f"{name} must be text")
    return value


def _the(found: Mapping[str, str], name: str) -> str:
    if not found.get(name):
        raise VerificationError("missing_header", f"there is no {name}")
    return found[name]


def _unix_time(text: str) -> datetime:
    if not _UNIX_TIME.fullmatch(text):
        raise VerificationError("malformed_timestamp", f"{TIMESTAMP} must be seconds since 1970, in digits")
    return datetime.fromtimestamp(int(text), UTC)


def _iso_time(text: str) -> datetime:
    try:
        if _ISO_TIME.fullmatch(text):
            return datetime.fromisoformat(text)
    except ValueError:
        pass  # such as the 30th of February
    raise VerificationError("malformed_timestamp", "the timestamp must look like 2025-10-04T14:30:45.123Z")


def _payload(body: Any) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if not isinstance(body, str):
        raise VerificationError("malformed_body", "the body must be bytes or text")
    try:
        return body.encode()
    except UnicodeEncodeError:
        raise VerificationError("malformed_body", "the body is no text that UTF-8 can write") from None


def _moment(now: Any) -> datetime:
    if now is None:
        return datetime.now(UTC)
    if not isinstance(now, datetime) or now.utcoffset() is None:
        raise VerificationError("bad_argument", "now must be a datetime with a time zone")
    return now


def _receiver_secrets(secrets: Any) -> list[_ReceiverSecret]:
    given = [secrets] if isinstance(secrets, str) else list(islice(secrets, _MOST_SECRETS + 1))
    if not 1 <= len(given) <= _MOST_SECRETS:
        raise VerificationError("bad_secret", f"give from 1 to {_MOST_SECRETS} secrets")
    return [_receiver_secret(index, secret) for index, secret in enumerate(given)]


def _receiver_secret(index: int, secret: Any) -> _ReceiverSecret:
    if not isinstance(secret, str):
        raise VerificationError("bad_secret", f"secret {index} must be text")
    if secret.strip() in {"", SECRET_PREFIX}:
        raise VerificationError("bad_secret", f"secret {index} is empty")
    if secret.startswith(PRIVATE_KEY_PREFIX):
        raise VerificationError(
            "bad_secret", f"secret {index} is the sender's private key; a receiver needs {PUBLIC_KEY_PREFIX}…"
        )
    if secret.startswith(PUBLIC_KEY_PREFIX):
        return _ReceiverSecret(index, None, _public_key(index, secret))
    secret.encode()
    return _ReceiverSecret(index, secret, None)


def _public_key(index: int, text: str) -> Ed25519PublicKey:
    try:
        key: Ed25519PublicKey = _ed25519().Ed25519PublicKey.from_public_bytes(
            _key_bytes(text, PUBLIC_KEY_PREFIX)
        )
    except (MalformedKey, ValueError):
        raise VerificationError("bad_secret", f"secret {index} is no ed25519 public key") from None
    return key
