"""Where a relay is and how to get in: read from a URL, spoken to until mails may flow.

smtp://user:password@mail.example:587        STARTTLS, required; on loopback no TLS
smtp://10.0.0.5:25?tls=none                  said otherwise
smtps://mail.example                         TLS from the first byte
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Literal, Self, TypeAlias, cast, get_args
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import aiosmtplib
from aiosmtplib.errors import (
    SMTPAuthenticationError,
    SMTPException,
    SMTPHeloError,
    SMTPResponseException,
    SMTPTimeoutError,
)
from msgspec import Struct

from homing.errors import SettingsError
from homing.senders.mail import SendError, SendErrorCode
from homing.senders.smtp_reply import clean_text

Tls: TypeAlias = Literal["none", "opportunistic", "starttls", "implicit"]

_OPTIONS = ("tls", "timeout", "connections", "cafile", "hello")
_PORTS = {"smtp": 587, "smtps": 465}
_HELLO = re.compile(r"[A-Za-z0-9.\-]{1,253}|\[[0-9A-Za-z.:]{2,60}\]").fullmatch
_HINT = "write it as smtp://user:password@host:port, with @ : / ? # in a password as %40 %3A %2F %3F %23"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """A server that takes our mail.

    `smtp` means port 587 unless another is given, also on loopback; `smtps` means 465.
    `opportunistic` encrypts where STARTTLS is offered and looks at no certificate unless `cafile`
    is given: whoever could forge one could strip STARTTLS as well. No password is sent that way.
    """

    host: str
    port: int
    tls: Tls
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    #: Seconds for each command; connecting has ten, or this if it is less.
    timeout: float = 30.0
    #: Most connections at a time, where the URL says so; else the sender's own number holds.
    connections: int | None = None
    #: A file with the certificates of a private authority, in place of the system's.
    cafile: str | None = None
    #: How we introduce ourselves; the machine's name unless given.
    hello: str | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read a URL. What is wrong with it is said without repeating any part that may be secret."""
        parts = _split(url)
        host, port = _host_and_port(parts)
        options = _options(parts)
        user, password = _credentials(parts)
        return cls(
            host=host,
            port=port,
            tls=_tls(parts.scheme, options.get("tls"), host, has_password=password is not None),
            user=user,
            password=password,
            timeout=_number(options, "timeout", default=30.0, lowest=0.05, highest=600.0),
            connections=_connections(options),
            cafile=options.get("cafile"),
            hello=_hello(options.get("hello")),
        )


def _wrong(problem: str) -> SettingsError:
    return SettingsError(f"the mail URL {problem}")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        # The reason may quote the URL, and with it the password.
        raise _wrong(f"cannot be read; {_HINT}") from None
    if parts.scheme not in _PORTS:
        raise _wrong("must begin with smtp:// or smtps://")
    if parts.path not in {"", "/"} or parts.fragment:
        raise _wrong(f"has something after the host that is no option; {_HINT}")
    return parts


def _host_and_port(parts: SplitResult) -> tuple[str, int]:
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _wrong(f"has a port that is no number from 1 to 65535; {_HINT}") from None
    if not host or port == 0 or not host.isprintable() or " " in host:
        raise _wrong(f"names no host; {_HINT}")
    return host, port if port is not None else _PORTS[parts.scheme]


def _credentials(parts: SplitResult) -> tuple[str | None, str | None]:
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    if (user is None) != (password is None):
        raise _wrong(f"needs both a user and a password, or neither; {_HINT}")
    if "\0" in f"{user}{password}":
        raise _wrong("has a NUL in the user or the password, which no relay can be told")
    return user, password


def _options(parts: SplitResult) -> dict[str, str]:
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        raise _wrong("gives an option twice; keep one of them")
    for name in options:
        if name not in _OPTIONS:
            raise _wrong(f"has an unknown option{_shown(name)}; there are {', '.join(_OPTIONS)}")
    return options


def _shown(name: str) -> str:
    """Show a mistyped option, but not the rest of a password that contained a question mark."""
    near = get_close_matches(name, _OPTIONS, n=1)
    return f" {name!r} (did you mean {near[0]!r}?)" if near and name.isalpha() else ""


def _tls(scheme: str, chosen: str | None, host: str, *, has_password: bool) -> Tls:
    if scheme == "smtps":
        if chosen is not None:
            raise _wrong("is smtps, which always uses TLS: leave the option tls out, or write smtp://")
        return "implicit"
    local = _is_loopback(host)
    if chosen is None:
        return "none" if local else "starttls"
    if chosen not in get_args(Tls) or chosen == "implicit":
        raise _wrong("has an unknown value for tls; there are none, opportunistic and starttls")
    if chosen != "starttls" and has_password and not local:
        raise _wrong(
            "would send the password to whoever listens or answers: use tls=starttls, or leave out user "
            "and password where the relay asks for none"
        )
    return cast("Tls", chosen)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _number(options: dict[str, str], name: str, *, default: float, lowest: float, highest: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = float("nan")
    if not lowest <= value <= highest or (name == "connections" and value != int(value)):
        kind = "a whole number" if name == "connections" else "a number"
        raise _wrong(f"needs {kind} from {lowest:g} to {highest:g} for {name}")
    return value


def _connections(options: dict[str, str]) -> int | None:
    if "connections" not in options:
        return None
    return int(_number(options, "connections", default=1, lowest=1, highest=1000))


def _hello(name: str | None) -> str | None:
    if name is not None and not _HELLO(name):
        raise _wrong("needs a host name, or an address in brackets, for hello")
    return name


class Features(Struct, frozen=True):
    """What the relay offers, as far as we use it."""

    pipelining: bool = False
    smtputf8: bool = False
    eight_bit: bool = False
    enhanced: bool = False
    #: The largest message in octets; 0 when SIZE is offered without a limit, None when it is not.
    size: int | None = None


class Entrance(Struct, frozen=True):
    """A connection on which mails may flow now."""

    transport: asyncio.Transport
    features: Features


class Closed(Struct, frozen=True):
    """Why there is no connection."""

    error: SendError
    #: False when the relay says that it is busy for everybody.
    attempted: bool = True


def tls_context(relay: Relay) -> ssl.SSLContext | None:
    """The one TLS context of a relay; reading the certificates takes milliseconds, so keep it."""
    if relay.tls == "none":
        return None
    if relay.tls == "opportunistic" and relay.cafile is None:
        return _unchecked_context()
    try:
        return ssl.create_default_context(cafile=relay.cafile)
    except OSError:
        raise SettingsError(
            f"the certificates in {relay.cafile} cannot be read (cafile of a mail URL)"
        ) from None


def _unchecked_context() -> ssl.SSLContext:
    """Nothing is held against an authority, so none is read: a system has 20 ms of them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def enter(
    relay: Relay, context: ssl.SSLContext | None, *, connect_timeout: float, probe: bool = False
) -> Entrance | Closed:
    """Connect, encrypt and log in, so far as the relay is to be used so. `probe` adds a NOOP."""
    client = _client(relay, context)
    try:
        # Each command has a time limit of its own; a relay that uses up every one of them is no use.
        async with asyncio.timeout(connect_timeout + 2 * relay.timeout):
            return await _go_in(client, relay, connect_timeout=connect_timeout, probe=probe)
    except (SMTPException, OSError, ValueError) as error:
        _leave(client)
        # A turn of the loop, so that nothing is left open when it was the last.
        await asyncio.sleep(0)
        return _closed(error)
    except asyncio.CancelledError:
        _leave(client)
        raise


def _leave(client: aiosmtplib.SMTP) -> None:
    """Close at once: saying goodbye over TLS could take as long as what just failed."""
    transport = client.transport
    client.close()
    if transport is not None:
        cast("asyncio.Transport", transport).abort()


async def _go_in(
    client: aiosmtplib.SMTP, relay: Relay, *, connect_timeout: float, probe: bool
) -> Entrance | Closed:
    await client.connect(timeout=min(connect_timeout, relay.timeout))
    await _introduce(client)
    refused = await _log_in(client, relay)
    if refused is not None:
        _leave(client)
        await asyncio.sleep(0)
        return refused
    if probe:
        await client.noop()
    return _entrance(client)


def _client(relay: Relay, context: ssl.SSLContext | None) -> aiosmtplib.SMTP:
    # With `start_tls=True` a relay that does not offer STARTTLS is an error; the library's default
    # would go on in the clear. Only `opportunistic` asks for that.
    starttls = {"starttls": True, "opportunistic": None}.get(relay.tls, False)
    return aiosmtplib.SMTP(
        hostname=relay.host,
        port=relay.port,
        local_hostname=relay.hello or own_name(),
        timeout=relay.timeout,
        use_tls=relay.tls == "implicit",
        start_tls=starttls,
        tls_context=context,
    )


def own_name() -> str:
    """Our name for EHLO. `getfqdn` would ask the DNS, and may take seconds to find nothing."""
    name = socket.gethostname()
    return name if _HELLO(name) else "localhost"


async def _introduce(client: aiosmtplib.SMTP) -> None:
    if not client.is_ehlo_or_helo_needed:
        return
    try:
        await client.ehlo()
    except SMTPHeloError as error:
        if error.code == 421:
            raise
        await client.helo()


def _entrance(client: aiosmtplib.SMTP) -> Entrance | Closed:
    if client.transport is None or client.transport.is_closing():
        return Closed(SendError(SendErrorCode.NETWORK_ERROR, "the relay hung up"))
    offered = client.esmtp_extensions
    size = offered.get("size")
    features = Features(
        pipelining="pipelining" in offered,
        smtputf8="smtputf8" in offered,
        eight_bit="8bitmime" in offered,
        enhanced="enhancedstatuscodes" in offered,
        size=None if size is None else int(size) if size.isdecimal() else 0,
    )
    return Entrance(cast("asyncio.Transport", client.transport), features)


async def _log_in(client: aiosmtplib.SMTP, relay: Relay) -> Closed | None:
    if relay.user is None or relay.password is None:
        return None
    if not client.supported_auth_methods:
        shown = "the relay offers no way to log in that we know, though a user is set"
        return Closed(SendError(SendErrorCode.UNAUTHORIZED, shown))
    try:
        await client.login(relay.user, relay.password)
    except SMTPAuthenticationError as error:
        return _refused_login(error)
    return None


def _refused_login(error: SMTPAuthenticationError) -> Closed:
    if 400 <= error.code < 500:
        return _busy(error)
    shown = clean_text(f"the relay refused the login: {error.code} {error.message}")
    return Closed(SendError(SendErrorCode.UNAUTHORIZED, shown))


def _busy(error: SMTPResponseException) -> Closed:
    shown = clean_text(f"the relay is busy: {error.code} {error.message}")
    return Closed(SendError(SendErrorCode.RATE_LIMITED, shown), attempted=False)


def _closed(error: SMTPException | OSError | ValueError) -> Closed:
    if isinstance(error, SMTPResponseException):
        return _refused(error)
    return Closed(SendError(SendErrorCode.NETWORK_ERROR, _why(error)))


def _refused(error: SMTPResponseException) -> Closed:
    if error.code in {421, 454}:
        return _busy(error)
    shown = clean_text(f"the relay did not let us in: {error.code} {error.message}")
    # Whatever it says at the door, it says to everybody: another relay may be asked.
    code = SendErrorCode.NETWORK_ERROR
    return Closed(SendError(code, shown))


def _why(error: Exception) -> str:
    """One line that a person can act on; the cause under the library's wrapping says most."""
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return clean_text(f"the relay's certificate is not to be trusted: {cause.verify_message}")
    if isinstance(error, SMTPTimeoutError | TimeoutError):
        return "the relay did not answer in time"
    if "STARTTLS extension not supported" in str(error):
        return "the relay offers no STARTTLS, and nothing is sent in the clear unless the URL has tls=none"
    return clean_text(f"cannot connect to the relay: {getattr(error, 'message', None) or cause}")
