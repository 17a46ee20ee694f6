"""Why no complete answer came: a word for the database and a line for a person, from what aiohttp raised.

Nothing of the request is repeated, for neither its URL nor its headers are anybody else's business.
"""

from __future__ import annotations

import os
import ssl

from aiohttp import (
    ClientConnectionError,
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ConnectionTimeoutError,
    InvalidURL,
)
from msgspec import Struct

from homing.senders.egress import EgressRefused
from homing.senders.webhook_answer import harmless

#: Seconds for a connection, TLS included.
CONNECT_TIMEOUT = 5.0


class Failure(Struct, frozen=True):
    code: str
    message: str


def why(error: BaseException, timeout: float, *, begun: bool, answered: bool) -> Failure:
    """Name what went wrong in an exchange that had `timeout` seconds.

    `begun` says that the request was on its way, `answered` that the answer had its headers at least.
    """
    if isinstance(error, ConnectionTimeoutError):
        return Failure("timeout", f"no connection within {min(CONNECT_TIMEOUT, timeout):g} s")
    if isinstance(error, TimeoutError):
        missing = "no complete answer" if answered else "no answer" if begun else "no connection"
        return Failure("timeout", f"{missing} within {timeout:g} s")
    if isinstance(error, ClientConnectorError | ClientConnectorCertificateError):
        return _not_connected(error)
    if isinstance(error, InvalidURL):
        return Failure("invalid_url", "the URL cannot be used")
    if isinstance(error, ClientConnectionError | OSError):
        return _lost(error)
    return _broken(error)


def _not_connected(error: ClientConnectorError | ClientConnectorCertificateError) -> Failure:
    cause = _cause(error)
    if isinstance(cause, EgressRefused):
        return Failure("egress_refused", cause.reason)
    if isinstance(error, ClientConnectorDNSError):
        return Failure("dns_error", str(cause))
    if isinstance(cause, ssl.SSLError | ssl.CertificateError):
        return _tls(cause)
    if isinstance(cause, ConnectionError) and cause.errno is None:
        # The system numbers its errors; this one is asyncio's, of a handshake that was cut off.
        return Failure("tls_error", "TLS failed: the receiver hung up during the handshake")
    number = cause.errno if isinstance(cause, OSError) else None
    return Failure("connect_error", f"cannot connect: {_words(number)}")


def _cause(error: ClientConnectorError | ClientConnectorCertificateError) -> Exception:
    return error.certificate_error if isinstance(error, ClientConnectorCertificateError) else error.os_error


def _words(number: int | None) -> str:
    return "the connection failed" if number is None else os.strerror(number).lower()


def _tls(error: Exception) -> Failure:
    if isinstance(error, ssl.SSLCertVerificationError):
        shown = harmless(error.verify_message)
        return Failure("tls_error", f"the certificate is not to be trusted: {shown}")
    reason = getattr(error, "reason", None) or "the handshake failed"
    return Failure("tls_error", f"TLS failed: {harmless(str(reason)).replace('_', ' ').lower()}")


def _lost(error: Exception) -> Failure:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        return _tls(cause)
    number = error.errno if isinstance(error, OSError) else None
    detail = "" if number is None else f" ({_words(number)})"
    return Failure("connection_lost", f"the connection was lost before the answer was complete{detail}")


def _broken(error: BaseException) -> Failure:
    if isinstance(error, ClientPayloadError) and "not completed" in str(error):
        return Failure("connection_lost", "the connection was lost before the answer was complete")
    if isinstance(error, ClientError):
        return Failure("protocol_error", "the answer is not valid HTTP")
    # A header that cannot be written comes here, and so would a bug: the attempt ends, the worker goes on.
    return Failure("protocol_error", f"the request could not be sent: {type(error).__name__}")
