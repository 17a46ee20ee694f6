"""From `HOMING_MAIL_URL` to a sender."""

from __future__ import annotations

from urllib.parse import urlsplit

from homing.db import Database
from homing.errors import SettingsError
from homing.senders.caught_mail import CatchSender, Shelf
from homing.senders.failover import FailoverSender
from homing.senders.mail import MailSender
from homing.senders.memory import MemorySender
from homing.senders.smtp import SmtpSender
from homing.senders.smtp_relay import Relay

KNOWN = "catch://, memory://, smtp://host or smtps://host"


def open_sender(urls: str, database: Database, *, connections: int) -> MailSender:
    """One sender, or several in the order in which they are to be tried."""
    split = urls.split(",")
    senders = [_open_one(url, database, connections, alone=len(split) == 1) for url in split]
    return senders[0] if len(senders) == 1 else FailoverSender(senders)


def _open_one(url: str, database: Database, connections: int, *, alone: bool) -> MailSender:
    match urlsplit(url).scheme:
        case "catch":
            return CatchSender(Shelf(database))
        case "memory":
            return MemorySender()
        case "smtp" | "smtps":
            relay = Relay.from_url(url)
            # Beside others a relay says which one it is: rows keep it as their provider.
            name = "smtp" if alone else f"smtp:{relay.host}"
            return SmtpSender(relay, connections=connections, name=name)
        case scheme:
            raise SettingsError(
                f"HOMING_MAIL_URL has no sender for {scheme or 'nothing'}://; known are {KNOWN}"
            )
