"""The page /alerts, and what its forms do."""

from __future__ import annotations

from tests.http.pages.visitor import door_with_people, forms_of, visiting

CAUSE = "dead:mail_outbox:invalid_recipient"


async def test_alerts_are_shown_silenced_and_tried(sqlite_url: str) -> None:
    async with door_with_people(sqlite_url, alert_mail_to="ops@example.org") as door:
        await door.insert()
        await door.sql(
            "UPDATE mail_outbox SET status = 'failed', last_error = 'invalid_recipient: x' RETURNING id"
        )
        async with visiting(door, "operator") as operator, visiting(door, "viewer") as viewer:
            assert "Nothing is wrong" in await operator.read("/alerts")
            await door.homing.alerts.look()
            page = await viewer.read("/alerts")
            assert page.count("1 mail was given up: invalid_recipient") == 2
            assert 'href="/messages/outbox_2"' in page
            assert "ops@example.org" not in page
            assert forms_of(page) == set()
            assert (await viewer.send("/alerts/silence", {"cause": CAUSE, "span": "1h"})).status_code == 403
            assert forms_of(await operator.read("/alerts")) == {"/alerts/silence", "/alerts/test"}
            assert "for 4h" in await operator.done("/alerts/silence", cause=CAUSE, span="4h")
            assert "user:operator" in await viewer.read("/alerts")
            assert "told of again" in await operator.done("/alerts/silence", cause=CAUSE, span="0")
            assert "homing alerts list" in await operator.refused("/alerts/silence", cause="x", span="1h")
            never = {"cause": "dead:nowhere:x", "span": "1h"}
            assert "it is one of mail_outbox," in await operator.refused("/alerts/silence", **never)
            assert "is on its way: mail" in await operator.done("/alerts/test")
        entries = [(entry["action"], entry["outcome"]) for entry in await door.audit()]
        assert [entry for entry in entries if entry[0].startswith("alerts.")] == [
            ("alerts.silence", "refused"),
            ("alerts.silence", "done"),
            ("alerts.silence", "done"),
            ("alerts.silence", "refused"),
            ("alerts.silence", "refused"),
            ("alerts.test", "done"),
        ]


async def test_without_a_way_the_page_says_how_to_set_one(sqlite_url: str) -> None:
    async with door_with_people(sqlite_url) as door, visiting(door, "operator") as operator:
        page = await operator.read("/alerts")
        assert "HOMING_ALERT_MAIL_TO" in page
        assert "Send a test" not in page
