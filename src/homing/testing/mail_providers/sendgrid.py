"""Twilio SendGrid, as its API reference describes it.

* "Mail Send": fields, the 202 with an empty body and X-Message-Id, sandbox mode's 200.
* "Mail Send: Errors": the sentences of a 400, and which field they name.
* "How to use the v3 API: Rate limits": the 429, X-RateLimit-Reset as a Unix time.
* "How to use the v3 API: Errors": 401, 403 and their shape, `{"errors": [{"message", "field", "help"}]}`.
"""

from __future__ import annotations

from collections.abc import Iterator
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

KEY = "SG.an-api-key.of-nobody"
_FIELDS = frozenset(
    {
        "personalizations", "from", "reply_to", "reply_to_list", "subject", "content", "attachments",
        "template_id", "headers", "categories", "custom_args", "send_at", "batch_id", "asm", "ip_pool_name",
        "mail_settings", "tracking_settings",
    }
)  # fmt: skip
_RESERVED_HEADERS = frozenset(
    {
        "x-sg-id", "x-sg-eid", "received", "dkim-signature", "content-type", "content-transfer-encoding",
        "to", "from", "subject", "reply-to", "cc", "bcc",
    }
)  # fmt: skip
_INVALID_ADDRESS = "Does not contain a valid address."


def _error(status: int, message: str, field: str | None = None) -> Answer:
    return json_answer(status, {"errors": [{"message": message, "field": field, "help": None}]})


def _refuse(message: str, field: str | None = None) -> Refused:
    return Refused(_error(400, message, field))


class SendGridDesk(Counter):
    url = f"sendgrid://:{KEY}@"

    def answer(self, request: SinkRequest) -> Answer:
        if request.header("authorization") != f"Bearer {KEY}":
            return _error(401, "The provided authorization grant is invalid, expired, or revoked")
        if (request.method, request.path) != ("POST", "/v3/mail/send"):
            return _error(404, "not found")
        if len(request.body) > 40_000_000:
            return _error(413, "Payload Too Large")
        mail = json_body(request, _error(400, "Bad Request"))
        self._check(mail)
        if mail.get("mail_settings", {}).get("sandbox_mode", {}).get("enable"):
            return Answer(status=200)
        return self._take(mail)

    def _check(self, mail: dict[str, Any]) -> None:
        if unknown := set(mail) - _FIELDS:
            raise _refuse("Unknown parameter", min(unknown))
        _check_personalizations(mail)
        _check_sender(mail)
        _check_content(mail)
        _check_extras(mail)
        for field, address in _recipients(mail):
            if address in self.rejected:
                raise _refuse(_INVALID_ADDRESS, field)
            if address in self.deferred:
                raise Refused(_error(429, "too many requests"))

    def _take(self, mail: dict[str, Any]) -> Answer:
        number = f"sg-{self.next_number()}"
        first = mail["personalizations"][0]
        parts = {part["type"]: part["value"] for part in mail["content"]}
        self.mails.append(
            Taken(
                provider_id=number,
                recipients=tuple(address for _, address in _recipients(mail)),
                to=tuple(one["email"] for one in first["to"]),
                cc=tuple(one["email"] for one in first.get("cc", ())),
                subject=mail["subject"],
                text=parts.get("text/plain"),
                html=parts.get("text/html"),
                headers=tuple(mail.get("headers", {}).items()),
                attachments=tuple(_files(mail)),
                told=mail.get("custom_args", {}),
                options=mail,
            )
        )
        return Answer(status=202, headers=(("X-Message-Id", number),))


def _recipients(mail: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The field and the address of each."""
    for number, block in enumerate(mail["personalizations"]):
        for kind in ("to", "cc", "bcc"):
            for place, one in enumerate(block.get(kind, ())):
                yield f"personalizations.{number}.{kind}.{place}.email", one.get("email")


def _check_personalizations(mail: dict[str, Any]) -> None:
    blocks = mail.get("personalizations")
    if not isinstance(blocks, list) or not blocks:
        message = "The personalizations field is required and must have at least one personalization."
        raise _refuse(message, "personalizations")
    if any(not block.get("to") for block in blocks):
        message = "The to array is required for all personalization objects, and must have at least one email"
        raise _refuse(message, "personalizations.0.to")
    seen: set[str] = set()
    for field, address in _recipients(mail):
        if not is_address(address):
            raise _refuse(_INVALID_ADDRESS, field)
        if address.lower() in seen:
            block = field.rpartition(".")[0].rpartition(".")[0]
            raise _refuse(
                "Each email address in the personalization block should be unique between to, cc, and bcc. "
                f"We found the first duplicate instance of [{address}] in the {block} field.",
                "personalizations.0",
            )
        seen.add(address.lower())
    if len(seen) > 1000:
        raise _refuse("There is a limit of 1000 total recipients (to + cc + bcc) per request.")


def _check_sender(mail: dict[str, Any]) -> None:
    if not is_address(mail.get("from", {}).get("email")):
        raise _refuse("The from email does not contain a valid address.", "from.email")
    if mail.get("from", {})["email"].endswith("@unverified.example"):
        raise Refused(_error(403, "The from address does not match a verified Sender Identity.", "from"))
    replies = mail.get("reply_to_list", [])
    if not all(is_address(one.get("email")) for one in replies):
        raise _refuse("The reply_to_list email does not contain a valid address.", "reply_to_list")


def _check_content(mail: dict[str, Any]) -> None:
    if not mail.get("subject"):
        raise _refuse(
            "The subject is required. You can get around this requirement if you use a template with a "
            "subject defined or if every personalization has a subject defined.",
            "subject",
        )
    content = mail.get("content")
    if not content:
        raise _refuse("Unless a valid template_id is provided, the content parameter is required.", "content")
    if not all(part.get("type") and part.get("value") for part in content):
        message = "The content value must be a string at least one character in length."
        raise _refuse(message, "content.0.value")
    kinds = [part["type"] for part in content]
    if kinds != sorted(kinds, key=["text/plain", "text/html"].index):
        message = "If present, text/plain and text/html may only be provided once, text/plain first."
        raise _refuse(message, "content")


def _check_extras(mail: dict[str, Any]) -> None:
    for name in mail.get("headers", {}):
        if name.lower() in _RESERVED_HEADERS:
            raise _refuse(f"The header {name} is reserved and cannot be used.", f"headers.{name}")
    arguments = mail.get("custom_args", {})
    if not all(isinstance(value, str) for value in arguments.values()):
        raise _refuse("Each custom_arg value must be a string.", "custom_args")
    if sum(len(f"{name}{value}".encode()) for name, value in arguments.items()) > 10_000:
        raise _refuse("The total size of custom args cannot exceed 10000 bytes.", "custom_args")
    if len(mail.get("categories", ())) > 10:
        raise _refuse("There is a limit of 10 categories per request.", "categories")
    list(_files(mail))


def _files(mail: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    for one in mail.get("attachments", ()):
        if not one.get("filename"):
            raise _refuse("The attachment filename is required.", "attachments.0.filename")
        wrong = _error(400, "The attachment content must be base64 encoded.", "attachments.0.content")
        yield one["filename"], decoded(one.get("content"), wrong)
