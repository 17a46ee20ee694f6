"""Rendering once for many: what comes out is what each would have got alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homing.lanes.open_events.letters import Letters
from homing.lanes.open_events.locales import PACKAGED_TEMPLATES
from homing.senders.body_text import encode_text
from homing.senders.printed import Filled
from homing.senders.templates import Rendered, TemplateProblem, Templates

VARIABLES = {
    "courseTitle": "Data & Structures", "courseString": "01:198:112", "sectionIndex": "09214",
    "sectionNumber": "03", "meetingSummary": "TBA",
}  # fmt: skip


def links(number: int, base: str = "https://seats.example/a?b=1&c=2") -> dict[str, str]:
    return {
        "manageUrl": f"{base}&subscriptions={number}",
        "unsubscribeUrl": f"{base}&unsubscribe={number}",
    }


class Office:
    """A folder of templates, and how often they were rendered."""

    def __init__(self, folder: Path = PACKAGED_TEMPLATES) -> None:
        self._templates = Templates(folder)
        self.now = 0.0
        self.letters = Letters(lambda: self.now)
        self.rendered = self.shared = 0

    def alone(self, links: Any) -> Rendered | TemplateProblem:
        self.rendered += 1
        return self._templates.render("open-seat", {**VARIABLES, **links}, "en-US", "v1")

    def write(self, links: Any) -> Rendered | TemplateProblem:
        found = self.letters.write("key", VARIABLES, links, self.alone)
        if isinstance(found, TemplateProblem):
            return found
        self.shared += isinstance(found.text, Filled) and isinstance(found.html, Filled)
        # What is encoded once for all is the same as well.
        for part in (found.text, found.html):
            if isinstance(part, Filled) and (encoded := part.encoded()) is not None:
                assert (encoded.encoding, b"".join(encoded.chunks)) == encode_text(str(part).encode())
        html = None if found.html is None else str(found.html)
        return Rendered(found.subject, str(found.text), html, found.locale)


def folder_with(tmp_path: Path, html: str) -> Path:
    folder = tmp_path / "open-seat" / "v1"
    folder.mkdir(parents=True)
    (folder / "en-US.subject.txt").write_text("Seat open")
    (folder / "en-US.txt").write_text("{{ manageUrl }} and {{ unsubscribeUrl }}, again {{ manageUrl }}")
    (folder / "en-US.html").write_text(html)
    return tmp_path


def test_many_letters_are_those_that_each_would_have_got_alone() -> None:
    office = Office()
    for number in range(20):
        assert office.write(links(number)) == Office().alone(links(number))
    assert office.shared == 20
    assert office.rendered == 2, "twice to see that the links are printed as they are"


@pytest.mark.parametrize(
    "html",
    [
        "<p>{{ manageUrl | upper }}</p>",
        "<p>{{ manageUrl | length }}</p>",
        "<p>{{ manageUrl[:40] }}</p>",
        "<p>{{ unsubscribeUrl | urlencode }}</p>",
        "<p>{% if 'subscriptions' in manageUrl %}yes{% endif %}</p>",
        "<p>{{ manageUrl | replace('seats', 'places') }}</p>",
        "<p>{{ manageUrl.split('&')[-1] }}</p>",
    ],
)
def test_a_template_that_does_something_with_a_link_is_rendered_for_each(tmp_path: Path, html: str) -> None:
    folder = folder_with(tmp_path, html)
    office = Office(folder)
    for number in (7, 1234567):
        assert office.write(links(number)) == Office(folder).alone(links(number)), html


def test_a_problem_is_told_to_each(tmp_path: Path) -> None:
    office = Office(folder_with(tmp_path, "{{ nothing }}"))
    assert isinstance(office.write(links(1)), TemplateProblem)
    assert isinstance(office.write(links(2)), TemplateProblem)


def test_after_a_second_the_files_are_looked_at_again(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "<p>old {{ manageUrl }}</p>")
    office = Office(folder)
    office.write(links(1))
    (folder / "open-seat" / "v1" / "en-US.html").write_text("<p>new, and longer {{ manageUrl }}</p>")
    office.now = 1.5
    written = office.write(links(2))
    assert isinstance(written, Rendered)
    assert written.html is not None
    assert "new" in written.html
