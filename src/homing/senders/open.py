"""From `HOMING_MAIL_URL` to a sender."""

from __future__ import annotations

from difflib import get_close_matches

from homing.db import Database
from homing.errors import SettingsError
from homing.senders.caught_mail import CatchSender, Shelf
from homing.senders.failover import FailoverSender
from homing.senders.mail import MailSender
from homing.senders.memory import MemorySender
from homing.senders.providers import PROVIDERS, open_provider
from homing.senders.smtp import SmtpSender
from homing.senders.smtp_relay import Relay

KNOWN = (
    "catch://, memory://, smtp://host, smtps://host, sendgrid://:API_KEY@, ses://REGION, "
    "postmark://SERVER_TOKEN@ or mailgun://:API_KEY@DOMAIN"
)


def open_sender(urls: str, database: Database, *, connections: int) -> MailSender:
    """One sender, or several in the order in which they are to be tried."""
    split = urls.split(",")
    senders = [_open_one(url.strip(), database, connections, alone=len(split) == 1) for url in split]
    return senders[0] if len(senders) == 1 else FailoverSender(senders)


def _open_one(url: str, database: Database, connections: int, *, alone: bool) -> MailSender:
    # Not by urlsplit: what it raises may quote the URL, and with it a secret.
    scheme, mark, _ = url.partition("://")
    match scheme.lower() if mark else "":
        case "catch":
            return CatchSender(Shelf(database))
        case "memory":
            return MemorySender()
        case "smtp" | "smtps":
            relay = Relay.from_url(url)
            # Beside others a relay says which one it is: rows keep it as their provider.
            name = "smtp" if alone else f"smtp:{relay.host}"
            return SmtpSender(relay, connections=connections, name=name)
        case known if known in PROVIDERS:
            return open_provider(url, connections=connections, alone=alone)
        case "":
            raise SettingsError(
                f"HOMING_MAIL_URL has no scheme: a relay is smtp://relay.example.com; known are {KNOWN}"
            )
        case other:
            raise SettingsError(f"HOMING_MAIL_URL has no sender for {_shown(other)}; known are {KNOWN}")


def _shown(scheme: str) -> str:
    """A mistyped scheme with what may have been meant; but nothing that could be part of a secret."""
    if not scheme or not scheme.isalpha() or len(scheme) > 20:
        return "nothing://"
    near = get_close_matches(scheme, ("catch", "memory", "smtp", "smtps", *PROVIDERS), n=1)
    return f"{scheme}:// (did you mean {near[0]}://?)" if near else f"{scheme}://"
