"""Postmark, as its developer documentation describes it.

* "Email API: Send a single email": fields, limits, the 200 with ErrorCode 0; of several recipients the
  inactive ones are named in Message only (as its client libraries read it).
* "API overview: HTTP response codes" and "API error codes": 401 with 10, 422 with 300, 406, 411, …, 429, 500.
* "Custom metadata FAQ": ten fields, names of 20 and values of 80 characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from email.headerregistry import AddressHeader
from email.policy import default
from typing import Any

from homing.testing.http_sink import Answer, SinkRequest
from homing.testing.mail_providers.desk import (
    Counter,
    Refused,
    Taken,
    decoded,
    is_address,
    json_answer,
    json_body,
)

KEY = "00000000-server-token-of-nobody"
_FIELDS = frozenset(
    {
        "From", "To", "Cc", "Bcc", "Subject", "Tag", "HtmlBody", "TextBody", "ReplyTo", "Headers",
        "TrackOpens", "TrackLinks", "Metadata", "Attachments", "MessageStream",
    }
)  # fmt: skip
_STREAMS = frozenset({"outbound", "open-seats"})
_FORBIDDEN_FILES = (".exe", ".bat", ".vbs", ".js", ".scr")


def _error(code: int, message: str, status: int = 422) -> Answer:
    return json_answer(status, {"ErrorCode": code, "Message": message})


def _refuse(code: int, message: str) -> Refused:
    return Refused(_error(code, message))


class PostmarkDesk(Counter):
    url = f"postmark://{KEY}@"

    def answer(self, request: SinkRequest) -> Answer:
        if request.header("x-postmark-server-token") != KEY:
            return _error(10, "The Server Token you provided in the X-Postmark-Server-Token request header "
                          "was invalid. Please verify that you are using a valid token.", 401)  # fmt: skip
        if (request.method, request.path) != ("POST", "/email"):
            return Answer(status=404)
        if len(request.body) > 14_000_000:
            return _error(300, "Message too large", 413)
        mail = json_body(request, _error(402, "Invalid JSON"))
        if unknown := set(mail) - _FIELDS:
            return _error(403, f"Incompatible JSON: unknown field {min(unknown)}")
        return self._consider(mail)

    def _consider(self, mail: dict[str, Any]) -> Answer:
        lists = {field: _mailboxes(mail, field) for field in ("To", "Cc", "Bcc")}
        everybody = tuple(address for one in lists.values() for address in one)
        _check(mail, everybody)
        if any(address in self.deferred for address in everybody):
            raise _refuse(429, "You have exceeded the rate limit for this endpoint.")
        inactive = [address for address in everybody if address in self.rejected]
        if len(inactive) == len(everybody):
            raise _refuse(
                406,
                "You tried to send to recipient(s) that have been marked as inactive. Found inactive "
                f"addresses: {', '.join(inactive)}. Inactive recipients are ones that have generated a hard "
                "bounce, a spam complaint, or a manual suppression.",
            )
        return self._take(mail, lists, inactive)

    def _take(self, mail: dict[str, Any], lists: dict[str, tuple[str, ...]], inactive: list[str]) -> Answer:
        number = f"pm-{self.next_number()}"
        reached = [who for one in lists.values() for who in one if who not in inactive]
        self.mails.append(
            Taken(
                provider_id=number,
                recipients=tuple(reached),
                to=lists["To"],
                cc=lists["Cc"],
                subject=mail.get("Subject", ""),
                text=mail.get("TextBody"),
                html=mail.get("HtmlBody"),
                headers=tuple((one["Name"], one["Value"]) for one in mail.get("Headers", ())),
                attachments=tuple(_files(mail)),
                told=mail.get("Metadata", {}),
                options=mail,
            )
        )
        message = "OK"
        if inactive:
            message = f"Message OK, but will not deliver to these inactive addresses: {', '.join(inactive)}"
        return json_answer(
            200,
            {
                "To": mail["To"],
                "SubmittedAt": "2026-03-04T12:00:00.0000000Z",
                "MessageID": number,
                "ErrorCode": 0,
                "Message": message,
            },
        )


def _mailboxes(mail: dict[str, Any], field: str) -> tuple[str, ...]:
    text = mail.get(field, "")
    parsed = default.header_factory("To", text) if text else None
    assert parsed is None or isinstance(parsed, AddressHeader)
    found = tuple(one.addr_spec for one in parsed.addresses) if parsed is not None else ()
    wrong = next((address for address in found if not is_address(address)), None)
    if wrong is not None or (text and not found):
        raise _refuse(300, f"Error parsing '{field}': Illegal email address '{wrong}'. It must contain '@'.")
    return found


def _check(mail: dict[str, Any], everybody: tuple[str, ...]) -> None:
    sender = _mailboxes(mail, "From")
    if len(sender) != 1:
        raise _refuse(300, "Invalid 'From' address: ''.")
    if sender[0].endswith("@unverified.example"):
        raise _refuse(
            400, f"The 'From' address you supplied ({sender[0]}) is not a Sender Signature on your account."
        )
    if not mail.get("To"):
        raise _refuse(300, "Zero recipients specified")
    if len(everybody) > 50:
        raise _refuse(300, "Maximum of 50 recipients allowed per email message.")
    if not (mail.get("TextBody") or mail.get("HtmlBody")):
        raise _refuse(300, "Provide either email TextBody or HtmlBody or both.")
    if mail.get("MessageStream", "outbound") not in _STREAMS:
        raise _refuse(1235, "The message stream for the provided 'ID' was not found.")
    _check_metadata(mail.get("Metadata", {}))
    list(_files(mail))


def _check_metadata(metadata: dict[str, Any]) -> None:
    if len(metadata) > 10 or not all(
        len(name) <= 20 and isinstance(value, str) and len(value) <= 80 for name, value in metadata.items()
    ):
        raise _refuse(
            300,
            "Invalid metadata content. Field names are limited to 20 characters, and values are limited to "
            "80 characters.",
        )


def _files(mail: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    for one in mail.get("Attachments", ()):
        if one.get("Name", "").lower().endswith(_FORBIDDEN_FILES):
            raise _refuse(411, f"Forbidden attachment type: {one['Name']}.")
        content = decoded(one.get("Content"), _error(300, "Invalid attachment content."))
        yield one["Name"], content
