"""Real answers of every operation, compared with the OpenAPI document: whatever it does not describe fails.

What each operation answers by itself is asked for in `calls`; one without a call fails the test. What follows
from what kind of operation it is (no key, another host, an unknown id, …) is walked over all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest
import pytest_asyncio
from litestar import Litestar
from litestar.openapi.spec import Operation as PlainOperation
from litestar.routes import HTTPRoute
from msgspec import Struct
from tests.http.document import Document, Operation
from tests.http.door import Door, opened_door, url_with_tables
from tests.http.full_rows import deliver_a_job, fill

from homing.access.scopes import SCOPES
from homing.db.queries import Query
from homing.db.sqlite import SqliteDatabase
from homing.errors import Conflict, Unreachable
from homing.http.intake import LARGEST_BODY
from homing.http.json_depth import DEEPEST
from homing.http.openapi import shown_path
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.tsid import text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAIL = {"to": "ann@example.org", "subject": "Hi", "text": "Hello.", "idempotencyKey": "mail"}
EMAIL = {"to": "ann@example.org", "subject": "Hi", "body": "Hello.", "messageKey": "email"}
TARGET_ORIGIN = "http://127.0.0.1:9"
TARGET = {"targetUrl": f"{TARGET_ORIGIN}/hooks"}
JOB = {**TARGET, "source": "shop", "type": "order.paid", "payload": "{}", "idempotencyKey": "job"}
SEAT = {"termId": "20269", "campusCode": "NB", "indexNumber": "09214"}
OPENED = {**SEAT, "statusBefore": "Closed", "statusAfter": "Open"}
CONFIG = {
    "queues": [{"queueUri": "jobs.fifo", "queueName": "jobs", "connections": 2}],
    "processingPools": [{"code": "DISPATCH-POOL", "concurrency": 5, "rateLimitPerMinute": 60}],
}
JSON = {"Content-Type": "application/json"}
TOO_DEEP = b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1)
SUBSCRIPTION = "/api/notifications/subscriptions/{id}"


#: What no answer here has a value for, and why.
NEVER_SEEN = {
    "Me.role": "a key has none; who logs in has one",
    "LaneView.atLeast[]": "there are more than are counted in full",
    "MessagePage.notes[]": "the database of a lane is away",
    "OverviewView.notes[]": "the database of a lane is away",
}


class Call(Struct, frozen=True):
    """A request that is answered so; `ids` stand for what is in braces in the path."""

    operation: str
    status: int
    ids: tuple[str, ...] = ()
    json: Any = None
    params: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}


def calls(jobs: list[str], credentials: str, token: Callable[[str], str], address: str) -> Iterator[Call]:
    """In this order, on what `door` has put in: mails, jobs and emails 1 and 3 wait, 2 and 4 are over.

    First what was full from the beginning is looked at: the last of the jobs, mail 5, email 4.
    """
    yield from _full(jobs.pop())
    yield from (Call("GET /health/live", 200), Call("GET /health/ready", 200), Call("GET /metrics", 200))
    yield from _mails()
    yield from _jobs(jobs, credentials, token)
    yield from _credentials(credentials)
    yield from _emails()
    yield from _notifications()
    yield from _desk(jobs)
    # To something that answers.
    yield Call("POST /api/dispatch/targets/validate", 200, json={"targetUrl": f"{address}/health/live"})


def _full(job: str) -> Iterator[Call]:
    yield Call("GET /api/dispatch/statistics", 200)
    yield Call("GET /api/dispatch/dead", 200)
    yield Call("GET /api/dispatch/dead", 200, params={"errorClass": "http_500", "size": "1"})
    for size in ("50", "1"):
        yield Call("GET /api/dispatch/jobs", 200, params={"size": size})
    yield Call("GET /api/dispatch/jobs/{job_id}", 200, (job,))
    yield Call("GET /api/dispatch/jobs/{job_id}/attempts", 200, (job,))
    yield Call("GET /api/dispatch/targets", 200)
    yield Call("GET /api/mail", 200, params={"limit": "50"})
    yield Call("GET /api/mail/{mail_id}", 200, ("outbox_5",))
    yield Call("GET /api/emails", 200, params={"limit": "50"})
    yield Call("GET /api/emails/{id}", 200, ("email_4",))
    for id in ("outbox_5", "email_4", job):
        yield Call("GET /api/messages/{message_id}", 200, (id,))
    for line in ("", "zzz"):
        yield Call("GET /api/messages", 200, params={"q": line, "limit": "50"})
    yield Call("GET /api/notifications", 200, params={"limit": "50"})
    for id in ("notification_1", "notification_2"):
        yield Call("GET /api/notifications/{id}", 200, (id,))
    yield Call("GET /api/notifications/subscriptions", 200)
    yield Call(f"GET {SUBSCRIPTION}", 200, ("1",))
    for limit in ("1", "10"):
        yield Call("GET /api/bulk", 200, params={"limit": limit})


def _mails() -> Iterator[Call]:
    yield Call("POST /api/mail", 201, json=MAIL)
    yield Call("POST /api/mail", 200, json=MAIL)
    yield Call("POST /api/mail", 409, json={**MAIL, "subject": "Another"})
    batch = [MAIL, {**MAIL, "subject": "Another"}, {"to": ""}, {**MAIL, "idempotencyKey": "mail-2"}]
    yield Call("POST /api/mail", 200, json=batch)
    yield Call("POST /api/mail", 400, json={**MAIL, "to": "nobody"})
    yield Call("GET /api/mail", 200, params={"limit": "2"})
    yield Call("GET /api/mail", 404, params={"before": "nothing"})
    yield Call("GET /api/mail/{mail_id}", 200, ("outbox_5",))
    for id, requeued, cancelled in (("outbox_1", 409, 200), ("outbox_2", 200, 200)):
        yield Call("POST /api/mail/{mail_id}/requeue", requeued, (id,))
        yield Call("POST /api/mail/{mail_id}/cancel", cancelled, (id,))
        yield Call("POST /api/mail/{mail_id}/cancel", 409, (id,))
    yield Call("POST /internal/dispatch", 200, json={"batchSize": 5, "dryRun": True})
    yield Call("POST /internal/dispatch", 200, json={"batchSize": 1, "wait": True})
    yield Call("POST /internal/dispatch", 400, json={"batchSize": 0})


def _jobs(ids: list[str], credentials: str, token: Callable[[str], str]) -> Iterator[Call]:
    jobs = "/api/dispatch/jobs"
    one, ended = (ids[0],), (ids[1],)
    yield Call(f"POST {jobs}", 201, json={**JOB, "metadata": {"k": "v"}, "headers": {"X-A": "1"}})
    yield Call(f"POST {jobs}", 200, json={**JOB, "metadata": {"k": "v"}, "headers": {"X-A": "1"}})
    yield Call(f"POST {jobs}", 409, json=JOB)
    yield Call(f"POST {jobs}", 413, json={**JOB, "payload": "x" * (1 << 20) + "x"})
    ordered = {**JOB, "groupId": "g", "ordering": "group", "idempotencyKey": "g"}
    yield Call(f"POST {jobs}", 201, json=ordered)
    yield Call(f"POST {jobs}", 201, json={**ordered, "idempotencyKey": "h"})
    yield Call(f"POST {jobs}/batch", 200, json=[{**JOB, "idempotencyKey": "b"}, JOB, {}])
    yield Call(f"POST {jobs}/batch", 200, json={"jobs": [{**JOB, "idempotencyKey": "c"}], "atomic": True})
    yield Call(f"POST {jobs}/batch", 400, json={"jobs": [{**JOB, "idempotencyKey": "d"}, {}], "atomic": True})
    yield Call(f"POST {jobs}/batch", 409, json={"jobs": [JOB], "atomic": True})
    yield Call(f"GET {jobs}", 200, params={"size": "2", "metadata.k": "v"})
    process, bearer = "POST /api/dispatch/process", {"Authorization": f"Bearer {token(ids[0])}"}
    yield Call(process, 400, json={"messageId": ids[0]}, headers=bearer)
    yield Call(process, 400, json={"id": ids[0]}, headers=bearer)
    yield Call(process, 413, json={"messageId": "x" * 4096}, headers=bearer)
    yield Call(process, 401, json={"messageId": ids[0]}, headers={"Authorization": "Bearer wrong"})
    yield Call(process, 200, json={"messageId": ids[1]}, headers={"Authorization": f"Bearer {token(ids[1])}"})
    yield Call(f"GET {jobs}/{{job_id}}", 200, one)
    yield Call(f"GET {jobs}/{{job_id}}/attempts", 200, one)
    yield Call(f"POST {jobs}/{{job_id}}/cancel", 409, ended)
    yield Call(f"POST {jobs}/{{job_id}}/requeue", 200, ended)
    yield Call(f"POST {jobs}/{{job_id}}/requeue", 409, ended)
    yield Call(f"POST {jobs}/{{job_id}}/cancel", 200, ended)
    yield Call(f"POST {jobs}/cancel", 200, json={"filter": {"source": "shop"}})
    yield Call(f"POST {jobs}/requeue", 200, json={"all": True})
    targets = "/api/dispatch/targets"
    yield Call(f"PUT {targets}", 200, json={**TARGET, "maxConcurrency": 2, "ratePerSecond": 5})
    yield Call(f"PUT {targets}", 409, json={**TARGET, "maxConcurrency": 3, "limitsVersion": "1/-"})
    yield Call(f"POST {targets}/pause", 200, json={**TARGET, "seconds": 60, "reason": "a test"})
    yield Call(f"GET {targets}", 200)
    yield Call(f"GET {jobs}/{{job_id}}", 200, (ids[2],))
    yield Call(f"POST {targets}/resume", 200, json=TARGET)
    of_credentials = {**TARGET, "credentialsId": credentials, "maxConcurrency": 2}
    yield Call(f"PUT {targets}", 200, json=of_credentials)
    yield Call(f"POST {targets}/validate", 200, json={**TARGET, "credentialsId": credentials})
    yield Call("PUT /api/config", 200, json=CONFIG)
    yield Call("GET /api/config", 200)


def _credentials(id: str) -> Iterator[Call]:
    path = "/api/admin/dispatch/credentials"
    yield Call(f"POST {path}", 201, json={"name": "other", "generate": ["bearerToken", "signingSecret"]})
    yield Call(f"POST {path}", 201, json={"generate": ["signingKey"]})
    yield Call(f"GET {path}", 200, params={"limit": "1"})
    yield Call(f"GET {path}/{{credentials_id}}", 200, (id,))
    yield Call(f"POST {path}/{{credentials_id}}/rotate", 200, (id,), json={"graceSeconds": 60})
    limited = {"allowedTargets": ["https://partner.example"]}
    yield Call(f"PUT {path}/{{credentials_id}}/allowed-targets", 200, (id,), json=limited)
    yield Call(f"GET {path}/{{credentials_id}}", 200, (id,))
    yield Call(f"GET {path}", 200)
    yield Call(f"DELETE {path}/{{credentials_id}}", 409, (id,))
    yield Call(f"DELETE {path}/{{credentials_id}}", 200, (id,), params={"force": "true"})


def _emails() -> Iterator[Call]:
    path = "/api/emails"
    yield Call(f"POST {path}", 202, json=EMAIL)
    yield Call(f"POST {path}", 200, json=EMAIL)
    yield Call(f"POST {path}", 409, json={**EMAIL, "subject": "Another"})
    for each in (path, f"{path}/dead"):
        yield Call(f"GET {each}", 200, params={"limit": "1"})
        yield Call(f"GET {each}", 404, params={"before": "nothing"})
    yield Call(f"GET {path}", 200, params={"messageKey": "email"})
    yield Call(f"GET {path}/{{id}}", 200, ("email_2",))
    yield Call(f"POST {path}/{{id}}/requeue", 200, ("email_2",))
    yield Call(f"POST {path}/{{id}}/requeue", 409, ("email_2",))
    yield Call(f"POST {path}/requeue", 200, json={"all": True})


def _notifications() -> Iterator[Call]:
    path = "/api/notifications"
    yield Call(f"POST {path}/subscriptions", 201, json={**SEAT, "email": "bob@example.org"})
    yield Call(f"GET {path}/subscriptions", 200, params={"limit": "1"})
    yield Call(f"PATCH {SUBSCRIPTION}", 200, ("1",), json={"locale": "en", "preferences": {}})
    other = {**OPENED, "indexNumber": "1"}
    yield Call(f"POST {path}/events", 202, json=other)
    yield Call(f"POST {path}/events", 200, json=other)
    yield Call(f"POST {path}/events/batch", 200, json=[OPENED, {**OPENED, "indexNumber": "2"}, {}])
    yield Call(f"GET {path}", 200, params={"limit": "1"})
    yield Call(f"GET {path}", 404, params={"before": "nothing"})
    yield Call(f"GET {path}/{{id}}", 200, ("notification_1",))
    yield Call(f"POST {path}/{{id}}/{{action}}", 200, ("notification_1", "requeue"))
    yield Call(f"POST {path}/{{id}}/{{action}}", 409, ("notification_1", "requeue"))
    yield Call(f"POST {SUBSCRIPTION}/pause", 200, ("1",))
    yield Call(f"POST {SUBSCRIPTION}/pause", 409, ("1",))
    yield Call(f"POST {SUBSCRIPTION}/resume", 200, ("1",))
    yield Call(f"POST {SUBSCRIPTION}/resume", 409, ("1",))
    yield Call(f"GET {SUBSCRIPTION}", 200, ("1",))
    yield Call(f"POST {SUBSCRIPTION}/unsubscribe", 200, ("1",))
    yield Call(f"DELETE {SUBSCRIPTION}", 200, ("1",))
    yield Call(f"POST {path}/requeue", 200, json={"status": "failed"})


def _desk(jobs: list[str]) -> Iterator[Call]:
    yield Call("GET /api/access/me", 200)
    yield Call("GET /api/audit", 200, params={"limit": "20"})
    yield Call("POST /api/alerts/{id}/silence", 200, ("1",), json={"seconds": 60})
    yield Call("GET /api/alerts", 200)
    yield Call("GET /api/overview", 200)
    yield Call("GET /api/messages", 200, params={"limit": "3"})
    message = "/api/messages/{message_id}"
    for id in ("outbox_5", "email_2", "notification_1", *jobs):
        yield Call(f"GET {message}", 200, (id,))
    yield Call(f"POST {message}/requeue", 200, ("outbox_4",))
    yield Call(f"POST {message}/requeue", 409, ("outbox_4",))
    yield Call(f"POST {message}/send-now", 200, ("outbox_3",))
    yield Call(f"POST {message}/send-now", 409, ("outbox_5",))
    yield Call(f"POST {message}/cancel", 200, ("outbox_3",))
    yield Call(f"POST {message}/cancel", 409, ("outbox_3",))
    line = {"verb": "requeue", "query": "lane:mail_outbox status:dead"}
    yield Call("POST /api/bulk", 200, json=line)
    yield Call("POST /api/bulk", 202, json={**line, "dryRun": False})
    yield Call("GET /api/bulk", 200)
    yield Call("GET /api/bulk/{run_id}", 200, ("3",))
    yield Call("POST /api/bulk/{run_id}/cancel", 200, ("3",))


# ── what is asked ────────────────────────────────────────────────────────────────────────────────


class Facts(Struct, frozen=True):
    """What the route itself says, whatever the document makes of it."""

    method: str
    path: str
    scope: str
    is_local: bool
    takes_body: bool
    takes_query: bool

    @property
    def needs_key(self) -> bool:
        return self.scope != ""

    @property
    def has_id(self) -> bool:
        return "{" in self.path

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    def status(self, status: int) -> int:
        """This one knows four codes only."""
        return 400 if self.path == "/internal/dispatch" and status in {413, 415} else status


def facts_of(app: Litestar) -> Iterator[tuple[str, Facts]]:
    """By the name that the operation has in the document."""
    for route in app.routes:
        assert isinstance(route, HTTPRoute)
        for method, (handler, model) in route.route_handler_map.items():
            if method == "OPTIONS" or not handler.resolve_include_in_schema():
                continue
            opt, path = handler.opt, route.path_format
            yield (
                f"{method} {shown_path(path, opt)}",
                Facts(
                    method,
                    path,
                    opt.get("scope", ""),
                    opt.get("local", False),
                    handler.parsed_data_field is not None,
                    # Those that read it themselves describe it themselves.
                    bool(model.expected_query_params) or handler.operation_class is not PlainOperation,
                ),
            )


class Contract(Struct):
    door: Door
    document: Document
    key: str
    calls: list[Call]
    #: Of each operation one call that is well formed.
    bodies: Mapping[str, Call]
    facts: Mapping[str, Facts]

    @property
    def operations(self) -> list[Operation]:
        return [*self.document.operations.values()]

    def walked(self) -> Iterator[tuple[Operation, Facts]]:
        """Every operation, the more so when the document has lost it."""
        for name, facts in self.facts.items():
            yield self.document.operations[name], facts

    async def answer(self, call: Call, key: str | None = None, **options: Any) -> httpx.Response:
        """Compared with the document, whatever it is."""
        operation = self.document.operations[call.operation]
        headers = {**call.headers, **options.pop("headers", {})}
        if key is not None:
            headers.setdefault("Authorization", f"Bearer {key}")
        given = {"json": call.json, "params": call.params, **options, "headers": headers}
        answer = await self.door.client.request(operation.method, _filled(operation, call.ids), **given)
        self.document.compare(operation, answer)
        return answer

    async def well_formed(self, operation: Operation, **options: Any) -> httpx.Response:
        return await self.answer(self.bodies[operation.name], **{"key": self.key, **options})


def _filled(operation: Operation, ids: tuple[str, ...]) -> str:
    path, given = operation.path, iter(ids)
    while "{" in path:
        before, _, rest = path.partition("{")
        path = f"{before}{next(given)}{rest.partition('}')[2]}"
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def contract(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Contract]:
    url = url_with_tables(tmp_path_factory.mktemp("contract"))
    async with opened_door(
        url, egress_allow="127.0.0.0/8", allow_http=True, alert_mail_to="ops@example.org"
    ) as door:
        key = await door.key()
        told = (await door.ask("GET", "/openapi.json", key)).json()
        jobs, credentials = await _some_of_each(door, key)
        asked = [*calls(jobs, credentials, door.homing.jobs_part.process_tokens.token, door.address)]
        bodies = {call.operation: call for call in reversed(asked) if call.status < 300}
        facts = dict(facts_of(door.app))
        yield Contract(door, Document(told), key, asked, bodies, facts)


async def _some_of_each(door: Door, key: str) -> tuple[list[str], str]:
    """Messages in several states, a subscription that counts, an alert, credentials that a job uses."""
    await door.insert(4)
    await door.sql("UPDATE mail_outbox SET status = 'failed' WHERE id IN (2, 4) RETURNING id")
    await door.sql("UPDATE mail_outbox SET next_attempt_at = '2099-01-01T00:00:00.000Z' RETURNING id")
    await door.insert(variables='{"a": 1}', headers='{"X-A": "1"}', metadata='{"k": "v"}')
    await door.deliver()
    await door.sql("UPDATE mail_outbox SET next_attempt_at = '2099-01-01T00:00:00.000Z'"
                   " WHERE status = 'queued' RETURNING id")  # fmt: skip
    await deliver_a_job(door, key)
    shop = CreateCredentials(name="shop", generate=("signingKey",), allowed_targets=("*",))
    made = await door.homing.credentials.create(shop)
    jobs = [await _job(door, made.row["id"], state) for state in ("PENDING", "ERROR", "PENDING", "ERROR")]
    for state, reason in (("Pending", None), ("Dead", "InvalidRecipient"), ("Dead", "InvalidRecipient")):
        await door.sql("INSERT INTO email_log (to_address, subject, body, status, dead_reason)"
                       " VALUES ('ann@example.org', 'Hi', 'Hello.', :state, :reason) RETURNING id",
                       state=state, reason=reason)  # fmt: skip
    subscribed = await door.ask(
        "POST", "/api/notifications/subscriptions", key, json={**SEAT, "email": "ann@example.org"}
    )
    assert subscribed.is_success, subscribed.text
    await door.sql("UPDATE subscriptions SET status = 'active', is_verified = 1 RETURNING subscription_id")
    opened = await door.ask("POST", "/api/notifications/events", key, json=OPENED)
    assert opened.json()["notifications"] == 1, opened.text
    await door.sql("UPDATE open_event_notifications SET fanout_status = 'failed',"
                   " error = '{\"code\": \"network_error\"}' RETURNING notification_id")  # fmt: skip
    await door.sql(
        "INSERT INTO homing_alert_cause (cause, kind, state, facts)"
        " VALUES (:cause, 'target', 'firing', '{}') RETURNING cause",
        cause=f"target:{TARGET_ORIGIN}",
    )
    await door.sql(
        "INSERT INTO homing_alert (cause, kind, event, facts, ways)"
        " VALUES (:cause, 'target', 'fired', '{}', '[\"mail\"]') RETURNING id",
        cause=f"target:{TARGET_ORIGIN}",
    )
    return [*jobs, await fill(door, key)], text_of(made.row["id"])


async def _job(door: Door, credentials: int, state: str) -> str:
    (row,) = await door.sql(
        "INSERT INTO dispatch_job (source, type, target_url, target, payload, status, credentials_id,"
        " error_class, last_error) VALUES ('shop', 'order.paid', :url, :target, '{}', :state, :credentials,"
        " :error_class, :error_class)"
        " RETURNING id",
        url=TARGET["targetUrl"],
        target=TARGET_ORIGIN,
        state=state,
        credentials=credentials,
        error_class="http_500" if state == "ERROR" else None,
    )
    return text_of(row["id"])


async def test_every_operation_answers_as_the_document_says(contract: Contract) -> None:
    """Each success and each error that a route describes itself; no route and no property is left out."""
    seen: dict[str, set[int]] = {name: set() for name in contract.document.operations}
    for call in contract.calls:
        answer = await contract.answer(call, contract.key)
        assert answer.status_code == call.status, (call, answer.text)
        seen[call.operation].add(answer.status_code)
    contract.door.homing.mails_part.line.deliverer.paused = True
    held = await contract.answer(Call("POST /internal/dispatch", 200, json={"batchSize": 1}), contract.key)
    assert held.json()["held"]["due"] > 0
    unseen = {one.name: one.own - seen[one.name] - {500, 503} for one in contract.operations}
    assert not {name: statuses for name, statuses in unseen.items() if statuses}, "give them a call"
    places = contract.document.places
    assert places.described - places.visited == NEVER_SEEN.keys(), "no answer had a value there"


# ── what follows from what kind of operation it is ──────────────────────────────────────────────


async def walk(contract: Contract, status: int, answered_by: Callable[[Facts], bool], **options: Any) -> None:
    """The same of all operations; those that must answer with the status are known without the document."""
    asked = 0
    for operation, facts in contract.walked():
        answer = await contract.well_formed(operation, **options)
        if answered_by(facts):
            asked += 1
            assert answer.status_code == facts.status(status), (operation.name, answer.text)
    assert asked


async def test_without_a_key(contract: Contract) -> None:
    """401, for one that is missing, wrong or no key at all."""
    await walk(contract, 401, lambda facts: facts.needs_key and not facts.is_local, key=None)
    for header in ("Bearer hom_nothing", "Basic YTpi"):
        await walk(contract, 401, lambda facts: facts.needs_key, headers={"Authorization": header})


async def test_from_another_host(contract: Contract) -> None:
    await walk(contract, 403, lambda _: True, headers={"Host": "evil.example"})


async def test_from_a_page_of_another_site(contract: Contract) -> None:
    await walk(contract, 403, lambda facts: facts.changes, headers={"Sec-Fetch-Site": "cross-site"})


async def test_without_the_scope(contract: Contract) -> None:
    keys = {scope: await contract.door.key(scope) for scope in sorted(SCOPES)}
    for operation, facts in contract.walked():
        other = next(scope for scope in keys if scope.partition(":")[0] != facts.scope.partition(":")[0])
        answer = await contract.well_formed(operation, key=keys[other])
        if facts.scope in SCOPES:
            assert answer.status_code == 403, operation.name


async def test_by_an_unknown_id(contract: Contract) -> None:
    with_id = [operation for operation, facts in contract.walked() if facts.has_id]
    assert with_id
    for operation in with_id:
        call = contract.bodies[operation.name]
        for odd in ("999999", "nothing", "9" * 30, "0ARYZVZXW372S", "%00"):
            answer = await contract.answer(
                Call(call.operation, 404, (odd, *call.ids[1:]), call.json), contract.key
            )
            assert answer.status_code == 404, (operation.name, odd)


async def test_with_a_malformed_query(contract: Contract) -> None:
    """Each parameter in turn with what is no value for it; at least one of them does not take it."""
    assert any(facts.takes_query for _, facts in contract.walked())
    for operation, facts in contract.walked():
        seen = set()
        for parameter in operation.queries or ({"name": "limit"},):
            for odd in ("\0", "x", "-1", "9" * 30, ""):
                answer = await contract.well_formed(operation, params={parameter["name"]: odd})
                seen.add(answer.status_code)
        assert 400 in seen or not facts.takes_query, operation.name


async def test_with_a_malformed_body(contract: Contract) -> None:
    """What is no such body where one is taken, and JSON that is nested too deep anywhere."""
    await walk(contract, 400, lambda facts: facts.changes, content=TOO_DEEP, json=None, headers=JSON)
    for operation, facts in contract.walked():
        for body in (b"[" * 4000, b'{"a": ', b'{"nothing": 1}', b"[]", b"\xff") if facts.takes_body else ():
            answer = await contract.well_formed(operation, content=body, json=None, headers=JSON)
            assert answer.status_code == 400, (operation.name, body[:20])


async def test_with_a_body_of_another_type(contract: Contract) -> None:
    plain = {"Content-Type": "text/plain"}
    await walk(contract, 415, lambda facts: facts.takes_body, content=b"x", json=None, headers=plain)


async def test_with_a_body_that_is_too_large(contract: Contract) -> None:
    body = b" " * (LARGEST_BODY + 1)
    await walk(contract, 413, lambda facts: facts.changes, content=body, json=None, headers=JSON)


async def test_too_often(contract: Contract) -> None:
    slow = await contract.door.key(rate=0.01)
    for _ in range(3):
        await contract.door.ask("GET", "/api/access/me", slow)
    await walk(contract, 429, lambda facts: facts.needs_key, key=slow)


#: What the door asks the database by itself, before and after a route has its turn.
OF_THE_DOOR = ("load_keys", "note_uses", "write", "is_configured")


@pytest.mark.parametrize(
    ("error", "status"),
    [(Unreachable("away"), 503), (Conflict("locked"), 409), (AssertionError("a bug"), 500)],
)
async def test_with_a_database_that_fails(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    """Whatever a route makes of it is described; those that do not catch it answer with its status."""
    fetch, fetch_all = SqliteDatabase.fetch, SqliteDatabase.fetch_all

    async def failing(self: Any, query: Query, parameters: Mapping[str, Any]) -> Any:
        if query.name not in OF_THE_DOOR:
            raise error
        return await fetch(self, query, parameters)

    async def all_failing(self: Any, queries: Any, parameters: Mapping[str, Any]) -> Any:
        raise error

    monkeypatch.setattr(SqliteDatabase, "fetch", failing)
    monkeypatch.setattr(SqliteDatabase, "fetch_all", all_failing)
    seen = []
    for operation in contract.operations:
        if status == 409 and operation.method == "GET":
            continue
        answer = await contract.well_formed(operation)
        seen.append(answer.status_code)
    assert seen.count(status) > len(seen) / 2
    monkeypatch.setattr(SqliteDatabase, "fetch_all", fetch_all)
