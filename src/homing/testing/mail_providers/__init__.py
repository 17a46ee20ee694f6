"""Mail providers on loopback: they check what they get as the real ones would, and answer in their words.

    async with provider_peer("sendgrid") as peer:
        sender = open_provider(peer.url)
        ...
        assert peer.desk.mails[0].recipients == ("ann@example.org",)

`peer.desk.rejected` and `.deferred` hold addresses, `peer.desk.faults` what is answered to the next
requests instead: any `Answer` of `http_sink`, so that a provider may hang, drip, reset or talk nonsense.

`python -m homing.testing.mail_providers sendgrid` runs one as a process of its own, and prints its mail URL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from homing.testing.http_sink import HttpSink
from homing.testing.mail_providers.desk import Desk, Taken, attend
from homing.testing.mail_providers.mailgun import MailgunDesk
from homing.testing.mail_providers.postmark import PostmarkDesk
from homing.testing.mail_providers.sendgrid import SendGridDesk
from homing.testing.mail_providers.ses import SesDesk

__all__ = ["DESKS", "Desk", "ProviderPeer", "Taken", "provider_peer"]

DESKS: Mapping[str, Callable[[], Desk]] = {
    "sendgrid": SendGridDesk,
    "ses": SesDesk,
    "postmark": PostmarkDesk,
    "mailgun": MailgunDesk,
}


class ProviderPeer(Struct, frozen=True):
    desk: Desk
    sink: HttpSink

    @property
    def url(self) -> str:
        """A mail URL that leads here."""
        return f"{self.desk.url}?endpoint={quote(self.sink.url, safe='')}"


@asynccontextmanager
async def provider_peer(name: str, **options: Any) -> AsyncIterator[ProviderPeer]:
    """A provider that listens; `options` are those of its `HttpSink`."""
    desk = DESKS[name]()
    async with HttpSink(lambda request: attend(desk, request), **options) as sink:
        yield ProviderPeer(desk, sink)
