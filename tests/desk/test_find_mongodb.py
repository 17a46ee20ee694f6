"""Jobs in MongoDB on the desk: the same terms find the same as in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.desk.rows import Bench, bench

from homing.lanes.dispatch_jobs.job import NewJob
from homing.lanes.dispatch_jobs.target import target_of

LINES = {
    "": ["user.created", "order.paid", "order.created"],
    "status:waiting": ["user.created", "order.paid", "order.created"],
    "status:dead": [],
    "type:order.*": ["order.paid", "order.created"],
    "type:order.paid source:shop": ["order.paid"],
    "source:s*p": ["order.paid", "order.created"],
    "meta.tenantId:acme": ["order.created"],
    "meta.tenantId:a*": ["order.created"],
    'meta."$a.b c":7': ["order.created"],
    "to:hooks.x.com": ["order.paid", "order.created"],
    "to:hooks.x.com:8443": ["order.paid"],
    "to:https://hooks.x.com/a*": ["order.created"],
    "id:ext-1": ["order.paid"],
    "id:ext-1 type:user.*": [],
    "created": ["user.created", "order.created"],
    "error:unclassified": ["user.created", "order.paid", "order.created"],
    "error:http_*": [],
    "since:2999-01-01": [],
}


def job(
    type: str, url: str, external_id: str | None = None, metadata: Mapping[str, str] | None = None
) -> NewJob:
    source = "crm" if type.startswith("user") else "shop"
    return NewJob(
        source=source,
        type=type,
        target_url=url,
        target=target_of(url, None),
        payload="{}",
        external_id=external_id,
        metadata=metadata,
    )


async def fill(lanes: Bench) -> None:
    for one in (
        job("order.created", "https://hooks.x.com/a?b=1", metadata={"tenantId": "acme", "$a.b c": "7"}),
        job("order.paid", "https://hooks.x.com:8443/a", external_id="ext-1"),
        job("user.created", "https://other.org/"),
    ):
        await lanes.homing.jobs.enqueue([one])


@pytest.mark.clause("JOB-22")
async def test_every_term_finds_what_it_says(
    tmp_path: Path, migrated_mongodb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'homing.db'}"
    async with bench(url, jobs_database_url=migrated_mongodb_url) as lanes:
        await fill(lanes)
        assert {line: await lanes.titles(line) for line in LINES} == LINES
        for line in ("", "status:waiting", "created"):
            first = await lanes.find(line, limit=1)
            rest = await lanes.find(line, limit=10, cursor=first.next)
            assert [row.title for row in (*first.rows, *rest.rows)] == LINES[line]
        id = (await lanes.find("id:ext-1")).rows[0].id
        assert await lanes.titles(id) == ["order.paid"]
        detail = await lanes.desk.show(id, may=lambda _scope: True)
        assert detail is not None
        assert (detail.summary.id, [step.kind for step in detail.timeline]) == (id, ["created", "waits"])
        monkeypatch.setattr("homing.lanes.dispatch_jobs.desk_find.WINDOW", 1)
        monkeypatch.setattr("homing.lanes.dispatch_jobs.desk_find.FIRST_WINDOW", 1)
        bounded = await lanes.find("type:order.c* lane:dispatch_jobs")
        assert (list(bounded.rows), bounded.looked_at, bounded.next is None) == ([], 1, False)
