"""The OpenAPI document as tools read it: it is valid, and a client that is generated from it works."""

from __future__ import annotations

import asyncio
import importlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from html import unescape
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from tests.http.door import Door, opened_door, url_with_tables

from homing.http.access import handlers_of

CLIENT = "homing_client"
#: Without the formatter, which is for those who keep the client.
WITHOUT_HOOKS = "post_hooks: []\n"


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    url = url_with_tables(tmp_path)
    async with opened_door(url, egress_allow="127.0.0.0/8", allow_http=True) as door:
        yield door


async def test_the_document_is_valid(door: Door) -> None:
    document = (await door.ask("GET", "/openapi.json", await door.key())).json()
    assert document["openapi"].startswith("3.1")
    assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


async def test_no_two_paths_can_be_taken_for_each_other(door: Door) -> None:
    """As `redocly lint` counts: as many templates in both, and every word of one is a word or a template
    of the other.
    """
    document = (await door.ask("GET", "/openapi.json", await door.key())).json()
    paths = [path.split("/") for path in document["paths"]]
    assert len(paths) > 20
    ambiguous = [
        (one, other)
        for one, other in combinations(paths, 2)
        if shape(one) == shape(other) and alike(one, other)
    ]
    assert not ambiguous


async def test_people_read_every_path_as_it_is_asked(door: Door) -> None:
    """The page shows none of what the document does for tools alone."""
    answer = await door.ask("GET", "/docs", await door.key(), headers={"Accept": "text/html"})
    page = unescape(answer.text)
    shown = re.findall(r'<span class="method">(\w+)</span> <code>([^<]+)</code>', page)
    there = {
        (method, path)
        for path, method, handler in handlers_of(door.app)
        if handler.resolve_include_in_schema() and method != "HEAD"
    }
    assert set(shown) == there
    assert len(shown) == len(there)
    for article in page.split("<article")[1:]:
        path = article.partition("<code>")[2].partition("</code>")[0]
        named = re.findall(r"<code>(\w+)</code></th><td [^>]*>path<", article)
        assert sorted(named) == sorted(re.findall(r"{(\w+)}", path)), path


def shape(path: list[str]) -> tuple[int, int]:
    """How many parts, and how many of them are templates."""
    return len(path), sum(part.startswith("{") for part in path)


def alike(one: list[str], other: list[str]) -> bool:
    return all(a == b or "{" in (a[:1], b[:1]) for a, b in zip(one, other, strict=True))


def generate(document: bytes, folder: Path) -> None:
    """Any warning of the generator is a mistake in the document: a part of the client is missing then."""
    (folder / "openapi.json").write_bytes(document)
    (folder / "config.yml").write_text(WITHOUT_HOOKS)
    command = Path(sys.executable).with_name("openapi-python-client")
    done = subprocess.run(
        [command, "generate", "--path", "openapi.json", "--config", "config.yml", "--meta", "none",
         "--output-path", CLIENT, "--fail-on-warning"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, f"Generating {CLIENT}")


@pytest.mark.slow
async def test_a_generated_client_creates_and_reads_a_mail_and_a_job(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await door.key("mail:*", "jobs:*")
    document = (await door.ask("GET", "/openapi.json", key)).content
    await asyncio.to_thread(generate, document, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    models = module("models")
    client = module("").AuthenticatedClient(door.address, key)
    async with client:
        mail = models.MailRequest(to="ann@example.org", subject="Hi", text="Hello.")
        created = await asked("mail_outbox.api_mail_create", client, body=mail)
        assert isinstance(created, models.CreatedMail)
        shown = await asked("mail_outbox.api_mail_mail_id_get", client, created.id)
        assert isinstance(shown, models.OutboxMail)
        assert (shown.to, shown.subject, shown.text, shown.status) == (
            "ann@example.org", "Hi", "Hello.", "queued",
        )  # fmt: skip

        job = models.JobRequest(
            source="shop", type_="order.paid", target_url="http://127.0.0.1:9/hooks", payload="{}"
        )
        created = await asked("dispatch_jobs.api_dispatch_jobs_create", client, body=job)
        shown = await asked("dispatch_jobs.api_dispatch_jobs_job_id_show", client, created.id)
        assert (shown.source, shown.type_, shown.status) == ("shop", "order.paid", "PENDING")

        refused = await asked("mail_outbox.api_mail_mail_id_get", client, "outbox_999")
        assert isinstance(refused, models.ErrorReply)
        assert refused.error.code == "NOT_FOUND"
        many = await asked("mail_outbox.api_mail_create", client, body=[mail, models.MailRequest(to="")])
        assert isinstance(many, models.BatchReply)
        assert [item.verdict for item in many.items] == ["created", "invalid"]


def module(name: str) -> ModuleType:
    return importlib.import_module(f"{CLIENT}.{name}".rstrip("."))


async def asked(operation: str, client: Any, *given: Any, **options: Any) -> Any:
    return await module(f"api.{operation}").asyncio(*given, client=client, **options)
