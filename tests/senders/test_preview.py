"""A mail to look at: composed from what is in the row, whatever that is, and nothing in it can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homing.senders.preview import Preview, preview_of, shown
from homing.senders.templates import Templates

ROW: dict[str, Any] = {
    "from_address": None,
    "to_address": "ann@example.org",
    "cc_address": None,
    "bcc_address": None,
    "reply_to": None,
    "subject": "Hello",
    "text_body": "It works.",
    "html_body": None,
    "template": None,
    "variables": None,
    "locale": None,
    "headers": None,
    "unsubscribe_url": None,
    "token": "0123456789abcdef",
    "last_attempt_at": None,
}
#: SQLite takes anything for any column.
ODD = (b"{}", b"\xff\xfe", 7, -1.5, "", "{", "\x00", "\ud800", "[1, 2]", '{"a": [', "é" * 2000, "\r\nX: y")


@pytest.fixture
def templates(tmp_path: Path) -> Templates:
    folder = tmp_path / "code" / "v1"
    folder.mkdir(parents=True)
    (folder / "en.subject.txt").write_text("Your code")
    (folder / "en.txt").write_text("It is {{ code }}, {{ name }}.")
    return Templates(tmp_path)


def look(templates: Templates, **columns: Any) -> Preview:
    return preview_of(shown(ROW | columns), templates, "shop@example.com")


def test_a_mail_is_shown_as_it_goes_out(templates: Templates) -> None:
    found = look(templates)
    assert (found.text, found.trouble) == ("It works.", None)
    assert ("From", "shop@example.com") in [*found.headers]
    assert found.source.endswith("\r\n\r\nIt works.\r\n")


@pytest.mark.parametrize("column", ROW)
def test_whatever_another_program_wrote_is_a_mail_or_told(templates: Templates, column: str) -> None:
    for odd in ODD:
        found = look(templates, **{column: odd})
        assert found.trouble or found.source, (column, odd)
        templated = look(templates, **{"template": "code", "locale": "en", column: odd})
        assert templated.trouble or templated.source, (column, odd)


@pytest.mark.parametrize("variables", ['{"code": "4711", "name": "Ann"}', b'{"code": 4711, "name": "Ann"}'])
def test_a_secret_is_hidden_in_what_is_made_of_it(templates: Templates, variables: str | bytes) -> None:
    found = look(templates, template="code", locale="en", subject="", variables=variables)
    assert found.trouble is None
    assert found.text == "It is hidden-in-preview, Ann."
    assert "4711" not in found.source
