"""From `HOMING_BROKER_URL` to a broker."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from urllib.parse import SplitResult, urlsplit

from homing.brokers.base import Broker
from homing.brokers.memory import MemoryBroker
from homing.errors import SettingsError
from homing.telemetry import Telemetry

KNOWN = "memory://, amqp://host, amqps://host or sqs://"
#: The module here, which is also the extra that it needs, and the client that the extra brings.
_EXTRAS = {
    "amqp": ("rabbitmq", "aio_pika"),
    "amqps": ("rabbitmq", "aio_pika"),
    "sqs": ("sqs", "aiobotocore"),
}
#: What people write when they mean one of ours.
_MEANT = {"rabbitmq": "amqp", "rabbit": "amqp", "amqp+ssl": "amqps", "aws": "sqs", "mem": "memory"}


def open_broker(url: str, telemetry: Telemetry) -> Broker:
    """Nothing is connected yet: a broker that is away now may be there when it is needed."""
    scheme = _split(url).scheme
    if scheme == "memory":
        return MemoryBroker(url)
    if scheme not in _EXTRAS:
        raise SettingsError(f"there is no broker for {scheme or 'nothing'}://{_nearest(scheme)}")
    from_url: Callable[[str, Telemetry], Broker] = _module(*_EXTRAS[scheme]).from_url
    return from_url(url, telemetry)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # Not as the parser says it: that may quote the password.
        raise SettingsError(f"the broker's URL is malformed; known are {KNOWN}") from None
    if parts.scheme in {"amqp", "amqps"} and not parts.hostname:
        raise SettingsError(f"the broker's URL names no host; it is written {parts.scheme}://user:pass@host/")
    return parts


def _nearest(scheme: str) -> str:
    near = (
        [_MEANT[scheme]] if scheme in _MEANT else difflib.get_close_matches(scheme, ["memory", *_EXTRAS], n=1)
    )
    return f"; did you mean {near[0]}://?" if near else f"; known are {KNOWN}"


def _module(name: str, client: str) -> ModuleType:
    """The clients of brokers are extras: most run without one, and start quicker without its import."""
    try:
        import_module(client)
    except ModuleNotFoundError:
        raise SettingsError(
            f"{client} is not installed, and this broker needs it: pip install 'homing[{name}]'"
        ) from None
    return import_module(f"homing.brokers.{name}")
