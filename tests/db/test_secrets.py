"""What a database says, and where it is, without what nobody should read."""

from __future__ import annotations

import pytest
from tests.outbox import bench

from homing.db import redact
from homing.errors import Refused
from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.outbox import new_token


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hush@host:5432/db",
        "postgresql://u:p@hush@host/db",
        "postgresql://host/db?user=u&password=hush",
        "smtp://u:hush@relay.example:587?tls=none",
        "smtps://:hush@relay.example",
    ],
)
def test_a_shown_url_has_no_password(url: str) -> None:
    assert "hush" not in redact(url)


def test_a_shown_url_still_says_where() -> None:
    assert redact("postgresql://u:hush@host:5432/db") == "postgresql://u:***@host:5432/db"
    assert redact("sqlite:///homing.db") == "sqlite:///homing.db"


async def test_a_refused_row_is_not_quoted(postgres_url: str) -> None:
    """PostgreSQL's DETAIL holds the whole row: addresses, bodies and all."""
    async with bench(postgres_url) as lane:
        await lane.sql("ALTER TABLE mail_outbox ADD CHECK (to_address NOT LIKE '%blocked%')")
        mail = NewMail(token=new_token(), to_address="secret@blocked.example", text_body="hush hush")
        with pytest.raises(Refused) as caught:
            await lane.outbox.enqueue([mail])
        assert "secret" not in str(caught.value)
        assert "hush" not in str(caught.value)
