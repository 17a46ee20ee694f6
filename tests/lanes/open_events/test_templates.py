"""The packaged mails and pages: what they say, and that no value can make them say anything else."""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from jinja2 import Environment, FileSystemLoader, StrictUndefined, meta
from markupsafe import Markup

from homing.lanes.open_events.locales import OPEN_SEAT, PACKAGED_TEMPLATES, VERIFICATION
from homing.senders.mail import MailMessage, SendErrorCode
from homing.senders.mime import assemble
from homing.senders.templates import Rendered, TemplateProblem, Templates

LOCALES = ("en-US", "zh-CN")
PAGES = PACKAGED_TEMPLATES.with_name("pages")

REQUIRED = {
    "courseTitle": "Introduction to Computer Science",
    "courseString": "01:198:111",
    "sectionIndex": "09214",
    "sectionNumber": "03",
    "meetingSummary": "Mon 10:20-11:40 HLL 114; Thu 10:20-11:40 HLL 114",
    "manageUrl": "https://alerts.example.edu/subscriptions/1?token=abc&x=1",
}
OPTIONAL = {
    "campus": "Busch",
    "eventDetectedAt": "2026-11-16T15:12:09Z",
    "eventDetectedText": "Mon, Nov 16, 10:12 AM EST",
    "unsubscribeUrl": "https://alerts.example.edu/unsubscribe?token=def&y=2",
    "notes": "Special permission needed",
}
SEAT = REQUIRED | OPTIONAL
VERIFY: dict[str, Any] = {
    "verificationUrl": "https://alerts.example.edu/confirm?token=ghi&z=3",
    "expirationMinutes": 1440,
    "contactValue": "ann@example.edu",
}
MAILS = ((OPEN_SEAT, SEAT), (VERIFICATION, VERIFY))
EVERY_MAIL = [
    pytest.param(template, locale, variables, id=f"{template}-{locale}")
    for template, variables in MAILS
    for locale in LOCALES
]
HOSTILE = {
    "script": "<script>alert(1)</script>",
    "end-tags": "</td></table></form><h1>x",
    "end-attribute": "\"'><img src=x onerror=alert(1)>",
    "template": "{{ 7*7 }}{% raw %}{# x #}",
    "comment": "--><!--[if mso]>",
    "entities": "]]>&amp;&#0;&",
    "script-link": "javascript:alert(1)",
    "overridden-direction": "\u202eright to left\u2066",
    "right-to-left": "مقدمة في علوم الحاسوب",
    "long": "W" * 10_000,
    "format": "%(contact)s %s {0}",
}
EVERY_HOSTILE = [pytest.param(value, id=name) for name, value in HOSTILE.items()]
VOID = frozenset({"meta", "br", "input", "rect", "path", "hr", "img", "link", "base"})
#: What a mail or page of ours never needs, and what could load or run something.
FORBIDDEN = frozenset(
    {"script", "img", "link", "iframe", "object", "embed", "video", "audio", "base", "source", "picture"}
)


class Tag(NamedTuple):
    name: str
    attributes: dict[str, str]


class Reader(HTMLParser):
    """Reads html strictly: what is opened is closed, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[Tag] = []
        self.comments: list[str] = []
        self.words: list[str] = []
        self.style = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        self.tags.append(Tag(tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(Tag(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag.name, tuple(tag.attributes)) for tag in self.tags]

    def values(self, attribute: str) -> list[str]:
        return [tag.attributes[attribute] for tag in self.tags if attribute in tag.attributes]


@pytest.fixture(scope="module")
def templates() -> Templates:
    return Templates(PACKAGED_TEMPLATES, recheck_seconds=60.0)


def render(
    templates: Templates, template: str, locale: str, variables: dict[str, Any]
) -> tuple[Rendered, Reader]:
    found = templates.render(template, variables, locale, "v1")
    assert isinstance(found, Rendered), found
    assert found.locale == locale
    assert found.html is not None
    return found, Reader(found.html)


# ── What the mails say ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("locale", LOCALES)
def test_text_and_html_say_the_same_facts(templates: Templates, locale: str) -> None:
    mail, page = render(templates, OPEN_SEAT, locale, SEAT)
    links = page.values("href")
    for name, value in SEAT.items():
        if name == "eventDetectedAt":
            assert value not in mail.text + page.text
        elif name.endswith("Url"):
            assert value in mail.text
            assert value in links
        else:
            assert value in mail.text
            assert value in page.text
    assert "01:198:111" in mail.subject
    assert mail.subject.endswith("Introduction to Computer Science")


@pytest.mark.parametrize(("template", "locale", "variables"), EVERY_MAIL)
def test_every_link_is_ours_and_nothing_is_loaded(
    templates: Templates, template: str, locale: str, variables: dict[str, Any]
) -> None:
    mail, page = render(templates, template, locale, variables)
    given = {value for name, value in variables.items() if name.endswith("Url")}
    assert set(page.values("href")) == given
    assert not FORBIDDEN & {tag.name for tag in page.tags}
    assert not {"src", "srcset", "background", "poster", "ping"} & {
        a for tag in page.tags for a in tag.attributes
    }
    assert mail.html is not None
    assert not re.search(r"url\s*\(|@import|@font-face|expression|javascript:", mail.html)
    remaining = mail.html
    for url in given:
        remaining = remaining.replace(url.replace("&", "&amp;"), "")
    assert "//" not in remaining


@pytest.mark.parametrize(("template", "locale", "variables"), EVERY_MAIL)
def test_mail_clients_get_what_they_need(
    templates: Templates, template: str, locale: str, variables: dict[str, Any]
) -> None:
    mail, page = render(templates, template, locale, variables)
    assert mail.html is not None
    assert len(mail.html.encode()) < 30_000
    # RFC 5322 has no longer lines, and a body in ASCII needs no encoding then.
    assert max(map(len, mail.html.splitlines())) < 400
    assert mail.html.isascii() == (locale == "en-US")
    names = {
        tag.attributes.get("name"): tag.attributes.get("content") for tag in page.tags if tag.name == "meta"
    }
    assert names["color-scheme"] == names["supported-color-schemes"] == "light dark"
    assert "width=device-width" in (names["viewport"] or "")
    assert "prefers-color-scheme:dark" in page.style
    assert "max-width:480px" in page.style
    # A dot there is doubled on the way, which costs a copy of the mail.
    assert not any(line.startswith(".") for line in mail.html.splitlines())
    assert page.tags[0] == Tag("html", {"lang": locale})
    tables = [tag.attributes for tag in page.tags if tag.name == "table"]
    assert all(table["role"] == "presentation" for table in tables)
    assert any("max-width:600px" in table.get("style", "") for table in tables)
    assert sum("[if mso]" in comment for comment in page.comments) == 3


@pytest.mark.parametrize(("template", "locale", "variables"), EVERY_MAIL)
def test_the_button_is_a_table_that_outlook_shows(
    templates: Templates, template: str, locale: str, variables: dict[str, Any]
) -> None:
    _mail, page = render(templates, template, locale, variables)
    (cell,) = [tag for tag in page.tags if "mso-padding-alt" in tag.attributes.get("style", "")]
    button = page.tags[page.tags.index(cell) + 1]
    assert (cell.name, button.name) == ("td", "a")
    assert cell.attributes["bgcolor"] == "#0b6b62"
    assert button.attributes["href"] in variables.values()


@pytest.mark.parametrize(("template", "locale", "variables"), EVERY_MAIL)
def test_the_preview_line_comes_first_and_is_hidden(
    templates: Templates, template: str, locale: str, variables: dict[str, Any]
) -> None:
    _mail, page = render(templates, template, locale, variables)
    body = next(i for i, tag in enumerate(page.tags) if tag.name == "body")
    assert "display:none" in page.tags[body + 1].attributes["style"]


def test_a_mail_survives_its_assembly(templates: Templates) -> None:
    mail, _page = render(templates, OPEN_SEAT, "zh-CN", SEAT)
    message = MailMessage(
        message_id="<1@example.edu>",
        date=datetime(2026, 11, 16, tzinfo=UTC),
        sender="alerts@example.edu",
        recipients=("ann@example.edu",),
        to=("ann@example.edu",),
        subject=mail.subject,
        text=mail.text,
        html=mail.html,
        unsubscribe_url=SEAT["unsubscribeUrl"],
    )
    read = email.message_from_bytes(assemble(message), policy=email.policy.default)
    html = read.get_body(("html",))
    assert read["subject"] == mail.subject
    assert html is not None
    assert Reader(html.get_content()).text == Reader(mail.html or "").text


@pytest.mark.parametrize(
    ("minutes", "english", "chinese"),
    [
        (1440, "24 hours", "24 小时"),
        ("120", "2 hours", "2 小时"),
        (60, "60 minutes", "1 小时"),
        (90, "90 minutes", "90 分钟"),
        (30, "30 minutes", "30 分钟"),
    ],
)
def test_the_time_to_confirm_reads_well(
    templates: Templates, minutes: int | str, english: str, chinese: str
) -> None:
    for locale, said in (("en-US", english), ("zh-CN", chinese)):
        mail, page = render(templates, VERIFICATION, locale, VERIFY | {"expirationMinutes": minutes})
        assert said in page.text
        assert said in mail.text
        assert VERIFY["contactValue"] in page.text
        assert VERIFY["contactValue"] in mail.text


def test_without_a_spoken_time_the_plain_one_is_shown(templates: Templates) -> None:
    for locale in LOCALES:
        without = {**SEAT, "eventDetectedText": None}
        mail, page = render(templates, OPEN_SEAT, locale, without)
        assert SEAT["eventDetectedAt"] in mail.text
        assert SEAT["eventDetectedAt"] in page.text


# ── Variables and versions ───────────────────────────────────────────────────────────────────────


def used(template: str, file: str) -> set[str]:
    environment = Environment(autoescape=True)
    source = (PACKAGED_TEMPLATES / template / "v1" / file).read_text(encoding="utf-8")
    return meta.find_undeclared_variables(environment.parse(source))


@pytest.mark.parametrize(("template", "variables"), MAILS)
def test_both_languages_use_the_same_variables(template: str, variables: dict[str, Any]) -> None:
    for part in ("subject.txt", "txt", "html"):
        assert used(template, f"en-US.{part}") == used(template, f"zh-CN.{part}")
    assert used(template, "en-US.txt") == used(template, "en-US.html") == set(variables)


@pytest.mark.clause("NTF-10")
@pytest.mark.parametrize("locale", LOCALES)
def test_the_required_variables_are_required_and_more_are_welcome(templates: Templates, locale: str) -> None:
    mail, _page = render(templates, OPEN_SEAT, locale, REQUIRED)
    assert render(templates, OPEN_SEAT, locale, REQUIRED | {"more": "x"})[0] == mail
    assert render(templates, OPEN_SEAT, locale, REQUIRED | dict.fromkeys(OPTIONAL))[0] == mail
    for name in REQUIRED:
        without = {key: value for key, value in SEAT.items() if key != name}
        found = templates.render(OPEN_SEAT, without, locale, "v1")
        assert isinstance(found, TemplateProblem)
        assert found.code is SendErrorCode.TEMPLATE_VARIABLE_MISSING
        assert name in found.message


@pytest.mark.clause("NTF-22")
@pytest.mark.parametrize("version", ["v2", "v10", "V1", "1", "../v1", ""])
def test_another_version_is_never_used_instead(templates: Templates, version: str) -> None:
    found = templates.render(OPEN_SEAT, SEAT, "en-US", version)
    assert isinstance(found, TemplateProblem)
    assert found.code is SendErrorCode.VALIDATION_ERROR
    assert "version" in found.message or f"open-seat/{version}" in found.message


def test_an_operator_replaces_one_file(tmp_path: Path, templates: Templates) -> None:
    (tmp_path / "open-seat/v1").mkdir(parents=True)
    (tmp_path / "open-seat/v1/en-US.subject.txt").write_text("Rutgers: {{ courseTitle }}", encoding="utf-8")
    packaged, _page = render(templates, OPEN_SEAT, "en-US", SEAT)
    mine, _page = render(Templates(tmp_path, PACKAGED_TEMPLATES), OPEN_SEAT, "en-US", SEAT)
    assert mine.subject == "Rutgers: Introduction to Computer Science"
    assert (mine.text, mine.html) == (packaged.text, packaged.html)


# ── Hostile values ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("hostile", EVERY_HOSTILE)
@pytest.mark.parametrize(("template", "locale", "variables"), EVERY_MAIL)
def test_no_value_breaks_the_markup(
    templates: Templates, template: str, locale: str, variables: dict[str, Any], hostile: str
) -> None:
    _mail, plain = render(templates, template, locale, variables)
    for name in variables:
        found = templates.render(template, variables | {name: hostile}, locale, "v1")
        assert isinstance(found, Rendered)
        page = Reader(found.html or "")
        assert page.shape == plain.shape
        assert page.style == plain.style
        assert page.comments == plain.comments
        assert "49" not in page.text


@pytest.mark.parametrize("locale", LOCALES)
def test_line_breaks_outside_of_the_subject_do_no_harm(templates: Templates, locale: str) -> None:
    _mail, plain = render(templates, OPEN_SEAT, locale, SEAT)
    for name in SEAT.keys() - used(OPEN_SEAT, f"{locale}.subject.txt"):
        mail, page = render(templates, OPEN_SEAT, locale, SEAT | {name: "a\r\nb\tc\x00"})
        assert page.shape == plain.shape
        assert "\n" not in mail.subject


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("broken", ["A\nBcc: eve@example.org", "A\r\n\r\nB", "A\x00", "A\u2028B"])
def test_a_line_break_does_not_reach_the_subject(templates: Templates, locale: str, broken: str) -> None:
    found = templates.render(OPEN_SEAT, SEAT | {"courseTitle": broken}, locale, "v1")
    assert isinstance(found, TemplateProblem)
    assert found.code is SendErrorCode.VALIDATION_ERROR
    assert "Bcc" not in found.message


@pytest.mark.parametrize("locale", LOCALES)
def test_long_words_wrap(templates: Templates, locale: str) -> None:
    _mail, page = render(templates, OPEN_SEAT, locale, SEAT)
    wrapping = [tag for tag in page.tags if "overflow-wrap:" in tag.attributes.get("style", "")]
    # Everything that is written stands in this cell, and inherits it.
    assert [tag.attributes["class"] for tag in wrapping] == ["outer edge"]
    assert "overflow-wrap:anywhere" in wrapping[0].attributes["style"]


# ── Contrast ─────────────────────────────────────────────────────────────────────────────────────


def luminance(color: str) -> float:
    digits = color.removeprefix("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    red, green, blue = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def painted(style: str) -> dict[str, str]:
    """The colours that a mail's html gives to a class."""
    pairs = (declaration.partition(":") for declaration in style.replace("!important", "").split(";"))
    return {
        name.strip(): value.strip() for name, _, value in pairs if name.strip() in {"color", "background"}
    }


def palette(page: Reader) -> Iterator[dict[str, dict[str, str]]]:
    light: dict[str, dict[str, str]] = {}
    for tag in page.tags:
        for name in tag.attributes.get("class", "").split():
            ground = {"background": tag.attributes["bgcolor"]} if "bgcolor" in tag.attributes else {}
            light.setdefault(name, {}).update(ground | painted(tag.attributes.get("style", "")))
    yield light
    dark = page.style.partition("prefers-color-scheme:dark")[2].partition("[data-ogsc]")[0]
    yield {name: painted(body) for name, body in re.findall(r"\.(\w+)\{([^}]*)\}", dark)}


@pytest.mark.parametrize(("template", "locale", "variables"), EVERY_MAIL)
def test_mails_can_be_read_in_light_and_dark(
    templates: Templates, template: str, locale: str, variables: dict[str, Any]
) -> None:
    _mail, page = render(templates, template, locale, variables)
    for colors in palette(page):
        for ink, ground in [
            *(("ink", "card"), ("ink", "outer"), ("quiet", "card"), ("quiet", "outer")),
            *(("link", "card"), ("link", "outer"), ("on", "fill")),
        ]:
            assert contrast(colors[ink]["color"], colors[ground]["background"]) >= 4.5, (ink, ground)
        if template == OPEN_SEAT:
            assert contrast(colors["pill"]["color"], colors["pill"]["background"]) >= 4.5
            for ink in ("ink", "quiet"):
                assert contrast(colors[ink]["color"], colors["panel"]["background"]) >= 4.5


def test_pages_can_be_read_in_light_and_dark() -> None:
    style = (PAGES / "style.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+)", part)) for part in style.split("@media")[:2])
    assert light.keys() == dark.keys()
    for colors in (light, dark):
        for ink in ("ink", "quiet", "accent", "bad"):
            for ground in ("ground", "card", "panel"):
                assert contrast(colors[ink], colors[ground]) >= 4.5, (ink, ground)
        for mood in ("good", "wait", "bad"):
            assert contrast(colors[mood], colors[f"{mood}-ground"]) >= 4.5, mood
        assert contrast(colors["on-accent"], colors["accent"]) >= 4.5
        # The edge of a field has to be seen, not read.
        assert contrast(colors["field"], colors["card"]) >= 3


# ── Pages ────────────────────────────────────────────────────────────────────────────────────────

SECTION: dict[str, Any] = {
    "id": 7,
    "title": "Introduction to Computer Science",
    "course": "01:198:111",
    "number": "03",
    "index": "09214",
    "term": "12026",
    "campus": "NB",
}
BARE: dict[str, Any] = dict.fromkeys(SECTION) | {"id": 8, "index": "10022", "term": "12026", "campus": "NB"}
FORM = {
    "notify_open": True,
    "window_start": "22:00",
    "window_end": "06:00",
    "time_zone": "America/New_York",
    "snooze_until": "",
    "max_notifications": 3,
    "locale": "zh-CN",
}
PAGE: dict[str, Any] = {
    "section": SECTION,
    "sections": [SECTION],
    "contact": "a•••@example.edu",
    "action": "/action?a=1&b=2",
    "token": "the-token",
    "manage_url": "https://alerts.example.edu/subscriptions/7?token=abc&x=1",
    "status": "active",
    "saved": False,
    "mistakes": {},
    "locales": [("en-US", "English"), ("zh-CN", "简体中文")],
    "form": FORM,
    "time_zones": ["UTC", "America/New_York"],
    "reason": "invalid",
}
PAGE_NAMES = ("unsubscribe", "unsubscribed", "confirm", "confirmed", "manage", "problem")
EVERY_PAGE = [pytest.param(name, locale, id=f"{name}-{locale}") for name in PAGE_NAMES for locale in LOCALES]

_environment = Environment(
    loader=FileSystemLoader(PAGES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def words(locale: str) -> dict[str, str]:
    return msgspec.json.decode((PAGES / f"{locale}.json").read_bytes(), type=dict[str, str])


def show(name: str, locale: str, **given: Any) -> Reader:
    style = Markup((PAGES / "style.css").read_text(encoding="utf-8"))
    values = PAGE | {"locale": locale, "words": words(locale), "style": style} | given
    return Reader(_environment.get_template(f"{name}.html").render(values))


def test_both_languages_have_the_same_words() -> None:
    english, chinese = (words(locale) for locale in LOCALES)
    assert list(english) == list(chinese)
    for name in english:
        assert re.findall(r"%\(\w+\)s", english[name]) == re.findall(r"%\(\w+\)s", chinese[name])
        assert english[name].isascii()
        assert not chinese[name].isascii()


def test_every_word_is_used_and_every_used_word_is_there() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in PAGES.glob("*.html"))
    asked = set(re.findall(r"words\.(\w+)", sources))
    chosen = {name for name in words("en-US") if name.startswith(("status_", "explain_", "mistake_"))}
    assert set(words("en-US")) == asked | chosen


@pytest.mark.parametrize(("name", "locale"), EVERY_PAGE)
def test_a_page_loads_and_runs_nothing(name: str, locale: str) -> None:
    page = show(name, locale)
    assert not FORBIDDEN & {tag.name for tag in page.tags}
    assert [tag.name for tag in page.tags].count("style") == 1
    assert page.style == (PAGES / "style.css").read_text(encoding="utf-8")
    assert not re.search(r"url\s*\(|@import|@font-face|</", page.style)
    attributes = {attribute for tag in page.tags for attribute in tag.attributes}
    assert not {"style", "src"} & attributes
    assert not any(attribute.startswith("on") for attribute in attributes)
    assert set(page.values("href")) <= {PAGE["manage_url"]}
    assert page.tags[0] == Tag("html", {"lang": locale})


@pytest.mark.parametrize(("name", "locale"), EVERY_PAGE)
def test_a_page_changes_something_only_by_a_form_with_the_token(name: str, locale: str) -> None:
    page = show(name, locale)
    forms = [tag.attributes for tag in page.tags if tag.name == "form"]
    assert all(form["method"] == "post" and form["action"] == PAGE["action"] for form in forms)
    tokens = [t.attributes["value"] for t in page.tags if t.attributes.get("name") == "token"]
    assert tokens == ["the-token"] * len(forms)
    assert len(forms) == {"unsubscribe": 1, "confirm": 1, "manage": 3}.get(name, 0)


def test_the_form_posts_the_fields_that_were_agreed() -> None:
    page = show("manage", "en-US")
    fields = {t.attributes["name"] for t in page.tags if t.name in {"input", "select", "button"}}
    assert fields == {
        *("token", "do", "notifyOn", "windowStart", "windowEnd", "timeZone", "snoozeUntil"),
        *("maxNotifications", "locale"),
    }
    assert {t.attributes["value"] for t in page.tags if t.name == "button"} == {
        "pause",
        "unsubscribe",
        "save",
    }
    shown = {t.attributes["name"]: t.attributes.get("value") for t in page.tags if t.name == "input"}
    assert (shown["windowStart"], shown["windowEnd"]) == ("22:00", "06:00")
    (selected,) = [t for t in page.tags if "selected" in t.attributes]
    assert selected.attributes["value"] == "zh-CN"


@pytest.mark.parametrize(
    ("status", "does"),
    [
        ("active", {"pause", "unsubscribe", "save"}),
        ("paused", {"resume", "unsubscribe", "save"}),
        ("PAUSED", {"resume", "unsubscribe", "save"}),
        ("pending", {"unsubscribe", "save"}),
        ("suppressed", {"unsubscribe", "save"}),
        ("unsubscribed", set()),
        ("something-else", {"unsubscribe", "save"}),
    ],
)
def test_a_state_offers_what_makes_sense(status: str, does: set[str]) -> None:
    for locale in LOCALES:
        page = show("manage", locale, status=status)
        assert {t.attributes["value"] for t in page.tags if t.name == "button"} == does
        assert words(locale).get(f"status_{status.lower()}", status) in page.text


def test_mistakes_stand_at_their_fields() -> None:
    page = show("manage", "en-US", mistakes={"timeZone": "No such zone."}, saved=True)
    (wrong,) = [tag for tag in page.tags if "aria-invalid" in tag.attributes]
    assert wrong.attributes["name"] == "timeZone"
    assert any(tag.attributes.get("id") == wrong.attributes["aria-describedby"] for tag in page.tags)
    assert "No such zone." in page.text
    assert words("en-US")["not_saved"] in page.text
    assert words("en-US")["saved"] not in page.text.replace(words("en-US")["not_saved"], "")
    assert words("en-US")["saved"] in show("manage", "en-US", saved=True).text


def test_several_sections_are_confirmed_at_once() -> None:
    for locale in LOCALES:
        page = show("confirm", locale, sections=[SECTION, BARE])
        boxes = [t.attributes for t in page.tags if t.attributes.get("name") == "id"]
        assert [(box["type"], box["value"], "checked" in box) for box in boxes] == [
            ("checkbox", "7", True),
            ("checkbox", "8", True),
        ]
        assert "10022" in page.text
        assert words(locale)["untitled"] in page.text
        (one,) = [t.attributes for t in show("confirm", locale).tags if t.attributes.get("name") == "id"]
        assert (one["type"], one["value"]) == ("hidden", "7")


def test_an_expired_link_reads_differently_from_a_wrong_one() -> None:
    for locale in LOCALES:
        assert words(locale)["expired_text"] in show("problem", locale, reason="expired").text
        assert words(locale)["invalid_text"] in show("problem", locale, reason="whatever").text


@pytest.mark.parametrize("hostile", EVERY_HOSTILE)
@pytest.mark.parametrize(("name", "locale"), EVERY_PAGE)
def test_no_value_breaks_a_page(name: str, locale: str, hostile: str) -> None:
    plain = show(name, locale)
    section = SECTION | dict.fromkeys(("title", "course", "number", "index"), hostile)
    form = FORM | {field: hostile for field, value in FORM.items() if value != "zh-CN"}
    page = show(
        name,
        locale,
        section=section,
        sections=[section],
        form=form,
        **dict.fromkeys(("contact", "token", "action", "manage_url", "reason"), hostile),
        time_zones=[hostile, hostile],
    )
    assert page.shape == plain.shape
    assert "49" not in page.text


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_a_course_that_has_only_a_title_is_named_once(locale: str) -> None:
    given = {**REQUIRED, "courseTitle": "Linear Algebra", "courseString": "Linear Algebra"}
    found = Templates(PACKAGED_TEMPLATES).render("open-seat", given, locale, "v1")
    assert isinstance(found, Rendered)
    assert found.subject.count("Linear Algebra") == 1
    assert found.text.count("Linear Algebra") == 1
