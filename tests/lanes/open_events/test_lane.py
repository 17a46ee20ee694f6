from __future__ import annotations
from tests.notifications import notification_bench, read_json

async def test_one(database_url: str) -> None:
    async with notification_bench(database_url) as b:
        id = await b.notification()
        print(await b.deliver())
        print(b.log.text)
        print(await b.other.row(id))
        print(b.memory.messages)
        assert read_json((await b.other.row(id))["error"]) == {"provider": "smtp", "providerMessageId": None, "status": "sent"}
