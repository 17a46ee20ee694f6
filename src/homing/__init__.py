"""Homing delivers outbound messages, emails and signed webhooks, and proves it."""

__version__ = "0.1.0"
__all__ = ["__version__"]
