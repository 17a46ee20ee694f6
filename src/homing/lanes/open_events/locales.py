"""The languages of this lane: which one a reader gets, how a time reads in it, and that its templates exist.

The rule (NTF-19). A subscription's locale is wanted first, then the deployment's default; each is matched
against the supported ones, and the first supported one is for whoever wants neither:

1. the same tag, however it is spelled: `zh_cn`, `ZH-CN` and `zh-CN` are one;
2. the same language in the same script: `en-GB`, `en` → `en-US`, and `zh-HK` → `zh-TW` where there is one;
3. the same language at all: `zh-TW` → `zh-CN`, which its reader likes better than English.

What does not look like a language tag, such as `C`, `../en` or an empty text, matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from pathlib import Path

from homing.errors import SettingsError
from homing.senders.templates import Templates

#: What this package brings along; an operator's folder comes before it, file by file.
PACKAGED_TEMPLATES = Path(__file__).with_name("templates")

#: What a reader calls their language.
LOCALE_NAMES = {"en-US": "English", "zh-CN": "简体中文"}

OPEN_SEAT = "open-seat"
VERIFICATION = "verification"

_TAG = re.compile(r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8}){0,4}").fullmatch
#: `en_US.UTF-8` and `de_DE@euro`, as an operating system spells them.
_SYSTEM_SUFFIX = re.compile(r"[.@].*", re.DOTALL)
#: Where Chinese is written in traditional characters.
_TRADITIONAL = frozenset({"TW", "HK", "MO"})
_UNPRINTED = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]+")


def supported_locales(setting: str) -> tuple[str, ...]:
    """Read `HOMING_NOTIFY_LOCALES`: at least one, in the operator's order."""
    named = [name.strip() for name in setting.split(",")]
    wrong = next((name for name in named if not canonical(name)), None)
    if wrong is not None:
        raise SettingsError(f"HOMING_NOTIFY_LOCALES: {wrong!r} is no locale such as en-US")
    return tuple(dict.fromkeys(map(canonical, named)))


@lru_cache(maxsize=1024)
def choose_locale(asked: str | None, supported: tuple[str, ...], default: str | None = None) -> str:
    """Find the locale to write in: one of `supported`, spelled the usual way."""
    known = {tag: _language_and_script(tag) for tag in map(canonical, supported) if tag}
    for wanted in (asked, default):
        found = _match(canonical(wanted), known)
        if found:
            return found
    return next(iter(known))


def _match(wanted: str, known: dict[str, tuple[str, str]]) -> str | None:
    if not wanted or wanted in known:
        return wanted or None
    kin = _language_and_script(wanted)
    same_script = (tag for tag, spoken in known.items() if spoken == kin)
    same_language = (tag for tag, spoken in known.items() if spoken[0] == kin[0])
    return next(same_script, None) or next(same_language, None)


def canonical(locale: str | None) -> str:
    """Spell a language tag the usual way, `zh-Hant-TW`; empty for what is none."""
    tag = _SYSTEM_SUFFIX.sub("", (locale or "").strip()).replace("_", "-")
    if not _TAG(tag):
        return ""
    language, *rest = tag.split("-")
    return "-".join([language.lower(), *map(_subtag, rest)])


def _subtag(text: str) -> str:
    return text.title() if len(text) == 4 else text.upper() if len(text) < 4 else text.lower()


def _language_and_script(tag: str) -> tuple[str, str]:
    """Tell what is spoken and how it is written; only Chinese is written in two ways here."""
    language, *rest = tag.split("-")
    script = next((part for part in rest if len(part) == 4 and part.isalpha()), "")
    if language == "zh" and not script:
        script = "Hant" if _TRADITIONAL.intersection(rest) else "Hans"
    return language, script


# ── Words for values ─────────────────────────────────────────────────────────────────────────────

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CHINESE_DAYS = "一二三四五六日"
#: Their own short names are unmistakable to those who live there; `CST` is three zones elsewhere.
_NAMED_BY_THEMSELVES = ("America/", "US/", "Europe/")


@lru_cache(maxsize=4096)
def one_line(text: str) -> str:
    """Make a foreign text fit for a subject: no line breaks, no control characters, single blanks."""
    return _UNPRINTED.sub(" ", text).strip(" ")


@lru_cache(maxsize=1024)
def spoken_time(instant: datetime, locale: str, zone: tzinfo = UTC) -> str:
    """Say a moment of these days the way a reader of `locale` would, in the time of `zone`."""
    local = _local(instant, zone)
    match locale.partition("-")[0]:
        case "en":
            return f"{_DAYS[local.weekday()]}, {_american(local)} {_zone_name(local)}"
        case "zh":
            return _chinese(local)
        case _:
            return f"{local:%Y-%m-%d %H:%M} {_zone_name(local)}"


def _local(instant: datetime, zone: tzinfo) -> datetime:
    try:
        return instant.astimezone(zone)
    except OverflowError:
        # Another program's clock may say the year 1 or 9999, which has no other time zone.
        return instant


def _american(local: datetime) -> str:
    half = "AM" if local.hour < 12 else "PM"
    date = f"{_MONTHS[local.month - 1]} {local.day}"
    return f"{date}, {(local.hour + 11) % 12 + 1}:{local.minute:02} {half}"


def _chinese(local: datetime) -> str:
    moment = f"{local.month}月{local.day}日 周{_CHINESE_DAYS[local.weekday()]} {local:%H:%M}"
    return f"北京时间 {moment}" if _key(local) == "Asia/Shanghai" else f"{moment} {_zone_name(local)}"


def _zone_name(local: datetime) -> str:
    name = local.tzname() or ""
    if name.isalpha() and (name == "UTC" or _key(local).startswith(_NAMED_BY_THEMSELVES)):
        return name
    return _offset(local)


def _key(local: datetime) -> str:
    return str(getattr(local.tzinfo, "key", ""))


def _offset(local: datetime) -> str:
    offset = local.utcoffset()
    minutes = round(offset.total_seconds() / 60) if offset else 0
    hours, rest = divmod(abs(minutes), 60)
    sign = "-" if minutes < 0 else "+"
    return f"UTC{sign}{hours}{f':{rest:02}' if rest else ''}" if minutes else "UTC"


# ── At start ─────────────────────────────────────────────────────────────────────────────────────


def missing_templates(templates: Templates, locales: Iterable[str], version: str) -> list[str]:
    """List what would fail later: templates that a supported locale lacks, or that cannot be read."""
    wanted = [(template, locale) for template in (OPEN_SEAT, VERIFICATION) for locale in locales]
    versions = {OPEN_SEAT: version, VERIFICATION: None}
    return [
        said
        for template, locale in wanted
        for said in templates.missing(template, locale, versions[template])
    ]
