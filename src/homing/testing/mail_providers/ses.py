"""Amazon SES v2, as its API reference and service model describe it.

* "SendEmail": POST /v2/email/outbound-emails, its fields and errors, the 200 with MessageId.
* "MessageTag": names and values of letters, digits, _ and -, up to 256.
* "Destination": fifty recipients, ASCII before the @.
* "RawMessage": base64, lines of at most 1,000 characters.
* "Common Errors": AccessDenied, InvalidClientTokenId, SignatureDoesNotMatch, …, the header x-amzn-ErrorType.
* "Amazon SES email sending errors": the sentences.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from homing.testing.http_sink import Answer, SinkRequest
from homing.testing.mail_providers.desk import (
    Counter,
    Refused,
    Taken,
    addresses_in,
    content_of,
    decoded,
    files_of,
    is_address,
    json_answer,
    json_body,
    read_mime,
)
from homing.testing.mail_providers.sigv4 import read_claim, signature_of

ACCESS_KEY = "AKIDOFNOBODY"
KEY = "a/secret+of/nobody"
REGION = "eu-central-1"
_SETS = frozenset({"outbound"})
_FIELDS = frozenset(
    {
        "FromEmailAddress", "FromEmailAddressIdentityArn", "Destination", "ReplyToAddresses",
        "FeedbackForwardingEmailAddress", "FeedbackForwardingEmailAddressIdentityArn", "Content", "EmailTags",
        "ConfigurationSetName", "EndpointId", "TenantName", "ListManagementOptions",
    }
)  # fmt: skip
_IS_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}").fullmatch
#: Seconds for which a signature holds.
_SKEW = 300


def error(kind: str, message: str, status: int = 400) -> Answer:
    return json_answer(status, {"message": message}, ("x-amzn-ErrorType", f"{kind}:"))


def _refuse(kind: str, message: str, status: int = 400) -> Refused:
    return Refused(error(kind, message, status))


class SesDesk(Counter):
    url = f"ses://{ACCESS_KEY}:{KEY.replace('/', '%2F').replace('+', '%2B')}@{REGION}"

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        super().__init__()
        self._clock = clock

    def answer(self, request: SinkRequest) -> Answer:
        self._check_signature(request)
        if (request.method, request.path) != ("POST", "/v2/email/outbound-emails"):
            return error("UnknownOperationException", "", 404)
        order = json_body(request, error("SerializationException", "Start of structure expected"))
        return self._take(order, self._mail(order))

    def _check_signature(self, request: SinkRequest) -> None:
        claim = read_claim(request.header("authorization") or "")
        if claim is None:
            raise _refuse("MissingAuthenticationTokenException", "Missing Authentication Token", 403)
        if claim.access_key != ACCESS_KEY:
            message = "The security token included in the request is invalid."
            raise _refuse("UnrecognizedClientException", message, 403)
        if (claim.region, claim.service) != (REGION, "ses") or not {"host", "x-amz-date"} <= set(
            claim.signed
        ):
            raise _refuse("InvalidSignatureException", "Credential should be scoped to a valid region.", 403)
        moment = datetime.strptime(request.header("x-amz-date") or "", "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if abs((self._clock() - moment).total_seconds()) > _SKEW:
            raise _refuse("InvalidSignatureException", "Signature expired", 403)
        if not hmac.compare_digest(signature_of(request, claim, KEY), claim.signature):
            message = "The request signature we calculated does not match the signature you provided."
            raise _refuse("SignatureDoesNotMatch", message, 403)

    def _mail(self, order: dict[str, Any]) -> bytes:
        if unknown := set(order) - _FIELDS:
            raise _refuse("SerializationException", f"Unexpected field {min(unknown)}")
        raw = order.get("Content", {}).get("Raw", {}).get("Data")
        if raw is None:
            raise _refuse(
                "BadRequestException", "1 validation error: Value at 'content' failed to satisfy: not null"
            )
        if order.get("ConfigurationSetName", "outbound") not in _SETS:
            name = order["ConfigurationSetName"]
            raise _refuse("NotFoundException", f"Configuration set <{name}> does not exist.", 404)
        for tag in order.get("EmailTags", ()):
            if not (_IS_TAG(tag["Name"]) and _IS_TAG(tag["Value"])):
                raise _refuse(
                    "BadRequestException", f"Invalid tag value <{tag['Value']}>: only alphanumeric ASCII"
                )
        return decoded(raw, error("SerializationException", "not base64"))

    def _take(self, order: dict[str, Any], data: bytes) -> Answer:
        recipients = tuple(order.get("Destination", {}).get("ToAddresses", ()))
        mail = read_mime(data)
        self._check(recipients, data, addresses_in(mail, "From"))
        number = f"0107{self.next_number():012x}-000000"
        self.mails.append(
            Taken(
                provider_id=number,
                recipients=recipients,
                to=addresses_in(mail, "To"),
                cc=addresses_in(mail, "Cc"),
                subject=str(mail["Subject"]),
                text=content_of(mail, "plain"),
                html=content_of(mail, "html"),
                headers=tuple((name, str(value)) for name, value in mail.items()),
                attachments=tuple(files_of(mail)),
                told={tag["Name"]: tag["Value"] for tag in order.get("EmailTags", ())},
                options={"ConfigurationSetName": order.get("ConfigurationSetName")},
            )
        )
        return json_answer(200, {"MessageId": number}, ("x-amzn-RequestId", f"request-{number}"))

    def _check(self, recipients: tuple[str, ...], data: bytes, sender: tuple[str, ...]) -> None:
        if not recipients or len(recipients) > 50:
            raise _refuse("BadRequestException", "Recipient count exceeds 50 or is zero.")
        if not all(is_address(who) and who not in self.rejected for who in recipients):
            # It does not say which one.
            raise _refuse("BadRequestException", "Illegal address")
        if any(who in self.deferred for who in recipients):
            raise _refuse("TooManyRequestsException", "Maximum sending rate exceeded.", 429)
        if len(sender) != 1:
            raise _refuse("BadRequestException", "Missing required header 'From'.")
        if sender[0].endswith("@unverified.example"):
            message = "Email address is not verified. The following identities failed the check in region"
            raise _refuse("MessageRejected", f"{message} {REGION.upper()}: {sender[0]}")
        if any(len(line) > 1000 for line in data.split(b"\r\n")):
            raise _refuse("BadRequestException", "A line is longer than 1000 characters.")
