"""Mailgun, as its API reference describes it.

* "Messages: Send an email in MIME format": the fields `to`, `message` (a file), `o:`, `h:`, `v:`; the 200
  with `{"id", "message": "Queued. Thank you."}`; send options of 16 kB in all; 25 MB.
* "Errors": 400 with `{"message"}`, 401 with the text Forbidden, 404 for a domain, 429.
"""

from __future__ import annotations

import re
from base64 import b64encode

from homing.testing.http_sink import Answer, SinkRequest
from homing.testing.mail_providers.desk import (
    Counter,
    Refused,
    Taken,
    addresses_in,
    content_of,
    files_of,
    is_address,
    json_answer,
    read_mime,
)

KEY = "key-of-nobody-at-mailgun"
DOMAIN = "mg.example.org"
_FORM = re.compile(r'multipart/form-data; boundary="([^"]{1,70})"').fullmatch
_NAME = re.compile(r'Content-Disposition: form-data; name="([^"]+)"').match
_LOGIN = "Basic " + b64encode(f"api:{KEY}".encode()).decode()


def _refuse(message: str, status: int = 400) -> Refused:
    return Refused(json_answer(status, {"message": message}))


class MailgunDesk(Counter):
    url = f"mailgun://:{KEY}@{DOMAIN}"

    def answer(self, request: SinkRequest) -> Answer:
        if request.header("authorization") != _LOGIN:
            return Answer(status=401, headers=(("Content-Type", "text/plain"),), body=b"Forbidden")
        if (request.method, request.path) != ("POST", f"/v3/{DOMAIN}/messages.mime"):
            raise _refuse(f"Domain not found: {request.path.split('/')[2]}", 404)
        if len(request.body) > 26_214_400:
            raise _refuse("Message is too big", 413)
        return self._take(_form(request))

    def _take(self, form: list[tuple[str, bytes]]) -> Answer:
        recipients = tuple(value.decode() for name, value in form if name == "to")
        self._check(form, recipients)
        raw = next(value for name, value in form if name == "message")
        mail = read_mime(raw)
        number = str(mail["Message-ID"] or f"<{self.next_number()}@{DOMAIN}>")
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
                told={name[2:]: value.decode() for name, value in form if name.startswith("v:")},
                options={name: value.decode() for name, value in form if name.startswith("o:")},
            )
        )
        return json_answer(200, {"id": number, "message": "Queued. Thank you."})

    def _check(self, form: list[tuple[str, bytes]], recipients: tuple[str, ...]) -> None:
        names = [name for name, _ in form]
        if not recipients:
            raise _refuse("to parameter is missing")
        if "message" not in names:
            raise _refuse("message parameter is missing")
        if len(recipients) > 1000:
            raise _refuse("Too many recipients; max is 1000")
        if sum(len(value) for name, value in form if name[:2] in {"o:", "h:", "v:"}) > 16_384:
            raise _refuse("Send options (parameters starting with o:, h:, or v:) are limited to 16 kB total")
        if not all(is_address(who) and who not in self.rejected for who in recipients):
            # It does not say which one.
            raise _refuse("to parameter is not a valid address. please check documentation")
        if any(who in self.deferred for who in recipients):
            raise _refuse("Too many requests, please try again later", 429)


def _form(request: SinkRequest) -> list[tuple[str, bytes]]:
    """Names and contents of the fields (RFC 7578)."""
    kind = _FORM(request.header("content-type") or "")
    if kind is None:
        raise _refuse("Content-Type must be multipart/form-data")
    pieces = (b"\r\n" + request.body).split(b"\r\n--" + kind[1].encode())
    if pieces[0] or pieces[-1].strip() != b"--":
        raise _refuse("malformed multipart body")
    return [_field(piece) for piece in pieces[1:-1]]


def _field(piece: bytes) -> tuple[str, bytes]:
    head, _, content = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    name = _NAME(head.decode())
    if name is None:
        raise _refuse("malformed multipart body")
    if name[1] == "message" and "filename=" not in head.decode():
        raise _refuse("'message' parameter is not a file")
    return name[1], content
