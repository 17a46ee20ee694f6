"""Why no complete answer came: a word for the database and a line for a person.

Nothing of the request is repeated, for neither its URL nor its headers are anybody else's business.
"""

from __future__ import annotations

import errno
import os
import ssl

from msgspec import Struct

from homing.senders.webhook_answer import harmless

#: Seconds for a connection, TLS included.
CONNECT_TIMEOUT = 5.0
#: So begins what is said of a time-out before anything was sent.
NO_CONNECTION = "no connection"


class Failure(Struct, frozen=True):
    code: str
    message: str


_OUR_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

CLOSING = Failure("connection_lost", "the sender is closing")
NOT_HTTP = Failure("protocol_error", "the answer is not valid HTTP")
UNASKED = Failure("protocol_error", "the receiver answered before it was asked")
NO_ADDRESS = Failure("dns_error", "the name has no address")
UNWRITABLE = Failure(
    "invalid_request", "the request could not be sent: a header contains what no header may contain"
)


def no_connection(seconds: float) -> Failure:
    return Failure("timeout", f"{NO_CONNECTION} within {seconds:g} s")


def too_late(seconds: float, *, answered: bool) -> Failure:
    """The request was on its way; `answered` says that the answer had its headers at least."""
    missing = "no complete answer" if answered else "no answer"
    return Failure("timeout", f"{missing} within {seconds:g} s")


def not_connected(error: OSError) -> Failure:
    if isinstance(error, ssl.SSLError | ssl.CertificateError):
        return _tls(error)
    if isinstance(error, ConnectionError) and error.errno is None:
        # The system numbers its errors; this one is asyncio's, of a handshake that was cut off.
        return Failure("tls_error", "TLS failed: the receiver hung up during the handshake")
    if error.errno in _OUR_SHORTAGE:
        return Failure("out_of_resources", f"we lack what a connection takes: {_words(error.errno)}")
    words = "the connection failed" if error.errno is None else _words(error.errno)
    return Failure("connect_error", f"cannot connect: {words}")


def lost(error: BaseException | None) -> Failure:
    """The connection ended in the middle of an exchange; None where the receiver hung up in good order."""
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return _tls(error)
    number = error.errno if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
    detail = "" if number is None else f" ({_words(number)})"
    return Failure("connection_lost", f"the connection was lost before the answer was complete{detail}")


def _words(number: int) -> str:
    return os.strerror(number).lower()


def _tls(error: OSError) -> Failure:
    if isinstance(error, ssl.SSLCertVerificationError):
        shown = harmless(error.verify_message)
        return Failure("tls_error", f"the certificate is not to be trusted: {shown}")
    reason = getattr(error, "reason", None) or "the handshake failed"
    return Failure("tls_error", f"TLS failed: {harmless(str(reason)).replace('_', ' ').lower()}")
