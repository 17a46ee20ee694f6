"""Homing delivers outbound messages, emails and signed webhooks, and proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homing.signatures import VerificationError, Verified, verify

__version__ = "0.1.0"
__all__ = ["VerificationError", "Verified", "__version__", "verify"]


def __getattr__(name: str) -> Any:
    # Receivers import two names from here; every command of ours imports this file, and wants neither.
    if name not in {"VerificationError", "Verified", "verify"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from homing import signatures  # noqa: PLC0415 - see above

    return getattr(signatures, name)
