"""Mail providers behind the one `MailSender` seam. `docs/mail_providers.md` is for who uses them.

account.py    what a URL says        judgement.py   what an answer means, by its status
fields.py     a mail as JSON         sender.py      the sender: breaker, waiting, recipients
sendgrid.py  ses.py  postmark.py  mailgun.py        each: its URL, its request, its words
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from homing.senders.providers.account import Account
from homing.senders.providers.mailgun import Mailgun
from homing.senders.providers.postmark import Postmark
from homing.senders.providers.sender import Api, ApiSender
from homing.senders.providers.sendgrid import SendGrid
from homing.senders.providers.ses import Ses

__all__ = ["PROVIDERS", "ApiSender", "check_provider", "open_provider"]

#: By the scheme of their URLs.
PROVIDERS: Mapping[str, Callable[[str], tuple[Api, Account]]] = {
    "sendgrid": SendGrid.from_url,
    "ses": Ses.from_url,
    "postmark": Postmark.from_url,
    "mailgun": Mailgun.from_url,
}


def open_provider(url: str, *, connections: int = 20, alone: bool = True) -> ApiSender:
    """The sender for a provider's URL; beside others its name says which account it is."""
    api, account = PROVIDERS[url.partition(":")[0].lower()](url)
    name = f"{api.scheme}:{api.place}" if api.place and not alone else api.scheme
    return ApiSender(api, connections=account.connections or connections, cafile=account.cafile, name=name)


async def check_provider(url: str) -> tuple[str, bool, str]:
    """(what was checked, whether it is well, what is so or how to mend it), without sending a mail."""
    sender = open_provider(url, alone=False)
    try:
        problem = await sender.check()
    finally:
        await sender.close()
    what = f"mail provider {sender.name}"
    if problem is not None:
        return what, False, f"{problem}; check HOMING_MAIL_URL and the provider's account"
    return what, True, "answers, and takes the key"
