"""Take pictures of the packaged mails in a real browser, to look at and for docs/images.

    python scripts/pictures.py docs/images          those that the documentation shows
    python scripts/pictures.py --all /tmp/pictures  every mail, light and dark, wide and on a phone

Needs Chromium. Fonts for Chinese come from the machine; without any its texts are boxes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from homing.lanes.open_events.locales import OPEN_SEAT, PACKAGED_TEMPLATES, VERIFICATION, spoken_time
from homing.senders.templates import Rendered, Templates

DETECTED_AT = datetime(2026, 11, 16, 15, 12, 9, tzinfo=UTC)
SAMPLES: dict[tuple[str, str], dict[str, object]] = {
    (OPEN_SEAT, "en-US"): {
        "courseTitle": "Introduction to Computer Science",
        "courseString": "01:198:111",
        "sectionIndex": "09214",
        "sectionNumber": "03",
        "meetingSummary": "Mon 10:20-11:40 HLL 114; Thu 10:20-11:40 HLL 114",
        "campus": "Busch",
        "eventDetectedAt": DETECTED_AT.isoformat(),
        "eventDetectedText": spoken_time(DETECTED_AT, "en-US", ZoneInfo("America/New_York")),
        "manageUrl": "https://alerts.example.edu/subscriptions/1?token=c2FtcGxl",
        "unsubscribeUrl": "https://alerts.example.edu/unsubscribe?token=c2FtcGxl",
    },
    (VERIFICATION, "en-US"): {
        "verificationUrl": "https://alerts.example.edu/confirm?token=c2FtcGxlLWZvci1hLXBpY3R1cmU",
        "expirationMinutes": 1440,
        "contactValue": "ann@example.edu",
    },
}
SAMPLES[OPEN_SEAT, "zh-CN"] = SAMPLES[OPEN_SEAT, "en-US"] | {
    "courseTitle": "计算机科学导论",
    "eventDetectedText": spoken_time(DETECTED_AT, "zh-CN", ZoneInfo("Asia/Shanghai")),
}
SAMPLES[VERIFICATION, "zh-CN"] = SAMPLES[VERIFICATION, "en-US"]


class Shot(NamedTuple):
    template: str
    locale: str
    scheme: str
    width: int

    @property
    def name(self) -> str:
        return f"{self.template}-{self.locale}-{self.scheme}-{self.width}.png"

    @property
    def height(self) -> int:
        return (500 if self.template == VERIFICATION else 720) + (60 if self.width < 500 else 0)


DOCUMENTED = (
    Shot(OPEN_SEAT, "en-US", "light", 700),
    Shot(OPEN_SEAT, "en-US", "dark", 360),
    Shot(OPEN_SEAT, "zh-CN", "light", 700),
)


def all_shots() -> list[Shot]:
    choices = product((OPEN_SEAT, VERIFICATION), ("en-US", "zh-CN"), ("light", "dark"), (700, 360))
    return [Shot(*chosen) for chosen in choices]


def take(shot: Shot, html: str, folder: Path, chromium: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "mail.html"
        page.write_text(html, encoding="utf-8")
        picture = (folder / shot.name).resolve()
        subprocess.run(
            [*_command(chromium, scratch, shot), f"--screenshot={picture}", page.as_uri()], check=True
        )


def _command(chromium: str, scratch: str, shot: Shot) -> list[str]:
    dark = ["--force-dark-mode"] if shot.scheme == "dark" else []
    return [
        *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={scratch}/profile", f"--window-size={shot.width},{shot.height}"),
        *("--hide-scrollbars", *dark),
    ]


def rendered(shot: Shot) -> str:
    found = Templates(PACKAGED_TEMPLATES).render(
        shot.template, SAMPLES[shot.template, shot.locale], shot.locale, "v1"
    )
    assert isinstance(found, Rendered), found
    assert found.html is not None
    return found.html


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for shot in all_shots() if asked.all else DOCUMENTED:
        take(shot, rendered(shot), asked.folder, asked.chromium)


if __name__ == "__main__":
    main()
