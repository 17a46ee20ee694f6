"""`homing find`: the messages of all lanes by a query line, on both databases."""

from __future__ import annotations

import asyncio
import json

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
    assert find("unfindable")[1].strip() == "nothing is found"


def test_a_database_that_is_not_there_is_not_taken_for_an_empty_one(homing: Homing) -> None:
    missing = homing("find", "status:dead")
    assert missing.returncode == 1
    assert "mail_outbox is left out: there is no database" in missing.stderr
