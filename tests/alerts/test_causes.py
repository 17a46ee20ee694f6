"""What a cause may be called, and which lane it is of."""

from __future__ import annotations

import re

import pytest
from tests.alerts.bench import alert_bench

from homing.errors import InvalidRequest


async def test_what_nothing_is_ever_called_is_not_silenced(sqlite_url: str) -> None:
    async with alert_bench(sqlite_url) as bench:
        for wrong, why in (
            ("dead:nowhere:timeout", "there is no lane `nowhere`: it is one of mail_outbox, dispatch_jobs,"),
            ("dead:timeout", "there is no lane `timeout`"),
            ("backlog:mails", "there is no lane `mails`"),
            ("idle:", "there is no lane ``"),
            ("dead:mail_outbox", "such as dead:mail_outbox:invalid_recipient"),
            ("backlog:mail_outbox:timeout", "such as"),
            ("target:", "such as"),
            ("worker", "such as"),
        ):
            with pytest.raises(InvalidRequest, match=re.escape(why)):
                await bench.alerts.silence(wrong, 60, by="user:ann")
        # One of before has to end, whatever it is called.
        await bench.alerts.silence("dead:nowhere:timeout", 0, by="user:ann")
        assert await bench.alerts.silenced() == []
        for right in ("dead:email_log:a:b c", "backlog:open_events", "idle:mail_outbox", "worker:a"):
            assert (await bench.alerts.silence(right, 60, by="user:ann")).cause == right
        lanes = {one.cause.partition(":")[0]: one.lane for one in await bench.alerts.silenced()}
        titles = [one.title for one in await bench.alerts.silenced()]
        assert "Not seen so far: dead:email_log:a:b c" in titles, "no count of what never happened"
        assert await bench.alerts.known() == []
        assert lanes == {"dead": "email_log", "backlog": "open_events", "idle": "mail_outbox", "worker": None}
