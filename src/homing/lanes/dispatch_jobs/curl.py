"""A webhook as a command that sends it again, by hand. Secrets are named, never shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Final

from homing.db import Row
from homing.lanes.dispatch_jobs.headers import is_ours
from homing.lanes.dispatch_jobs.look import without_query
from homing.lanes.dispatch_jobs.masking import is_harmless
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.lanes.dispatch_jobs.view import pairs_of

#: A longer command does not fit into what shells take.
_LONGEST_PAYLOAD: Final = 100_000
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

# The key of a whsec_ secret is the base64 behind its prefix, of any other its bytes; openssl takes it in hex.
_KEY = """KEY=$(case "$SIGNING_SECRET" in
  whsec_*) printf %s "${SIGNING_SECRET#whsec_}" | base64 -d ;;
  *) printf %s "$SIGNING_SECRET" ;;
esac | od -An -vtx1 | tr -d ' \\n')"""

_QUERY = "# Set QUERY to what follows the ? of the target's URL: it often holds a secret, so it is not shown."
_HMAC = 'openssl dgst -sha256 -mac HMAC -macopt "hexkey:$KEY" -binary'


def curl_of(row: Row, prefix: str) -> str | None:
    """None where the payload is too long for a command line. `prefix` is that of the signature's headers."""
    payload: str = row["payload"]
    if len(payload) > _LONGEST_PAYLOAD or "\x00" in payload:
        return None
    headers = list(_headers(row, prefix))
    lines = [_QUERY] if "?" in row["target_url"] else []
    if row["credentials_id"] is None:
        return "\n".join([*lines, _command(row["target_url"], headers, shlex.quote(payload))])
    lines += _signing(text_of(row["id"]), payload, prefix)
    body = '"$BODY" ${BEARER_TOKEN:+--header "Authorization: Bearer $BEARER_TOKEN"}'
    command = _command(row["target_url"], [*headers, *_signed_headers(prefix)], body)
    return "\n".join([*lines, command])


def _command(url: str, headers: Iterable[str], body: str) -> str:
    """In the forms that take everything as it is.

    `--data-binary` would take a payload that begins with `@` for the name of a file here and send that,
    and without `--globoff` the brackets and braces of one URL make it several.
    """
    first = f"curl --globoff --request POST --url {_address(url)}"
    parts = [first, *(f"--header {header}" for header in headers)]
    return " \\\n  ".join([*parts, f"--data-raw {body}"])


def _address(url: str) -> str:
    """Without what may be a secret of the receiver's: a password, and the query, which is named instead."""
    shown = without_query(url)
    if not shown.endswith("?…"):
        return shlex.quote(shown)
    return f'{shlex.quote(shown[:-1])}"$QUERY"'


def _headers(row: Row, prefix: str) -> Iterable[str]:
    yield shlex.quote(f"Content-Type: {row['payload_content_type']}")
    yield shlex.quote(f"webhook-id: {text_of(row['id'])}")
    for name, value in pairs_of(row["headers"]).items():
        # What is no name of a header, curl might take for something else, such as the name of a file.
        if is_ours(name.lower(), f"{prefix}-") or not _NAME.fullmatch(name):
            continue
        yield shlex.quote(f"{name}: {value}") if is_harmless(name) else _named(name)


def _named(name: str) -> str:
    """As a variable of the shell that whoever runs it sets.

    Its name begins in a way of its own: a header that is called like a variable that is set already, such as
    that of a cloud's key, must not send this one.
    """
    variable = "HEADER_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
    return f'{shlex.quote(f"{name}: ")}"${variable}"'


def _signing(id: str, payload: str, prefix: str) -> list[str]:
    return [
        "# Set SIGNING_SECRET first, and BEARER_TOKEN if the credentials have one; neither is shown here.",
        "# Receivers refuse a signature that is older than five minutes.",
        f"BODY={shlex.quote(payload)}",
        "NOW=$(date +%s)",
        "STAMP=$(date -u +%Y-%m-%dT%H:%M:%S.000Z)",
        _KEY,
        f"# webhook-signature: base64 of HMAC-SHA256 over {id}.NOW.BODY",
        f'SIGNATURE=$(printf %s "{id}.$NOW.$BODY" | {_HMAC} | base64)',
        f"# {prefix}-SIGNATURE: hex of HMAC-SHA256 over STAMP and BODY, by the secret as it is written",
        'HEX=$(printf %s "$STAMP$BODY" | openssl dgst -sha256 -hmac "$SIGNING_SECRET" | sed "s/.* //")',
    ]


def _signed_headers(prefix: str) -> list[str]:
    return [
        '"webhook-timestamp: $NOW"',
        '"webhook-signature: v1,$SIGNATURE"',
        f'"{prefix}-TIMESTAMP: $STAMP"',
        f'"{prefix}-SIGNATURE: $HEX"',
    ]
