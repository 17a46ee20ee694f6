"""`homing find`: the messages of all lanes by a query line, on both databases."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.command import Homing
from tests.desk.rows import bench


def fill(url: str) -> None:
    async def run() -> None:
        async with bench(url) as lanes:
            await lanes.fill()

    asyncio.run(run())


def test_messages_are_found_by_a_query_line(homing: Homing, database_url: str) -> None:
    fill(database_url)

    def find(*arguments: str) -> tuple[int, str, str]:
        result = homing("find", *arguments, HOMING_DATABASE_URL=database_url)
        return result.returncode, result.stdout, result.stderr

    code, out, err = find("status:dead", "to:*@x.com")
    assert code == 0, err
    assert [
        word for word in ("Hello Ann", "Dead one", "z***@x.com", "invalid_recipient") if word not in out
    ] == []
    assert "order.created" not in out
    assert "messages were looked through" in err

    code, out, _ = find("type:order.*", "--json", "--limit", "1")
    page = json.loads(out)
    assert [item["title"] for item in page["items"]] == ["order.paid"]
    _, out, _ = find("type:order.*", "--json", "--cursor", page["next"])
    assert [item["title"] for item in json.loads(out)["items"]] == ["order.created"]

    code, _, err = find("satus:dead")
    assert (code, "did you mean status?" in err, "homing find 'status:dead'" in err) == (2, True, True)
    code, _, err = find("lane:mails", "-status:dead", "-n", "5")
    assert (code, "nothing can be left out by `-`" in err) == (2, True), err
    assert find("unfindable")[1].strip() == "nothing is found"


def test_a_database_that_is_not_there_is_not_taken_for_an_empty_one(homing: Homing) -> None:
    """One sentence, as the other commands have it: `nothing is found` could be believed."""
    for line in ("status:dead", "lane:mails status:dead"):
        missing = homing("find", line)
        assert (missing.returncode, missing.stdout) == (3, "")
        assert missing.stderr.startswith("homing: there is no database ")
        assert missing.stderr.count("\n") == 1
    assert homing("find", "--json").stdout == ""


def test_a_lane_that_cannot_be_asked_is_told_beside_the_others(homing: Homing, tmp_path: Path) -> None:
    homing("migrate")
    found = homing("find", HOMING_JOBS_DATABASE_URL=f"sqlite:///{tmp_path}/nohere.db")
    assert (found.returncode, found.stdout.strip()) == (1, "nothing is found")
    assert "dispatch_jobs is left out: there is no database" in found.stderr
    assert "mail_outbox" not in found.stderr
