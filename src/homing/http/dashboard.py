"""Plain pages: how much is in which state, the latest mails and jobs, one job, and mails that were caught."""

from __future__ import annotations

import email
import email.message
import email.policy
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader
from litestar import Controller, MediaType, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from homing import __version__
from homing.db import iso
from homing.db.backlog import Backlog
from homing.errors import NotFound
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.look import (
    attempts_of,
    find_job,
    held_back,
    host_of,
    latest,
    without_query,
)
from homing.lanes.dispatch_jobs.view import JobView, job_number
from homing.lanes.email_log.log import EmailLog
from homing.lanes.email_log.view import listed as listed_email
from homing.lanes.mail_outbox.outbox import MailOutbox
from homing.lanes.open_events.notifications import Notifications
from homing.lanes.open_events.view import listed as listed_notification
from homing.senders.caught_mail import Shelf

_pages = Environment(
    loader=PackageLoader("homing.http"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
_LATEST = 12
_PAGE = {"scope": "desk:read"}
#: A payload may be a megabyte, and nobody reads that on a page.
_SHOWN_PAYLOAD = 5000
#: A caught mail is somebody's html: it may show itself, and its links may be followed in a tab of their own.
_MAIL_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "sandbox allow-popups allow-popups-to-escape-sandbox"
)


class Dashboard(Controller):
    include_in_schema = False
    opt = _PAGE

    @get("/", media_type=MediaType.HTML)
    async def overview(
        self,
        *,
        outbox: NamedDependency[MailOutbox],
        backlog: NamedDependency[Backlog],
        dispatch_jobs: NamedDependency[DispatchJobs],
        jobs_backlog: NamedDependency[Backlog],
        emails: NamedDependency[EmailLog],
        emails_backlog: NamedDependency[Backlog],
        notifications: NamedDependency[Notifications],
        notifications_backlog: NamedDependency[Backlog],
        shelf: NamedDependency[Shelf],
        provider: NamedDependency[str],
    ) -> str:
        return _pages.get_template("overview.html").render(
            version=__version__,
            provider=provider,
            mail_backlog=await backlog.look(),
            mails=[{**row, "created": iso(row["created_at"])} for row in await outbox.page(limit=_LATEST)],
            jobs_backlog=await jobs_backlog.look(),
            jobs=[(job, host_of(job.target_url)) for job in await latest(dispatch_jobs, _LATEST)],
            targets=await held_back(dispatch_jobs),
            emails_backlog=await emails_backlog.look(),
            emails=[listed_email(row) for row in await emails.page(limit=_LATEST)],
            seats_backlog=await notifications_backlog.look(),
            seats=[listed_notification(row) for row in await notifications.page(limit=_LATEST)],
            caught=[_listed(row) for row in await shelf.list(30)],
        )

    @get("/jobs/{job_id:str}", media_type=MediaType.HTML)
    async def job(self, dispatch_jobs: NamedDependency[DispatchJobs], job_id: FromPath[str]) -> str:
        number = job_number(job_id)
        job = await find_job(dispatch_jobs, number)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        return _pages.get_template("job.html").render(
            version=__version__,
            job=job,
            fields=[(name, value) for name, value in _fields(job) if value not in {None, ""}],
            payload=job.payload[:_SHOWN_PAYLOAD],
            payload_length=len(job.payload),
            attempts=await attempts_of(dispatch_jobs, number),
        )

    @get("/docs", media_type=MediaType.HTML)
    async def docs(self, request: Request[Any, Any, Any]) -> str:
        schema = request.app.openapi_schema.to_schema()
        return _pages.get_template("docs.html").render(
            version=__version__, operations=list(_operations(schema)), schemas=schema["components"]["schemas"]
        )

    @get("/caught/{id:int}", media_type=MediaType.HTML)
    async def caught(self, shelf: NamedDependency[Shelf], id: FromPath[int]) -> str:
        row, source = await _found(shelf, id)
        message = email.message_from_bytes(source, policy=email.policy.default)
        return _pages.get_template("caught.html").render(
            version=__version__,
            mail=_listed(row),
            headers=[(k, str(v)) for k, v in message.items()],
            text=_part(message, "plain"),
            has_html=_part(message, "html") is not None,
            source=source.decode("utf-8", "replace"),
            files=[part.get_filename() or part.get_content_type() for part in message.iter_attachments()],
        )

    @get("/caught/{id:int}/html", media_type=MediaType.HTML)
    async def caught_html(self, shelf: NamedDependency[Shelf], id: FromPath[int]) -> Response[str]:
        _row, source = await _found(shelf, id)
        message = email.message_from_bytes(source, policy=email.policy.default)
        return Response(
            _part(message, "html") or "",
            media_type=MediaType.HTML,
            headers={"Content-Security-Policy": _MAIL_POLICY},
        )


async def _found(shelf: Shelf, id: int) -> tuple[Any, bytes]:
    found = await shelf.get(id) if id < 2**63 else None
    if found is None:
        raise NotFound(f"there is no caught mail {id}")
    return found


def _fields(job: JobView) -> Iterator[tuple[str, str | int | float | None]]:
    """What there is to say of a job. A header may hold a key of the receiver's, so only its name is shown."""
    yield from (("Source", job.source), ("Type", job.type), ("Target", without_query(job.target_url)))
    yield from (("Group", job.group_id), ("Ordering", job.ordering), ("External id", job.external_id))
    yield "Metadata", ", ".join(f"{key} = {value}" for key, value in job.metadata.items())
    yield "Headers", ", ".join(job.headers)
    yield from (("Content type", job.payload_content_type), ("Credentials", job.credentials_id))
    yield "Attempts", f"{job.attempt_count}, at most {job.max_retries} ({job.retry_strategy})"
    yield from (("Time for one, in seconds", job.timeout_seconds), ("Idempotency key", job.idempotency_key))
    yield from (("Created", job.created_at), ("Scheduled for", job.scheduled_for))
    yield from (("Next attempt", job.next_attempt_at), ("Last attempt", job.last_attempt_at))
    yield from (("Expires", job.expires_at), ("Ended", job.completed_at))
    yield "Took, in milliseconds", job.duration_millis
    yield from (("Last error", job.last_error), ("Error class", job.error_class))


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The API, one call at a time, in the words of its OpenAPI description."""
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            body = (
                operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            )
            names = re.findall(r"#/components/schemas/(\w+)", str(body)) if body else []
            yield {"path": path, "method": method.upper(), "body": names[0] if names else None, **operation}


def _listed(row: Any) -> dict[str, Any]:
    recipients: list[str] = msgspec.json.decode(row["recipients"])
    return {**row, "recipients": ", ".join(recipients), "caught": iso(row["caught_at"])}


def _part(message: email.message.EmailMessage, kind: str) -> str | None:
    body = message.get_body((kind,))
    return body.get_content() if body is not None else None
