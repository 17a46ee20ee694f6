"""The client of SQS, and what its refusals mean."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from importlib import import_module
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from homing.engine.model import Failure
from homing.errors import SettingsError

# Neither of the two ships types, so that they are Any to us in either case.
_session: Any = import_module("aiobotocore.session")
_config: Any = import_module("aiobotocore.config")
_errors: Any = import_module("botocore.exceptions")

ClientError: Any = _errors.ClientError
#: What an outage or a refusal looks like from here.
TROUBLE: tuple[Any, ...] = (ClientError, _errors.BotoCoreError, OSError)

#: Its methods are made from a description of the service when it starts.
Client: TypeAlias = Any

_NO_SUCH_QUEUE = ("NonExistentQueue", "QueueDoesNotExist")
_STALE = ("ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue")


class Endpoint(Struct, frozen=True):
    """Where SQS is, and as whom we go there; None leaves it to the environment."""

    url: str | None
    region: str
    credentials: tuple[str, str] | None = None

    @property
    def address(self) -> str:
        """For logs and errors."""
        return self.url or f"SQS in {self.region}"

    @property
    def base_url(self) -> str:
        """Where its queues' URLs begin."""
        return self.url or f"https://sqs.{self.region}.amazonaws.com"

    @classmethod
    def from_url(cls, url: str) -> Endpoint:
        parts = urlsplit(url)
        # A password with a slash in it would otherwise be taken for a path, and its beginning for a port.
        if "@" in url:
            raise SettingsError("sqs:// takes no user and password; credentials come from the environment")
        region = _region(parse_qs(parts.query))
        if not parts.hostname:
            return cls(None, region or _need_region())
        port = f":{parts.port}" if parts.port else ""
        if is_loopback(parts.hostname):
            return cls(f"http://{parts.hostname}{port}", region or "us-east-1", _credentials_for_loopback())
        return cls(f"https://{parts.hostname}{port}", region or _need_region())


def _region(query: dict[str, list[str]]) -> str | None:
    if unknown := set(query) - {"region"}:
        raise SettingsError(f"sqs:// does not know {', '.join(sorted(unknown))}; it takes ?region=")
    given = query.get("region", [None])[0]
    return given or os.environ.get("AWS_REGION") or _session.get_session().get_config_variable("region")


def _need_region() -> str:
    raise SettingsError("sqs:// needs a region: write sqs://?region=eu-central-1, or set AWS_REGION")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _credentials_for_loopback() -> tuple[str, str] | None:
    """An emulator takes any; the client refuses to go without."""
    return None if os.environ.get("AWS_ACCESS_KEY_ID") else ("homing", "homing")


class Connection:
    """Makes the client when it is first needed. It holds a pool that heals by itself."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._client: Client | None = None
        self._context: Any = None
        self._lock = asyncio.Lock()

    async def client(self) -> Client:
        async with self._lock:
            if self._client is None:
                self._context = self._make()
                self._client = await self._context.__aenter__()
            return self._client

    def _make(self) -> Any:
        key, secret = self.endpoint.credentials or (None, None)
        config = _config.AioConfig(
            max_pool_connections=50,
            connect_timeout=5,
            # Longer than the longest poll.
            read_timeout=30,
            retries={"mode": "standard", "max_attempts": 2},
        )
        return _session.get_session().create_client(
            "sqs",
            region_name=self.endpoint.region,
            endpoint_url=self.endpoint.url,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            config=config,
        )

    def failure_of(self, error: BaseException) -> Failure:
        """In our words, and without what the service quotes of the request."""
        if isinstance(error, ClientError):
            code = code_of(error)
            return Failure("broker_refused", f"{self.endpoint.address} says {code}")
        if isinstance(error, _errors.NoCredentialsError):
            return Failure("broker_refused", "no AWS credentials are in the environment")
        return Failure("broker_unreachable", f"{self.endpoint.address}: {type(error).__name__}")

    async def close(self) -> None:
        async with self._lock:
            if self._client is not None:
                self._client = None
                await self._context.__aexit__(None, None, None)


def code_of(error: BaseException) -> str:
    response = getattr(error, "response", {})
    return str(response.get("Error", {}).get("Code", "")) or type(error).__name__


def is_missing_queue(error: BaseException) -> bool:
    return isinstance(error, ClientError) and any(word in code_of(error) for word in _NO_SUCH_QUEUE)


def is_stale(code: str) -> bool:
    """What we say of a message that is no longer ours; there is nothing to mend."""
    return any(word in code for word in _STALE)
