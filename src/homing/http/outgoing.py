"""What every answer carries, whoever gives it: a page, an error, a file.

Litestar adds an application's headers only to what handlers return; what goes wrong is answered further out.
So they are added where the answer leaves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from litestar.types import Message, Scope

#: Each by its name in lower case, as servers send them. An answer that says its own keeps that.
_CARRIED: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            b"connect-src 'self'; frame-src 'self'; form-action 'self'; frame-ancestors 'self'; "
            b"base-uri 'none'"
        ),
    ),
    (b"x-content-type-options", b"nosniff"),
    # To nobody else; but whoever has to log in for a form comes back to the page that it was on.
    (b"referrer-policy", b"same-origin"),
    # Whoever sits down at this browser next must not go back to what was shown; a program asks anew.
    (b"cache-control", b"no-store"),
)


#: For a year nobody comes by plain http, where a password could be read. Browsers hear it by https only.
_BY_HTTPS = (b"strict-transport-security", b"max-age=31536000")


def make_answer_guard(*, https: bool) -> Callable[[Message, Scope], Awaitable[None]]:
    carried = (*_CARRIED, _BY_HTTPS) if https else _CARRIED

    async def guard_answer(message: Message, scope: Scope) -> None:  # noqa: ARG001 - Litestar's own form
        if message["type"] != "http.response.start":
            return
        headers = list(message["headers"])
        said = {name.lower() for name, _ in headers}
        message["headers"] = [*headers, *(pair for pair in carried if pair[0] not in said)]

    return guard_answer
