"""What somebody must not see whom a mail is not for."""

from __future__ import annotations

import base64
import hashlib
import html
import time
from collections.abc import Callable
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homing.senders.hiding import LONGEST, hide_in_json, hide_tokens

SECRETS = (
    '"otp": "CANARY1", "api_key": ["CANARY2", "CANARY3"], "pin": 4711, "user": {"password": "CAN\\"ARY4"}'
)


@pytest.mark.parametrize(
    "spoilt",
    [
        '{%s, "score": NaN}',
        '{%s, "score": 1e999}',
        '{%s, "half": "\\ud800"}',
        "{%s,}",
        "{%s",
        '{"a":' * 2000 + "{%s}" + "}" * 2000,
    ],
)
def test_what_we_cannot_read_keeps_its_secrets_as_well(spoilt: str) -> None:
    """Another program wrote it, by a reader and a writer of its own."""
    shown = hide_in_json(spoilt % SECRETS)
    assert "CANARY" not in shown
    assert "ARY4" not in shown
    assert "4711" not in shown
    assert shown.count("hidden-in-preview") == 4


def test_what_is_no_secret_stays_as_it_was_written() -> None:
    text = (
        '{"name": "Ann", "total": 1.10, "tags": ["a", "b"], "score": NaN, "link": "https://x.example/a?b=c"}'
    )
    assert hide_in_json(text) == text
    assert hide_in_json("not {json at: all") == "not {json at: all"


# ── links ────────────────────────────────────────────────────────────────────────────────────────

TOKEN = "9fK2xQ81Zr0pLmAbCdEf"


@pytest.mark.parametrize(
    "text",
    [
        # Nested parameters, as frameworks write them, and names that are written in full or in part.
        "https://shop.example.org/users/edit?user%5Breset_password_token%5D=CANARY",
        "https://shop.example.org/users/edit?user[reset_password_token]=CANARY",
        "https://shop.example.org/go?%74oken=CANARY",
        "https://shop.example.org/go?user%5Bt%5D=CANARY",
        "https://shop.example.org/go?tok=CANARY",
        "https://shop.example.org/go?resetPin=CANARY",
        # What a browser reads, whatever the page calls it.
        '<a href="https://shop.example.org/go?token&#61;CANARY">',
        '<a href="https://shop.example.org/go?a=1&#38;token&#x3D;CANARY">',
        '<a href="https&colon;&sol;&sol;shop.example.org/reset/CANARY">',
        "&lt;https://shop.example.org/reset/CANARY&gt;",
        "<a href=https://shop.example.org/reset/CANARY>",
        "<a href=https://shop.example.org/reset?x=CANARY>",
        # Links without their beginning, with another, and inside of others.
        '<a href="//shop.example.org/reset/CANARY">',
        '<a href="/reset/CANARY">',
        "shop.example.org/reset/CANARY",
        "myshop://reset/CANARY",
        "https://ann:CANARY@shop.example.org/",
        "https://ann:a&CANARY@b@shop.example.org/",
        "<a href=https://ann:CANARY@shop.example.org/>",
        "https://click.example.net/?to=https%3A%2F%2Fann:CANARY@shop.example.org%2F",
        '<a href="mailto:leave+9fK2xQ81Zr0pLmCANARY@shop.example.org">',
        '<a href="mailto:leave+9fK2xQ81Zr0pLmCANARY@shop.example.org?subject=Bye">',
        "https://click.example.net/?to=https%3A%2F%2Fshop.example.org%2Freset%2FCANARY",
        "https://click.example.net/?to=https%253A%252F%252Fshop.example.org%252F%253Ftoken%253DCANARY",
        "https://click.example.net/https%3A%2F%2Fshop.example.org%2Freset%2FCANARY",
        "https://shop.example.org/%72eset/CANARY",
        r'{"url": "https:\/\/shop.example.org\/reset\/CANARY"}',
        r'{"url": "https://shop.example.org/?a=1\u0026token=CANARY"}',
        # Behind what leads to one, in whatever form.
        "https://shop.example.org/reset/ann/CANARY",
        "https://shop.example.org/authorize/CANARY",
        "https://shop.example.org/reset?CANARY",
        "https://shop.example.org/reset?x=CANARY",
        "https://shop.example.org/#/reset/CANARY",
        "https://shop.example.org/reset#CANARY",
        "https://shop.example.org/a;jsessionid=CANARY",
        "https://shop.example.org/a?token=ab/CANARY==",
        "token=CANARY",
        "token=ab//CANARY",
    ],
)
def test_whatever_tells_of_a_secret_in_a_link_hides_it(text: str) -> None:
    assert "CANARY" not in hide_tokens(text)
    assert "hidden-in-preview" in hide_tokens(text)
    assert "CANARY" not in hide_in_json(text)


@pytest.mark.parametrize(
    "text",
    [
        # In one step with what leads to it.
        *(f"https://shop.example.org/reset{mark}834221" for mark in "-.,:~_"),
        # A browser takes the breaks out.
        '<a href="https://shop.example.org/reset?token=\nCAN\tARY x">',
        '<a href="https://shop.example.org/reset?token=&#10;CANARY">',
        "<a href='https://shop.example.org/re&Tab;set/&NewLine;CANARY'>",
        # Told by a label, however it is set.
        "Your code: 83CANARY4221",
        "<p>Your code: <b>83CANARY</b>.</p>",
        "Use this code to sign in:\n\n    83CANARY\n",
        "Your code is\n<td>\n<b>83CANARY</b>",
        "G-834221 is your code, your code is 83CANARY.",
        "PIN = 83CANARY",
        "{'token': '83CANARY'}",
        "Password: hunterCANARY",
        "<b>Passwort:</b>&nbsp;hunterCANARY",
        "Your temporary password is hunter2CANARY",
        "Authorization: Bearer abcCANARY",
        '<a href="https://shop.example.org/reset?token="83CANARY"">',
    ],
)
def test_what_a_label_or_a_step_tells_is_hidden(text: str) -> None:
    shown = hide_tokens(text)
    assert not any(secret in shown for secret in ("CANARY", "CAN", "ARY", "834221"))
    assert "hidden-in-preview" in shown


@pytest.mark.parametrize("code", ["834221", "834 221", "834-221"])
@pytest.mark.parametrize("said", ["Your code: {}.", "{} is your sign-in code.", "The code is {}."])
def test_a_number_that_is_said_to_be_a_code_is_hidden(code: str, said: str) -> None:
    assert hide_tokens(said.format(code)) == said.format("hidden-in-preview")


LOOKS = ("99182736455463728190", "abcdefghijklmnopqrst", "aB3dE9f", "9fK2-xQ81_Zr0p")


@pytest.mark.parametrize("token", LOOKS)
@pytest.mark.parametrize("place", ["/a/{}", "/a?x={}", "/a?{}", "/#{}", "/a?x=1&amp;y={}", "/a?x=%7B{}%7D"])
def test_so_do_its_looks(token: str, place: str) -> None:
    assert token not in hide_tokens(f"https://shop.example.org{place.format(token)}")


@pytest.mark.parametrize(
    "text",
    [
        "https://x.example/authors/jane?author=jane",
        "https://x.example/blog/summer-sale-2026?utm_source=news&amp;page=2#top",
        "Either/or, 24/7, on 16/11/2026: 1+1=2, see https://x.example/a?order=1234567890&date=2026-11-16.",
        '<td style="color:#1b2c3d;width:50%" class="a1b2c3d4e5f6"><br/></td>',
        '<img src="cid:9f8e7d6c5b4a@x.example">',
        '<img src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUA//8FAAAA9fK2xQ81Zr0pLm==">',
        "Write to ann@x.example (or call +49 30 1234567), &copy; 2026, R&D &amp; more",
        "Your password is about to expire. The code is short, the key to it: patience; order 834221.",
        "See the code of conduct; your password-reset help: https://x.example/help?page=2",
        '<a href=" https://x.example/go?a=1\n&amp;b=2 ">x</a>',
        r"C:\files\2026 and \u00e9 and a=b",
    ],
)
def test_what_leads_to_nobody_stays(text: str) -> None:
    assert hide_tokens(text) == text


def test_a_link_stays_readable() -> None:
    assert hide_tokens(f"(https://x.example/go?a=1&token={TOKEN}), and") == (
        "(https://x.example/go?a=1&token=hidden-in-preview), and"
    )
    assert hide_tokens(f'<a href="https://x.example/go?a=1&amp;token&#61;{TOKEN}&amp;b=2">') == (
        '<a href="https://x.example/go?a=1&amp;token=hidden-in-preview&amp;b=2">'
    )


#: As programs make them: no two alike, and none a word.
_TOKENS = st.binary(min_size=1, max_size=8).flatmap(
    lambda seed: st.sampled_from(
        [
            hashlib.sha256(seed).hexdigest()[:32],
            base64.urlsafe_b64encode(hashlib.sha256(seed).digest()[:24]).decode(),
            base64.b32encode(hashlib.sha256(seed).digest()[:20]).decode(),
            str(int(hashlib.sha256(seed).hexdigest(), 16))[:24],
        ]
    )
)
_PLACES = st.sampled_from(
    ["/a/{}", "/a/{}/b", "/a?x={}", "/a?{}", "/a?x=1&y={}&z=2", "/a#{}", "/a#x={}", "/a;x={}", "/a?x[y]={}"]
)
_WRITTEN: list[Callable[[str], str]] = [
    lambda link: link,
    html.escape,
    lambda link: link.replace("=", "&#61;").replace("/", "&#x2F;"),
    lambda link: link.replace("[", "%5B").replace("]", "%5D"),
    lambda link: f"https://click.example.net/to?link={quote(link, safe='')}",
    lambda link: f"https://click.example.net/{quote(quote(link, safe=''), safe='')}",
    lambda link: link.replace("/", r"\/"),
]
_AROUND = st.sampled_from(["{}", "See {}, please.", "<{}>", '<a href="{}">x</a>', "<a href={}>", "[x]({})"])
_BEGIN = st.sampled_from(["https://shop.example.org", "//shop.example.org", "shop.example.org", "shop://x"])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(_TOKENS, _BEGIN, _PLACES, st.sampled_from(_WRITTEN), _AROUND)
def test_a_token_is_never_shown_wherever_it_stands_and_however_it_is_written(
    token: str, begin: str, place: str, written: Callable[[str], str], around: str
) -> None:
    assert token not in hide_tokens(around.format(written(begin + place.format(token))))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(alphabet="aZ09%=&;#?/\\<>\"' .:x2F5B[]tokenreset", max_size=60))
def test_whatever_is_written_is_answered_and_what_was_hidden_stays_so(text: str) -> None:
    once = hide_tokens(text)
    assert hide_tokens(once).count("hidden-in-preview") >= once.count("hidden-in-preview")
    assert once == text or "hidden-in-preview" in once


def test_of_what_nobody_can_read_little_is_looked_at() -> None:
    """The attachments' worth of text that a row may hold took two seconds of CPU time."""
    text = "Reset: https://x.example/reset/9fK2xQ81Zr0p " * 200_000
    for shown in (hide_tokens(text), hide_in_json(msgspec.json.encode({"text": text}).decode())):
        assert len(shown) < 2 * LONGEST
        assert "9fK2" not in shown
        assert "characters)" in shown or "characters" in msgspec.json.decode(shown)["hidden-in-preview"]
    assert hide_tokens(text[:44]).endswith("hidden-in-preview ")


_HOSTILE = (
    "a", "=", "/", "&", "%", "%25", "-", "a=", "a.", "?t=1&", "&#61;", "&amp;", "https://x/", "reset",
    "reset/", "aB", "a1", r"\/", "token=", "%74", "https://x/a?b=c ", "x=1 ",
    "code ", "code: ", "code a b c ", "key is ", "code<b> ", "<b ", "1 is your ", 'href="', "href= ",
    "reset-",
)  # fmt: skip


@pytest.mark.parametrize("piece", _HOSTILE)
def test_a_text_of_four_times_the_length_takes_about_four_times_as_long(piece: str) -> None:
    """In the time of this process. What is not linear would take sixteen times as long."""
    text = piece * (50_000 // len(piece))

    def took(text: str) -> float:
        begun = time.process_time()
        hide_tokens(text)
        return time.process_time() - begun

    # A collection of garbage may fall into one of them.
    assert any(took(text * 4) < 10 * max(took(text), 0.01) for _ in range(3))
