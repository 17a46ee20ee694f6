"""The trace that a request belongs to, for whatever it puts in."""

from __future__ import annotations

from litestar.types import ASGIApp, Receive, Scope, Send

from homing.tracing import coming_from, trace_in


def keep_trace(app: ASGIApp) -> ASGIApp:
    async def kept(scope: Scope, receive: Receive, send: Send) -> None:
        with coming_from(trace_in(scope["headers"])):
            await app(scope, receive, send)

    return kept
