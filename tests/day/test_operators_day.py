"""A day of an operator, who has the command line, the pages, the API and a mailbox, and nothing else.

Homing is deployed as the units of systemd have it, a target goes down, people are told, dead letters are
found, the target is mended, what was given up is requeued, and in the end everything has arrived, once, and
the audit log tells the story. Its commands are those of docs/first_incident.md.
"""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import require_program
from tests.day.browser import Browser
from tests.day.machine import Machine, Service, quiet_ports, until
from tests.day.tutorial import Tutorial

from homing.testing.smtp_sink import SmtpSink

ROOT = Path(__file__).parent.parent.parent
PASSWORD = "correct horse battery staple"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
#: Orders of the shop: while all is well; while the partner is down, tried once, and often, and in a batch.
WELL, HASTY, PATIENT, BATCH = 12, 12, 12, 12
ALL = WELL + HASTY + PATIENT + BATCH
#: What ann does, by the names that the audit log has for it.
DEEDS = (
    "session.open",
    "dispatch.targets.pause",
    "dispatch.targets.validate",
    "dispatch.targets.resume",
    "bulk.start",
    "bulk.end",
)
#: The labels of metrics that tell one from another here.
NAMED_BY = ("lane", "outcome", "error_code")
#: What the doctor says of the server that all tests share, and rightly.
OF_A_SERVER_FOR_TESTS = {f"PostgreSQL {name}" for name in ("fsync", "full_page_writes", "synchronous_commit")}


class Day:
    """Who and what there is."""

    def __init__(self, machine: Machine, relay: SmtpSink, ports: Mapping[str, int]) -> None:
        self.machine, self.relay, self.ports = machine, relay, ports
        self.tutorial = Tutorial(ROOT / "docs/first_incident.md")
        self.partners: list[Service] = []
        self.address = f"http://127.0.0.1:{ports['serve']}"
        self.target = f"http://127.0.0.1:{ports['partner']}"
        self.key = self.metrics_key = ""

    async def type(self, beginning: str, more: str = "", *, typed: str = "", ends: int = 0) -> str:
        """The next command of the page; with `more` behind it, for what a program reads better."""
        command = self.tutorial.next(beginning)
        places = {"localhost:8080": "serve", "localhost:9000": "partner"}
        for place, name in places.items():
            command = command.replace(place, f"127.0.0.1:{self.ports[name]}")
        return await self.machine.run(f"{command}{more}", typed, ends=ends)

    @asynccontextmanager
    async def partner(self, beginning: str) -> AsyncIterator[Service]:
        """A receiver of webhooks in a process of its own."""
        command = f"{self.tutorial.next(beginning)} --json"
        async with self.machine.service(command, "homing.service") as listening:
            self.partners.append(listening)

            async def is_up() -> bool:
                return listening.logs("listening on")

            await until(is_up, "the partner's receiver")
            yield listening

    def received(self) -> list[dict[str, Any]]:
        """Every webhook that came to the partner, on the whole day; not the summaries."""
        lines = [line for partner in self.partners for line in partner.lines()]
        return [line for line in lines if "answered" in line]

    def mails(self) -> list[tuple[str, str]]:
        """Subject and text of every mail that came to the operator."""
        parsed = [message_from_bytes(mail.data, policy=policy.default) for mail in self.relay.mails]
        bodies = [mail.get_body(("plain",)) for mail in parsed]
        return [
            (str(mail["subject"]), body.get_content() if body is not None else "")
            for mail, body in zip(parsed, bodies, strict=True)
        ]

    async def jobs(self, **query: str) -> list[dict[str, Any]]:
        """As the shop sees its own."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(base_url=self.address, headers=headers, timeout=30) as shop:
            answer = await shop.get("/api/dispatch/jobs", params={"size": "100", **query})
            assert answer.status_code == 200, answer.text
            items: list[dict[str, Any]] = answer.json()["items"]
            return items

    async def completed(self, count: int) -> list[dict[str, Any]]:
        async def look() -> list[dict[str, Any]] | None:
            found = await self.jobs(status="COMPLETED")
            return found if len(found) >= count else None

        return await until(look, f"{count} webhooks delivered")

    async def mail(self, subject: str) -> tuple[str, str]:
        async def look() -> tuple[str, str] | None:
            return next((mail for mail in self.mails() if re.search(subject, mail[0])), None)

        return await until(look, f"a mail: {subject}")


@pytest.fixture
async def day(tmp_path: Path, postgres_url: str) -> AsyncIterator[Day]:
    require_program("bash")
    require_program("curl")
    ports = quiet_ports("serve", "work", "partner")
    async with SmtpSink() as relay:
        secrets = {
            "database_url": postgres_url,
            "encryption_key": b64encode(bytes(range(32))).decode(),
            "mail_url": f"smtp://127.0.0.1:{relay.port}?tls=none",
        }
        # As /etc/homing/homing.env would have it. Nobody waits half a minute in a test, so what is tried
        # again is tried soon, and somebody looks often whether something is wrong.
        settings = {
            "HOMING_BASE_URL": f"http://127.0.0.1:{ports['serve']}",
            "HOMING_PORT": str(ports["serve"]),
            "HOMING_METRICS_PORT": str(ports["work"]),
            "HOMING_MAIL_FROM": "homing@example.com",
            "HOMING_ALERT_MAIL_TO": "ops@example.com",
            "HOMING_ALERT_TARGET_FAILURES": "1",
            "HOMING_ALERT_INTERVAL_SECONDS": "0.3",
            "HOMING_JOBS_BACKOFF_BASE_SECONDS": "0.5",
            "HOMING_JOBS_BREAKER_FAILURES": "5",
            "HOMING_LISTEN_PORT": str(ports["partner"]),
        }
        yield Day(Machine(tmp_path, secrets, settings), relay, ports)


# ── the day ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(240)
@pytest.mark.clause("JOB-22", "JOB-25")
async def test_a_full_day_of_an_operator(day: Day) -> None:
    await deploy(day)
    async with AsyncExitStack() as machine:
        worker = await start(day, machine)
        async with day.partner("homing listen"):
            await sell_while_all_is_well(day)
        async with httpx.AsyncClient(base_url=day.address, timeout=30) as client:
            ann = Browser(client)
            async with day.partner("homing listen --status 503"):
                await sell_while_the_partner_is_down(day)
                await hear_of_it(day, ann)
                await pause(day, ann)
                given_up = await find_what_was_given_up(day, ann)
            async with day.partner("homing listen"):
                await resume(day, ann, arriving=ALL - len(given_up))
                await requeue(day, ann, len(given_up))
                await check_that_all_arrived_once(day, ann, given_up)
                await check_the_figures(day, ann, worker, len(given_up))
            await leave(day, ann)
    await read_the_story(day, len(given_up))
    check_the_mails(day)
    assert day.tutorial.left == [], "commands that nobody has run"


async def deploy(day: Day) -> None:
    names = set(day.machine.environment("homing.service"))
    for name in day.tutorial.exports():
        assert {name, f"{name}_FILE"} & names, name
    await day.type("homing migrate")
    assert await day.type("homing users add ann", typed=f"{PASSWORD}\n") == "added: ann (operator)\n"
    await day.type("homing keys create shop")
    day.key = (day.machine.folder / "shop.key").read_text().strip()
    day.metrics_key = (await day.machine.run("homing keys create prometheus --scope ops")).strip()


async def start(day: Day, machine: AsyncExitStack) -> Service:
    """The doctor looks while the processes start; each becomes ready."""
    examined = asyncio.create_task(day.type("homing doctor", " --json", ends=1))
    await asyncio.sleep(0)
    serve, work = day.tutorial.next("homing serve"), day.tutorial.next("homing work")
    await machine.enter_async_context(day.machine.service(serve, "homing.service"))
    worker = await machine.enter_async_context(day.machine.service(work, "homing-worker@.service"))
    wrong = {one["check"] for one in json.loads(await examined) if not one["ok"]}
    assert wrong == OF_A_SERVER_FOR_TESTS
    await until(lambda: _is_ready(day.ports["serve"]), "the API")
    await until(lambda: _is_ready(day.ports["work"]), "the worker")
    return worker


async def _is_ready(port: int) -> bool:
    async with httpx.AsyncClient() as probe:
        try:
            return (await probe.get(f"http://127.0.0.1:{port}/health/ready")).status_code == 200
        except httpx.TransportError:
            return False


async def sell_while_all_is_well(day: Day) -> None:
    answers = await asyncio.gather(day.type("homing health"), day.machine.run("homing health --worker"))
    assert [json.loads(answer)["status"] for answer in answers] == [200, 200]
    await day.type("for n in")
    await day.completed(WELL)
    assert Counter(line["answered"] for line in day.received()) == {200: WELL}


async def sell_while_the_partner_is_down(day: Day) -> None:
    await day.type("for n in")
    order = {"source": "shop", "type": "order.shipped", "maxRetries": 10}
    orders = [
        {**order, "targetUrl": f"{day.target}/hooks/{n % 2}", "payload": json.dumps({"order": n})}
        for n in range(BATCH)
    ]
    headers = {"Authorization": f"Bearer {day.key}", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    async with httpx.AsyncClient(base_url=day.address, headers=headers, timeout=30) as shop:
        answer = await shop.post("/api/dispatch/jobs/batch", json=orders)
        assert (answer.status_code, answer.json()["created"]) == (200, BATCH), answer.text


async def hear_of_it(day: Day, ann: Browser) -> None:
    subject, text = await day.mail(r"given up: http_503$")
    assert re.match(r"\[alert\] Homing: \d+ webhooks? (was|were) given up", subject)
    await day.mail(r"^\[alert\] .* has failed \d+ times? in a row")
    # The link in the mail leads to the login, and from there to where it leads.
    (link,) = [line for line in text.splitlines() if line.startswith(day.address)]
    asked = await ann.open(link, expected=401)
    assert asked.form("/login").fields["next"] == "/dead"
    page = await ann.send("/login", name="ann", password=PASSWORD)
    assert page.url.path == "/dead"
    assert "http_503" in page.links


async def pause(day: Day, ann: Browser) -> None:
    """It is left alone, but for probes; now those are spared as well."""
    await ann.open("/targets")
    await ann.follow(day.target)
    address = str(ann.page.url)

    async def is_open() -> bool:
        return "breaker open" in (await ann.open(address)).text

    async def is_on_the_overview() -> bool:
        told = re.search(r'<section id="attention".*?</section>', (await ann.open("/")).html, re.DOTALL)
        return told is not None and "given up" in told[0] and f"{day.target} keeps failing" in told[0]

    await until(is_on_the_overview, "what needs attention")
    await until(is_open, "an open breaker")
    page = await ann.send("/targets/pause", span="", reason="the partner mends it")
    assert "Paused: it is sent nothing" in page.text
    await nothing_moves(day)


async def nothing_moves(day: Day) -> None:
    """A claim that had begun before the pause has ended when two more were made; and so has its probe."""
    claims = "homing_claim_duration_seconds_count", "dispatch_jobs"
    before = (await metrics_of(day))[claims]

    async def still() -> bool:
        claimed_since = (await metrics_of(day))[claims] - before
        return claimed_since >= 2 and not await day.jobs(status="IN_PROGRESS")

    await until(still, "the end of the last probe")


async def find_what_was_given_up(day: Day, ann: Browser) -> list[str]:
    """By the page, the command line and the API alike."""
    page = await ann.open("/dead")
    found = json.loads(await day.type("homing find", " --json --limit 100"))["items"]
    assert {one["error"] for one in found} == {"http_503"}
    ids = [one["id"] for one in found]
    assert ids == [one["id"] for one in await day.jobs(status="ERROR")]
    assert f"All {len(ids)}" in page.links
    assert "http_503" in page.links
    # The others wait for the breaker, or for their next attempt.
    assert 1 <= len(ids) <= HASTY
    waiting = [*await day.jobs(status="PENDING"), *await day.jobs(status="FAILED")]
    assert len(ids) + len(waiting) == ALL - WELL
    return ids


async def resume(day: Day, ann: Browser, *, arriving: int) -> None:
    await ann.open("/targets")
    await ann.follow(day.target)
    page = await ann.send("/targets/test", url=f"{day.target}/hooks")
    assert "it would have completed a job" in page.text
    page = await ann.send("/targets/resume")
    assert "It is asked again" in page.text
    await day.completed(arriving)
    await day.mail(r"^\[resolved\] .* answers again$")


async def requeue(day: Day, ann: Browser, given_up: int) -> None:
    await ann.open("/dead")
    page = await ann.follow("Requeue all…")
    assert re.search(rf"\b{given_up} messages? would be requeued", page.text)
    assert len(await day.jobs(status="ERROR")) == given_up, "nothing is changed by looking"
    page = await ann.send("/bulk")
    run = page.url.path

    async def over() -> bool:
        return 'data-over="yes"' in (await ann.open(run)).html

    await until(over, "the end of the bulk run")
    assert f"Done {given_up}" in ann.page.text
    await day.completed(ALL)


async def check_that_all_arrived_once(day: Day, ann: Browser, given_up: Sequence[str]) -> None:
    """No order twice, and those that had been given up under their first id."""
    jobs = {job["id"]: job for job in await day.jobs()}
    received = [line for line in day.received() if line["id"] in jobs]
    taken = Counter(line["id"] for line in received if line["answered"] == 200)
    assert taken == dict.fromkeys(jobs, 1)
    assert len(day.received()) == len(received) + 1, "the test event was none of the jobs"
    assert sum(job["attemptCount"] for job in jobs.values()) == len(received)
    assert {jobs[id]["attemptCount"] for id in given_up} == {2}
    page = await ann.open(f"/messages/{given_up[0]}")
    for words in ("COMPLETED", "503", "200"):
        assert words in page.text
    batch = {id for id, job in jobs.items() if job["type"] == "order.shipped"}
    assert {line["id"] for line in received if TRACE in line["headers"].get("traceparent", "")} == batch


async def check_the_figures(day: Day, ann: Browser, worker: Service, given_up: int) -> None:
    """The log, the metrics and the overview say what the partner saw."""
    refused = sum(line["answered"] == 503 for line in day.received())
    logged = await log_of_attempts(day, worker, refused)
    # What the breaker held back when it was in hand already is tried again, too, without a request.
    retried = refused - given_up + sum(not one["response_code"] for one in logged)
    metrics = await metrics_of(day)
    assert metrics["homing_attempts_total", "dispatch_jobs", "delivered", ""] == ALL
    assert metrics["homing_attempts_total", "dispatch_jobs", "retry", "http_503"] == refused
    assert metrics["homing_retries_total", "dispatch_jobs"] == retried
    assert metrics["homing_dead_total", "dispatch_jobs"] == given_up
    assert metrics["homing_attempts_total", "mail_outbox", "delivered", ""] == len(day.mails())

    async def is_shown() -> bool:
        lanes = {one["lane"]: one for one in (await ann.json("/api/overview"))["lanes"]}
        jobs, hour = lanes["dispatch_jobs"], lanes["dispatch_jobs"]["hour"]
        figures = [hour[name] for name in ("delivered", "retried", "dead")]
        return jobs["counts"]["COMPLETED"] == ALL and figures == [ALL, retried, given_up]

    await until(is_shown, "an overview that has counted everything")


async def log_of_attempts(day: Day, worker: Service, refused: int) -> list[dict[str, Any]]:
    """A line for each; those with a trace have the one that went with the webhook."""

    async def look() -> list[dict[str, Any]] | None:
        lines = [one for one in worker.events("delivery.attempted") if one["lane"] == "dispatch_jobs"]
        codes = Counter(one["response_code"] for one in lines if one["response_code"])
        return lines if codes == {200: ALL, 503: refused} else None

    lines = await until(look, "a log line for each attempt")
    traced = sum(TRACE in line["headers"].get("traceparent", "") for line in day.received())
    assert traced == sum(one.get("trace_id") == TRACE for one in lines if one["response_code"])
    return lines


async def metrics_of(day: Day) -> Mapping[tuple[str, ...], float]:
    """By name and labels."""
    headers = {"Authorization": f"Bearer {day.metrics_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as prometheus:
        page = await prometheus.get(f"http://127.0.0.1:{day.ports['work']}/metrics")
    assert page.status_code == 200
    found: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            labels = [sample.labels[name] for name in NAMED_BY if name in sample.labels]
            found[sample.name, *labels] += sample.value
    return found


async def leave(day: Day, ann: Browser) -> None:
    page = await ann.open("/audit?who=user:ann")
    shown = re.findall(r">([a-z]+(?:\.[a-z]+)+)<", page.html)
    assert shown == [*reversed(DEEDS)]
    await ann.open("/")
    page = await ann.send("/logout")
    assert page.url.path == "/login"


async def read_the_story(day: Day, given_up: int) -> None:
    """Who, what and how many; in order."""
    told = json.loads(await day.type("homing audit", " --json --limit 500"))[::-1]
    assert {one["outcome"] for one in told} == {"done"}
    by_hand = [one["action"] for one in told if one["who"].startswith("cli:")]
    assert by_hand == ["migrate", "users.add", "keys.create", "keys.create"]
    ann = [one for one in told if one["who"] == "user:ann"]
    assert [one["action"] for one in ann] == [*DEEDS, "session.close"]
    details = {one["action"]: one["detail"] for one in ann}
    assert details["dispatch.targets.pause"]["reason"] == "the partner mends it"
    assert details["bulk.start"]["query"] == "status:dead lane:dispatch_jobs code:http_503"
    assert (details["bulk.end"]["done"], details["bulk.end"]["total"]) == (given_up, given_up)
    shop = [one for one in told if one["whoName"] == "shop"]
    calls: Counter[str] = Counter()
    for one in shop:
        calls[one["action"]] += one["detail"]["calls"]
    assert calls == {"dispatch.jobs.create": ALL - BATCH, "dispatch.jobs.create_batch": 1}
    assert len(told) == len(by_hand) + len(ann) + len(shop), "nobody else did anything"


def check_the_mails(day: Day) -> None:
    """One that it began, for each cause, and one that it is over."""
    place = f"127.0.0.1:{day.ports['partner']}"
    subjects = sorted(re.sub(r"\d+ (webhooks? w\w+|times?)", "some", subject) for subject, _ in day.mails())
    assert subjects == [
        f"[alert] Homing: {place} has failed some in a row (100 % of the threshold)",
        "[alert] Homing: some given up: http_503",
        f"[resolved] Homing: {place} answers again",
    ]
    assert {mail.recipients for mail in day.relay.mails} == {("ops@example.com",)}
